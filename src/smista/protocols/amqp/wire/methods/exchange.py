"""The class exchange."""

from __future__ import annotations

from smista.protocols.amqp.wire.methods.method import Bit, Method, Short, ShortString, Table, method


@method(40, 10)
class ExchangeDeclare(Method):
    ticket: Short
    exchange: ShortString
    kind: ShortString
    passive: Bit
    durable: Bit
    auto_delete: Bit
    internal: Bit
    no_wait: Bit
    arguments: Table


@method(40, 11)
class ExchangeDeclareOk(Method):
    pass


@method(40, 20)
class ExchangeDelete(Method):
    ticket: Short
    exchange: ShortString
    if_unused: Bit
    no_wait: Bit


@method(40, 21)
class ExchangeDeleteOk(Method):
    pass


@method(40, 30)
class ExchangeBind(Method):
    ticket: Short
    destination: ShortString
    source: ShortString
    routing_key: ShortString
    no_wait: Bit
    arguments: Table


@method(40, 31)
class ExchangeBindOk(Method):
    pass


@method(40, 40)
class ExchangeUnbind(Method):
    ticket: Short
    destination: ShortString
    source: ShortString
    routing_key: ShortString
    no_wait: Bit
    arguments: Table


@method(40, 51)
class ExchangeUnbindOk(Method):
    pass
