"""Consuming, the hot path out: deliveries are put together from pieces that are made once.

method frame    consumer tag | delivery tag, redelivered | exchange, routing key
                once a consumer    per message              once per envelope (cached)
header frame    the bytes that the publisher sent
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from smista.core.message import Envelope
from smista.engine import Delivery, Receipt, Subscription
from smista.errors import BrokerError
from smista.protocols import properties
from smista.protocols.amqp import content, frames, methods, values
from smista.protocols.amqp.content import BasicProperties
from smista.protocols.amqp.deaths import add_deaths
from smista.protocols.amqp.values import LongInteger

if TYPE_CHECKING:
    from smista.protocols.amqp.channel import Channel

HEAD_BYTES = 100
"""What a message takes beside its body, more or less."""
_TAG_AND_FLAG = struct.Struct(">QB")
_DELIVER = struct.pack(">HH", *methods.BasicDeliver.INDEX)
WINDOW_MAX = 2_000
WINDOW_BYTES = 4 << 20
"""Deliveries that are taken from a queue at once, and what their bodies may come to: as many go to the socket before
the next are taken, so that a consumer without a limit cannot fill the memory."""


class Held:
    """A delivery that has not been settled."""

    __slots__ = ("consumer", "receipt")

    def __init__(self, receipt: Receipt, consumer: Consumer | None) -> None:
        self.receipt = receipt
        self.consumer = consumer


class Consumer:
    __slots__ = (
        "_head",
        "channel",
        "is_exclusive",
        "is_no_ack",
        "is_quorum",
        "limit",
        "queue",
        "subscription",
        "tag",
        "window",
    )

    def __init__(
        self, channel: Channel, tag: str, queue: str, *, is_no_ack: bool, is_exclusive: bool, is_quorum: bool
    ) -> None:
        self.channel = channel
        self.tag = tag
        self.queue = queue
        self.is_no_ack = is_no_ack
        self.is_exclusive = is_exclusive
        self.is_quorum = is_quorum
        self.limit = 0
        """How many it may hold: its prefetch."""
        self.window = WINDOW_MAX
        """How many more than it holds it may get at once."""
        self.subscription: Subscription
        self._head = _DELIVER + values.short_string(tag)

    def deliver(self, deliveries: list[Delivery]) -> None:
        channel = self.channel
        connection = channel.connection
        unacked, room = channel.unacked, connection.frame_max - frames.OVERHEAD
        number = _number_bytes(channel.number)
        out = connection.out
        head, is_no_ack, queue = self._head, self.is_no_ack, self.queue
        tag = channel.delivery_tag
        body_bytes = 0
        for delivery in deliveries:
            tag += 1
            body = delivery.body
            body_bytes += len(body)
            envelope = delivery.envelope
            exchange, key = envelope.exchange, envelope.routing_key
            way = _exchange_and_key(exchange, key if key or exchange else queue)
            method = head + _TAG_AND_FLAG.pack(tag, delivery.delivery_count > 1) + way
            raw = raw_properties(delivery, is_quorum=self.is_quorum)
            out.append(
                b"\x01%b%b%b\xce\x02%b%b%b\xce"
                % (
                    number,
                    len(method).to_bytes(4, "big"),
                    method,
                    number,
                    (12 + len(raw)).to_bytes(4, "big"),
                    content.write_head(len(body), raw),
                )
            )
            if len(body) <= room:
                if body:
                    out.append(b"\x03%b%b%b\xce" % (number, len(body).to_bytes(4, "big"), body))
            else:
                out.extend(frames.body_frames(channel.number, body, connection.frame_max))
            if not is_no_ack:
                unacked[tag] = Held(delivery.receipt, self)
        channel.delivery_tag = tag
        if is_no_ack:
            connection.acknowledge_soon([delivery.receipt for delivery in deliveries])
        self.set_window(body_bytes, len(deliveries))
        self.enter_if_wide()
        connection.delivered(body_bytes + HEAD_BYTES * len(deliveries))

    def set_window(self, body_bytes: int, count: int) -> None:
        """As many as may be taken at once, if they are like these."""
        self.window = max(1, min(WINDOW_MAX, WINDOW_BYTES * count // body_bytes)) if body_bytes else WINDOW_MAX

    def enter_if_wide(self) -> None:
        """See to it that its window is opened again and again, if its prefetch is wider."""
        if self.limit > self.window:
            self.channel.connection.wide_consumers.add(self)

    def open_window(self) -> None:
        """What it got has gone to the socket: it may get more, up to its prefetch."""
        subscription = self.subscription
        prefetch = min(self.limit, len(subscription.held) + self.window, subscription.queue.settings.max_prefetch)
        if prefetch != subscription.prefetch:
            self.channel.connection.door.broker.set_prefetch(subscription, prefetch)

    def ended(self, error: BrokerError) -> None:
        self.channel.consumer_ended(self)


@lru_cache(maxsize=4096)
def _number_bytes(number: int) -> bytes:
    return number.to_bytes(2, "big")


@lru_cache(maxsize=4096)
def _exchange_and_key(exchange: str, routing_key: str) -> bytes:
    return _name(exchange) + _name(routing_key)


def _name(text: str) -> bytes:
    try:
        return values.short_string(text)
    except ValueError:
        # Published through another door, which has room for longer ones.
        return values.short_string(values.cut(text))


def routed_by(envelope: Envelope, queue: str) -> tuple[str, str]:
    """Exchange and key of a message; what another door put into a queue by its name came by that name."""
    exchange, key = envelope.exchange, envelope.routing_key
    return exchange, key if key or exchange else queue


def raw_properties(delivery: Delivery, *, is_quorum: bool) -> bytes:
    """The properties as they go out: what came in, unless something has to be added."""
    kept = delivery.envelope.properties
    if not delivery.deaths and not is_quorum and kept[:1] == content.TAG:
        return kept[1:]
    if not delivery.deaths and not is_quorum:
        return _translated(kept, delivery.priority, delivery.envelope.ttl_ms)
    said = _basic(kept, delivery.priority, delivery.envelope.ttl_ms)
    if delivery.deaths:
        said = add_deaths(said, delivery.deaths, delivery.envelope.routing_key)
    if is_quorum:
        counted = {**(said.headers or {}), "x-delivery-count": LongInteger(delivery.delivery_count - 1)}
        said.headers = dict(sorted(counted.items()))
    return content.write_properties(said)


@lru_cache(maxsize=4096)
def _translated(kept: bytes, priority: int, ttl_ms: int | None) -> bytes:
    return content.write_properties(_basic(kept, priority, ttl_ms))


def _basic(kept: bytes, priority: int, ttl_ms: int | None) -> BasicProperties:
    if kept[:1] == content.TAG:
        return content.read_properties(kept[1:])
    said = content.from_properties(properties.read(kept))
    said.priority = priority or None
    said.expiration = None if ttl_ms is None else str(ttl_ms)
    return said
