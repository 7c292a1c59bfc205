"""A fair line: the ready messages of one queue, shared out between groups.

One group that floods the queue must not make the others wait behind it. So each priority has a row per group, and the
next message is the oldest of the group that has the fewest in flight, counted over all priorities. Among equals it is
the group whose turn was longest ago; to come in counts as a turn, so a group that had nothing ready is neither
favoured over those that waited nor made to wait for them twice. Messages without a group are one group together.

    in flight   group     ready
            0   bert      1004 1005            1004 is next: bert has the fewest
            1   (none)    1003                 1003 follows: bert has as few now, but has just had a turn
          997   anna      998 999 1000 ...     then 1005, and only then 998

What follows: where nobody holds anything, groups take turns. Where consumers are slow, each group gets the same number
of them. A group alone goes by age. A group whose messages are held for long waits as long as others come; that is its
fair share, however many it sends. Nothing is locked, and no order is promised within a group once messages come back.

The next group is found in a heap. An entry of a `Ranking` may lie too low, never too high: what raises a group's key
(being served) is found out when the entry comes to the front, what lowers it (a message is settled) is entered at once.
So all of it is O(log groups). A group with nothing ready and nothing in flight is forgotten; one with something ready
takes about 1.3 KB at each priority. Who is in flight is counted from the taking, before the lease: a batch is shared
out too. It follows from the tables, so a restart counts it again; turns start anew then, by age.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from smista.core.message import Message
from smista.core.ready import STRIDE, Bucket, Line

_SLACK = 64

Group = str | None
Key = TypeVar("Key", int, tuple[int, int])
Turn = tuple[int, int]
"""How many a group has in flight, and when it had its last turn."""


class Ranking(Generic[Key]):
    """Groups by a key that changes, the least first. No two groups ever have the same key."""

    __slots__ = ("_entries", "_keys")

    def __init__(self) -> None:
        self._entries: list[tuple[Key, Group]] = []
        """A heap. An entry counts only if it has the key that `_keys` has; the others were overtaken."""
        self._keys: dict[Group, Key] = {}

    def enter(self, group: Group, key: Key) -> None:
        """The group is here, with this key or one that was entered before and is lower."""
        known = self._keys.get(group)
        if known is not None and known <= key:
            return
        self._keys[group] = key
        heapq.heappush(self._entries, (key, group))
        if len(self._entries) > 2 * len(self._keys) + _SLACK:
            self._entries = [(key, group) for group, key in self._keys.items()]
            heapq.heapify(self._entries)

    def leave(self, group: Group) -> None:
        del self._keys[group]

    def first(self, key_of: Callable[[Group], Key]) -> Group:
        """The group with the least key, of which there must be one; `key_of` tells the key of a group now."""
        entries, keys = self._entries, self._keys
        while True:
            entered, group = entries[0]
            if keys.get(group) != entered:
                heapq.heappop(entries)
                continue
            key = key_of(group)
            if key == entered:
                return group
            keys[group] = key
            heapq.heapreplace(entries, (key, group))


class Row(Bucket):
    """The ready messages of one group at one priority."""

    __slots__ = ("turn",)

    def __init__(self, turn: int) -> None:
        super().__init__(0)
        self.turn = turn


class FairBucket:
    """The ready messages of one priority, a row for each group. There is no row without messages."""

    __slots__ = ("_ages", "_clock", "_in_flight", "_rows", "_turns", "count", "passed", "stride")

    def __init__(self, priority: int, in_flight: dict[Group, int], clock: Iterator[int]) -> None:
        self.count = 0
        self.stride = STRIDE // (priority + 1)
        self.passed = 0
        self._in_flight = in_flight
        self._clock = clock
        self._rows: dict[Group, Row] = {}
        self._turns: Ranking[Turn] = Ranking()
        self._ages: Ranking[int] = Ranking()

    @property
    def slots(self) -> int:
        return self.count

    def append(self, message: Message) -> None:
        group = message.envelope.group
        (self._rows.get(group) or self._open(group, message)).append(message)
        self.count += 1

    def extend(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.append(message)

    def put_back(self, message: Message) -> None:
        group = message.envelope.group
        (self._rows.get(group) or self._open(group, message)).put_back(message)
        self._ages.enter(group, message.sequence)
        self.count += 1

    def leave(self, message: Message) -> None:
        group = message.envelope.group
        row = self._rows[group]
        row.leave()
        self.count -= 1
        if not row.count:
            self._close(group)

    def head(self) -> Message | None:
        return self._rows[self._turns.first(self._turn_of)].head() if self._rows else None

    def pop(self) -> None:
        group = self._turns.first(self._turn_of)
        self._rows[group].pop()
        self._served(group, 1)

    def take(self, limit: int) -> list[Message]:
        taken: list[Message] = []
        rows = self._rows
        while rows and len(taken) < limit:
            group = self._turns.first(self._turn_of)
            # One that is alone need not be looked at after each message.
            some = rows[group].take(limit - len(taken) if len(rows) == 1 else 1)
            if some:
                self._served(group, len(some))
                taken += some
        return taken

    def oldest(self) -> Message | None:
        return self._rows[self._ages.first(self._age_of)].head() if self._rows else None

    def eased(self, group: Group, in_flight: int) -> None:
        """A group has fewer in flight than before: so many."""
        row = self._rows.get(group)
        if row is not None:
            self._turns.enter(group, (in_flight, row.turn))

    def in_order(self, in_flight: dict[Group, int]) -> Iterator[Message]:
        """As they would be taken, nothing else happening; `in_flight` goes along."""
        later = max((row.turn for row in self._rows.values()), default=0)
        rows = [(in_flight.get(group, 0), row.turn, group, row.in_order()) for group, row in self._rows.items()]
        heapq.heapify(rows)
        while rows:
            held, _, group, messages = rows[0]
            message = next(messages, None)
            if message is None:
                heapq.heappop(rows)
                continue
            later += 1
            in_flight[group] = held + 1
            heapq.heapreplace(rows, (held + 1, later, group, messages))
            yield message

    def _turn_of(self, group: Group) -> Turn:
        return self._in_flight.get(group, 0), self._rows[group].turn

    def _age_of(self, group: Group) -> int:
        head = self._rows[group].head()
        assert head is not None
        return head.sequence

    def _served(self, group: Group, served: int) -> None:
        self.count -= served
        self._in_flight[group] = self._in_flight.get(group, 0) + served
        row = self._rows[group]
        if row.count:
            row.turn = next(self._clock)
        else:
            self._close(group)

    def _open(self, group: Group, message: Message) -> Row:
        row = self._rows[group] = Row(next(self._clock))
        self._turns.enter(group, self._turn_of(group))
        self._ages.enter(group, message.sequence)
        return row

    def _close(self, group: Group) -> None:
        del self._rows[group]
        self._turns.leave(group)
        self._ages.leave(group)


class FairLine(Line[FairBucket]):
    """As `ReadyLine`, but fair between groups. Needs to know what is in flight no longer."""

    __slots__ = ("_in_flight",)

    def __init__(self, *, is_weighted: bool) -> None:
        self._in_flight: dict[Group, int] = {}
        super().__init__(partial(FairBucket, in_flight=self._in_flight, clock=count(1)), is_weighted=is_weighted)

    def hold(self, message: Message) -> None:
        """Count a message that was in flight before there was this line."""
        group = message.envelope.group
        self._in_flight[group] = self._in_flight.get(group, 0) + 1

    def let_go(self, message: Message) -> None:
        """A message that was taken is in flight no longer, whatever became of it."""
        group = message.envelope.group
        left = self._in_flight[group] - 1
        if left:
            self._in_flight[group] = left
        else:
            del self._in_flight[group]
        for bucket in self._buckets.values():
            bucket.eased(group, left)

    def untake(self, message: Message) -> None:
        self.let_go(message)
        self.put_back(message)

    def leave(self, message: Message) -> None:
        """Note that a message is no longer ready and leaves its slot behind."""
        self._buckets[message.priority].leave(message)

    def clear(self) -> None:
        """Nothing is ready any more; what is in flight stays so."""
        self._buckets = {}
        self._priorities = []

    def oldest(self) -> Message | None:
        """The ready message that has been in the queue longest, whatever its priority or group; left in place."""
        found = [oldest for bucket in self._buckets.values() if (oldest := bucket.oldest()) is not None]
        return min(found, key=lambda message: message.sequence, default=None)

    def first(self) -> Message | None:
        """The ready message of the highest priority that has been there longest, whatever its group; left in place."""
        for negated in self._priorities:
            oldest = self._buckets[-negated].oldest()
            if oldest is not None:
                return oldest
        return None

    def in_order(self) -> Iterator[Message]:
        """All ready messages by strict priority, and as the groups would be served; nothing taken."""
        in_flight = dict(self._in_flight)
        for negated in self._priorities:
            yield from self._buckets[-negated].in_order(in_flight)
