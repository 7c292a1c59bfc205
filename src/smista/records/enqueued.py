"""ENQUEUED: messages that follow each other were published to one queue, at `at_ms`, which is when they were created.

All of a record have a priority, times and an envelope in common, but for their properties: a batch in which these
differ is several records. So what most publishers send takes eight bytes a message beside body and properties, and
writing it costs next to nothing for each. Where the properties are the same too they are there once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

from smista.core.message import Envelope, Message
from smista.records import rows
from smista.records.entry import HAS_EXPIRES_AT, HAS_READY_AT, TIMES, Entry, pack_times, read_times
from smista.records.errors import RecordError
from smista.records.frames import FRAME
from smista.records.kinds import Kind
from smista.records.layout import U8, U32, U64, Field, Layout, Numbers
from smista.records.rows import Rows

HEAD = Layout(queue=U32, at_ms=U64, sequence=U64, count=U32, priority=U8, flags=U8, envelope_bytes=U32)
SAME_PROPERTIES = 4
SIZES = Numbers(U32)
FIELDS = (
    *HEAD.fields,
    *TIMES,
    Field("properties_bytes", SIZES.type),
    Field("body_bytes", SIZES.type),
    Field("envelope", "bytes"),
    Field("properties", "count x bytes"),
    Field("bodies", "count x bytes"),
)

Encoded = tuple[list[bytes], int]
"""The parts of the record, so that no body is copied, and its size."""
PackEnvelope = Callable[[Envelope], bytes]
"""Of an envelope but for its properties."""


def encode(
    queue: int, at_ms: int, messages: Sequence[Message], pack_envelope: PackEnvelope, *, are_alike: bool = False
) -> Encoded:
    """One record, or several, of messages in the order of their sequences; one where they `are_alike`, which is then
    not looked at: 0.08 us for each against 0.2."""
    if are_alike or len(messages) == 1:
        return _encode_alike(queue, at_ms, messages, pack_envelope)
    parts: list[bytes] = []
    size = start = 0
    for end in _ends(messages):
        more, more_bytes = _encode_alike(queue, at_ms, messages[start:end], pack_envelope)
        parts += more
        size += more_bytes
        start = end
    return parts, size


def _encode_alike(queue: int, at_ms: int, messages: Sequence[Message], pack_envelope: PackEnvelope) -> Encoded:
    first, count, flags = messages[0], len(messages), 0
    # None of them is paged out: they have just come.
    bodies = cast(list[bytes], [message.body for message in messages])
    properties = [message.envelope.properties for message in messages]
    envelope = pack_envelope(first.envelope)
    times = b""
    if first.ready_at_ms != at_ms or first.expires_at_ms is not None:
        flags = HAS_READY_AT if first.ready_at_ms != at_ms else 0
        flags |= 0 if first.expires_at_ms is None else HAS_EXPIRES_AT
        times = pack_times(flags, first.ready_at_ms, first.expires_at_ms)
    if properties.count(properties[0]) == count:
        flags |= SAME_PROPERTIES
        del properties[1:]
    properties_sizes, body_sizes = list(map(len, properties)), list(map(len, bodies))
    sizes = SIZES.pack(properties_sizes) + SIZES.pack(body_sizes)
    size = HEAD.size + len(times) + len(sizes) + len(envelope) + sum(properties_sizes) + sum(body_sizes)
    head = HEAD.pack(queue, at_ms, first.sequence, count, first.priority, flags, len(envelope))
    start = b"".join((FRAME.pack(Kind.ENQUEUED, size), head, times, sizes, envelope))
    return [start, *properties, *bodies], FRAME.size + size


def _ends(messages: Sequence[Message]) -> Iterator[int]:
    """Behind which messages others follow that are not like them."""
    before = messages[0]
    for place in range(1, len(messages)):
        message = messages[place]
        if (
            message.sequence != before.sequence + 1
            or message.priority != before.priority
            or message.ready_at_ms != before.ready_at_ms
            or message.expires_at_ms != before.expires_at_ms
            or not (message.envelope is before.envelope or message.envelope.is_like(before.envelope))
        ):
            yield place
        before = message
    yield len(messages)


class Outline(NamedTuple):
    """What such a record says of its messages, and where in a block their bytes stand."""

    queue: int
    at_ms: int
    sequence: int
    """Of the first."""
    message_count: int
    priority: int
    ready_at_ms: int
    expires_at_ms: int | None
    envelope: bytes
    properties_sizes: tuple[int, ...]
    """One, if all have the same."""
    properties_at: int
    body_sizes: tuple[int, ...]
    bodies_at: int


def outline(data: bytes | memoryview, start: int, end: int) -> Outline:
    """Of the record from `start` to `end`, which has to be filled by it."""
    try:
        queue, at_ms, sequence, count, priority, flags, envelope_bytes = HEAD.unpack_from(data, start)
        ready_at_ms, expires_at_ms, offset = read_times(data, flags, start + HEAD.size, at_ms)
    except struct.error as error:
        raise RecordError(f"An ENQUEUED record is cut short: {error}.") from None
    properties_count = 1 if flags & SAME_PROPERTIES else count
    properties_sizes = SIZES.read(data, offset, properties_count)
    offset += SIZES.size * properties_count
    body_sizes = SIZES.read(data, offset, count)
    envelope_at = offset + SIZES.size * count
    properties_at = envelope_at + envelope_bytes
    bodies_at = properties_at + sum(properties_sizes)
    if bodies_at + sum(body_sizes) != end:
        raise RecordError("An ENQUEUED record is not filled by its messages.")
    envelope = bytes(data[envelope_at:properties_at])
    return Outline(
        queue,
        at_ms,
        sequence,
        count,
        priority,
        ready_at_ms,
        expires_at_ms,
        envelope,
        properties_sizes,
        properties_at,
        body_sizes,
        bodies_at,
    )


def pieces(data: bytes | memoryview, sizes: Sequence[int], offset: int) -> Iterator[bytes]:
    """Bytes that follow each other."""
    for size in sizes:
        end = offset + size
        yield bytes(data[offset:end])
        offset = end


def at_ms(data: memoryview) -> int:
    return HEAD.read(data)[1]


def decode(data: memoryview) -> Iterator[Entry]:
    run = outline(data, 0, len(data))
    queue, priority, ready_at_ms, expires_at_ms, envelope = (
        run.queue,
        run.priority,
        run.ready_at_ms,
        run.expires_at_ms,
        run.envelope,
    )
    properties = list(pieces(data, run.properties_sizes, run.properties_at))
    if len(properties) < run.message_count:
        properties *= run.message_count
    bodies = pieces(data, run.body_sizes, run.bodies_at)
    for sequence, (own, body) in enumerate(zip(properties, bodies, strict=True), run.sequence):
        yield Entry(queue, sequence, priority, ready_at_ms, expires_at_ms, envelope, own, body)


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    queue, at_ms, _, count, *_ = HEAD.unpack_from(block, start)
    code = into.step(rows.ENQUEUED, queue, count)
    if code >= 0 and count:
        into.run(rows.ENQUEUED, code, at_ms, count)
        into.take_run(block, outline(block, start, end))
