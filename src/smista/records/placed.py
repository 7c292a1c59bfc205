"""PLACED: messages that share a body, with all that is known of them: relocated, or copied from another queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from smista.core.message import PLAIN, Death, Deliveries, Envelope, State
from smista.records import envelope as envelopes
from smista.records import rows
from smista.records.errors import RecordError
from smista.records.frames import framed
from smista.records.kinds import Kind
from smista.records.layout import U32, Field, Layout, check_fits
from smista.records.rows import Rows

HEAD = Layout(state_bytes=U32)
FIELDS = (*HEAD.fields, Field("states", "packed array of message"), Field("body", "bytes"))


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """All that is known of a message but its body."""

    queue: int
    sequence: int
    number: int
    envelope: Envelope | None
    """None: the same as of the one before it in the record."""
    priority: int
    created_at_ms: int
    ready_at_ms: int
    state: State
    expires_at_ms: int | None
    deadline_ms: int | None
    deliveries: Deliveries | None
    deaths: tuple[Death, ...] | None
    """None: the same as of the one before it in the record."""
    entered_at_ms: int = 0
    """When it came into its queue by this record; 0 where it was there already and is relocated."""


class Found(NamedTuple):
    """A message of such a record as it is read, with what it shares with the one before it."""

    placed: Placed
    envelope: Envelope
    deaths: tuple[Death, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Placed]).decode


def encode(states: Sequence[Placed], body: bytes) -> bytes:
    packed = _encode(states)
    return framed(Kind.PLACED, HEAD.pack(len(packed)) + packed + body)


def decode(data: memoryview) -> tuple[list[Found], memoryview]:
    """The messages, and the body they share. Copies share their envelope and their deaths."""
    (state_bytes,) = HEAD.read(data)
    body_at = HEAD.size + state_bytes
    check_fits(data, body_at)
    try:
        states = _decode(data[HEAD.size : body_at])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"A PLACED record does not decode: {error}.") from None
    return list(_found(states)), data[body_at:]


def _found(states: Sequence[Placed]) -> Iterator[Found]:
    envelope = PLAIN
    deaths: tuple[Death, ...] = ()
    for placed in states:
        if placed.envelope is not None:
            envelope = PLAIN if placed.envelope == PLAIN else placed.envelope
        if placed.deaths is not None:
            deaths = placed.deaths
        yield Found(placed, envelope, deaths)


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    found, body = decode(memoryview(block)[start:end])
    for placed, envelope, _ in found:
        if not placed.entered_at_ms:
            # It was there, and has only been written again.
            continue
        code = into.step(rows.ENQUEUED, placed.queue, 1)
        if code >= 0:
            into.run(rows.ENQUEUED, code, placed.entered_at_ms, 1)
            into.take_entry(
                placed.sequence,
                placed.priority,
                (envelopes.encode(envelope), envelope.properties),
                body,
                ready_at_ms=placed.ready_at_ms,
                expires_at_ms=placed.expires_at_ms,
                created_at_ms=placed.created_at_ms,
                number=placed.number,
            )
