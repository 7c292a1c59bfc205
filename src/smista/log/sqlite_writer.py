"""Writing to `log.db`: the one connection that does all writes and all checkpoints.

Every commit is synced, so blocks reach the disk in their order and a crash loses at most the one not
confirmed yet. Methods that write return False when the disk is full, and nothing was changed then; every
other error of SQLite comes out as it is.

Dropped blocks are deleted later, a slice at a time, by `append` in the transaction it does anyway: that takes
no sync of its own, and a drop cannot overtake what was appended after it. The **floor**, the first position
kept, is stored at once with the first slice, so it does not matter when the rest follows. The **fold**, from where
on the state is made again, is stored in the same way, or at once with what it is to leave out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw

from smista.log import sqlite_file
from smista.log.checksum import block_crc
from smista.log.sqlite_file import PAGE_BYTES

_FRAME_BYTES = PAGE_BYTES + 24
# A block also touches the header, a leaf, a pointer map and now and then an interior page.
_FRAMES_BESIDE_DATA = 8
# The shared index of the write-ahead log has room for 4,062 frames in its first 32 KiB, and takes 32 KiB more
# when it must, after the frames were written and synced. On a full disk that would fail a block that is on
# the disk already.
_FRAMES_MAX = 4_000
# Measured: up to 16 add 0.15 ms to an append, 256 take 1 to 1.4 ms, whatever the size of the blocks.
_DROPPED_WITH_APPEND = 16
_DROPPED_ALONE = 256
# Measured: 0.6 ms for this 1 MiB.
_PAGES_PER_SHRINK = 128
_INSERT = "INSERT INTO blocks VALUES(?, ?, ?)"
_DELETE = """DELETE FROM blocks WHERE position IN
    (SELECT position FROM blocks WHERE position < ? ORDER BY position LIMIT ?)"""
# Asked for together in one SELECT, they would cost a walk through the whole table.
_ENDS = "SELECT (SELECT min(position) FROM blocks), (SELECT max(position) FROM blocks)"


class BlockWriter:
    """`floor` and `fold` may be raised at any time; everything below the floor is deleted little by little."""

    def __init__(self, path: Path, *, vfs: str | None, wal_bytes: int, slack_bytes: int) -> None:
        self.is_giving_back = False
        """Whether log.db keeps no free space for new blocks, because it is wanted elsewhere."""
        self._frames_max = min(wal_bytes // _FRAME_BYTES, _FRAMES_MAX)
        self._slack_pages = slack_bytes // PAGE_BYTES
        self._has_shrunk = False
        self._wal_path = Path(f"{path}-wal")
        self._connection = sqlite_file.connect(path, vfs=vfs)
        try:
            self._load(str(path.parent))
            self._count_free_pages()
            self._connection.pragma("journal_size_limit", wal_bytes)
            # Until the first commit says it, the size of the file is a good bound.
            self._frames = self.wal_bytes() // _FRAME_BYTES
            self._connection.set_wal_hook(self._note_frames)
        except BaseException:
            self._connection.close(True)
            raise

    def _load(self, log: str) -> None:
        sqlite_file.check_schema(log, self._connection)
        self.identity = sqlite_file.read_meta(log, self._connection, "identity")
        self.floor = self._stored_floor = sqlite_file.read_position(log, self._connection, "floor")
        self.fold = self._stored_fold = sqlite_file.read_position(log, self._connection, "fold")
        self.left_out_times, self.left_out = sqlite_file.read_left_out(log, self._connection)
        oldest, newest = self._connection.execute(_ENDS).get
        self.newest_position: int | None = newest
        """The last block when the file was opened."""
        self._has_blocks_to_delete = oldest is not None and oldest < self.floor

    def append(self, position: int, data: bytes) -> bool:
        row = (position, block_crc(position, data), data)

        def insert() -> None:
            self._connection.execute(_INSERT, row)

        if self.has_drop_to_do or self.has_fold_to_store:
            return self._drop_slice(_DROPPED_WITH_APPEND, and_then=insert)
        return self._is_committed(insert)  # alone, it is its own transaction

    def has_room_in_wal(self, data_bytes: int) -> bool:
        """Whether a block of that size keeps the write-ahead log within its bound."""
        return self._frames + data_bytes // PAGE_BYTES + _FRAMES_BESIDE_DATA <= self._frames_max

    @property
    def is_checkpoint_due(self) -> bool:
        """The write-ahead log is long, or log.db is to become shorter, which takes a checkpoint."""
        return self._frames > self._frames_max // 2 or (self._has_shrunk and not self.has_space_to_return)

    @property
    def has_drop_to_do(self) -> bool:
        return self._has_blocks_to_delete or self._stored_floor < self.floor

    @property
    def has_fold_to_store(self) -> bool:
        return self._stored_fold != self.fold

    def leave_out(self, positions: frozenset[int], fold: int) -> bool:
        times = self.left_out_times + 1

        def store() -> None:
            sqlite_file.write_left_out(self._connection, times, positions)

        before, self.fold = self.fold, fold
        if not self._drop_slice(_DROPPED_ALONE, and_then=store):
            self.fold = before
            return False
        self.left_out_times, self.left_out = times, positions
        return True

    def drop_slice(self) -> bool:
        return self._drop_slice(_DROPPED_ALONE)

    def _drop_slice(self, count: int, *, and_then: Callable[[], None] | None = None) -> bool:
        floor, fold = self.floor, self.fold
        deleted_count = 0

        def delete() -> None:
            nonlocal deleted_count
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(_DELETE, (floor, count))
            deleted_count = self._connection.changes()
            if self._stored_floor < floor:
                sqlite_file.write_position(self._connection, "floor", floor)
            if self._stored_fold != fold:
                sqlite_file.write_position(self._connection, "fold", fold)
            if and_then is not None:
                and_then()
            self._connection.execute("COMMIT")

        if not self._is_committed(delete):
            return False
        self._has_blocks_to_delete = deleted_count == count
        self._stored_floor, self._stored_fold = floor, fold
        return True

    @property
    def free_bytes(self) -> int:
        """What new blocks take of log.db before it grows."""
        return self._free_pages * PAGE_BYTES

    def wal_bytes(self) -> int:
        """How long the file of the write-ahead log is, whatever part of it is in use."""
        return _size_of(self._wal_path)

    @property
    def has_space_to_return(self) -> bool:
        """Whether log.db keeps so much free space that some should go back to the file system."""
        if self.is_giving_back:
            return self._free_pages > 0
        if self._free_pages <= self._slack_pages:
            return False
        used = int(self._connection.pragma("page_count")) - self._free_pages
        return self._free_pages > used + self._slack_pages

    def return_space(self) -> bool:
        vacuum = f"PRAGMA incremental_vacuum({_PAGES_PER_SHRINK})"
        if not self._is_committed(lambda: self._connection.execute(vacuum).get):
            return False
        self._has_shrunk = True
        return True

    def _is_committed(self, transaction: Callable[[], object]) -> bool:
        try:
            transaction()
        except apsw.FullError:
            # The frames written so far have no commit among them, so they do not count.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            return False
        self._count_free_pages()
        return True

    def _count_free_pages(self) -> None:
        # Measured: 7 us, beside a sync of 200 or more. Kept, because others than the writer's thread ask for it.
        self._free_pages = int(self._connection.pragma("freelist_count"))

    def checkpoint(self) -> bool:
        """Copy the write-ahead log into log.db as far as readers allow. If all of it, it starts over."""
        try:
            logged, copied = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except (apsw.FullError, apsw.BusyError):
            return False
        self._frames = logged - copied
        self._has_shrunk = False
        return True

    def _note_frames(self, connection: apsw.Connection, database: str, frames: int) -> int:
        self._frames = frames
        return apsw.SQLITE_OK

    def settle(self) -> None:
        """Before closing: store floor and fold, and leave no write-ahead log if there is space to copy it."""
        if (self._stored_floor < self.floor or self.has_fold_to_store) and not self.drop_slice():
            return
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.FullError, apsw.BusyError):
            return
        self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)

    def close(self) -> None:
        """Close. Unless `settle` was called, nothing is written."""
        self._connection.close(True)


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
