"""The broker's clock: wall time once, at the start, and from then on only as much later as has really passed.

Setting the machine's clock therefore neither expires nor delays anything. The same holds over a restart: the log notes
the boot the machine was in and how the broker's time stood to the time since boot, so a broker that comes back in the
same boot goes on from there, whatever the wall clock was set to meanwhile. After a reboot there is only the wall clock;
time then still never goes back behind what the log has seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from smista.records.opened import Anchor

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _since_boot_ms() -> int:
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Clock:
    """Milliseconds since 1970 that only ever go forward."""

    def __init__(
        self,
        *,
        wall_ms: Callable[[], int] = _wall_ms,
        since_boot_ms: Callable[[], int] = _since_boot_ms,
        boot_id: Callable[[], str] = _boot_id,
    ) -> None:
        self._since_boot_ms = since_boot_ms
        self._boot_id = boot_id()
        self._offset_ms = wall_ms() - since_boot_ms()
        self._now_ms = 0

    def now_ms(self) -> int:
        now_ms = self._since_boot_ms() + self._offset_ms
        # One int object per millisecond, shared by all the messages that note the time: 32 bytes saved on each.
        if now_ms != self._now_ms:
            self._now_ms = now_ms
        return self._now_ms

    def resume(self, anchor: Anchor | None, last_ms: int) -> None:
        """Go on from what the log remembers."""
        if anchor is not None and anchor.boot_id and anchor.boot_id == self._boot_id:
            self._offset_ms = anchor.offset_ms
        self._offset_ms = max(self._offset_ms, last_ms - self._since_boot_ms())

    def anchor(self) -> Anchor:
        return Anchor(self._boot_id, self._offset_ms)
