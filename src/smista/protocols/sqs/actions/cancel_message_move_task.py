"""CancelMessageMoveTask: what was moved until then stays moved."""

from __future__ import annotations

from smista.protocols.sqs.actions.base import Answer, Parameters
from smista.protocols.sqs.actions.start_message_move_task import find_by_arn
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.errors import RESOURCE_NOT_FOUND, UNSUPPORTED_OPERATION, SqsError, invalid, missing
from smista.protocols.sqs.move_tasks import read_handle


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
        tasks = call.memory.move_tasks.of((source.namespace, source.name), call.broker)
        task = next((task for task in tasks if task.handle == self.task_handle), None)
        if task is None:
            raise SqsError(RESOURCE_NOT_FOUND, "Task does not exist.")
        if not task.is_active:
            raise SqsError(UNSUPPORTED_OPERATION, "Only active tasks can be cancelled.")
        task.status = "CANCELLING"
        return CancelledAnswer(task.moved)
