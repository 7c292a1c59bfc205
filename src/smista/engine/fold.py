"""The state is a fold over the log: records are applied to it one after the other.

Each record is applied with the primitive that live traffic used. A record may name what is not known, as the front of
the log is dropped. If a message is unknown, its entry was dropped: either it was settled in dropped blocks too, or it
will be placed again further on with all that is known of it. Both ways the record has nothing to change but the queue's
counters, which came with the queue's latest declaration. Queues whose declarations have not come are in `declared`.

Bodies beyond the memory watermark stay in the log, as they would have in live traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from smista import records
from smista.caches import ENTRIES_MAX, SMALL_BYTES
from smista.core.attaching import attach
from smista.core.dead_letters import apply_left, apply_moved, apply_parked, apply_removed, readdressed
from smista.core.declaring import schedule_check
from smista.core.dedup import DedupMemory, Seen
from smista.core.journal import Journal
from smista.core.message import PLAIN, Envelope, Fate, Message, Reason
from smista.core.queue import Queue
from smista.core.state import BrokerState
from smista.engine.claim_records import ClaimRecovery
from smista.engine.declared import Declared
from smista.engine.ids import first_sequence, shard_of
from smista.records import Kind, RecordError
from smista.records.entry import Entry
from smista.records.opened import Anchor
from smista.records.rows import PackedEnvelope

LOST_RUNS_MASK = (1 << 31) - 1
"""Receipts have 32 bits for the run."""
LOST_NUMBERS = 1 << 24
"""How many queues, or exchanges, may have been declared, of which nothing is known ..."""
LOST_SEQUENCES = 1 << 36
"""... and how many messages published. Queues have 32 bits, the count in a sequence 46."""


LASTING = frozenset(
    (
        Kind.OPENED,
        Kind.QUEUE_DECLARED,
        Kind.EXCHANGE_DECLARED,
        Kind.BOUND,
        Kind.POLICY_SET,
        Kind.REMEMBERED,
        Kind.CLAIMED,
        Kind.CLAIMANT,
        Kind.COMMITTED,
        Kind.JOB,
    )
)
"""What is written again before its block is given up, beside messages that live."""


class Fold:
    def __init__(self, state: BrokerState, *, resident_bytes_max: int) -> None:
        """`state` is an empty one; so many bytes of bodies may stay in memory."""
        self.state = state
        self.anchor: Anchor | None = None
        self.lasting: set[int] = set()
        """Blocks that hold what outlives messages, see `Positions.lasting`."""
        self.has_left_bodies = False
        """Whether some bodies were left in the log because memory is short."""
        self.opened_position = 0
        """The last block that says which numbers had been given out."""
        self._resident_left = resident_bytes_max
        self._envelopes: dict[PackedEnvelope, Envelope] = {}
        self._last_envelope: tuple[PackedEnvelope, Envelope] = (b"", b""), PLAIN
        self._addresses: dict[bytes, Envelope] = {b"": PLAIN}
        """Envelopes but for their properties."""
        self._claims = ClaimRecovery(state)
        self.declared = Declared(state, self._claims)
        self._queue = self.declared.queue
        self._position = 0
        # Each kind has a method of its name, in `Declared` or here.
        self._apply: dict[Kind, tuple[Callable[[memoryview], None], bool]] = {}
        for kind in Kind:
            name = kind.name.lower()
            apply = getattr(self.declared, name, None) or getattr(self, f"_{name}")
            self._apply[kind] = apply, kind in LASTING

    def add(self, position: int, block: bytes) -> None:
        """Apply the records of the next block."""
        self._position = self.declared.position = position
        for record in records.blocks.records(block):
            apply, is_lasting = self._apply[record.kind]
            if is_lasting:
                self.lasting.add(position)
            try:
                apply(record.data)
            except (msgspec.DecodeError, ValueError) as error:
                raise RecordError(f"A {record.kind.name} record in block {position} makes no sense: {error}.") from None

    def pass_lost_numbers(self, times: int, next_position: int) -> None:
        """How far numbers had come stood in blocks that are left out: go on with those that nobody has. So many times
        were blocks left out."""
        state = self.state
        # Each run has written a block before it handed anything out.
        state.run = max(state.run, next_position & LOST_RUNS_MASK)
        first = first_sequence(shard_of(state.next_sequence)) + times * LOST_SEQUENCES
        state.next_sequence = max(state.next_sequence, first) + LOST_SEQUENCES
        state.next_queue = max(state.next_queue, times * LOST_NUMBERS) + LOST_NUMBERS
        state.next_exchange = max(state.next_exchange, times * LOST_NUMBERS) + LOST_NUMBERS

    def finish(self, journal: Journal, now_ms: int) -> None:
        """All has been read: build what live traffic needs beside the tables. What is made up for blocks that are left
        out is noted, as the next start need not come to the same."""
        state = self.state
        state.purged.clear()
        self.declared.finish(journal, now_ms)
        for queue in state.queues.values():
            attach(queue, now_ms)
            # Who uses a queue is not in the log: one that is deleted when nobody does has its whole time again.
            queue.used_at_ms = now_ms
            schedule_check(queue, now_ms)
        # Also of queues that are gone by now something was remembered.
        state.remembered.bytes = sum(queue.dedup.bytes for queue in state.queues.values() if queue.dedup is not None)
        self._claims.finish(now_ms)

    # -- declarations -------------------------------------------------------------------------------------------------

    def _opened(self, data: memoryview) -> None:
        opened = records.opened.decode(data)
        self.opened_position = self._position
        self.anchor = opened.anchor
        state = self.state
        state.run = max(state.run, opened.run + 1)
        state.next_sequence = max(state.next_sequence, opened.next_sequence)
        state.next_queue = max(state.next_queue, opened.next_queue)
        state.next_exchange = max(state.next_exchange, opened.next_exchange)

    # -- entering -----------------------------------------------------------------------------------------------------

    def _enqueued(self, data: memoryview) -> None:
        at_ms = records.enqueued.at_ms(data)
        for entry in records.enqueued.decode(data):
            self._enter(entry, at_ms)

    def _fanned_out(self, data: memoryview) -> None:
        at_ms = records.fanned_out.at_ms(data)
        for entry in records.fanned_out.decode(data):
            self._enter(entry, at_ms)

    def _enter(self, entry: Entry, at_ms: int) -> None:
        queue = self._queue(entry.queue)
        sequence = entry.sequence
        packed = entry.envelope, entry.properties
        envelope = self._envelopes.get(packed)
        if envelope is None:
            envelope = self._envelope(packed)
        message = Message(
            sequence,
            sequence,
            entry.queue,
            envelope,
            self._body(entry.body),
            entry.priority,
            at_ms,
            entry.ready_at_ms,
            position=self._position,
            expires_at_ms=entry.expires_at_ms,
        )
        queue.insert(message, at_ms)
        queue.counters.published += 1
        if sequence >= self.state.next_sequence:
            self.state.next_sequence = sequence + 1

    def _placed(self, data: memoryview) -> None:
        found, body_view = records.placed.decode(data)
        body = bytes(body_view)
        for placed, envelope, deaths in found:
            queue = self._queue(placed.queue)
            present = queue.find(placed.sequence)
            if present is not None:
                queue.remove(present)
                self._free(present)
            message = Message(
                placed.sequence,
                placed.number,
                placed.queue,
                envelope,
                self._body(body),
                placed.priority,
                placed.created_at_ms,
                placed.ready_at_ms,
                placed.state,
                self._position,
                placed.expires_at_ms,
                placed.deadline_ms,
                placed.deliveries,
                deaths,
            )
            queue.restore(message)
            self.state.next_sequence = max(self.state.next_sequence, placed.sequence + 1)

    def _remembered(self, data: memoryview) -> None:
        record = records.remembered.decode(data)
        queue = self._queue(record.queue)
        if queue.dedup is None:
            queue.dedup = DedupMemory(self.state.remembered)
        queue.dedup.remember(
            record.key, Seen(record.number, record.created_at_ms, record.expires_at_ms, self._position)
        )

    # -- claims, staged batches and jobs -------------------------------------------------------------------------------

    def _claimed(self, data: memoryview) -> None:
        self._claims.claimed(data, self._position)

    def _claimant(self, data: memoryview) -> None:
        self._claims.claimant(data, self._position)

    def _committed(self, data: memoryview) -> None:
        self._claims.committed(data, self._position)

    def _job(self, data: memoryview) -> None:
        self._claims.job(data, self._position)

    def _job_advanced(self, data: memoryview) -> None:
        self._claims.job_advanced(data)

    # -- transitions --------------------------------------------------------------------------------------------------

    # A record counts for its queue even where its message is not known, see the essay above.

    def _delivered(self, data: memoryview) -> None:
        record = records.delivered.decode(data)
        queue = self._queue(record.queue)
        counters = queue.counters
        before = counters.delivered, counters.first_delivered, counters.wait_ms_total
        for message in _known(queue, record.sequences):
            queue.lease(message, record.deadline_ms, record.at_ms, record.run)
        counters.delivered = before[0] + len(record.sequences)
        counters.first_delivered = before[1] + record.first_count
        counters.wait_ms_total = before[2] + record.wait_ms

    def _extended(self, data: memoryview) -> None:
        number, at_ms, deadline_ms, sequences = records.extended.decode(data)
        queue = self._queue(number)
        for message in _known(queue, sequences):
            queue.extend(message, deadline_ms, at_ms)

    def _given_back(self, data: memoryview) -> None:
        number, sequence, at_ms, due_at_ms, reason, error = records.given_back.decode(data)
        queue = self._queue(number)
        message = queue.find(sequence)
        if message is None:
            queue.counters.count_failure(Reason(reason))
        else:
            queue.give_back(message, Reason(reason), due_at_ms, error, at_ms)

    def _rescheduled(self, data: memoryview) -> None:
        number, sequence, at_ms, due_at_ms = records.rescheduled.decode(data)
        queue = self._queue(number)
        for message in _known(queue, (sequence,)):
            queue.reschedule(message, due_at_ms, at_ms)

    def _became_ready(self, data: memoryview) -> None:
        number, at_ms, sequences = records.became_ready.decode(data)
        queue = self._queue(number)
        for message in _known(queue, sequences):
            queue.become_ready(message, at_ms)

    def _acknowledged(self, data: memoryview) -> None:
        number, _, sequences = records.acknowledged.decode(data)
        queue = self._queue(number)
        queue.counters.acknowledged += len(sequences)
        for message in _known(queue, sequences):
            self._free(message)
            queue.remove(message)

    def _removed(self, data: memoryview) -> None:
        number, _, reason, sequences = records.removed.decode(data)
        queue = self._queue(number)
        for sequence in sequences:
            message = queue.find(sequence)
            if message is None:
                queue.counters.count_removal(Reason(reason))
            else:
                self._free(message)
                apply_removed(queue, message, Reason(reason))

    def _parked(self, data: memoryview) -> None:
        record = records.parked.decode(data)
        queue = self._queue(record.queue, record.name)
        fate = _fate(record.reason, record.failed_by, record.error, record.at_ms)
        message = queue.find(record.sequence)
        if message is None:
            _count_death(queue, fate)
        else:
            apply_parked(queue, message, fate)

    def _moved(self, data: memoryview) -> None:
        record = records.moved.decode(data)
        self.state.next_sequence = max(self.state.next_sequence, record.new_sequence + 1)
        source = self._queue(record.source, record.name)
        fate = _fate(record.reason, record.failed_by, record.error, record.at_ms)
        message = source.find(record.sequence)
        if not record.target:
            if message is None:
                _count_death(source, fate)
            else:
                self._free(message)
                apply_left(source, message, fate)
            return
        target = self._queue(record.target)
        if message is None:
            if fate.reason is Reason.REDRIVEN:
                target.counters.redriven += 1
            else:
                _count_death(source, fate)
            return
        copy = Message(
            record.new_sequence,
            message.number,
            target.number,
            message.envelope,
            message.body,
            record.priority,
            message.created_at_ms,
            record.at_ms,
            position=message.position,
            expires_at_ms=record.expires_at_ms or None,
            deaths=message.deaths,
        )
        apply_moved(source, message, target, copy, fate)

    def _readdressed(self, data: memoryview) -> None:
        record = records.readdressed.decode(data)
        message = self._queue(record.queue).find(record.sequence)
        if message is not None:
            message.envelope = readdressed(message.envelope, record.exchange, record.routing_key)

    def _purged(self, data: memoryview) -> None:
        number, _, _, count, ready_only = records.purged.decode(data)
        queue = self._queue(number)
        before = queue.counters.purged
        for table in queue.take_all(ready_only=ready_only):
            for message in table.values():
                self._free(message)
        queue.counters.purged = before + count

    # -- inside -------------------------------------------------------------------------------------------------------

    def _body(self, body: bytes) -> bytes | int:
        if len(body) > self._resident_left:
            self.has_left_bodies = True
            return len(body)
        self._resident_left -= len(body)
        return body

    def _free(self, message: Message) -> None:
        if type(message.body) is bytes:
            self._resident_left += len(message.body)

    def _envelope(self, packed: PackedEnvelope) -> Envelope:
        before = self._last_envelope
        if packed != before[0]:
            # Those that are alike come one after the other. They share it, as they did before.
            address, properties = packed
            envelope = records.envelope.with_properties(self._address(address), properties)
            self._last_envelope = before = packed, envelope
            if len(self._envelopes) < ENTRIES_MAX and len(address) + len(properties) <= SMALL_BYTES:
                self._envelopes[packed] = envelope
        return before[1]

    def _address(self, data: bytes) -> Envelope:
        found = self._addresses.get(data)
        if found is None:
            found = records.envelope.decode(data)
            if len(self._addresses) < ENTRIES_MAX and len(data) <= SMALL_BYTES:
                self._addresses[data] = found
        return found


def _count_death(queue: Queue, fate: Fate) -> None:
    """What setting aside an unknown message counts for its queue."""
    if fate.reason is not Reason.REDRIVEN:
        queue.counters.count_death(fate.reason)
    if fate.failed_by is not None:
        queue.counters.count_failure(fate.failed_by)


def _known(queue: Queue, sequences: Sequence[int]) -> list[Message]:
    return [message for sequence in sequences if (message := queue.find(sequence)) is not None]


def _fate(reason: int, failed_by: int, error: str, at_ms: int) -> Fate:
    return Fate(Reason(reason), Reason(failed_by) if failed_by else None, error, at_ms)
