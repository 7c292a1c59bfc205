"""One connection as a value: bytes in, events out; methods in, bytes out.

    receive(bytes), then process() ─▶ frames ─▶ events: calls of `Events` and `ChannelEvents`, in the order things came
    send(method), or `out` itself ──▶ take_output() ─▶ bytes

    starting ─▶ handshake ─▶ running                       the header came; the virtual host is open
    any of these ── close(error): connection.close ──────▶ closing ── close-ok came ──▶ over
    any of these ── connection.close came: close-ok ─────▶ over
    starting, or before the login ── close(error) ───────▶ over: a stranger is cut off without a word

The rules it keeps:

- Frames take effect in the order in which they came, each before the next is looked at. While `is_paused`, none is, and
  what comes is kept: whoever hears an event may pause it, to finish what takes longer, and goes on by `process`.
- What a client does wrong closes its channel or its connection, with the code and the text that RabbitMQ would give.
  What came on a channel that closes is dropped until the other side has agreed.
- After our connection.close, or our close-ok, nothing more is sent: what is put into `out` from then on goes nowhere.
  What comes after our connection.close is dropped frame by frame, with turns as ever. A close of theirs that crossed it
  is answered, once.
- `is_turn_over` is asked by the work that is done, so that one client cannot keep all others waiting.

What it must not know: sockets and transports, the loop, tasks, the clock, and the broker. Whoever runs it gives it what
came, writes what it has to say, and keeps the times: how long a handshake may take, heartbeats, and how long the other
side has to agree to the end (see `adapter`). What methods do to the broker is behind `ChannelEvents` (see `handler`).
"""

from __future__ import annotations

from smista.protocols.amqp.settings import AmqpSettings
from smista.protocols.amqp.wire import frames, methods
from smista.protocols.amqp.wire.channel import Arriving, ChannelState
from smista.protocols.amqp.wire.content import PUBLISH
from smista.protocols.amqp.wire.events import Events
from smista.protocols.amqp.wire.frames import FRAME_MAX_BEFORE_LOGIN, METHOD
from smista.protocols.amqp.wire.handshake import START, Handshake
from smista.protocols.amqp.wire.methods import Method
from smista.protocols.amqp.wire.replies import (
    CHANNEL_ERROR,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    AmqpError,
    ChannelClosing,
    ConnectionClosing,
    HeaderRefused,
    Ids,
    frame_error,
    unexpected_frame,
)
from smista.protocols.amqp.wire.scanner import METHOD_WORK, Scanner, ids_of

_PUBLISH = b"\x00\x3c\x00\x28"
_ACK = b"\x00\x3c\x00\x50"
_CLOSE_OK = frames.method_frame(0, methods.ConnectionCloseOk())


class Connection:
    __slots__ = (
        "_events",
        "_has_agreed",
        "_has_header",
        "_last_words",
        "_received",
        "_scanner",
        "arriving",
        "channels",
        "flush",
        "handshake",
        "is_closing",
        "is_over",
        "is_turn_over",
        "out",
    )

    def __init__(self, settings: AmqpSettings, events: Events) -> None:
        self._events = events
        # For the scanner.
        self.flush = events.flush
        self.is_turn_over = events.is_turn_over
        self.handshake = Handshake(settings, events)
        self.out: list[bytes] = []
        """What goes out with the next write, in pieces. The same list all the time."""
        self.arriving = Arriving(settings.body_bytes_max)
        self._scanner = Scanner(self, min(FRAME_MAX_BEFORE_LOGIN, settings.frame_max), settings.body_bytes_max)
        self.channels = self._scanner.channels
        self._received = b""
        """What came and has not been looked at."""
        self._has_header = False
        self.is_closing = False
        """We have sent connection.close and wait for its -ok."""
        self.is_over = False
        """Nothing more comes in, and nothing goes out but for what is left of `take_output`."""
        self._last_words: bytes | None = None
        """Ours, once nothing may follow them."""
        self._has_agreed = False
        """To a close of theirs that crossed ours."""

    # -- in -----------------------------------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self._scanner.is_paused

    @is_paused.setter
    def is_paused(self, is_paused: bool) -> None:
        self._scanner.is_paused = is_paused

    @property
    def is_running(self) -> bool:
        """Whether the handshake is over."""
        return self.handshake.is_running

    @property
    def is_open(self) -> bool:
        """Whether neither side has closed it: what is sent is still heard."""
        return not self.is_closing and not self.is_over

    @property
    def has_received(self) -> bool:
        """Whether anything waits for `process`."""
        return bool(self._received)

    def add_work(self, work: int) -> None:
        """So much was done for what came, beside reading it."""
        self._scanner.work += work

    def receive(self, data: bytes) -> None:
        """Keep what came for `process`."""
        if not self.is_over:
            self._received = self._received + data if self._received else data

    def process(self) -> None:
        """Look at what came, as far as it is whole and there is time for it. Raises what closes the connection (also
        while it is closing: then it is nothing new), and whatever else the events raise; what is left of what came is
        dropped then."""
        data, self._received = self._received, b""
        position = 0
        if not self._has_header:
            position = self._protocol_header(data)
        if self.is_closing and data.endswith(_CLOSE_OK):
            # Wherever frames begin and end: that may be what was wrong.
            self._stop()
        elif self._has_header:
            position = self._scanner.scan(data, position)
        if position < len(data) and not self.is_over:
            self._received = data[position:]

    def _protocol_header(self, data: bytes) -> int:
        """Answer the protocol header; returns where what follows it starts."""
        wanted = frames.PROTOCOL_HEADER
        if len(data) < len(wanted) and wanted.startswith(data):
            return 0
        if data[: len(wanted)] != wanted:
            raise HeaderRefused
        self._has_header = True
        self.send(START)
        return len(wanted)

    def forget_patterns(self) -> None:
        """How messages before were addressed does not hold for the next ones any more."""
        self._scanner.forget_patterns()

    # -- methods ------------------------------------------------------------------------------------------------------

    def method_frame(self, number: int, payload: bytes) -> bool:
        """Returns whether it has taken effect; if not, it has to be looked at again."""
        if number and payload[:4] == _PUBLISH:
            channel = self.channels.get(number)
            if channel is not None and not channel.is_closing:
                channel.publish_method(payload)
                return True
        elif number and payload[:4] == _ACK and len(payload) == 13:
            channel = self.channels.get(number)
            if channel is not None and not channel.is_closing and not channel.has_content:
                channel.events.acknowledge(int.from_bytes(payload[4:12], "big"), payload[12] & 1 == 1)
                return True
        self._scanner.work += METHOD_WORK
        if self.is_closing:
            self._method_while_closing(number, ids_of(payload))
            return True
        if len(payload) < 4:
            raise frame_error(METHOD, payload, "unknown_frame")
        try:
            method = methods.read(payload)
        except KeyError:
            class_id, method_id = ids_of(payload)
            raise ConnectionClosing(NOT_IMPLEMENTED, f"unknown method {class_id}.{method_id}") from None
        if not self.flush():
            return False
        if number == 0:
            self._connection_method(method)
        elif not self.handshake.is_running:
            raise unexpected_frame(METHOD, payload)
        else:
            self._channel_method(number, method)
        return True

    def _method_while_closing(self, number: int, ids: Ids) -> None:
        if number == 0 and ids == methods.ConnectionCloseOk.INDEX:
            self._stop()
        elif number == 0 and ids == methods.ConnectionClose.INDEX and not self._has_agreed:
            self._has_agreed = True
            self._last_words = (self._last_words or b"") + _CLOSE_OK

    def _connection_method(self, method: Method) -> None:
        if isinstance(method, methods.ConnectionClose):
            self._events.closed()
            self.leave()
            self.send(methods.ConnectionCloseOk())
            self._end()
        elif not self.handshake.is_running:
            self._shake_hands(method)
        elif isinstance(method, methods.ConnectionUpdateSecret):
            self.send(methods.ConnectionUpdateSecretOk())
        else:
            raise ConnectionClosing(CHANNEL_ERROR, "unexpected method in connection state running")

    def _shake_hands(self, method: Method) -> None:
        handshake = self.handshake
        answer = handshake.take(method)
        if answer is not None:
            self.send(answer)
        if handshake.is_running:
            self._scanner.frame_max = handshake.frame_max
            self._events.opened(handshake.user, handshake.vhost)

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
            del self.channels[number]
            channel.leave()
            channel.events.closed()
        else:
            channel.method(method)

    def _open_channel(self, number: int, method: Method) -> None:
        if not isinstance(method, methods.ChannelOpen):
            raise ConnectionClosing(CHANNEL_ERROR, "expected 'channel.open'")
        # How many, not which: as in RabbitMQ any number a frame has room for will do.
        channel_max = self.handshake.channel_max
        if len(self.channels) >= channel_max:
            raise ConnectionClosing(
                NOT_ALLOWED,
                f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max "
                f"({channel_max})",
                ids=(0, 0),
            )
        channel = ChannelState(number, self.out, self.handshake.frame_max, self.arriving)
        channel.events = self._events.channel_opened(channel)
        self.channels[number] = channel
        channel.send(methods.ChannelOpenOk())

    # -- out ----------------------------------------------------------------------------------------------------------

    def send(self, method: Method) -> None:
        """A method of the connection itself."""
        self.out.append(frames.method_frame(0, method))

    def beat(self) -> None:
        """A heartbeat."""
        self.out.append(frames.HEARTBEAT_FRAME)

    def take_output(self) -> bytes:
        """What there is to say, once."""
        out = self.out
        if self._last_words is not None:
            # Nothing may follow them.
            out.clear()
            data, self._last_words = self._last_words, b""
            return data
        if not out:
            return b""
        data = b"".join(out)
        out.clear()
        return data

    # -- the end ------------------------------------------------------------------------------------------------------

    def close_channel(self, channel: ChannelState, error: ChannelClosing, ids: Ids = PUBLISH) -> None:
        """Say why; until the other side agrees, its frames are dropped."""
        if channel.is_open:
            channel.close(error, ids)

    def close(self, error: AmqpError) -> None:
        """Say why, if the other side has been let in so far that it should know, and wait for it to agree."""
        if not self.is_open:
            return
        self.leave()
        if isinstance(error, HeaderRefused):
            self.out.append(frames.PROTOCOL_HEADER)
        elif self.handshake.explains_errors:
            self.send(methods.ConnectionClose(error.code, error.reply_text, *(error.ids or (0, 0))))
            self.is_closing = True
        if self.is_closing:
            self._last_words = b"".join(self.out)
        else:
            self._end()

    def leave(self) -> None:
        """All its channels are gone."""
        for channel in self.channels.values():
            channel.leave()
        self.channels.clear()

    def _end(self) -> None:
        self._stop()
        self._last_words = b"".join(self.out)

    def lose(self) -> None:
        """The other side is gone: there is nobody to say anything to."""
        self._stop()
        self._last_words = b""

    def _stop(self) -> None:
        """No further frame is looked at."""
        self.is_over = self.is_paused = True
        self._received = b""
