"""A disk that fails on demand: a VFS for SQLite whose writes and syncs go wrong when told to.

with failing_disk() as disk:
    log = SqliteLog.open(directory, vfs=disk.vfs)
    disk.fail_sync(3)              # the third from now, once
    disk.capacity_bytes = 1 << 20  # files that would grow beyond this together get "disk full"
    disk.sync_delay_s = 0.3        # every sync takes that much longer
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

_numbers = itertools.count(1)


class FailingDisk(apsw.VFS):
    """Passes everything on to the real disk but for what it was told to fail."""

    def __init__(self) -> None:
        self.vfs = f"failing-{next(_numbers)}"
        self.write_count = 0
        self.sync_count = 0
        self.capacity_bytes: int | None = None
        self.sync_delay_s = 0.0
        self._failing_writes: dict[int, int] = {}
        self._failing_syncs: dict[int, int] = {}
        self.is_read_failing = False
        super().__init__(self.vfs, "")

    def fail_write(self, number: int = 1, *, code: int = apsw.SQLITE_IOERR_WRITE) -> None:
        """Let the `number`-th write from now fail, once. `SQLITE_FULL` is what a full disk gives."""
        self._failing_writes[self.write_count + number] = code

    def fail_sync(self, number: int = 1, *, code: int = apsw.SQLITE_IOERR_FSYNC) -> None:
        """Let the `number`-th sync from now fail, once: what was written stays written."""
        self._failing_syncs[self.sync_count + number] = code

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (SQLite's)
        return _FailingFile(self, name, flags)

    def check_write(self, path: str, end: int) -> None:
        self.write_count += 1
        if code := self._failing_writes.pop(self.write_count, None):
            raise apsw.exception_for(code)
        if self.capacity_bytes is not None and end > os.path.getsize(path):
            # All files of the directory count, so giving up the reserve makes room as on a real disk.
            used = sum(entry.stat().st_size for entry in Path(path).parent.iterdir())
            if used - os.path.getsize(path) + end > self.capacity_bytes:
                raise apsw.exception_for(apsw.SQLITE_FULL)

    def check_sync(self) -> None:
        self.sync_count += 1
        if self.sync_delay_s:
            time.sleep(self.sync_delay_s)
        if code := self._failing_syncs.pop(self.sync_count, None):
            raise apsw.exception_for(code)


class _FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        assert path is not None, "SQLite wants a temporary file"
        self._disk = disk
        self._path = path
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self._disk.is_read_failing:
            raise apsw.exception_for(apsw.SQLITE_IOERR_READ)
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.check_write(self._path, offset + len(data))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.check_sync()
        super().xSync(flags)


@contextmanager
def failing_disk() -> Iterator[FailingDisk]:
    """A disk that works until it is told otherwise."""
    disk = FailingDisk()
    try:
        yield disk
    finally:
        disk.unregister()
