"""PARKED: a message was set aside in its own queue, in state dead."""

from __future__ import annotations

from typing import NamedTuple

from smista.records import rows, texts
from smista.records.frames import framed
from smista.records.kinds import Kind
from smista.records.layout import U8, U16, U32, U64, Field, Layout
from smista.records.rows import Rows

HEAD = Layout(queue=U32, sequence=U64, at_ms=U64, reason=U8, failed_by=U8, name_bytes=U16)
FIELDS = (*HEAD.fields, Field("name", texts.TEXT), Field("error", f"{texts.TEXT}, the rest"))


class Parked(NamedTuple):
    queue: int
    sequence: int
    at_ms: int
    reason: int
    failed_by: int
    """0 where no failed delivery was the cause."""
    name: str
    """The queue's, which is not known when its declaration stands further on in the log."""
    error: str


def encode(parked: Parked) -> bytes:
    queue, sequence, at_ms, reason, failed_by, name, error = parked
    packed_name = texts.pack_name(name)
    head = HEAD.pack(queue, sequence, at_ms, reason, failed_by, len(packed_name))
    return framed(Kind.PARKED, head + packed_name + texts.pack_error(error))


def decode(data: memoryview) -> Parked:
    queue, sequence, at_ms, reason, failed_by, name_bytes = HEAD.read(data)
    error_at = HEAD.size + name_bytes
    name = texts.read(data, HEAD.size, error_at)
    return Parked(queue, sequence, at_ms, reason, failed_by, name, texts.read(data, error_at))


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    parked = decode(memoryview(block)[start:end])
    code = into.step(rows.DEAD_LETTERED, parked.queue, 1)
    if code >= 0:
        error = into.error_code(parked.error)
        into.detailed_run(rows.DEAD_LETTERED, code, parked.at_ms, 1, reason=parked.reason, error=error)
        into.take_sequence(parked.sequence)
