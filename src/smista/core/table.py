"""A map from sequence to message that never stops to grow.

A `dict` with a million entries takes 70 ms to resize (measured), in one piece, and everybody waits. So a table is a row
of dicts of bounded size, ordered by sequence: which one holds a sequence is found by bisection. Most tables are small
and are one plain dict.

    starts   1        16400      32801  ...
    chunks  {1: ..}  {16400: ..} {32801: ..}

Sequences nearly always come in ascending order, so a full last chunk is simply followed by a new one; what comes in any
other order splits the chunk it overfills.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import ItemsView, Iterable, Iterator, MutableMapping
from itertools import chain
from typing import TypeVar, overload

CHUNK = 16_384
ROOM_BYTES = 1 << 16
"""A dict keeps the room of what was taken out of it. So much it may have beside what its entries need."""
ENTRY_BYTES = 128
"""What an entry needs, at most: dicts grow in steps."""

_MISSING = object()

V = TypeVar("V")
D = TypeVar("D")


class Table(MutableMapping[int, V]):
    __slots__ = ("_chunks", "_count", "_only", "_starts")

    def __init__(self, entries: dict[int, V] | None = None) -> None:
        self._only: dict[int, V] = {}
        """All there is, while there is only one chunk."""
        self._chunks: list[dict[int, V]] | None = None
        self._starts: list[int] | None = None
        self._count = 0
        """How many there are, while there are several chunks."""
        for sequence in sorted(entries) if entries else ():
            assert entries is not None
            self[sequence] = entries[sequence]

    def __len__(self) -> int:
        return len(self._only) if self._chunks is None else self._count

    def __contains__(self, sequence: object) -> bool:
        return isinstance(sequence, int) and self.get(sequence) is not None

    def __getitem__(self, sequence: int) -> V:
        return (self._only if self._chunks is None else self._chunks[self._index(sequence)])[sequence]

    @overload
    def get(self, sequence: int, /) -> V | None: ...
    @overload
    def get(self, sequence: int, /, default: V | D) -> V | D: ...
    def get(self, sequence: int, /, default: V | D | None = None) -> V | D | None:
        chunks = self._chunks
        if chunks is None:
            return self._only.get(sequence, default)
        return chunks[self._index(sequence)].get(sequence, default)

    def __setitem__(self, sequence: int, value: V) -> None:
        if self._chunks is None or self._starts is None:
            only = self._only
            only[sequence] = value
            if len(only) > CHUNK:
                self._chunks, self._starts, self._count = [only], [min(only)], len(only)
            return
        index = self._index(sequence)
        chunk = self._chunks[index]
        before = len(chunk)
        if before >= CHUNK and sequence not in chunk:
            chunk = self._make_room(index, sequence)
            before = len(chunk)
        elif sequence < self._starts[0]:
            self._starts[0] = sequence
        chunk[sequence] = value
        self._count += len(chunk) - before

    def add_all(self, entries: dict[int, V]) -> None:
        """As setting one after the other. Measured at a third of the cost while there is one chunk."""
        if self._chunks is None and len(self._only) + len(entries) <= CHUNK:
            self._only.update(entries)
        else:
            for sequence, value in entries.items():
                self[sequence] = value

    def remove_all(self, sequences: Iterable[int]) -> None:
        """As deleting one after the other."""
        if self._chunks is None:
            only = self._only
            for sequence in sequences:
                del only[sequence]
        else:
            for sequence in sequences:
                del self[sequence]

    def __delitem__(self, sequence: int) -> None:
        if self._chunks is None:
            del self._only[sequence]
            return
        index = self._index(sequence)
        del self._chunks[index][sequence]
        self._count -= 1
        if not self._chunks[index]:
            self._drop(index)

    @overload
    def pop(self, sequence: int, /) -> V: ...
    @overload
    def pop(self, sequence: int, /, default: V | D) -> V | D: ...
    def pop(self, sequence: int, /, default: object = _MISSING) -> object:
        if self._chunks is None:
            return self._only.pop(sequence) if default is _MISSING else self._only.pop(sequence, default)
        chunk = self._chunks[self._index(sequence)]
        if sequence not in chunk:
            if default is _MISSING:
                raise KeyError(sequence)
            return default
        value = chunk[sequence]
        del self[sequence]
        return value

    def popitem(self) -> tuple[int, V]:
        if self._chunks is None:
            return self._only.popitem()
        item = self._chunks[-1].popitem()
        self._count -= 1
        if not self._chunks[-1]:
            self._drop(len(self._chunks) - 1)
        return item

    def above(self, sequence: int, limit: int) -> list[int]:
        """The lowest sequences above this one, in order: `limit` of them or more, all of them where there are fewer."""
        if self._chunks is None:
            return sorted(one for one in self._only if one > sequence)
        found: list[int] = []
        for chunk in self._chunks[self._index(sequence) :]:
            found += sorted(one for one in chunk if one > sequence)
            if len(found) >= limit:
                break
        return found

    def drain(self) -> Iterator[V]:
        """All values, in order; the memory of a chunk is free when its last one was taken. Nothing else may follow."""
        chunks = deque(self._chunks or [self._only])
        self._only, self._chunks, self._starts = {}, None, None
        while chunks:
            yield from chunks.popleft().values()

    def shrink(self) -> None:
        """Give up the room of what is gone."""
        if self._chunks is None:
            self._only = _shrunk(self._only)
        else:
            self._chunks = [_shrunk(chunk) for chunk in self._chunks]

    def __iter__(self) -> Iterator[int]:
        return iter(self._only) if self._chunks is None else chain.from_iterable(self._chunks)

    def values(self) -> Iterator[V]:  # type: ignore[override]  # an iterator will do, and costs nothing
        if self._chunks is None:
            return iter(self._only.values())
        return chain.from_iterable(chunk.values() for chunk in self._chunks)

    def items(self) -> ItemsView[int, V]:
        return ItemsView(self)

    def _index(self, sequence: int) -> int:
        """Which chunk holds the sequence, or would."""
        assert self._starts is not None
        return max(0, bisect_right(self._starts, sequence) - 1)

    def _make_room(self, index: int, sequence: int) -> dict[int, V]:
        """Where one more sequence goes when its chunk is full: a new chunk behind or before, or half of it."""
        assert self._chunks is not None
        assert self._starts is not None
        chunk = self._chunks[index]
        # The last one put in is nearly always the highest, and if it is not, `max` says so.
        if next(reversed(chunk)) < sequence and max(chunk) < sequence:
            at = index + 1
        elif sequence < self._starts[index]:
            at = index
        else:
            in_order = sorted(chunk)
            middle = in_order[len(in_order) // 2]
            halves = (
                {key: chunk[key] for key in in_order if key < middle},
                {key: chunk[key] for key in in_order if key >= middle},
            )
            self._chunks[index : index + 1] = halves
            self._starts.insert(index + 1, middle)
            return halves[sequence >= middle]
        self._chunks.insert(at, {})
        self._starts.insert(at, sequence)
        return self._chunks[at]

    def _drop(self, index: int) -> None:
        assert self._chunks is not None
        assert self._starts is not None
        del self._chunks[index], self._starts[index]
        if len(self._chunks) <= 1:
            self._only = self._chunks[0] if self._chunks else {}
            self._chunks = self._starts = None


def _shrunk(entries: dict[int, V]) -> dict[int, V]:
    return dict(entries) if sys.getsizeof(entries) > ROOM_BYTES + ENTRY_BYTES * len(entries) else entries
