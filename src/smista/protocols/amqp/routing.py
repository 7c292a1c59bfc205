"""What exchanges look at beside the routing key: a message's headers, and the arguments of a binding."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from smista.protocols.amqp.wire import content
from smista.protocols.amqp.wire.values import Timestamp
from smista.service import properties


def routable(headers: Mapping[str, Any]) -> dict[str, Any]:
    """By value, whatever its type on the wire, as RabbitMQ compares; and as the log can keep it."""
    return {_text(name.encode("utf-8", "surrogateescape")): _comparable(value) for name, value in headers.items()}


def _comparable(value: object) -> object:
    match value:
        case Timestamp():
            return int(value)
        case Decimal():
            # Never equal to a number.
            return {"decimal": str(value)}
        case bytes():
            return _text(value)
        case dict():
            return routable(value)
        case list():
            return [_comparable(each) for each in value]
    return value


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def copied_to(headers: Mapping[str, Any]) -> list[str]:
    """The further keys that stand in a message's headers for all to see."""
    keys = headers.get("CC")
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []


def read_routing(kept: bytes) -> properties.Routing:
    """What a dead letter is routed by beside its key; `kept` starts with the tag."""
    headers = content.read_properties(kept[1:]).headers
    return (None, ()) if headers is None else (routable(headers), copied_to(headers))


properties.ROUTING_READERS[content.AMQP] = read_routing
