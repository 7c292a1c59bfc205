"""ListMessageMoveTasks: the latest of a queue, newest first."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from smista.protocols.sqs.actions.base import Answer, Parameters, check_range
from smista.protocols.sqs.actions.start_message_move_task import find_by_arn
from smista.protocols.sqs.call import Call, Target
from smista.protocols.sqs.move_tasks import handle_of, status_of
from smista.service.commands.redrives import ListRedrives, RedriveAnswer

RESULTS_MAX = 10


class TaskView(msgspec.Struct, rename="pascal", omit_defaults=True):
    status: str
    source_arn: str
    approximate_number_of_messages_moved: int
    approximate_number_of_messages_to_move: int
    started_timestamp: int
    task_handle: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    failure_reason: str | None = None


class TasksAnswer(Answer, rename="pascal", omit_defaults=True):
    results: list[TaskView] = msgspec.field(default_factory=list)


class ListMessageMoveTasks(Parameters, rename="pascal", kw_only=True):
    is_reading: ClassVar[bool] = True

    source_arn: str | None = None
    max_results: int | None = None

    async def run(self, call: Call) -> Answer:
        source = find_by_arn(call, self.source_arn, "SourceArn")
        limit = 1 if self.max_results is None else self.max_results
        check_range(limit, "MaxResults", 1, RESULTS_MAX, "Must be between 1 and 10, if provided.")
        found = await source.session.run(ListRedrives(source.name))
        return TasksAnswer([_view(task, source) for task in found.redrives[:limit]])


def _view(task: RedriveAnswer, source: Target) -> TaskView:
    status, failure = status_of(task)
    return TaskView(
        status,
        source.arn(),
        task.redriven,
        task.expected,
        task.started_at_ms,
        # Only what is running can still be cancelled by it.
        handle_of(task, source) if status == "RUNNING" else None,
        None if task.to is None else source.arn(task.to),
        None if task.per_second is None else round(task.per_second),
        failure,
    )
