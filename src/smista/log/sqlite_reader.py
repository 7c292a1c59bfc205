"""Reading blocks from `log.db` on a connection of its own, so that readers and the writer never wait for each
other.

Every read is a short transaction. A long one would pin the write-ahead log: it could not start over, and
would grow for as long as a slow consumer of a scan takes.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import apsw

from smista.log import sqlite_file
from smista.log.checksum import block_crc
from smista.log.errors import LogClosed, LogDamaged, LogUnreadable

# What one transaction of a scan fetches; whichever is reached first ends it.
_CHUNK_BLOCKS = 256
_CHUNK_BYTES = 1 << 20
# The cast is for damaged rows: what is no blob any more must not reach apsw as text that cannot be decoded.
_BLOCKS = "SELECT position, crc, CAST(data AS BLOB) FROM blocks"
_READ = f"{_BLOCKS} WHERE position = ?"
_SCAN = f"{_BLOCKS} WHERE position >= ? AND position < ? ORDER BY position"
_NEWEST = "SELECT max(position) FROM blocks"
_POSITIONS = f"SELECT position FROM blocks WHERE position >= ? AND position < ? ORDER BY position LIMIT {_CHUNK_BLOCKS}"


class BlockReader:
    """Reads stored blocks and vouches for them. It knows nothing of what was dropped."""

    def __init__(self, path: Path, *, vfs: str | None) -> None:
        self._log = str(path.parent)
        self._connection = sqlite_file.connect(path, vfs=vfs, is_read_only=True)
        self._lock = threading.Lock()
        self._is_closed = False

    def read(self, position: int) -> bytes:
        """Raises `LogDamaged` also when the block is not there, `LogUnreadable` where another try may succeed."""
        rows, error = self._fetch(_READ, (position,))
        if error is not None:
            kind = LogUnreadable if _may_pass(error) else LogDamaged
            raise kind(self._log, position=position, what=f"it cannot be read ({error})") from error
        if not rows:
            raise LogDamaged(self._log, position=position, what="it is missing")
        if not _is_sound(position, rows[0]):
            raise LogDamaged(self._log, position=position, what="its CRC does not match")
        data: bytes = rows[0][2]
        return data

    def read_chunk(self, position: int, end: int) -> list[bytes]:
        """The first few blocks of [position, end), in order and without a gap. Stops before the first that is
        not sound: `read` says what is wrong with it."""
        rows, _ = self._fetch(_SCAN, (position, min(end, position + _CHUNK_BLOCKS)))
        sound: list[bytes] = []
        for row in rows:
            if not _is_sound(position + len(sound), row):
                break
            sound.append(row[2])
        return sound

    def ends(self) -> tuple[int, int]:
        """The first position that is kept and the next that will be written, as the file has them: for a process
        beside the broker's."""
        with self._lock:
            if self._is_closed:
                raise LogClosed(self._log)
            floor = sqlite_file.read_position(self._log, self._connection, "floor")
            newest = self._connection.execute(_NEWEST).get
        return floor, max(floor, (newest or 0) + 1)

    def read_heads(self, position: int, end: int, head_bytes: int) -> list[tuple[int, int, bytes]]:
        """Position, size and beginning of the first few blocks that are there of [position, end). What cannot be read
        is left out. Only the pages are read on which a block begins."""
        heads: list[tuple[int, int, bytes]] = []
        with self._lock:
            if self._is_closed:
                raise LogClosed(self._log)
            with contextlib.suppress(apsw.Error):
                for (found,) in list(self._connection.execute(_POSITIONS, (position, end))):
                    with (
                        contextlib.suppress(apsw.Error),
                        self._connection.blob_open("main", "blocks", "data", found, False) as blob,
                    ):
                        size_bytes = blob.length()
                        heads.append((found, size_bytes, blob.read(min(head_bytes, size_bytes))))
        return heads

    def _fetch(self, statement: str, bindings: tuple[int, ...]) -> tuple[list[tuple[Any, ...]], apsw.Error | None]:
        """The rows up to the end of a chunk or the first error, and that error."""
        rows: list[tuple[Any, ...]] = []
        size_bytes = 0
        with self._lock:
            if self._is_closed:
                raise LogClosed(self._log)
            cursor = self._connection.cursor()
            try:
                for row in cursor.execute(statement, bindings):
                    rows.append(row)
                    size_bytes += len(row[2] or b"")
                    if size_bytes >= _CHUNK_BYTES:
                        break
            except apsw.Error as error:
                return rows, error
            finally:
                cursor.close(True)
        return rows, None

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._connection.close(True)


def _may_pass(error: apsw.Error) -> bool:
    """Whether an error tells nothing of what is stored. A file that ends too soon does."""
    if isinstance(error, apsw.IOError):
        return getattr(error, "extendedresult", 0) != apsw.SQLITE_IOERR_SHORT_READ
    return isinstance(error, (apsw.BusyError, apsw.LockedError, apsw.NoMemError, apsw.CantOpenError))


def _is_sound(position: int, row: tuple[Any, ...]) -> bool:
    found, crc, data = row
    return found == position and isinstance(data, bytes) and crc == block_crc(position, data)
