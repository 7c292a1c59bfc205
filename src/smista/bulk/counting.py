"""How many rows a block is, of all kinds and queues, without taking its records apart."""

from __future__ import annotations

from smista import records
from smista.records import Kind
from smista.records.layout import LENGTH, Layout

_HEADS: dict[int, Layout] = {
    Kind.ENQUEUED: records.enqueued.HEAD,
    Kind.FANNED_OUT: records.fanned_out.HEAD,
    Kind.DELIVERED: records.delivered.HEAD,
    Kind.EXTENDED: records.extended.HEAD,
    Kind.ACKNOWLEDGED: records.acknowledged.HEAD,
    Kind.BECAME_READY: records.became_ready.HEAD,
    Kind.REMOVED: records.removed.HEAD,
}
_COUNT_AT = {kind: head.offsets["count"] for kind, head in _HEADS.items()}
"""Where a record says how many messages it is about. Its rows are as many."""
_SINGLE = frozenset((Kind.GIVEN_BACK, Kind.RESCHEDULED, Kind.PARKED, Kind.MOVED, Kind.PURGED, Kind.QUEUE_DELETED))


def row_count(block: bytes) -> int:
    count = 0
    for kind, start, end in records.blocks.walk(block):
        at = _COUNT_AT.get(kind)
        if at is not None:
            count += LENGTH.unpack_from(block, start + at)[0]
        elif kind in _SINGLE:
            count += 1
        elif kind == Kind.PLACED:
            count += records.placed.row_count(memoryview(block)[start:end])
    return count
