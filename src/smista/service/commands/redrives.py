"""Redrives that go on by themselves: started, listed, cancelled. `dlq.retry` starts one too, and waits for its end."""

from __future__ import annotations

from typing import Literal

import msgspec

from smista.core.jobs import RUNNING_MAX
from smista.engine.jobs import JobView
from smista.service.command import Command
from smista.service.commands.dead_letters import ONE_OR_SEVERAL, Sent
from smista.service.context import Context
from smista.service.fields import Name
from smista.service.permission import Permission


class RedriveAnswer(msgspec.Struct):
    job: str
    """Its id."""
    queue: str
    """The queue that it belongs to: the first of those that it searches."""
    state: Literal["running", "completed", "cancelled", "failed"]
    expected: int
    """How many there were when it started, at most: the filters may leave fewer."""
    redriven: int
    skipped: int
    """Left alone, since they never were dead letters, and no queue was named for them."""
    started_at_ms: int
    ended_at_ms: int | None
    to: str | None
    limit: int | None
    per_second: float | None
    code: str | None
    """Of the error it failed with ..."""
    error: str | None
    """... and what that says."""


def show_redrive(queue: str, job: JobView) -> RedriveAnswer:
    return RedriveAnswer(
        job=job.id,
        queue=queue,
        state=job.state.name.lower(),  # type: ignore[arg-type]  # the names of JobState
        expected=job.expected,
        redriven=job.moved,
        skipped=job.strays,
        started_at_ms=job.started_at_ms,
        ended_at_ms=job.ended_at_ms,
        to=job.to,
        limit=job.limit,
        per_second=job.per_second,
        code=job.code,
        error=job.error,
    )


class StartRedrive(
    Sent,
    Command[RedriveAnswer],
    kw_only=True,
    needs=(Permission.READ.on("queue", "kept_in"), Permission.WRITE.on("to")),
    changes=True,
    at_once=False,
):
    """Start to send dead letters back. It goes on by itself, also after a restart of the broker."""

    name = "redrive.start"
    choices = (ONE_OR_SEVERAL,)

    alone: bool = False
    """Refuse it while another one of the queue is running."""

    async def run(self, context: Context) -> RedriveAnswer:
        plan = await self.job(context)
        started = await context.broker.jobs.start(**plan, running_max=1 if self.alone else RUNNING_MAX)
        return show_redrive(plan["places"][0][0], started)


class RedriveList(msgspec.Struct):
    redrives: list[RedriveAnswer]
    """The one that was started last first."""


class ListRedrives(Command[RedriveList], needs=Permission.MONITOR.on("queue")):
    """The redrives of a queue that are running, and the latest that have ended."""

    name = "redrive.list"

    queue: Name

    async def run(self, context: Context) -> RedriveList:
        found = await context.broker.asking.jobs(self.queue, namespace=context.namespace)
        return RedriveList([show_redrive(self.queue, job) for job in found])


class CancelRedrive(Command[RedriveAnswer], needs=Permission.READ.on("queue"), changes=True):
    """End a redrive. What it has sent back stays there."""

    name = "redrive.cancel"

    queue: Name
    job: str

    async def run(self, context: Context) -> RedriveAnswer:
        return show_redrive(
            self.queue, await context.broker.jobs.cancel(self.queue, self.job, namespace=context.namespace)
        )
