"""A limit on deliveries per second, as a bucket of tokens that fills with time."""

from __future__ import annotations


class RateLimit:
    """Allows `per_second` deliveries a second on average, and at most one second's worth at once."""

    __slots__ = ("_full", "_level", "_per_ms", "_updated_at_ms")

    def __init__(self, per_second: float, now_ms: int) -> None:
        self._per_ms = per_second / 1000
        self._full = max(1.0, per_second)
        self._level = self._full
        self._updated_at_ms = now_ms

    def available(self, now_ms: int) -> int:
        if now_ms > self._updated_at_ms:
            self._level = min(self._full, self._level + (now_ms - self._updated_at_ms) * self._per_ms)
            self._updated_at_ms = now_ms
        return int(self._level)

    def take(self, count: int) -> None:
        self._level -= count

    def next_at_ms(self) -> int:
        """When the next delivery will be allowed."""
        missing = max(0.0, 1.0 - self._level)
        return self._updated_at_ms + -int(-missing // self._per_ms)
