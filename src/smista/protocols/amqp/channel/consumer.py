"""A consumer, the hot path out: deliveries are put together from pieces that are made once.

    method frame  head, consumer tag │ delivery tag, redelivered │ exchange, routing key ┐
    header frame  body size, properties as the publisher sent them                       ├─ behind the tag
    body frame    head                                           │ body │ end            ┘
                  `Way.before`         per message                 per message

What stands behind the tag is the same for messages that have an envelope and a size in common, so it is put together
once for those that follow each other. Exchange and key, and with them all lengths but those of properties and body, are
the same for most messages of a queue: see `Way`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable

from smista.errors import BrokerError
from smista.protocols.amqp.channel.properties import raw_properties, routed_by
from smista.protocols.amqp.channel.unacked import Unacked
from smista.protocols.amqp.client import Client
from smista.protocols.amqp.wire import content, frames, methods, values
from smista.protocols.amqp.wire.channel import ChannelState
from smista.protocols.amqp.wire.frames import END_BYTES
from smista.service.values import PLAIN, Delivery, Envelope, Subscription

logger = logging.getLogger("smista.amqp")

HEAD_BYTES = 100
"""What a message takes beside its body, more or less."""
_TAG_AND_FLAG = struct.Struct(">QB")
_HEADER_HEAD = struct.Struct(">IHHQ")
_LENGTH = struct.Struct(">I")
_DELIVER = struct.pack(">HH", *methods.BasicDeliver.INDEX)
WINDOW_MAX = 2_000
WINDOW_BYTES = 4 << 20
"""Deliveries that are taken from a queue at once, and what their bodies may come to: as many go to the socket before
the next are taken, so that a consumer without a limit cannot fill the memory."""


class Way:
    """By which exchange and key messages came to a queue, as one of its consumers gets them."""

    __slots__ = ("_body_head", "_way", "before", "exchange", "key")

    def __init__(self, envelope: Envelope, queue: str, channel: int, opening: bytes) -> None:
        self.exchange = envelope.exchange
        self.key = envelope.routing_key
        names = b"".join(map(_name, routed_by(envelope, queue)))
        number = channel.to_bytes(2, "big")
        method_bytes = len(opening) + _TAG_AND_FLAG.size + len(names)
        self.before = b"\x01%b%b%b" % (number, method_bytes.to_bytes(4, "big"), opening)
        """What stands before the tag."""
        self._way = b"%b%b\x02%b" % (names, END_BYTES, number)
        self._body_head = b"%b\x03%b" % (END_BYTES, number)

    def behind(self, properties: bytes, body_bytes: int, *, is_whole: bool) -> bytes:
        """What stands behind the tag, up to the body if that `is_whole`: if there is one, and one frame takes it."""
        head = _HEADER_HEAD.pack(12 + len(properties), content.BASIC_CLASS, 0, body_bytes)
        if is_whole:
            return b"".join((self._way, head, properties, self._body_head, _LENGTH.pack(body_bytes)))
        return b"".join((self._way, head, properties, END_BYTES))


class Consumer:
    __slots__ = (
        "_channel",
        "_client",
        "_ended",
        "_opening",
        "_unacked",
        "_way",
        "is_no_ack",
        "is_quorum",
        "limit",
        "queue",
        "subscription",
        "tag",
        "window",
    )

    def __init__(
        self,
        client: Client,
        channel: ChannelState,
        unacked: Unacked,
        ended: Callable[[Consumer], None],
        tag: str,
        queue: str,
        *,
        is_no_ack: bool,
        is_quorum: bool,
    ) -> None:
        self._client = client
        self._channel = channel
        self._unacked = unacked
        self._ended = ended
        self.tag = tag
        self.queue = queue
        self.is_no_ack = is_no_ack
        self.is_quorum = is_quorum
        self.limit = 0
        """How many it may hold: its prefetch."""
        self.window = WINDOW_MAX
        """How many more than it holds it may get at once."""
        self.subscription: Subscription
        self._opening = _DELIVER + values.short_string(tag)
        self._way = self._way_of(PLAIN)
        """Of the last message, since the next one is likely to be like it."""

    def deliver(self, deliveries: list[Delivery]) -> None:
        try:
            self._deliver(deliveries)
        except Exception:
            # The broker is in the middle of serving a queue, and others with it: our fault must not become theirs.
            logger.exception("messages could not be delivered to %s", self._client.peer)
            self._client.not_delivered([delivery.receipt for delivery in deliveries])

    def _deliver(self, deliveries: list[Delivery]) -> None:
        channel = self._channel
        parts: list[bytes] = []
        receipts = [delivery.receipt for delivery in deliveries]
        pack, way, room = _TAG_AND_FLAG.pack, self._way, channel.frame_max - frames.OVERHEAD
        envelope: Envelope | None = None
        size, priority, behind, is_whole, is_quorum = 0, 0, b"", False, self.is_quorum
        unacked = self._unacked
        first_tag = tag = unacked.last_tag
        body_bytes = 0
        for delivery in deliveries:
            tag += 1
            body, count = delivery.body, delivery.delivery_count
            if (
                delivery.envelope is not envelope
                or len(body) != size
                or delivery.priority != priority
                or delivery.deaths
                or is_quorum
            ):
                envelope, size, priority = delivery.envelope, len(body), delivery.priority
                if envelope.routing_key != way.key or envelope.exchange != way.exchange:
                    way = self._way = self._way_of(envelope)
                # In RabbitMQ a consumer sees the count from the second delivery on, whoever gets from the first.
                properties = raw_properties(delivery, is_counted=is_quorum and count > 1)
                is_whole = 0 < size <= room
                behind = way.behind(properties, size, is_whole=is_whole)
                if delivery.deaths:
                    # They are its own.
                    envelope = None
            if is_whole:
                parts += (way.before, pack(tag, count > 1), behind, body, END_BYTES)
            else:
                parts += (way.before, pack(tag, count > 1), behind)
                parts += frames.body_frames(channel.number, body, channel.frame_max)
            body_bytes += size
        channel.out += parts
        unacked.last_tag = tag
        client = self._client
        if self.is_no_ack:
            client.acknowledge_once_written(receipts)
        else:
            unacked.add(first_tag + 1, receipts)
        self.set_window(body_bytes, len(deliveries))
        self.enter_if_windowed()
        client.driver.delivered(body_bytes + HEAD_BYTES * len(deliveries))

    def _way_of(self, envelope: Envelope) -> Way:
        return Way(envelope, self.queue, self._channel.number, self._opening)

    def set_window(self, body_bytes: int, count: int) -> None:
        """As many as may be taken at once, if they are like these."""
        self.window = max(1, min(WINDOW_MAX, WINDOW_BYTES * count // body_bytes)) if body_bytes else WINDOW_MAX

    def enter_if_windowed(self) -> None:
        """See to it that its window is opened again and again, if its prefetch is wider."""
        if self.limit > self.window:
            self._client.windowed.add(self)

    def open_window(self) -> None:
        """What it got has gone to the socket: it may get more, up to its prefetch."""
        self.subscription.widen(self.window, self.limit)

    def ended(self, error: BrokerError) -> None:
        """The broker ended it: its queue is gone, and what it held with it."""
        self._ended(self)


def _name(text: str) -> bytes:
    try:
        return values.short_string(text)
    except ValueError:
        # Published over another protocol, which has room for longer ones.
        return values.short_string(values.cut(text))
