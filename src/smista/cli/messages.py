"""Messages as the command line prints them and writes them to files.

The JSON form is that of docs/commands.md: `message` if the body is JSON or text, else `body` in base64; empty fields
are left out. A JSON body is copied byte for byte, so that reading it back gives the same bytes, with its spaces and the
digits of its numbers; where that is impossible it becomes `body`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from smista.cli.table import Column, Row
from smista.durations import shown_duration, shown_instant
from smista.message_properties import is_json, is_text
from smista.text import preview, safe, shortened

if TYPE_CHECKING:
    from smista.client import Delivery, Failure, Message

_EMPTY_TEXT = frozenset(("queue", "exchange", "routing_key", "state"))
"""Fields whose empty text means none; as the value of a property, empty text is kept."""


def fields(message: Message) -> dict[str, object]:
    """A message as a JSON object."""
    from smista.client import Message

    shown: dict[str, object] = {"message_id": message.id, **_body(message)}
    for name in Message.__struct_fields__:
        if name in ("id", "body"):
            continue
        value = getattr(message, name)
        if not (value is None or value == {} or value == [] or (value == "" and name in _EMPTY_TEXT)):
            shown[name] = value
    return shown


def delivery_fields(delivery: Delivery) -> dict[str, object]:
    return {**fields(delivery), "receipt": delivery.receipt, "delivered_at_ms": delivery.delivered_at_ms}


def _body(message: Message) -> dict[str, object]:
    body = message.body
    if body is None:
        return {}
    if is_json(message.content_type) and b"\n" not in body and body == body.strip(_SPACE) and _can_be_read(body):
        return {"message": msgspec.Raw(body)}
    if is_text(message.content_type):
        try:
            return {"message": body.decode()}
        except UnicodeDecodeError:
            pass
    return {"body": body}


_SPACE = b" \t\r\n"
"""White space around a JSON value, which would be lost in reading it."""


def _can_be_read(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


# -- for people -------------------------------------------------------------------------------------------------------

COLUMNS = [
    Column("id"),
    Column("state"),
    Column("priority", is_number=True),
    Column("deliveries", is_number=True),
    Column("age", is_number=True),
    Column("body", is_flexible=True),
]


def row(message: Message) -> Row:
    state = (message.state or "in_flight").replace("_", " ")
    return [
        message.id,
        state,
        message.priority,
        message.delivery_count,
        age(message.created_at_ms),
        preview(message.body),
    ]


def age(at_ms: int) -> str:
    return shown_duration(max(0, round(time.time() * 1000) - at_ms))


def until(at_ms: int) -> str:
    return shown_duration(max(0, at_ms - round(time.time() * 1000)))


def pairs(message: Message) -> Iterator[tuple[str, object]]:
    """All fields of a message, one per line."""
    for name, value in fields(message).items():
        if name in ("message", "body"):
            yield "body", preview(message.body, 2_000)
        elif name.endswith("_at_ms") or name == "lease_until_ms":
            yield name.removesuffix("_ms").replace("_", " "), shown_instant(value) if isinstance(value, int) else value
        elif name == "failures":
            yield from (("failure", _shown_failure(failure)) for failure in message.failures)
        elif name == "deaths":
            for death in message.deaths:
                yield "death", f"{shown_instant(death.at_ms)} in {death.queue}: {death.reason}, {death.count} times"
                yield from (("", _shown_failure(failure)) for failure in death.failures)
        else:
            yield name.replace("_", " "), value


def _shown_failure(failure: Failure) -> str:
    return (
        f"delivery {failure.delivery}, {shown_instant(failure.failed_at_ms)}: {failure.reason} {failure.error}".rstrip()
    )


def described(delivery: Delivery) -> list[str]:
    """A delivery in a few lines, with the whole receipt so that it can be copied."""
    summary = f"delivery {delivery.delivery_count}, priority {delivery.priority}, age {age(delivery.created_at_ms)}"
    lines = [f"{delivery.id}  {summary}", f"  receipt  {delivery.receipt}"]
    if delivery.lease_until_ms is not None:
        lines.append(f"  lease    until {shown_instant(delivery.lease_until_ms)}")
    if delivery.group is not None:
        lines.append(f"  group    {delivery.group}")
    lines += [f"  header   {name}={shortened(str(value))}" for name, value in delivery.headers.items()]
    lines.append(f"  body     {preview(delivery.body, 2_000)}")
    return [safe(line) for line in lines]
