"""MOVED: a message went out of one queue and into another: dead-lettered or redriven. Number and body stay."""

from __future__ import annotations

from typing import NamedTuple

from smista.core.message import Reason
from smista.records import rows, texts
from smista.records.frames import framed
from smista.records.kinds import Kind
from smista.records.layout import U8, U16, U32, U64, Field, Layout
from smista.records.rows import NONE, Rows

HEAD = Layout(
    source=U32,
    sequence=U64,
    target=U32,
    new_sequence=U64,
    priority=U8,
    expires_at_ms=U64,
    at_ms=U64,
    reason=U8,
    failed_by=U8,
    name_bytes=U16,
)
FIELDS = (*HEAD.fields, Field("name", texts.TEXT), Field("error", f"{texts.TEXT}, the rest"))


class Moved(NamedTuple):
    source: int
    sequence: int
    target: int
    """0 for a queue that is not in the log, because it is not durable."""
    new_sequence: int
    priority: int
    expires_at_ms: int
    """0 for never."""
    at_ms: int
    reason: int
    failed_by: int
    """0 where no failed delivery was the cause."""
    name: str
    """The source's, which is not known when its declaration stands further on in the log."""
    error: str


def encode(moved: Moved) -> bytes:
    *numbers, name, error = moved
    packed_name = texts.pack_name(name)
    return framed(Kind.MOVED, HEAD.pack(*numbers, len(packed_name)) + packed_name + texts.pack_error(error))


def decode(data: memoryview) -> Moved:
    *numbers, name_bytes = HEAD.read(data)
    source, sequence, target, new_sequence, priority, expires_at_ms, at_ms, reason, failed_by = numbers
    error_at = HEAD.size + name_bytes
    name, error = texts.read(data, HEAD.size, error_at), texts.read(data, error_at)
    return Moved(source, sequence, target, new_sequence, priority, expires_at_ms, at_ms, reason, failed_by, name, error)


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    moved = decode(memoryview(block)[start:end])
    kind = rows.MOVED if moved.reason == Reason.REDRIVEN else rows.DEAD_LETTERED
    code = into.step(kind, moved.source, 1)
    if code >= 0:
        into.detailed_run(
            kind,
            code,
            moved.at_ms,
            1,
            reason=moved.reason,
            target_queue=into.queue_code(moved.target) if moved.target else NONE,
            target_sequence=moved.new_sequence,
            error=into.error_code(moved.error),
        )
        into.take_sequence(moved.sequence)
