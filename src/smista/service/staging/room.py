"""How much may be staged: on disk, by everybody together.

What somebody stages and never commits lies there until it expires. So it has a limit of its own, and never takes the
disk from the log: it stops where publishes would be refused.

    being written ── take, give_back ──▶ by nobody's name     staged ──▶ by batch and file     removed ──▶ by no more

Files are written, named and removed in threads, and are counted there: in the same step in which they change.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from smista.errors import LowDisk

Batch = tuple[str, str]
"""Job and batch."""


class StagedRoom:
    """Any thread may call it."""

    def __init__(self, *, bytes_max: int, disk_free_bytes_min: int) -> None:
        self._bytes_max = bytes_max
        self._disk_free_bytes_min = disk_free_bytes_min
        self._files: dict[Batch, dict[str, int]] = {}
        """The sizes of what has its name, by that."""
        self._total_bytes = 0
        """Of those, and of what is being written."""
        self._lock = threading.Lock()

    @property
    def total_bytes(self) -> int:
        return self._total_bytes

    def take(self, count: int) -> None:
        """So many more bytes are about to be written; raises `LowDisk` where that is too much."""
        with self._lock:
            if self._total_bytes + count > self._bytes_max:
                raise LowDisk(
                    f"What is staged would take more than staged_total_bytes_max, {self._bytes_max} bytes; nothing was "
                    "staged. Commit or discard what is there, or raise the limit."
                )
            self._total_bytes += count

    def give_back(self, count: int) -> None:
        """So many bytes that were taken are not staged after all."""
        with self._lock:
            self._total_bytes -= count

    def staged(self, batch: Batch, name: str, size: int) -> None:
        """What was taken for a file has its name from now on. If there was one of that name, it is gone."""
        with self._lock:
            files = self._files.setdefault(batch, {})
            self._total_bytes -= files.get(name, 0)
            files[name] = size

    def are_there(self, batch: Batch, files: Mapping[str, int]) -> None:
        """These are the files of a batch that have a name, and their sizes; there are no others."""
        with self._lock:
            self._total_bytes += sum(files.values()) - sum(self._files.pop(batch, {}).values())
            if files:
                self._files[batch] = dict(files)

    def check_disk(self, folder: Path) -> None:
        """Blocks. Raises `LowDisk` where less is free than publishing wants."""
        space = os.statvfs(folder)
        free_bytes = space.f_bavail * space.f_frsize
        if free_bytes < self._disk_free_bytes_min:
            raise LowDisk(
                f"Only {free_bytes} bytes are free on the disk, below the limit of {self._disk_free_bytes_min}; "
                "nothing was staged. Free some space, or commit or discard what is there."
            )
