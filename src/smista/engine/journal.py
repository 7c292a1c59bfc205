"""What the engine keeps account of as the core notes what it does, beside the record that goes into the log.

    recorder    writes the record into the block that is being filled; this extends it
    accounts    count what it takes or frees, in the log and in memory
    positions   know in which block it lies
    holders     know whose credit is free again
    times       how long messages waited and were worked on

Every note passes here with its messages at hand, so that none of them needs a hook of its own in the core, and none of
them knows the others. What is not durable is written nowhere; only its memory is counted. What has to follow outside is
collected in the effects: all this happens in the middle of a command.

It extends the recorder, and does not hold one, for two reasons. Neither of them is speed: to pass a call on takes
0.03 us of 0.55. Nineteen methods would do nothing but that. And what the recorder notes as placed, where it notes a
move or a copy, is counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smista.core.jobs import Job, JobState
from smista.core.message import Fate, Message, Reason
from smista.core.queue import Queue
from smista.engine.accounts import Accounts
from smista.engine.effects import Effects
from smista.engine.holders import Holders
from smista.engine.measures import QueueTimes
from smista.engine.positions import Positions
from smista.engine.recorder import HasPosition, Recorder, body_of


class EngineJournal(Recorder):
    def __init__(
        self,
        position: int,
        effects: Effects,
        *,
        block_bytes_max: int,
        resident_bytes_max: int,
        read_body: Callable[[Message], bool],
    ) -> None:
        """`position` is the first block to fill; `read_body` brings back a body that is paged out, if it can."""
        super().__init__(position, block_bytes_max=block_bytes_max)
        self.accounts = Accounts()
        self.positions = Positions()
        self.holders = Holders(effects)
        self.times = QueueTimes()
        self.entered: dict[int, list[Message]] = {}
        """What entered by each block while more than `resident_bytes_max` of bodies were in memory, or is there only
        until its block is durable: to be paged out then."""
        self._effects = effects
        self._resident_bytes_max = resident_bytes_max
        self._read_body = read_body

    # -- lasting ------------------------------------------------------------------------------------------------------

    def note_lasting(self, record: bytes, of: HasPosition | None = None) -> None:
        self.positions.lasts(of, self.position)
        super().note_lasting(record, of)

    def queue_deleted(self, queue: Queue, at_ms: int) -> None:
        self.times.forget(queue)
        super().queue_deleted(queue, at_ms)

    def job_noted(self, queue: Queue, job: Job) -> None:
        if job.state is not JobState.RUNNING:
            self._effects.ended_jobs.append(job)
        super().job_noted(queue, job)

    # -- entering -----------------------------------------------------------------------------------------------------

    def enqueued(self, queue: Queue, messages: Sequence[Message], at_ms: int, *, are_alike: bool = False) -> None:
        super().enqueued(queue, messages, at_ms, are_alike=are_alike)
        if queue.settings.durable:
            self.accounts.count_entered(self.position, messages)
            if self.accounts.resident_bytes > self._resident_bytes_max:
                self.page_out_later(messages)
        else:
            self.accounts.count_resident(messages)

    def fanned_out(self, placed: Sequence[tuple[Queue, Message]], at_ms: int) -> None:
        super().fanned_out(placed, at_ms)
        lasting = [message for queue, message in placed if queue.settings.durable]
        self.accounts.count_copies(self.position, [message for _, message in placed], lasting)
        if self.accounts.resident_bytes > self._resident_bytes_max:
            self.page_out_later(lasting)

    def placed(self, messages: Sequence[Message], body: bytes, *, entered_at_ms: int = 0) -> None:
        """They live in this block from now on."""
        super().placed(messages, body, entered_at_ms=entered_at_ms)
        for message in messages:
            message.position = self.position
            self.accounts.count_in(message)

    def page_out_later(self, messages: Sequence[Message]) -> None:
        self.entered.setdefault(self.position, []).extend(messages)

    # -- in flight ----------------------------------------------------------------------------------------------------

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
        super().delivered(
            queue, messages, deadline_ms, first_count=first_count, wait_ms=wait_ms, consumer=consumer, at_ms=at_ms
        )

    def given_back(
        self, queue: Queue, message: Message, reason: Reason, due_at_ms: int, error: str, at_ms: int
    ) -> None:
        super().given_back(queue, message, reason, due_at_ms, error, at_ms)
        self.accounts.count_failure(message, reason, error)
        self.holders.settled((message,))

    # -- leaving ------------------------------------------------------------------------------------------------------

    def acknowledged(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None:
        self.times.acknowledged(queue, messages, at_ms)
        super().acknowledged(queue, messages, at_ms)
        self.forgotten(messages)

    def removed(self, queue: Queue, messages: Sequence[Message], reason: Reason, at_ms: int) -> None:
        super().removed(queue, messages, reason, at_ms)
        self.forgotten(messages)

    def forgotten(self, messages: Sequence[Message]) -> None:
        self.accounts.count_forgotten(messages)
        if self.positions.moved:
            self.positions.forgotten(messages)
        if self.holders.by_sequence:
            self.holders.settled(messages)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def has_body(self, message: Message) -> bool:
        return type(message.body) is bytes or self._read_body(message)

    def dying(self, message: Message) -> None:
        self.accounts.uncount_history(message)

    def parked(self, queue: Queue, message: Message, fate: Fate) -> None:
        self._effects.dead_letters.append((queue, fate.reason))
        self.accounts.count_history(message)
        super().parked(queue, message, fate)
        self.holders.settled((message,))

    def moved(self, source: Queue, message: Message, target: Queue, copy: Message, fate: Fate) -> None:
        if fate.reason is not Reason.REDRIVEN:
            self._effects.dead_letters.append((source, fate.reason))
        self.accounts.count_history(copy)
        self.holders.settled((message,))
        self.positions.moved[copy.number] = copy
        if source.settings.durable and not target.settings.durable:
            # It leaves the log with this, so its body must be in memory.
            copy.body = body_of(message)
            self.accounts.count_out(message)
            copy.position = 0
        super().moved(source, message, target, copy, fate)

    def copied(self, copies: Sequence[tuple[Queue, Message]], original: Message) -> None:
        body = body_of(original)
        for _, copy in copies:
            copy.body = body
            copy.position = 0
        self.accounts.count_resident(copy for _, copy in copies)
        self.accounts.count_history(original, len(copies))
        super().copied(copies, original)
