"""The methods of the class queue. Each returns its reply, which is left out under no-wait.

An exclusive queue is its connection's alone: for all others it is locked, and it goes with it (see `leaving_queues`).
"""

from __future__ import annotations

import secrets

from smista.errors import NamespaceNotFound, QueueInUse, QueueNotEmpty, QueueNotFound
from smista.protocols.amqp import arguments, routing
from smista.protocols.amqp.channel import bindings
from smista.protocols.amqp.channel.bindings import check_not_default
from smista.protocols.amqp.channel.exchanges import RESERVED
from smista.protocols.amqp.client import Client
from smista.protocols.amqp.errors import closing
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.methods import Method
from smista.protocols.amqp.wire.replies import (
    ACCESS_REFUSED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    RESOURCE_LOCKED,
    ChannelClosing,
    ConnectionClosing,
)
from smista.protocols.amqp.wire.values import Arguments
from smista.service.commands.exchanges import Bind, Unbind
from smista.service.commands.queues import DeleteQueue, PurgeQueue
from smista.service.permission import Permission
from smista.service.session import Session
from smista.service.values import QueueSettings


class Queues:
    __slots__ = ("_client", "_last_name")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._last_name = ""

    @property
    def _session(self) -> Session:
        return self._client.session

    # -- declare ------------------------------------------------------------------------------------------------------

    async def declare(self, method: methods.QueueDeclare) -> Method:
        if self._client.shared.reply_to.is_reply_queue(method.queue):
            # There is no such queue, but whoever answers may look whether somebody still waits.
            return methods.QueueDeclareOk(method.queue, 0, 1)
        name = method.queue
        if method.passive:
            # That anybody may ask, as in RabbitMQ.
            self._check_there(name)
            self._session.use_queue(name)
        else:
            if name.startswith(RESERVED):
                raise ChannelClosing(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'")
            name = name or f"amq.gen-{secrets.token_urlsafe(16)}"
            self._session.check(Permission.CONFIGURE, name)
            present = self._declared(name)
            if present is None:
                await self._make(name, method)
            else:
                self._check_same(name, present, method)
                self._session.use_queue(name)
        self._last_name = name
        return methods.QueueDeclareOk(name, *await self.counts(name))

    async def _make(self, name: str, method: methods.QueueDeclare) -> None:
        asked = method.arguments
        assert isinstance(asked, Arguments)
        settings = arguments.read(
            name,
            self._session.namespace,
            # What goes with its connection has nothing to outlive.
            durable=method.durable and not method.exclusive,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=asked,
            body_bytes_max=self._client.shared.settings.body_bytes_max,
        )
        declared = self._session.declare_queue(name, settings)
        number = declared.result() if declared.is_known else await declared
        if method.exclusive:
            # Before anybody else has a turn, where the queue is in this process.
            self._client.own(number)
        await declared

    def _check_same(self, name: str, present: QueueSettings, method: methods.QueueDeclare) -> None:
        asked = method.arguments
        assert isinstance(asked, Arguments)
        self._check_access(name)
        if self._client.is_exclusive(self._session.queue_number(name)) != method.exclusive:
            raise self._locked(name)
        arguments.check_equivalent(
            name,
            self._session.namespace,
            present,
            durable=method.durable and not method.exclusive,
            auto_delete=method.auto_delete,
            arguments=asked,
        )

    # -- bind ---------------------------------------------------------------------------------------------------------

    async def bind(self, method: methods.QueueBind) -> Method:
        queue = self.named(method.queue)
        check_not_default(method.exchange)
        bindings.check_allowed(self._session, method.exchange, queue)
        source = bindings.existing(self._session, method.exchange)
        self.existing(queue)
        key = method.routing_key
        if not method.queue and not key:
            key = queue
        rule = bindings.rule(source, method.arguments)
        await self._session.run(Bind(method.exchange, queue, key=key, arguments=rule))
        return methods.QueueBindOk()

    async def unbind(self, method: methods.QueueUnbind) -> Method:
        queue = self.named(method.queue)
        check_not_default(method.exchange)
        bindings.check_allowed(self._session, method.exchange, queue)
        rule = routing.routable(method.arguments)
        if self._settings(queue) is not None:
            self._check_access(queue)
        await bindings.unbind(self._session, Unbind(method.exchange, queue, key=method.routing_key, arguments=rule))
        return methods.QueueUnbindOk()

    # -- purge and delete ---------------------------------------------------------------------------------------------

    async def purge(self, method: methods.QueuePurge) -> Method:
        queue = self.named(method.queue)
        self._session.check(Permission.CONFIGURE, queue)
        self.existing(queue)
        return methods.QueuePurgeOk((await self._session.run(PurgeQueue(queue, ready_only=True))).purged)

    async def delete(self, method: methods.QueueDelete) -> Method:
        queue = self.named(method.queue)
        self._session.check(Permission.CONFIGURE, queue)
        settings = self._settings(queue)
        if settings is None:
            return methods.QueueDeleteOk(0)
        self._check_access(queue)
        where = f"queue '{queue}' in vhost '{self._session.namespace}'"
        if arguments.is_quorum(settings):
            _check_unconditional(where, method)
        number, (ready, _) = self._session.queue_number(queue), await self.counts(queue)
        try:
            await self._session.run(DeleteQueue(queue, method.if_empty, method.if_unused, waiting_only=True))
        except QueueNotEmpty as error:
            raise closing(error, f"{where} not empty") from None
        except QueueInUse as error:
            raise closing(error, f"{where} in use") from None
        self._client.disown(number)
        return methods.QueueDeleteOk(ready)

    # -- what is there ------------------------------------------------------------------------------------------------

    def named(self, queue: str) -> str:
        """The queue a method names; none at all means the last one declared here."""
        name = queue or self._last_name
        if not name:
            raise ChannelClosing(NOT_FOUND, "no previously declared queue")
        return name

    def existing(self, queue: str) -> QueueSettings:
        """The settings of a queue that is there and may be used by this connection."""
        self._check_there(queue)
        return self._session.queue_settings(queue)

    def _check_there(self, queue: str) -> None:
        try:
            self._check_access(queue)
        except (QueueNotFound, NamespaceNotFound) as error:
            raise closing(error, f"no queue '{queue}' in vhost '{self._session.namespace}'") from None

    async def counts(self, queue: str) -> tuple[int, int]:
        """How many messages are ready, and how many consumers there are: none in a queue that has gone meanwhile."""
        try:
            ready, consumers = await self._session.counts(queue)
        except QueueNotFound:
            return 0, 0
        return min(ready, 0xFFFFFFFF), consumers

    def _check_access(self, queue: str) -> None:
        if not self._client.may_use(self._session.queue_number(queue)):
            raise self._locked(queue)

    def _settings(self, queue: str) -> QueueSettings | None:
        try:
            return self._session.queue_settings(queue)
        except (QueueNotFound, NamespaceNotFound):
            return None

    def _declared(self, queue: str) -> QueueSettings | None:
        """What is compared with a declare: not what a policy has made of it."""
        return None if self._settings(queue) is None else self._session.declared_settings(queue)

    def _locked(self, queue: str) -> ChannelClosing:
        return ChannelClosing(
            RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{self._session.namespace}'. It could "
            "be originally declared on another connection or the exclusive property value does not match that of the "
            "original declaration.",
        )


def _check_unconditional(where: str, method: methods.QueueDelete) -> None:
    for is_set, flag in ((method.if_unused, "if-unused"), (method.if_empty, "if-empty")):
        if is_set:
            raise ConnectionClosing(
                NOT_IMPLEMENTED,
                f"cannot delete {where}. queue.delete operations with {flag} flag set are not supported by quorum "
                "queues",
            )
