"""One AMQP connection: frames in, frames out, and the order in which things happen.

    header ─▶ handshake ─▶ channels ─▶ close ─▶ close-ok

What came in one read is worked off in one go, unless it takes too long for everybody else (see `turns`), and
everything there is to say then goes out in one write. A method that has to wait for the disk stops the reading of this
connection until it is done, so that order holds; what arrives meanwhile stays in the socket. The same holds for a
publisher while the broker takes no publishes, and for a client that asks on and on but does not read the answers.

What a client does wrong closes its channel, or its connection, with the code and text RabbitMQ would give; nobody else
notices. After that, frames of the closed are dropped until the other side has agreed.

    open ── error, or the broker stops: connection.close sent ──▶ closing ── close-ok, or 5 s ──▶ over
    open ── connection.close came: close-ok sent ───────────────────────────────────────────────▶ over
    any  ── the socket is gone ─────────────────────────────────────────────────────────────────▶ over

Over, we have closed our half of the socket and drop what still comes, until the other side closes its own, or 5 s: to
close a socket that holds unread bytes is to reset it, and a client with publishes on the way would get a broken pipe
instead of our last word.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from smista.errors import BrokerError, reason
from smista.protocols.amqp import frames, methods, non_readers
from smista.protocols.amqp.channel import Channel
from smista.protocols.amqp.content import PUBLISH
from smista.protocols.amqp.frames import HEAD, HEAD_BYTES, METHOD, OVERHEAD
from smista.protocols.amqp.handshake import START, Handshake
from smista.protocols.amqp.methods import Method
from smista.protocols.amqp.reading import Reading, ids_of
from smista.protocols.amqp.replies import (
    CHANNEL_ERROR,
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    AmqpError,
    ChannelClosing,
    ConnectionClosing,
    Ids,
    LoginRefused,
    frame_error,
    unexpected_frame,
)
from smista.protocols.faults import Faults

if TYPE_CHECKING:
    from smista.protocols.amqp.door import AmqpDoor

logger = logging.getLogger("smista.amqp")
_faults = Faults(logger)

CLOSE_TIMEOUT_S = 5.0
_PUBLISH = b"\x00\x3c\x00\x28"
_ACK = b"\x00\x3c\x00\x50"
_CLOSE_OK = frames.method_frame(0, methods.ConnectionCloseOk())


class AmqpConnection(Reading, asyncio.Protocol):
    def __init__(self, door: AmqpDoor) -> None:
        super().__init__(door)
        self.vhost = ""
        self.user = ""
        self.peer = ""
        self._host = ""
        self.transacted_bytes = 0
        """What its channels keep for the commits of their transactions ..."""
        self.parts_bytes = 0
        """... and of messages that are not whole yet."""
        self._handshake: Handshake
        self._buffer = b""
        self._has_header = False
        self._has_published = False
        self._heard = True
        self._missed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Task[None] | None = None
        """What has to be done before the next frame is looked at."""
        self._is_only_waiting = False
        """Nothing is lost if `_waiting` is cancelled."""

    def has_capability(self, name: str) -> bool:
        return self._handshake.has_capability(name)

    # -- the socket ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's by inheritance.
        self._transport = transport = cast(asyncio.Transport, transport)
        settings = self.door.settings
        self.limit_output()
        address = transport.get_extra_info("peername")
        self._host, self.peer = "127.0.0.1", "local"
        if isinstance(address, tuple):
            self._host, self.peer = address[0], f"{address[0]}:{address[1]}"
        self._handshake = Handshake(self.door, self._host)
        why_full = None
        if len(self.door.connections) >= settings.connections_max:
            why_full = f"{settings.connections_max} connections are open, which is the limit, connections_max"
        elif self.door.places.is_full:
            why_full = self.door.places.why_full
        if why_full is not None and not self.door.is_draining:
            self.door.refusing.note(why_full, self._host)
        if self.door.is_draining or why_full is not None:
            transport.abort()
            return
        self.door.connections.add(self)
        self._timer = self._loop.call_later(settings.handshake_timeout_s, self._handshake_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = self._is_held = True
        self._stop_watching_output()
        self.door.left(self)
        if self._timer is not None:
            self._timer.cancel()
        self._stop_waiting()
        self._end_all()

    def data_received(self, data: bytes) -> None:
        self._heard = self._has_come = True
        if self._is_over:
            return
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        if self._is_held:
            self._buffer = data
        else:
            self._work(data)

    def abort(self) -> None:
        self._is_over = self._is_held = True
        self._stop_watching_output()
        self._transport.abort()

    def cut_off(self, why: str) -> None:
        logger.info(
            "a client that does not read was cut off: %s",
            why,
            extra={"fields": {"peer": self.peer, "user": self.user, "vhost": self.vhost}},
        )
        self.abort()

    @property
    def _patience_s(self) -> float:
        heartbeat_s = self._handshake.heartbeat_s
        return 2 * heartbeat_s if heartbeat_s else non_readers.SILENCE_S_MAX

    def _handshake_timed_out(self) -> None:
        self.door.refusing.note(f"no handshake within {self.door.settings.handshake_timeout_s:g} s", self._host)
        self.abort()

    def _beat(self) -> None:
        """Twice an interval: say that we are here, and see whether the other side is."""
        is_read = self._waiting is None and not self.is_flooded
        self._missed = self._missed + 1 if is_read and not self._heard else 0
        self._heard = False
        heartbeat_s = self._handshake.heartbeat_s
        if self._missed >= 4:
            logger.info("%s missed heartbeats from client, timeout: %ds", self.peer, heartbeat_s)
            self.abort()
            return
        self.out.append(frames.HEARTBEAT_FRAME)
        self.flush()
        self._timer = self._loop.call_later(heartbeat_s / 2, self._beat)

    # -- in -----------------------------------------------------------------------------------------------------------

    def _work(self, data: bytes) -> None:
        """Work off all whole frames; the rest waits for more."""
        if self._has_published and not self._is_closing and self.door.broker.refusal is not None:
            # Nothing of a message is taken that would be refused when it is whole.
            self._buffer = data
            self._block()
            return
        if not self._share.begin():
            self._buffer = data
            self._hold_back()
            return
        position = 0
        try:
            if not self._has_header:
                position = self._protocol_header(data)
            if self._is_closing:
                position = self._drop_frames(data, position)
            elif self._has_header:
                position = self._frames(data, position)
            if position < len(data) and not self._is_over:
                self._buffer = data[position:]
            self.publisher.flush()
        except AmqpError as error:
            self._close(error)
        except BrokerError as error:
            self._close(ConnectionClosing(INTERNAL_ERROR, str(error)))
        except Exception as error:
            _faults.note(error, "a frame failed", peer=self.peer)
            self._close(_internal())
        self.flush()
        if self._share.end() and not self._is_over:
            self._hold_back()

    def _hold_back(self) -> None:
        """Nothing more until its turn comes."""
        self._is_held = True
        self._transport.pause_reading()

    def _protocol_header(self, data: bytes) -> int:
        """Answer the protocol header; returns where what follows it starts."""
        wanted = frames.PROTOCOL_HEADER
        if len(data) < len(wanted) and wanted.startswith(data):
            return 0
        if data[: len(wanted)] != wanted:
            self.door.refusing.note("what came first is not the header of AMQP 0-9-1", self._host)
            self._transport.write(wanted)
            self._end()
            return len(data)
        self._has_header = True
        self._send(START)
        return len(wanted)

    def _drop_frames(self, data: bytes, position: int) -> int:
        """After our connection.close only its -ok counts, and a close of theirs that crossed it."""
        if data.endswith(_CLOSE_OK):
            # Wherever frames begin and end: that may be what was wrong.
            self._end()
            return len(data)
        while len(data) - position >= OVERHEAD and not self._is_held:
            kind, number, length = HEAD.unpack_from(data, position)
            end = position + HEAD_BYTES + length
            if length > self.frame_max:
                return len(data)
            if end >= len(data):
                break
            if kind == METHOD and number == 0:
                index = ids_of(data[position + HEAD_BYTES : end])
                if index == methods.ConnectionCloseOk.INDEX:
                    self._end()
                elif index == methods.ConnectionClose.INDEX:
                    self._transport.write(_CLOSE_OK)
            position = end + 1
        return position

    def _method_frame(self, number: int, payload: bytes) -> None:
        if number and payload[:4] == _PUBLISH:
            channel = self.channels.get(number)
            if channel is not None and not channel.is_closing:
                channel.publish_method(payload)
                if not self._has_published:
                    self._has_published = True
                    if self.door.broker.refusal is not None:
                        self._block()
                return
        elif number and payload[:4] == _ACK and len(payload) == 13:
            channel = self.channels.get(number)
            if channel is not None and not channel.is_closing and not channel.has_content:
                work = channel.acknowledge(int.from_bytes(payload[4:12], "big"), payload[12] & 1 == 1)
                if work is not None:
                    self._hold(work)
                return
        if len(payload) < 4:
            raise frame_error(METHOD, payload, "unknown_frame")
        try:
            method = methods.read(payload)
        except KeyError:
            class_id, method_id = ids_of(payload)
            raise ConnectionClosing(NOT_IMPLEMENTED, f"unknown method {class_id}.{method_id}") from None
        # What was published or acknowledged before this comes before it.
        self.publisher.flush()
        self.flush_acknowledged()
        if number == 0:
            self._connection_method(method)
        elif not self._handshake.is_running:
            raise unexpected_frame(METHOD, payload)
        else:
            self._channel_method(number, method)

    def _connection_method(self, method: Method) -> None:
        if isinstance(method, methods.ConnectionClose):
            self.flush()
            self._end_all()
            self._send(methods.ConnectionCloseOk())
            self.flush()
            self._end()
        elif not self._handshake.is_running:
            answer = self._handshake.take(method)
            if answer is not None:
                self._send(answer)
            if self._handshake.is_running:
                self._opened()
        elif isinstance(method, methods.ConnectionUpdateSecret):
            self._send(methods.ConnectionUpdateSecretOk())
        else:
            raise ConnectionClosing(CHANNEL_ERROR, "unexpected method in connection state running")

    def _opened(self) -> None:
        self.vhost, self.user = self._handshake.vhost, self._handshake.user
        self.frame_max = self._handshake.frame_max
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._handshake.heartbeat_s:
            self._timer = self._loop.call_later(self._handshake.heartbeat_s / 2, self._beat)

    def _channel_method(self, number: int, method: Method) -> None:
        channel = self.channels.get(number)
        if channel is None:
            self._open_channel(number, method)
        elif isinstance(method, methods.ChannelOpen):
            raise ConnectionClosing(CHANNEL_ERROR, "second 'channel.open' seen")
        elif channel.is_closing:
            # Both may close at the same time: each is answered, and the channel is free when ours is.
            if isinstance(method, methods.ChannelClose):
                channel.send(methods.ChannelCloseOk())
            elif isinstance(method, methods.ChannelCloseOk):
                del self.channels[number]
        elif isinstance(method, methods.ChannelClose) and not channel.has_content:
            self.flush()
            self._leave([channel])
            del self.channels[number]
            if self._going_back:
                self._hold(self._closed(channel))
            else:
                channel.send(methods.ChannelCloseOk())
        else:
            work = channel.method(method)
            if work is not None:
                self._hold(self._on_channel(channel, method, work))

    def _open_channel(self, number: int, method: Method) -> None:
        if not isinstance(method, methods.ChannelOpen):
            raise ConnectionClosing(CHANNEL_ERROR, "expected 'channel.open'")
        # How many, not which: as in RabbitMQ any number a frame has room for will do.
        channel_max = self._handshake.channel_max
        if len(self.channels) >= channel_max:
            raise ConnectionClosing(
                NOT_ALLOWED,
                f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max "
                f"({channel_max})",
                ids=(0, 0),
            )
        channel = self.channels[number] = Channel(self, number)
        channel.send(methods.ChannelOpenOk())

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _hold(self, work: Coroutine[Any, Any, None], *, is_only_waiting: bool = False) -> None:
        """Look at no further frame until this is done; it begins when all is back that channels have left."""
        if self._waiting is not None:
            # For room in the log, since what came before this in the same read: it is looked at again afterwards.
            assert self._is_only_waiting
            self._waiting.remove_done_callback(self._waited)
            self._waiting.cancel()
        self._transport.pause_reading()
        self._is_held = True
        self._is_only_waiting = is_only_waiting
        self._waiting = self._loop.create_task(self._once_back(work) if self._going_back else work)
        # Of what was cancelled before it began nothing may be left.
        self._waiting.add_done_callback(lambda _: work.close())
        self._waiting.add_done_callback(self._waited)

    async def _once_back(self, work: Coroutine[Any, Any, None]) -> None:
        await self._until_back()
        await work

    def _stop_waiting(self) -> None:
        # Work goes on to its end: what it took or made would else belong to nobody.
        if self._waiting is not None and self._is_only_waiting:
            self._waiting.cancel()

    def _waited(self, task: asyncio.Task[None]) -> None:
        self._waiting = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ConnectionClosing):
            self._close(error)
        elif isinstance(error, BrokerError):
            self._close(ConnectionClosing(INTERNAL_ERROR, str(error)))
        elif error is not None:
            logger.error("a method failed on %s", self.peer, exc_info=error)
            self._close(_internal())
        if self._is_over or self._is_closing:
            # A queue that was declared meanwhile has to go too.
            self._end_all()
        if not self._is_over:
            self._go_on()

    def _go_on(self) -> None:
        """Take up the frames again, unless there is still something to wait for."""
        self.flush()
        is_stopping = self.door.is_draining and not self._is_closing
        if self._waiting is not None or self.is_flooded or self._is_over or is_stopping or self._share.is_waiting:
            return
        self._is_held = False
        if self._buffer:
            data, self._buffer = self._buffer, b""
            self._work(data)
        if not self._is_held and not self._is_over:
            self._transport.resume_reading()

    async def _on_channel(self, channel: Channel, method: Method, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ChannelClosing as error:
            self.close_channel(channel, error, method.INDEX)
        except ConnectionClosing as error:
            error.ids = error.ids or method.INDEX
            raise
        finally:
            if channel.is_closing or self.channels.get(channel.number) is not channel:
                # Gone meanwhile: what it got all the same goes back.
                self._leave([channel])
                self.flush()
                await self._until_back()

    async def _closed(self, channel: Channel) -> None:
        channel.send(methods.ChannelCloseOk())

    def hold(self, work: Coroutine[Any, Any, None]) -> None:
        """Look at no further frame until this is done, which comes to its end whatever becomes of the connection."""
        self._hold(work)

    def hold_until_room(self) -> None:
        """The log is behind: take nothing more until it has caught up."""
        if self._waiting is None and not self._is_over and not self._is_closing:
            self._hold(self.door.broker.room(), is_only_waiting=True)

    def _block(self) -> None:
        """The broker takes no publishes: tell the publisher, and read nothing more from it until it does again."""
        self._hold(self._until_unblocked(), is_only_waiting=True)

    async def _until_unblocked(self) -> None:
        can_be_told = self.has_capability("connection.blocked")
        if can_be_told:
            self._send(methods.ConnectionBlocked(self.door.refusal_text()))
            self.flush_soon()
        await self.door.until_publishes_are_taken()
        if can_be_told:
            self._send(methods.ConnectionUnblocked())

    # -- closing ------------------------------------------------------------------------------------------------------

    def close_channel(self, channel: Channel, error: ChannelClosing, ids: Ids = PUBLISH) -> None:
        """Say why; until the other side agrees, its frames are dropped. What it held is back before the next method."""
        if channel.is_closing or self.channels.get(channel.number) is not channel:
            return
        logger.info("channel %d of %s closed: %s", channel.number, self.peer, error.log_text)
        self.flush()
        channel.is_closing = True
        self._leave([channel])
        channel.send(methods.ChannelClose(error.code, error.reply_text, *(error.ids or ids)))
        if self._going_back and (self._waiting is None or self._is_only_waiting):
            self._hold(self._until_back(), is_only_waiting=True)

    def stop_reading(self) -> None:
        """The broker is stopping: nothing more is taken, what was taken is still answered."""
        self._is_held = True
        if not self._is_over:
            self._transport.pause_reading()

    def force_close(self) -> None:
        """The broker is stopping."""
        self._close(ConnectionClosing(CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'"))
        self._go_on()

    def _fail(self) -> None:
        self._close(_internal())
        self._go_on()

    def broker_failed(self, error: BaseException) -> None:
        if not self._is_over:
            logger.error("closing %s: %s", self.peer, reason(error))
            self._close(ConnectionClosing(INTERNAL_ERROR, "the broker cannot confirm anything any more"))
            self._go_on()

    def _close(self, error: AmqpError) -> None:
        """Say why, and wait a while for the other side to agree."""
        if self._is_closing or self._is_over:
            return
        if self._handshake.is_running or self.door.is_draining:
            logger.info("connection %s closed: %s", self.peer, error.log_text)
        elif isinstance(error, LoginRefused):
            self.door.refusing_logins.note(error.why, self._host)
        else:
            self.door.refusing.note(error.log_text, self._host)
        if self._is_broker_well:
            self.publisher.flush()
        self.flush()
        self._end_all()
        if self._handshake.may_be_told:
            self._send(methods.ConnectionClose(error.code, error.reply_text, *(error.ids or (0, 0))))
        self.flush()
        self._is_closing = True
        self.is_flooded = False
        self._stop_waiting()
        if self._handshake.may_be_told:
            self._abort_later()
        else:
            self._end()

    def _end(self) -> None:
        """Nothing more goes in or out, but for what is on its way."""
        self._is_over = self._is_held = True
        self._buffer = b""
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()
        self._abort_later()

    def _abort_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, self.abort)


def _internal() -> ConnectionClosing:
    return ConnectionClosing(INTERNAL_ERROR, "an internal error; the broker's log says more")
