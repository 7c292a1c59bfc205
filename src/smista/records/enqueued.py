"""ENQUEUED: messages were published to one queue, at `at_ms`, which is when they were created."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from smista.core.message import PLAIN, Envelope, Message
from smista.records import rows
from smista.records.entry import HAS_EXPIRES_AT, HAS_READY_AT, TIMES, Entry, pack_times, read_times
from smista.records.errors import RecordError
from smista.records.frames import FRAME
from smista.records.kinds import Kind
from smista.records.layout import U8, U32, U64, Field, Layout, check_fits
from smista.records.rows import Rows

HEAD = Layout(queue=U32, at_ms=U64, count=U32)
ENTRY = Layout(sequence=U64, priority=U8, flags=U8, envelope_bytes=U32, body_bytes=U32)
FIELDS = (
    *HEAD.fields,
    Field("entries", "count x entry"),
    *ENTRY.fields,
    *TIMES,
    Field("envelope", "bytes"),
    Field("body", "bytes"),
)

_pack_frame, _pack_head, _pack_entry = FRAME.pack, HEAD.pack, ENTRY.pack


Encoded = tuple[list[bytes], int]
"""The parts of the record, so that no body is copied, and its size."""


def encode(queue: int, at_ms: int, messages: Sequence[Message], pack_envelope: Callable[[Envelope], bytes]) -> Encoded:
    parts = [b""]  # its head, when the sizes are known
    more_bytes = 0
    for message in messages:
        body = message.body
        assert type(body) is bytes
        size = len(body)
        more_bytes += size
        flags = HAS_READY_AT if message.ready_at_ms != at_ms else 0
        if message.expires_at_ms is not None:
            flags |= HAS_EXPIRES_AT
        envelope = message.envelope
        if envelope is PLAIN and not flags:
            parts += (_pack_entry(message.sequence, message.priority, 0, 0, size), body)
            continue
        packed = b"" if envelope is PLAIN else pack_envelope(envelope)
        entry = _pack_entry(message.sequence, message.priority, flags, len(packed), size)
        if flags:
            packed = pack_times(flags, message.ready_at_ms, message.expires_at_ms) + packed
        parts += (entry, packed, body)
        more_bytes += len(packed)
    size = HEAD.size + ENTRY.size * len(messages) + more_bytes
    parts[0] = _pack_frame(Kind.ENQUEUED, size) + _pack_head(queue, at_ms, len(messages))
    return parts, FRAME.size + size


def at_ms(data: memoryview) -> int:
    return HEAD.read(data)[1]


def decode(data: memoryview) -> Iterator[Entry]:
    try:
        queue, at_ms, count = HEAD.unpack_from(data)
        offset = HEAD.size
        for _ in range(count):
            sequence, priority, flags, envelope_bytes, body_bytes = ENTRY.unpack_from(data, offset)
            ready_at_ms, expires_at_ms, offset = read_times(data, flags, offset + ENTRY.size, at_ms)
            body_at = offset + envelope_bytes
            end = body_at + body_bytes
            check_fits(data, end)
            envelope, body = bytes(data[offset:body_at]), bytes(data[body_at:end])
            yield Entry(queue, sequence, priority, ready_at_ms, expires_at_ms, envelope, body)
            offset = end
    except struct.error as error:
        raise RecordError(f"An ENQUEUED record is cut short: {error}.") from None


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    queue, at_ms, count = HEAD.unpack_from(block, start)
    code = into.step(rows.ENQUEUED, queue, count)
    if code >= 0 and count:
        into.run(rows.ENQUEUED, code, at_ms, count)
        into.take_entries(block, start + HEAD.size, end, count)
