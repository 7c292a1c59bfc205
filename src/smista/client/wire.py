"""The structures sent over the stream, as MessagePack; see docs/stream.md.

Requests are encoded from these, answers and pushes decoded into them; fields at their default are not sent. An answer's
`result` stays raw until its caller decodes it, and pushed messages until their subscription does, which has the class
of its deliveries.
"""

from __future__ import annotations

from typing import Any

import msgspec

from smista.client.errors import error_from
from smista.errors import BrokerError

SUBPROTOCOL = "smista.msgpack"
NOTHING = msgspec.Raw(b"")


class Request(msgspec.Struct):
    id: int
    command: str
    payload: object


class ErrorBody(msgspec.Struct, frozen=True):
    code: str
    message: str

    def error(self) -> BrokerError:
        return error_from(self.code, self.message)


class Frame(msgspec.Struct):
    """An answer (`id` with `result` or `error`) or a push (`subscription` with `messages` or `ended`)."""

    id: int | None = None
    result: msgspec.Raw = NOTHING
    error: ErrorBody | None = None
    subscription: int | None = None
    messages: msgspec.Raw = NOTHING
    ended: ErrorBody | None = None


class PublishBatch(msgspec.Struct, omit_defaults=True):
    queue: str
    bodies: list[bytes] | None = None
    content_type: str | None = None
    """Of all the bodies."""
    messages: list[Any] | None = None
    batch_id: str | None = None
    """A batch with the same id is stored once."""
    brief: bool = False
    """Answer with counts and errors instead of a result for each message."""
    partial: bool | None = None
    """Refuse a message that cannot be read alone, not with the whole batch."""
    namespace: str | None = None


class Result(msgspec.Struct):
    """The outcome of one message of a batch."""

    message_id: str = ""
    position: int = 0
    duplicate: bool = False
    error: ErrorBody | None = None


class Refusal(msgspec.Struct):
    """A message of a batch that was not stored, in a brief answer."""

    index: int
    code: str
    message: str

    def error(self) -> BrokerError:
        return error_from(self.code, self.message)


class BatchAnswer(msgspec.Struct):
    accepted: int
    """Including duplicates."""
    duplicates: int = 0
    results: list[Result] = []
    errors: list[Refusal] = []
    """In a brief answer."""


class Receive(msgspec.Struct, omit_defaults=True):
    queue: str
    limit: int
    wait_ms: int = 0
    lease_ms: int | None = None
    consumer: str = ""
    raw: bool | None = None
    namespace: str | None = None


class Subscribe(msgspec.Struct, omit_defaults=True):
    queue: str
    prefetch: int | None = None
    lease_ms: int | None = None
    priority: int = 0
    consumer: str = ""
    raw: bool | None = None
    namespace: str | None = None


class Subscribed(msgspec.Struct):
    subscription: int


class Settle(msgspec.Struct, omit_defaults=True):
    """For ack, nack, release and extend: by the tags of pushed deliveries, or by receipts."""

    tags: list[int | str] | None = None
    up_to: int | str | None = None
    receipts: list[int | str] | None = None
    requeue: bool = True
    delay_ms: int | None = None
    error: str = ""
    lease_ms: int | None = None


class SettleResult(msgspec.Struct):
    action: str = ""
    error: ErrorBody | None = None


class SettleAnswer(msgspec.Struct):
    success: bool
    action: str = ""
    """Of a nack, if it is the same for all."""
    results: list[SettleResult | None] = []
    """Per tag or receipt; may be absent if all have the same outcome."""

    def action_at(self, place: int) -> str:
        result = None if self.action or not self.results else self.results[place]
        return self.action if result is None else result.action


encode = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder(Frame).decode
decode_batch_answer = msgspec.msgpack.Decoder(BatchAnswer).decode
decode_subscribed = msgspec.msgpack.Decoder(Subscribed).decode
decode_settle_answer = msgspec.msgpack.Decoder(SettleAnswer).decode
