"""Dead letters: seeing them, sending them back, throwing them away. Where they are, `dead_letter_places` says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from smista.engine import State, Wanted
from smista.engine.interface import Engine
from smista.errors import InvalidRequest, MessageNotFound
from smista.service.command import Command
from smista.service.commands.queues import Purged
from smista.service.context import Context
from smista.service.dead_letter_places import Places, places
from smista.service.fields import Choice, Name
from smista.service.filters import Filtered, Found, Paged
from smista.service.permission import Permission

SEARCHED_MAX = 100
"""So many of the queues that were searched are named."""
MessageIds = Annotated[list[str], msgspec.Meta(max_length=10_000)]


def wanted(found: Places, asked: Filtered, **more: Any) -> list[tuple[str, Wanted]]:
    """Per place where a queue's dead letters may be, which of them are asked for. Without the places where no message
    is of the source that is asked for."""
    made: dict[tuple[State | None, str | None], Wanted] = {}
    wanted = []
    for place, mark in found:
        if asked.source in (None, mark.get("source", asked.source)):
            kind = mark.get("state"), mark.get("source")
            if kind not in made:
                made[kind] = asked.wanted(**mark, **more)
            wanted.append((place, made[kind]))
    return wanted


async def _in_turns(
    broker: Engine, searched: Sequence[tuple[str, Wanted]], namespace: str
) -> AsyncIterator[tuple[str, Wanted]]:
    """Each place, one in a turn of the loop where there are many: there may be thousands. Those that have gone by then
    are left out; but not the first, so that whoever names what is not there gets an error."""
    at_once = 1 if len(searched) > 2 else 2
    async for place, some in broker.fair_turns.in_turns(searched, at_once):
        if place == searched[0][0] or broker.catalog.has_queue(place, namespace=namespace):
            yield place, some


class Chosen(Filtered, kw_only=True):
    """Some of a queue's dead letters: those named, those that the filters leave, or all."""

    queue: Name
    kept_in: Name | None = None
    message_id: str | None = None
    message_ids: MessageIds | None = None

    async def where(self, context: Context) -> list[tuple[str, Wanted]]:
        """Each queue that they may be in, and which of those there are wanted."""
        ONE_OR_SEVERAL.check(self)
        ids = [self.message_id] if self.message_id is not None else self.message_ids
        messages = None if ids is None else frozenset(map(context.broker.ids.parse, ids))
        found = await places(context.broker, self.queue, context.namespace, self.kept_in)
        return wanted(found, self, messages=messages)

    async def in_turns(self, context: Context) -> AsyncIterator[tuple[str, Wanted]]:
        async for place, some in _in_turns(context.broker, await self.where(context), context.namespace):
            yield place, some

    def check_found(self, count: int) -> None:
        """Raise `MessageNotFound` where one message was named, and was not among them."""
        if self.message_id is not None and not count:
            raise MessageNotFound(
                f"Queue {self.queue!r} has no dead letter {self.message_id} that nobody holds; it may have been moved."
            )


ONE_OR_SEVERAL = Choice(("message_id", "message_ids"), is_required=False)


class DeadLetterPage(NamedTuple):
    queue: str
    """The dead-letter queue; the queue itself where its dead letters are parked."""
    messages: Sequence[Found]
    after: int | None
    searched: Sequence[str]
    """The queues that were searched, the first hundred of them."""


class ListDeadLetters(Paged, Command[DeadLetterPage], kw_only=True, needs=Permission.READ.on("queue", "kept_in")):
    """A page of a queue's dead letters."""

    name = "dlq.list"

    queue: Name
    kept_in: Name | None = None

    async def run(self, context: Context) -> DeadLetterPage:
        broker, namespace = context.broker, context.namespace
        found: list[Found] = []
        ends: list[int] = []
        all_places = await places(broker, self.queue, namespace, self.kept_in)
        async for place, some in _in_turns(broker, wanted(all_places, self), namespace):
            page = await self.browse(broker, place, some, namespace)
            found += [Found(place, message) for message in page.messages]
            if page.after is not None:
                ends.append(page.after)
        # Sequences are the broker's, so pages of two places merge; what lies beyond the shorter page comes next time.
        found.sort(key=lambda one: one.message.sequence)
        end = min(ends, default=None)
        if end is not None:
            found = [one for one in found if one.message.sequence <= end]
        if len(found) > self.limit:
            found = found[: self.limit]
            end = found[-1].message.sequence
        return DeadLetterPage(all_places[-1][0], found, end, [place for place, _ in all_places[:SEARCHED_MAX]])


class Redriven(msgspec.Struct):
    redriven: int
    """How many were sent back; in a dry run, how many would be."""
    success: bool = True


TO_SEND = (Permission.READ.on("queue", "kept_in"), Permission.WRITE.on("to"))
"""What it needs to send them back."""


class Sent(Chosen, kw_only=True):
    """... and how they are sent back."""

    to: Name | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] | None = None
    per_second: Annotated[float, msgspec.Meta(ge=0.001, le=1e9)] | None = None

    async def job(self, context: Context) -> dict[str, Any]:
        """What a job that does it is made of, see `Jobs.start`."""
        found = await self.where(context)
        if not found:
            raise InvalidRequest(f"The dead letters of queue {self.queue!r} are of that source, not {self.source!r}.")
        return {
            "places": found,
            "to": self.to,
            "limit": self.limit,
            "per_second": self.per_second,
            "namespace": context.namespace,
        }


class RedriveDeadLetters(
    Sent,
    Command[Redriven],
    kw_only=True,
    needs=TO_SEND,
    changes=True,
    at_once=False,
    waits="per_second",
):
    """Send dead letters back to where they came from, or to another queue."""

    name = "dlq.retry"
    choices = (ONE_OR_SEVERAL,)

    dry_run: bool = False

    async def run(self, context: Context) -> Redriven:
        if self.per_second is not None and not self.dry_run:
            done = await context.broker.jobs.run(**await self.job(context))
            self.check_found(done.moved)
            return Redriven(done.moved)
        left = self.limit
        redriven = 0
        async for place, some in self.in_turns(context):
            count = await context.broker.redriving.redrive(
                place,
                some,
                to=self.to,
                limit=left,
                dry_run=self.dry_run,
                namespace=context.namespace,
            )
            redriven += count
            if left is not None:
                left -= count
                if not left:
                    break
        self.check_found(redriven)
        return Redriven(redriven)


class PurgeDeadLetters(
    Chosen,
    Command[Purged],
    kw_only=True,
    needs=Permission.CONFIGURE.on("queue", "kept_in"),
    changes=True,
    at_once=False,
):
    """Throw away a queue's dead letters."""

    name = "dlq.purge"
    choices = (ONE_OR_SEVERAL,)

    async def run(self, context: Context) -> Purged:
        count = 0
        async for place, some in self.in_turns(context):
            count += await context.broker.redriving.discard(place, some, namespace=context.namespace)
        self.check_found(count)
        return Purged(count)
