"""The file `log.db`: how it is made, recognised and opened. What is in it:

    blocks(position, crc, data)   the blocks
    meta(name, value, crc)        `identity`; `floor`, the first position that is kept; `fold`, where a fold begins;
                                  `left_out`, how often blocks were left out of it, and the positions of those

The header marks it as ours (`application_id`) and says which format it has (`user_version`).

It is built under another name and renamed when it is whole, so a broker that is killed, or loses power, while
it makes a log leaves either none or an empty one. A `log.db` that is there but not whole is therefore
damaged, never new.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import apsw

from smista.log import files
from smista.log.errors import LogDamaged, LogError, LogForeign, LogNewer

APPLICATION_ID = int.from_bytes(b"Smst", "big")
FORMAT = 1
PAGE_BYTES = 8192
# FULL syncs the write-ahead log at every commit. Tests sabotage this to see that the power-cut tests notice.
SYNCHRONOUS = "FULL"

_BUSY_TIMEOUT_MS = 10_000
_CACHE_KIB = 8_192
_FIRST_POSITION = 1
_NUMBER = struct.Struct("<Q")
_BLOCKS = "CREATE TABLE blocks(position INTEGER PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL)"
_META = "CREATE TABLE meta(name TEXT PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID"
# Page 1 is the header, page 2 the first pointer map of auto_vacuum.
_SCHEMA = [("blocks", 3, _BLOCKS), ("meta", 4, _META)]


def refuse_unsafe_sqlite(version: str) -> None:
    """Refuse the SQLite versions in which a checkpoint racing with a writer could lose a committed
    transaction."""
    major, minor, patch = (int(part) for part in version.split("."))
    number = (major, minor, patch)
    is_fixed = number >= (3, 51, 3) or (minor == 50 and patch >= 7) or (minor == 44 and patch >= 6)
    if number >= (3, 7, 0) and not is_fixed:
        raise LogError(
            f"SQLite {version} can lose a committed transaction when its write-ahead log wraps around; "
            "install the apsw wheel, which brings SQLite 3.51.3 or later"
        )


def create(path: Path, *, vfs: str | None) -> None:
    """Make an empty log at `path`, whole or not at all."""
    new = path.with_name(path.name + ".new")
    for leftover in (new, Path(f"{new}-journal"), Path(f"{new}-wal"), Path(f"{new}-shm")):
        files.remove(leftover)
    connection = apsw.Connection(str(new), vfs=vfs)
    try:
        connection.pragma("page_size", PAGE_BYTES)
        # Costs one more page per commit, which was not measurable, and makes dropping large blocks several
        # times cheaper: their pages are found in the pointer map and need not be read.
        connection.pragma("auto_vacuum", "INCREMENTAL")
        connection.pragma("journal_mode", "MEMORY")
        connection.pragma("synchronous", "FULL")
        connection.execute("BEGIN")
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", FORMAT)
        connection.execute(_BLOCKS)
        connection.execute(_META)
        write_meta(connection, "identity", os.urandom(32))
        write_position(connection, "floor", _FIRST_POSITION)
        write_position(connection, "fold", _FIRST_POSITION)
        write_left_out(connection, 0, frozenset())
        connection.execute("COMMIT")
        connection.pragma("journal_mode", "WAL")
    finally:
        connection.close()
    files.rename(new, path)
    files.sync_directory(path.parent)


def check_header(path: Path) -> None:
    """Look at the header without SQLite, which would believe parts of it that must not change unnoticed: a
    file no longer marked as having a write-ahead log would be opened without it.

    Must not be called while this process has the file open: closing any descriptor of a file gives up the
    locks that SQLite holds on it.
    """
    log = str(path.parent)
    with path.open("rb") as file:
        header = file.read(100)
    if not header:
        raise LogDamaged(log, position=None, what=f"{path.name} is empty")
    if header[:16] != b"SQLite format 3\0" or int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise LogForeign(log, what=f"{path.name} was not made by Smista, or its header is damaged")
    check_format(log, int.from_bytes(header[60:64], "big"))
    if int.from_bytes(header[16:18], "big") != PAGE_BYTES or header[18:24] != bytes((2, 2, 0, 64, 32, 32)):
        raise LogDamaged(log, position=None, what=f"the header of {path.name} is not as it was written")


def check_format(log: str, found: int) -> None:
    if found > FORMAT:
        raise LogNewer(log, found=found, known=FORMAT)
    if found < FORMAT:
        raise LogDamaged(log, position=None, what=f"it says it has format {found}, and there is none")


def connect(path: Path, *, vfs: str | None, is_read_only: bool = False) -> apsw.Connection:
    """A connection that never checkpoints by itself, not even when it is closed."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.wal_autocheckpoint(0)
        connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
        connection.pragma("cache_size", -_CACHE_KIB)
        connection.pragma("cell_size_check", True)
        connection.pragma("synchronous", SYNCHRONOUS)
        connection.pragma("fullfsync", True)  # macOS: a plain fsync leaves the bytes in the drive's cache
        connection.pragma("query_only", is_read_only)
    except BaseException:
        connection.close(True)
        raise
    return connection


def check_schema(log: str, connection: apsw.Connection) -> None:
    """Compare the schema with what `create` wrote, since SQLite would work with whatever it finds there."""
    check_format(log, int(connection.pragma("user_version")))
    found = list(connection.execute("SELECT name, rootpage, sql FROM sqlite_schema ORDER BY rootpage"))
    if found != _SCHEMA or connection.pragma("journal_mode") != "wal":
        raise LogDamaged(log, position=None, what="its tables are not as they were made")


def read_meta(log: str, connection: apsw.Connection, name: str) -> bytes:
    row = connection.execute("SELECT CAST(value AS BLOB), crc FROM meta WHERE name = ?", (name,)).get
    if row is None or row[1] != _meta_crc(name, row[0]):
        raise LogDamaged(log, position=None, what=f"its {name} cannot be read")
    value: bytes = row[0]
    return value


def write_meta(connection: apsw.Connection, name: str, value: bytes) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES(?, ?, ?)", (name, value, _meta_crc(name, value)))


def read_position(log: str, connection: apsw.Connection, name: str) -> int:
    return int.from_bytes(read_meta(log, connection, name), "little")


def write_position(connection: apsw.Connection, name: str, position: int) -> None:
    write_meta(connection, name, _NUMBER.pack(position))


def read_left_out(log: str, connection: apsw.Connection) -> tuple[int, frozenset[int]]:
    times, *positions = (number for (number,) in _NUMBER.iter_unpack(read_meta(log, connection, "left_out")))
    return times, frozenset(positions)


def write_left_out(connection: apsw.Connection, times: int, positions: frozenset[int]) -> None:
    write_meta(connection, "left_out", b"".join(map(_NUMBER.pack, (times, *sorted(positions)))))


def _meta_crc(name: str, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(name.encode()))
