"""How long to wait before the next attempt: exponential, with full jitter.

Full jitter (anything between nothing and the bound) spreads the clients of a broker that comes back over the whole
time, where a fixed back-off would have them all knock at once.
"""

from __future__ import annotations

import random

BASE_MS = 100
CAP_MS = 10_000


class Backoff:
    def __init__(self, base_ms: int = BASE_MS, cap_ms: int = CAP_MS) -> None:
        self.failure_count = 0
        self._base_ms = base_ms
        self._cap_ms = cap_ms

    def next_s(self) -> float:
        """Count a failure; how many seconds to wait now."""
        bound_ms = min(self._cap_ms, self._base_ms << min(self.failure_count, 20))
        self.failure_count += 1
        return random.uniform(0, bound_ms) / 1000

    def reset(self) -> None:
        self.failure_count = 0
