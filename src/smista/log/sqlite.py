"""The log in a directory, with SQLite as the container of the blocks.

    log.db, log.db-wal, log.db-shm   the blocks; see `sqlite_file`, `sqlite_writer`, `sqlite_reader`, `sqlite_view`,
                                     `shared_index`
    lock                             held while a broker has the directory; see `lock`
    mark                             where the log ended when it last confirmed a block; see `mark`
    reserve                          space to give up when the disk is full; see `reserve`

What this module decides is what happens when something goes wrong. A full disk is survivable: SQLite rolls
back, room is made, the block is tried again or refused. Nothing else that goes wrong while writing is: a sync
that has failed once may report success the next time without having written anything. Such a log is finished;
closing it writes nothing.

The write-ahead log is copied into log.db (a checkpoint) by `tidy`, and by `append` only when it has grown to
`wal_bytes`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import apsw

from smista.log import sqlite_file
from smista.log.directory import claim
from smista.log.errors import LogClosed, LogDamaged, LogDropped, LogError, LogFailed, LogFenced, LogFull
from smista.log.lock import DirectoryLock
from smista.log.mark import Mark
from smista.log.reserve import Reserve, release_part
from smista.log.shared_index import SharedIndex
from smista.log.sqlite_reader import BlockReader
from smista.log.sqlite_view import SqliteLocation
from smista.log.sqlite_writer import BlockWriter

MIB = 1 << 20
BLOCK_BYTES_MAX = 512 * MIB


class _Settings(NamedTuple):
    vfs: str | None
    reserve_bytes: int
    wal_bytes: int
    slack_bytes: int
    may_lack_end: bool


class SqliteLog:
    """See `Log` for what each call promises."""

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        vfs: str | None = None,
        reserve_bytes: int = 32 * MIB,
        wal_bytes: int = 16 * MIB,
        slack_bytes: int = 64 * MIB,
        may_lack_end: bool = False,
    ) -> Self:
        """Open the log in `directory`, or make one if the directory is empty or not there.

        `reserve_bytes` should be twice `wal_bytes` or more, so that a checkpoint fits in each half of it; 0
        means no reserve. `slack_bytes` is how much free space log.db may keep beyond as much as is in use.
        `vfs` names a VFS of SQLite. With `may_lack_end` a log is opened whose last blocks are missing though they
        were confirmed: it goes on behind them, and a scan reports them as damaged.
        """
        path = Path(directory)
        sqlite_file.refuse_unsafe_sqlite(apsw.sqlite_lib_version())
        settings = _Settings(vfs, reserve_bytes, wal_bytes, slack_bytes, may_lack_end)
        try:
            return cls._open(path, settings)
        except LogFull:
            # Opening takes a few pages too. A broker killed on a full disk has its reserve to start with.
            if not release_part(path / "reserve"):
                raise
            return cls._open(path, settings)

    @classmethod
    def _open(cls, path: Path, settings: _Settings) -> Self:
        file, vfs = path / "log.db", settings.vfs
        with _opening_errors(str(path)), ExitStack() as undo:
            lock = claim(path, vfs=vfs)
            undo.callback(lock.release)
            index = SharedIndex(Path(f"{file}-shm"))
            undo.callback(index.close)
            writer = BlockWriter(file, vfs=vfs, wal_bytes=settings.wal_bytes, slack_bytes=settings.slack_bytes)
            undo.callback(writer.close)
            index.settle()
            reader = BlockReader(file, vfs=vfs)
            undo.callback(reader.close)
            mark = Mark(path / "mark", identity=writer.identity)
            undo.callback(mark.close)
            end = _find_end(str(path), writer, reader, mark, may_lack_end=settings.may_lack_end)
            if writer.fold > end:
                # The last blocks are lost, and in them what was appended again so that nothing older is needed.
                writer.fold = writer.floor
            reserve = Reserve(path / "reserve", size_bytes=settings.reserve_bytes)
            undo.pop_all()
            return cls(path, vfs, end, lock, index, writer, reader, mark, reserve)

    def __init__(
        self,
        path: Path,
        vfs: str | None,
        next_position: int,
        lock: DirectoryLock,
        index: SharedIndex,
        writer: BlockWriter,
        reader: BlockReader,
        mark: Mark,
        reserve: Reserve,
    ) -> None:
        """Use `open`."""
        self._path = path
        self._name = str(path)
        self._vfs = vfs
        self._next_position = next_position
        self._lock = lock
        self._index = index
        self._writer = writer
        self._reader = reader
        self._mark = mark
        self._reserve = reserve
        self._failure: LogError | None = None
        self._is_closed = False

    @property
    def identity(self) -> bytes:
        return self._writer.identity

    @property
    def first_position(self) -> int:
        return self._writer.floor

    @property
    def fold_position(self) -> int:
        return max(self._writer.fold, self._writer.floor)

    @property
    def left_out(self) -> frozenset[int]:
        return frozenset(position for position in self._writer.left_out if position >= self._writer.floor)

    @property
    def left_out_times(self) -> int:
        return self._writer.left_out_times

    @property
    def next_position(self) -> int:
        return self._next_position

    def location(self) -> SqliteLocation:
        return SqliteLocation(str(self._path.absolute()), self._vfs)

    def append(self, position: int, data: bytes) -> None:
        self._check_usable()
        assert position == self._next_position, f"block {position} appended where {self._next_position} is next"
        assert len(data) <= BLOCK_BYTES_MAX, f"a block of {len(data)} bytes"
        with self._ending_on_error():
            if not self._writer.has_room_in_wal(len(data)):
                self._checkpoint()
            self._write(lambda: self._writer.append(position, data))
            self._next_position = position + 1
            self._mark.note(position + 1)

    def fold_from(self, position: int) -> None:
        self._check_usable()
        assert position <= self._next_position, f"a fold from {position} begins behind the end"
        self._writer.fold = max(position, self._writer.fold)

    def leave_out(self, positions: frozenset[int], *, fold_position: int) -> None:
        self._check_usable()
        with self._ending_on_error():
            self._write(lambda: self._writer.leave_out(positions, fold_position))

    def drop(self, position: int) -> None:
        self._check_usable()
        assert position <= self._next_position, f"a drop below {position} reaches behind the end"
        self._writer.floor = max(position, self._writer.floor)

    def tidy(self) -> bool:
        self._check_usable()
        with self._ending_on_error():
            try:
                return self._tidy()
            except LogFull:
                return False

    def _tidy(self) -> bool:
        if self._writer.has_drop_to_do:
            self._write(self._writer.drop_slice)
            return True
        if self._writer.has_fold_to_store and not self._writer.drop_slice():
            # It takes no space from the reserve. An older value is as true.
            return False
        if self._writer.is_checkpoint_due:
            return self._checkpoint() and self._writer.has_space_to_return
        if self._writer.has_space_to_return:
            # Never at the cost of the reserve.
            return self._writer.return_space() or (self._checkpoint() and self._writer.return_space())
        return False

    def _write(self, transaction: Callable[[], bool]) -> None:
        """Do it; on a full disk make room, first where it costs nothing, and do it again."""
        if transaction():
            return
        # The pages in the write-ahead log may all have their places in log.db already; then it starts over.
        if self._checkpoint() and transaction():
            return
        while self._reserve.release(is_for_drop=self._writer.has_drop_to_do):
            self._checkpoint()
            if transaction():
                return
        raise LogFull(self._name)

    def _checkpoint(self) -> bool:
        if not self._writer.checkpoint():
            return False
        self._mark.sync()
        return True

    def read(self, position: int) -> bytes:
        self._check_usable()
        assert position < self._next_position, f"block {position} is read before it was written"
        self._check_kept(position)
        try:
            return self._reader.read(position)
        except LogDamaged:
            self._check_kept(position)  # it may have been dropped since
            raise

    def scan(
        self, position: int, *, on_damage: Callable[[LogDamaged], bytes | None] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        self._check_usable()
        assert position <= self._next_position, f"a scan from {position} starts behind the end"
        self._check_kept(position)
        return self._scan(position, self._next_position, on_damage)

    def _scan(
        self, position: int, end: int, on_damage: Callable[[LogDamaged], bytes | None] | None
    ) -> Iterator[tuple[int, bytes]]:
        while position < end:
            self._check_usable()
            chunk = self._reader.read_chunk(position, end)
            for data in chunk:
                yield position, data
                position += 1
            if chunk:
                continue
            # Damaged, or dropped since: asking for it alone tells which.
            try:
                found: bytes | None = self.read(position)
            except LogDamaged as damage:
                if on_damage is None:
                    raise
                found = on_damage(damage)
            if found is not None:
                yield position, found
            position += 1

    def heads(self, position: int, end: int, head_bytes: int) -> Iterator[tuple[int, int, bytes]]:
        while position < end:
            self._check_usable()
            heads = self._reader.read_heads(position, end, head_bytes)
            if not heads:
                return
            yield from heads
            position = heads[-1][0] + 1

    def size_bytes(self) -> int:
        self._check_usable()
        paths = (self._path / name for name in ("log.db", "log.db-wal", "log.db-shm"))
        return sum(path.stat().st_size for path in paths if path.exists())

    @property
    def memory_bytes(self) -> int:
        return 0

    def free_bytes(self) -> int | None:
        self._check_usable()
        return self._disk_free_bytes()

    def _disk_free_bytes(self) -> int:
        disk = os.statvfs(self._path)
        return disk.f_bavail * disk.f_frsize

    def reusable_bytes(self) -> int:
        self._check_usable()
        return self._writer.free_bytes + self._writer.wal_bytes()

    @property
    def is_reserve_spent(self) -> bool:
        return self._reserve.is_spent

    def restore_reserve(self) -> bool:
        self._check_usable()
        with self._ending_on_error():
            missing_bytes = self._reserve.missing_bytes - self._disk_free_bytes()
            if missing_bytes <= 0 and self._reserve.restore():
                self._writer.is_giving_back = False
                return True
            # Only where that is enough: what goes back to the file system may be taken by others. The write-ahead log
            # does not count, as it would only grow again.
            self._writer.is_giving_back = missing_bytes <= self._writer.free_bytes
            return False

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as stack:
            stack.callback(self._lock.release)
            stack.callback(self._mark.close)
            stack.callback(self._index.close)
            stack.callback(self._writer.close)
            self._reader.close()
            if self._failure is None:
                with self._ending_on_error():
                    self._writer.settle()
                    self._mark.sync()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise LogClosed(self._name)
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _check_kept(self, position: int) -> None:
        if position < self.first_position:
            raise LogDropped(self._name, position=position, first_position=self.first_position)

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """Whatever goes wrong inside, other than a full disk, ends the log for good."""
        try:
            yield
        except LogFull:
            raise
        except apsw.ConstraintError as error:
            self._failure = LogFenced(self._name, position=self._next_position)
            raise self._failure from error
        except BaseException as error:
            is_damage = isinstance(error, (apsw.CorruptError, apsw.NotADBError))
            why = f"log.db is damaged ({error})" if is_damage else f"{type(error).__name__}: {error}"
            self._failure = LogFailed(self._name, why=why, is_damage=is_damage)
            if isinstance(error, Exception):
                raise self._failure from error
            raise


def _find_end(log: str, writer: BlockWriter, reader: BlockReader, mark: Mark, *, may_lack_end: bool) -> int:
    """The next position, if the blocks agree with the mark about it."""
    newest = writer.newest_position
    end = writer.floor if newest is None else max(newest + 1, writer.floor)
    if end < mark.end and may_lack_end:
        # Readers of the log know those positions by what was there: they are not given out again.
        return mark.end
    if end < mark.end:
        raise LogDamaged(
            log,
            position=end,
            what=f"blocks {end} to {mark.end - 1} were confirmed and are missing from its end",
            cure="restore log.db and log.db-wal from a backup, or go on without those blocks and what was confirmed in "
            "them: start with --on-damage serve",
        )
    if newest is not None and writer.floor <= newest and end != mark.end:
        # The mark does not vouch for this position, so its CRC must: a flipped bit could have moved the
        # block.
        reader.read(newest)
    return end


@contextmanager
def _opening_errors(log: str) -> Iterator[None]:
    """Raise SQLite's and the system's errors as errors of the log. A file that cannot be read is damage, the rest is
    failure."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        if _is_no_space(error):
            raise LogFull(log) from error
        if isinstance(error, (apsw.CantOpenError, apsw.BusyError, OSError)):
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise LogFailed(log, why=why, is_opening=True) from error
        raise LogDamaged(log, position=None, what=f"log.db cannot be read ({error})") from error


def _is_no_space(error: apsw.Error | OSError) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    # The shared index of the write-ahead log is made when the log is opened. apsw's stubs lack the attribute.
    extended = getattr(error, "extendedresult", 0)
    return isinstance(error, apsw.FullError) or extended == apsw.SQLITE_IOERR_SHMSIZE
