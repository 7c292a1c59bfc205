"""FANNED_OUT: one message was published to several queues: one body, in all of them or in none."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from smista.records import entry, rows
from smista.records.entry import HAS_EXPIRES_AT, HAS_READY_AT, TIME_BYTES, Entry, pack_times, read_times
from smista.records.errors import RecordError
from smista.records.frames import framed
from smista.records.kinds import Kind
from smista.records.layout import U8, U32, U64, Field, Layout, check_fits
from smista.records.rows import Rows

HEAD = Layout(at_ms=U64, envelope_bytes=U32, properties_bytes=U32, body_bytes=U32, count=U32)
TARGET = Layout(queue=U32, sequence=U64, priority=U8, flags=U8)
FIELDS = (
    *HEAD.fields,
    Field("envelope", "bytes"),
    Field("properties", "bytes"),
    Field("body", "bytes"),
    Field("targets", "count x target"),
    *TARGET.fields,
    *entry.TIMES,
)


def encode(
    at_ms: int, envelope: bytes, properties: bytes, body: bytes, targets: Sequence[tuple[int, int, int, int, int]]
) -> bytes:
    """Each target is (queue, sequence, priority, ready_at_ms, expires_at_ms or 0)."""
    head = HEAD.pack(at_ms, len(envelope), len(properties), len(body), len(targets))
    parts = [head, envelope, properties, body]
    for queue, sequence, priority, ready_at_ms, expires_at_ms in targets:
        flags = (HAS_READY_AT if ready_at_ms != at_ms else 0) | (HAS_EXPIRES_AT if expires_at_ms else 0)
        parts.append(TARGET.pack(queue, sequence, priority, flags))
        if flags:
            parts.append(pack_times(flags, ready_at_ms, expires_at_ms))
    return framed(Kind.FANNED_OUT, b"".join(parts))


def at_ms(data: memoryview) -> int:
    return HEAD.read(data)[0]


def decode(data: memoryview) -> list[Entry]:
    try:
        at_ms, envelope_bytes, properties_bytes, body_bytes, count = HEAD.unpack_from(data)
        properties_at = HEAD.size + envelope_bytes
        body_at = properties_at + properties_bytes
        offset = body_at + body_bytes
        check_fits(data, offset)
        envelope, properties = bytes(data[HEAD.size : properties_at]), bytes(data[properties_at:body_at])
        body = bytes(data[body_at:offset])
        entries = []
        for _ in range(count):
            queue, sequence, priority, flags = TARGET.unpack_from(data, offset)
            ready_at_ms, expires_at_ms, offset = read_times(data, flags, offset + TARGET.size, at_ms)
            entries.append(Entry(queue, sequence, priority, ready_at_ms, expires_at_ms, envelope, properties, body))
        return entries
    except struct.error as error:
        raise RecordError(f"A FANNED_OUT record is cut short: {error}.") from None


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    at_ms, envelope_bytes, properties_bytes, body_bytes, count = HEAD.unpack_from(block, start)
    envelope_at = start + HEAD.size
    properties_at = envelope_at + envelope_bytes
    body_at = properties_at + properties_bytes
    offset = body_at + body_bytes
    envelope = block[envelope_at:properties_at], block[properties_at:body_at]
    body = memoryview(block)[body_at:offset]
    for _ in range(count):
        queue, sequence, priority, flags = TARGET.unpack_from(block, offset)
        offset += TARGET.size
        code = into.step(rows.ENQUEUED, queue, 1)
        if code >= 0:
            ready_at_ms, expires_at_ms, _ = read_times(block, flags, offset, at_ms)
            into.run(rows.ENQUEUED, code, at_ms, 1)
            into.take_entry(sequence, priority, envelope, body, ready_at_ms=ready_at_ms, expires_at_ms=expires_at_ms)
        offset += TIME_BYTES * (flags & (HAS_READY_AT | HAS_EXPIRES_AT)).bit_count()
    if offset != end:
        raise ValueError("its targets do not fill it")
