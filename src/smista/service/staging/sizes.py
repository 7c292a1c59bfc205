"""How large a batch of Arrow is when its buffers are decompressed, found before any of them is.

A message of a stream of Arrow is a head, which is a flatbuffer, and a body, in which the buffers of the columns lie. A
publisher may have compressed them, one by one: then each begins with the length it will have, or with -1 where
it was left as it is. Arrow believes these numbers and takes that much memory; so they are added up first.

pyarrow does not show them. What is read here of the head:

    Message       header_type (1)   header (2)        RecordBatch   buffers (2)   compression (3)
    buffer        offset in the body, length there: 8 bytes each
"""

from __future__ import annotations

import struct

_MESSAGE_HEADER = 2
_BUFFERS, _COMPRESSION = 2, 3
_BUFFER = struct.Struct("<qq")


def unpacked_bytes(head: bytes, body: memoryview) -> int:
    """What the buffers of a record batch come to; raises ValueError where head and body do not fit together."""
    try:
        batch = _followed(head, _field(head, _followed(head, 0), _MESSAGE_HEADER))
        if not _field(head, batch, _COMPRESSION):
            return len(body)
        buffers = _followed(head, _field(head, batch, _BUFFERS))
        count = _number("<I", head, buffers)
        places = [_BUFFER.unpack_from(head, buffers + 4 + _BUFFER.size * place) for place in range(count)]
        return sum(_unpacked(body, offset, length) for offset, length in places if length)
    except struct.error:
        raise ValueError("a batch says of its buffers what cannot be") from None


def _unpacked(body: memoryview, offset: int, length: int) -> int:
    if offset < 0 or length < 8 or offset + length > len(body):
        raise ValueError("a buffer lies outside its batch")
    unpacked = _number("<q", body, offset)
    return length if unpacked < 0 else unpacked


# -- flatbuffers ------------------------------------------------------------------------------------------------------


def _number(form: str, data: bytes | memoryview, place: int) -> int:
    [found] = struct.unpack_from(form, data, place)
    return int(found)


def _followed(data: bytes, place: int) -> int:
    """Where the offset that stands there leads."""
    return place + _number("<I", data, place)


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table stands; 0 where it is left out."""
    fields = table - _number("<i", data, table)
    entry = 4 + 2 * number
    if entry >= _number("<H", data, fields):
        return 0
    offset = _number("<H", data, fields + entry)
    return table + offset if offset else 0
