"""READDRESSED: follows a MOVED through a dead-letter exchange. That exchange and its key are the message's now, and its
`ttl_ms` goes."""

from __future__ import annotations

import msgspec

from smista.records.kinds import Kind
from smista.records.packed import codec
from smista.records.rows import Rows


class Readdressed(msgspec.Struct, frozen=True, array_like=True):
    queue: int
    sequence: int
    exchange: str
    routing_key: str


encode, decode = codec(Kind.READDRESSED, Readdressed)


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    """It is no row of its own: it belongs to the move before it."""
    record = decode(memoryview(block)[start:end])
    into.readdress(record.sequence, record.exchange, record.routing_key)
