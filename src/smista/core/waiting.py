"""Who gets the next message: of those that wait with credit, the highest priority, and among equals the longest wait.

Being served sends one to the back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Waits(Protocol):
    @property
    def priority(self) -> int: ...


W = TypeVar("W", bound=Waits)


class WaitingLine(Generic[W]):
    __slots__ = ("_rows",)

    def __init__(self) -> None:
        # A dict is an ordered set here; priorities are few, and nearly always only one.
        self._rows: dict[int, dict[W, None]] = {}

    def join(self, waiting: W) -> None:
        """Stand at the back; one that stands in line already keeps its place."""
        self._rows.setdefault(waiting.priority, {}).setdefault(waiting, None)

    def leave(self, waiting: W) -> None:
        row = self._rows.get(waiting.priority)
        if row is not None:
            row.pop(waiting, None)
            if not row:
                del self._rows[waiting.priority]

    def first(self) -> W | None:
        if not self._rows:
            return None
        return next(iter(self._rows[max(self._rows)]))

    def foremost(self) -> list[W]:
        """All of the highest priority that waits, longest wait first."""
        return list(self._rows[max(self._rows)]) if self._rows else []

    def to_the_back(self, waiting: W) -> None:
        self.leave(waiting)
        self.join(waiting)

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __iter__(self) -> Iterator[W]:
        return (waiting for row in self._rows.values() for waiting in row)
