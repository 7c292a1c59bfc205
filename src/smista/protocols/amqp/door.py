"""What all AMQP connections share: the broker, and what is known of queues and consumers only here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from smista.engine import Broker, in_slices
from smista.errors import BrokerClosed, BrokerError, BrokerStopped, LowMemory
from smista.protocols.amqp import arguments, frames, routing
from smista.protocols.amqp.non_readers import NonReaders
from smista.protocols.places import Places
from smista.protocols.refusing import Refusing
from smista.protocols.turns import Turns

if TYPE_CHECKING:
    from smista.protocols.amqp.channel import Channel
    from smista.protocols.amqp.connection import AmqpConnection
    from smista.protocols.amqp.consuming import Consumer

logger = logging.getLogger("smista.amqp")

WATCH_S = 0.1
DRAIN_S = 2.0
REPLY_TO = "amq.rabbitmq.reply-to"
REPLY_PREFIX = REPLY_TO + "."
DELETED_AT_ONCE = 200
"""So many queues go in one turn of the loop, of all connections together: some 4 ms."""

Leaving = tuple[int, bool]
"""The number of a queue, and whether it goes only where nobody else subscribes to it."""


class AmqpSettings(msgspec.Struct, frozen=True, kw_only=True):
    body_bytes_max: int = 128 << 20
    frame_max: int = frames.FRAME_MAX
    channel_max: int = 2047
    heartbeat_s: int = 60
    handshake_timeout_s: float = 10.0
    connections_max: int = 10_000
    output_bytes_max: int = 16 << 20
    output_timeout_s: float = 30.0


class AmqpDoor:
    """Makes a protocol per connection; see `make_protocol`."""

    def __init__(
        self,
        broker: Broker,
        settings: AmqpSettings | None = None,
        turns: Turns | None = None,
        places: Places | None = None,
    ) -> None:
        self.broker = broker
        self.turns = turns or Turns()
        broker.read_routing_with(routing.read_routing)
        broker.count_in_memory(self.kept_bytes)
        broker.count_in_memory(self.output_bytes, is_going_out=True)
        self.non_readers = NonReaders(self)
        self._loop = asyncio.get_running_loop()
        self.settings = settings or AmqpSettings()
        self.connections: set[AmqpConnection] = set()
        self.places = places or Places()
        self.places.count(lambda: len(self.connections))
        self.exclusive: dict[int, AmqpConnection] = {}
        """By number, queues that go with their connection, and which that is. Not by name: another door may have
        deleted such a queue, and its name is another's by now."""
        self.exclusive_consumers: dict[int, Consumer] = {}
        """By queue, the consumer that wants it for itself."""
        self.reply_channels: dict[str, Channel] = {}
        """By token, who waits for direct replies."""
        self._deleted_count = 0
        """Of queues that went in this turn of the loop."""
        self._to_delete: list[Leaving] = []
        self._deleting: asyncio.Task[None] | None = None
        """Deletes those, in slices."""
        self.is_draining = False
        self.refusing = Refusing(logger, protocol="amqp")
        """Connections that are not let in ..."""
        self.refusing_logins = Refusing(logger, "logins", protocol="amqp")
        """... and logins, apart from them: clients choose the names in those lines."""
        self._all_left = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        """While publishes are refused and somebody waits for the end of that."""

    def make_protocol(self) -> AmqpConnection:
        from smista.protocols.amqp.connection import AmqpConnection

        return AmqpConnection(self)

    def kept_bytes(self) -> int:
        """What has come in and is not the broker's yet."""
        return sum(connection.transacted_bytes + connection.parts_bytes for connection in self.connections)

    def output_bytes(self) -> int:
        """What has left the broker and is not taken."""
        return sum(connection.output_bytes for connection in self.connections)

    def left(self, connection: AmqpConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._all_left.set()

    async def drain(self) -> None:
        """Tell every client that the broker is stopping, and wait until they are gone or had their time.

        Nothing more is taken, and what was taken is on disk and confirmed before: a client has to publish again only
        what it knows nothing of.
        """
        self.is_draining = True
        self._all_left.clear()
        for connection in self.connections:
            connection.stop_reading()
        with contextlib.suppress(BrokerError, TimeoutError):
            await asyncio.wait_for(self.broker.durable(), DRAIN_S)
        for connection in list(self.connections):
            connection.force_close()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_left.wait(), DRAIN_S)
        for connection in list(self.connections):
            connection.abort()
        if self._watching is not None:
            self._watching.cancel()
        self.non_readers.close()
        self.refusing.close()
        self.refusing_logins.close()

    # -- queues that go by themselves ---------------------------------------------------------------------------------

    def delete_all(self, leaving: Sequence[Leaving]) -> None:
        """Delete the queues of connections and consumers that are gone, those that are still there: at once, or, where
        they are very many in one turn of the loop, in slices. Those that come later wait behind them."""
        if self._deleting is None and self._deleted_count + len(leaving) <= DELETED_AT_ONCE:
            if leaving and not self._deleted_count:
                self._loop.call_soon(self._next_turn)
            self._deleted_count += len(leaving)
            self._delete(leaving)
            return
        self._to_delete += leaving
        if self._deleting is None:
            self._deleting = self.broker.run_errand(self._delete_in_slices())

    def _delete(self, leaving: Sequence[Leaving]) -> int:
        for number, if_no_subscriptions in leaving:
            if not if_no_subscriptions:
                self.exclusive.pop(number, None)
            self.broker.delete_queue_now(number, if_no_subscriptions=if_no_subscriptions)
        return len(leaving)

    async def _delete_in_slices(self) -> None:
        # Exclusive queues do not outlive a broker that closes or stops meanwhile.
        with contextlib.suppress(BrokerClosed, BrokerStopped):
            while self._to_delete:
                leaving, self._to_delete = self._to_delete, []
                await in_slices(leaving, self._delete)
        self._deleting = None

    def _next_turn(self) -> None:
        self._deleted_count = 0

    def consumer_left(self, consumer: Consumer) -> None:
        """An auto-delete queue goes with its last consumer: at once, before anybody else can subscribe to it."""
        self.forget_exclusive(consumer)
        queue = consumer.subscription.queue
        if arguments.is_auto_delete(queue.settings):
            self._delete([(queue.number, True)])

    def consumers_left(self, consumers: Iterable[Consumer]) -> None:
        """Those of a connection or channel that is gone: where they are very many, their queues go in slices."""
        leaving: dict[int, bool] = {}
        for consumer in consumers:
            self.forget_exclusive(consumer)
            queue = consumer.subscription.queue
            if arguments.is_auto_delete(queue.settings):
                leaving[queue.number] = True
        self.delete_all(list(leaving.items()))

    def forget_exclusive(self, consumer: Consumer) -> None:
        number = consumer.subscription.queue.number
        if self.exclusive_consumers.get(number) is consumer:
            del self.exclusive_consumers[number]

    # -- direct reply-to ----------------------------------------------------------------------------------------------

    def is_reply_queue(self, name: str) -> bool:
        """Whether this is what direct replies go to: by its common name, or that of somebody who waits."""
        return name == REPLY_TO or (
            name.startswith(REPLY_PREFIX) and name.removeprefix(REPLY_PREFIX) in self.reply_channels
        )

    def await_replies(self, channel: Channel) -> str:
        token = secrets.token_urlsafe(18)
        self.reply_channels[token] = channel
        return token

    # -- holding publishers back --------------------------------------------------------------------------------------

    def refusal_text(self) -> str:
        """Why publishers are held back, in RabbitMQ's words."""
        return "low on memory" if isinstance(self.broker.refusal, LowMemory) else "low on disk"

    async def until_publishes_are_taken(self) -> None:
        """Return at once, or when the broker does no longer refuse publishes."""
        while self.broker.refusal is not None:
            if self._watching is None:
                self._watching = self._loop.create_task(self._watch())
            await asyncio.shield(self._watching)

    async def _watch(self) -> None:
        try:
            while self.broker.refusal is not None:  # noqa: ASYNC110 (one for all that wait, and rare)
                await asyncio.sleep(WATCH_S)
        finally:
            self._watching = None
