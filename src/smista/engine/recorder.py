"""The journal of a running broker: notes become records of the block that is being filled.

Beside the bytes it keeps the accounts that follow from them: how many live bytes each block holds (for reclaiming), how
many bytes of bodies are in memory (for paging), who holds which message (for credit), how long messages waited and
were worked on (for monitoring). Every note passes here anyway, with the messages at hand, so none of these needs a hook
of its own in the core.

What is in a queue that is not durable is never written; only its memory is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from smista.core.claims import Claim, Claimant, Rows
from smista.core.counters import Counters
from smista.core.dedup import Seen
from smista.core.exchanges import Binding, Exchange, ExchangeSettings, thaw
from smista.core.journal import Journal
from smista.core.message import PLAIN, Death, Deliveries, Envelope, Fate, Message, Reason, State
from smista.core.policies import Policy
from smista.core.queue import Queue
from smista.core.settings import QueueSettings
from smista.core.staging import Commit
from smista.engine.accounts import KEPT_BYTES, LARGE_BYTES, MESSAGE_BYTES, Accounts, live_bytes
from smista.engine.claim_records import claimant_record, claimed_record, commit_record
from smista.engine.measures import QueueTimes
from smista.log import records
from smista.log.records import Kind

_encode = msgspec.msgpack.Encoder().encode


class QueueRecord(msgspec.Struct, frozen=True, array_like=True):
    number: int
    namespace: str
    name: str
    settings: QueueSettings
    created_at_ms: int
    used_at_ms: int
    is_paused: bool
    counters: Counters


class QueueDeletedRecord(msgspec.Struct, frozen=True, array_like=True):
    number: int
    namespace: str
    name: str
    """For its bindings, where its declaration stands in a part of the log that was dropped."""
    at_ms: int


class BindingRecord(msgspec.Struct, frozen=True, array_like=True):
    namespace: str
    source: str
    destination_kind: str
    destination: str
    key: str
    arguments: dict[str, object]


class ExchangeRecord(msgspec.Struct, frozen=True, array_like=True):
    number: int
    namespace: str
    name: str
    settings: ExchangeSettings
    bindings: list[BindingRecord]
    """Those that lead from it: a declaration in the log stands for the whole exchange."""


class PolicyRecord(msgspec.Struct, frozen=True, array_like=True):
    namespace: str
    name: str
    pattern: str
    priority: int
    settings: dict[str, object]


class RememberedRecord(msgspec.Struct, frozen=True, array_like=True):
    queue: int
    key: str
    number: int
    created_at_ms: int
    expires_at_ms: int


class ReaddressedRecord(msgspec.Struct, frozen=True, array_like=True):
    """Follows a MOVED: the exchange and key by which the message went there."""

    queue: int
    sequence: int
    exchange: str
    routing_key: str


class PlacedRecord(msgspec.Struct, frozen=True, array_like=True):
    """All that is known of a message but its body."""

    queue: int
    sequence: int
    number: int
    envelope: Envelope | None
    """None: the same as of the one before it in the record."""
    priority: int
    created_at_ms: int
    ready_at_ms: int
    state: State
    expires_at_ms: int | None
    deadline_ms: int | None
    deliveries: Deliveries | None
    deaths: tuple[Death, ...] | None
    """None: the same as of the one before it in the record."""
    entered_at_ms: int = 0
    """When it came into its queue by this record; 0 where it was there already and is relocated."""


_decode_placed = msgspec.msgpack.Decoder(list[PlacedRecord]).decode


def placed_states(head: bytes | memoryview) -> Iterator[tuple[PlacedRecord, Envelope, tuple[Death, ...]]]:
    """The messages of a PLACED record, each with its envelope and its deaths; copies share them."""
    envelope = PLAIN
    deaths: tuple[Death, ...] = ()
    for placed in _decode_placed(head):
        if placed.envelope is not None:
            envelope = PLAIN if placed.envelope == PLAIN else placed.envelope
        if placed.deaths is not None:
            deaths = placed.deaths
        yield placed, envelope, deaths


def binding_record(namespace: str, binding: Binding) -> BindingRecord:
    return BindingRecord(
        namespace,
        binding.source,
        binding.destination_kind,
        binding.destination,
        binding.key,
        thaw(binding.arguments),
    )


class Recorder(Accounts, Journal):
    def __init__(
        self,
        position: int,
        *,
        on_first: Callable[[], None],
        on_settled: Callable[[list[Message]], None],
        read_body: Callable[[Message], bool],
        on_between: Callable[[], None] = lambda: None,
        on_dead_letter: Callable[[Queue, Reason], None] = lambda queue, reason: None,
    ) -> None:
        """`on_first` is called when a note goes into an empty block; `on_settled` when held messages are let go;
        `read_body` to bring back a body that is paged out, if it can; `on_between` where the block may be sealed;
        `on_dead_letter` when a message is set aside."""
        super().__init__()
        self.position = position
        """The block being filled."""
        self.parts: list[bytes] = []
        self.bytes = 0
        self.moved_messages: dict[int, Message] = {}
        """By number, those whose place is not the one under which their body was written."""
        self.held: dict[int, object] = {}
        """By sequence, the subscription that holds a message."""
        self.is_listing = False
        """Whether to list what enters, so that its bodies can be paged out once they are on disk."""
        self.listed: list[Message] = []
        self.times = QueueTimes()
        self._on_first = on_first
        self._on_settled = on_settled
        self._read_body = read_body
        self._on_between = on_between
        self._on_dead_letter = on_dead_letter
        self._last_envelope: Envelope = PLAIN
        self._last_envelope_bytes = b""

    def seal(self, written_at_ms: int) -> bytes:
        """Close the block being filled and start the next one."""
        block = b"".join([records.block_header(written_at_ms), *self.parts])
        self.parts = []
        self.bytes = 0
        self.position += 1
        return block

    def note_lasting(self, record: bytes) -> None:
        """Note what outlives messages: the block must be read before it may be dropped."""
        self.lasting.add(self.position)
        self.note(record)

    def note(self, record: bytes) -> None:
        if not self.parts:
            self._on_first()
        self.parts.append(record)
        self.bytes += len(record)

    # -- leaving ------------------------------------------------------------------------------------------------------

    def forgotten(self, messages: Sequence[Message]) -> None:
        self.count_forgotten(messages)
        if self.moved_messages:
            for message in messages:
                if message.sequence != message.number:
                    self.moved_messages.pop(message.number, None)
        if self.held:
            self._let_go(messages)

    def _let_go(self, messages: Iterable[Message]) -> None:
        """Tell of those among these messages that a subscription held."""
        held = self.held
        settled = [message for message in messages if message.sequence in held]
        if settled:
            self._on_settled(settled)

    # -- declarations -------------------------------------------------------------------------------------------------

    def queue_declared(self, queue: Queue) -> None:
        if not queue.settings.durable:
            return
        queue.position = self.position
        record = QueueRecord(
            queue.number,
            queue.namespace,
            queue.name,
            queue.declared,
            queue.created_at_ms,
            queue.used_at_ms,
            queue.is_paused,
            queue.counters,
        )
        self.note_lasting(records.packed(Kind.QUEUE_DECLARED, record))

    def queue_deleted(self, queue: Queue, at_ms: int) -> None:
        self.times.forget(queue)
        if queue.settings.durable:
            deleted = QueueDeletedRecord(queue.number, queue.namespace, queue.name, at_ms)
            self.note(records.packed(Kind.QUEUE_DELETED, deleted))

    def policy_set(self, namespace: str, policy: Policy) -> None:
        policy.position = self.position
        record = PolicyRecord(namespace, policy.name, policy.pattern, policy.priority, policy.settings)
        self.note_lasting(records.packed(Kind.POLICY_SET, record))

    def policy_deleted(self, namespace: str, name: str) -> None:
        self.note(records.packed(Kind.POLICY_DELETED, [namespace, name]))

    def exchange_declared(self, exchange: Exchange, bindings: Sequence[Binding]) -> None:
        if not exchange.settings.durable:
            return
        led = [binding_record(exchange.namespace, binding) for binding in bindings]
        record = ExchangeRecord(exchange.number, exchange.namespace, exchange.name, exchange.settings, led)
        self.note_lasting(records.packed(Kind.EXCHANGE_DECLARED, record))

    def exchange_deleted(self, exchange: Exchange) -> None:
        if exchange.settings.durable:
            self.note(records.packed(Kind.EXCHANGE_DELETED, [exchange.namespace, exchange.name]))

    def bound(self, namespace: str, binding: Binding) -> None:
        self.note_lasting(records.packed(Kind.BOUND, binding_record(namespace, binding)))

    def unbound(self, namespace: str, binding: Binding) -> None:
        self.note(records.packed(Kind.UNBOUND, binding_record(namespace, binding)))

    # -- entering -----------------------------------------------------------------------------------------------------

    def enqueued(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None:
        if not queue.settings.durable:
            self.count_resident(messages)
            return
        position = self.position
        parts: list[bytes] = []
        data_bytes = live = bodies_bytes = 0
        for message in messages:
            envelope = b"" if message.envelope is PLAIN else self._envelope(message.envelope)
            body = message.body
            assert type(body) is bytes
            flags = 0
            if message.ready_at_ms != at_ms:
                flags = records.HAS_READY_AT
            if message.expires_at_ms is not None:
                flags |= records.HAS_EXPIRES_AT
            parts.append(records.entry_head(message.sequence, message.priority, flags, len(envelope), len(body)))
            if flags:
                data_bytes += self._append_times(parts, message, flags)
            if envelope:
                parts.append(envelope)
                data_bytes += len(envelope)
            parts.append(body)
            message.position = position
            bodies_bytes += len(body)
            live += len(message.envelope.properties)
        data_bytes += records.ENTRY_BYTES * len(messages) + bodies_bytes
        live += bodies_bytes + MESSAGE_BYTES * len(messages)
        self._note_entries(queue, messages, parts, data_bytes, at_ms)
        self._count_entries(messages, live, bodies_bytes)

    def enqueued_alike(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None:
        if not queue.settings.durable:
            self.count_resident(messages)
            return
        position, count = self.position, len(messages)
        first = messages[0]
        priority = first.priority
        envelope = self._envelope(first.envelope)
        envelope_bytes = len(envelope)
        entry_head = records.entry_head
        parts: list[bytes] = []
        bodies_bytes = 0
        for message in messages:
            body = message.body
            assert type(body) is bytes
            size = len(body)
            parts += (entry_head(message.sequence, priority, 0, envelope_bytes, size), envelope, body)
            message.position = position
            bodies_bytes += size
        data_bytes = (records.ENTRY_BYTES + envelope_bytes) * count + bodies_bytes
        self._note_entries(queue, messages, parts, data_bytes, at_ms)
        live = bodies_bytes + (MESSAGE_BYTES + len(first.envelope.properties)) * count
        self._count_entries(messages, live, bodies_bytes)

    def _note_entries(
        self, queue: Queue, messages: Sequence[Message], parts: list[bytes], data_bytes: int, at_ms: int
    ) -> None:
        self.note(records.enqueued_head(queue.number, at_ms, len(messages), data_bytes))
        self.parts += parts
        self.bytes += data_bytes

    def _count_entries(self, messages: Sequence[Message], live: int, bodies_bytes: int) -> None:
        self.live[self.position] = self.live.get(self.position, 0) + live
        self.live_total += live
        self.resident_bytes += bodies_bytes
        beside_bytes = live - bodies_bytes - MESSAGE_BYTES * len(messages)
        if beside_bytes < LARGE_BYTES:
            self.kept_bytes += beside_bytes + KEPT_BYTES * len(messages)
        else:
            for message in messages:
                self.count_kept(message)
        if self.is_listing:
            self.listed += messages

    def fanned_out(self, placed: Sequence[tuple[Queue, Message]], at_ms: int) -> None:
        # Thousands in one step, all with the same body and properties: accounts are kept once for all of them. Measured
        # at 0.7 us a queue against 1.5 with each counted for itself.
        position = self.position
        targets = []
        for queue, message in placed:
            if queue.settings.durable:
                message.position = position
                targets.append(
                    (queue.number, message.sequence, message.priority, message.ready_at_ms, message.expires_at_ms or 0)
                )
        first = placed[0][1]
        body = first.body
        assert type(body) is bytes
        self.resident_bytes += len(body) * len(placed)
        self.count_kept(first, len(placed))
        if targets:
            live = live_bytes(first) * len(targets)
            self.live[position] = self.live.get(position, 0) + live
            self.live_total += live
            if self.is_listing:
                self.listed += [message for _, message in placed if message.position]
            self.note(records.fanned_out(at_ms, self._envelope(first.envelope), body, targets))

    def placed(self, messages: Sequence[Message], body: bytes, *, entered_at_ms: int = 0) -> None:
        """Write messages that share a body with all that is known of them; they live in this block from now on."""
        states = []
        before: Message | None = None
        for message in messages:
            message.position = self.position
            self.count_in(message)
            # Copies of a message share what may be large in it.
            envelope = None if before is not None and message.envelope is before.envelope else message.envelope
            deaths = None if before is not None and message.deaths is before.deaths else message.deaths
            before = message
            states.append(
                PlacedRecord(
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
        self.note(records.placed(_encode(states), body))

    def remembered(self, queue: Queue, key: str, seen: Seen) -> None:
        if queue.settings.durable:
            seen.position = self.position
            record = RememberedRecord(queue.number, key, seen.number, seen.created_at_ms, seen.expires_at_ms)
            self.note_lasting(records.packed(Kind.REMEMBERED, record))

    # -- claims and staged batches ------------------------------------------------------------------------------------

    def claimed(self, queue: Queue, claim: Claim, rows: Rows) -> None:
        if queue.settings.durable:
            rows.position = self.position
            self.note_lasting(records.claimed(claimed_record(claim, rows)))

    def claimant_changed(self, queue: Queue, claimant: Claimant) -> None:
        if queue.settings.durable:
            claimant.position = self.position
            self.note_lasting(records.packed(Kind.CLAIMANT, claimant_record(claimant)))

    def claimant_forgotten(self, queue: Queue, claimant: Claimant) -> None:
        if queue.settings.durable:
            self.note(records.packed(Kind.CLAIMANT, claimant_record(claimant, is_forgotten=True)))

    def committed(self, commit: Commit) -> None:
        commit.position = self.position
        self.note_lasting(records.packed(Kind.COMMITTED, commit_record(commit)))

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
        self.times.delivered(queue, messages, first_count, at_ms)
        if queue.settings.durable:
            sequences = [message.sequence for message in messages]
            deliveries = messages[0].deliveries
            assert deliveries is not None
            self.note(
                records.delivered(
                    records.Delivered(
                        queue.number,
                        at_ms,
                        deadline_ms,
                        deliveries.run,
                        first_count,
                        wait_ms,
                        consumer,
                        sequences,
                    )
                )
            )

    def extended(self, queue: Queue, messages: Sequence[Message], deadline_ms: int | None, at_ms: int) -> None:
        if queue.settings.durable:
            sequences = [message.sequence for message in messages]
            self.note(records.extended(queue.number, at_ms, deadline_ms, sequences))

    def given_back(
        self, queue: Queue, message: Message, reason: Reason, due_at_ms: int, error: str, at_ms: int
    ) -> None:
        if queue.settings.durable:
            self.note(records.given_back(queue.number, message.sequence, at_ms, due_at_ms, reason, error))
        self.count_failure(message, reason, error)
        self._let_go((message,))

    def became_ready(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None:
        if queue.settings.durable:
            self.note(records.became_ready(queue.number, at_ms, [message.sequence for message in messages]))

    def rescheduled(self, queue: Queue, message: Message, due_at_ms: int, at_ms: int) -> None:
        if queue.settings.durable:
            self.note(records.rescheduled(queue.number, message.sequence, at_ms, due_at_ms))

    def acknowledged(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None:
        self.times.acknowledged(queue, messages, at_ms)
        if queue.settings.durable:
            self.note(records.acknowledged(queue.number, at_ms, [message.sequence for message in messages]))
        self.forgotten(messages)

    def removed(self, queue: Queue, messages: Sequence[Message], reason: Reason, at_ms: int) -> None:
        if queue.settings.durable:
            sequences = [message.sequence for message in messages]
            self.note(records.removed(queue.number, at_ms, reason, sequences))
        self.forgotten(messages)

    def parked(self, queue: Queue, message: Message, fate: Fate) -> None:
        self._on_dead_letter(queue, fate.reason)
        self.count_history(message)
        if queue.settings.durable:
            self.note(
                records.parked(
                    records.Parked(
                        queue.number,
                        message.sequence,
                        fate.at_ms,
                        fate.reason,
                        fate.failed_by or 0,
                        queue.name,
                        fate.error,
                    )
                )
            )
        self._let_go((message,))

    def moved(self, source: Queue, message: Message, target: Queue, copy: Message, fate: Fate) -> None:
        if fate.reason is not Reason.REDRIVEN:
            self._on_dead_letter(source, fate.reason)
        self.count_history(copy)
        self._let_go((message,))
        self.moved_messages[copy.number] = copy
        if not source.settings.durable:
            if target.settings.durable:
                body = self._body(copy)
                self.placed([copy], body, entered_at_ms=copy.ready_at_ms)
                if fate.reason is Reason.REDRIVEN:
                    # Its counters tell that; a message that is placed does not.
                    self.queue_declared(target)
            return
        if not target.settings.durable:
            # It leaves the log with this, so its body must be in memory.
            copy.body = self._body(message)
            self.count_out(message)
            copy.position = 0
        self.note(
            records.moved(
                records.Moved(
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
            )
        )

    def readdressed(self, queue: Queue, message: Message) -> None:
        if queue.settings.durable:
            record = ReaddressedRecord(
                queue.number, message.sequence, message.envelope.exchange, message.envelope.routing_key
            )
            self.note(records.packed(Kind.READDRESSED, record))

    def copied(self, copies: Sequence[tuple[Queue, Message]], original: Message) -> None:
        body = self._body(original)
        for _, copy in copies:
            copy.body = body
            copy.position = 0
        self.count_resident(copy for _, copy in copies)
        self.count_history(original, len(copies))
        lasting = [copy for target, copy in copies if target.settings.durable]
        if lasting:
            self.placed(lasting, body, entered_at_ms=original.ready_at_ms)

    def purged(self, queue: Queue, cut: int, count: int, *, ready_only: bool, at_ms: int) -> None:
        if queue.settings.durable:
            self.note(records.purged(queue.number, at_ms, cut, count, ready_only=ready_only))

    # -- inside -------------------------------------------------------------------------------------------------------

    dying = Accounts.uncount_history

    def between(self) -> None:
        self._on_between()

    def has_body(self, message: Message) -> bool:
        return type(message.body) is bytes or self._read_body(message)

    def _body(self, message: Message) -> bytes:
        """A body that `has_body` found before this transition began."""
        body = message.body
        assert type(body) is bytes
        return body

    def _envelope(self, envelope: Envelope) -> bytes:
        if envelope is PLAIN:
            return b""
        if envelope is not self._last_envelope:
            self._last_envelope = envelope
            self._last_envelope_bytes = _encode(envelope)
        return self._last_envelope_bytes

    @staticmethod
    def _append_times(parts: list[bytes], message: Message, flags: int) -> int:
        size = 0
        if flags & records.HAS_READY_AT:
            parts.append(records.instant(message.ready_at_ms))
            size += 8
        if flags & records.HAS_EXPIRES_AT:
            parts.append(records.instant(message.expires_at_ms))
            size += 8
        return size
