"""The methods of the class exchange. Each returns its reply, which is left out under no-wait."""

from __future__ import annotations

from smista.errors import NamespaceNotFound
from smista.exchange_errors import ExchangeInUse, ExchangeNotFound
from smista.protocols.amqp import arguments, routing
from smista.protocols.amqp.channel import bindings
from smista.protocols.amqp.channel.bindings import check_not_default
from smista.protocols.amqp.errors import closing
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.methods import Method
from smista.protocols.amqp.wire.replies import ACCESS_REFUSED, PRECONDITION_FAILED, ChannelClosing
from smista.protocols.amqp.wire.values import Arguments
from smista.service.commands.exchanges import Bind, DeclareExchange, DeleteExchange, Unbind
from smista.service.permission import Permission
from smista.service.session import Session
from smista.service.values import PREDECLARED_EXCHANGES, ExchangeKind, ExchangeSettings

RESERVED = "amq."
DELAYED = "x-delayed-message"
ALTERNATE = "alternate-exchange"


async def declare(session: Session, method: methods.ExchangeDeclare) -> Method:
    name = method.exchange
    check_not_default(name)
    if method.passive:
        # That anybody may ask, as in RabbitMQ.
        if not session.has_exchange(name):
            raise bindings.not_found(session, name)
        return methods.ExchangeDeclareOk()
    session.check(Permission.CONFIGURE, name)
    kind = _kind(method)
    try:
        present = session.exchange_settings(name)
    except (ExchangeNotFound, NamespaceNotFound):
        present = None
    if present is not None:
        _check_same(session, present, kind, method)
        return methods.ExchangeDeclareOk()
    if name.startswith(RESERVED):
        raise ChannelClosing(ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix 'amq.*'")
    asked = method.arguments
    assert isinstance(asked, Arguments)
    alternate = asked.get(ALTERNATE)
    if ALTERNATE in asked:
        where = f"exchange '{name}' in vhost '{session.namespace}'"
        arguments.check_exchange_name(ALTERNATE, asked.types[ALTERNATE], where)
    await session.run(
        DeclareExchange(name, kind, method.durable, method.auto_delete, method.internal, alternate or None)
    )
    return methods.ExchangeDeclareOk()


def _kind(method: methods.ExchangeDeclare) -> ExchangeKind:
    kind = method.kind
    if kind == DELAYED:
        # Any message may be delayed here by its x-delay, so such an exchange is simply of the type it names.
        kind = str(method.arguments.get("x-delayed-type", "direct"))
    try:
        return ExchangeKind(kind)
    except ValueError:
        raise ChannelClosing(PRECONDITION_FAILED, f"unknown exchange type '{kind}'") from None


def _check_same(
    session: Session, present: ExchangeSettings, kind: ExchangeKind, method: methods.ExchangeDeclare
) -> None:
    where = f"exchange '{method.exchange}' in vhost '{session.namespace}'"
    arguments.check_same("type", where, kind.value, present.kind.value)
    arguments.check_same("durable", where, method.durable, present.durable)
    arguments.check_same("auto_delete", where, method.auto_delete, present.auto_delete)
    arguments.check_same("internal", where, method.internal, present.internal)
    again = method.arguments
    assert isinstance(again, Arguments)
    asked = (again.types[ALTERNATE], again[ALTERNATE]) if ALTERNATE in again else None
    current = None if present.alternate is None else ("longstr", present.alternate)
    if asked != current:
        raise arguments.inequivalent(ALTERNATE, where, asked, current)


async def delete(session: Session, method: methods.ExchangeDelete) -> Method:
    name = method.exchange
    check_not_default(name)
    session.check(Permission.CONFIGURE, name)
    if name in PREDECLARED_EXCHANGES or name.startswith(RESERVED):
        raise ChannelClosing(
            ACCESS_REFUSED, f"deletion of system exchange '{name}' in vhost '{session.namespace}' not allowed"
        )
    try:
        await session.run(DeleteExchange(name, method.if_unused))
    except (ExchangeNotFound, NamespaceNotFound):
        pass
    except ExchangeInUse as error:
        raise closing(error, f"exchange '{name}' in vhost '{session.namespace}' in use") from None
    return methods.ExchangeDeleteOk()


async def bind(session: Session, method: methods.ExchangeBind) -> Method:
    check_not_default(method.source)
    check_not_default(method.destination)
    bindings.check_allowed(session, method.source, method.destination)
    source = bindings.existing(session, method.source)
    bindings.existing(session, method.destination)
    rule = bindings.rule(source, method.arguments)
    await session.run(Bind(method.source, to_exchange=method.destination, key=method.routing_key, arguments=rule))
    return methods.ExchangeBindOk()


async def unbind(session: Session, method: methods.ExchangeUnbind) -> Method:
    check_not_default(method.source)
    check_not_default(method.destination)
    rule = routing.routable(method.arguments)
    await bindings.unbind(
        session, Unbind(method.source, to_exchange=method.destination, key=method.routing_key, arguments=rule)
    )
    return methods.ExchangeUnbindOk()
