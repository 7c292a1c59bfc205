"""How much a range of the log holds, and how to share it out. What was counted once is remembered: a block never
changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from smista.bulk.decoder import COUNTED, Decoder
from smista.log import LogView
from smista.service.log_reading import Part, Plan

REMEMBERED_MAX = 500_000
"""Blocks, about 100 bytes each."""
COUNTED_AT_ONCE = 64


class Planner:
    def __init__(self, log: LogView) -> None:
        self._log = log
        self._counter = Decoder(COUNTED, lambda number, position: ("", ""))
        self._counted: dict[int, tuple[int, int]] = {}

    def plan(self, start: int, end: int, *, max_rows: int, max_bytes: int, min_partitions: int) -> Plan:
        """The longest beginning of the range within the limits, but one block at least, in about equal parts."""
        whole = Part(start, start)
        blocks: list[tuple[int, int]] = []
        for rows, size in self._count(start, end):
            if blocks and (whole.rows + rows > max_rows or whole.bytes + size > max_bytes):
                break
            blocks.append((rows, size))
            whole.add(rows, size)
        parts = _split(start, blocks, whole.bytes, min_partitions)
        return Plan(whole.start, whole.end, whole.rows, whole.bytes, partitions=parts)

    def _count(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Rows and bytes of each block of the range."""
        counted = self._counted
        if len(counted) > REMEMBERED_MAX:
            counted.clear()
        for position in range(start, end):
            if position not in counted:
                for at, block in self._log.blocks(position, min(position + COUNTED_AT_ONCE, end)):
                    counted[at] = self._counter.add(at, block), len(block)
            yield counted[position]


def _split(start: int, blocks: list[tuple[int, int]], size: int, count: int) -> list[Part]:
    """Parts of about as many bytes each: reading them is most of the work, whatever is asked of the rows."""
    parts: list[Part] = []
    done = 0
    for position, (rows, block_bytes) in enumerate(blocks, start):
        # A part ends where the next share of the whole begins.
        if not parts or (len(parts) < count and done * count >= size * len(parts)):
            parts.append(Part(position, position))
        parts[-1].add(rows, block_bytes)
        done += block_bytes
    return parts
