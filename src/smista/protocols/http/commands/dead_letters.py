"""Dead letters: seeing them, sending them back, throwing them away. Where they are, `dead_letter_places` says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from smista.core.errors import MessageNotFound
from smista.core.message import Message
from smista.engine import Broker, Filter
from smista.protocols.http.commands.base import Choice, Door, Name, command
from smista.protocols.http.commands.looking import Filtered, Paged, show_all
from smista.protocols.http.commands.queues import Purged
from smista.protocols.http.dead_letter_places import Places, places
from smista.protocols.http.messages import MessageView

LOOKED_IN_MAX = 100
"""So many of the queues that were looked in are named."""
MessageIds = Annotated[list[str], msgspec.Meta(max_length=10_000)]


def wanted(
    found: Places, asked: Filtered, matches: Callable[[Message], bool] | None = None
) -> list[tuple[str, Filter]]:
    """Per place where a queue's dead letters may be, which of them are asked for."""
    more = {} if matches is None else {"matches": matches}
    return [
        (place, asked.filter(**mark, **more))
        for place, mark in found
        if asked.source in (None, mark.get("source", asked.source))
    ]


async def _in_turns(
    broker: Broker, looked_at: Sequence[tuple[str, Filter]], namespace: str
) -> AsyncIterator[tuple[str, Filter]]:
    """Each place, one in a turn of the loop where there are many: there may be thousands. Those that have gone by then
    are left out; but not the first, so that whoever asks for what is not there hears so."""
    at_once = 1 if len(looked_at) > 2 else 2
    async for place, some in broker.lane.in_turns(looked_at, at_once):
        if place == looked_at[0][0] or broker.has_queue(place, namespace=namespace):
            yield place, some


class Chosen(Filtered, kw_only=True):
    """Some of a queue's dead letters: those named, those that the filters leave, or all."""

    choices: ClassVar[tuple[Choice, ...]] = (Choice(("message_id", "message_ids"), is_required=False),)

    queue: Name
    kept_in: Name | None = None
    message_id: str | None = None
    message_ids: MessageIds | None = None

    async def where(self, broker: Broker) -> AsyncIterator[tuple[str, Filter]]:
        """Each queue that they may be in, and which of those there are wanted."""
        self.check_choices()
        matches = self._matches(broker)
        found = await places(broker, self.queue, self.namespace, self.kept_in)
        async for place, some in _in_turns(broker, wanted(found, self, matches), self.namespace):
            yield place, some

    def _matches(self, broker: Broker) -> Callable[[Message], bool] | None:
        """What the filter leaves to us: the ids, and the headers."""
        ids = [self.message_id] if self.message_id is not None else self.message_ids
        has_headers = self.filter().matches
        if ids is None:
            return has_headers
        numbers = {broker.ids.parse(message_id) for message_id in ids}
        return lambda message: (
            (message.number, message.created_at_ms) in numbers and (has_headers is None or has_headers(message))
        )

    def check_found(self, count: int) -> None:
        """Raise `MessageNotFound` where one message was named, and was not among them."""
        if self.message_id is not None and not count:
            raise MessageNotFound(
                f"Queue {self.queue!r} has no dead letter {self.message_id} that nobody holds; it may have been moved."
            )


class DeadLetterPage(msgspec.Struct):
    queue: str
    """The dead-letter queue; the queue itself where its dead letters are parked."""
    messages: list[MessageView]
    after: int | None = None
    looked_in: list[str] = []
    """The queues that were looked in, the first hundred of them."""


@command
class ListDeadLetters(Paged, kw_only=True):
    """A page of a queue's dead letters."""

    name: ClassVar[str] = "dlq.list"
    answer: ClassVar[Any] = DeadLetterPage

    queue: Name
    kept_in: Name | None = None

    async def run(self, door: Door) -> DeadLetterPage:
        broker = door.broker
        found: list[tuple[str, Message]] = []
        ends: list[int] = []
        all_places = await places(broker, self.queue, self.namespace, self.kept_in)
        looked_at = wanted(all_places, self)
        async for place, some in _in_turns(broker, looked_at, self.namespace):
            page = await self.browse(broker, place, some)
            found += [(place, message) for message in page.messages]
            if page.after is not None:
                ends.append(page.after)
        # Sequences are the broker's, so pages of two places merge; what lies beyond the shorter page comes next time.
        found.sort(key=lambda pair: pair[1].sequence)
        end = min(ends, default=None)
        if end is not None:
            found = [pair for pair in found if pair[1].sequence <= end]
        if len(found) > self.limit:
            found = found[: self.limit]
            end = found[-1][1].sequence
        shown = await show_all(door, found, raw=self.raw, bodies=self.bodies)
        looked_in = [place for place, _ in all_places[:LOOKED_IN_MAX]]
        return DeadLetterPage(all_places[-1][0], shown, end, looked_in)


class Redriven(msgspec.Struct):
    redriven: int
    """How many were sent back; in a dry run, how many would be."""
    success: bool = True


@command
class RedriveDeadLetters(Chosen, kw_only=True):
    """Send dead letters back to where they came from, or to another queue."""

    name: ClassVar[str] = "dlq.retry"
    answer: ClassVar[Any] = Redriven

    to: Name | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] | None = None
    per_second: Annotated[float, msgspec.Meta(ge=0.001, le=1e9)] | None = None
    dry_run: bool = False

    async def run(self, door: Door) -> Redriven:
        left = self.limit
        redriven = 0
        async for place, some in self.where(door.broker):
            count = await door.broker.redrive(
                place,
                some,
                to=self.to,
                limit=left,
                per_second=self.per_second,
                dry_run=self.dry_run,
                namespace=self.namespace,
            )
            redriven += count
            if left is not None:
                left -= count
                if not left:
                    break
        self.check_found(redriven)
        return Redriven(redriven)


@command
class PurgeDeadLetters(Chosen, kw_only=True):
    """Throw away a queue's dead letters."""

    name: ClassVar[str] = "dlq.purge"
    answer: ClassVar[Any] = Purged

    async def run(self, door: Door) -> Purged:
        count = 0
        async for place, some in self.where(door.broker):
            count += await door.broker.discard(place, some, namespace=self.namespace)
        self.check_found(count)
        return Purged(count)
