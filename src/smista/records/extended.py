"""EXTENDED: leases got another end."""

from __future__ import annotations

from collections.abc import Sequence

from smista.records import rows, sequences
from smista.records.kinds import Kind
from smista.records.layout import U32, U64, Layout
from smista.records.rows import NONE, Rows
from smista.records.sequences import SEQUENCES

HEAD = Layout(queue=U32, at_ms=U64, deadline_ms=U64, count=U32)
FIELDS = (*HEAD.fields, SEQUENCES)


def encode(queue: int, at_ms: int, deadline_ms: int | None, extended: Sequence[int]) -> bytes:
    head = HEAD.pack(queue, at_ms, deadline_ms or 0, len(extended))
    return sequences.framed_with(Kind.EXTENDED, head, extended)


def decode(data: memoryview) -> tuple[int, int, int | None, tuple[int, ...]]:
    """(queue, at_ms, deadline_ms, sequences)"""
    queue, at_ms, deadline_ms, count = HEAD.read(data)
    return queue, at_ms, deadline_ms or None, sequences.read(data, HEAD.size, count)


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    queue, at_ms, deadline_ms, count = HEAD.unpack_from(block, start)
    code = into.step(rows.EXTENDED, queue, count)
    if code >= 0:
        into.detailed_run(rows.EXTENDED, code, at_ms, count, deadline_ms=deadline_ms or NONE)
        into.take_sequences(block, start + HEAD.size, end, count)
