"""PURGED: everything in a queue, or everything that was ready, went."""

from __future__ import annotations

from smista.records import rows
from smista.records.frames import framed
from smista.records.kinds import Kind
from smista.records.layout import U8, U32, U64, Layout
from smista.records.rows import NONE, Rows

HEAD = Layout(queue=U32, at_ms=U64, cut=U64, count=U64, ready_only=U8)
"""`cut` is the next sequence at that moment: everything below it went, `count` messages."""
FIELDS = HEAD.fields


def encode(queue: int, at_ms: int, cut: int, count: int, *, ready_only: bool) -> bytes:
    return framed(Kind.PURGED, HEAD.pack(queue, at_ms, cut, count, ready_only))


def decode(data: memoryview) -> tuple[int, int, int, int, bool]:
    """(queue, at_ms, cut, count, ready_only)"""
    queue, at_ms, cut, count, ready_only = HEAD.read(data)
    return queue, at_ms, cut, count, bool(ready_only)


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    queue, at_ms, cut, count, ready_only = HEAD.unpack_from(block, start)
    code = into.step(rows.PURGED, queue, 1)
    if code >= 0:
        reason = rows.READY_PURGED if ready_only else rows.ALL_PURGED
        into.detailed_run(rows.PURGED, code, at_ms, 1, reason=reason, target_sequence=cut, purged=count)
        into.take_sequence(NONE)
