"""When to refuse publishes: disk or memory running low. Consuming goes on, and frees both.

    room on the disk
      plenty      the log keeps blocks for its readers as long as it was asked to
      ──────────  a quarter above `disk_free_bytes_min`
      scarce      whatever is not needed goes, also what readers might still have wanted
      ──────────  `disk_free_bytes_min`
      low         publishes are refused as well
      ──────────  nothing is left
      full        the log gives up its reserve, so that acknowledgements can still be written

Room is what is free on the disk, and what the log has taken of it and does not need any more: a queue that was emptied
leaves its space there. What was taken in and is not written yet has its room already, twice, as it goes through the
write-ahead log. Without that, messages taken between two looks at the disk would use up the log's reserve, and no
acknowledgement could be written any more: a log that is full and cannot be emptied.

Memory is judged by what the broker holds (messages, bodies, remembered ids, what protocols have taken in and not yet
handed on, the log where that is in memory), and not by what the process has: memory that was freed is not always given
back to the system, and a broker that has been emptied has to take messages again. Where the log is in memory, and that
is scarce, what is not needed of the log goes, as on a disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from smista.errors import LowDisk, LowMemory, ResourceLow

TIMES_ON_DISK = 2
"""A block is in the write-ahead log and in the file at the same time."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def half_of_memory() -> int:
    """Half of what the machine has, or of what this process may have of it."""
    limits = [os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):
            # Not there, or "max".
            continue
    return min(limits) // 2


def resident_set_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


class Held(NamedTuple):
    """What the broker holds in memory, in bytes."""

    messages: int = 0
    remembered_ids: int = 0
    coming_in: int = 0
    """Bodies that are not whole yet, and open transactions."""
    going_out: int = 0
    """What clients have not read yet."""
    log: int = 0
    """The blocks of a log that is in memory. A body counts here beside itself: they are two, until it is paged out."""

    @property
    def total(self) -> int:
        return sum(self)


class Pressure:
    def __init__(self, *, disk_free_bytes_min: int, memory_bytes_max: int, held: Callable[[], Held] = Held) -> None:
        self._disk_free_bytes_min = disk_free_bytes_min
        self.memory_bytes_max = memory_bytes_max
        self._held = held
        self._room_bytes: int | None = None
        self.refusal: ResourceLow | None = None
        """Why publishes are refused just now; None while they are not."""
        self.is_space_wanted = False
        """Whether publishing wants the space that the log keeps for its readers."""

    def update(
        self, *, free_bytes: int | None, reusable_bytes: int, waiting_bytes: int, is_full: bool, is_reserve_spent: bool
    ) -> None:
        """`free_bytes` are those of the disk, None without one; `reusable_bytes` those that the log has to spare;
        `waiting_bytes` those that it has still to write."""
        taken_bytes = TIMES_ON_DISK * waiting_bytes
        room_bytes = None if free_bytes is None else free_bytes + reusable_bytes - taken_bytes
        self._room_bytes = room_bytes
        scarce_bytes = self._disk_free_bytes_min + self._disk_free_bytes_min // 4
        is_disk_scarce = room_bytes is not None and room_bytes < scarce_bytes
        self.is_space_wanted = is_full or is_reserve_spent or is_disk_scarce or self._is_log_in_the_way()
        self.refusal = self._judge(room_bytes, is_full=is_full or is_reserve_spent)

    def refusal_for(self, *, memory_bytes: int, disk_bytes: int) -> ResourceLow | None:
        """Why so much more could not be taken, if it could not."""
        held = self._held()
        if held.log:
            memory_bytes += disk_bytes
        if held.total + memory_bytes > self.memory_bytes_max:
            return LowMemory(
                f"This takes {memory_bytes} bytes of memory, and the broker may hold {self.memory_bytes_max} in all "
                "by memory_bytes_max; nothing was stored. Publish less at once, consume some, or raise the limit."
            )
        if self._room_bytes is not None and self._room_bytes - disk_bytes < self._disk_free_bytes_min:
            return LowDisk(
                f"This takes {disk_bytes} bytes, {max(0, self._room_bytes)} are free on the disk, and "
                f"{self._disk_free_bytes_min} have to stay so; nothing was stored. Free some space."
            )
        return None

    def _is_log_in_the_way(self) -> bool:
        """Whether memory is scarce, and the log takes some of it."""
        held = self._held()
        return bool(held.log) and held.total > self.memory_bytes_max - self.memory_bytes_max // 4

    def _judge(self, room_bytes: int | None, *, is_full: bool) -> ResourceLow | None:
        if is_full:
            return LowDisk("The disk is full; nothing was stored. Free some space, or consume what is queued.")
        if room_bytes is not None and room_bytes < self._disk_free_bytes_min:
            return LowDisk(
                f"Only {max(0, room_bytes)} bytes are free on the disk, below the limit of "
                f"{self._disk_free_bytes_min}; nothing was stored. Free some space, or consume what is queued."
            )
        held = self._held()
        if held.total > self.memory_bytes_max:
            log = f", {held.log} of the log" if held.log else ""
            return LowMemory(
                f"The broker holds {held.total} bytes in memory, above memory_bytes_max, {self.memory_bytes_max}: "
                f"{held.messages} of messages, {held.remembered_ids} of deduplication ids, {held.coming_in} of what is "
                f"coming in, {held.going_out} that clients have not read yet{log}; nothing was stored. {_cure(held)}"
            )
        return None


def _cure(held: Held) -> str:
    others = max(held.messages, held.remembered_ids)
    if held.going_out > others:
        return "Those who do not read are cut off in a while: try again then, or raise the limit."
    if held.coming_in > others:
        return "Try again when that is whole, or given up, or raise the limit."
    return "Consume or purge what is queued, shorten dedup_window_ms, or raise the limit."
