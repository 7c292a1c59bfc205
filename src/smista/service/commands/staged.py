"""Staged publishes: what tasks have staged as Arrow is committed, or discarded."""

from __future__ import annotations

from typing import Annotated

import msgspec

from smista.service.command import Command
from smista.service.context import Context
from smista.service.fields import Choice, Name
from smista.service.permission import Permission

StageName = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
StageNumber = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class CommitAnswer(msgspec.Struct):
    published: int
    """Messages that were stored, by this commit or, where it is repeated, by the first."""
    repeated: bool
    """Whether the batch had been committed before, so that nothing was done."""
    duplicates: int
    """Rows whose `id` the queue had seen."""
    unrouted: int
    """Rows that the exchange led nowhere."""


class CommitStaged(
    Command[CommitAnswer], kw_only=True, needs=Permission.WRITE.on("queue", "exchange"), changes=True, at_once=False
):
    """Publish all rows of the parts that are named, or nothing; once, however often it is asked for."""

    name = "staged.commit"
    choices = (Choice(("queue", "exchange")),)

    job: StageName
    batch: StageName
    parts: Annotated[list[tuple[StageNumber, StageNumber]], msgspec.Meta(max_length=100_000)]
    queue: Name | None = None
    exchange: Annotated[str, msgspec.Meta(max_length=255)] | None = None

    async def run(self, context: Context) -> CommitAnswer:
        self.check_choices()
        done = await context.service.staging.commit(
            self.job,
            self.batch,
            self.parts,
            queue=self.queue,
            exchange=self.exchange,
            namespace=context.namespace,
        )
        return CommitAnswer(done.published, done.is_repeated, done.duplicates, done.unrouted)


class Discarded(msgspec.Struct):
    discarded: int
    """How many parts were staged."""


class DiscardStaged(Command[Discarded], needs=Permission.WRITE, changes=True, at_once=False):
    """Remove what was staged for a batch and not committed."""

    name = "staged.discard"

    job: StageName
    batch: StageName

    async def run(self, context: Context) -> Discarded:
        return Discarded(await context.service.staging.discard(self.job, self.batch))
