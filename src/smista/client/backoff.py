"""How long to wait before the next attempt: exponential, with full jitter.

With full jitter (a random time between zero and the bound) the clients of a broker that comes back are spread over the
whole interval; with a fixed back-off they would all connect at once.
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
