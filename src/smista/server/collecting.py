"""When Python looks for garbage in cycles: seldom among what is old, since that keeps everybody waiting.

A full collection looks at every object that may be part of a cycle: some 60 ms for the modules that are loaded, and as
much again for every 10,000 queues. Python does one whenever the young ones that stayed are a quarter of all, so whoever
declares thousands of queues, or has long answers made, has everybody wait for several of them. Nearly all that a broker
frees is in no cycle and is freed without; what is young is looked through as before, which takes under a millisecond.

So what is there at the start is not looked at any more, and full collections are made here: after so long that the time
they take is a thousandth, or where there may be very much for them to find.

A full collection also lets go of the tuples, lists and dicts that Python keeps to use them again. They are some two
hundred; but memory goes back to the system in pieces of a mebibyte, so where a million messages were, each of them may
hold a piece. So when much was freed there is a collection too: soon, where there is little left to look at, and else
when it is time for one. A collection passes by every message, since the tables of queues lead there: 15 ms a million.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from types import TracebackType

NEVER = 1 << 30
AGAIN_S = 30.0
SHARE = 1_000
"""A collection that took a second is not repeated for as many seconds."""
MANY = 1_000
"""After so many collections among the young, each of some 7,000 objects, it is not waited for any longer."""

FREED_BYTES = 8 << 20
LITTLE_BYTES = 16 << 20
"""So much are 40,000 messages, or fewer. They take half a millisecond ..."""
FEW_OBJECTS = 12_500
"""... and so many objects as much again."""
COUNT_AGAIN_S = 1.0
"""A thousand times as much."""


class Collecting:
    """While it is entered, full collections are made by `collect_if_due`, which is called now and then."""

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._clock_s = clock_s
        self._thresholds = gc.get_threshold()
        self._next_s = 0.0
        self._count_s = 0.0
        """When it may be counted again how much there is to look at."""
        self._top_bytes = 0
        """The most that the broker held since the last collection."""

    def __enter__(self) -> Collecting:
        gc.collect()
        gc.freeze()
        self._collect()
        young, middle, _ = self._thresholds
        gc.set_threshold(young, middle, NEVER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def collect_if_due(self, held_bytes: int) -> None:
        """Make a full collection if it is time for one, and some have become old since the last or much was freed.
        `held_bytes` is what the broker holds."""
        self._top_bytes = max(self._top_bytes, held_bytes)
        pending, now_s = gc.get_count()[2], self._clock_s()
        has_freed = self._top_bytes - held_bytes >= FREED_BYTES
        is_time = (pending > 0 or has_freed) and now_s >= self._next_s
        is_empty = has_freed and held_bytes <= LITTLE_BYTES and self._has_few_objects(now_s)
        if is_time or pending >= MANY or is_empty:
            self._collect()
            self._top_bytes = held_bytes

    def _has_few_objects(self, now_s: float) -> bool:
        """Counting takes an eighth of the time that a collection takes, so where there is much it is seldom done."""
        if now_s < self._count_s:
            return False
        count = len(gc.get_objects(2))
        self._count_s = now_s + COUNT_AGAIN_S * max(1, count / FEW_OBJECTS)
        return count <= FEW_OBJECTS

    def _collect(self) -> None:
        began_s = self._clock_s()
        gc.collect()
        ended_s = self._clock_s()
        self._next_s = ended_s + max(AGAIN_S, SHARE * (ended_s - began_s))
