"""The class queue."""

from __future__ import annotations

from smista.protocols.amqp.wire.methods.method import Bit, Long, Method, Short, ShortString, Table, method


@method(50, 10)
class QueueDeclare(Method):
    ticket: Short
    queue: ShortString
    passive: Bit
    durable: Bit
    exclusive: Bit
    auto_delete: Bit
    no_wait: Bit
    arguments: Table


@method(50, 11)
class QueueDeclareOk(Method):
    queue: ShortString
    message_count: Long
    consumer_count: Long


@method(50, 20)
class QueueBind(Method):
    ticket: Short
    queue: ShortString
    exchange: ShortString
    routing_key: ShortString
    no_wait: Bit
    arguments: Table


@method(50, 21)
class QueueBindOk(Method):
    pass


@method(50, 30)
class QueuePurge(Method):
    ticket: Short
    queue: ShortString
    no_wait: Bit


@method(50, 31)
class QueuePurgeOk(Method):
    message_count: Long


@method(50, 40)
class QueueDelete(Method):
    ticket: Short
    queue: ShortString
    if_unused: Bit
    if_empty: Bit
    no_wait: Bit


@method(50, 41)
class QueueDeleteOk(Method):
    message_count: Long


@method(50, 50)
class QueueUnbind(Method):
    ticket: Short
    queue: ShortString
    exchange: ShortString
    routing_key: ShortString
    arguments: Table


@method(50, 51)
class QueueUnbindOk(Method):
    pass
