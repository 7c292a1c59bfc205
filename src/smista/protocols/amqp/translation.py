"""Properties of AMQP as the other protocols see them, and theirs as AMQP does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smista.protocols.amqp.wire import content, values
from smista.protocols.amqp.wire.values import DEPTH_MAX, Octets, Timestamp
from smista.service import properties
from smista.service.properties import Properties

INSTANT_MAX = 1 << 52


def as_properties(data: bytes) -> Properties:
    """What another protocol sees of properties that came over AMQP; `data` starts with the tag."""
    basic = content.read_properties(data[1:])
    return Properties(
        headers={_clean(name): _plain(value) for name, value in (basic.headers or {}).items()},
        content_type=_clean(basic.content_type),
        content_encoding=_clean(basic.content_encoding),
        correlation_id=_clean(basic.correlation_id),
        reply_to=_clean(basic.reply_to),
        type=_clean(basic.type),
        app_id=_clean(basic.app_id),
        user_id=_clean(basic.user_id),
        external_id=_clean(basic.message_id),
        timestamp_ms=_milliseconds(basic.timestamp),
    )


def from_properties(given: Properties) -> content.BasicProperties:
    """What an AMQP consumer sees of properties that came through another protocol."""
    headers = _writable(given.headers, 0)
    assert isinstance(headers, dict)
    return content.BasicProperties(
        content_type=_short(given.content_type),
        content_encoding=_short(given.content_encoding),
        headers=headers or None,
        delivery_mode=2,
        correlation_id=_short(given.correlation_id),
        reply_to=_short(given.reply_to),
        message_id=_short(given.external_id),
        timestamp=_seconds(given.timestamp_ms),
        type=_short(given.type),
        user_id=_short(given.user_id),
        app_id=_short(given.app_id),
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
    """Text as other protocols can write it: what is not UTF-8 is replaced."""
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


properties.READERS[content.AMQP] = as_properties
