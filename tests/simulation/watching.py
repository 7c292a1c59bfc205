"""The broker's own journal, with somebody who watches: each note is passed on to the ledger, and at the
end of each block the live state is held against what the log says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from smista.core.message import Fate, Message, Reason
from smista.core.queue import Queue
from smista.core.state import BrokerState
from smista.engine.journal import EngineJournal
from smista.engine.recorder import FullBlock
from tests.simulation.blame import Blame
from tests.simulation.ledger import Ledger


class WatchedJournal(EngineJournal):
    """`EngineJournal` as the broker makes it; the attributes are given before."""

    ledger: Ledger
    blame: Blame
    state: BrokerState
    on_cut: Callable[[FullBlock], None]

    def cut(self) -> None:
        inside = _inside_the_core()
        if inside:
            self.blame.say("a block ended inside a command", f"block {self.position}, inside {inside}")
        super().cut()
        full = self.full[-1]
        self.ledger.sealed(full.position)
        self.on_cut(full)

    def enqueued(self, queue: Queue, messages: Sequence[Message], at_ms: int, *, are_alike: bool = False) -> None:
        super().enqueued(queue, messages, at_ms, are_alike=are_alike)
        self.ledger.entered(queue, messages, self.position)

    def fanned_out(self, placed: Sequence[tuple[Queue, Message]], at_ms: int) -> None:
        super().fanned_out(placed, at_ms)
        for queue, message in placed:
            self.ledger.entered(queue, [message], self.position)

    def delivered(
        self,
        queue: Queue,
        messages: Sequence[Message],
        deadline_ms: int | None,
        *,
        first_count: int,
        wait_ms: int,
        consumer: str,
        at_ms: int,
    ) -> None:
        super().delivered(
            queue, messages, deadline_ms, first_count=first_count, wait_ms=wait_ms, consumer=consumer, at_ms=at_ms
        )
        self.ledger.leased(queue, messages, deadline_ms)

    def extended(self, queue: Queue, messages: Sequence[Message], deadline_ms: int | None, at_ms: int) -> None:
        super().extended(queue, messages, deadline_ms, at_ms)
        self.ledger.leased(queue, messages, deadline_ms)

    def given_back(
        self, queue: Queue, message: Message, reason: Reason, due_at_ms: int, error: str, at_ms: int
    ) -> None:
        self.ledger.given_back(self.state, queue, message, reason, at_ms)
        super().given_back(queue, message, reason, due_at_ms, error, at_ms)

    def acknowledged(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None:
        self.ledger.acknowledged(self.state, queue, messages, self.position)
        super().acknowledged(queue, messages, at_ms)

    def removed(self, queue: Queue, messages: Sequence[Message], reason: Reason, at_ms: int) -> None:
        self.ledger.removed(queue, messages, reason, at_ms, self.position)
        super().removed(queue, messages, reason, at_ms)

    def moved(self, source: Queue, message: Message, target: Queue, copy: Message, fate: Fate) -> None:
        super().moved(source, message, target, copy, fate)
        self.ledger.moved(source, message, target, copy)

    def copied(self, copies: Sequence[tuple[Queue, Message]], original: Message) -> None:
        super().copied(copies, original)
        for target, copy in copies:
            self.ledger.copied(target, copy, original, self.position)

    def purged(self, queue: Queue, cut: int, count: int, *, ready_only: bool, at_ms: int) -> None:
        super().purged(queue, cut, count, ready_only=ready_only, at_ms=at_ms)
        self.ledger.purged(queue, cut, ready_only=ready_only, position=self.position)

    def queue_deleted(self, queue: Queue, at_ms: int) -> None:
        super().queue_deleted(queue, at_ms)
        self.ledger.deleted(queue, at_ms, self.position)


def _inside_the_core() -> str:
    """The function of the core that is under way, if there is one: a command is one step, and a block ends in it
    only where it says so (`Journal.between`)."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "between":
            return ""
        if "/smista/core/" in frame.f_code.co_filename:
            return frame.f_code.co_name
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return ""
