"""A message's exchange, key and properties, as they go out to a consumer."""

from __future__ import annotations

from smista.caches import cached_if_small
from smista.protocols.amqp import translation
from smista.protocols.amqp.deaths import add_deaths
from smista.protocols.amqp.wire import content
from smista.protocols.amqp.wire.content import BasicProperties
from smista.protocols.amqp.wire.values import LongInteger
from smista.service import properties
from smista.service.values import Delivery, Envelope


def routed_by(envelope: Envelope, queue: str) -> tuple[str, str]:
    """Exchange and key of a message; what another protocol put into a queue by its name came by that name."""
    exchange, key = envelope.exchange, envelope.routing_key
    return exchange, key if key or exchange else queue


def raw_properties(delivery: Delivery, *, is_counted: bool) -> bytes:
    """The properties as they go out: what came in, unless something has to be added: the count of deliveries, if
    `is_counted`."""
    kept = delivery.envelope.properties
    if not delivery.deaths and not is_counted and kept[:1] == content.TAG:
        return kept[1:]
    if not delivery.deaths and not is_counted:
        return _translated(kept, delivery.priority, delivery.envelope.ttl_ms)
    basic = _basic(kept, delivery.priority, delivery.envelope.ttl_ms)
    if delivery.deaths:
        basic = add_deaths(basic, delivery.deaths, delivery.envelope.routing_key)
    if is_counted:
        counted = {**(basic.headers or {}), "x-delivery-count": LongInteger(delivery.delivery_count - 1)}
        basic.headers = dict(sorted(counted.items()))
    return content.write_properties(basic)


@cached_if_small(lambda kept, *_: len(kept))
def _translated(kept: bytes, priority: int, ttl_ms: int | None) -> bytes:
    return content.write_properties(_basic(kept, priority, ttl_ms))


def _basic(kept: bytes, priority: int, ttl_ms: int | None) -> BasicProperties:
    if kept[:1] == content.TAG:
        return content.read_properties(kept[1:])
    basic = translation.from_properties(properties.read(kept))
    basic.priority = priority or None
    basic.expiration = None if ttl_ms is None else str(ttl_ms)
    return basic
