"""The log: blocks of bytes in one durable order.

A **block** is one `bytes`, written and synced as one. Its **position** is its number: positions are dense,
start at 1 and never go back, not even when every block has been dropped.

What was made of the blocks, a broker's state, can be made again by folding them from `fold_position` on. Those before
it are kept for readers alone. So how long it takes to start does not depend on how much is kept for them. Blocks that
were **left out** once, because they could not be read, are left out by every later fold too.

    dropped ..... first_position ..... fold_position ..... next_position
                  the oldest kept      where a fold begins the one the next append must name

What a log does not know: messages, queues, time. What its caller must keep to: `append`, `fold_from`, `leave_out`,
`drop`, `tidy` and `restore_reserve` come from one thread at a time, the writer; everything else may come from another
thread at the same moment and does not hold the writer up. Every call blocks.

Where blocks may live. Memory and SQLite are here. PostgreSQL fits as rows keyed (shard, position): the writer
names the position, so of two owners that both believe they own the shard one meets the other's row, and
`append` carries the owner's epoch in the same transaction; either way the loser gets `LogFenced`. `drop` is a
prefix delete, both positions and what was left out are columns of the shard's row, `tidy` has nothing to do,
`free_bytes` is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from smista.log.errors import LogDamaged


class LogView(Protocol):
    """The blocks of a log that another process writes. May be used by several threads.

    What it shows is durable, and a block never changes: the same range gives the same blocks for as long as they are
    kept.
    """

    def next_position(self) -> int:
        """The position that will be written next. Whatever stands before it is durable."""
        ...

    def blocks(self, position: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The blocks of [position, end), each with its position, CRCs checked. Raises `LogDropped` when one is no
        longer kept, and `LogDamaged` or `LogUnreadable` as `Log.read` does."""
        ...

    def close(self) -> None: ...


class LogLocation(Protocol):
    """Where a log is, for other processes that want to read it. Can be pickled, and says nothing that must not be
    passed on to a process of our own."""

    def open(self) -> LogView:
        """While somebody writes there; readers and the writer never wait for each other."""
        ...


class Log(Protocol):
    """Ordered durable blocks. After `LogFailed` or `LogFenced` every call but `close` raises that error
    again."""

    @property
    def identity(self) -> bytes:
        """32 random bytes made with the log, the same for its whole life; ids and keys may be derived from
        them."""
        ...

    @property
    def first_position(self) -> int:
        """The oldest block that is kept; equal to `next_position` when there is none."""
        ...

    @property
    def fold_position(self) -> int:
        """Nothing before this block is needed to make the state again; never below `first_position`."""
        ...

    @property
    def left_out(self) -> frozenset[int]:
        """The blocks, of those that are kept, that no fold takes in, whether they can be read or not."""
        ...

    @property
    def left_out_times(self) -> int:
        """How often `leave_out` was called in the log's whole life."""
        ...

    @property
    def next_position(self) -> int:
        """The position the next `append` must name."""
        ...

    def location(self) -> LogLocation | None:
        """Where other processes can read this log; None when it is in the memory of this one."""
        ...

    def append(self, position: int, data: bytes) -> None:
        """Add a block. When this returns the block survives a power cut.

        `LogFull`: nothing was written, the log can still be used. `LogFailed`, `LogFenced`: the block may or
        may not be there after a restart, and this object takes nothing more.
        """
        ...

    def read(self, position: int) -> bytes:
        """The block at `position`, its CRC checked. Raises `LogDropped`, `LogDamaged`, or
        `LogUnreadable` where it may be sound and a later try may succeed."""
        ...

    def scan(
        self, position: int, *, on_damage: Callable[[LogDamaged], bytes | None] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """The blocks from `position` to the end as it is now, CRCs checked, each with its position.

        The first damaged or missing block raises `LogDamaged`, unless `on_damage` takes the reports: then the
        scan goes on, with what that returns for the block or without it. Raises `LogDropped` when `position` was
        dropped, also while the scan is under way.
        """
        ...

    def heads(self, position: int, end: int, head_bytes: int) -> Iterator[tuple[int, int, bytes]]:
        """Of the blocks of [position, end) that are there: the position, the size and the first so many bytes. No CRC
        is checked, and most of a block is not read."""
        ...

    def fold_from(self, position: int) -> None:
        """Note that nothing before `position` is needed any more to make the state: what is has been appended again,
        durably. A crash may undo this; an older value is as true."""
        ...

    def leave_out(self, positions: frozenset[int], *, fold_position: int) -> None:
        """Have every later fold begin at `fold_position`, which may be before the present one, and leave out these
        blocks. When this returns it survives a power cut; where it raises, as `append` does, it was not done."""
        ...

    def drop(self, position: int) -> None:
        """Forget every block below `position`: they cannot be read or folded any more, and their space is reclaimed by
        later calls of `append` and `tidy`, a slice at a time. A crash may undo a drop, wholly or its later part, but
        never anything that was appended after it."""
        ...

    def tidy(self) -> bool:
        """Do one short step of housekeeping; True when there is more to do. To be called while there is
        nothing to append. A full disk makes it do nothing."""
        ...

    def size_bytes(self) -> int:
        """How much space the blocks take where they are stored, the reserve not counted."""
        ...

    @property
    def memory_bytes(self) -> int:
        """How much of that is in the memory of this process; 0 for a log on a disk."""
        ...

    def free_bytes(self) -> int | None:
        """Free space on the disk that holds the log; None when there is no disk of its own."""
        ...

    def reusable_bytes(self) -> int:
        """Space that the log takes already and new blocks can use: what dropped blocks have left, and the length of a
        write-ahead log."""
        ...

    @property
    def is_reserve_spent(self) -> bool:
        """Whether the space set aside for a full disk was given up. New messages should then be refused, so
        that what is left is there for acknowledgements and for compaction."""
        ...

    def restore_reserve(self) -> bool:
        """Set the reserve aside again; False when there is no space for it yet. Where the log itself keeps enough
        free space for it, later calls of `tidy` give that back to the disk, and a later call succeeds."""
        ...

    def close(self) -> None:
        """Give everything back, when the writer has finished. Closing twice does nothing; every other call
        then raises `LogClosed`."""
        ...
