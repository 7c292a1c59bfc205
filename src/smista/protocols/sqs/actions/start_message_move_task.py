"""StartMessageMoveTask: send dead letters back to where they came from, or to another queue."""

from __future__ import annotations

from smista.errors import NamespaceNotFound, QueueNotFound, RedriveRunning
from smista.protocols.sqs.actions.base import Answer, Parameters
from smista.protocols.sqs.addresses import read_arn
from smista.protocols.sqs.call import Call, Target
from smista.protocols.sqs.dead_letter_policy import has_sources
from smista.protocols.sqs.errors import RESOURCE_NOT_FOUND, UNSUPPORTED_OPERATION, SqsError, invalid, missing
from smista.protocols.sqs.move_tasks import handle_of
from smista.service.commands.redrives import StartRedrive

RATE_MAX = 500


class TaskHandleAnswer(Answer, rename="pascal"):
    task_handle: str


class StartMessageMoveTask(Parameters, rename="pascal", kw_only=True):
    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None

    async def run(self, call: Call) -> Answer:
        source = find_by_arn(call, self.source_arn, "SourceArn")
        rate = self.max_number_of_messages_per_second
        if rate is not None and not 1 <= rate <= RATE_MAX:
            raise invalid(
                f"Value {rate} for parameter MaxNumberOfMessagesPerSecond is invalid. Reason: You must enter a value "
                f"between 1 and {RATE_MAX}."
            )
        if not await has_sources(source):
            raise invalid("Source queue must be configured as a Dead Letter Queue.")
        to = None
        if self.destination_arn:
            to = find_by_arn(call, self.destination_arn, "DestinationArn")
            if to.settings.ordered != source.settings.ordered:
                raise SqsError(UNSUPPORTED_OPERATION, "The source and the destination must be queues of the same type.")
            if (to.namespace, to.name) == (source.namespace, source.name):
                raise invalid("The destination must be another queue than the source.")
            if to.namespace != source.namespace:
                raise invalid("The destination must be in the account of the source.")
        try:
            task = await source.session.run(
                StartRedrive(queue=source.name, to=None if to is None else to.name, per_second=rate)
            )
        except RedriveRunning as running:
            # One of another protocol, under another queue's name, is in no list of SQS.
            why = "" if running.queue == source.name else f" {running}"
            raise invalid(
                "There is already a task running. Only one active task is allowed for a source queue arn at a given "
                f"time.{why}"
            ) from None
        return TaskHandleAnswer(handle_of(task, source))


def find_by_arn(call: Call, text: str | None, parameter: str) -> Target:
    if not text:
        raise missing(parameter)
    arn = read_arn(text)
    if arn is None:
        raise invalid(f"Value {text[:200]} for parameter {parameter} is invalid. Reason: It is not the ARN of a queue.")
    try:
        if arn.region != call.region:
            raise QueueNotFound(text)
        return call.find(arn.name, arn.account)
    except (QueueNotFound, NamespaceNotFound):
        raise SqsError(
            RESOURCE_NOT_FOUND,
            f"The resource that you specified for the {parameter} parameter doesn't exist.",
        ) from None
