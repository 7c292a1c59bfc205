"""GIVEN_BACK: a delivery ended without success, and the message stays in its queue."""

from __future__ import annotations

from smista.records import rows, texts
from smista.records.frames import framed
from smista.records.kinds import Kind
from smista.records.layout import U8, U16, U32, U64, Field, Layout, check_fits
from smista.records.rows import Rows

HEAD = Layout(queue=U32, sequence=U64, at_ms=U64, due_at_ms=U64, reason=U8, error_bytes=U16)
"""It is scheduled until `due_at_ms` if that is later than `at_ms`."""
FIELDS = (*HEAD.fields, Field("error", texts.TEXT))


def encode(queue: int, sequence: int, at_ms: int, due_at_ms: int, reason: int, error: str) -> bytes:
    text = texts.pack_error(error)
    return framed(Kind.GIVEN_BACK, HEAD.pack(queue, sequence, at_ms, due_at_ms, reason, len(text)) + text)


def decode(data: memoryview) -> tuple[int, int, int, int, int, str]:
    """(queue, sequence, at_ms, due_at_ms, reason, error)"""
    queue, sequence, at_ms, due_at_ms, reason, error_bytes = HEAD.read(data)
    check_fits(data, HEAD.size + error_bytes)
    return queue, sequence, at_ms, due_at_ms, reason, texts.read(data, HEAD.size)


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    queue, sequence, at_ms, due_at_ms, reason, _ = HEAD.unpack_from(block, start)
    code = into.step(rows.RETURNED, queue, 1)
    if code >= 0:
        error = into.error_code(texts.read(block, start + HEAD.size, end) if into.has_errors else "")
        into.detailed_run(rows.RETURNED, code, at_ms, 1, reason=reason, ready_at_ms=due_at_ms, error=error)
        into.take_sequence(sequence)
