"""How many connections all listeners together may have open: each takes a file descriptor, and so do the log, its
readers and staged files, which must not be left without."""

from __future__ import annotations

from collections.abc import Callable

ANY_NUMBER = 1 << 62


class Places:
    def __init__(self, most: int = ANY_NUMBER) -> None:
        self.most = most
        self._counts: list[Callable[[], int]] = []

    def count(self, open_count: Callable[[], int]) -> None:
        """Count those of one more listener."""
        self._counts.append(open_count)

    @property
    def is_full(self) -> bool:
        return sum([count() for count in self._counts]) >= self.most

    @property
    def why_full(self) -> str:
        return (
            f"{self.most} connections are open, which is what the limit of open files leaves for them; close some, or "
            "raise that limit (ulimit -n)"
        )
