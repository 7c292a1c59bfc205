"""Dead letters: seeing them, sending them back, throwing them away.

A queue's dead letters are in two places: those that came from it into its dead-letter queue (or into the queues that
its dead-letter exchange leads to), and those parked in it. Whoever names a dead-letter queue itself means all that is
in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from smista.core.dead_letters import DEAD_LETTER_SUFFIX, MOVES
from smista.core.errors import MessageNotFound
from smista.core.message import Message
from smista.core.settings import QueueSettings
from smista.engine import Broker, DeadLetterMode, Filter, State
from smista.protocols.http.commands.base import Choice, Door, Name, command
from smista.protocols.http.commands.looking import Filtered, Paged, show_all
from smista.protocols.http.commands.queues import Purged, declared
from smista.protocols.http.messages import MessageView

# -- where they are ---------------------------------------------------------------------------------------------------


async def targets_of(broker: Broker, queue: str, settings: QueueSettings, namespace: str) -> list[str]:
    """The queues that take a queue's dead letters, those among them that are there."""
    if settings.dead_letter not in MOVES:
        return []
    exchange, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
    if exchange is None:
        target = settings.dead_letter_queue or queue + DEAD_LETTER_SUFFIX
        return [target] if declared(broker, target, namespace) else []
    if key is None:
        # For any key.
        return await broker.queues_behind(exchange, namespace=namespace)
    return list(broker.reached(exchange, key, namespace=namespace))


async def is_target(broker: Broker, queue: str, namespace: str) -> bool:
    """Whether some queue sends its dead letters here, or did until it was deleted."""
    source = queue.removesuffix(DEAD_LETTER_SUFFIX)
    if source != queue:
        if declared(broker, source, namespace):
            settings = broker.queue_settings(source, namespace=namespace)
            if await targets_of(broker, source, settings, namespace) == [queue]:
                return True
        elif broker.queue_settings(queue, namespace=namespace).dead_letter is DeadLetterMode.PARK:
            # As the broker makes them.
            return True
    before = await broker.exchanges_before(queue, namespace=namespace)
    for settings in await broker.distinct_settings(namespace=namespace):
        if settings.dead_letter not in MOVES:
            continue
        exchange, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
        if exchange is None:
            if settings.dead_letter_queue == queue:
                return True
        elif key is None:
            if exchange in before:
                return True
        else:
            # To follow a key may take some milliseconds.
            await broker.lane.turn()
            if queue in broker.reached(exchange, key, namespace=namespace):
                return True
    return False


async def places(broker: Broker, queue: str, namespace: str) -> list[tuple[str, dict[str, Any]]]:
    """Where a queue's dead letters are, and what tells them from others there."""
    settings = broker.queue_settings(queue, namespace=namespace)
    if await is_target(broker, queue, namespace):
        return [(queue, {})]
    targets = [name for name in await targets_of(broker, queue, settings, namespace) if name != queue]
    usual = queue + DEAD_LETTER_SUFFIX
    if usual not in targets and declared(broker, usual, namespace):
        # Another target was named since: what died before is still there.
        targets.append(usual)
    return [(queue, {"state": State.DEAD}), *((target, {"source": queue}) for target in targets)]


# -- the commands -----------------------------------------------------------------------------------------------------


Places = Sequence[tuple[str, dict[str, Any]]]


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


class DeadLetterPage(msgspec.Struct):
    queue: str
    """The dead-letter queue; the queue itself where its dead letters are parked."""
    messages: list[MessageView]
    after: int | None = None


@command
class ListDeadLetters(Paged, kw_only=True):
    """A page of a queue's dead letters."""

    name: ClassVar[str] = "dlq.list"
    answer: ClassVar[Any] = DeadLetterPage

    queue: Name

    async def run(self, door: Door) -> DeadLetterPage:
        broker = door.broker
        found: list[tuple[str, Message]] = []
        ends: list[int] = []
        all_places = await places(broker, self.queue, self.namespace)
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
        return DeadLetterPage(all_places[-1][0], shown, end)


class Redriven(msgspec.Struct):
    redriven: int
    """How many were sent back; in a dry run, how many would be."""
    success: bool = True


@command
class RedriveDeadLetters(Filtered, kw_only=True):
    """Send dead letters back to where they came from, or to another queue."""

    name: ClassVar[str] = "dlq.retry"
    answer: ClassVar[Any] = Redriven
    choices: ClassVar[tuple[Choice, ...]] = (Choice(("message_id", "message_ids"), is_required=False),)

    queue: Name
    message_id: str | None = None
    message_ids: Annotated[list[str], msgspec.Meta(max_length=10_000)] | None = None
    to: Name | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] | None = None
    per_second: Annotated[float, msgspec.Meta(ge=0.001, le=1e9)] | None = None
    dry_run: bool = False

    async def run(self, door: Door) -> Redriven:
        self.check_choices()
        broker = door.broker
        left = self.limit
        redriven = 0
        looked_at = wanted(await places(broker, self.queue, self.namespace), self, self._matches(broker))
        async for place, some in _in_turns(broker, looked_at, self.namespace):
            count = await broker.redrive(
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
        if self.message_id is not None and not redriven:
            raise MessageNotFound(f"Queue {self.queue!r} has no dead letter {self.message_id}; it may have been moved.")
        return Redriven(redriven)

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


@command
class PurgeDeadLetters(Filtered, kw_only=True):
    """Throw away a queue's dead letters."""

    name: ClassVar[str] = "dlq.purge"
    answer: ClassVar[Any] = Purged

    queue: Name

    async def run(self, door: Door) -> Purged:
        count = 0
        looked_at = wanted(await places(door.broker, self.queue, self.namespace), self)
        async for place, some in _in_turns(door.broker, looked_at, self.namespace):
            count += await door.broker.discard(place, some, namespace=self.namespace)
        return Purged(count)
