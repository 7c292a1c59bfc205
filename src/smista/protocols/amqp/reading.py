"""What comes in on a connection, frame by frame, for as long as it is its turn.

Three kinds of frames make a message: a method, a header, and bodies. Messages that are like the one before are not
taken apart, see `patterns`; everything else is read here and handed on: methods to the connection, content to its
channel. Whatever is wrong with a frame closes the channel it came on, or the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from smista.protocols.amqp.channel import Channel
from smista.protocols.amqp.content import PUBLISH
from smista.protocols.amqp.frames import (
    BODY,
    END,
    FRAME_MAX_BEFORE_LOGIN,
    HEAD,
    HEAD_BYTES,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
)
from smista.protocols.amqp.handshake import Handshake
from smista.protocols.amqp.holding import Holding
from smista.protocols.amqp.patterns import OPENING_BYTES_MAX, Pattern
from smista.protocols.amqp.publishing import Publisher
from smista.protocols.amqp.replies import (
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
from smista.protocols.amqp.values import MalformedText, SyntaxFault, TooManyValues
from smista.protocols.turns import Share

if TYPE_CHECKING:
    from smista.protocols.amqp.connection import AmqpConnection
    from smista.protocols.amqp.door import AmqpDoor

LOOKED_AT_EVERY = 50
"""How much is done before looking at the clock: so many frames, or messages put into queues."""
TABLE_BYTES_PER_WORK = 16
"""So many bytes of a long method or header count as much as a short frame: they may be all names and values."""
LONG_BYTES = 1_024
ALIKE_MAX = 500
"""How many messages that are alike are put into queues before looking at the clock."""


class Reading(Holding):
    def __init__(self, door: AmqpDoor) -> None:
        super().__init__(door)
        self.frame_max = min(FRAME_MAX_BEFORE_LOGIN, door.settings.frame_max)
        """Until another is agreed on."""
        self.body_bytes_max = door.settings.body_bytes_max
        self.publisher = Publisher(cast("AmqpConnection", self))
        self._handshake: Handshake
        self._pattern: Pattern | None = None
        """What the last message looked like."""
        self._share = Share(door.turns, self._go_on)

    def _method_frame(self, number: int, payload: bytes) -> None:
        raise NotImplementedError

    def close_channel(self, channel: Channel, error: ChannelClosing, ids: Ids = PUBLISH) -> None:
        raise NotImplementedError

    def _frames(self, data: bytes, position: int) -> int:
        """Work off frames from `position`; returns where the rest starts. Hot: all that comes passes here."""
        size = len(data)
        # RabbitMQ puts up with clients that take the size of frames for that of payloads, so there are some.
        unpack, length_max = HEAD.unpack_from, self.frame_max
        opened_at, opened_by = -1, 0
        while size - position >= OVERHEAD and not self._is_held:
            self.work += 1
            if self.work > LOOKED_AT_EVERY and self._is_time_over():
                break
            if self._pattern is not None and data.startswith(self._pattern.opening, position):
                start, position = position, self._take_alike(self._pattern, data, position)
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
                    self._method_frame(number, payload)
                    continue
                channel = self.channels.get(number)
                if channel is None or kind > BODY or not kind:
                    self._other_frame(kind, number, payload)
                elif channel.is_closing:
                    pass
                elif kind == BODY:
                    channel.body(payload)
                    if opened_at >= 0:
                        self._learn(channel, data[opened_at:first], length)
                else:
                    channel.header(payload)
            except ChannelClosing as error:
                self.publisher.flush()
                self.close_channel(self.channels[number], error, ids_of(payload) if kind == METHOD else PUBLISH)
            except ConnectionClosing as error:
                if error.ids is None and kind == METHOD:
                    error.ids = ids_of(payload)
                raise
            except SyntaxFault as fault:
                raise _fault(kind, payload, fault) from None
        return position

    def _learn(self, channel: Channel, opening: bytes, body_bytes: int) -> None:
        """A message came in three frames that followed each other: the next ones are likely to be like it."""
        if channel.last_content is not None and not channel.has_content and len(opening) <= OPENING_BYTES_MAX:
            target, prepared = channel.last_content
            pattern = Pattern(channel, target, prepared, opening)
            self._pattern = pattern if pattern.announces(body_bytes) else None

    def _take_alike(self, pattern: Pattern, data: bytes, position: int) -> int:
        """Publish all whole messages at `position` that fit a pattern; returns where the next frame starts."""
        channel = pattern.channel
        if channel.is_closing or channel.has_content or self.channels.get(channel.number) is not channel:
            self._pattern = None
            return position
        limit = self.publisher.count_at_once(pattern.target, pattern.prepared, ALIKE_MAX)
        bodies, position = pattern.match(data, position, min(self.frame_max, self.body_bytes_max), limit)
        if bodies:
            self.work += LOOKED_AT_EVERY
            try:
                channel.publish(pattern.target, pattern.prepared, bodies)
            except ChannelClosing as error:
                self.publisher.flush()
                self.close_channel(channel, error, PUBLISH)
        return position

    def _other_frame(self, kind: int, number: int, payload: bytes) -> None:
        """A heartbeat, or what should not have come."""
        if kind == HEARTBEAT and not payload:
            if number:
                raise unexpected_frame(kind, payload)
        elif kind not in (HEADER, BODY):
            raise frame_error(kind, payload, "unknown_frame")
        elif number and self._handshake.is_running:
            raise ConnectionClosing(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        else:
            raise unexpected_frame(kind, payload)

    def _is_time_over(self) -> bool:
        """Whether it is somebody else's turn. What was published so far counts in."""
        self.publisher.flush()
        self.flush_acknowledged()
        self.work = 0
        return self._share.is_over()


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
