"""What stands around every record: its kind and its length.

record = kind u8 | length u32 | that many bytes
"""

from __future__ import annotations

from collections.abc import Iterator

from smista.records.errors import RecordError
from smista.records.kinds import Kind
from smista.records.layout import U8, U32, Layout

FRAME = Layout(kind=U8, length=U32)


def framed(kind: Kind, data: bytes) -> bytes:
    """A whole record."""
    return FRAME.pack(kind, len(data)) + data


def walk(block: bytes, offset: int) -> Iterator[tuple[int, int, int]]:
    """The number of the kind, the start and the end of each record from `offset` on, also of kinds that are not known
    here."""
    end = len(block)
    read_frame, frame_bytes = FRAME.unpack_from, FRAME.size
    while offset < end:
        start = offset + frame_bytes
        if start > end:
            raise RecordError(f"A record's head is cut short at byte {offset} of a block of {end} bytes.")
        number, length = read_frame(block, offset)
        offset = start + length
        if offset > end:
            raise RecordError(f"A record of kind {number} and {length} bytes does not fit its block of {end} bytes.")
        yield number, start, offset
