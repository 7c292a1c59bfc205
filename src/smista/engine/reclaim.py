"""Reclaiming space: what still lives in the oldest block is written again at the end, and the front is dropped.

Blocks are dropped from the front only, so a record can never go before the message it settles. Total size stays within
about twice what is needed plus what `log_retention` asks to keep for readers of the log. A block with nothing alive in
it, and nothing lasting (declarations, claims, commits, deduplication memory), is dropped unread; that is the common
case by far.

While publishing wants the space, nothing is kept for readers of the log, and no more than a quarter beside what is
needed: a disk that is full must not stay full of what nobody has to keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smista.core.declaring import lasting_bindings
from smista.core.message import Failure, Message
from smista.core.state import BrokerState
from smista.engine.claim_records import ClaimantRecord, CommitRecord
from smista.engine.clock import Clock
from smista.engine.kept_blocks import Kept, KeptBlocks
from smista.engine.measures import KeptFor, LogSpace
from smista.engine.recorder import (
    BindingRecord,
    ExchangeRecord,
    PolicyRecord,
    QueueRecord,
    Recorder,
    RememberedRecord,
    placed_states,
)
from smista.engine.recovery import Opened, read_binding
from smista.log import records
from smista.log.records import Kind, Record

SLACK_BYTES = 8 << 20
SLACK_BYTES_WANTED = 1 << 20
"""... while space is wanted: less would have declarations written again and again for next to nothing."""

PART_BYTES = 1 << 20
"""How much of properties and histories is written again in one record. Copies of a message can differ in them."""
_FAILURE_BYTES = 32


class Reclaimer:
    def __init__(
        self,
        state: BrokerState,
        recorder: Recorder,
        clock: Clock,
        *,
        retention_ms: int,
        retention_bytes: int,
        slack_bytes: int = SLACK_BYTES,
    ) -> None:
        self._state = state
        self._recorder = recorder
        self._clock = clock
        self._retention_ms = retention_ms
        self._retention_bytes = retention_bytes
        self._slack_bytes = slack_bytes
        self._blocks = KeptBlocks()
        self.total_bytes = 0
        self._pass_end = 0
        self._lasting_bytes = 0
        """What the last whole pass could not get rid of beside live messages: declarations, deduplication memory."""
        self.is_space_wanted = False
        """Whether publishing wants the space more than readers of the log do."""

    def block_written(self, position: int, size: int, at_ms: int) -> None:
        self._blocks.append(position, size, at_ms)
        self.total_bytes += size
        self._recorder.block_is(position, size)

    def kept(self, end: int) -> tuple[Kept, Kept] | None:
        """The oldest block that is kept and the last one below position `end`; None where there is none."""
        last = self._blocks.last_below(end)
        return None if last is None else (self._blocks.first(), last)

    def first_since(self, at_ms: int) -> int | None:
        """The position of the first block written at or after that time; None where all are older."""
        found = self._blocks.first_since(at_ms)
        return None if found is None else found.position

    def next_block(self) -> int | None:
        """The position of the oldest block, if it should go; None while there is no need."""
        return self._blocks.first().position if self.kept_for() is None else None

    def kept_for(self) -> KeptFor | None:
        """Why the oldest block stays, by sizes and ages; None where it should go. Whether it can be read, and so can
        go, `Keeper.log_space` finds."""
        if len(self._blocks) < 2:
            return KeptFor.LAST_BLOCK
        if self.total_bytes <= self.needed_bytes + self._spare_bytes:
            return KeptFor.NEED
        at_ms = self._blocks.first().at_ms
        is_young = self.total_bytes <= self._retention_bytes and self._clock.now_ms() - at_ms < self._retention_ms
        return KeptFor.RETENTION if is_young and not self.is_space_wanted else None

    @property
    def needed_bytes(self) -> int:
        """What of the log cannot be dropped, but only written again: messages and what else lasts."""
        return self._recorder.live_total + self._lasting_bytes

    @property
    def _spare_bytes(self) -> int:
        """How much may lie beside what is needed before it is worth a pass."""
        if self.is_space_wanted:
            return self.needed_bytes // 4 + min(self._slack_bytes, SLACK_BYTES_WANTED)
        return self.needed_bytes + self._slack_bytes

    def space(self) -> LogSpace:
        """How much the log holds, and why it is not less."""
        reason = self.kept_for()
        return LogSpace(
            bytes=self.total_bytes,
            # What messages take is estimated, and may come to a little more than all there is.
            needed_bytes=min(self.needed_bytes, self.total_bytes),
            spare_bytes=self._spare_bytes,
            kept_for=KeptFor.RECLAIMING if reason is None else reason,
            oldest_at_ms=self._blocks.first().at_ms if self._blocks else None,
            retention_ms=0 if self.is_space_wanted else self._retention_ms,
            retention_bytes=0 if self.is_space_wanted else self._retention_bytes,
        )

    def begin_pass(self) -> None:
        self._pass_end = self._blocks.last().position

    def is_pass_over(self, position: int) -> bool:
        """Whether everything that was there when the pass began has been looked at. All that is left is needed then,
        and going on would only write it again and again."""
        if position <= self._pass_end:
            return False
        self._lasting_bytes = max(0, self.total_bytes - self._recorder.live_total)
        return True

    def needs_reading(self, position: int) -> bool:
        return position in self._recorder.live or position in self._recorder.lasting

    def dropped(self, position: int) -> None:
        """The oldest block is given up: nothing in it is needed any more."""
        oldest, size, _ = self._blocks.drop_first()
        assert oldest == position
        self.total_bytes -= size
        self._recorder.give_up(position)

    def relocate(self, position: int, block: bytes) -> None:
        """Write again whatever in this block still lives in it."""
        for record in records.records(block):
            self._relocate(position, record)
            self._recorder.between()

    def relocate_unread(self, position: int) -> list[Message]:
        """As `relocate`, for a block that cannot be read: from memory. Returns the messages whose bodies are lost."""
        state, recorder = self._state, self._recorder
        note_opened(recorder, state, self._clock)
        lost: list[Message] = []
        for queue in state.queues.values():
            if queue.position == position:
                recorder.queue_declared(queue)
            for key, seen in queue.dedup.items() if queue.dedup is not None else ():
                if seen.position == position:
                    recorder.remembered(queue, key, seen)
            for message in [message for message in queue.messages() if message.position == position]:
                body = message.body
                if type(body) is bytes:
                    recorder.count_out(message)
                    recorder.placed([message], body)
                else:
                    lost.append(message)
        for namespace in state.namespaces.values():
            for policy in namespace.policies:
                if policy.position == position:
                    recorder.policy_set(namespace.name, policy)
            for exchange in namespace.topology.exchanges():
                bindings = lasting_bindings(state, exchange)
                if exchange.number:
                    recorder.exchange_declared(exchange, bindings)
                    continue
                for binding in bindings:
                    recorder.bound(namespace.name, binding)
        self._relocate_claims_unread(position)
        return lost

    def _relocate(self, position: int, record: Record) -> None:
        state, recorder, data = self._state, self._recorder, record.data
        match record.kind:
            case Kind.ENQUEUED:
                for entry in records.enqueued(data):
                    self._move(position, [(entry.queue, entry.sequence, entry.sequence)], entry.body)
                    self._recorder.between()
            case Kind.FANNED_OUT:
                entries = records.read_fanned_out(data)
                places = [(entry.queue, entry.sequence, entry.sequence) for entry in entries]
                if entries:
                    self._move(position, places, entries[0].body)
            case Kind.PLACED:
                head, body = records.read_placed(data)
                places = [(placed.queue, placed.sequence, placed.number) for placed, _, _ in placed_states(head)]
                self._move(position, places, body)
            case Kind.QUEUE_DECLARED:
                queue = state.queues.get(records.unpack(data, QueueRecord).number)
                if queue is not None and queue.position == position:
                    recorder.queue_declared(queue)
            case Kind.EXCHANGE_DECLARED:
                declared = records.unpack(data, ExchangeRecord)
                exchange = state.open_namespace(declared.namespace).topology.find(declared.name)
                if exchange is not None and exchange.number == declared.number:
                    recorder.exchange_declared(exchange, lasting_bindings(state, exchange))
            case Kind.POLICY_SET:
                noted = records.unpack(data, PolicyRecord)
                policy = state.open_namespace(noted.namespace).policies.find(noted.name)
                if policy is not None and policy.position == position:
                    recorder.policy_set(noted.namespace, policy)
            case Kind.BOUND:
                self._bind_again(records.unpack(data, BindingRecord))
            case Kind.REMEMBERED:
                self._remember_again(position, records.unpack(data, RememberedRecord))
            case Kind.CLAIMED:
                self._claim_again(position, records.read_claimed(data))
            case Kind.CLAIMANT:
                changed = records.unpack(data, ClaimantRecord)
                self._change_again(position, changed.queue, changed.consumer)
            case Kind.COMMITTED:
                committed = records.unpack(data, CommitRecord)
                commit = state.commits.get((committed.job, committed.batch))
                if commit is not None and commit.position == position:
                    recorder.committed(commit)
            case Kind.OPENED:
                note_opened(recorder, state, self._clock)

    def _move(self, position: int, places: list[tuple[int, int, int]], body: bytes) -> None:
        alive = [
            message
            for queue, sequence, number in places
            if (message := self._find(queue, sequence, number)) is not None and message.position == position
        ]
        for part in _parts(alive, bytes_max=max(PART_BYTES, len(body))):
            # What is listed goes with the block into which it is written: its body may be let go with that one only.
            for message in part:
                self._recorder.count_out(message)
                if type(message.body) is not bytes:
                    # Until its new block is durable the body is nowhere but here.
                    message.body = body
                    self._recorder.resident_bytes += len(body)
                    self._recorder.listed.append(message)
            self._recorder.placed(part, body)
            self._recorder.between()

    def _find(self, queue_number: int, sequence: int, number: int) -> Message | None:
        """The live message that was written under this place, wherever it stands now."""
        queue = self._state.queues.get(queue_number)
        message = None if queue is None else queue.find(sequence)
        if message is not None:
            return message
        moved = self._recorder.moved_messages.get(number)
        if moved is None:
            return None
        # A purge empties queues at once and leaves the memory of what was in them for later.
        queue = self._state.queues.get(moved.queue)
        return moved if queue is not None and queue.find(moved.sequence) is moved else None

    def _claim_again(self, position: int, record: records.Claimed) -> None:
        claimant = self._state.claimants.get(record.queue, {}).get(record.consumer)
        claim = None if claimant is None else claimant.claims.get(record.number)
        if claim is not None:
            for rows in claim.rows:
                if rows.first == record.first and rows.position == position:
                    self._recorder.claimed(self._state.queues[record.queue], claim, rows)

    def _change_again(self, position: int, queue: int, consumer: str) -> None:
        claimant = self._state.claimants.get(queue, {}).get(consumer)
        if claimant is not None and claimant.position == position:
            self._recorder.claimant_changed(self._state.queues[queue], claimant)

    def _relocate_claims_unread(self, position: int) -> None:
        for number, by_name in self._state.claimants.items():
            queue = self._state.queues[number]
            for claimant in by_name.values():
                for claim in claimant.claims.values():
                    for rows in [rows for rows in claim.rows if rows.position == position]:
                        self._recorder.claimed(queue, claim, rows)
                self._change_again(position, number, claimant.consumer)
        for commit in [commit for commit in self._state.commits.values() if commit.position == position]:
            self._recorder.committed(commit)

    def _bind_again(self, record: BindingRecord) -> None:
        """Only bindings of predeclared exchanges: others were written again with the exchange they lead from."""
        topology = self._state.open_namespace(record.namespace).topology
        exchange = topology.find(record.source)
        binding = read_binding(record)
        if exchange is not None and exchange.number == 0 and topology.has_binding(binding):
            self._recorder.bound(record.namespace, binding)

    def _remember_again(self, position: int, record: RememberedRecord) -> None:
        queue = self._state.queues.get(record.queue)
        if queue is None or queue.dedup is None:
            return
        seen = queue.dedup.get(record.key, self._clock.now_ms())
        if seen is not None and seen.position == position:
            self._recorder.remembered(queue, record.key, seen)


def note_opened(recorder: Recorder, state: BrokerState, clock: Clock) -> None:
    opened = Opened(clock.anchor(), state.run, state.next_sequence, state.next_queue, state.next_exchange)
    recorder.note_lasting(records.packed(Kind.OPENED, opened))


def _parts(messages: Sequence[Message], *, bytes_max: int) -> Iterator[Sequence[Message]]:
    """One after the other, so many that what is written of them beside the body takes about that; what the one before
    has too takes nothing."""
    start = size = 0
    envelope, deaths = None, None
    for index, message in enumerate(messages):
        own_bytes = 0 if message.envelope is envelope else message.envelope.size
        if message.deaths is not deaths:
            own_bytes += sum(_history_bytes(death.failures) for death in message.deaths)
        if message.deliveries is not None:
            own_bytes += _history_bytes(message.deliveries.failures)
        envelope, deaths = message.envelope, message.deaths
        size += own_bytes
        if size > bytes_max and index > start:
            yield messages[start:index]
            start, size = index, own_bytes
    if messages:
        yield messages[start:]


def _history_bytes(failures: Sequence[Failure]) -> int:
    return sum(_FAILURE_BYTES + 4 * len(failure.error) for failure in failures)
