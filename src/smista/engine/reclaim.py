"""Reclaiming space: what still lives in the oldest block is written again at the end, and the block is given up.

    dropped ..... first position ..... fold position ..... the end
                  kept for readers     folded by the next start

Two things follow from giving up a block, and they are apart. The next start need not fold it: the fold position moves
behind it, so that what a start reads stays within about twice what is needed, whatever is kept for readers of the log.
And it may be dropped, as soon as `log_retention` does not ask to keep it. Both happen from the front only, so a record
can never go before the message it settles.

A block with nothing alive in it, and nothing lasting (declarations, claims, commits, jobs, deduplication memory), is
given up unread; that is the common case by far.

While publishing wants the space, nothing is kept for readers of the log, and no more than a quarter beside what is
needed: a disk that is full must not stay full of what nobody has to keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smista import records
from smista.core.declaring import is_lasting, lasting_bindings
from smista.core.exchanges import Exchange
from smista.core.message import Failure, Message
from smista.core.state import BrokerState
from smista.engine.accounts import live_bytes
from smista.engine.clock import Clock
from smista.engine.declared import read_binding
from smista.engine.journal import EngineJournal
from smista.engine.kept_blocks import Kept, KeptBlocks
from smista.engine.measures import KeptFor, LogSpace
from smista.engine.recorder import Recorder
from smista.records import Kind, Record
from smista.records.bound import BindingFields
from smista.records.claimed import Claimed
from smista.records.opened import Opened
from smista.records.remembered import Remembered

SLACK_BYTES = 8 << 20
SLACK_BYTES_WANTED = 1 << 20
"""... while space is wanted: less would have declarations written again and again for next to nothing."""

PART_BYTES = 1 << 20
"""How much of properties and histories is written again in one record. Copies of a message can differ in them."""
_FAILURE_BYTES = 32
BINDINGS_MAX = 500
"""How many bindings stand in the record of the exchange that they lead from: an exchange may have very many."""
RELOCATED_AT_ONCE = 500
"""How many messages, bindings and the like are written again in one turn of the loop: some 5 ms."""


class Reclaimer:
    def __init__(
        self,
        state: BrokerState,
        journal: EngineJournal,
        clock: Clock,
        *,
        retention_ms: int,
        retention_bytes: int,
        slack_bytes: int = SLACK_BYTES,
        fold_position: int = 1,
    ) -> None:
        """`fold_position` is where the last start began to fold."""
        self._state = state
        self._journal = journal
        self._positions = journal.positions
        self._accounts = journal.accounts
        self._clock = clock
        self._retention_ms = retention_ms
        self._retention_bytes = retention_bytes
        self._slack_bytes = slack_bytes
        self._blocks = KeptBlocks()
        self.total_bytes = 0
        """The size of all blocks that are kept ..."""
        self.folded_bytes = 0
        """... and of those that the next start folds."""
        self.fold_position = fold_position
        self._pass_end = 0
        self._rewritten_bytes = 0
        """What this pass has written again ..."""
        self._moved_bytes = 0
        """... and what counted as alive of that."""
        self._lasting_bytes = 0
        """What the last whole pass had to write beside live messages: declarations, deduplication memory, histories."""
        self.is_space_wanted = False
        """Whether publishing wants the space more than readers of the log do."""

    def block_written(self, position: int, size: int, at_ms: int) -> None:
        self._blocks.append(position, size, at_ms)
        self.total_bytes += size
        if position >= self.fold_position:
            self.folded_bytes += size
        self._accounts.block_is(position, size)

    def kept(self, end: int) -> tuple[Kept, Kept] | None:
        """The oldest block that is kept and the last one below position `end`; None where there is none."""
        last = self._blocks.last_below(end)
        return None if last is None else (self._blocks.first(), last)

    def first_since(self, at_ms: int) -> int | None:
        """The position of the first block written at or after that time; None where all are older."""
        found = self._blocks.first_since(at_ms)
        return None if found is None else found.position

    def has_work(self) -> bool:
        """Whether there is anything to give up or to drop."""
        return self.next_to_give_up() is not None or self._has_unkept()

    def is_overdue(self) -> bool:
        """Whether there is so much of that that it should not wait until `has_work` is asked again. Done for each block
        by itself it cost 25 us, a seventh of what small messages take."""
        if self.is_space_wanted:
            return self.has_work()
        margin_bytes = self._slack_bytes // 8
        if self.folded_bytes > self.needed_bytes + self._spare_bytes + margin_bytes:
            return self.has_work()
        return self.total_bytes > self._retention_bytes + margin_bytes and self._has_unkept()

    def next_to_give_up(self) -> int | None:
        """The position of the oldest block that is folded, if it should be folded no more; None while there is no
        need."""
        oldest = self._blocks.first_from(self.fold_position) if self._folded_for() is None else None
        return None if oldest is None else oldest.position

    def _folded_for(self) -> KeptFor | None:
        """Why the oldest block that is folded stays so; None where it should not."""
        if not self._blocks or self.fold_position >= self._blocks.last_position:
            return KeptFor.LAST_BLOCK
        return KeptFor.NEED if self.folded_bytes <= self.needed_bytes + self._spare_bytes else None

    def _has_unkept(self) -> bool:
        """Whether the oldest block is not folded and not kept for readers."""
        blocks = self._blocks
        return bool(blocks) and blocks.first_position < self.fold_position and self.kept_for() is None

    def kept_for(self) -> KeptFor | None:
        """Why the oldest block stays, by sizes and ages; None where it should go. Whether it can be read, and so can
        go, `LogState.space` finds."""
        if len(self._blocks) < 2:
            return KeptFor.LAST_BLOCK
        oldest = self._blocks.first()
        if oldest.position >= self.fold_position:
            return self._folded_for()
        return KeptFor.RETENTION if self._is_for_readers(oldest) else None

    def _is_for_readers(self, block: Kept) -> bool:
        is_young = self.total_bytes <= self._retention_bytes and self._clock.now_ms() - block.at_ms < self._retention_ms
        return is_young and not self.is_space_wanted

    def frees_space(self, position: int) -> bool:
        """Whether this block, once it is given up, is dropped too, and not kept for readers."""
        block = self._blocks.first_from(position)
        return block is None or not self._is_for_readers(block)

    @property
    def needed_bytes(self) -> int:
        """What of the log cannot be dropped, but only written again: messages and what else lasts."""
        return self._accounts.live_total + self._lasting_bytes

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
        self._pass_end = self._blocks.last_position
        self._rewritten_bytes = self._moved_bytes = 0

    def is_pass_over(self, position: int) -> bool:
        """Whether everything that was there when the pass began has been gone through. What was written again is needed
        then, and going on would only write it again and again."""
        if position <= self._pass_end:
            return False
        self._lasting_bytes = max(0, self._rewritten_bytes - self._moved_bytes)
        return True

    def needs_reading(self, position: int) -> bool:
        return position in self._accounts.live or position in self._positions.lasting

    def given_up(self, position: int) -> None:
        """The oldest block that is folded is needed no more: what lived in it has been written again, durably."""
        block = self._blocks.first_from(self.fold_position)
        assert block is not None
        assert block.position == position
        self.folded_bytes -= block.size_bytes
        self.fold_position = position + 1
        self._accounts.give_up(position)
        self._positions.lasting.discard(position)

    def drop_unkept(self) -> int:
        """Forget the blocks that nobody needs or reads any more; the position of the oldest that stays."""
        while self._has_unkept():
            self.total_bytes -= self._blocks.drop_first().size_bytes
        return self._blocks.first_position if self._blocks else self.fold_position

    def relocate(self, position: int, block: bytes) -> Iterator[None]:
        """Write again whatever in this block still lives in it. Where this yields, others may have their turn, and
        change what is not written yet."""
        before_bytes = self._journal.unwritten_bytes
        for step, _ in enumerate(self._steps(position, block), 1):
            self._journal.between()
            if step % RELOCATED_AT_ONCE == 0:
                self._rewritten_bytes += self._journal.unwritten_bytes - before_bytes
                yield
                before_bytes = self._journal.unwritten_bytes
        self._rewritten_bytes += self._journal.unwritten_bytes - before_bytes

    def _steps(self, position: int, block: bytes) -> Iterator[None]:
        for record in records.blocks.records(block):
            yield from self._relocate(position, record)
            yield

    def relocate_unread(self, position: int) -> list[Message]:
        """As `relocate`, for a block that cannot be read: from memory. Returns the messages whose bodies are lost."""
        state, journal = self._state, self._journal
        before_bytes = journal.unwritten_bytes
        note_opened(journal, state, self._clock)
        lost: list[Message] = []
        for queue in state.queues.values():
            if queue.position == position:
                journal.queue_declared(queue)
            for key, seen in queue.dedup.items() if queue.dedup is not None else ():
                if seen.position == position:
                    journal.remembered(queue, key, seen)
            for message in [message for message in queue.messages() if message.position == position]:
                body = message.body
                if type(body) is bytes:
                    self._accounts.count_out(message)
                    journal.placed([message], body)
                    self._moved_bytes += live_bytes(message)
                else:
                    lost.append(message)
        for namespace in state.namespaces.values():
            for policy in namespace.policies:
                if policy.position == position:
                    journal.policy_set(namespace.name, policy)
            for exchange in namespace.topology.exchanges():
                for _ in self._exchange_again(exchange):
                    journal.between()
        self._relocate_claims_unread(position)
        self._rewritten_bytes += journal.unwritten_bytes - before_bytes
        return lost

    def _relocate(self, position: int, record: Record) -> Iterator[None]:
        """Yields between one thing that it writes again and the next."""
        state, journal, data = self._state, self._journal, record.data
        match record.kind:
            case Kind.ENQUEUED:
                for entry in records.enqueued.decode(data):
                    self._move(position, [(entry.queue, entry.sequence, entry.sequence)], entry.body)
                    yield
            case Kind.FANNED_OUT:
                entries = records.fanned_out.decode(data)
                places = [(entry.queue, entry.sequence, entry.sequence) for entry in entries]
                if entries:
                    self._move(position, places, entries[0].body)
            case Kind.PLACED:
                found, body = records.placed.decode(data)
                places = [(placed.queue, placed.sequence, placed.number) for placed, _, _ in found]
                self._move(position, places, bytes(body))
            case Kind.QUEUE_DECLARED:
                queue = state.queues.get(records.queue_declared.decode(data).number)
                if queue is not None and queue.position == position:
                    journal.queue_declared(queue)
            case Kind.EXCHANGE_DECLARED:
                declared = records.exchange_declared.decode(data)
                exchange = state.open_namespace(declared.namespace).topology.find(declared.name)
                if exchange is not None and exchange.number == declared.number:
                    yield from self._exchange_again(exchange)
            case Kind.POLICY_SET:
                noted = records.policy_set.decode(data)
                policy = state.open_namespace(noted.namespace).policies.find(noted.name)
                if policy is not None and policy.position == position:
                    journal.policy_set(noted.namespace, policy)
            case Kind.BOUND:
                self._bind_again(records.bound.decode(data))
            case Kind.REMEMBERED:
                self._remember_again(position, records.remembered.decode(data))
            case Kind.CLAIMED:
                self._claim_again(position, records.claimed.decode(data))
            case Kind.CLAIMANT:
                changed = records.claimant.decode(data)
                self._change_again(position, changed.queue, changed.consumer)
            case Kind.COMMITTED:
                committed = records.committed.decode(data)
                commit = state.commits.get((committed.job, committed.batch))
                if commit is not None and commit.position == position:
                    journal.committed(commit)
            case Kind.JOB:
                noted_job = records.job.decode(data)
                job = state.jobs.get(noted_job.plan.places[0].queue, {}).get(noted_job.sequence)
                if job is not None and job.position == position:
                    journal.job_noted(state.queues[job.queue], job)
            case Kind.OPENED:
                note_opened(journal, state, self._clock)

    def _move(self, position: int, places: list[tuple[int, int, int]], body: bytes) -> None:
        alive = [
            message
            for queue, sequence, number in places
            if (message := self._find(queue, sequence, number)) is not None and message.position == position
        ]
        for part in _parts(alive, bytes_max=max(PART_BYTES, len(body))):
            # What is listed goes with the block into which it is written: its body may be let go with that one only.
            for message in part:
                self._accounts.count_out(message)
                if type(message.body) is not bytes:
                    # Until its new block is durable the body is nowhere but here.
                    message.body = body
                    self._accounts.resident_bytes += len(body)
                    self._journal.page_out_later([message])
            self._journal.placed(part, body)
            self._moved_bytes += sum(map(live_bytes, part))
            self._journal.between()

    def _find(self, queue_number: int, sequence: int, number: int) -> Message | None:
        """The live message that was written under this place, wherever it stands now."""
        queue = self._state.queues.get(queue_number)
        message = None if queue is None else queue.find(sequence)
        if message is not None:
            return message
        moved = self._positions.moved.get(number)
        if moved is None:
            return None
        # A purge empties queues at once and leaves the memory of what was in them for later.
        queue = self._state.queues.get(moved.queue)
        return moved if queue is not None and queue.find(moved.sequence) is moved else None

    def _claim_again(self, position: int, record: Claimed) -> None:
        claimant = self._state.claimants.get(record.queue, {}).get(record.consumer)
        claim = None if claimant is None else claimant.claims.get(record.number)
        if claim is not None:
            for rows in claim.rows:
                if rows.first == record.first and rows.position == position:
                    self._journal.claimed(self._state.queues[record.queue], claim, rows)

    def _change_again(self, position: int, queue: int, consumer: str) -> None:
        claimant = self._state.claimants.get(queue, {}).get(consumer)
        if claimant is not None and claimant.position == position:
            self._journal.claimant_changed(self._state.queues[queue], claimant)

    def _relocate_claims_unread(self, position: int) -> None:
        for number, by_name in self._state.claimants.items():
            queue = self._state.queues[number]
            for claimant in by_name.values():
                for claim in claimant.claims.values():
                    for rows in [rows for rows in claim.rows if rows.position == position]:
                        self._journal.claimed(queue, claim, rows)
                self._change_again(position, number, claimant.consumer)
        for commit in [commit for commit in self._state.commits.values() if commit.position == position]:
            self._journal.committed(commit)
        for number, of_queue in self._state.jobs.items():
            for job in [job for job in of_queue.values() if job.position == position]:
                self._journal.job_noted(self._state.queues[number], job)

    def _exchange_again(self, exchange: Exchange) -> Iterator[None]:
        """An exchange and its bindings: some in its record, the others each by itself, as it may have very many. What
        the log has of them elsewhere stays until all of this is durable."""
        namespace, journal = self._state.namespaces[exchange.namespace], self._journal
        bindings = lasting_bindings(self._state, exchange)
        if exchange.number:
            journal.exchange_declared(exchange, bindings[:BINDINGS_MAX])
            del bindings[:BINDINGS_MAX]
        for binding in bindings:
            yield
            if namespace.topology.has_binding(binding) and is_lasting(namespace, binding):
                journal.bound(namespace.name, binding)

    def _bind_again(self, record: BindingFields) -> None:
        """Only bindings of predeclared exchanges: others were written again with the exchange they lead from."""
        topology = self._state.open_namespace(record.namespace).topology
        exchange = topology.find(record.source)
        binding = read_binding(record)
        if exchange is not None and exchange.number == 0 and topology.has_binding(binding):
            self._journal.bound(record.namespace, binding)

    def _remember_again(self, position: int, record: Remembered) -> None:
        queue = self._state.queues.get(record.queue)
        if queue is None or queue.dedup is None:
            return
        seen = queue.dedup.get(record.key, self._clock.now_ms())
        if seen is not None and seen.position == position:
            self._journal.remembered(queue, record.key, seen)


def note_opened(recorder: Recorder, state: BrokerState, clock: Clock) -> None:
    opened = Opened(clock.anchor(), state.run, state.next_sequence, state.next_queue, state.next_exchange)
    recorder.opened(opened)


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
