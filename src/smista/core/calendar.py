"""Deadlines of everything, in one structure, so that a hundred thousand idle queues and a million scheduled messages
cost nothing until their time comes.

Entries have a `sequence` (their identity here) and a `deadline_ms` (when, or None). Near deadlines lie in *ticks* of
16 ms, rounded up, so that nothing is ever early; far ones lie in *coarse* buckets of about a minute, which are spread
over ticks a while before they start. A heap orders the buckets, not the entries: adding or removing an entry is a
dictionary operation, and the heap grows with time spans, not with messages.

    add(message)  deadline within two coarse spans ──▶ ticks[deadline >> 4 (up)]
                  later                            ──▶ coarse[deadline >> 16] ──(lead time before its start)──▶ ticks

A bucket is popped whole and worked off in slices by the caller. Whatever is popped is checked
against its own `deadline_ms` then, so removing an entry is for memory's sake only, and removing what is no longer in a
bucket is harmless. An emptied bucket stays until its time comes: remaking it for every lease would grow the
heap with traffic.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Protocol

from smista.core.table import Table

TICK_SHIFT = 4
TICK_MS = 1 << TICK_SHIFT
COARSE_SHIFT = 16
NEAR_MS = 2 << COARSE_SHIFT
LEAD_MS = 1 << (COARSE_SHIFT - 2)


class Entry(Protocol):
    sequence: int
    deadline_ms: int | None


class Calendar:
    __slots__ = ("_coarse", "_coarse_heap", "_due", "_spreading", "_tick_heap", "_ticks")

    def __init__(self) -> None:
        self._ticks: dict[int, Table[Entry]] = {}
        self._tick_heap: list[int] = []
        self._coarse: dict[int, Table[Entry]] = {}
        self._coarse_heap: list[int] = []
        self._due: Iterator[Entry] | None = None
        self._spreading: Iterator[Entry] | None = None

    def add(self, entry: Entry, deadline_ms: int, now_ms: int) -> None:
        """Hold `entry` until `deadline_ms`; also sets it on the entry."""
        entry.deadline_ms = deadline_ms
        if deadline_ms - now_ms < NEAR_MS:
            self._put(self._ticks, self._tick_heap, (deadline_ms + TICK_MS - 1) >> TICK_SHIFT, entry)
        else:
            self._put(self._coarse, self._coarse_heap, deadline_ms >> COARSE_SHIFT, entry)

    def add_all(self, entries: Sequence[Entry], deadline_ms: int, now_ms: int) -> None:
        """As `add`, for many with one deadline and none that is held already."""
        self.add(entries[0], deadline_ms, now_ms)
        if deadline_ms - now_ms < NEAR_MS:
            bucket = self._ticks[(deadline_ms + TICK_MS - 1) >> TICK_SHIFT]
        else:
            bucket = self._coarse[deadline_ms >> COARSE_SHIFT]
        for entry in entries:
            entry.deadline_ms = deadline_ms
            bucket[entry.sequence] = entry

    def remove(self, entry: Entry) -> None:
        deadline_ms = entry.deadline_ms
        if deadline_ms is None:
            return
        entry.deadline_ms = None
        bucket = self._ticks.get((deadline_ms + TICK_MS - 1) >> TICK_SHIFT)
        if bucket is not None and bucket.pop(entry.sequence, None) is not None:
            return
        bucket = self._coarse.get(deadline_ms >> COARSE_SHIFT)
        if bucket is not None:
            bucket.pop(entry.sequence, None)

    def pop_due(self, now_ms: int, limit: int) -> list[Entry]:
        """Up to about `limit` entries whose deadline has come; fewer than `limit` steps of work when there are none.

        Call again at once while `is_behind`.
        """
        self._spread(now_ms, limit)
        due: list[Entry] = []
        while len(due) < limit:
            if self._due is None and not self._open_next_tick(now_ms):
                break
            assert self._due is not None
            for entry in self._due:
                deadline_ms = entry.deadline_ms
                if deadline_ms is None:
                    continue
                if deadline_ms > now_ms:
                    # Put off since, and then in its new bucket already; or the clock went back.
                    self.add(entry, deadline_ms, now_ms)
                    continue
                due.append(entry)
                if len(due) >= limit:
                    break
            else:
                self._due = None
        return due

    def shrink(self) -> None:
        """Give up what has become empty; it would stay until its time comes, else."""
        self._ticks = {key: bucket for key, bucket in self._ticks.items() if bucket}
        self._tick_heap = sorted(self._ticks)
        self._coarse = {key: bucket for key, bucket in self._coarse.items() if bucket}
        self._coarse_heap = sorted(self._coarse)

    def is_behind(self, now_ms: int) -> bool:
        """Whether there is work left that is due now."""
        next_ms = self.next_ms()
        return next_ms is not None and next_ms <= now_ms

    def next_ms(self) -> int | None:
        """When `pop_due` should be called next; None when nothing is held."""
        if self._due is not None or self._spreading is not None:
            return 0
        tick = (self._tick_heap[0] << TICK_SHIFT) if self._tick_heap else None
        coarse = ((self._coarse_heap[0] << COARSE_SHIFT) - LEAD_MS) if self._coarse_heap else None
        if tick is None or coarse is None:
            return tick if coarse is None else coarse
        return min(tick, coarse)

    def _put(self, buckets: dict[int, Table[Entry]], heap: list[int], key: int, entry: Entry) -> None:
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = Table()
            bucket[entry.sequence] = entry
            heapq.heappush(heap, key)
        else:
            bucket[entry.sequence] = entry

    def _open_next_tick(self, now_ms: int) -> bool:
        heap = self._tick_heap
        while heap and heap[0] << TICK_SHIFT <= now_ms:
            bucket = self._ticks.pop(heapq.heappop(heap))
            if bucket:
                self._due = bucket.drain()
                return True
        return False

    def _spread(self, now_ms: int, limit: int) -> None:
        heap = self._coarse_heap
        while limit > 0:
            if self._spreading is None:
                if not heap or (heap[0] << COARSE_SHIFT) - LEAD_MS > now_ms:
                    return
                self._spreading = self._coarse.pop(heapq.heappop(heap)).drain()
            for entry in self._spreading:
                limit -= 1
                if entry.deadline_ms is not None:
                    self.add(entry, entry.deadline_ms, now_ms)
                if limit <= 0:
                    break
            else:
                self._spreading = None
