"""What a publisher says of a message beside its body: its fields, once for broker, protocols and client."""

from __future__ import annotations

from typing import Any

import msgspec


class MessageProperties(msgspec.Struct, kw_only=True):
    headers: dict[str, Any] | None = None
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


NAMES = tuple(field for field in MessageProperties.__struct_fields__ if field != "headers")
"""All but the headers: one value each."""


def is_json(content_type: str | None) -> bool:
    """Whether a body of this type is JSON."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def is_text(content_type: str | None) -> bool:
    """Whether a body of this type is text; without a type it is, if it is valid UTF-8."""
    return content_type is None or content_type.strip().lower().startswith("text/")
