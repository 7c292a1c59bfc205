"""Recording: what happens becomes records in the block that is being filled, one method for each kind.

What is in a queue that is not durable, and a queue or exchange that is not, is never written. Nothing else happens
here: who keeps account of what was noted, and of where it lies, extends this, see `journal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from smista import records
from smista.core.claims import Claim, Claimant, Rows
from smista.core.dedup import Seen
from smista.core.exchanges import Binding, Exchange, thaw
from smista.core.jobs import Job
from smista.core.journal import Journal
from smista.core.message import PLAIN, Envelope, Fate, Message, Reason
from smista.core.policies import Policy
from smista.core.queue import Queue
from smista.core.staging import Commit
from smista.engine.claim_records import claimant_record, claimed_record, commit_record, job_record
from smista.records.bound import BindingFields
from smista.records.exchange_declared import ExchangeDeclared
from smista.records.exchange_deleted import ExchangeDeleted
from smista.records.job_advanced import JobAdvanced
from smista.records.moved import Moved
from smista.records.opened import Opened
from smista.records.parked import Parked
from smista.records.placed import Placed
from smista.records.policy_deleted import PolicyDeleted
from smista.records.policy_set import PolicySet
from smista.records.queue_declared import QueueDeclared
from smista.records.queue_deleted import QueueDeleted
from smista.records.readdressed import Readdressed
from smista.records.remembered import Remembered


def binding_fields(namespace: str, binding: Binding) -> BindingFields:
    return BindingFields(
        namespace,
        binding.source,
        binding.destination_kind,
        binding.destination,
        binding.key,
        thaw(binding.arguments),
    )


class FullBlock(NamedTuple):
    """A block to which nothing is added any more. It is yet to be written."""

    position: int
    parts: list[bytes]
    size: int

    def seal(self, written_at_ms: int) -> bytes:
        """As it goes into the log."""
        return b"".join([records.blocks.head(written_at_ms), *self.parts])


class HasPosition(Protocol):
    position: int


class Recorder(Journal):
    def __init__(self, position: int, *, block_bytes_max: int) -> None:
        """`position` is the first block to fill."""
        self.position = position
        """The block being filled."""
        self.parts: list[bytes] = []
        self.bytes = 0
        self.full: list[FullBlock] = []
        """Blocks that were filled since they were last taken away, see `take_full`."""
        self._block_bytes_max = block_bytes_max
        self._last_envelope: Envelope = PLAIN
        self._last_envelope_bytes = b""

    def between(self) -> None:
        """Where a block that is large may end: nothing is written here, in the middle of a command."""
        if self.bytes >= self._block_bytes_max:
            self.cut()

    def cut(self) -> None:
        """End the block being filled and begin the next one."""
        self.full.append(FullBlock(self.position, self.parts, self.bytes))
        self.parts = []
        self.bytes = 0
        self.position += 1

    def take_full(self) -> list[FullBlock]:
        full, self.full = self.full, []
        return full

    @property
    def unwritten_bytes(self) -> int:
        """How much was noted that nobody has taken away."""
        return self.bytes + sum([block.size for block in self.full])

    def note(self, record: bytes) -> None:
        self.parts.append(record)
        self.bytes += len(record)

    def note_lasting(self, record: bytes, of: HasPosition | None = None) -> None:
        """Note what outlives messages: before its block is given up it must be written again. `of` is what it says all
        of."""
        self.note(record)

    def opened(self, opened: Opened) -> None:
        self.note_lasting(records.opened.encode(opened))

    # -- declarations -------------------------------------------------------------------------------------------------

    def queue_declared(self, queue: Queue) -> None:
        if not queue.settings.durable:
            return
        record = QueueDeclared(
            queue.number,
            queue.namespace,
            queue.name,
            queue.declared,
            queue.created_at_ms,
            queue.used_at_ms,
            queue.is_paused,
            queue.counters,
        )
        self.note_lasting(records.queue_declared.encode(record), queue)

    def queue_deleted(self, queue: Queue, at_ms: int) -> None:
        if queue.settings.durable:
            deleted = QueueDeleted(queue.number, queue.namespace, queue.name, at_ms)
            self.note(records.queue_deleted.encode(deleted))

    def policy_set(self, namespace: str, policy: Policy) -> None:
        record = PolicySet(namespace, policy.name, policy.pattern, policy.priority, policy.settings)
        self.note_lasting(records.policy_set.encode(record), policy)

    def policy_deleted(self, namespace: str, name: str) -> None:
        self.note(records.policy_deleted.encode(PolicyDeleted(namespace, name)))

    def exchange_declared(self, exchange: Exchange, bindings: Sequence[Binding]) -> None:
        if not exchange.settings.durable:
            return
        led = [binding_fields(exchange.namespace, binding) for binding in bindings]
        record = ExchangeDeclared(exchange.number, exchange.namespace, exchange.name, exchange.settings, led)
        self.note_lasting(records.exchange_declared.encode(record))

    def exchange_deleted(self, exchange: Exchange) -> None:
        if exchange.settings.durable:
            self.note(records.exchange_deleted.encode(ExchangeDeleted(exchange.namespace, exchange.name)))

    def bound(self, namespace: str, binding: Binding) -> None:
        self.note_lasting(records.bound.encode(binding_fields(namespace, binding)))

    def unbound(self, namespace: str, binding: Binding) -> None:
        self.note(records.unbound.encode(binding_fields(namespace, binding)))

    # -- entering -----------------------------------------------------------------------------------------------------

    def enqueued(self, queue: Queue, messages: Sequence[Message], at_ms: int, *, are_alike: bool = False) -> None:
        if queue.settings.durable:
            parts, size = records.enqueued.encode(queue.number, at_ms, messages, self._envelope, are_alike=are_alike)
            self.parts += parts
            self.bytes += size

    def fanned_out(self, placed: Sequence[tuple[Queue, Message]], at_ms: int) -> None:
        targets = []
        for queue, message in placed:
            if queue.settings.durable:
                targets.append(
                    (queue.number, message.sequence, message.priority, message.ready_at_ms, message.expires_at_ms or 0)
                )
        if targets:
            first = placed[0][1]
            envelope = first.envelope
            self.note(
                records.fanned_out.encode(at_ms, self._envelope(envelope), envelope.properties, body_of(first), targets)
            )

    def placed(self, messages: Sequence[Message], body: bytes, *, entered_at_ms: int = 0) -> None:
        """Messages that share a body, with all that is known of them."""
        states = []
        before: Message | None = None
        for message in messages:
            # Copies of a message share what may be large in it.
            envelope = None if before is not None and message.envelope is before.envelope else message.envelope
            deaths = None if before is not None and message.deaths is before.deaths else message.deaths
            before = message
            states.append(
                Placed(
                    message.queue,
                    message.sequence,
                    message.number,
                    envelope,
                    message.priority,
                    message.created_at_ms,
                    message.ready_at_ms,
                    message.state,
                    message.expires_at_ms,
                    message.deadline_ms,
                    message.deliveries,
                    deaths,
                    entered_at_ms,
                )
            )
        self.note(records.placed.encode(states, body))

    def remembered(self, queue: Queue, key: str, seen: Seen) -> None:
        if queue.settings.durable:
            record = Remembered(queue.number, key, seen.number, seen.created_at_ms, seen.expires_at_ms)
            self.note_lasting(records.remembered.encode(record), seen)

    # -- claims, staged batches and jobs -------------------------------------------------------------------------------

    def claimed(self, queue: Queue, claim: Claim, rows: Rows) -> None:
        if queue.settings.durable:
            self.note_lasting(records.claimed.encode(claimed_record(claim, rows)), rows)

    def claimant_changed(self, queue: Queue, claimant: Claimant) -> None:
        if queue.settings.durable:
            self.note_lasting(records.claimant.encode(claimant_record(claimant)), claimant)

    def claimant_forgotten(self, queue: Queue, claimant: Claimant) -> None:
        if queue.settings.durable:
            self.note(records.claimant.encode(claimant_record(claimant, is_forgotten=True)))

    def committed(self, commit: Commit) -> None:
        self.note_lasting(records.committed.encode(commit_record(commit)), commit)

    def job_noted(self, queue: Queue, job: Job) -> None:
        if queue.settings.durable:
            self.note_lasting(records.job.encode(job_record(job)), job)

    def job_advanced(self, queue: Queue, job: Job) -> None:
        if queue.settings.durable:
            advanced = JobAdvanced(queue.number, job.sequence, job.place, job.after, job.moved, job.strays)
            self.note(records.job_advanced.encode(advanced))

    # -- transitions --------------------------------------------------------------------------------------------------

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
        if queue.settings.durable:
            sequences = [message.sequence for message in messages]
            deliveries = messages[0].deliveries
            assert deliveries is not None
            self.note(
                records.delivered.encode(
                    queue.number, at_ms, deadline_ms, deliveries.run, first_count, wait_ms, consumer, sequences
                )
            )

    def extended(self, queue: Queue, messages: Sequence[Message], deadline_ms: int | None, at_ms: int) -> None:
        if queue.settings.durable:
            sequences = [message.sequence for message in messages]
            self.note(records.extended.encode(queue.number, at_ms, deadline_ms, sequences))

    def given_back(
        self, queue: Queue, message: Message, reason: Reason, due_at_ms: int, error: str, at_ms: int
    ) -> None:
        if queue.settings.durable:
            self.note(records.given_back.encode(queue.number, message.sequence, at_ms, due_at_ms, reason, error))

    def became_ready(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None:
        if queue.settings.durable:
            self.note(records.became_ready.encode(queue.number, at_ms, [message.sequence for message in messages]))

    def rescheduled(self, queue: Queue, message: Message, due_at_ms: int, at_ms: int) -> None:
        if queue.settings.durable:
            self.note(records.rescheduled.encode(queue.number, message.sequence, at_ms, due_at_ms))

    def acknowledged(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None:
        if queue.settings.durable:
            self.note(records.acknowledged.encode(queue.number, at_ms, [message.sequence for message in messages]))

    def removed(self, queue: Queue, messages: Sequence[Message], reason: Reason, at_ms: int) -> None:
        if queue.settings.durable:
            sequences = [message.sequence for message in messages]
            self.note(records.removed.encode(queue.number, at_ms, reason, sequences))

    def parked(self, queue: Queue, message: Message, fate: Fate) -> None:
        if queue.settings.durable:
            parked = Parked(
                queue.number,
                message.sequence,
                fate.at_ms,
                fate.reason,
                fate.failed_by or 0,
                queue.name,
                fate.error,
            )
            self.note(records.parked.encode(parked))

    def moved(self, source: Queue, message: Message, target: Queue, copy: Message, fate: Fate) -> None:
        if source.settings.durable:
            moved = Moved(
                source.number,
                message.sequence,
                target.number if target.settings.durable else 0,
                copy.sequence,
                copy.priority,
                copy.expires_at_ms or 0,
                fate.at_ms,
                fate.reason,
                fate.failed_by or 0,
                source.name,
                fate.error,
            )
            self.note(records.moved.encode(moved))
        elif target.settings.durable:
            self.placed([copy], body_of(copy), entered_at_ms=copy.ready_at_ms)
            if fate.reason is Reason.REDRIVEN:
                # Its counters say so; a message that is placed does not.
                self.queue_declared(target)

    def copied(self, copies: Sequence[tuple[Queue, Message]], original: Message) -> None:
        lasting = [copy for target, copy in copies if target.settings.durable]
        if lasting:
            self.placed(lasting, body_of(original), entered_at_ms=original.ready_at_ms)

    def readdressed(self, queue: Queue, message: Message) -> None:
        if queue.settings.durable:
            record = Readdressed(
                queue.number, message.sequence, message.envelope.exchange, message.envelope.routing_key
            )
            self.note(records.readdressed.encode(record))

    def purged(self, queue: Queue, cut: int, count: int, *, ready_only: bool, at_ms: int) -> None:
        if queue.settings.durable:
            self.note(records.purged.encode(queue.number, at_ms, cut, count, ready_only=ready_only))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _envelope(self, envelope: Envelope) -> bytes:
        if envelope is PLAIN:
            return b""
        if envelope is not self._last_envelope:
            self._last_envelope = envelope
            self._last_envelope_bytes = records.envelope.encode(envelope)
        return self._last_envelope_bytes


def body_of(message: Message) -> bytes:
    """A body that is in memory: it has just come, or `has_body` found it before this transition began."""
    body = message.body
    assert type(body) is bytes
    return body
