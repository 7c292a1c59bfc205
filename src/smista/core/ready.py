"""The ready messages of one queue, in the order in which they will be received.

Within a priority the order is that of the sequences. New messages come in that order anyway, so they are appended; what
comes back from a consumer or out of the schedule has an older sequence and goes into a small heap beside. The next
message of a bucket is the smaller of the two heads.

    priority 9:  returned (heap)  3 7        fresh (segments)  12 13 15 ...
    priority 0:  returned         -          fresh              1  2  4 ...

Nothing is ever taken out of the middle: a message that stops being ready (expired, cancelled, acknowledged late) leaves
its slot behind, recognised by its state when the slot is reached. Nobody counts the bodies in such slots, so there are
never more of them in a bucket than live ones: when there are, `sweep` clears them, or, where there is more than one
segment of slots, clears one segment with each message that goes on. A message that moves to another queue becomes
another object, so no slot is mistaken.

Strict policy serves the highest priority first. Weighted policy gives the level p a share of p+1 among the levels that
have messages (stride scheduling): a level waits for at most (sum of shares / its share) + number of levels deliveries.

`Line` is what all lines have in common, the priorities. How one priority is served is its bucket's business: `Bucket`
and `ReadyLine` go by age alone, `fair` shares out between groups.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from smista.core.message import Message, State

SEGMENT = 4096
STRIDE = 1 << 32
_READY = State.READY


class Bucket:
    """The ready messages of one priority."""

    __slots__ = ("_swept", "count", "passed", "returned", "segments", "slots", "stride")

    def __init__(self, priority: int) -> None:
        # A fair line has many small buckets: a deque takes 760 bytes, a list 64.
        self.segments: list[deque[Message]] = [deque()]
        self.returned: list[tuple[int, Message]] = []
        self.count = 0
        self.slots = 0
        self.stride = STRIDE // (priority + 1)
        self.passed = 0
        self._swept = 0

    def append(self, message: Message) -> None:
        tail = self.segments[-1]
        if len(tail) >= SEGMENT:
            tail = deque()
            self.segments.append(tail)
        tail.append(message)
        self.count += 1
        self.slots += 1

    def extend(self, messages: Sequence[Message]) -> None:
        tail = self.segments[-1]
        if len(tail) + len(messages) > SEGMENT:
            for message in messages:
                self.append(message)
        else:
            tail.extend(messages)
            self.count += len(messages)
            self.slots += len(messages)

    def put_back(self, message: Message) -> None:
        heapq.heappush(self.returned, (message.sequence, message))
        self.count += 1
        self.slots += 1

    def head(self) -> Message | None:
        """The next message, left where it is; slots left behind by others are cleared on the way."""
        while self.slots:
            segment = self.segments[0]
            if not segment and len(self.segments) > 1:
                del self.segments[0]
                continue
            if self.returned and (not segment or self.returned[0][0] < segment[0].sequence):
                message = self.returned[0][1]
                if message.state is _READY:
                    return message
                heapq.heappop(self.returned)
            else:
                message = segment[0]
                if message.state is _READY:
                    return message
                segment.popleft()
            self.slots -= 1
        return None

    def pop(self) -> None:
        """Take the message that `head` has just returned."""
        segment = self.segments[0]
        if self.returned and (not segment or self.returned[0][0] < segment[0].sequence):
            heapq.heappop(self.returned)
        else:
            segment.popleft()
        self.slots -= 1
        self.count -= 1
        if self.slots > 2 * self.count:
            self.sweep()

    def take(self, limit: int) -> list[Message]:
        """Take up to `limit` at once; fewer where some came back, or at the end of a segment."""
        segment = self.segments[0]
        if self.returned or not segment:
            message = self.head()
            if message is None:
                return []
            self.pop()
            return [message]
        count = min(limit, len(segment))
        popped = segment.popleft
        taken = [popped() for _ in range(count)]
        self.slots -= count
        taken = [message for message in taken if message.state is _READY]
        self.count -= len(taken)
        if self.slots > 2 * self.count:
            self.sweep()
        return taken

    def leave(self) -> None:
        """Note that a message is no longer ready and leaves its slot behind."""
        self.count -= 1
        if self.slots > 2 * self.count:
            self.sweep()

    def sweep(self) -> None:
        """Clear the slots left behind; of many slots those of a segment, so it is called again."""
        if self.slots <= SEGMENT:
            self.segments = [deque(m for segment in self.segments for m in segment if m.state is _READY)]
            self._swept = 0
        else:
            self._swept = (self._swept + 1) % len(self.segments)
            self.segments[self._swept] = deque(m for m in self.segments[self._swept] if m.state is _READY)
        if not self._swept:
            self.returned = [pair for pair in self.returned if pair[1].state is _READY]
            heapq.heapify(self.returned)
        self.slots = len(self.returned) + sum(map(len, self.segments))

    def in_order(self) -> Iterator[Message]:
        fresh = ((message.sequence, message) for segment in self.segments for message in segment)
        for _, message in heapq.merge(_in_heap_order(self.returned), fresh, key=_first):
            if message.state is _READY:
                yield message


def _first(pair: tuple[int, Message]) -> int:
    return pair[0]


def _in_heap_order(heap: list[tuple[int, Message]]) -> Iterator[tuple[int, Message]]:
    """The entries of a heap, smallest first, the heap left as it is. Each costs the same however many there are: the
    smallest of what was not seen yet is a child of what was, so only those are compared.
    """
    places = [(heap[0][0], 0)] if heap else []
    while places:
        place = heapq.heappop(places)[1]
        yield heap[place]
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heapq.heappush(places, (heap[child][0], child))


class Level(Protocol):
    """The ready messages of one priority, as `Line` sees them."""

    count: int
    passed: int

    @property
    def slots(self) -> int: ...
    @property
    def stride(self) -> int: ...
    def append(self, message: Message) -> None: ...
    def extend(self, messages: Sequence[Message]) -> None: ...
    def put_back(self, message: Message) -> None: ...
    def head(self) -> Message | None: ...
    def pop(self) -> None: ...
    def take(self, limit: int) -> list[Message]: ...


B = TypeVar("B", bound=Level)


class Line(Generic[B]):
    __slots__ = ("_buckets", "_make", "_priorities", "is_weighted")

    def __init__(self, make: Callable[[int], B], *, is_weighted: bool) -> None:
        # Called for every message where a queue is empty in between, so it is the class itself.
        self._make = make
        self._buckets: dict[int, B] = {}
        # Priorities that may have messages, negated so that the highest comes first.
        self._priorities: list[int] = []
        self.is_weighted = is_weighted

    def append(self, message: Message) -> None:
        """Put in a message that has just been published: its sequence is the highest of all."""
        bucket = self._buckets.get(message.priority)
        (bucket or self._open(message.priority)).append(message)

    def extend(self, messages: Sequence[Message]) -> None:
        """As `append`, for messages of one priority."""
        priority = messages[0].priority
        (self._buckets.get(priority) or self._open(priority)).extend(messages)

    def put_back(self, message: Message) -> None:
        """Put in a message that comes back to its old place."""
        bucket = self._buckets.get(message.priority)
        (bucket or self._open(message.priority)).put_back(message)

    # Of a message that was taken and goes to nobody after all.
    untake = put_back

    def pop(self) -> Message | None:
        """Take the next message: by priority, and within it as its bucket says."""
        while self._priorities:
            priority = self._choose()
            bucket = self._buckets[priority]
            message = bucket.head()
            if message is not None:
                bucket.pop()
                bucket.passed += bucket.stride
                return message
            self._close(priority)
        return None

    def take(self, limit: int) -> list[Message]:
        """As `pop`, up to `limit` times; fewer only where there are no more."""
        taken: list[Message] = []
        while self._priorities and len(taken) < limit:
            priority = self._choose()
            bucket = self._buckets[priority]
            is_shared = self.is_weighted and len(self._priorities) > 1
            some = bucket.take(1 if is_shared else limit - len(taken))
            if some:
                bucket.passed += bucket.stride * len(some)
                taken += some
            elif not bucket.slots:
                self._close(priority)
        return taken

    def position(self, priority: int) -> int:
        """How many messages stand at this priority or above: the place of one that was just appended."""
        bucket = self._buckets.get(priority)
        if bucket is not None and len(self._buckets) == 1:
            return bucket.count
        return sum(bucket.count for other, bucket in self._buckets.items() if other >= priority)

    def _choose(self) -> int:
        if not self.is_weighted or len(self._priorities) == 1:
            return -self._priorities[0]
        return -min(self._priorities, key=lambda negated: (self._buckets[-negated].passed, negated))

    def _open(self, priority: int) -> B:
        bucket = self._buckets[priority] = self._make(priority)
        if self._priorities:
            # A level that was empty starts level with the others instead of making up for its absence.
            bucket.passed = min(other.passed for other in self._buckets.values() if other is not bucket)
        insort(self._priorities, -priority)
        return bucket

    def _close(self, priority: int) -> None:
        del self._buckets[priority]
        self._priorities.remove(-priority)


class ReadyLine(Line[Bucket]):
    """By age within a priority."""

    __slots__ = ()

    def __init__(self, *, is_weighted: bool) -> None:
        super().__init__(Bucket, is_weighted=is_weighted)

    def leave(self, message: Message) -> None:
        """Note that a message is no longer ready and leaves its slot behind."""
        self._buckets[message.priority].leave()

    def oldest(self) -> Message | None:
        """The ready message that has been in the queue longest, whatever its priority; left in place."""
        heads = [head for bucket in self._buckets.values() if (head := bucket.head()) is not None]
        return min(heads, key=lambda message: message.sequence, default=None)

    def first(self) -> Message | None:
        """The ready message of the highest priority that has been there longest; left in place."""
        for negated in self._priorities:
            head = self._buckets[-negated].head()
            if head is not None:
                return head
        return None

    def in_order(self) -> Iterator[Message]:
        """All ready messages by strict priority and age, nothing taken."""
        for negated in self._priorities:
            yield from self._buckets[-negated].in_order()
