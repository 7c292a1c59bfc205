"""One queue: its messages, in four tables, and the primitive transitions between them.

A message is in exactly one of the tables `scheduled`, `ready`, `in_flight`, `dead`, keyed by sequence, so the counts
are the tables' lengths and "which state" has one answer. The ready line orders what `ready` holds, by age or fairly
between groups; in an ordered queue groups hold back what must wait for its predecessor; the calendar holds the one
deadline a message has in its state.

Primitives change, they never refuse: the commands decide first and note a record; recovery calls the same primitives
from the records. While a log is being replayed the queue is *detached*: tables only, see `attaching`. From there on the
primitives keep line, groups and deadlines too.

What the queue must not know: other queues, exchanges, consumers, the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from smista.core.calendar import Calendar
from smista.core.counters import Counters
from smista.core.dedup import DedupMemory
from smista.core.fair import FairLine
from smista.core.group_turns import TurnLine
from smista.core.groups import Groups
from smista.core.message import Deliveries, Failure, Message, Reason, State
from smista.core.rate import RateLimit
from smista.core.ready import ReadyLine
from smista.core.settings import PriorityPolicy, QueueSettings
from smista.core.table import Table

SCHEDULED, READY, IN_FLIGHT, DEAD, GONE = State
FAILURES_KEPT = 32
ERROR_LENGTH_MAX = 1024


def error_text(error: str) -> str:
    """What a consumer says went wrong, as it can be kept: not too long, and nothing that UTF-8 cannot write."""
    return error[:ERROR_LENGTH_MAX].encode("utf-8", "replace").decode()


Messages = Table[Message]
_TABLE_OF = {READY: 0, SCHEDULED: 1, IN_FLIGHT: 2, DEAD: 3}


class Queue:
    __slots__ = (
        "body_bytes",
        "calendar",
        "counters",
        "created_at_ms",
        "dead",
        "dead_bytes",
        "deadline_ms",
        "declared",
        "dedup",
        "fair",
        "groups",
        "in_flight",
        "is_attached",
        "is_deleted",
        "is_paused",
        "is_watched",
        "line",
        "name",
        "namespace",
        "number",
        "policy",
        "position",
        "rate",
        "ready",
        "ready_bytes",
        "scheduled",
        "sequence",
        "settings",
        "used_at_ms",
        "woken",
    )

    def __init__(
        self,
        *,
        number: int,
        namespace: str,
        name: str,
        settings: QueueSettings,
        created_at_ms: int,
        calendar: Calendar,
        woken: dict[Queue, None],
    ) -> None:
        self.number = number
        self.namespace = namespace
        self.name = name
        self.declared = settings
        """What it was declared with, or altered to ..."""
        self.settings = settings
        """... and what it has, by the policy that holds for it; see `policies`."""
        self.policy: str | None = None
        self.created_at_ms = created_at_ms
        self.used_at_ms = created_at_ms
        self.calendar = calendar
        self.woken = woken
        self.scheduled: Messages = Table()
        self.ready: Messages = Table()
        self.in_flight: Messages = Table()
        self.dead: Messages = Table()
        self.body_bytes = 0
        self.ready_bytes = self.dead_bytes = 0
        """How many of them are in these two tables. Counted also where no limit asks for it: one may come while there
        are millions of messages, and nobody may stop to count those."""
        self.counters = Counters()
        self.line: ReadyLine | FairLine | None = None
        self.fair: FairLine | None = None
        """The line again, where it is a fair one."""
        self.groups: Groups | None = None
        self.dedup: DedupMemory | None = None
        self.rate: RateLimit | None = None
        self.is_attached = False
        self.is_deleted = False
        self.is_paused = False
        self.is_watched = False
        """Set by the engine while somebody waits for messages: the queue then reports itself in `woken`."""
        self.position = 0
        """The log block that holds its latest declaration."""
        # As an entry of the calendar, where messages have positive sequences.
        self.sequence = -number
        self.deadline_ms: int | None = None

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """All but the dead."""
        return len(self.ready) + len(self.scheduled) + len(self.in_flight)

    @property
    def limited_depth(self) -> int:
        """What `max_depth` is held against: all but the dead, or only what is ready."""
        return len(self.ready) if self.settings.limit_ready_only else self.depth

    @property
    def limited_bytes(self) -> int:
        """What `max_bytes` is held against: the bytes of the same messages as `limited_depth`."""
        return self.ready_bytes if self.settings.limit_ready_only else self.body_bytes - self.dead_bytes

    @property
    def message_count(self) -> int:
        return self.depth + len(self.dead)

    def tables(self) -> tuple[Messages, Messages, Messages, Messages]:
        return self.ready, self.scheduled, self.in_flight, self.dead

    def shrink(self) -> None:
        """Give up the room of messages that are gone."""
        for table in self.tables():
            table.shrink()

    def find(self, sequence: int) -> Message | None:
        for table in (self.in_flight, self.ready, self.scheduled, self.dead):
            message = table.get(sequence)
            if message is not None:
                return message
        return None

    def messages(self) -> Iterator[Message]:
        for table in self.tables():
            yield from table.values()

    # -- primitive transitions ----------------------------------------------------------------------------------------

    def insert(self, message: Message, now_ms: int) -> None:
        """A message enters: published, moved here from another queue, or read from the log."""
        body = message.body
        body_bytes = len(body) if type(body) is bytes else message.body_bytes
        self.body_bytes += body_bytes
        if message.ready_at_ms > now_ms:
            message.state = SCHEDULED
            self.scheduled[message.sequence] = message
        else:
            self.ready[message.sequence] = message
            self.ready_bytes += body_bytes
        if not self.is_attached:
            return
        if self.groups is None and message.expires_at_ms is None and message.state is READY:
            # Nearly every message: nothing to hold back, nothing to time.
            (self.line or self.make_line()).append(message)
            if self.is_watched:
                self.woken[self] = None
        else:
            self._index(message, now_ms, is_new=True)

    def insert_ready(self, messages: Sequence[Message], body_bytes: int) -> None:
        """Many of one priority enter at once, where there are no groups and none of them ever expires."""
        self.body_bytes += body_bytes
        self.ready_bytes += body_bytes
        if len(messages) == 1:
            [message] = messages
            self.ready[message.sequence] = message
            (self.line or self.make_line()).append(message)
        else:
            self.ready.add_all({message.sequence: message for message in messages})
            self.make_line().extend(messages)
        if self.is_watched:
            self.woken[self] = None

    def restore(self, message: Message) -> None:
        """A message is read from the log in the state it had there."""
        body_bytes = message.body_bytes
        self.body_bytes += body_bytes
        if message.state is READY:
            self.ready_bytes += body_bytes
        elif message.state is DEAD:
            self.dead_bytes += body_bytes
        self.tables()[_TABLE_OF[message.state]][message.sequence] = message

    def lease(self, message: Message, deadline_ms: int | None, now_ms: int, run: int = 0) -> None:
        """A message that was taken off the line (or is being replayed) goes to a consumer."""
        deliveries = message.deliveries
        if deliveries is None:
            message.deliveries = Deliveries(1, 0, now_ms, now_ms, True, run)
            self.counters.first_delivered += 1
            self.counters.wait_ms_total += max(0, now_ms - message.ready_at_ms)
        else:
            deliveries.count += 1
            deliveries.last_at_ms = now_ms
            deliveries.is_open = True
            deliveries.run = run
        self.counters.delivered += 1
        sequence = message.sequence
        if self.ready.pop(sequence, None) is None:
            self.scheduled.pop(sequence, None)
        else:
            self.ready_bytes -= message.body_bytes
        message.state = IN_FLIGHT
        self.in_flight[sequence] = message
        if self.is_attached:
            if message.deadline_ms is not None:
                self.calendar.remove(message)
            if deadline_ms is not None:
                self.calendar.add(message, deadline_ms, now_ms)
        else:
            message.deadline_ms = deadline_ms

    def lease_all(self, messages: Sequence[Message], now_ms: int, run: int) -> None:
        """Many that were taken off the line go to a consumer; the caller sets their deadlines."""
        first_count = wait_ms = body_bytes = 0
        taken: dict[int, Message] = {}
        for message in messages:
            body = message.body
            body_bytes += len(body) if type(body) is bytes else message.body_bytes
            deliveries = message.deliveries
            if deliveries is None:
                message.deliveries = Deliveries(1, 0, now_ms, now_ms, True, run)
                first_count += 1
                # A consumer that publishes as it is served does so later than the instant it is served in.
                wait_ms += max(0, now_ms - message.ready_at_ms)
            else:
                deliveries.count += 1
                deliveries.last_at_ms = now_ms
                deliveries.is_open = True
                deliveries.run = run
            message.state = IN_FLIGHT
            taken[message.sequence] = message
            if message.deadline_ms is not None:
                self.calendar.remove(message)
        counters = self.counters
        counters.first_delivered += first_count
        counters.wait_ms_total += wait_ms
        counters.delivered += len(messages)
        self.ready.remove_all(taken)
        self.in_flight.add_all(taken)
        self.ready_bytes -= body_bytes

    def extend(self, message: Message, deadline_ms: int | None, now_ms: int) -> None:
        if not self.is_attached:
            message.deadline_ms = deadline_ms
            return
        self.calendar.remove(message)
        if deadline_ms is not None:
            self.calendar.add(message, deadline_ms, now_ms)

    def give_back(self, message: Message, reason: Reason, due_at_ms: int, error: str, now_ms: int) -> None:
        """A delivery ended without success: the message is ready at its old place, or scheduled if due later."""
        self.note_failure(message, reason, error, now_ms)
        self._leave_table(message)
        if due_at_ms > now_ms:
            if message.expires_at_ms is not None:
                message.expires_at_ms += due_at_ms - now_ms
            message.ready_at_ms = due_at_ms
            message.state = SCHEDULED
            self.scheduled[message.sequence] = message
        else:
            self._enter_ready(message)
        if self.is_attached:
            self._index(message, now_ms, is_new=False)
        else:
            message.deadline_ms = None

    def note_failure(self, message: Message, reason: Reason, error: str, now_ms: int) -> None:
        """Count how a delivery ended; only what failed enters the message's history."""
        self.counters.count_failure(reason)
        deliveries = message.deliveries
        if deliveries is None:
            # The record of its delivery was lost. What is not known at all counts as well.
            return
        if reason is not Reason.TIMED_OUT:
            deliveries.is_open = False
        if reason is not Reason.RELEASED:
            deliveries.failure_count += 1
            failure = Failure(deliveries.count, reason, deliveries.last_at_ms, now_ms, error)
            deliveries.failures = (*deliveries.failures[-FAILURES_KEPT + 1 :], failure)

    def become_ready(self, message: Message, now_ms: int) -> None:
        """A scheduled message's time has come. Its time to live begins now, not when it should have come."""
        del self.scheduled[message.sequence]
        message.deadline_ms = None
        if message.expires_at_ms is not None:
            message.expires_at_ms += max(0, now_ms - message.ready_at_ms)
        self._enter_ready(message)
        if self.is_attached:
            self._index(message, now_ms, is_new=False)

    def reschedule(self, message: Message, due_at_ms: int, now_ms: int) -> None:
        """A scheduled message gets another due time."""
        if message.expires_at_ms is not None:
            message.expires_at_ms += due_at_ms - message.ready_at_ms
        message.ready_at_ms = due_at_ms
        if self.is_attached:
            self.calendar.remove(message)
            self.calendar.add(message, due_at_ms, now_ms)

    def remove(self, message: Message) -> None:
        """A message is gone: settled for good, or moved elsewhere as another object."""
        body = message.body
        self.body_bytes -= len(body) if type(body) is bytes else message.body_bytes
        state = message.state
        self._leave_table(message)
        message.state = GONE
        if not self.is_attached:
            message.deadline_ms = None
            return
        if message.deadline_ms is not None:
            self.calendar.remove(message)
        groups = self.groups
        if groups is None or state is DEAD:
            if state is READY and self.line is not None:
                self.line.leave(message)
            return
        is_first = groups.is_first(message)
        if state is READY and is_first and self.line is not None:
            self.line.leave(message)
        successor = groups.leave(message)
        if successor is not None and successor.state is READY:
            self.make_line().put_back(successor)
            self._wake()

    def remove_held(self, messages: Sequence[Message]) -> None:
        """As `remove`, for many that are in flight."""
        if self.groups is not None:
            for message in messages:
                self.remove(message)
            return
        if self.fair is not None:
            for message in messages:
                self.fair.let_go(message)
        body_bytes = 0
        calendar = self.calendar
        for message in messages:
            body = message.body
            body_bytes += len(body) if type(body) is bytes else message.body_bytes
            message.state = GONE
            if message.deadline_ms is not None:
                calendar.remove(message)
        self.body_bytes -= body_bytes
        self.in_flight.remove_all([message.sequence for message in messages])

    def park(self, message: Message) -> None:
        """A message has failed for good and has nowhere to go: it stays, dead."""
        self.remove(message)
        message.state = DEAD
        self.body_bytes += message.body_bytes
        self.dead[message.sequence] = message
        self.dead_bytes += message.body_bytes

    def take_all(self, *, ready_only: bool) -> list[Messages]:
        """Empty the queue at once, whatever its depth; the caller frees what was in it at leisure."""
        if ready_only:
            self.body_bytes -= self.ready_bytes
            taken = [self.ready]
            self.ready = Table()
            self.ready_bytes = 0
        else:
            self.body_bytes = 0
            taken = [table for table in self.tables() if table]
            self.ready, self.scheduled, self.in_flight, self.dead = Table(), Table(), Table(), Table()
            self.ready_bytes = self.dead_bytes = 0
            if self.dedup is not None:
                self.dedup.clear()
                self.dedup = None
        self.counters.purged += sum(map(len, taken))
        if ready_only and self.fair is not None:
            self.fair.clear()
        else:
            self.line = self.fair = None
        if self.groups is not None:
            self.groups = None
            self.make_groups()
        return taken

    # -- indexes ------------------------------------------------------------------------------------------------------

    def look_at(self, at_ms: int, now_ms: int) -> None:
        """Have the queue itself looked after at `at_ms`, unless that happens sooner anyway."""
        if self.deadline_ms is None or self.deadline_ms > at_ms:
            self.calendar.remove(self)
            self.calendar.add(self, at_ms, now_ms)

    def _index(self, message: Message, now_ms: int, *, is_new: bool) -> None:
        """Give a message that has just become scheduled or ready its place in line and calendar."""
        groups = self.groups
        is_free = True
        group = message.envelope.group
        if groups is not None and group is not None:
            is_free = groups.join(group, message) if is_new else groups.is_first(message)
        if message.state is SCHEDULED:
            if message.deadline_ms is not None:
                self.calendar.remove(message)
            self.calendar.add(message, message.ready_at_ms, now_ms)
            return
        if message.deadline_ms is not None:
            self.calendar.remove(message)
        # What is over as it enters has no deadline: it is for those who wait, and goes when the command is over.
        if message.expires_at_ms is not None and message.expires_at_ms > now_ms:
            self.calendar.add(message, message.expires_at_ms, now_ms)
        if is_free:
            line = self.line
            if line is None:
                line = self.make_line()
            if is_new:
                line.append(message)
            else:
                line.put_back(message)
            if self.is_watched:
                self.woken[self] = None

    def make_line(self) -> ReadyLine | FairLine:
        if self.line is None:
            if self.settings.fair:
                return self.make_fair_line()
            kind = TurnLine if self.settings.group_turns else ReadyLine
            self.line = kind(is_weighted=self.settings.priority_policy is PriorityPolicy.WEIGHTED)
        return self.line

    def make_fair_line(self) -> FairLine:
        if self.fair is None:
            self.fair = FairLine(is_weighted=self.settings.priority_policy is PriorityPolicy.WEIGHTED)
            self.line = self.fair
        return self.fair

    def _wake(self) -> None:
        if self.is_watched:
            self.woken[self] = None

    def make_groups(self) -> None:
        if not self.settings.ordered:
            return
        self.groups = Groups()
        rows: Iterable[Message] = (
            message
            for table in (self.ready, self.scheduled, self.in_flight)
            for message in table.values()
            if message.envelope.group is not None
        )
        for message in sorted(rows, key=lambda message: message.sequence):
            assert message.envelope.group is not None
            self.groups.join(message.envelope.group, message)

    def _leave_table(self, message: Message) -> None:
        state = message.state
        if state is IN_FLIGHT:
            del self.in_flight[message.sequence]
            if self.fair is not None:
                self.fair.let_go(message)
        elif state is READY:
            del self.ready[message.sequence]
            self.ready_bytes -= message.body_bytes
        elif state is SCHEDULED:
            del self.scheduled[message.sequence]
        elif state is DEAD:
            del self.dead[message.sequence]
            self.dead_bytes -= message.body_bytes

    def _enter_ready(self, message: Message) -> None:
        message.state = READY
        self.ready[message.sequence] = message
        self.ready_bytes += message.body_bytes
