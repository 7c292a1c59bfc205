"""REMOVED: messages went without having been acknowledged: expired, dropped, cancelled."""

from __future__ import annotations

from collections.abc import Sequence

from smista.core.message import Reason
from smista.records import rows, sequences
from smista.records.kinds import Kind
from smista.records.layout import U8, U32, U64, Layout
from smista.records.rows import Rows
from smista.records.sequences import SEQUENCES

HEAD = Layout(queue=U32, at_ms=U64, reason=U8, count=U32)
FIELDS = (*HEAD.fields, SEQUENCES)


def encode(queue: int, at_ms: int, reason: int, removed: Sequence[int]) -> bytes:
    return sequences.framed_with(Kind.REMOVED, HEAD.pack(queue, at_ms, reason, len(removed)), removed)


def decode(data: memoryview) -> tuple[int, int, int, tuple[int, ...]]:
    """(queue, at_ms, reason, sequences)"""
    queue, at_ms, reason, count = HEAD.read(data)
    return queue, at_ms, reason, sequences.read(data, HEAD.size, count)


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    queue, at_ms, reason, count = HEAD.unpack_from(block, start)
    kind = rows.EXPIRED if reason in (Reason.EXPIRED, Reason.RETIRED) else rows.REMOVED
    code = into.step(kind, queue, count)
    if code >= 0:
        into.detailed_run(kind, code, at_ms, count, reason=reason)
        into.take_sequences(block, start + HEAD.size, end, count)
