"""What can be known of a running broker's log: how much it holds, which blocks can be read, whether it is full."""

from __future__ import annotations

import msgspec

from smista.engine.measures import KeptFor, LogRange, LogSpace
from smista.engine.running import Running


class LogState:
    def __init__(self, running: Running) -> None:
        self._keeper = running.keeper
        self._reclaimer = running.keeper.reclaimer
        self._committer = running.keeper.committer
        self._state = running.state

    @property
    def bytes(self) -> int:
        """The size of the log: what is alive, what is kept for readers, and what is not reclaimed yet."""
        return self._reclaimer.total_bytes

    @property
    def is_full(self) -> bool:
        """Whether a block waits for room on a full disk: acknowledgements and declarations wait with it."""
        return self._committer.is_full

    def space(self) -> LogSpace:
        """How much the log holds, and why it is not less."""
        keeper, space = self._keeper, self._reclaimer.space()
        oldest = self._reclaimer.next_to_give_up()
        is_stuck = oldest is not None and (oldest in keeper.unread or keeper.notices.is_unreadable(oldest))
        if is_stuck and space.kept_for is KeptFor.RECLAIMING:
            return msgspec.structs.replace(space, kept_for=KeptFor.DAMAGE)
        return space

    def range(self) -> LogRange:
        """Which blocks of the log can be read. What is about to be dropped is not counted in."""
        end = self._committer.durable_position + 1
        kept = self._reclaimer.kept(end)
        if kept is None:
            return LogRange(end, end, None, None)
        return LogRange(kept[0].position, end, kept[0].at_ms, kept[1].at_ms)

    def position_at(self, at_ms: int) -> int:
        """The first durable block written at or after that time; the next one to come where all are older."""
        end = self._committer.durable_position + 1
        found = self._reclaimer.first_since(at_ms)
        return end if found is None else min(found, end)

    def queues(self, after: int) -> list[tuple[int, str, str]]:
        """Number, namespace and name of the queues that the log knows by a number above `after`."""
        if self._state.next_queue <= after + 1:
            return []
        return [
            (queue.number, queue.namespace, queue.name)
            for queue in self._state.queues.values()
            if queue.number > after and queue.settings.durable
        ]
