"""How much may be staged: on disk, by everybody together.

What somebody stages and never commits lies there until it expires. So it has a limit of its own, and never takes the
disk from the log: it stops where publishes would be refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from smista.errors import LowDisk

Batch = tuple[str, str]
"""Job and batch."""


class StagedRoom:
    def __init__(self, *, bytes_max: int, disk_free_bytes_min: int) -> None:
        self._bytes_max = bytes_max
        self._disk_free_bytes_min = disk_free_bytes_min
        self._bytes: dict[Batch, int] = {}
        self._total_bytes = 0

    def take(self, batch: Batch, count: int) -> None:
        """So many more bytes of a batch are about to be written; raises `LowDisk` where that is too much."""
        if self._total_bytes + count > self._bytes_max:
            raise LowDisk(
                f"What is staged would take more than staged_total_bytes_max, {self._bytes_max} bytes; nothing was "
                "staged. Commit or discard what is there, or raise the limit."
            )
        self._count(batch, count)

    def give_back(self, batch: Batch, count: int) -> None:
        """So many bytes were not staged after all."""
        self._count(batch, -count)

    def discarded(self, batch: Batch) -> None:
        self._total_bytes -= self._bytes.pop(batch, 0)

    def found(self, batches: Iterable[tuple[Batch, int]]) -> None:
        """These are on disk, from before the broker was started."""
        for batch, size in batches:
            if batch not in self._bytes:
                self._count(batch, size)

    def check_disk(self, folder: Path) -> None:
        """Blocks. Raises `LowDisk` where less is free than publishing wants."""
        space = os.statvfs(folder)
        free_bytes = space.f_bavail * space.f_frsize
        if free_bytes < self._disk_free_bytes_min:
            raise LowDisk(
                f"Only {free_bytes} bytes are free on the disk, below the limit of {self._disk_free_bytes_min}; "
                "nothing was staged. Free some space, or commit or discard what is there."
            )

    def _count(self, batch: Batch, count: int) -> None:
        left = self._bytes.get(batch, 0) + count
        self._total_bytes += count
        if left:
            self._bytes[batch] = left
        else:
            self._bytes.pop(batch, None)
