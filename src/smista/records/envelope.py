"""The envelope of a message as the log has it, but for its properties, which stand by themselves: a packed array, and
nothing for one that has nothing else in it."""

from __future__ import annotations

import msgspec

from smista.core.message import PLAIN, Envelope

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


def encode(envelope: Envelope) -> bytes:
    return b"" if envelope.is_like(PLAIN) else _encode(msgspec.structs.replace(envelope, properties=b""))


def decode(data: bytes) -> Envelope:
    return _decode(data) if data else PLAIN


def with_properties(envelope: Envelope, properties: bytes) -> Envelope:
    """The whole of it."""
    if not properties:
        return envelope
    return Envelope(
        properties,
        envelope.exchange,
        envelope.routing_key,
        envelope.group,
        envelope.deduplication_id,
        envelope.ttl_ms,
        envelope.max_retries,
    )
