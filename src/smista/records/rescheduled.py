"""RESCHEDULED: a scheduled message got another due time."""

from __future__ import annotations

from smista.records import rows
from smista.records.frames import framed
from smista.records.kinds import Kind
from smista.records.layout import U32, U64, Layout
from smista.records.rows import Rows

HEAD = Layout(queue=U32, sequence=U64, at_ms=U64, due_at_ms=U64)
FIELDS = HEAD.fields


def encode(queue: int, sequence: int, at_ms: int, due_at_ms: int) -> bytes:
    return framed(Kind.RESCHEDULED, HEAD.pack(queue, sequence, at_ms, due_at_ms))


decode = HEAD.read
"""(queue, sequence, at_ms, due_at_ms)"""


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    queue, sequence, at_ms, due_at_ms = HEAD.unpack_from(block, start)
    code = into.step(rows.RESCHEDULED, queue, 1)
    if code >= 0:
        into.detailed_run(rows.RESCHEDULED, code, at_ms, 1, ready_at_ms=due_at_ms)
        into.take_sequence(sequence)
