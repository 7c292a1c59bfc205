"""The record codec: what stands inside a block. Byte by byte in docs/log-format.md.

    block   = version u8 | written_at_ms u64 | record ...
    record  = kind u8 | length u32 | that many bytes

All numbers are little-endian. Hot records are packed with `struct`, many messages to a record (measured: a fixed struct
per message costs a third of one msgpack map per message); rare ones are msgpack arrays. The codec knows numbers, text
and bytes; what they mean is the engine's business. It never trusts what it reads: a length that does not fit, a kind
it does not know or a version above its own raises `RecordError`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from smista.log.errors import LogError, LogNewer

T = TypeVar("T")

VERSION = 2
_BLOCK = struct.Struct("<BQ")
_RECORD = struct.Struct("<BI")
_ENQUEUED = struct.Struct("<IQI")
_ENTRY = struct.Struct("<QBBII")
_FANNED_OUT = struct.Struct("<QIII")
_TARGET = struct.Struct("<IQBB")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_DELIVERED = struct.Struct("<IQQIIQBI")
_SEQUENCES = struct.Struct("<IQI")
_EXTENDED = struct.Struct("<IQQI")
_GIVEN_BACK = struct.Struct("<IQQQBH")
_RESCHEDULED = struct.Struct("<IQQQ")
_REMOVED = struct.Struct("<IQBI")
_PARKED = struct.Struct("<IQQBBH")
_MOVED = struct.Struct("<IQIQBQQBBH")
_PURGED = struct.Struct("<IQQQB")
_CLAIMED = struct.Struct("<IQIIQHI")

HAS_READY_AT = 1
HAS_EXPIRES_AT = 2
HEADER_BYTES = _BLOCK.size


class Kind(enum.IntEnum):
    OPENED = 1
    QUEUE_DECLARED = 2
    QUEUE_DELETED = 3
    EXCHANGE_DECLARED = 4
    EXCHANGE_DELETED = 5
    BOUND = 6
    UNBOUND = 7
    POLICY_SET = 8
    POLICY_DELETED = 9
    ENQUEUED = 16
    FANNED_OUT = 17
    PLACED = 18
    REMEMBERED = 19
    CLAIMED = 20
    CLAIMANT = 21
    COMMITTED = 22
    DELIVERED = 32
    EXTENDED = 33
    GIVEN_BACK = 34
    RESCHEDULED = 35
    ACKNOWLEDGED = 36
    REMOVED = 37
    PARKED = 38
    MOVED = 39
    PURGED = 40
    BECAME_READY = 41
    READDRESSED = 42


_KINDS = {kind.value: kind for kind in Kind}


class RecordError(LogError):
    """A block passed its checksum and still does not read as records: a mistake of the program that wrote it."""

    code = "log_record_invalid"


class Record(NamedTuple):
    kind: Kind
    data: memoryview


# -- blocks -----------------------------------------------------------------------------------------------------------


def block_header(written_at_ms: int) -> bytes:
    return _BLOCK.pack(VERSION, written_at_ms)


def written_at_ms(block: bytes) -> int:
    _check_version(block)
    at_ms: int = _BLOCK.unpack_from(block)[1]
    return at_ms


def records(block: bytes) -> Iterator[Record]:
    """The records of a block, in order."""
    _check_version(block)
    view = memoryview(block)
    offset, end = _BLOCK.size, len(block)
    while offset < end:
        if offset + _RECORD.size > end:
            raise RecordError(f"A record's head is cut short at byte {offset} of a block of {end} bytes.")
        number, length = _RECORD.unpack_from(block, offset)
        offset += _RECORD.size
        kind = _KINDS.get(number)
        if kind is None:
            raise RecordError(f"Record kind {number} at byte {offset} is not known to this program.")
        if offset + length > end:
            raise RecordError(f"A {kind.name} record of {length} bytes does not fit its block of {end} bytes.")
        yield Record(kind, view[offset : offset + length])
        offset += length


def record(kind: Kind, data: bytes) -> bytes:
    return _RECORD.pack(kind, len(data)) + data


def _check_version(block: bytes) -> None:
    if len(block) < _BLOCK.size:
        raise RecordError(f"A block of {len(block)} bytes is too short to be one.")
    if block[0] == 0:
        raise RecordError("A block has record version 0, which there never was.")
    if block[0] > VERSION:
        raise LogNewer("a block of the log", found=block[0], known=VERSION)


# -- messages entering ------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One message of an ENQUEUED or FANNED_OUT record."""

    queue: int
    sequence: int
    priority: int
    ready_at_ms: int
    expires_at_ms: int | None
    envelope: bytes
    body: bytes


def enqueued_head(queue: int, at_ms: int, count: int, data_bytes: int) -> bytes:
    """The start of an ENQUEUED record whose entries take `data_bytes`."""
    return _RECORD.pack(Kind.ENQUEUED, _ENQUEUED.size + data_bytes) + _ENQUEUED.pack(queue, at_ms, count)


entry_head = _ENTRY.pack
"""entry_head(sequence, priority, flags, envelope_bytes, body_bytes); then times by flags, envelope, body follow."""
ENTRY_BYTES = _ENTRY.size
instant = _U64.pack


def enqueued(data: memoryview) -> Iterator[Entry]:
    try:
        queue, at_ms, count = _ENQUEUED.unpack_from(data)
        offset = _ENQUEUED.size
        for _ in range(count):
            sequence, priority, flags, envelope_bytes, body_bytes = _ENTRY.unpack_from(data, offset)
            offset += _ENTRY.size
            ready_at_ms, expires_at_ms, offset = _times(data, flags, offset, at_ms)
            body_at = offset + envelope_bytes
            end = body_at + body_bytes
            _check_fits(data, end)
            yield Entry(
                queue,
                sequence,
                priority,
                ready_at_ms,
                expires_at_ms,
                bytes(data[offset:body_at]),
                bytes(data[body_at:end]),
            )
            offset = end
    except struct.error as error:
        raise RecordError(f"An ENQUEUED record is cut short: {error}.") from None


def enqueued_at_ms(kind: Kind, data: memoryview) -> int:
    return _unpack(_ENQUEUED, data)[1] if kind is Kind.ENQUEUED else _unpack(_FANNED_OUT, data)[0]


def fanned_out(at_ms: int, envelope: bytes, body: bytes, targets: Sequence[tuple[int, int, int, int, int]]) -> bytes:
    """Each target is (queue, sequence, priority, ready_at_ms, expires_at_ms or 0)."""
    parts = [_FANNED_OUT.pack(at_ms, len(envelope), len(body), len(targets)), envelope, body]
    for queue, sequence, priority, ready_at_ms, expires_at_ms in targets:
        flags = (HAS_READY_AT if ready_at_ms != at_ms else 0) | (HAS_EXPIRES_AT if expires_at_ms else 0)
        parts.append(_TARGET.pack(queue, sequence, priority, flags))
        if flags & HAS_READY_AT:
            parts.append(_U64.pack(ready_at_ms))
        if flags & HAS_EXPIRES_AT:
            parts.append(_U64.pack(expires_at_ms))
    return record(Kind.FANNED_OUT, b"".join(parts))


def read_fanned_out(data: memoryview) -> list[Entry]:
    try:
        at_ms, envelope_bytes, body_bytes, count = _FANNED_OUT.unpack_from(data)
        offset = _FANNED_OUT.size
        _check_fits(data, offset + envelope_bytes + body_bytes)
        envelope = bytes(data[offset : offset + envelope_bytes])
        offset += envelope_bytes
        body = bytes(data[offset : offset + body_bytes])
        offset += body_bytes
        entries = []
        for _ in range(count):
            queue, sequence, priority, flags = _TARGET.unpack_from(data, offset)
            ready_at_ms, expires_at_ms, offset = _times(data, flags, offset + _TARGET.size, at_ms)
            entries.append(Entry(queue, sequence, priority, ready_at_ms, expires_at_ms, envelope, body))
        return entries
    except struct.error as error:
        raise RecordError(f"A FANNED_OUT record is cut short: {error}.") from None


def _times(data: memoryview, flags: int, offset: int, at_ms: int) -> tuple[int, int | None, int]:
    ready_at_ms, expires_at_ms = at_ms, None
    if flags & HAS_READY_AT:
        (ready_at_ms,) = _U64.unpack_from(data, offset)
        offset += 8
    if flags & HAS_EXPIRES_AT:
        (expires_at_ms,) = _U64.unpack_from(data, offset)
        offset += 8
    return ready_at_ms, expires_at_ms, offset


def placed(states: bytes, body: bytes) -> bytes:
    """Messages with all that is known of them, sharing one body: relocated, or copied from another queue."""
    return record(Kind.PLACED, _U32.pack(len(states)) + states + body)


def read_placed(data: memoryview) -> tuple[memoryview, bytes]:
    (state_bytes,) = _unpack(_U32, data)
    _check_fits(data, 4 + state_bytes)
    return data[4 : 4 + state_bytes], bytes(data[4 + state_bytes :])


# -- transitions ------------------------------------------------------------------------------------------------------


def _with_sequences(kind: Kind, head: bytes, sequences: Sequence[int]) -> bytes:
    count = len(sequences)
    return _RECORD.pack(kind, len(head) + 8 * count) + head + struct.pack(f"<{count}Q", *sequences)


def _read_sequences(data: memoryview, offset: int, count: int) -> tuple[int, ...]:
    _check_fits(data, offset + 8 * count)
    return struct.unpack_from(f"<{count}Q", data, offset)


class Delivered(NamedTuple):
    queue: int
    at_ms: int
    deadline_ms: int | None
    run: int
    """Of the broker, see `Receipt`."""
    first_count: int
    """How many of the messages were handed out for the first time ..."""
    wait_ms: int
    """... and how long they had been ready, taken together."""
    consumer: str
    sequences: Sequence[int]


def delivered(fields: Delivered) -> bytes:
    consumer = fields.consumer.encode("utf-8", "replace")[:255]
    head = _DELIVERED.pack(
        fields.queue,
        fields.at_ms,
        fields.deadline_ms or 0,
        fields.run,
        fields.first_count,
        fields.wait_ms,
        len(consumer),
        len(fields.sequences),
    )
    return _with_sequences(Kind.DELIVERED, head + consumer, fields.sequences)


def read_delivered(data: memoryview) -> Delivered:
    queue, at_ms, deadline_ms, run, first_count, wait_ms, consumer_bytes, count = _unpack(_DELIVERED, data)
    offset = _DELIVERED.size + consumer_bytes
    consumer = str(data[_DELIVERED.size : offset], "utf-8", "replace")
    sequences = _read_sequences(data, offset, count)
    return Delivered(queue, at_ms, deadline_ms or None, run, first_count, wait_ms, consumer, sequences)


def extended(queue: int, at_ms: int, deadline_ms: int | None, sequences: Sequence[int]) -> bytes:
    return _with_sequences(Kind.EXTENDED, _EXTENDED.pack(queue, at_ms, deadline_ms or 0, len(sequences)), sequences)


def read_extended(data: memoryview) -> tuple[int, int, int | None, tuple[int, ...]]:
    queue, at_ms, deadline_ms, count = _unpack(_EXTENDED, data)
    return queue, at_ms, deadline_ms or None, _read_sequences(data, _EXTENDED.size, count)


def became_ready(queue: int, at_ms: int, sequences: Sequence[int]) -> bytes:
    return _with_sequences(Kind.BECAME_READY, _SEQUENCES.pack(queue, at_ms, len(sequences)), sequences)


def acknowledged(queue: int, at_ms: int, sequences: Sequence[int]) -> bytes:
    return _with_sequences(Kind.ACKNOWLEDGED, _SEQUENCES.pack(queue, at_ms, len(sequences)), sequences)


def read_sequences(data: memoryview) -> tuple[int, int, tuple[int, ...]]:
    """(queue, at_ms, sequences) of an ACKNOWLEDGED or BECAME_READY record."""
    queue, at_ms, count = _unpack(_SEQUENCES, data)
    return queue, at_ms, _read_sequences(data, _SEQUENCES.size, count)


def removed(queue: int, at_ms: int, reason: int, sequences: Sequence[int]) -> bytes:
    return _with_sequences(Kind.REMOVED, _REMOVED.pack(queue, at_ms, reason, len(sequences)), sequences)


def read_removed(data: memoryview) -> tuple[int, int, int, tuple[int, ...]]:
    queue, at_ms, reason, count = _unpack(_REMOVED, data)
    return queue, at_ms, reason, _read_sequences(data, _REMOVED.size, count)


def given_back(queue: int, sequence: int, at_ms: int, due_at_ms: int, reason: int, error: str) -> bytes:
    text = error.encode("utf-8", "replace")[:65_535]
    return record(Kind.GIVEN_BACK, _GIVEN_BACK.pack(queue, sequence, at_ms, due_at_ms, reason, len(text)) + text)


def read_given_back(data: memoryview) -> tuple[int, int, int, int, int, str]:
    """(queue, sequence, at_ms, due_at_ms, reason, error)"""
    queue, sequence, at_ms, due_at_ms, reason, error_bytes = _unpack(_GIVEN_BACK, data)
    _check_fits(data, _GIVEN_BACK.size + error_bytes)
    return queue, sequence, at_ms, due_at_ms, reason, _text(data, _GIVEN_BACK.size)


def rescheduled(queue: int, sequence: int, at_ms: int, due_at_ms: int) -> bytes:
    return record(Kind.RESCHEDULED, _RESCHEDULED.pack(queue, sequence, at_ms, due_at_ms))


def read_rescheduled(data: memoryview) -> tuple[int, int, int, int]:
    queue, sequence, at_ms, due_at_ms = _unpack(_RESCHEDULED, data)
    return queue, sequence, at_ms, due_at_ms


class Parked(NamedTuple):
    queue: int
    sequence: int
    at_ms: int
    reason: int
    failed_by: int
    """0 where no failed delivery was the cause."""
    name: str
    """The queue's, which is not known when its declaration stands further on in the log."""
    error: str


def parked(fields: Parked) -> bytes:
    head, texts = _with_texts(fields)
    return record(Kind.PARKED, _PARKED.pack(*head, len(texts[0])) + b"".join(texts))


def read_parked(data: memoryview) -> Parked:
    queue, sequence, at_ms, reason, failed_by, name_bytes = _unpack(_PARKED, data)
    return Parked(queue, sequence, at_ms, reason, failed_by, *_texts(data, _PARKED.size, name_bytes))


class Moved(NamedTuple):
    source: int
    sequence: int
    target: int
    """0 for a queue that is not in the log, because it is not durable."""
    new_sequence: int
    priority: int
    expires_at_ms: int
    """0 for never."""
    at_ms: int
    reason: int
    failed_by: int
    """0 where no failed delivery was the cause."""
    name: str
    """The source's, which is not known when its declaration stands further on in the log."""
    error: str


def moved(fields: Moved) -> bytes:
    head, texts = _with_texts(fields)
    return record(Kind.MOVED, _MOVED.pack(*head, len(texts[0])) + b"".join(texts))


def read_moved(data: memoryview) -> Moved:
    *numbers, name_bytes = _unpack(_MOVED, data)
    source, sequence, target, new_sequence, priority, expires_at_ms, at_ms, reason, failed_by = numbers
    name, error = _texts(data, _MOVED.size, name_bytes)
    return Moved(source, sequence, target, new_sequence, priority, expires_at_ms, at_ms, reason, failed_by, name, error)


def purged(queue: int, at_ms: int, cut: int, count: int, *, ready_only: bool) -> bytes:
    return record(Kind.PURGED, _PURGED.pack(queue, at_ms, cut, count, ready_only))


def read_purged(data: memoryview) -> tuple[int, int, int, int, bool]:
    """(queue, at_ms, cut, count, ready_only)"""
    queue, at_ms, cut, count, ready_only = _unpack(_PURGED, data)
    return queue, at_ms, cut, count, bool(ready_only)


class Claimed(NamedTuple):
    """Rows of a claim; its number, and the rest of what is known of it, is in a CLAIMANT."""

    queue: int
    consumer: str
    number: int
    first: int
    """The place of the first of these rows in the claim."""
    run: int
    body_bytes: int
    sequences: Sequence[int]
    deliveries: Sequence[int]


def claimed(fields: Claimed) -> bytes:
    consumer = fields.consumer.encode()
    count = len(fields.sequences)
    head = _CLAIMED.pack(fields.queue, fields.number, fields.first, fields.run, fields.body_bytes, len(consumer), count)
    deliveries = struct.pack(f"<{count}I", *fields.deliveries)
    return record(Kind.CLAIMED, head + consumer + struct.pack(f"<{count}Q", *fields.sequences) + deliveries)


def read_claimed(data: memoryview) -> Claimed:
    queue, number, first, run, body_bytes, consumer_bytes, count = _unpack(_CLAIMED, data)
    offset = _CLAIMED.size + consumer_bytes
    _check_fits(data, offset + 12 * count)
    consumer = str(data[_CLAIMED.size : offset], "utf-8", "replace")
    deliveries = struct.unpack_from(f"<{count}I", data, offset + 8 * count)
    return Claimed(queue, consumer, number, first, run, body_bytes, _read_sequences(data, offset, count), deliveries)


# -- rare records: msgpack arrays -------------------------------------------------------------------------------------


def packed(kind: Kind, fields: object) -> bytes:
    return record(kind, msgspec.msgpack.encode(fields))


def unpack(data: memoryview, type_: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"A record does not decode: {error}.") from None


def _unpack(form: struct.Struct, data: memoryview) -> tuple[int, ...]:
    try:
        return form.unpack_from(data)
    except struct.error as error:
        raise RecordError(f"A record is cut short: {error}.") from None


def _text(data: memoryview, offset: int) -> str:
    return str(data[offset:], "utf-8", "replace")


def _with_texts(fields: tuple[Any, ...]) -> tuple[tuple[int, ...], list[bytes]]:
    """The numbers of a record, and the two texts that end it: a name, whose length is noted, and an error."""
    *numbers, name, error = fields
    return tuple(numbers), [name.encode("utf-8", "surrogatepass"), error.encode("utf-8", "replace")[:65_535]]


def _texts(data: memoryview, offset: int, name_bytes: int) -> tuple[str, str]:
    _check_fits(data, offset + name_bytes)
    name = str(data[offset : offset + name_bytes], "utf-8", "replace")
    return name, _text(data, offset + name_bytes)


def _check_fits(data: memoryview, end: int) -> None:
    if end > len(data):
        raise RecordError(f"A record names {end} bytes and has {len(data)}.")
