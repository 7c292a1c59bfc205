"""The file `log.db-shm`: SQLite's index of the write-ahead log, mapped into memory.

SQLite makes it by writing one byte in every 4 KiB. On a disk whose blocks are smaller than that the rest are holes,
which the system fills when they are first touched. If the disk is full then, it has no way to say so but to end the
process (SIGBUS). So on such disks the file is made here, with real space behind all of it.

SQLite makes the file anew if nobody has it open, which it knows by a lock on one byte of it (the "dead man switch" of
its WAL-index format). While that lock is held here, as another process would hold it, it takes the file as it is; being
all zeros, it is filled from the write-ahead log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

_SHM_BYTES = 32 << 10
"""What SQLite maps at once; the writer sees to it that it never needs more."""
_PAGE_BYTES = 4096
_DEAD_MAN_SWITCH = 128
_FLOCK = struct.Struct("hhqqi4x")


class SharedIndex:
    """To be made before SQLite opens the file, settled when it has, and closed after SQLite has closed it: closing any
    descriptor of a file gives up the locks that the process holds on it."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        if not hasattr(fcntl, "F_OFD_SETLK") or os.statvfs(path.parent).f_bsize >= _PAGE_BYTES:
            return
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        assert self._descriptor is not None
        try:
            self._lock(fcntl.F_WRLCK)
        except BlockingIOError:
            # A process that reads the log outlives the broker that started it, and has the file open: it is whole.
            return
        os.ftruncate(self._descriptor, 0)
        os.posix_fallocate(self._descriptor, 0, _SHM_BYTES)
        self._lock(fcntl.F_RDLCK)

    def settle(self) -> None:
        """SQLite has the file open, and its own lock."""
        if self._descriptor is not None:
            self._lock(fcntl.F_UNLCK)

    def close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _lock(self, kind: int) -> None:
        # A lock of the open file, not of the process: SQLite's own locks are the process's, and would not see it else.
        assert self._descriptor is not None
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, _DEAD_MAN_SWITCH, 1, 0))
