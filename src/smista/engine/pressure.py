"""When to refuse publishes: disk or memory running low. Consuming goes on, and frees both.

Two watermarks on the disk: publishes are refused below the higher one, and the log itself keeps a reserve file below
that, so that acknowledgements can still be written on a disk that others have filled.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from smista.errors import LowDisk, LowMemory, ResourceLow

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_set_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


class Pressure:
    def __init__(
        self,
        *,
        disk_free_bytes_min: int,
        memory_bytes_max: int | None,
        memory_bytes: Callable[[], int] = resident_set_bytes,
    ) -> None:
        self._disk_free_bytes_min = disk_free_bytes_min
        self._memory_bytes_max = memory_bytes_max
        self._memory_bytes = memory_bytes
        self.refusal: ResourceLow | None = None
        """Why publishes are refused just now; None while they are not."""

    def look(self, *, free_bytes: int | None, is_full: bool, is_reserve_spent: bool) -> None:
        self.refusal = self._judge(free_bytes, is_full=is_full, is_reserve_spent=is_reserve_spent)

    def _judge(self, free_bytes: int | None, *, is_full: bool, is_reserve_spent: bool) -> ResourceLow | None:
        if is_full or is_reserve_spent:
            return LowDisk("The disk is full; nothing was stored. Free some space, or consume what is queued.")
        if free_bytes is not None and free_bytes < self._disk_free_bytes_min:
            return LowDisk(
                f"Only {free_bytes} bytes are free on the disk, below the limit of {self._disk_free_bytes_min}; "
                "nothing was stored. Free some space, or consume what is queued."
            )
        if self._memory_bytes_max is not None:
            used = self._memory_bytes()
            if used > self._memory_bytes_max:
                return LowMemory(
                    f"The broker uses {used} bytes of memory, above the limit of {self._memory_bytes_max}; nothing "
                    "was stored. Consume what is queued, or raise the limit."
                )
        return None
