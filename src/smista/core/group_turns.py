"""A line in which groups take turns: whoever becomes ready goes behind all that are ready already.

For ordered queues whose settings say `group_turns`. Of a group only its first message stands in line, so a place in
this line is a group's place. A group that was served, and whose next message (or the same one again) becomes ready, is
at the end; by age the group with the oldest messages would be served again and again, and the others wait.

    anna 1 2 3      bert 4 5      carl 6          the line: 1 4 6
    1 is received and acknowledged                the line: 4 6 2
    4 is received, its lease runs out             the line: 6 2 4

The place is not in the log. After a restart, and when the setting is turned on, groups stand in the order of their
first messages, as `attach` finds them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from smista.core.message import Message, State
from smista.core.ready import Bucket, Line, ReadyLine

_READY = State.READY


class TurnBucket(Bucket):
    """One priority, in the order of coming. Nothing in it has a place to return to, so `returned` stays empty."""

    __slots__ = ()

    def put_back(self, message: Message) -> None:
        self.append(message)

    def put_first(self, message: Message) -> None:
        self.segments[0].appendleft(message)
        self.count += 1
        self.slots += 1


class TurnLine(ReadyLine):
    __slots__ = ("_ages",)

    def __init__(self, *, is_weighted: bool) -> None:
        Line.__init__(self, TurnBucket, is_weighted=is_weighted)
        self._ages: list[tuple[int, Message]] = []
        """A heap, by sequence, of all that came into the line. What is not in line any more is passed over. There is
        never more of that than of the others, for nobody counts it."""

    def append(self, message: Message) -> None:
        super().append(message)
        self._note_age(message)

    def extend(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.append(message)

    def put_back(self, message: Message) -> None:
        super().put_back(message)
        self._note_age(message)

    def untake(self, message: Message) -> None:
        """A message that was taken goes to nobody after all: it is next again."""
        bucket = self._buckets.get(message.priority) or self._open(message.priority)
        assert isinstance(bucket, TurnBucket)
        bucket.put_first(message)
        self._note_age(message)

    def pop(self) -> Message | None:
        message = super().pop()
        self._sweep_ages()
        return message

    def take(self, limit: int) -> list[Message]:
        taken = super().take(limit)
        self._sweep_ages()
        return taken

    def leave(self, message: Message) -> None:
        super().leave(message)
        self._sweep_ages()

    def oldest(self) -> Message | None:
        """The ready message that has been in the queue longest, whatever its priority and place; left where it is."""
        ages = self._ages
        while ages and ages[0][1].state is not _READY:
            heapq.heappop(ages)
        return ages[0][1] if ages else None

    def _note_age(self, message: Message) -> None:
        heapq.heappush(self._ages, (message.sequence, message))
        self._sweep_ages()

    def _sweep_ages(self) -> None:
        if len(self._ages) > 2 * self.position(0):
            self._ages = [(message.sequence, message) for message in self.in_order()]
            heapq.heapify(self._ages)
