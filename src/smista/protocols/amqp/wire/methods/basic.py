"""The class basic: messages, consumers, and what they settle."""

from __future__ import annotations

from smista.protocols.amqp.wire.methods.method import (
    AnyShortString,
    Bit,
    Long,
    LongLong,
    Method,
    Short,
    ShortString,
    Table,
    method,
)


@method(60, 10)
class BasicQos(Method):
    prefetch_size: Long
    prefetch_count: Short
    is_global: Bit


@method(60, 11)
class BasicQosOk(Method):
    pass


@method(60, 20)
class BasicConsume(Method):
    ticket: Short
    queue: ShortString
    consumer_tag: ShortString
    no_local: Bit
    no_ack: Bit
    exclusive: Bit
    no_wait: Bit
    arguments: Table


@method(60, 21)
class BasicConsumeOk(Method):
    consumer_tag: ShortString


@method(60, 30)
class BasicCancel(Method):
    consumer_tag: ShortString
    no_wait: Bit


@method(60, 31)
class BasicCancelOk(Method):
    consumer_tag: ShortString


@method(60, 40)
class BasicPublish(Method):
    ticket: Short
    exchange: AnyShortString
    routing_key: AnyShortString
    mandatory: Bit
    immediate: Bit


@method(60, 50)
class BasicReturn(Method):
    reply_code: Short
    reply_text: AnyShortString
    exchange: AnyShortString
    routing_key: AnyShortString


@method(60, 60)
class BasicDeliver(Method):
    consumer_tag: AnyShortString
    delivery_tag: LongLong
    redelivered: Bit
    exchange: AnyShortString
    routing_key: AnyShortString


@method(60, 70)
class BasicGet(Method):
    ticket: Short
    queue: ShortString
    no_ack: Bit


@method(60, 71)
class BasicGetOk(Method):
    delivery_tag: LongLong
    redelivered: Bit
    exchange: AnyShortString
    routing_key: AnyShortString
    message_count: Long


@method(60, 72)
class BasicGetEmpty(Method):
    cluster_id: ShortString = ""


@method(60, 80)
class BasicAck(Method):
    delivery_tag: LongLong
    multiple: Bit


@method(60, 90)
class BasicReject(Method):
    delivery_tag: LongLong
    requeue: Bit


@method(60, 100)
class BasicRecoverAsync(Method):
    requeue: Bit


@method(60, 110)
class BasicRecover(Method):
    requeue: Bit


@method(60, 111)
class BasicRecoverOk(Method):
    pass


@method(60, 120)
class BasicNack(Method):
    delivery_tag: LongLong
    multiple: Bit
    requeue: Bit
