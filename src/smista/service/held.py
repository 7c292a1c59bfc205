"""What has come in and is not the broker's yet: it takes memory, and counts in `memory_bytes_max`.

Counted are the bodies of requests from their first chunk until the request has ended, whatever its end; what is staged
until it is written; arrays of a stream until all in them were carried out. The server counts frames that are not whole.
"""

from __future__ import annotations


class HeldBytes:
    """Of everybody together."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Held:
    """What one request or stream holds. `release` ends it."""

    __slots__ = ("_all", "count")

    def __init__(self, together: HeldBytes) -> None:
        self._all = together
        self.count = 0

    def add(self, count: int) -> None:
        self.count += count
        self._all.count += count

    def release(self) -> None:
        self._all.count -= self.count
        self.count = 0
