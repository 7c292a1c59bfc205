"""The log in a directory as another process reads it, beside the broker that writes it.

On one connection for all who read there: it allows one short transaction at a time, so the write-ahead log can start
over in the gaps, however many read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from smista.log.errors import LogDamaged, LogDropped
from smista.log.sqlite_reader import BlockReader


class SqliteLocation(NamedTuple):
    """See `LogLocation`."""

    directory: str
    vfs: str | None

    def open(self) -> SqliteView:
        return SqliteView(Path(self.directory), vfs=self.vfs)


class SqliteView:
    """See `LogView`."""

    def __init__(self, directory: Path, *, vfs: str | None) -> None:
        self._name = str(directory)
        self._reader = BlockReader(directory / "log.db", vfs=vfs)

    def next_position(self) -> int:
        return self._reader.ends()[1]

    def blocks(self, position: int, end: int) -> Iterator[tuple[int, bytes]]:
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

    def close(self) -> None:
        self._reader.close()
