"""When Python looks for garbage in cycles: seldom among what is old, since that keeps everybody waiting.

A full collection looks at every object that may be part of a cycle: some 60 ms for the modules that are loaded, and as
much again for every 10,000 queues. Python does one whenever the young ones that stayed are a quarter of all, so whoever
declares thousands of queues, or has long answers made, has everybody wait for several of them. Nearly all that a broker
frees is in no cycle and is freed without; what is young is looked through as before, which takes under a millisecond.

So what is there at the start is not looked at any more, and full collections are made here: after so long that the time
they take is a thousandth, or where there may be very much for them to find.
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


class Collecting:
    """While it is entered, full collections are made by `look`, which is called now and then."""

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._clock_s = clock_s
        self._thresholds = gc.get_threshold()
        self._next_s = 0.0

    def __enter__(self) -> Collecting:
        self._collect()
        gc.freeze()
        young, middle, _ = self._thresholds
        gc.set_threshold(young, middle, NEVER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def look(self) -> None:
        """Make a full collection if it is time for one and some have become old since the last."""
        pending = gc.get_count()[2]
        if pending >= MANY or (pending and self._clock_s() >= self._next_s):
            self._collect()

    def _collect(self) -> None:
        began_s = self._clock_s()
        gc.collect()
        ended_s = self._clock_s()
        self._next_s = ended_s + max(AGAIN_S, SHARE * (ended_s - began_s))
