"""A message to be published."""

from __future__ import annotations

from typing import Any, TypedDict

from msgspec import UNSET, UnsetType

from smista.client.json_body import encode_json
from smista.errors import InvalidArgument
from smista.message_properties import MessageProperties

JSON = "application/json"


class Properties(TypedDict, total=False):
    """The properties a message may have beside its body."""

    priority: int | None
    delay_ms: int | None
    deliver_at_ms: int | None
    """Either this or `delay_ms`."""
    ttl_ms: int | None
    group: str | None
    deduplication_id: str | None
    max_retries: int | None
    headers: dict[str, Any] | None
    content_type: str | None
    content_encoding: str | None
    correlation_id: str | None
    reply_to: str | None
    type: str | None
    app_id: str | None
    user_id: str | None
    external_id: str | None
    timestamp_ms: int | None
    properties: bytes | None
    """Encoded as by AMQP or SQS (`Message.properties`); replaces everything from `headers` on; needs a `body`."""


class Publication(MessageProperties, omit_defaults=True):
    """One message for `put_many` with properties of its own: `Publication({"order": 7}, priority=9)`.

    `message` is any JSON-able value, stored as JSON with that content type, or bytes, stored as they are; bytes may
    also be given as `body`. Where a property is None the queue's setting applies.
    """

    message: Any = UNSET
    body: bytes | UnsetType = UNSET
    priority: int | None = None
    delay_ms: int | None = None
    deliver_at_ms: int | None = None
    ttl_ms: int | None = None
    group: str | None = None
    deduplication_id: str | None = None
    max_retries: int | None = None
    properties: bytes | None = None

    def __post_init__(self) -> None:
        # Only the body is sent.
        self.body, implied_type = body_of(self.message, self.body)
        self.content_type = self.content_type or implied_type
        self.message = UNSET


def body_of(message: object, body: object = UNSET) -> tuple[bytes, str | None]:
    """The bytes to store and the content type they imply; raises `InvalidArgument`."""
    if message is UNSET:
        if body is UNSET or body is None:
            raise InvalidArgument("A message needs a `message` or a `body`; give one of them.")
        return _bytes(body), None
    if body is not UNSET and body is not None:
        raise InvalidArgument("Both `message` and `body` are given; give one of them.")
    if isinstance(message, bytes | bytearray | memoryview):
        return _bytes(message), None
    try:
        return encode_json(message), JSON
    except ValueError as error:
        raise InvalidArgument(
            f"The message cannot be written as JSON: {error}. Give another value, or the whole message as bytes."
        ) from None


def _bytes(body: object) -> bytes:
    if type(body) is bytes:
        return body
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidArgument(f"A body is bytes, not {type(body).__name__}; give other things as `message`.")
    return bytes(body)
