"""Log lines for what may happen a thousand times a second: at most one of each kind every ten seconds.

    it happens     ·   ····· · ··  ·                        ·
    lines         │1              │9                        │1
                  └── EVERY_S ────┘ (nothing more: forgotten, so the next is written at once)

The first of a kind is written as soon as a burst has had a moment to be counted; from then on what comes is counted,
and written together. Nobody can fill the disk with lines by doing something wrong very often, and all of it is counted.

Kinds and details may be chosen by a client (names of queues, addresses), so only so many are kept apart.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

FIRST_S = 0.1
EVERY_S = 10.0
KINDS_MAX = 20
DETAILS_MAX = 8
OTHERS = "others"

K = TypeVar("K", bound=Hashable)


class Repeats(Generic[K]):
    """Lives on one loop."""

    def __init__(self, write: Callable[[K | None, Counter[str]], None]) -> None:
        """`write` writes a line: of which kind, and how often each detail was noted since the last one. The kind is
        None for all that came while too many others were kept apart."""
        self._write = write
        self._counts: dict[K | None, Counter[str]] = {}
        self._timers: dict[K | None, asyncio.TimerHandle] = {}

    def note(self, kind: K, detail: str = "") -> None:
        """It has happened once more."""
        counts = self._counts.get(kind)
        if counts is None:
            try:
                counts = self._begin(kind)
            except RuntimeError:
                # No loop is running, so nothing is being served either.
                self._write(kind, Counter({detail: 1}))
                return
        if detail not in counts and len(counts) >= DETAILS_MAX:
            detail = OTHERS
        counts[detail] += 1

    def flush(self) -> None:
        """Write at once what has been counted: the end has come."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        counts, self._counts = self._counts, {}
        for kind, found in counts.items():
            if found:
                self._write(kind, found)

    def _begin(self, kind: K | None) -> Counter[str]:
        if len(self._counts) >= KINDS_MAX:
            kind = None
        if kind not in self._counts:
            self._plan(kind, FIRST_S)
            self._counts[kind] = Counter()
        return self._counts[kind]

    def _plan(self, kind: K | None, wait_s: float) -> None:
        self._timers[kind] = asyncio.get_running_loop().call_later(wait_s, self._due, kind)

    def _due(self, kind: K | None) -> None:
        counts = self._counts[kind]
        if counts:
            self._counts[kind] = Counter()
            self._plan(kind, EVERY_S)
            self._write(kind, counts)
        else:
            del self._counts[kind], self._timers[kind]
