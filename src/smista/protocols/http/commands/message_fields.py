"""A message as it is given to be published: its fields, and the publication that they make."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from smista.caches import cached_if_small
from smista.errors import BrokerError, InvalidArgument, InvalidRequest, MessageTooLarge
from smista.message_properties import MessageProperties
from smista.protocols.http.bounded import AT_ONCE_BYTES, byte_count
from smista.protocols.http.commands.base import Call, Seconds
from smista.protocols.http.formats import MESSAGE_PACK, Format
from smista.protocols.http.translating import TooLong, json_in_steps
from smista.service import properties
from smista.service.fields import Choice, Milliseconds
from smista.service.plain_values import Untranslatable, check_named
from smista.service.properties import JSON_BYTES, PROPERTIES_BYTES_MAX, Properties
from smista.service.values import ID_LENGTH_MAX, PLAIN, RETRIES_MAX, Envelope, Publication

ErrorClass = type[BrokerError]
Identifier = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_LENGTH_MAX)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=255)]


class MessageFields(MessageProperties, kw_only=True, forbid_unknown_fields=True):
    """A message to be published: `message` (any JSON value) or `body` (bytes), and what goes with it."""

    choices: ClassVar[tuple[Choice, ...]] = (
        Choice(("message", "body")),
        Choice(("ttl", "ttl_ms"), is_required=False),
        Choice(("delay_ms", "deliver_at_ms"), is_required=False),
    )
    too_large: ClassVar[ErrorClass] = MessageTooLarge
    is_measured_as_kept: ClassVar[bool] = True

    message: msgspec.Raw | UnsetType = UNSET
    body: bytes | UnsetType = UNSET
    priority: Priority | None = None
    ttl: Seconds | None = None
    ttl_ms: Milliseconds | None = None
    delay_ms: Milliseconds | None = None
    deliver_at_ms: Milliseconds | None = None
    group: Identifier | None = None
    deduplication_id: Identifier | None = None
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=RETRIES_MAX)] | None = None
    timestamp_ms: Milliseconds | None = None
    properties: bytes | None = None
    """As another protocol keeps them, and as browsing `raw` shows them; instead of all the others, with a `body`."""


@cached_if_small(lambda kept, exchange="", routing_key="", group=None, *_: len(kept) + len(exchange) + len(routing_key))
def _envelope(
    kept: bytes,
    exchange: str = "",
    routing_key: str = "",
    group: str | None = None,
    ttl_ms: int | None = None,
    max_retries: int | None = None,
) -> Envelope:
    """Messages published alike share one envelope in memory."""
    return Envelope(kept, exchange, routing_key, group, None, ttl_ms, max_retries)


def plain_envelope(content_type: str | None) -> Envelope:
    """That of a message with nothing but a body, and perhaps the type of it."""
    kept = _properties(MessageFields(), content_type)
    return _envelope(kept) if kept else PLAIN


async def translate(fields: MessageFields, call: Call, queue: str | None = None) -> None:
    """Have a `message` as its body where it is so long that it takes many steps to make one of the other."""
    if (
        fields.message is UNSET
        or call.request_format is not MESSAGE_PACK
        or byte_count(fields.message) <= AT_ONCE_BYTES
        or fields.body is not UNSET
    ):
        return
    limit, origin = (None, "") if queue is None else call.session.body_limit(queue)
    try:
        fields.body = await json_in_steps(bytes(fields.message), call.fair_turns.turn, limit)
    except TooLong:
        raise MessageTooLarge(
            f"`message` is over the limit of {limit} bytes for queue {queue!r}{origin}; raise its body_bytes_max, or "
            "send less."
        ) from None
    except Untranslatable as problem:
        raise _no_json(problem) from None
    fields.message = UNSET
    fields.content_type = fields.content_type or "application/json"


def publication(fields: MessageFields, came_in: Format, *, exchange: str = "", routing_key: str = "") -> Publication:
    content_type = fields.content_type
    # Nearly every message passes here, and asking each choice takes 2 us.
    if (
        (fields.message is UNSET) == (fields.body is UNSET)
        or (fields.ttl is not None and fields.ttl_ms is not None)
        or (fields.delay_ms is not None and fields.deliver_at_ms is not None)
    ):
        for choice in fields.choices:
            choice.check(fields)
    if fields.message is not UNSET:
        try:
            body = came_in.body_from_value(fields.message)
        except Untranslatable as problem:
            raise _no_json(problem) from None
        content_type = content_type or "application/json"
    else:
        assert fields.body is not UNSET
        body = fields.body
    ttl_ms = fields.ttl_ms if fields.ttl is None else round(fields.ttl * 1000)
    kept = _properties(fields, content_type)
    envelope = _envelope(kept, exchange, routing_key, fields.group, ttl_ms, fields.max_retries)
    if fields.deduplication_id is not None:
        envelope = msgspec.structs.replace(envelope, deduplication_id=fields.deduplication_id)
    elif envelope == PLAIN:
        envelope = PLAIN
    return Publication(body, envelope, fields.priority, fields.delay_ms, fields.deliver_at_ms)


def _no_json(problem: Untranslatable) -> InvalidRequest:
    return InvalidRequest(f"`message` cannot be written as JSON: {problem}; give it as `body`.")


def _properties(fields: MessageFields, content_type: str | None) -> bytes:
    if (
        content_type == "application/json"
        and not fields.headers
        and fields.content_encoding is None
        and fields.correlation_id is None
        and fields.reply_to is None
        and fields.type is None
        and fields.app_id is None
        and fields.user_id is None
        and fields.external_id is None
        and fields.timestamp_ms is None
        and fields.properties is None
    ):
        return JSON_BYTES
    if fields.properties is not None:
        return _kept_properties(fields, fields.properties, content_type)
    given = Properties(
        headers=fields.headers or {},
        content_type=content_type,
        content_encoding=fields.content_encoding,
        correlation_id=fields.correlation_id,
        reply_to=fields.reply_to,
        type=fields.type,
        app_id=fields.app_id,
        user_id=fields.user_id,
        external_id=fields.external_id,
        timestamp_ms=fields.timestamp_ms,
    )
    try:
        # Measured before they are checked one by one, which takes ten times as long.
        kept = properties.write(given)
    except (OverflowError, RecursionError):
        check_named("headers", given.headers)
        raise
    if len(kept) > PROPERTIES_BYTES_MAX:
        raise MessageTooLarge(
            f"`headers` and the other properties take {len(kept)} bytes, over the limit of {PROPERTIES_BYTES_MAX}; "
            "put what is large into the body."
        )
    if given.headers:
        check_named("headers", given.headers)
    return kept


def _kept_properties(fields: MessageFields, kept: bytes, content_type: str | None) -> bytes:
    others = [name for name in Properties.__struct_fields__ if getattr(fields, name) is not None]
    if content_type is not None and not others:
        others = ["message"]
    if others:
        raise InvalidArgument(f"Both `properties` and `{others[0]}` are given; give one of them.")
    if len(kept) > PROPERTIES_BYTES_MAX:
        raise MessageTooLarge(f"`properties` take {len(kept)} bytes, over the limit of {PROPERTIES_BYTES_MAX}.")
    try:
        properties.check_kept(kept)
    except ValueError as problem:
        raise InvalidArgument(f"`properties` are of no protocol: {problem}.") from None
    return kept
