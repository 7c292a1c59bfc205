"""Moving and removing many messages of a running broker: what a filter finds, the rest of the loop in between.

What is found in one turn of the loop is looked up again in the next: it may have left its queue, or gone with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from smista.core import browsing, dead_letters, jobs
from smista.core.browsing import ANY, Wanted
from smista.core.message import Message, Reason, State
from smista.core.queue import Queue
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.browsing import LOOKED_AT_FIRST, LOOKED_AT_ONCE
from smista.engine.running import Running
from smista.engine.slices import SLICE
from smista.errors import InvalidArgument, QueueFull, QueueNotFound


class Redriving:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state
        self._keeper = running.keeper

    async def redrive(
        self,
        queue: str,
        wanted: Wanted = ANY,
        *,
        to: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int:
        """Send dead letters back to where they came from, or to queue `to`; returns how many.

        What is in the queue when this starts, narrowed by `wanted` and `limit`; what is in flight is left alone, and
        so is what never died, unless `to` says where it shall go. A dry run only counts. `QueueFull` when a target
        takes no more, `QueueNotFound` when one is not there (any more); what was moved until then stays moved, and the
        error says how many that were. At a pace, or to go on after a restart: see `jobs`.
        """
        self._running.enter()
        if limit is not None and type(limit) is not int:
            raise InvalidArgument(f"limit is {limit!r:.80}; give a whole number, or None for no limit.")
        source = self._state.queue(queue, namespace)
        target = None if to is None else self._state.queue(to, namespace)
        moved = 0
        async for message in self._matching(source, wanted):
            if limit is not None and moved >= limit:
                break
            if message.state not in (State.READY, State.DEAD) or not (message.deaths or target):
                continue
            if not dry_run:
                _check_there(target, moved)
                now_ms = self._running.enter()
                try:
                    is_moved = dead_letters.redrive(self._state, source, message, to=target, now_ms=now_ms) is not None
                except (QueueFull, QueueNotFound) as error:
                    raise type(error)(f"{error} {moved} messages had been moved.") from None
                self._running.after()
                if not is_moved:
                    continue
            moved += 1
        _check_there(source, moved)
        await self._keeper.durable()
        return moved

    async def discard(self, queue: str, wanted: Wanted, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Remove what a filter accepts and nobody holds; returns how many messages that was."""
        self._running.enter()
        source = self._state.queue(queue, namespace)
        count = 0
        async for message in self._matching(source, wanted):
            if message.state is not State.IN_FLIGHT:
                dead_letters.discard(self._state, source, message, Reason.CANCELLED, now_ms=self._running.enter())
                self._running.after()
                count += 1
        await self._running.done_durably()
        return count

    async def _matching(self, queue: Queue, wanted: Wanted) -> AsyncIterator[Message]:
        """What is in the queue now and is accepted by a filter when its turn comes, the rest of the loop in between.
        What has left the queue by then, or has gone with it, does not come."""
        after, cut = 0, self._state.next_sequence
        work, to_change = LOOKED_AT_ONCE - LOOKED_AT_FIRST, 0
        while sequences := browsing.sequences_after(queue, after, LOOKED_AT_ONCE):
            for after in sequences:
                if after >= cut:
                    return
                message = queue.find(after)
                work += 1 if message is None else wanted.effort(message)
                if message is not None and wanted.accepts(message, self._state.read_routing):
                    work += to_change
                    yield message
                if work >= LOOKED_AT_ONCE:
                    work, to_change = 0, LOOKED_AT_ONCE // SLICE
                    await self._running.fair_turns.turn()


def _check_there(queue: Queue | None, moved: int) -> None:
    """Look at a queue again that was found before others had their turn."""
    if queue is not None and queue.is_deleted:
        raise jobs.deleted(queue.name, moved)
