"""What outlives a crash: every block that was ever written, and from where on the log was folded at each of them.

`SimulatedLog` is the memory log with a disk under it that can be full, that can fail, and whose reads can go wrong.
"""

from __future__ import annotations

from smista.log import MemoryLog
from smista.log.errors import LogDamaged, LogFailed, LogFull, LogUnreadable

IDENTITY = b"simulated".ljust(32, b".")


class Disk:
    def __init__(self) -> None:
        self.blocks: dict[int, bytes] = {}
        """All that were ever written and not undone by a crash, also those that were dropped since."""
        self.fronts: dict[int, int] = {0: 1}
        """By position: where a fold may have begun when that block was the last one on disk."""
        self.front = 1
        """Where a fold begins now ..."""
        self.first = 1
        """... and which block is the first that is kept, for readers of the log."""
        self.is_full = False
        self.is_failing = False
        """The next write fails, for good."""
        self.read_errors = 0
        """How many of the next reads fail, although what is stored is sound."""
        self.damaged: set[int] = set()
        """Blocks that cannot be read any more; the next start finds them repaired."""
        self.errors_met = 0
        self.has_failed = False

    @property
    def last(self) -> int:
        """The position of the last block that is on disk."""
        return len(self.blocks)

    def open(self) -> SimulatedLog:
        """The log as it would be found now."""
        self.is_full = self.is_failing = False
        self.read_errors = 0
        self.damaged.clear()
        return SimulatedLog(self)


class SimulatedLog(MemoryLog):
    def __init__(self, disk: Disk) -> None:
        super().__init__(identity=IDENTITY)
        self._disk = disk
        for position in range(1, disk.last + 1):
            super().append(position, disk.blocks[position])
        super().drop(disk.first)
        super().fold_from(disk.front)

    def append(self, position: int, data: bytes) -> None:
        disk = self._disk
        if disk.is_full:
            raise LogFull("simulation")
        if disk.is_failing:
            disk.has_failed = True
            raise LogFailed("simulation", why="a planted failure")
        super().append(position, data)
        disk.blocks[position] = data
        disk.fronts[position] = disk.front

    def read(self, position: int) -> bytes:
        disk = self._disk
        if disk.read_errors:
            disk.read_errors -= 1
            disk.errors_met += 1
            raise LogUnreadable("simulation", position=position, what="a planted error of reading")
        if position in disk.damaged:
            disk.errors_met += 1
            raise LogDamaged("simulation", position=position, what="planted damage")
        return super().read(position)

    def fold_from(self, position: int) -> None:
        super().fold_from(position)
        disk = self._disk
        disk.front = max(disk.front, position)
        disk.fronts[disk.last] = disk.front

    def drop(self, position: int) -> None:
        assert position <= self.fold_position, "what is folded is dropped"
        super().drop(position)
        self._disk.first = max(self._disk.first, position)
