"""A connection on a socket: what the event loop calls, and what is called again later.

It gives a `Connection` what came and writes what it has to say, and keeps what that must not know:

- turns: what came in one read is worked off in one go, unless it takes too long for everybody else (see `turns`), and
  all there is to say then goes out in one write;
- waiting: a method that has to wait for the disk stops the reading of this connection until it is done, so that order
  holds; what arrives meanwhile stays in the socket. The same holds for a publisher while the broker takes no publishes,
  and for a client that asks on and on but does not read the answers;
- times: of the handshake, of heartbeats, and how long the other side has to agree to the end.

The end: when all is sent we close our half of the socket and drop what still comes, until the other side closes its
own, or 5 s. To close a socket that holds unread bytes is to reset it, and a client with publishes on the way would get
a broken pipe instead of our last word.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import cast

from smista.errors import BrokerError, reason
from smista.protocols.amqp.client import Client, Later
from smista.protocols.amqp.errors import closing
from smista.protocols.amqp.handler import Handler
from smista.protocols.amqp.output import Output
from smista.protocols.amqp.progress import Progress
from smista.protocols.amqp.shared import Shared
from smista.protocols.amqp.times import Times
from smista.protocols.amqp.waiting import Waiting
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.connection import Connection
from smista.protocols.amqp.wire.replies import (
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    AmqpError,
    ConnectionClosing,
    LoginRefused,
)
from smista.protocols.faults import Faults
from smista.protocols.stalled import Peer
from smista.protocols.turns import Share

logger = logging.getLogger("smista.amqp")
_faults = Faults(logger)


class AmqpAdapter(asyncio.Protocol):
    __slots__ = (
        "_handler",
        "_is_ending",
        "_is_opened",
        "_loop",
        "_share",
        "_shared",
        "_transport",
        "_waiting",
        "client",
        "connection",
        "delivered",
        "flush",
        "flush_soon",
        "output",
        "progress",
        "times",
    )

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self.client = Client(shared, self)
        self._handler = Handler(self.client)
        self.connection = self.client.connection = Connection(shared.settings, self._handler)
        self.output = Output(self.client, self._handler, self._go_on)
        self.progress = Progress(self.client, self.output)
        self.times = Times(self.client, self._is_read)
        # Hot: called for each read.
        self.flush = self.output.flush
        self.flush_soon = self.output.flush_soon
        self.delivered = self.output.delivered
        self._waiting = Waiting(self.client, self._waited)
        """What has to be done before the next frame is looked at."""
        self._share = Share(shared.turns, self._go_on)
        self._transport: asyncio.Transport
        self._is_opened = False
        self._is_ending = False

    # -- the socket ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's by inheritance.
        self._transport = transport = cast(asyncio.Transport, transport)
        client, shared = self.client, self._shared
        client.address, client.peer = "127.0.0.1", "local"
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            client.address, client.peer = address[0], f"{address[0]}:{address[1]}"
        self.output.begin(transport)
        why_full = shared.why_full()
        if why_full is not None and not shared.is_draining:
            shared.refusing.note(why_full, client.address)
        if shared.is_draining or why_full is not None:
            transport.abort()
            return
        shared.connections.add(self)
        self.times.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()
        self._shared.left(self)
        self.times.stop()
        self._waiting.stop()
        self._handler.end()

    def data_received(self, data: bytes) -> None:
        self.times.has_come = self.progress.has_come = True
        self.progress.come_bytes += len(data)
        self.connection.receive(data)
        if not self.connection.is_paused:
            self._work()

    def pause_writing(self) -> None:
        self.output.pause()
        self.progress.watch()

    def resume_writing(self) -> None:
        self.progress.stop()
        self.output.resume()

    def abort(self) -> None:
        self._lose()
        self._transport.abort()

    def _lose(self) -> None:
        self.connection.lose()
        self.progress.stop()
        self.output.end()

    # -- in -----------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        connection = self.connection
        if self.client.has_published and not connection.is_closing and self.client.service.refusal is not None:
            # Nothing of a message is taken that would be refused when it is whole.
            self.block()
            return
        if not self._share.begin():
            self._hold_back()
            return
        try:
            connection.process()
            self._handler.flush_publishes()
        except AmqpError as error:
            self._close(error)
        except BrokerError as error:
            self._close(closing(error))
        except Exception as error:
            _faults.note(error, "a frame failed", peer=self.client.peer)
            self._close(_internal())
        self.flush()
        if not self._is_opened and connection.is_running and connection.is_open:
            self._is_opened = True
            self.times.opened()
        if connection.is_over and not self._is_ending:
            self._end()
        if self._share.end() and not connection.is_over:
            self._hold_back()

    def is_turn_over(self) -> bool:
        return self._share.is_over()

    def _is_read(self) -> bool:
        return not self._waiting.is_busy and not self.is_flooded

    def _hold_back(self) -> None:
        """Nothing more until its turn comes."""
        self.connection.is_paused = True
        self._transport.pause_reading()

    def _go_on(self) -> None:
        """Take up the frames again, unless there is still something to wait for."""
        self.flush()
        connection = self.connection
        is_stopping = self._shared.is_draining and not connection.is_closing
        if self._waiting.is_busy or self.is_flooded or connection.is_over or is_stopping or self._share.is_waiting:
            return
        connection.is_paused = False
        if connection.has_received:
            self._work()
        if not connection.is_paused and not connection.is_over:
            self._transport.resume_reading()

    @property
    def peer(self) -> Peer:
        return self.progress

    @property
    def kept_bytes(self) -> int:
        return self.client.kept_bytes

    @property
    def is_full(self) -> bool:
        return self.output.is_full

    @property
    def is_flooded(self) -> bool:
        return self.output.is_flooded

    # -- waiting ------------------------------------------------------------------------------------------------------

    def hold(self, work: Later, *, is_only_waiting: bool = False) -> None:
        self._hold_back()
        self._waiting.begin(work, is_only_waiting=is_only_waiting)

    def hold_until_done(self) -> None:
        if self.client.has_under_way and self._waiting.may_begin and not self.connection.is_over:
            self.hold(self.client.until_done(), is_only_waiting=True)

    def hold_until_room(self) -> None:
        if not self._waiting.is_busy and self.connection.is_open:
            self.hold(self.client.service.room(), is_only_waiting=True)

    def block(self) -> None:
        self.hold(self._until_unblocked(), is_only_waiting=True)

    async def _until_unblocked(self) -> None:
        connection = self.connection
        has_to_know = connection.handshake.has_capability("connection.blocked")
        if has_to_know:
            connection.send(methods.ConnectionBlocked(self._shared.refusal_text()))
            self.flush_soon()
        await self._shared.until_publishes_are_taken()
        if has_to_know:
            connection.send(methods.ConnectionUnblocked())

    def _waited(self, error: BaseException | None) -> None:
        """What was waited for is done, or has failed."""
        if isinstance(error, ConnectionClosing):
            self._close(error)
        elif isinstance(error, BrokerError):
            self._close(closing(error))
        elif error is not None:
            _faults.note(error, "a method failed", peer=self.client.peer)
            self._close(_internal())
        if not self.connection.is_open:
            # A queue that was declared meanwhile has to go too.
            self._handler.end()
        if not self.connection.is_over:
            self._go_on()

    # -- the end ------------------------------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        self.connection.is_paused = True
        if not self.connection.is_over:
            self._transport.pause_reading()

    async def until_answered(self) -> None:
        await self.client.until_done()
        # Whoever waited for it before has heard of an error.
        with contextlib.suppress(BrokerError):
            await self.client.unanswered.together()

    def force_close(self) -> None:
        self._close(ConnectionClosing(CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'"))
        self._go_on()

    def fail_soon(self) -> None:
        self._loop.call_soon(self._fail)

    def _fail(self) -> None:
        self._close(_internal())
        self._go_on()

    def broker_failed(self, error: BaseException) -> None:
        if self.connection.is_open:
            logger.error("closing %s: %s", self.client.peer, reason(error))
            self._close(ConnectionClosing(INTERNAL_ERROR, "the broker cannot confirm anything any more"))
            self._go_on()

    def _close(self, error: AmqpError) -> None:
        """Say why, and wait a while for the other side to agree."""
        connection = self.connection
        if not connection.is_open:
            return
        self._note(error)
        if not self.client.service.is_over:
            self._handler.flush_publishes()
        self.flush()
        self._handler.end()
        connection.close(error)
        self.output.is_flooded = False
        self.flush()
        self._waiting.stop()
        if connection.is_over:
            self._end()
        else:
            self.times.end()

    def _note(self, error: AmqpError) -> None:
        shared, client = self._shared, self.client
        if self.connection.is_running or shared.is_draining:
            shared.closing.note(error.log_text, client.address)
        elif isinstance(error, LoginRefused):
            shared.refusing_logins.note(error.why, client.address)
        else:
            shared.refusing.note(error.log_text, client.address)

    def _end(self) -> None:
        """Nothing more goes in or out, but for what is on its way."""
        self._is_ending = True
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()
        self.times.end()


def _internal() -> ConnectionClosing:
    return ConnectionClosing(INTERNAL_ERROR, "an internal error; the broker's log says more")
