"""CancelMessageMoveTask: what was moved until then stays moved."""

from __future__ import annotations

from smista.protocols.sqs.actions.base import Answer, Parameters
from smista.protocols.sqs.addresses import read_arn
from smista.protocols.sqs.call import Call
from smista.protocols.sqs.errors import RESOURCE_NOT_FOUND, UNSUPPORTED_OPERATION, SqsError, missing
from smista.protocols.sqs.move_tasks import MoveTask


class CancelledAnswer(Answer, rename="pascal"):
    approximate_number_of_messages_moved: int


class CancelMessageMoveTask(Parameters, rename="pascal", kw_only=True):
    task_handle: str | None = None

    async def run(self, call: Call) -> Answer:
        if not self.task_handle:
            raise missing("TaskHandle")

        def is_callers(task: MoveTask) -> bool:
            arn = read_arn(task.source_arn)
            return not call.settings.access_keys or (arn is not None and arn.account == call.account)

        task = call.memory.move_tasks.find(self.task_handle, call.broker, is_callers)
        if task is None:
            raise SqsError(RESOURCE_NOT_FOUND, "Task does not exist.")
        if not task.is_active:
            raise SqsError(UNSUPPORTED_OPERATION, "Only active tasks can be cancelled.")
        task.status = "CANCELLING"
        return CancelledAnswer(task.moved)
