"""The file `reserve`: space set aside, to be given up when the disk is full.

A full disk refuses the small writes too that would empty it: acknowledgements, and the drops that make room.
Giving up the reserve lets those through while new messages are refused. It goes in two halves, the first for
whatever is written next, the second for drops only: a log that is full to the brim can still be emptied.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from smista.log import files

_OPENING_BYTES = 1 << 20


class Reserve:
    """`size_bytes` on the disk while there is space for it. A size of 0 means no reserve."""

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self.is_spent = False
        self.is_spent = not self.restore()

    @property
    def missing_bytes(self) -> int:
        """How much space it takes to set all of it aside again."""
        return max(0, self._size_bytes - self._kept_bytes())

    def _kept_bytes(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def restore(self) -> bool:
        """Set the space aside; False when there is not enough."""
        if self._size_bytes == 0:
            files.remove(self._path)
            return True
        kept_bytes = self._kept_bytes()
        try:
            _allocate(self._path, self._size_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _shrink(self._path, kept_bytes)
            return False
        self.is_spent = False
        return True

    def release(self, *, is_for_drop: bool) -> bool:
        """Give up one half, the second only for a drop; False when there was nothing left to give."""
        if self._size_bytes == 0 or not self._path.exists():
            return False
        if self.is_spent and not is_for_drop:
            return False
        _shrink(self._path, 0 if self.is_spent else self._size_bytes // 2)
        self.is_spent = True
        return True


def release_part(path: Path) -> bool:
    """Give up just enough to open a log with; False when there is nothing left."""
    if not path.exists():
        return False
    _shrink(path, max(0, path.stat().st_size - _OPENING_BYTES))
    return True


def _shrink(path: Path, size_bytes: int) -> None:
    if size_bytes == 0:
        files.remove(path)
    else:
        os.truncate(path, size_bytes)
    # ext4 hands freed blocks out again only after its journal has committed, which this forces.
    files.sync_directory(path.parent)


def _allocate(path: Path, size_bytes: int) -> None:
    """Make the file that long with real space behind it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(descriptor, size_bytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size_bytes)
        else:  # macOS
            for offset in range(0, size_bytes, 1 << 20):
                os.pwrite(descriptor, bytes(min(1 << 20, size_bytes - offset)), offset)
    finally:
        os.close(descriptor)
