"""A message's content header: the size of its body and its basic properties.

    class (60)  weight (0)  body size (8 octets)  property flags (2 octets)  the properties whose flag is set

The properties are kept with the message as the bytes that came, after a 0x02 (see `protocols.properties`), and go out
to AMQP consumers as they are. Other doors read them through `as_properties`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from smista.protocols import properties
from smista.protocols.amqp import values
from smista.protocols.amqp.replies import UNEXPECTED_FRAME, ConnectionClosing
from smista.protocols.amqp.values import DEPTH_MAX, Octets, Reader, SyntaxFault, Timestamp
from smista.protocols.properties import Properties

BASIC_CLASS = 60
PUBLISH = (60, 40)
INSTANT_MAX = 1 << 52
AMQP = 2
"""The first byte of properties kept in this form."""
TAG = b"\x02"

_HEAD = struct.Struct(">HHQ")

# In the order of their flags, from the highest bit down.
_PROPERTIES = (
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
_FLAGS = {name: 1 << (15 - place) for place, (name, _) in enumerate(_PROPERTIES)}


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
    for name, wire in _PROPERTIES:
        if flags & _FLAGS[name]:
            if wire == "table":
                found["came"] = came = reader.table_and_bytes()
                found[name] = came[0]
            else:
                found[name] = getattr(reader, wire)()
    if reader.position != reader.end:
        raise SyntaxFault(f"{reader.end - reader.position} bytes follow the properties")
    return BasicProperties(**found)


def write_properties(said: BasicProperties) -> bytes:
    flags = 0
    parts: list[bytes] = []
    for name, wire in _PROPERTIES:
        value = getattr(said, name)
        if value is None:
            continue
        flags |= _FLAGS[name]
        if wire == "short_string":
            parts.append(values.short_string(value))
        elif wire == "table":
            parts.append(values.table(value) if said.came is None else values.table_as_it_came(value, *said.came))
        elif wire == "octet":
            parts.append(bytes((value,)))
        else:
            parts.append(struct.pack(">Q", value))
    return struct.pack(">H", flags) + b"".join(parts)


# -- to and from the other doors --------------------------------------------------------------------------------------


def as_properties(data: bytes) -> Properties:
    """What another door sees of properties that came over AMQP; `data` starts with the tag."""
    said = read_properties(data[1:])
    return Properties(
        headers={_clean(name): _plain(value) for name, value in (said.headers or {}).items()},
        content_type=_clean(said.content_type),
        content_encoding=_clean(said.content_encoding),
        correlation_id=_clean(said.correlation_id),
        reply_to=_clean(said.reply_to),
        type=_clean(said.type),
        app_id=_clean(said.app_id),
        user_id=_clean(said.user_id),
        external_id=_clean(said.message_id),
        timestamp_ms=_milliseconds(said.timestamp),
    )


def from_properties(said: Properties) -> BasicProperties:
    """What an AMQP consumer sees of properties that came through another door."""
    headers = _writable(said.headers, 0)
    assert isinstance(headers, dict)
    return BasicProperties(
        content_type=_short(said.content_type),
        content_encoding=_short(said.content_encoding),
        headers=headers or None,
        delivery_mode=2,
        correlation_id=_short(said.correlation_id),
        reply_to=_short(said.reply_to),
        message_id=_short(said.external_id),
        timestamp=_seconds(said.timestamp_ms),
        type=_short(said.type),
        user_id=_short(said.user_id),
        app_id=_short(said.app_id),
    )


# What no calendar holds is left out: the other side could not write it.


def _milliseconds(timestamp: int | None) -> int | None:
    return None if timestamp is None or timestamp >= INSTANT_MAX else timestamp * 1000


def _seconds(instant_ms: int | None) -> int | None:
    return None if instant_ms is None or not 0 <= instant_ms < INSTANT_MAX else instant_ms // 1000


def _short(text: str | None) -> str | None:
    """AMQP has room for 255 bytes; what is longer would make the message undeliverable, so it is cut."""
    return None if text is None else values.cut(text)


def _writable(value: object, depth: int) -> object:
    """Headers as a table can hold them: names are cut, and what is nested deeper than a table may be is left out."""
    match value:
        case Mapping():
            if depth > DEPTH_MAX:
                return None
            return {values.cut(str(name)): _writable(each, depth + 1) for name, each in value.items()}
        case list() | tuple():
            return None if depth > DEPTH_MAX else [_writable(each, depth + 1) for each in value]
    return value


def _clean(text: Any) -> Any:
    """Text as other doors can write it: what is not UTF-8 is replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(text, str) else text


def _plain(value: object) -> object:
    """A table's value as JSON and MessagePack can write it."""
    match value:
        case Timestamp():
            return int(value)
        case Octets():
            return bytes(value)
        case dict():
            return {_clean(name): _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
    return value


properties.READERS[AMQP] = as_properties
