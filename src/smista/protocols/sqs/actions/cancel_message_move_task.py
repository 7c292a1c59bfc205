"""CancelMessageMoveTask: what was moved until then stays moved."""

from __future__ import annotations

from smista.errors import RedriveEnded, RedriveNotFound
from smista.protocols.sqs.actions.base import Answer, Parameters
from smista.protocols.sqs.actions.start_message_move_task import find_by_arn
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.errors import RESOURCE_NOT_FOUND, UNSUPPORTED_OPERATION, SqsError, invalid, missing
from smista.protocols.sqs.move_tasks import read_handle
from smista.service.commands.redrives import CancelRedrive


class CancelledAnswer(Answer, rename="pascal"):
    approximate_number_of_messages_moved: int


class CancelMessageMoveTask(Parameters, rename="pascal", kw_only=True):
    task_handle: str | None = None

    async def run(self, call: Call) -> Answer:
        if not self.task_handle:
            raise missing("TaskHandle")

        handle = read_handle(self.task_handle)
        if handle is None:
            raise invalid("Value for parameter TaskHandle is invalid.")
        source = find_by_arn(call, handle.source_arn, "SourceArn")
        try:
            task = await source.session.run(CancelRedrive(source.name, handle.task_id))
        except RedriveNotFound:
            raise SqsError(RESOURCE_NOT_FOUND, "Task does not exist.") from None
        except RedriveEnded:
            raise SqsError(UNSUPPORTED_OPERATION, "Only active tasks can be cancelled.") from None
        return CancelledAnswer(task.redriven)
