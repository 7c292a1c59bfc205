"""Where the core notes what it does. The engine writes the notes into the log; recovery reads them back.

One method per kind of record. A record is noted before or after the transition it describes, never in another turn.
All records of one transition stand in one block and become durable together; where one is over and the next has not
begun, the core says `between`. `Journal` itself notes nothing: a broker without
a log, as in the tests of the core, uses it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smista.core.dedup import Seen
from smista.core.exchanges import Binding, Exchange
from smista.core.message import Fate, Message, Reason
from smista.core.policies import Policy
from smista.core.queue import Queue

if TYPE_CHECKING:
    from smista.core.claims import Claim, Claimant, Rows
    from smista.core.jobs import Job
    from smista.core.staging import Commit


class Journal:
    def queue_declared(self, queue: Queue) -> None:
        """Declared, altered, paused or resumed: the whole of it, with its counters."""

    def queue_deleted(self, queue: Queue, at_ms: int) -> None: ...

    def policy_set(self, namespace: str, policy: Policy) -> None: ...

    def policy_deleted(self, namespace: str, name: str) -> None: ...

    def exchange_declared(self, exchange: Exchange, bindings: Sequence[Binding]) -> None:
        """With bindings from it that are to last."""

    def exchange_deleted(self, exchange: Exchange) -> None: ...

    def bound(self, namespace: str, binding: Binding) -> None: ...

    def unbound(self, namespace: str, binding: Binding) -> None: ...

    def enqueued(self, queue: Queue, messages: Sequence[Message], at_ms: int, *, are_alike: bool = False) -> None:
        """Published to one queue. Sets where each body lies. Where they `are_alike`, they differ in their bodies and
        properties only."""

    def fanned_out(self, placed: Sequence[tuple[Queue, Message]], at_ms: int) -> None:
        """One message published to several queues: one body, all or none."""

    def remembered(self, queue: Queue, key: str, seen: Seen) -> None:
        """A deduplication id was learnt. Sets where the memory lies."""

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
        """`first_count` of them for the first time, after waiting `wait_ms` in all."""

    def extended(self, queue: Queue, messages: Sequence[Message], deadline_ms: int | None, at_ms: int) -> None: ...

    def given_back(
        self, queue: Queue, message: Message, reason: Reason, due_at_ms: int, error: str, at_ms: int
    ) -> None: ...

    def rescheduled(self, queue: Queue, message: Message, due_at_ms: int, at_ms: int) -> None: ...

    def became_ready(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None:
        """Scheduled messages whose time came."""

    def acknowledged(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None: ...

    def removed(self, queue: Queue, messages: Sequence[Message], reason: Reason, at_ms: int) -> None:
        """Gone without having been acknowledged: expired, dropped, cancelled."""

    def parked(self, queue: Queue, message: Message, fate: Fate) -> None: ...

    def moved(self, source: Queue, message: Message, target: Queue, copy: Message, fate: Fate) -> None:
        """Out of one queue and into another as `copy`, in one record: dead-lettered or redriven."""

    def readdressed(self, queue: Queue, message: Message) -> None:
        """After a move: a dead-letter exchange sent it on, so that exchange and its key are the message's now."""

    def copied(self, copies: Sequence[tuple[Queue, Message]], original: Message) -> None:
        """Beside a move: a dead-letter exchange led to several queues, and these get copies, which share one body."""

    def purged(self, queue: Queue, cut: int, count: int, *, ready_only: bool, at_ms: int) -> None:
        """Everything (or everything ready) below the sequence `cut` went, `count` messages."""

    def claimed(self, queue: Queue, claim: Claim, rows: Rows) -> None:
        """A claim got these rows. Sets where they lie."""

    def claimant_changed(self, queue: Queue, claimant: Claimant) -> None:
        """All of a consumer that claims, but the rows. Sets where it lies."""

    def claimant_forgotten(self, queue: Queue, claimant: Claimant) -> None:
        """A consumer that holds nothing had to make room for another."""

    def committed(self, commit: Commit) -> None:
        """A staged batch is to be published, or so much of it was: all of it. Sets where it lies."""

    def job_noted(self, queue: Queue, job: Job) -> None:
        """A job of this queue has started or ended: all of it. Sets where it lies."""

    def job_advanced(self, queue: Queue, job: Job) -> None:
        """How far a running job is, after each move."""

    def has_body(self, message: Message) -> bool:
        """Whether the body can be had, from memory or from the log: to be asked before a transition that writes it
        again begins. The answer holds for that transition."""
        return True

    def dying(self, message: Message) -> None:
        """No record: a message is about to be moved or parked, and its history to become another one."""

    def between(self) -> None:
        """No record: one transition is over and the next has not begun, so what was noted until here may become durable
        without what follows. Called in loops over messages, so that no block grows without bound."""

    def forgotten(self, messages: Sequence[Message]) -> None:
        """No record: the memory of these messages, purged before, is being freed."""
