"""What came on a connection, frame by frame, for as long as it is its turn. Hot: all that comes passes here.

Three kinds of frames make a message: a method, a header, and bodies. Messages that are like the one before are not
taken apart, see `patterns`: what arrived together, and goes where the last one went, is one call of
`ChannelEvents.publish`. Everything else is read here and handed on: methods to the connection, content to its channel.
Whatever is wrong with a frame closes the channel it came on, or the connection. While the connection is closing it has
no channels, and all of this drops what comes.
"""

from __future__ import annotations

from typing import Protocol

from smista.protocols.amqp.wire.channel import ChannelState
from smista.protocols.amqp.wire.content import PUBLISH
from smista.protocols.amqp.wire.frames import BODY, END, HEAD, HEAD_BYTES, HEADER, HEARTBEAT, METHOD, OVERHEAD
from smista.protocols.amqp.wire.patterns import OPENING_BYTES_MAX, Pattern
from smista.protocols.amqp.wire.replies import (
    FRAME_ERROR,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    ChannelClosing,
    ConnectionClosing,
    Ids,
    frame_error,
    undecodable,
    unexpected_frame,
)
from smista.protocols.amqp.wire.values import MalformedText, SyntaxFault, TooManyValues

LOOKED_AT_EVERY = 150
"""How much is done before it is asked whether the turn is over: so many frames of messages, three to each, or messages
put into queues. What was published until then is put into its queues together, so a smaller number makes publishing
slower."""
METHOD_WORK = 2
"""What a method that is not part of a message counts more than its frame."""
TABLE_BYTES_PER_WORK = 16
"""So many bytes of a long method or header count as much as a short frame: they may be all names and values."""
LONG_BYTES = 1_024


class Scanned(Protocol):
    """Who has a scanner."""

    @property
    def is_running(self) -> bool: ...

    @property
    def is_closing(self) -> bool: ...

    def method_frame(self, number: int, payload: bytes) -> bool: ...

    def close_channel(self, channel: ChannelState, error: ChannelClosing, ids: Ids = PUBLISH) -> None: ...

    def flush(self) -> bool: ...

    def is_turn_over(self) -> bool: ...


class Scanner:
    __slots__ = ("_owner", "body_bytes_max", "channels", "frame_max", "is_paused", "pattern", "work")

    def __init__(self, owner: Scanned, frame_max: int, body_bytes_max: int) -> None:
        self._owner = owner
        self.channels: dict[int, ChannelState] = {}
        self.frame_max = frame_max
        self.body_bytes_max = body_bytes_max
        self.is_paused = False
        """No frame is looked at for now."""
        self.work = 0
        """How much has been done since it was asked whether the turn is over."""
        self.pattern: Pattern | None = None
        """What the last message looked like; None too where that does not hold any more."""

    def scan(self, data: bytes, position: int) -> int:
        """Work off the whole frames from `position` on; returns where the rest starts."""
        size = len(data)
        # RabbitMQ puts up with clients that take the size of frames for that of payloads, so there are some.
        unpack, length_max = HEAD.unpack_from, self.frame_max
        opened_at, opened_by = -1, 0
        while size - position >= OVERHEAD and not self.is_paused:
            self.work += 1
            if self.work > LOOKED_AT_EVERY:
                self.work = 0
                if self._owner.is_turn_over() or self.is_paused:
                    break
            if self.pattern is not None and data.startswith(self.pattern.opening, position):
                start, position = position, self._take_alike(self.pattern, data, position)
                if position > start:
                    continue
            kind, number, length = unpack(data, position)
            if kind == METHOD:
                opened_at, opened_by = position, number
            elif number != opened_by:
                opened_at = -1
            first = position + HEAD_BYTES
            end = first + length
            if length > length_max:
                # It may have been agreed on since.
                length_max = self.frame_max
            if length > length_max:
                raise frame_error(kind, b"", f"{{frame_too_large,{length},{length_max - OVERHEAD}}}")
            if end >= size:
                break
            payload = data[first:end]
            if data[end] != END:
                raise frame_error(kind, payload, f"{{invalid_frame_end_marker,{data[end]}}}")
            position = end + 1
            if length > LONG_BYTES and kind != BODY:
                self.work += length // TABLE_BYTES_PER_WORK
            try:
                if kind == METHOD:
                    if not self._owner.method_frame(number, payload):
                        return first - HEAD_BYTES
                    continue
                channel = self.channels.get(number)
                if channel is None or kind > BODY or not kind:
                    self._other_frame(kind, number, payload)
                elif channel.is_closing:
                    pass
                elif kind == BODY:
                    whole = channel.body(payload)
                    if whole is not None and opened_at >= 0 and first - opened_at <= OPENING_BYTES_MAX:
                        # It came in three frames that followed each other: the next ones are likely to be like it.
                        self.pattern = Pattern(channel, *whole, data[opened_at:first])
                else:
                    channel.header(payload)
            except ChannelClosing as error:
                self._fail(self.channels[number], error, ids_of(payload) if kind == METHOD else PUBLISH)
            except ConnectionClosing as error:
                if error.ids is None and kind == METHOD:
                    error.ids = ids_of(payload)
                raise
            except SyntaxFault as fault:
                raise _fault(kind, payload, fault) from None
        return position

    def _take_alike(self, pattern: Pattern, data: bytes, position: int) -> int:
        """Publish all whole messages at `position` that fit a pattern; returns where the next frame starts."""
        channel = pattern.channel
        if not channel.is_open or channel.has_content:
            self.pattern = None
            return position
        size_max = min(self.frame_max, self.body_bytes_max)
        if not pattern.fits(data, position, size_max):
            return position
        limit = channel.events.count_per_step(pattern.target, pattern.prepared)
        bodies, position = pattern.match(data, position, size_max, limit)
        if bodies:
            self.work += LOOKED_AT_EVERY
            try:
                channel.events.publish(pattern.target, pattern.prepared, bodies)
            except ChannelClosing as error:
                self._fail(channel, error, PUBLISH)
        return position

    def _fail(self, channel: ChannelState, error: ChannelClosing, ids: Ids) -> None:
        # What came before it may have failed as well, and then that is the reason.
        self._owner.flush()
        self._owner.close_channel(channel, error, ids)

    def _other_frame(self, kind: int, number: int, payload: bytes) -> None:
        """A heartbeat, or what should not have come: except that anything may while the connection is closing."""
        if self._owner.is_closing:
            return
        if kind == HEARTBEAT and not payload:
            if number:
                raise unexpected_frame(kind, payload)
        elif kind not in (HEADER, BODY):
            raise frame_error(kind, payload, "unknown_frame")
        elif number and self._owner.is_running:
            raise ConnectionClosing(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        else:
            raise unexpected_frame(kind, payload)


def ids_of(payload: bytes) -> Ids:
    return int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")


def _fault(kind: int, payload: bytes, fault: SyntaxFault) -> ConnectionClosing:
    """What RabbitMQ says of bytes it cannot read; of properties it only says that it fell over them (541)."""
    if isinstance(fault, MalformedText):
        return ConnectionClosing(FRAME_ERROR, str(fault), ids=(0, 0))
    if isinstance(fault, TooManyValues):
        return ConnectionClosing(SYNTAX_ERROR, str(fault), ids=ids_of(payload))
    if kind == METHOD:
        return undecodable(payload[4:], ids_of(payload))
    if len(payload) < 14:
        return frame_error(kind, payload, "unknown_frame")
    return ConnectionClosing(SYNTAX_ERROR, str(fault), ids=PUBLISH)
