"""basic.get: one message, if there is one."""

from __future__ import annotations

from smista.protocols.amqp import arguments
from smista.protocols.amqp.channel.properties import raw_properties, routed_by
from smista.protocols.amqp.channel.queues import Queues
from smista.protocols.amqp.channel.unacked import Unacked
from smista.protocols.amqp.client import Client
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.channel import ChannelState
from smista.protocols.amqp.wire.replies import RESOURCE_LOCKED, ChannelClosing
from smista.service.permission import Permission


async def get(
    client: Client, channel: ChannelState, queues: Queues, unacked: Unacked, method: methods.BasicGet
) -> None:
    queue = queues.named(method.queue)
    session = client.session
    session.check(Permission.READ, queue)
    settings = queues.existing(queue)
    is_quorum = arguments.is_quorum(settings)
    if settings.single_active_consumer and is_quorum:
        raise ChannelClosing(
            RESOURCE_LOCKED,
            f"cannot obtain access to locked queue '{queue}' in vhost '{session.namespace}'. basic.get operations are "
            "not supported by quorum queues with single active consumer",
        )
    # Also beside a single active consumer.
    deliveries = await session.receive(
        queue, lease_ms=arguments.lease_ms(settings), consumer=client.peer, beside_active=True
    )
    left, _ = await queues.counts(queue) if deliveries else (0, 0)
    if not channel.is_open:
        # Gone while the body was read back from the log.
        session.give_back([delivery.receipt for delivery in deliveries])
        return
    if not deliveries:
        channel.send(methods.BasicGetEmpty())
        return
    [delivery] = deliveries
    unacked.last_tag = tag = unacked.last_tag + 1
    if method.no_ack:
        session.acknowledge([delivery.receipt])
    else:
        unacked.add(tag, [delivery.receipt])
    exchange, key = routed_by(delivery.envelope, queue)
    head = methods.BasicGetOk(tag, delivery.is_redelivered, exchange, key, left)
    channel.send_content(head, raw_properties(delivery, is_counted=is_quorum), delivery.body)
