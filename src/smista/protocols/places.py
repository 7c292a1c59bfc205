"""How many connections all listeners together may have open: each takes a file descriptor, and so do the log, its
readers and staged files, which must not be left without."""

from __future__ import annotations

from collections.abc import Callable

from smista.service.connection_room import ConnectionRoom

ANY_NUMBER = 1 << 62


class Places:
    def __init__(self, most: int = ANY_NUMBER, each_max: int = ANY_NUMBER) -> None:
        """`each_max` is what each listener keeps to by itself."""
        self.most = most
        self._each_max = each_max
        self._counts: list[Callable[[], int]] = []

    def count(self, open_count: Callable[[], int]) -> None:
        """Count those of one more listener."""
        self._counts.append(open_count)

    @property
    def open_count(self) -> int:
        return sum([count() for count in self._counts])

    @property
    def is_full(self) -> bool:
        return self.open_count >= self.most

    def room(self) -> ConnectionRoom:
        each_max, most = (None if number >= ANY_NUMBER else number for number in (self._each_max, self.most))
        return ConnectionRoom(self.open_count, each_max, most)

    @property
    def why_full(self) -> str:
        return (
            f"{self.most} connections are open, which is what the limit of open files leaves for them; close some, or "
            "raise that limit (ulimit -n)"
        )
