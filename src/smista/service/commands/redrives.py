"""Redrives that go on by themselves: started, listed, cancelled. `dlq.retry` starts one too, and waits for its end."""

from __future__ import annotations

from typing import Literal

import msgspec

from smista.engine.jobs import JobView
from smista.service.command import Command
from smista.service.commands.dead_letters import ONE_OR_SEVERAL, TO_SEND, Sent
from smista.service.context import Context
from smista.service.fields import After, Name, PageSize
from smista.service.permission import Permission

SHOWN_AT_ONCE = 500
"""So many redrives are looked at in one turn of the loop."""


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


def show_redrive(job: JobView) -> RedriveAnswer:
    return RedriveAnswer(
        job=job.id,
        queue=job.queue,
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
    needs=TO_SEND,
    changes=True,
    at_once=False,
):
    """Start to send dead letters back. It goes on by itself, also after a restart of the broker."""

    name = "redrive.start"
    choices = (ONE_OR_SEVERAL,)

    async def run(self, context: Context) -> RedriveAnswer:
        return show_redrive(await context.broker.jobs.start(**await self.job(context)))


class RedriveList(msgspec.Struct):
    redrives: list[RedriveAnswer]
    """The one that was started last first."""
    after: int | None
    """Where the next page starts; null when this was the last."""


class ListRedrives(Command[RedriveList], needs=Permission.MONITOR.on("queue", or_all=True)):
    """The redrives of a queue, or of all, that are running, and the latest of each queue that have ended."""

    name = "redrive.list"

    queue: Name | None = None
    after: After = 0
    limit: PageSize = 1_000

    async def run(self, context: Context) -> RedriveList:
        found, after = await context.broker.jobs.page(
            self.queue, after=self.after, limit=self.limit, namespace=context.namespace
        )
        answers: list[RedriveAnswer] = []
        async for some in context.broker.fair_turns.slices(found, SHOWN_AT_ONCE):
            answers += map(show_redrive, some)
        return RedriveList(answers, after)


class CancelRedrive(Command[RedriveAnswer], needs=Permission.READ.on("queue"), changes=True):
    """End a redrive. What it has sent back stays there."""

    name = "redrive.cancel"

    queue: Name
    job: str

    async def run(self, context: Context) -> RedriveAnswer:
        return show_redrive(await context.broker.jobs.cancel(self.queue, self.job, namespace=context.namespace))
