"""Who consumes on a channel: basic.qos, consume and cancel, and direct replies.

A prefetch of basic.qos is each later consumer's own; with `global` it is a pool that all consumers of the channel
share. Where the queue is deleted the broker ends the consumer, and the client hears of it if it asked for that.
"""

from __future__ import annotations

import secrets

from smista.protocols.amqp import arguments
from smista.protocols.amqp.channel.acknowledgements import Acknowledgements
from smista.protocols.amqp.channel.consumer import Consumer
from smista.protocols.amqp.channel.queues import Queues
from smista.protocols.amqp.client import Client
from smista.protocols.amqp.reply_to import REPLY_TO
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.channel import ChannelState
from smista.protocols.amqp.wire.replies import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelClosing,
    ConnectionClosing,
)
from smista.protocols.amqp.wire.values import Arguments
from smista.service.permission import Permission
from smista.service.values import Subscription

NO_LIMIT = arguments.PREFETCH_MAX


class Consuming:
    __slots__ = (
        "_acknowledgements",
        "_channel",
        "_client",
        "_consumers",
        "_prefetch",
        "_queues",
        "_reply_tag",
        "reply_token",
    )

    def __init__(
        self, client: Client, channel: ChannelState, queues: Queues, acknowledgements: Acknowledgements
    ) -> None:
        self._client = client
        self._channel = channel
        self._queues = queues
        self._acknowledgements = acknowledgements
        self._consumers: dict[str, Consumer] = {}
        self._prefetch = 0
        self._reply_tag: str | None = None
        self.reply_token: str | None = None
        """Where somebody waits for direct replies here."""

    # -- qos ----------------------------------------------------------------------------------------------------------

    def qos(self, method: methods.BasicQos) -> None:
        if method.prefetch_size:
            raise ConnectionClosing(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.is_global:
            self._share(method.prefetch_count or NO_LIMIT)
        else:
            self._prefetch = method.prefetch_count
            if self._acknowledgements.shared is not None:
                # As in RabbitMQ: the last word counts.
                self._acknowledgements.shared.set_limit(NO_LIMIT)
        self._channel.send(methods.BasicQosOk())

    def _share(self, limit: int) -> None:
        """Let all consumers of the channel together hold that many."""
        shared, members = self._acknowledgements.shared, []
        if shared is None:
            shared = self._acknowledgements.shared = self._client.session.shared_credit(NO_LIMIT)
            members = [consumer.subscription for consumer in self._consumers.values()]
        if shared.limit >= NO_LIMIT:
            # As in RabbitMQ: all that is unacked when a limit begins, and so not what a transaction has settled.
            shared.begin(members, self._acknowledgements.unacked.receipts.values())
        shared.set_limit(limit)

    # -- consume ------------------------------------------------------------------------------------------------------

    async def consume(self, method: methods.BasicConsume) -> None:
        tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        # That of whoever waits for direct replies may be used again, as in RabbitMQ; not the other way round.
        if tag in self._consumers:
            raise ConnectionClosing(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if method.queue == REPLY_TO:
            self._consume_replies(tag, method)
            return
        client, session = self._client, self._client.session
        queue = self._queues.named(method.queue)
        # Before it is answered, and so before it is subscribed.
        session.check(Permission.READ, queue)
        settings = self._queues.existing(queue)
        where = f"queue '{queue}' in vhost '{session.namespace}'"
        stats = await session.stats(queue)
        if not self._channel.is_open:
            return
        number = session.queue_number(queue)
        exclusive_consumers = client.shared.queues.exclusive_consumers
        is_shared = stats.consumers or settings.single_active_consumer
        if number in exclusive_consumers or (method.exclusive and is_shared):
            raise ChannelClosing(ACCESS_REFUSED, f"{where} in exclusive use")
        is_quorum, shared = arguments.is_quorum(settings), self._acknowledgements.shared
        if is_quorum and shared is not None and shared.limit < NO_LIMIT:
            raise ConnectionClosing(NOT_IMPLEMENTED, f"{where} does not support global qos")
        priority = _priority(method, where)
        arguments.check_consumed(method.arguments, settings, queue, session.namespace)
        consumer = Consumer(
            client,
            self._channel,
            self._acknowledgements.unacked,
            self._ended,
            tag,
            queue,
            is_no_ack=method.no_ack,
            is_quorum=is_quorum,
        )
        consumer.limit = min(NO_LIMIT if method.no_ack else self._prefetch or NO_LIMIT, settings.max_prefetch)
        consumer.set_window(stats.body_bytes, stats.depth)
        if not method.no_wait:
            # Before anything is delivered to it.
            self._channel.send(methods.BasicConsumeOk(tag))
        consumer.subscription = session.subscribe(
            queue,
            consumer.deliver,
            ended=consumer.ended,
            consumer=f"{client.peer}/{self._channel.number}/{tag}",
            prefetch=min(consumer.limit, consumer.window),
            priority=max(-(1 << 31), min(priority, 1 << 31)),
            lease_ms=arguments.lease_ms(settings),
            shared=shared,
            is_counted=not method.no_ack,
            channel=self._channel,
        )
        if client.driver.is_full:
            consumer.subscription.hold_back(True)
        consumer.enter_if_windowed()
        self._consumers[tag] = consumer
        if method.exclusive:
            exclusive_consumers[number] = consumer.subscription

    def hold_back(self, is_held_back: bool) -> None:
        for consumer in self._consumers.values():
            consumer.subscription.hold_back(is_held_back)

    # -- direct replies -----------------------------------------------------------------------------------------------

    def _consume_replies(self, tag: str, method: methods.BasicConsume) -> None:
        if not method.no_ack:
            raise ChannelClosing(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self.reply_token is not None:
            raise ChannelClosing(PRECONDITION_FAILED, "reply consumer already set")
        self._reply_tag = tag
        self.reply_token = self._client.shared.reply_to.wait(self._deliver_reply)
        if not method.no_wait:
            self._channel.send(methods.BasicConsumeOk(tag))

    def _deliver_reply(self, routing_key: str, properties: bytes, body: bytes) -> bool:
        """False where nobody waits for it any more, or nobody reads."""
        if self._reply_tag is None or self._client.driver.is_flooded:
            return False
        unacked = self._acknowledgements.unacked
        unacked.last_tag += 1
        head = methods.BasicDeliver(self._reply_tag, unacked.last_tag, False, "", routing_key)
        self._channel.send_content(head, properties, body)
        self._client.driver.flush_soon()
        return True

    def forget_replies(self) -> None:
        if self.reply_token is not None:
            self._client.shared.reply_to.forget(self.reply_token)
        self.reply_token = self._reply_tag = None

    def is_for_replies(self, tag: str) -> bool:
        return tag == self._reply_tag

    # -- cancel -------------------------------------------------------------------------------------------------------

    def cancel(self, tag: str) -> None:
        consumer = self._consumers.pop(tag, None)
        if consumer is not None:
            client = self._client
            client.driver.flush()
            consumer.subscription.cancel()
            client.windowed.discard(consumer)
            client.shared.queues.consumer_left(consumer.subscription)

    def _ended(self, consumer: Consumer) -> None:
        client = self._client
        self._consumers.pop(consumer.tag, None)
        # Its tags stay: to settle what is gone is no error of the client's.
        client.windowed.discard(consumer)
        client.shared.queues.forget_exclusive(consumer.subscription)
        if client.cancelled is None:
            self._send_cancelled(consumer.tag)
        else:
            client.cancelled.append(lambda: self._send_cancelled(consumer.tag))

    def _send_cancelled(self, tag: str) -> None:
        client = self._client
        if client.connection.handshake.has_capability("consumer_cancel_notify") and not self._channel.is_closing:
            self._channel.send(methods.BasicCancel(tag, True))
            client.driver.flush_soon()

    def let_go(self) -> list[Subscription]:
        """Whoever consumes here, for the client to end; nobody stays."""
        self.forget_replies()
        consumers, self._consumers = self._consumers, {}
        self._client.windowed.difference_update(consumers.values())
        return [consumer.subscription for consumer in consumers.values()]


def _priority(method: methods.BasicConsume, where: str) -> int:
    if "x-priority" not in method.arguments:
        return 0
    assert isinstance(method.arguments, Arguments)
    arguments.check_integer("x-priority", method.arguments.types["x-priority"], where)
    return int(method.arguments["x-priority"])
