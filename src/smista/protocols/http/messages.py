"""Messages as the native door shows them: deliveries, and what one sees when browsing."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from smista.core.message import PLAIN, Death, Envelope, Failure, Message, State
from smista.engine import Delivery
from smista.protocols import properties
from smista.protocols.http.formats import Format, Untranslatable
from smista.protocols.properties import Properties

FOLDED_BYTES = 1 << 10
STATE_NAMES = {state: state.name.lower() for state in State}


class FailureView(msgspec.Struct):
    """One delivery that failed."""

    delivery: int
    reason: str
    delivered_at_ms: int
    failed_at_ms: int
    error: str


class DeathView(msgspec.Struct):
    """One passage into a dead-letter queue."""

    queue: str
    reason: str
    at_ms: int
    delivery_count: int
    failures: list[FailureView]
    count: int
    exchange: str
    routing_key: str


class MessageView(msgspec.Struct, kw_only=True):
    """A message in an answer; what does not apply is left out."""

    message_id: str
    message: Any = UNSET
    body: bytes | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    priority: int
    headers: dict[str, Any]
    retry_count: int
    delivery_count: int
    created_at_ms: int
    tag: int | UnsetType = UNSET
    receipt: str | UnsetType = UNSET
    delivered_at_ms: int | UnsetType = UNSET
    lease_until_ms: int | UnsetType = UNSET
    state: str | UnsetType = UNSET
    ready_at_ms: int | UnsetType = UNSET
    expires_at_ms: int | UnsetType = UNSET
    exchange: str | UnsetType = UNSET
    routing_key: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    deduplication_id: str | UnsetType = UNSET
    ttl_ms: int | UnsetType = UNSET
    max_retries: int | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    content_encoding: str | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET
    reply_to: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    app_id: str | UnsetType = UNSET
    user_id: str | UnsetType = UNSET
    external_id: str | UnsetType = UNSET
    timestamp_ms: int | UnsetType = UNSET
    properties: bytes | UnsetType = UNSET
    """As another protocol keeps them, where they say more than the fields above can."""
    failures: list[FailureView] | UnsetType = UNSET
    deaths: list[DeathView] | UnsetType = UNSET


def show_delivery(delivery: Delivery, answer_format: Format, *, raw: bool) -> MessageView:
    """A delivery without its receipt or tag, which the caller adds."""
    envelope = delivery.envelope
    said = properties.read(envelope.properties)
    view = MessageView(
        message_id=delivery.id,
        priority=delivery.priority,
        headers=said.headers,
        retry_count=delivery.delivery_count - 1,
        delivery_count=delivery.delivery_count,
        created_at_ms=delivery.created_at_ms,
        delivered_at_ms=delivery.delivered_at_ms,
    )
    if raw:
        view.body = delivery.body
    else:
        _show_body(view, delivery.body, said, answer_format)
    if delivery.lease_until_ms is not None:
        view.lease_until_ms = delivery.lease_until_ms
    if envelope is not PLAIN:
        _show_envelope(view, envelope, said)
    if delivery.failures:
        view.failures = [_show_failure(failure) for failure in delivery.failures]
    if delivery.deaths:
        view.deaths = [_show_death(death) for death in delivery.deaths]
    return view


def show_message(
    message: Message, message_id: str, queue: str, answer_format: Format, *, raw: bool, with_body: bool = True
) -> MessageView:
    """A message as somebody sees it who only looks."""
    envelope = message.envelope
    said = properties.read(envelope.properties)
    view = MessageView(
        message_id=message_id,
        queue=queue,
        priority=message.priority,
        headers=said.headers,
        retry_count=max(0, message.delivery_count - (message.state is State.IN_FLIGHT)),
        delivery_count=message.delivery_count,
        created_at_ms=message.created_at_ms,
        state=STATE_NAMES[message.state],
        ready_at_ms=message.ready_at_ms,
    )
    body = message.body
    if raw and envelope.properties and envelope.properties[0] != properties.NATIVE:
        view.properties = envelope.properties
    if with_body and isinstance(body, bytes):
        if raw:
            view.body = body
        else:
            _show_body(view, body, said, answer_format)
    if message.expires_at_ms is not None:
        view.expires_at_ms = message.expires_at_ms
    if message.state is State.IN_FLIGHT and message.deadline_ms is not None:
        view.lease_until_ms = message.deadline_ms
    _show_envelope(view, envelope, said)
    deliveries = message.deliveries
    if deliveries is not None and deliveries.failures:
        view.failures = [_show_failure(failure) for failure in deliveries.failures]
    if message.deaths:
        view.deaths = [_show_death(death) for death in message.deaths]
    return view


def fold(view: MessageView, envelope: Envelope, answer_format: Format) -> None:
    """Have long headers as the text they will be in the answer."""
    if len(envelope.properties) > FOLDED_BYTES:
        view.headers = cast(Any, msgspec.Raw(answer_format.encode(view.headers)))


def _show_body(view: MessageView, body: bytes, said: Properties, answer_format: Format) -> None:
    """As a value where it is JSON, as text where it is text, else as bytes."""
    content_type = said.content_type
    try:
        if content_type is not None and is_json(content_type):
            view.message = answer_format.value_from_body(body)
        elif content_type is None or content_type.startswith("text/"):
            view.message = body.decode()
        else:
            view.body = body
    except (Untranslatable, UnicodeDecodeError):
        view.body = body


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _show_envelope(view: MessageView, envelope: Envelope, said: Properties) -> None:
    if envelope.exchange:
        view.exchange = envelope.exchange
    if envelope.routing_key:
        view.routing_key = envelope.routing_key
    if envelope.group is not None:
        view.group = envelope.group
    if envelope.deduplication_id is not None:
        view.deduplication_id = envelope.deduplication_id
    if envelope.ttl_ms is not None:
        view.ttl_ms = envelope.ttl_ms
    if envelope.max_retries is not None:
        view.max_retries = envelope.max_retries
    if said is not properties.EMPTY:
        for name in _PROPERTY_NAMES:
            value = getattr(said, name)
            if value is not None:
                setattr(view, name, value)


_PROPERTY_NAMES = tuple(name for name in Properties.__struct_fields__ if name != "headers")


def _show_failure(failure: Failure) -> FailureView:
    return FailureView(
        failure.delivery, failure.reason.name.lower(), failure.delivered_at_ms, failure.failed_at_ms, failure.error
    )


def _show_death(death: Death) -> DeathView:
    return DeathView(
        death.queue,
        death.reason.name.lower(),
        death.at_ms,
        death.delivery_count,
        [_show_failure(failure) for failure in death.failures],
        death.count,
        death.exchange,
        death.routing_key,
    )
