"""Through the records of a block, and how many rows they are, without taking them apart."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from smista.core.message import Envelope
from smista.engine.recorder import PlacedRecord, placed_states
from smista.log import records
from smista.log.records import HEADER_BYTES, Kind, RecordError

_RECORD = struct.Struct("<BI")
_U32 = struct.Struct("<I")
# Where in a record it is said how many messages it is about.
_COUNT_AT = {
    Kind.ENQUEUED: 12,
    Kind.FANNED_OUT: 16,
    Kind.DELIVERED: 37,
    Kind.EXTENDED: 20,
    Kind.ACKNOWLEDGED: 12,
    Kind.BECAME_READY: 12,
    Kind.REMOVED: 13,
}
_SINGLE = frozenset((Kind.GIVEN_BACK, Kind.RESCHEDULED, Kind.PARKED, Kind.MOVED, Kind.PURGED, Kind.QUEUE_DELETED))


def walk(block: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, start and end of each record, also of kinds that are not known here."""
    records.written_at_ms(block)  # its version is checked
    offset, end = HEADER_BYTES, len(block)
    while offset < end:
        if offset + 5 > end:
            raise RecordError(f"A record's head is cut short at byte {offset} of a block of {end} bytes.")
        kind, length = _RECORD.unpack_from(block, offset)
        offset += 5
        if offset + length > end:
            raise RecordError(f"A record of {length} bytes does not fit its block of {end} bytes.")
        yield kind, offset, offset + length
        offset += length


def new_in(block: bytes, start: int, end: int) -> tuple[list[tuple[PlacedRecord, Envelope]], memoryview]:
    """Of a PLACED record those that are new in their queue, and the body they share. What reclaiming wrote again has
    been where it is, and is no row."""
    (state_bytes,) = _U32.unpack_from(block, start)
    body_at = start + 4 + state_bytes
    if body_at > end:
        raise RecordError(f"A PLACED record names {state_bytes} bytes and has less.")
    view = memoryview(block)
    states = placed_states(view[start + 4 : body_at])
    return [(placed, envelope) for placed, envelope, _ in states if placed.entered_at_ms], view[body_at:end]


def row_count(block: bytes) -> int:
    """How many rows a block is, of all kinds and queues."""
    count = 0
    for kind, start, end in walk(block):
        at = _COUNT_AT.get(kind)  # type: ignore[call-overload]  # an IntEnum is found by its number
        if at is not None:
            count += _U32.unpack_from(block, start + at)[0]
        elif kind in _SINGLE:
            count += 1
        elif kind == Kind.PLACED:
            count += len(new_in(block, start, end)[0])
    return count
