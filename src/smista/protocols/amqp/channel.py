"""One channel: what it may do when, and what it holds.

    content in:   basic.publish ─▶ header ─▶ body frames until the announced size ─▶ published
    settling:     tags in `unacked`, in the order of delivery; an unknown one closes the channel
    modes:        plain, confirming, or transactional: publishes and settlements wait for the commit

Hot methods (publish, ack, nack, reject) are done at once, on the loop. Those that change what is declared have to be on
disk before they are answered: they return a coroutine, and the connection reads no further frame until it is done.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from smista.engine import ACKNOWLEDGED_AT_ONCE, FOREVER_MS, CreditPool, Receipt, Settle
from smista.protocols import queue_annotations
from smista.protocols.amqp import arguments, content, frames, methods
from smista.protocols.amqp.consuming import Consumer, raw_properties, routed_by
from smista.protocols.amqp.declaring import Declaring
from smista.protocols.amqp.door import REPLY_TO
from smista.protocols.amqp.methods import Method
from smista.protocols.amqp.publishing import CACHED_MAX, Prepared, Target
from smista.protocols.amqp.replies import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    FRAME_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    RESOURCE_LOCKED,
    UNEXPECTED_FRAME,
    ChannelClosing,
    ConnectionClosing,
)
from smista.protocols.amqp.transaction import Transaction
from smista.protocols.amqp.unacked import Settlement, Unacked
from smista.protocols.amqp.values import Arguments

if TYPE_CHECKING:
    from smista.protocols.amqp.connection import AmqpConnection

Later = Coroutine[Any, Any, None]
NO_LIMIT = arguments.PREFETCH_MAX
PARTS_BYTES_MAX = 256 << 20
"""Of messages that are on their way in on all channels of a connection."""
PART_BYTES_MIN = 1024


class Channel:
    def __init__(self, connection: AmqpConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.is_closing = False
        """We have sent channel.close and wait for its -ok."""
        self.last_queue = ""
        self.unacked = Unacked(self._can_be_settled)
        self.is_confirming = False
        self.publish_tag = 0
        self._confirmed_tag = 0
        self.reply_token: str | None = None
        self.broker = connection.door.broker
        self._consumers: dict[str, Consumer] = {}
        self._reply_tag: str | None = None
        self._prefetch = 0
        self._pool: CreditPool | None = None
        self._declaring = Declaring(self)
        self._targets: dict[bytes, Target] = {}
        self._target: Target | None = None
        self._prepared: Prepared | None = None
        self.last_content: tuple[Target, Prepared] | None = None
        """How the last message that was published here was addressed."""
        self._body_bytes = 0
        self._parts: list[bytes | bytearray] = []
        self._parts_bytes = 0
        self.transaction: Transaction | None = None

    # -- content in ---------------------------------------------------------------------------------------------------

    def publish_method(self, payload: bytes) -> None:
        if self._target is not None:
            raise self._out_of_order()
        target = self._targets.get(payload)
        if target is None:
            method = methods.read(payload)
            assert isinstance(method, methods.BasicPublish)
            if method.immediate:
                raise ConnectionClosing(NOT_IMPLEMENTED, "immediate=true")
            if len(self._targets) >= CACHED_MAX:
                self._forget_targets()
            target = self._targets[payload] = Target(method)
        self._target = target

    def header(self, payload: bytes) -> None:
        target = self._target
        if target is None or self._prepared is not None:
            raise self._out_of_order()
        size, raw = content.read_head(payload)
        if size > self.connection.body_bytes_max:
            raise ChannelClosing(
                PRECONDITION_FAILED,
                f"message size {size} is larger than configured max size {self.connection.body_bytes_max}",
            )
        self._prepared = target.prepare(raw, self)
        self._body_bytes = size
        if not size:
            self._complete(b"")

    def body(self, data: bytes) -> None:
        if self._prepared is None:
            raise self._out_of_order()
        if not self._parts and len(data) == self._body_bytes:
            self._complete(data)
            return
        self._keep_part(data)
        if self._parts_bytes > self._body_bytes:
            raise ConnectionClosing(FRAME_ERROR, "more content than the header announced", ids=content.PUBLISH)
        if self._parts_bytes == self._body_bytes:
            body = b"".join(self._parts)
            self._drop_parts()
            self._complete(body)

    def _keep_part(self, data: bytes) -> None:
        # Small parts are put together at once: each by itself would take many times the memory it took to send.
        if len(data) >= PART_BYTES_MIN:
            self._parts.append(data)
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += data
        elif data:
            self._parts.append(bytearray(data))
        self._parts_bytes += len(data)
        self.connection.parts_bytes += len(data)
        if self.connection.parts_bytes > PARTS_BYTES_MAX:
            raise ConnectionClosing(
                RESOURCE_ERROR,
                f"more than {PARTS_BYTES_MAX} bytes of messages that are not whole; send them one after the other",
                ids=content.PUBLISH,
            )

    def _drop_parts(self) -> None:
        self.connection.parts_bytes -= self._parts_bytes
        self._parts, self._parts_bytes = [], 0

    def _out_of_order(self) -> ConnectionClosing:
        """A frame that should not come now."""
        if self._target is None:
            return ConnectionClosing(
                UNEXPECTED_FRAME, "expected method frame, got non method frame instead", ids=(0, 0)
            )
        if self._prepared is None:
            expected = "expected content header for class 60, got non content header frame instead"
        else:
            expected = "expected content body, got non content body frame instead"
        return ConnectionClosing(UNEXPECTED_FRAME, expected, ids=content.PUBLISH)

    def _complete(self, body: bytes) -> None:
        target, prepared = self._target, self._prepared
        assert target is not None
        assert prepared is not None
        self._target = self._prepared = None
        self.last_content = target, prepared
        self.publish(target, prepared, [body])

    def publish(self, target: Target, prepared: Prepared, bodies: list[bytes]) -> None:
        """Publish messages that are whole, or keep them for the commit."""
        if self.transaction is not None:
            self.transaction.publish(target, prepared, bodies)
        else:
            self.connection.publisher.publish(self, target, prepared, bodies)

    @property
    def has_content(self) -> bool:
        """Whether a message is on its way in."""
        return self._target is not None

    def forget_content(self) -> None:
        self._target = self._prepared = None
        self._drop_parts()

    # -- methods ------------------------------------------------------------------------------------------------------

    def method(self, method: Method) -> Later | None:
        """Do what a method asks; a coroutine where that has to wait."""
        if self._target is not None:
            raise self._out_of_order()
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise ConnectionClosing(COMMAND_INVALID, "unimplemented method")
        return handler(self, method)

    def send(self, method: Method) -> None:
        self.connection.out.append(frames.method_frame(self.number, method))

    def named(self, queue: str) -> str:
        """The queue a method names; none at all means the last one declared here."""
        name = queue or self.last_queue
        if not name:
            raise ChannelClosing(NOT_FOUND, "no previously declared queue")
        return name

    def _flow(self, method: methods.ChannelFlow) -> None:
        if not method.active:
            raise ConnectionClosing(NOT_IMPLEMENTED, "active=false")
        self.send(methods.ChannelFlowOk(True))

    async def _answer(self, work: Coroutine[Any, Any, Method], *, no_wait: bool) -> None:
        cancelled = self.connection.cancelled = []
        try:
            reply = await work
            if not no_wait:
                self.send(reply)
        finally:
            self.connection.cancelled = None
            for consumer in cancelled:
                consumer.channel.tell_cancelled(consumer)

    # -- qos, consume, cancel -----------------------------------------------------------------------------------------

    def _qos(self, method: methods.BasicQos) -> None:
        if method.prefetch_size:
            raise ConnectionClosing(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.is_global:
            limit = method.prefetch_count or NO_LIMIT
            if self._pool is None:
                self._pool = CreditPool(NO_LIMIT)
                for consumer in self._consumers.values():
                    consumer.subscription.pool = self._pool
                    self._pool.members[consumer.subscription] = None
            if self._pool.limit >= NO_LIMIT:
                # As in RabbitMQ: all that is unacked when a limit begins, and so not what a transaction has settled.
                unacked = self.unacked.receipts.values()
                self._pool.held = {(receipt.queue, receipt.sequence) for receipt in unacked}
            self.broker.set_pool_limit(self._pool, limit)
        else:
            self._prefetch = method.prefetch_count
            if self._pool is not None:
                # As in RabbitMQ: the last word counts.
                self.broker.set_pool_limit(self._pool, NO_LIMIT)
        self.send(methods.BasicQosOk())

    def _consume(self, method: methods.BasicConsume) -> None:
        tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        # That of whoever waits for direct replies may be used again, as in RabbitMQ; not the other way round.
        if tag in self._consumers:
            raise ConnectionClosing(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if method.queue == REPLY_TO:
            self._consume_replies(tag, method)
            return
        queue = self.named(method.queue)
        settings = self._declaring.existing(queue)
        vhost = self.connection.vhost
        number = self.broker.queue_number(queue, namespace=vhost)
        door = self.connection.door
        stats = self.broker.stats(queue, namespace=vhost)
        is_shared = stats.consumers or settings.single_active_consumer
        if number in door.exclusive_consumers or (method.exclusive and is_shared):
            raise ChannelClosing(ACCESS_REFUSED, f"queue '{queue}' in vhost '{vhost}' in exclusive use")
        if arguments.is_quorum(settings) and self._pool is not None and self._pool.limit < NO_LIMIT:
            raise ConnectionClosing(NOT_IMPLEMENTED, f"queue '{queue}' in vhost '{vhost}' does not support global qos")
        priority = method.arguments.get("x-priority", 0)
        if "x-priority" in method.arguments:
            assert isinstance(method.arguments, Arguments)
            where = f"queue '{queue}' in vhost '{vhost}'"
            arguments.check_integer("x-priority", method.arguments.types["x-priority"], where)
        arguments.check_consumed(method.arguments, settings, queue, vhost)
        consumer = Consumer(
            self,
            tag,
            queue,
            is_no_ack=method.no_ack,
            is_quorum=arguments.is_quorum(settings),
        )
        consumer.limit = min(NO_LIMIT if method.no_ack else self._prefetch or NO_LIMIT, settings.max_prefetch)
        consumer.set_window(stats.body_bytes, stats.depth)
        if not method.no_wait:
            # Before anything is delivered to it.
            self.send(methods.BasicConsumeOk(tag))
        consumer.subscription = self.broker.subscribe(
            queue,
            consumer.deliver,
            ended=consumer.ended,
            consumer=f"{self.connection.peer}/{self.number}/{tag}",
            prefetch=min(consumer.limit, consumer.window),
            priority=max(-(1 << 31), min(priority, 1 << 31)),
            lease_ms=self._lease_ms(settings),
            pool=self._pool,
            is_counted=not method.no_ack,
            lane=self,
            namespace=vhost,
        )
        if self.connection.is_full:
            self.broker.hold_back(consumer.subscription, True)
        consumer.enter_if_wide()
        self._consumers[tag] = consumer
        if method.exclusive:
            door.exclusive_consumers[number] = consumer

    def _lease_ms(self, settings: Any) -> int:
        """As long as the channel lives, unless the queue asks for less."""
        return queue_annotations.number(settings, arguments.CONSUMER_TIMEOUT, 1, FOREVER_MS) or FOREVER_MS

    def _consume_replies(self, tag: str, method: methods.BasicConsume) -> None:
        if not method.no_ack:
            raise ChannelClosing(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self.reply_token is not None:
            raise ChannelClosing(PRECONDITION_FAILED, "reply consumer already set")
        self._reply_tag = tag
        self.reply_token = self.connection.door.await_replies(self)
        if not method.no_wait:
            self.send(methods.BasicConsumeOk(tag))

    def deliver_reply(self, routing_key: str, prepared: Prepared, body: bytes) -> bool:
        """A direct reply, past all queues; False where nobody waits for it any more, or nobody reads."""
        if self._reply_tag is None or self.connection.is_flooded:
            return False
        self.unacked.last_tag += 1
        self.send(methods.BasicDeliver(self._reply_tag, self.unacked.last_tag, False, "", routing_key))
        out = self.connection.out
        raw = prepared.envelope.properties[1:]
        out.append(frames.frame(frames.HEADER, self.number, content.write_head(len(body), raw)))
        out.extend(frames.body_frames(self.number, body, self.connection.frame_max))
        self.connection.flush_soon()
        return True

    def _cancel(self, method: methods.BasicCancel) -> None:
        if method.consumer_tag == self._reply_tag:
            self._forget_replies()
        elif (consumer := self._consumers.pop(method.consumer_tag, None)) is not None:
            self.connection.flush()
            self.broker.cancel(consumer.subscription, keeps_held=True)
            self.connection.consumer_left(consumer)
        if not method.no_wait:
            self.send(methods.BasicCancelOk(method.consumer_tag))

    def consumer_ended(self, consumer: Consumer) -> None:
        """The broker ended it: its queue is gone, and what it held with it."""
        self._consumers.pop(consumer.tag, None)
        # Its tags stay: to settle what is gone is no error of the client's.
        self.connection.wide_consumers.discard(consumer)
        self.connection.door.forget_exclusive(consumer)
        if self.connection.cancelled is None:
            self.tell_cancelled(consumer)
        else:
            self.connection.cancelled.append(consumer)

    def tell_cancelled(self, consumer: Consumer) -> None:
        if self.connection.has_capability("consumer_cancel_notify") and not self.is_closing:
            self.send(methods.BasicCancel(consumer.tag, True))
            self.connection.flush_soon()

    def _forget_replies(self) -> None:
        if self.reply_token is not None:
            self.connection.door.reply_channels.pop(self.reply_token, None)
        self.reply_token = self._reply_tag = None
        # They hold the token.
        self._forget_targets()
        self.last_content = None

    def _forget_targets(self) -> None:
        # A transaction may keep a target, but not all that was prepared for it.
        for target in self._targets.values():
            target.prepared.clear()
        self._targets.clear()

    def hold_back(self, is_held_back: bool) -> None:
        for consumer in self._consumers.values():
            self.broker.hold_back(consumer.subscription, is_held_back)

    # -- get ----------------------------------------------------------------------------------------------------------

    async def _get(self, method: methods.BasicGet) -> None:
        queue = self.named(method.queue)
        settings = self._declaring.existing(queue)
        vhost = self.connection.vhost
        if settings.single_active_consumer and arguments.is_quorum(settings):
            raise ChannelClosing(
                RESOURCE_LOCKED,
                f"cannot obtain access to locked queue '{queue}' in vhost '{vhost}'. basic.get operations are not "
                "supported by quorum queues with single active consumer",
            )
        deliveries = await self.broker.receive(
            queue,
            1,
            lease_ms=self._lease_ms(settings),
            consumer=self.connection.peer,
            beside_active=True,
            namespace=vhost,
        )
        if self.is_closing or self.connection.channels.get(self.number) is not self:
            # Gone while the body was read back from the log.
            self.broker.release_now([delivery.receipt for delivery in deliveries])
            return
        if not deliveries:
            self.send(methods.BasicGetEmpty())
            return
        [delivery] = deliveries
        self.unacked.last_tag = tag = self.unacked.last_tag + 1
        if method.no_ack:
            self.broker.acknowledge_now([delivery.receipt])
        else:
            self.unacked.add(tag, [delivery.receipt])
        left, _ = self._declaring.counts(queue)
        exchange, key = routed_by(delivery.envelope, queue)
        self.send(methods.BasicGetOk(tag, delivery.is_redelivered, exchange, key, left))
        raw = raw_properties(delivery, is_counted=arguments.is_quorum(settings))
        out = self.connection.out
        out.append(frames.frame(frames.HEADER, self.number, content.write_head(len(delivery.body), raw)))
        out.extend(frames.body_frames(self.number, delivery.body, self.connection.frame_max))

    # -- settling -----------------------------------------------------------------------------------------------------

    def acknowledge(self, tag: int, multiple: bool) -> Later | None:
        """Hot: most of what a consumer sends."""
        taken = self.unacked.take(tag, multiple)
        if self.transaction is not None:
            self.transaction.settle(Settlement.ACK, taken)
        elif len(taken) > ACKNOWLEDGED_AT_ONCE:
            return self.settle(Settlement.ACK, taken)
        else:
            if self._pool is not None:
                self.broker.let_go_in_pool(self._pool, taken.values())
            self.connection.acknowledge(taken.values())
        return None

    def _ack(self, method: methods.BasicAck) -> Later | None:
        return self.acknowledge(method.delivery_tag, method.multiple)

    def _nack(self, method: methods.BasicNack) -> Later | None:
        return self._give_back(self.unacked.take(method.delivery_tag, method.multiple), requeue=method.requeue)

    def _reject(self, method: methods.BasicReject) -> Later | None:
        return self._give_back(self.unacked.take(method.delivery_tag, False), requeue=method.requeue)

    def _give_back(self, taken: dict[int, Receipt], *, requeue: bool) -> Later | None:
        settlement = Settlement.REQUEUE if requeue else Settlement.REJECT
        if self.transaction is not None:
            self.transaction.settle(settlement, taken)
            return None
        return self.settle(settlement, taken)

    def settle(self, settlement: Settlement, taken: dict[int, Receipt]) -> Later | None:
        """Settle at once, or, where they are very many, in slices: a coroutine, which has to come to its end."""
        receipts = list(taken.values())
        self.connection.settled()
        if self._pool is not None:
            self.broker.let_go_in_pool(self._pool, receipts)
        return self.broker.settle_many(
            receipts,
            self._settle_by(settlement),
            is_acknowledged=settlement is Settlement.ACK,
            goes_back=settlement is Settlement.REQUEUE,
        )

    def _can_be_settled(self, receipt: Receipt) -> bool:
        """Whether settling it would change anything; if only what counts against the prefetch of the channel."""
        if self._pool is not None and (receipt.queue, receipt.sequence) in self._pool.held:
            return True
        return self.broker.can_be_settled(receipt)

    def _settle_by(self, settlement: Settlement) -> Settle:
        broker = self.broker
        match settlement:
            case Settlement.ACK:
                return lambda receipts: len(broker.acknowledge_now(receipts))
            case Settlement.REQUEUE:
                return lambda receipts: len(broker.nack_now(receipts, requeue=True, delay_ms=0, is_cut=True))
            case Settlement.REJECT:
                return lambda receipts: len(broker.nack_now(receipts, requeue=False, is_cut=True))

    def _recover(self, method: methods.BasicRecover | methods.BasicRecoverAsync) -> Later | None:
        if not method.requeue:
            raise ConnectionClosing(NOT_IMPLEMENTED, "requeue=false")
        work = self.settle(Settlement.REQUEUE, self.unacked.take_all())
        if not isinstance(method, methods.BasicRecover):
            return work
        return self._answer_after(work, methods.BasicRecoverOk())

    def _answer_after(self, work: Later | None, reply: Method) -> Later | None:
        if work is not None:
            return self._answered_after(work, reply)
        self.send(reply)
        return None

    async def _answered_after(self, work: Later, reply: Method) -> None:
        await work
        if not self.is_closing:
            self.send(reply)

    # -- confirms and transactions ------------------------------------------------------------------------------------

    def _confirm_select(self, method: methods.ConfirmSelect) -> None:
        if self.transaction is not None:
            raise ChannelClosing(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        self.is_confirming = True
        if not method.no_wait:
            self.send(methods.ConfirmSelectOk())

    def confirm_up_to(self, tag: int, refused: list[int]) -> None:
        """Answer what was published up to `tag`, each tag once."""
        if self.is_closing or self.connection.channels.get(self.number) is not self:
            return
        for each in sorted(refused):
            self._ack_up_to(each - 1)
            self.send(methods.BasicNack(each, False, False))
            self._confirmed_tag = each
        self._ack_up_to(tag)

    def _ack_up_to(self, tag: int) -> None:
        count = tag - self._confirmed_tag
        if count:
            self.send(methods.BasicAck(tag, count > 1))
            self._confirmed_tag = tag

    def _tx_select(self, method: methods.TxSelect) -> None:
        if self.is_confirming:
            raise ChannelClosing(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
        self.transaction = self.transaction or Transaction(self)
        self.send(methods.TxSelectOk())

    async def _tx_commit(self, method: methods.TxCommit) -> None:
        await self._transaction().commit()
        if not self.is_closing:
            self.send(methods.TxCommitOk())

    def _tx_rollback(self, method: methods.TxRollback) -> Later | None:
        return self._answer_after(self._transaction().roll_back(), methods.TxRollbackOk())

    def _transaction(self) -> Transaction:
        if self.transaction is None:
            raise ChannelClosing(PRECONDITION_FAILED, "channel is not transactional")
        return self.transaction

    # -- the end ------------------------------------------------------------------------------------------------------

    def let_go(self) -> tuple[list[Consumer], list[Receipt]]:
        """Whoever consumes here and whatever is held, for the connection to give back; nothing stays."""
        self.forget_content()
        self._forget_replies()
        if self.transaction is not None:
            self.transaction.drop()
        consumers, self._consumers = self._consumers, {}
        return list(consumers.values()), list(self.unacked.take_all().values())


def _later(name: str) -> Callable[[Channel, Any], Later]:
    """A handler that declares something and answers when that is on disk."""

    def handle(channel: Channel, method: Any) -> Later:
        work = getattr(channel._declaring, name)(method)
        return channel._answer(work, no_wait=getattr(method, "no_wait", False))

    return handle


_HANDLERS: dict[type[Method], Callable[[Channel, Any], Later | None]] = {
    methods.ChannelFlow: Channel._flow,
    methods.ExchangeDeclare: _later("declare_exchange"),
    methods.ExchangeDelete: _later("delete_exchange"),
    methods.ExchangeBind: _later("bind_exchange"),
    methods.ExchangeUnbind: _later("unbind_exchange"),
    methods.QueueDeclare: _later("declare_queue"),
    methods.QueueBind: _later("bind_queue"),
    methods.QueueUnbind: _later("unbind_queue"),
    methods.QueuePurge: _later("purge_queue"),
    methods.QueueDelete: _later("delete_queue"),
    methods.BasicQos: Channel._qos,
    methods.BasicConsume: Channel._consume,
    methods.BasicCancel: Channel._cancel,
    methods.BasicGet: Channel._get,
    methods.BasicAck: Channel._ack,
    methods.BasicNack: Channel._nack,
    methods.BasicReject: Channel._reject,
    methods.BasicRecover: Channel._recover,
    methods.BasicRecoverAsync: Channel._recover,
    methods.ConfirmSelect: Channel._confirm_select,
    methods.TxSelect: Channel._tx_select,
    methods.TxCommit: Channel._tx_commit,
    methods.TxRollback: Channel._tx_rollback,
}
