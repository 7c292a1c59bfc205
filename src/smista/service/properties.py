"""What a publisher gives with a message beside its body, and how the log keeps it.

The engine keeps properties as bytes that mean nothing to it. The first byte says who wrote them, so that a protocol can
hand on what it got without taking it apart, and every other protocol can still read it:

    (nothing)                   no properties
    0x01  MessagePack map       written by HTTP: `Properties`, fields that are not set left out

A protocol that keeps its own form takes another number and adds its reader to `READERS` when it is imported; where its
exchanges look at more than the headers that all protocols see, one to `ROUTING_READERS` too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from smista.caches import cached_if_small
from smista.message_properties import MessageProperties

NATIVE = 1
PROPERTIES_BYTES_MAX = 64 << 10
"""Headers and properties of one message, as the log keeps them."""


class Properties(MessageProperties, frozen=True, kw_only=True, omit_defaults=True):  # type: ignore[misc]  # frozen
    headers: dict[str, Any] = msgspec.field(default_factory=dict)


EMPTY = Properties()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Properties).decode

READERS: dict[int, Callable[[bytes], Properties]] = {NATIVE: lambda data: _decode(memoryview(data)[1:])}
Routing = tuple[Mapping[str, object] | None, Sequence[str]]
"""What a dead letter is routed by beside its key: its headers, and further keys."""
ROUTING_READERS: dict[int, Callable[[bytes], Routing]] = {}
CHECKS: dict[int, Callable[[bytes], None]] = {}
"""What a protocol's own form has to be beside readable, where that is not all; raises `ValueError`."""


def reader_modules() -> list[str]:
    """The modules whose import gives another process the readers that this one has."""
    return sorted({reader.__module__ for reader in READERS.values()})


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


def read_routing(data: bytes) -> Routing:
    """What the bytes say of where a dead letter goes."""
    read_kept = ROUTING_READERS.get(data[0]) if data else None
    return (read(data).headers, ()) if read_kept is None else read_kept(data)
