"""A log under test, with what a test may do to it beyond the interface."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import apsw

from smista.log import Log, MemoryLog, SqliteLog


class Bench(Protocol):
    log: Log

    def reopen(self) -> Log:
        """Stop and start; a log without a disk just goes on."""

    def damage(self, position: int) -> None:
        """Change a stored block behind the log's back, and reopen."""

    def lose(self, position: int) -> None:
        """Remove a stored block behind the log's back, and reopen."""


class MemoryBench:
    def __init__(self, directory: Path) -> None:
        self._log = MemoryLog()
        self.log: Log = self._log

    def reopen(self) -> Log:
        return self.log

    def damage(self, position: int) -> None:
        crc, data = self._log._blocks[position]
        self._log._blocks[position] = (crc, data + b"!")

    def lose(self, position: int) -> None:
        del self._log._blocks[position]


class SqliteBench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log: Log = self._open()

    def _open(self) -> SqliteLog:
        return SqliteLog.open(self.directory, reserve_bytes=0)

    def reopen(self) -> Log:
        self.log.close()
        self.log = self._open()
        return self.log

    def damage(self, position: int) -> None:
        self._execute("UPDATE blocks SET data = CAST(data || '!' AS BLOB) WHERE position = ?", position)

    def lose(self, position: int) -> None:
        self._execute("DELETE FROM blocks WHERE position = ?", position)

    def _execute(self, statement: str, position: int) -> None:
        self.log.close()
        connection = apsw.Connection(str(self.directory / "log.db"))
        connection.execute(statement, (position,))
        connection.close()
        self.log = self._open()


def block(position: int) -> bytes:
    """What the tests store at a position: of any size from nothing to several pages, and never the same
    twice."""
    size_bytes = (position * 7919) % 23 * (position % 5) ** 2 * 60
    return f"block {position};".encode().ljust(size_bytes, bytes([position % 251]))


def fill(log: Log, count: int) -> None:
    """Append the next `count` blocks."""
    for position in range(log.next_position, log.next_position + count):
        log.append(position, block(position))


def contents(log: Log) -> dict[int, bytes]:
    return dict(log.scan(log.first_position))


def expected(first: int, end: int) -> dict[int, bytes]:
    return {position: block(position) for position in range(first, end)}


def tidy_up(log: Log) -> int:
    """Tidy until there is nothing left to do; how many steps that took."""
    steps = 1
    while log.tidy():
        steps += 1
        assert steps < 100_000, "tidy never comes to an end"
    return steps
