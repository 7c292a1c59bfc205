"""What a publisher says of a message beside its body, and how the log keeps it.

The engine keeps properties as bytes that mean nothing to it. The first byte says who wrote them, so that a door can
hand on what it got without taking it apart, and every other door can still read it:

    (nothing)                   no properties
    0x01  MessagePack map       written by the native door: `Properties`, fields that are not set left out

A door that keeps its own form takes another number and adds its reader to `READERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from smista.core.caches import cached_if_small

NATIVE = 1


class Properties(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    headers: dict[str, Any] = msgspec.field(default_factory=dict)
    """The publisher's own names and values."""
    content_type: str | None = None
    content_encoding: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    type: str | None = None
    app_id: str | None = None
    user_id: str | None = None
    external_id: str | None = None
    """The publisher's own id for the message; the broker's is another."""
    timestamp_ms: int | None = None
    """When the publisher says it happened."""


EMPTY = Properties()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Properties).decode

READERS: dict[int, Callable[[bytes], Properties]] = {NATIVE: lambda data: _decode(memoryview(data)[1:])}
CHECKS: dict[int, Callable[[bytes], None]] = {}
"""What a protocol's own form has to be beside readable, where that is not all; raises `ValueError`."""


def check_kept(data: bytes) -> None:
    """Refuse bytes that no protocol of ours can have written, with a `ValueError`."""
    read_kept = READERS.get(data[0]) if data and data[0] != NATIVE else None
    if read_kept is None:
        raise ValueError("no protocol keeps its properties so")
    try:
        read_kept(data)
    except Exception as error:  # a reader's own: each protocol has another
        raise ValueError(str(error) or type(error).__name__) from None
    if (check := CHECKS.get(data[0])) is not None:
        check(data)


def write(properties: Properties) -> bytes:
    """The bytes an envelope keeps."""
    return b"" if properties == EMPTY else b"\x01" + _encode(properties)


JSON = Properties(content_type="application/json")
JSON_BYTES = write(JSON)


@cached_if_small(len)
def read(data: bytes) -> Properties:
    """What the bytes say. Most messages of a queue carry the same few, so they are read once. Do not change them."""
    return READERS[data[0]](data) if data else EMPTY
