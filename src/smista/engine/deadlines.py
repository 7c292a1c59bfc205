"""Deadlines: the one timer of a broker, which goes off when the first of its calendar is due.

A million things that are due at the same time are done in slices, the rest of the loop in between.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from smista.core.due import run_due
from smista.core.state import BrokerState
from smista.engine.clock import Clock
from smista.engine.poll import Poll
from smista.engine.slices import BREATH_S, SLICE, SLICE_S

STALL_MS = 1_000
STALL_BREATH_S = 0.05
NEVER_MS = 1 << 62


class Deadlines:
    def __init__(
        self, state: BrokerState, clock: Clock, *, has_stopped: Callable[[], bool], after: Callable[[], None]
    ) -> None:
        """`after` is called when something that was due has been done; it plans the next one."""
        self._state = state
        self._clock = clock
        self._has_stopped = has_stopped
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.planned_ms = NEVER_MS
        """When the timer goes off. Whatever is due earlier needs another `plan`."""

    def plan(self, next_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.planned_ms = next_ms
        wait_ms = max(0, next_ms - self._clock.now_ms())
        self._timer = self._loop.call_later(wait_ms / 1000, self._due)

    def look_again(self) -> None:
        """The clock was set to another time: the timer goes by it."""
        if self._timer is not None:
            self.plan(self.planned_ms)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        planned_ms, self.planned_ms = self.planned_ms, NEVER_MS
        if self._has_stopped():
            return
        now_ms = self._clock.now_ms()
        if 0 < planned_ms < now_ms - STALL_MS:
            # We were held up ourselves: what consumers sent meanwhile is read before their leases are judged.
            self._go_on_in(STALL_BREATH_S)
            return
        try:
            self._do_due(now_ms)
        finally:
            # Also where something failed: what is left has no other timer.
            self._after()

    def _do_due(self, now_ms: int) -> None:
        end_s = time.perf_counter() + SLICE_S
        while self._state.calendar.is_behind(now_ms):
            for entry in run_due(self._state, now_ms=now_ms, limit=SLICE, chance=random.random()):
                assert isinstance(entry, Poll)
                if not entry.answer.done():
                    entry.answer.set_result([])
            if time.perf_counter() > end_s:
                self._go_on_in(BREATH_S)
                break

    def _go_on_in(self, seconds: float) -> None:
        self.planned_ms = 0
        self._timer = self._loop.call_later(seconds, self._due)
