"""Messages as HTTP shows them: deliveries, and what one sees when browsing."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import UNSET

from smista.message_properties import NAMES, MessageProperties, is_json, is_text
from smista.protocols.http.formats import Format
from smista.service import properties
from smista.service.plain_values import Untranslatable
from smista.service.properties import Properties
from smista.service.values import PLAIN, Death, Delivery, Envelope, Failure, Message, State

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


class MessageView(MessageProperties, kw_only=True, omit_defaults=True):
    """A message in an answer; what does not apply is left out."""

    message_id: str
    message: Any = UNSET
    body: bytes | None = None
    queue: str | None = None
    priority: int
    headers: dict[str, Any]
    retry_count: int
    delivery_count: int
    created_at_ms: int
    tag: int | None = None
    receipt: str | None = None
    delivered_at_ms: int | None = None
    lease_until_ms: int | None = None
    state: str | None = None
    ready_at_ms: int | None = None
    expires_at_ms: int | None = None
    exchange: str | None = None
    routing_key: str | None = None
    group: str | None = None
    deduplication_id: str | None = None
    ttl_ms: int | None = None
    max_retries: int | None = None
    properties: bytes | None = None
    """As another protocol keeps them, where they hold more than the fields above can."""
    failures: list[FailureView] | None = None
    deaths: list[DeathView] | None = None


def show_delivery(delivery: Delivery, queue: str, answer_format: Format, *, raw: bool) -> MessageView:
    """A delivery without its receipt or tag, which the caller adds."""
    envelope = delivery.envelope
    given = properties.read(envelope.properties)
    view = MessageView(
        message_id=delivery.id,
        queue=queue,
        priority=delivery.priority,
        headers=given.headers,
        retry_count=delivery.delivery_count - 1,
        delivery_count=delivery.delivery_count,
        created_at_ms=delivery.created_at_ms,
        delivered_at_ms=delivery.delivered_at_ms,
    )
    if raw:
        view.body = delivery.body
    else:
        _show_body(view, delivery.body, given, answer_format)
    view.lease_until_ms = delivery.lease_until_ms
    if envelope is not PLAIN:
        _show_envelope(view, envelope, given)
    if delivery.failures:
        view.failures = [_show_failure(failure) for failure in delivery.failures]
    if delivery.deaths:
        view.deaths = [_show_death(death) for death in delivery.deaths]
    return view


def show_message(
    message: Message, message_id: str, queue: str, answer_format: Format, *, raw: bool, with_body: bool = True
) -> MessageView:
    """A message as browsing shows it."""
    envelope = message.envelope
    given = properties.read(envelope.properties)
    view = MessageView(
        message_id=message_id,
        queue=queue,
        priority=message.priority,
        headers=given.headers,
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
            _show_body(view, body, given, answer_format)
    view.expires_at_ms = message.expires_at_ms
    if message.state is State.IN_FLIGHT:
        view.lease_until_ms = message.deadline_ms
    _show_envelope(view, envelope, given)
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


def _show_body(view: MessageView, body: bytes, given: Properties, answer_format: Format) -> None:
    """As a value where it is JSON, as text where it is text, else as bytes."""
    content_type = given.content_type
    try:
        if content_type is not None and is_json(content_type):
            view.message = answer_format.value_from_body(body)
        elif is_text(content_type):
            view.message = body.decode()
        else:
            view.body = body
    except (Untranslatable, UnicodeDecodeError):
        view.body = body


def _show_envelope(view: MessageView, envelope: Envelope, given: Properties) -> None:
    view.exchange = envelope.exchange or None
    view.routing_key = envelope.routing_key or None
    view.group = envelope.group
    view.deduplication_id = envelope.deduplication_id
    view.ttl_ms = envelope.ttl_ms
    view.max_retries = envelope.max_retries
    if given is not properties.EMPTY:
        for name in NAMES:
            setattr(view, name, getattr(given, name))


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
