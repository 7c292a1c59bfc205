"""A message's content header: the size of its body and its basic properties.

    class (60)  weight (0)  body size (8 octets)  property flags (2 octets)  the properties whose flag is set

The properties are kept with the message as the bytes that came, after a 0x02 (see `protocols.properties`), and go out
to AMQP consumers as they are. Other protocols read them through `translation`.
"""

from __future__ import annotations

import struct
import sys
from typing import Any

import msgspec

from smista.protocols.amqp.wire import values
from smista.protocols.amqp.wire.replies import UNEXPECTED_FRAME, ConnectionClosing
from smista.protocols.amqp.wire.values import Reader, SyntaxFault

BASIC_CLASS = 60
PUBLISH = (60, 40)
AMQP = 2
"""The first byte of properties kept in this form."""
TAG = b"\x02"

_HEAD = struct.Struct(">HHQ")

# In the order of their flags, from the highest bit down.
PROPERTIES = (
    ("content_type", "short_string"),
    ("content_encoding", "short_string"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "short_string"),
    ("reply_to", "short_string"),
    ("expiration", "short_string"),
    ("message_id", "short_string"),
    ("timestamp", "long_long"),
    ("type", "short_string"),
    ("user_id", "short_string"),
    ("app_id", "short_string"),
    ("cluster_id", "short_string"),
)
FLAGS = {name: 1 << (15 - index) for index, (name, _) in enumerate(PROPERTIES)}


class BasicProperties(msgspec.Struct, kw_only=True):
    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None
    came: tuple[dict[str, Any], dict[str, bytes]] | None = None
    """The headers as they were read, and the bytes of each: those that are not replaced are written as they came."""
    value_count: int = 0
    """How many values were read, those within others too."""


def read_head(payload: bytes) -> tuple[int, bytes]:
    """The body's size and the bytes of the properties, flags included."""
    if len(payload) < 14:
        raise SyntaxFault("a content header is at least 14 bytes")
    class_number, weight, size = _HEAD.unpack_from(payload)
    if class_number != BASIC_CLASS or weight != 0:
        got = f"one for class {class_number}" if weight == 0 else "non content header frame"
        raise ConnectionClosing(
            UNEXPECTED_FRAME, f"expected content header for class 60, got {got} instead", ids=PUBLISH
        )
    return size, payload[12:]


def write_head(body_bytes: int, raw: bytes) -> bytes:
    return _HEAD.pack(BASIC_CLASS, 0, body_bytes) + raw


def read_properties(raw: bytes, values_max: int = sys.maxsize) -> BasicProperties:
    """`values_max` is for what somebody sends; what was taken once is always read."""
    reader = Reader(raw, values_max)
    flags = reader.short()
    if flags & 1:
        raise SyntaxFault("more property flags than there are properties")
    found: dict[str, Any] = {}
    for name, wire in PROPERTIES:
        if flags & FLAGS[name]:
            if wire == "table":
                found["came"] = came = reader.table_and_bytes()
                found[name] = came[0]
                found["value_count"] = reader.value_count
            else:
                found[name] = getattr(reader, wire)()
    if reader.position != reader.end:
        raise SyntaxFault(f"{reader.end - reader.position} bytes follow the properties")
    return BasicProperties(**found)


def write_properties(basic: BasicProperties) -> bytes:
    flags = 0
    parts: list[bytes] = []
    for name, wire in PROPERTIES:
        value = getattr(basic, name)
        if value is None:
            continue
        flags |= FLAGS[name]
        if wire == "short_string":
            parts.append(values.short_string(value))
        elif wire == "table":
            parts.append(values.table(value) if basic.came is None else values.table_as_it_came(value, *basic.came))
        elif wire == "octet":
            parts.append(bytes((value,)))
        else:
            parts.append(struct.pack(">Q", value))
    return struct.pack(">H", flags) + b"".join(parts)
