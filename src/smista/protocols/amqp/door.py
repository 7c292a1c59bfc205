"""What all AMQP connections share: the broker, and what is known of queues and consumers only here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING

import msgspec

from smista.engine import Broker
from smista.errors import BrokerError, LowMemory
from smista.protocols.amqp import arguments, frames, routing

if TYPE_CHECKING:
    from smista.protocols.amqp.channel import Channel
    from smista.protocols.amqp.connection import AmqpConnection

logger = logging.getLogger("smista.amqp")

WATCH_S = 0.1
DRAIN_S = 2.0
REPLY_TO = "amq.rabbitmq.reply-to"
REPLY_PREFIX = REPLY_TO + "."
QueueKey = tuple[str, str]
"""Virtual host and name."""


class AmqpSettings(msgspec.Struct, frozen=True, kw_only=True):
    body_bytes_max: int = 128 << 20
    frame_max: int = frames.FRAME_MAX
    channel_max: int = 2047
    heartbeat_s: int = 60
    handshake_timeout_s: float = 10.0
    connections_max: int = 10_000
    output_bytes_max: int = 16 << 20


class AmqpDoor:
    """Makes a protocol per connection; see `make_protocol`."""

    def __init__(self, broker: Broker, settings: AmqpSettings | None = None) -> None:
        self.broker = broker
        broker.read_routing_with(routing.read_routing)
        self._loop = asyncio.get_running_loop()
        self.settings = settings or AmqpSettings()
        self.connections: set[AmqpConnection] = set()
        self.exclusive: dict[QueueKey, AmqpConnection] = {}
        """Queues that go with their connection, and which that is."""
        self.exclusive_consumers: dict[QueueKey, object] = {}
        """By queue, the consumer that wants it for itself."""
        self.reply_channels: dict[str, Channel] = {}
        """By token, who waits for direct replies."""
        self.is_draining = False
        self._all_left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        """While publishes are refused and somebody waits for the end of that."""

    def make_protocol(self) -> AmqpConnection:
        from smista.protocols.amqp.connection import AmqpConnection

        return AmqpConnection(self)

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
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- queues that go by themselves ---------------------------------------------------------------------------------

    def delete_soon(self, vhost: str, queue: str) -> None:
        """Delete a queue that nobody needs any more."""
        self.exclusive.pop((vhost, queue), None)
        task = self._loop.create_task(self._delete(vhost, queue))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete(self, vhost: str, queue: str) -> None:
        try:
            await self.broker.delete_queue(queue, namespace=vhost)
        except BrokerError as error:
            logger.debug("queue %r was not deleted: %s", queue, error)

    def consumer_left(self, vhost: str, queue: str) -> None:
        """An auto-delete queue goes with its last consumer."""
        try:
            settings = self.broker.queue_settings(queue, namespace=vhost)
            if arguments.annotation(settings, arguments.AUTO_DELETE) is None:
                return
            if not self.broker.stats(queue, namespace=vhost).consumers:
                self.delete_soon(vhost, queue)
        except BrokerError:
            return

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
