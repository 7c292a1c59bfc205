"""Reading the log in bulk, as the service hands it out: what may be asked for, and what does it.

Rows do not go through the broker: a process of its own writes them on the connection on which they were asked for, see
`smista.bulk`. The service knows it by what it can do, since it stands above the service.
"""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec


class Read(msgspec.Struct, tag=True):
    """Write the rows of [start, end) of the shard's log to the connection that comes with this."""

    id: int
    shard: int
    start: int
    end: int
    columns: list[str]
    kinds: list[str]
    namespace: str
    queues: list[str]
    """Names or patterns; empty for all."""
    bodies: bool
    is_chunked: bool
    """Whether the client knows chunks, as HTTP/1.1 has them."""
    head_lines: str = ""
    """What every answer of the broker says of itself, as lines of a head."""


class MakePlan(msgspec.Struct, tag=True):
    id: int
    start: int
    end: int
    max_rows: int
    max_bytes: int
    min_partitions: int


class Part(msgspec.Struct, rename={"start": "from", "end": "to"}):
    """The blocks from `start` up to, and without, `end`."""

    start: int
    end: int
    rows: int = 0
    bytes: int = 0

    def add(self, rows: int, size: int) -> None:
        self.end += 1
        self.rows += rows
        self.bytes += size


class Plan(Part, kw_only=True, rename={"start": "from", "end": "to"}):
    partitions: list[Part]


class BulkMeasures(msgspec.Struct):
    """What monitoring asks for; totals since the broker started."""

    readers: int = 0
    """Connections that rows are being written to."""
    rows_total: int = 0
    bytes_total: int = 0
    starts_total: int = 0
    """How often the process was started."""


class Place:
    """Of one reader."""

    __slots__ = ("is_handed_over",)

    def __init__(self) -> None:
        self.is_handed_over = False


class LogReader(Protocol):
    """Made once for a broker."""

    measures: BulkMeasures

    def check(self) -> None:
        """Raise why there can be no bulk reading here."""

    def place(self) -> AbstractContextManager[Place]:
        """A place among those who read; it is taken from here on, and free again at the end unless `read` has handed
        over the connection: then when all is read."""

    async def read(self, request: Read, connection: socket.socket, place: Place) -> None:
        """Have the rows written to `connection`, which the process has when this returns."""

    async def plan(self, request: MakePlan) -> Plan:
        """How far to read within limits, and in which parts."""
        ...
