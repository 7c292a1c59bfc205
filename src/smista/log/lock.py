"""One broker at a time in a directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from smista.log.errors import LogLocked


class DirectoryLock:
    """A `flock` on the file `lock`, held until released or until the process is gone, however it went.

    Such a lock belongs to the open file, so it also keeps two logs of one process apart. The file stays when
    it is released: removing it would let a third broker lock a new file while a second holds the old one.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _pid_in(self._descriptor)
            os.close(self._descriptor)
            raise LogLocked(str(path.parent), pid=pid) from None
        except BaseException:
            os.close(self._descriptor)
            raise

    def sign(self) -> None:
        """Write who holds it, for the message to whoever comes second."""
        # Always as long as before, so that it fits on a full disk too; a new file there goes unsigned.
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, f"{os.getpid():<19}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)


def _pid_in(descriptor: int) -> int | None:
    text = os.pread(descriptor, 20, 0).strip()
    return int(text) if text.isdigit() else None
