"""The broker's log, read by another process: the same SQLite file, on one connection for all who read here.

One connection, because it allows one short transaction at a time: the write-ahead log can start over in the gaps,
however many read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from smista.log.errors import LogDamaged, LogDropped
from smista.log.sqlite_reader import BlockReader


class LogFile:
    """May be used by several threads."""

    def __init__(self, directory: Path) -> None:
        self._name = str(directory)
        self._reader = BlockReader(directory / "log.db", vfs=None)

    def end(self) -> int:
        """The position that will be written next. Whatever stands before it is durable."""
        return self._reader.ends()[1]

    def blocks(self, position: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The blocks of [position, end), each with its position. Raises `LogDropped` when one is no longer kept."""
        while position < end:
            chunk = self._reader.read_chunk(position, end)
            for block in chunk or [self._read(position)]:
                yield position, block
                position += 1

    def _read(self, position: int) -> bytes:
        try:
            return self._reader.read(position)
        except LogDamaged:
            first = self._reader.ends()[0]
            if position < first:
                raise LogDropped(self._name, position=position, first_position=first) from None
            raise
