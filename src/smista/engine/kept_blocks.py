"""Which blocks the log keeps, how large each is and when it was written: three columns of numbers.

Columns, and not an object for each block, for the sake of all the memory around them. The interpreter gives memory back
in pieces of a mebibyte, and only those in which nothing is left. Blocks are written while messages come in, and stay
long after the messages are gone, for readers of the log: as objects they stood among the messages, some in every piece,
and a broker that had been emptied kept nearly all the memory it ever had.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import NamedTuple

DROPPED_MAX = 1024
"""So many may have been dropped before the columns are shortened, unless they are longer than what is left."""


class Kept(NamedTuple):
    """One block of the log."""

    position: int
    size_bytes: int
    at_ms: int


class KeptBlocks:
    """Appended at the end, dropped from the front."""

    def __init__(self) -> None:
        self._positions = array("q")
        self._sizes = array("q")
        self._instants = array("q")
        self._dropped = 0
        """How many at the front of the columns are gone already."""

    def __len__(self) -> int:
        return len(self._positions) - self._dropped

    def append(self, position: int, size_bytes: int, at_ms: int) -> None:
        self._positions.append(position)
        self._sizes.append(size_bytes)
        self._instants.append(at_ms)

    @property
    def first_position(self) -> int:
        return self._positions[self._dropped]

    @property
    def last_position(self) -> int:
        return self._positions[-1]

    def first(self) -> Kept:
        return self._at(self._dropped)

    def last(self) -> Kept:
        return self._at(len(self._positions) - 1)

    def last_below(self, end: int) -> Kept | None:
        """The last one whose position is below `end`."""
        found = bisect_left(self._positions, end, self._dropped)
        return self._at(found - 1) if found > self._dropped else None

    def first_from(self, position: int) -> Kept | None:
        """The first one at or after that position."""
        found = bisect_left(self._positions, position, self._dropped)
        return self._at(found) if found < len(self._positions) else None

    def first_since(self, at_ms: int) -> Kept | None:
        """The first one written at or after that time."""
        found = bisect_left(self._instants, at_ms, self._dropped)
        return self._at(found) if found < len(self._positions) else None

    def drop_first(self) -> Kept:
        first = self.first()
        self._dropped += 1
        if self._dropped > max(DROPPED_MAX, len(self)):
            for column in (self._positions, self._sizes, self._instants):
                del column[: self._dropped]
            self._dropped = 0
        return first

    def _at(self, index: int) -> Kept:
        return Kept(self._positions[index], self._sizes[index], self._instants[index])
