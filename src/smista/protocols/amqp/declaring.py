"""The methods of the classes exchange and queue: what a channel declares, binds, purges and deletes."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from smista.core.errors import (
    ExchangeCycle,
    ExchangeInUse,
    InvalidBinding,
    InvalidExchange,
    NamespaceNotFound,
    QueueNotFound,
)
from smista.core.exchanges import PREDECLARED, BindingTargetNotFound, ExchangeNotFound
from smista.core.exchanges.headers import X_MATCH_VALUES
from smista.engine import Binding, ExchangeKind, ExchangeSettings, QueueSettings
from smista.errors import BrokerError
from smista.protocols.amqp import arguments, methods, routing
from smista.protocols.amqp.replies import (
    ACCESS_REFUSED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    ChannelClosing,
    ConnectionClosing,
)
from smista.protocols.amqp.values import Arguments

if TYPE_CHECKING:
    from smista.protocols.amqp.channel import Channel
    from smista.protocols.amqp.methods import Method

RESERVED = "amq."
DELAYED = "x-delayed-message"
ALTERNATE = "alternate-exchange"


class Declaring:
    """A channel's hand for declarations. Each method returns the reply, which is left out under no-wait."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connection = channel.connection
        self._door = channel.connection.door
        self._broker = self._door.broker

    @property
    def _vhost(self) -> str:
        return self._connection.vhost

    # -- exchanges ----------------------------------------------------------------------------------------------------

    async def declare_exchange(self, method: methods.ExchangeDeclare) -> Method:
        name = method.exchange
        self._check_not_default(name)
        if method.passive:
            self._exchange(name)
            return methods.ExchangeDeclareOk()
        kind = _exchange_kind(method)
        try:
            present = self._broker.exchange_settings(name, namespace=self._vhost)
        except (ExchangeNotFound, NamespaceNotFound):
            present = None
        if present is not None:
            self._check_same_exchange(present, kind, method)
            return methods.ExchangeDeclareOk()
        if name.startswith(RESERVED):
            raise ChannelClosing(ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix 'amq.*'")
        said = _arguments(method)
        alternate = said.get(ALTERNATE)
        if ALTERNATE in said:
            where = f"exchange '{name}' in vhost '{self._vhost}'"
            arguments.check_exchange_name(ALTERNATE, said.types[ALTERNATE], where)
        wanted = ExchangeSettings(kind, method.durable, method.auto_delete, method.internal, alternate or None)
        try:
            await self._broker.declare_exchange(name, wanted, namespace=self._vhost)
        except (InvalidExchange, ExchangeCycle) as error:
            raise ChannelClosing(PRECONDITION_FAILED, str(error)) from None
        return methods.ExchangeDeclareOk()

    def _check_same_exchange(
        self, present: ExchangeSettings, kind: ExchangeKind, method: methods.ExchangeDeclare
    ) -> None:
        where = f"exchange '{method.exchange}' in vhost '{self._vhost}'"
        arguments.check_same("type", where, kind.value, present.kind.value)
        arguments.check_same("durable", where, method.durable, present.durable)
        arguments.check_same("auto_delete", where, method.auto_delete, present.auto_delete)
        arguments.check_same("internal", where, method.internal, present.internal)
        said = _arguments(method)
        asked = (said.types[ALTERNATE], said[ALTERNATE]) if ALTERNATE in said else None
        current = None if present.alternate is None else ("longstr", present.alternate)
        if asked != current:
            raise arguments.inequivalent(ALTERNATE, where, asked, current)

    async def delete_exchange(self, method: methods.ExchangeDelete) -> Method:
        name = method.exchange
        self._check_not_default(name)
        if name in PREDECLARED or name.startswith(RESERVED):
            raise ChannelClosing(
                ACCESS_REFUSED, f"deletion of system exchange '{name}' in vhost '{self._vhost}' not allowed"
            )
        try:
            await self._broker.delete_exchange(name, if_unused=method.if_unused, namespace=self._vhost)
        except (ExchangeNotFound, NamespaceNotFound):
            pass
        except ExchangeInUse:
            raise ChannelClosing(PRECONDITION_FAILED, f"exchange '{name}' in vhost '{self._vhost}' in use") from None
        return methods.ExchangeDeleteOk()

    async def bind_exchange(self, method: methods.ExchangeBind) -> Method:
        self._check_not_default(method.source)
        self._check_not_default(method.destination)
        source = self._exchange(method.source)
        self._exchange(method.destination)
        said = self._rule(source, method)
        await self._bind(lambda: Binding.to_exchange(method.source, method.destination, method.routing_key, said))
        return methods.ExchangeBindOk()

    async def unbind_exchange(self, method: methods.ExchangeUnbind) -> Method:
        self._check_not_default(method.source)
        self._check_not_default(method.destination)
        said = routing.routable(method.arguments)
        await self._unbind(lambda: Binding.to_exchange(method.source, method.destination, method.routing_key, said))
        return methods.ExchangeUnbindOk()

    def _exchange(self, name: str) -> ExchangeSettings:
        try:
            return self._broker.exchange_settings(name, namespace=self._vhost)
        except (ExchangeNotFound, NamespaceNotFound):
            raise ChannelClosing(NOT_FOUND, f"no exchange '{name}' in vhost '{self._vhost}'") from None

    def _check_not_default(self, exchange: str) -> None:
        if not exchange:
            raise ChannelClosing(ACCESS_REFUSED, "operation not permitted on the default exchange")

    def _rule(self, source: ExchangeSettings, method: methods.QueueBind | methods.ExchangeBind) -> dict[str, Any]:
        """The arguments of a binding, as they are kept and compared."""
        said = _arguments(method)
        if source.kind is ExchangeKind.HEADERS and "x-match" in said:
            value, type_name = said["x-match"], said.types["x-match"]
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
        return routing.routable(said)

    async def _bind(self, make: Callable[[], Binding]) -> None:
        try:
            await self._broker.bind(make(), namespace=self._vhost)
        except ExchangeNotFound as error:
            raise ChannelClosing(NOT_FOUND, str(error)) from None
        except BindingTargetNotFound as error:
            raise ChannelClosing(NOT_FOUND, str(error)) from None
        except (InvalidBinding, ExchangeCycle) as error:
            raise ChannelClosing(PRECONDITION_FAILED, str(error)) from None

    async def _unbind(self, make: Callable[[], Binding]) -> None:
        try:
            await self._broker.unbind(make(), namespace=self._vhost)
        except (ExchangeNotFound, NamespaceNotFound, BindingTargetNotFound):
            return
        except InvalidBinding as error:
            raise ChannelClosing(PRECONDITION_FAILED, str(error)) from None

    # -- queues -------------------------------------------------------------------------------------------------------

    async def declare_queue(self, method: methods.QueueDeclare) -> Method:
        if self._door.is_reply_queue(method.queue):
            # There is no such queue, but whoever answers may look whether somebody still waits.
            return methods.QueueDeclareOk(method.queue, 0, 1)
        name = method.queue
        if method.passive:
            self.existing(name)
            self._broker.use_queue(name, namespace=self._vhost)
        else:
            if name.startswith(RESERVED):
                raise ChannelClosing(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
            name = name or f"amq.gen-{secrets.token_urlsafe(16)}"
            present = self._declared(name)
            if present is None:
                await self._make_queue(name, method)
            else:
                self._check_same_queue(name, present, method)
                self._broker.use_queue(name, namespace=self._vhost)
        self._channel.last_queue = name
        return methods.QueueDeclareOk(name, *self.counts(name))

    def counts(self, name: str) -> tuple[int, int]:
        """How many messages are ready, and how many consumers there are: none in a queue that has gone meanwhile."""
        try:
            stats = self._broker.stats(name, namespace=self._vhost)
        except QueueNotFound:
            return 0, 0
        return min(stats.ready, 0xFFFFFFFF), stats.consumers

    async def _make_queue(self, name: str, method: methods.QueueDeclare) -> None:
        settings = arguments.read(
            name,
            self._vhost,
            # What goes with its connection has nothing to outlive.
            durable=method.durable and not method.exclusive,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=_arguments(method),
            body_bytes_max=self._door.settings.body_bytes_max,
        )
        try:
            number = self._broker.declare_queue_now(name, settings, namespace=self._vhost)
        except BrokerError as error:
            raise ChannelClosing(PRECONDITION_FAILED, str(error)) from None
        if method.exclusive:
            # Before anybody else has a turn.
            self._connection.own(number)
        await self._broker.durable()

    def _check_same_queue(self, name: str, present: QueueSettings, method: methods.QueueDeclare) -> None:
        self.check_access(name)
        if (self._number(name) in self._door.exclusive) != method.exclusive:
            raise _locked(name, self._vhost)
        arguments.check_equivalent(
            name,
            self._vhost,
            present,
            durable=method.durable and not method.exclusive,
            auto_delete=method.auto_delete,
            arguments=_arguments(method),
        )

    async def bind_queue(self, method: methods.QueueBind) -> Method:
        queue = self._channel.named(method.queue)
        self._check_not_default(method.exchange)
        source = self._exchange(method.exchange)
        self.existing(queue)
        key = method.routing_key
        if not method.queue and not key:
            key = queue
        said = self._rule(source, method)
        await self._bind(lambda: Binding.to_queue(method.exchange, queue, key, said))
        return methods.QueueBindOk()

    async def unbind_queue(self, method: methods.QueueUnbind) -> Method:
        queue = self._channel.named(method.queue)
        self._check_not_default(method.exchange)
        said = routing.routable(method.arguments)
        if self._settings(queue) is not None:
            self.check_access(queue)
        await self._unbind(lambda: Binding.to_queue(method.exchange, queue, method.routing_key, said))
        return methods.QueueUnbindOk()

    async def purge_queue(self, method: methods.QueuePurge) -> Method:
        queue = self._channel.named(method.queue)
        self.existing(queue)
        return methods.QueuePurgeOk(await self._broker.purge(queue, ready_only=True, namespace=self._vhost))

    async def delete_queue(self, method: methods.QueueDelete) -> Method:
        queue = self._channel.named(method.queue)
        settings = self._settings(queue)
        if settings is None:
            return methods.QueueDeleteOk(0)
        self.check_access(queue)
        where = f"queue '{queue}' in vhost '{self._vhost}'"
        if arguments.is_quorum(settings):
            _check_unconditional(where, method)
        stats = self._broker.stats(queue, namespace=self._vhost)
        if method.if_empty and stats.ready + stats.scheduled:
            raise ChannelClosing(PRECONDITION_FAILED, f"{where} not empty")
        if method.if_unused and stats.consumers:
            raise ChannelClosing(PRECONDITION_FAILED, f"{where} in use")
        number = self._number(queue)
        self._connection.disown(number)
        self._broker.delete_queue_now(number)
        await self._broker.durable()
        return methods.QueueDeleteOk(stats.ready)

    def existing(self, queue: str) -> QueueSettings:
        """The settings of a queue that is there and may be used by this connection."""
        settings = self._settings(queue)
        if settings is None:
            raise self._not_found(queue)
        self.check_access(queue)
        return settings

    def check_access(self, queue: str) -> None:
        if self._door.exclusive.get(self._number(queue), self._connection) is not self._connection:
            raise _locked(queue, self._vhost)

    def _number(self, queue: str) -> int:
        return self._broker.queue_number(queue, namespace=self._vhost)

    def _settings(self, queue: str) -> QueueSettings | None:
        try:
            return self._broker.queue_settings(queue, namespace=self._vhost)
        except (QueueNotFound, NamespaceNotFound):
            return None

    def _declared(self, queue: str) -> QueueSettings | None:
        """What is compared with a declare: not what a policy has made of it."""
        if self._settings(queue) is None:
            return None
        return self._broker.declared_settings(queue, namespace=self._vhost)

    def _not_found(self, queue: str) -> ChannelClosing:
        return ChannelClosing(NOT_FOUND, f"no queue '{queue}' in vhost '{self._vhost}'")


def _locked(queue: str, vhost: str) -> ChannelClosing:
    return ChannelClosing(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration.",
    )


def _check_unconditional(where: str, method: methods.QueueDelete) -> None:
    for is_set, flag in ((method.if_unused, "if-unused"), (method.if_empty, "if-empty")):
        if is_set:
            raise ConnectionClosing(
                NOT_IMPLEMENTED,
                f"cannot delete {where}. queue.delete operations with {flag} flag set are not supported by quorum "
                "queues",
            )


def _arguments(method: Any) -> Arguments:
    said = method.arguments
    assert isinstance(said, Arguments)
    return said


def _exchange_kind(method: methods.ExchangeDeclare) -> ExchangeKind:
    kind = method.kind
    if kind == DELAYED:
        # Any message may be delayed here by its x-delay, so such an exchange is simply of the type it names.
        kind = str(method.arguments.get("x-delayed-type", "direct"))
    try:
        return ExchangeKind(kind)
    except ValueError:
        raise ChannelClosing(PRECONDITION_FAILED, f"unknown exchange type '{kind}'") from None
