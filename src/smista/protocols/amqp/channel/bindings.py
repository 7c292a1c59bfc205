"""Bindings of queues and exchanges: what both classes' bind and unbind have in common."""

from __future__ import annotations

import contextlib
from typing import Any

from smista.errors import NamespaceNotFound
from smista.exchange_errors import BindingTargetNotFound, ExchangeNotFound
from smista.protocols.amqp import routing
from smista.protocols.amqp.wire.replies import ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, ChannelClosing
from smista.protocols.amqp.wire.values import Arguments
from smista.service.commands.exchanges import Unbind
from smista.service.permission import Permission
from smista.service.session import Session
from smista.service.values import X_MATCH_VALUES, ExchangeKind, ExchangeSettings


def existing(session: Session, exchange: str) -> ExchangeSettings:
    """The settings of an exchange that is there."""
    try:
        return session.exchange_settings(exchange)
    except (ExchangeNotFound, NamespaceNotFound):
        raise not_found(session, exchange) from None


def not_found(session: Session, exchange: str) -> ChannelClosing:
    return ChannelClosing(NOT_FOUND, f"no exchange '{exchange}' in vhost '{session.namespace}'")


def check_allowed(session: Session, source: str, destination: str) -> None:
    """Before anything else is looked at, as in RabbitMQ."""
    session.check(Permission.READ, source)
    session.check(Permission.WRITE, destination)


def check_not_default(exchange: str) -> None:
    if not exchange:
        raise ChannelClosing(ACCESS_REFUSED, "operation not permitted on the default exchange")


def rule(source: ExchangeSettings, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a binding, as they are kept and compared."""
    assert isinstance(arguments, Arguments)
    if source.kind is ExchangeKind.HEADERS and "x-match" in arguments:
        value, type_name = arguments["x-match"], arguments.types["x-match"]
        if type_name != "longstr":
            raise ChannelClosing(
                PRECONDITION_FAILED,
                f"Invalid x-match field type {type_name} (value {value}); expected longstr",
            )
        if value not in X_MATCH_VALUES:
            raise ChannelClosing(
                PRECONDITION_FAILED,
                f'Invalid x-match field value <<"{value}">>; expected all, any, all-with-x, or any-with-x',
            )
    return routing.routable(arguments)


async def unbind(session: Session, command: Unbind) -> None:
    """What is not there need not be unbound."""
    with contextlib.suppress(ExchangeNotFound, NamespaceNotFound, BindingTargetNotFound):
        await session.run(command)
