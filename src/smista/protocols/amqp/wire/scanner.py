"""What came on a connection, frame by frame, for as long as it is its turn. Hot: all that comes passes here.

Three kinds of frames make a message: a method, a header, and bodies. Messages that are like one before are not taken
apart, see `patterns`: those that follow each other are one call of `ChannelEvents.publish`. Everything else is read
here and handed on: methods to the connection, content to its channel. Whatever is wrong with a frame closes the channel
it came on, or the connection. While the connection is closing it has no channels, and all of this drops what comes.
"""

from __future__ import annotations

import struct
from typing import Protocol

from smista.protocols.amqp.wire.channel import ChannelState, Prepared, Target
from smista.protocols.amqp.wire.content import PUBLISH
from smista.protocols.amqp.wire.frames import BODY, END, HEAD, HEAD_BYTES, HEADER, HEARTBEAT, METHOD, OVERHEAD
from smista.protocols.amqp.wire.patterns import OPENING_BYTES_MAX, Pattern, opening_at
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
PATTERNS_MAX = 200
"""How many a connection remembers: of a publisher's queues, each with properties of some lengths."""
PATTERN_BYTES_MAX = 2 << 20
"""What may be kept for their sake."""
_PUBLISH = struct.pack(">HH", *PUBLISH)


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
    __slots__ = (
        "_last",
        "_owner",
        "_pattern_bytes",
        "_patterns",
        "body_bytes_max",
        "channels",
        "frame_max",
        "is_paused",
        "work",
    )

    def __init__(self, owner: Scanned, frame_max: int, body_bytes_max: int) -> None:
        self._owner = owner
        self.channels: dict[int, ChannelState] = {}
        self.frame_max = frame_max
        self.body_bytes_max = body_bytes_max
        self.is_paused = False
        """No frame is looked at for now."""
        self.work = 0
        """How much has been done since it was asked whether the turn is over."""
        self._patterns: dict[bytes, Pattern] = {}
        """What messages looked like, by their opening ..."""
        self._pattern_bytes = 0
        self._last: Pattern | None = None
        """... and the last of them."""

    def forget_patterns(self) -> None:
        """What messages looked like does not hold for the next ones any more."""
        self._patterns.clear()
        self._pattern_bytes = 0
        self._last = None

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
            kind, number, length = unpack(data, position)
            if kind == METHOD and self._patterns:
                start, position = position, self._take_alike(data, position)
                if position > start:
                    # Another channel may be in the middle of a message: what follows its method is not its header.
                    opened_at = -1
                    continue
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
                        self._learn(channel, *whole, opening_at(data, opened_at))
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

    def _learn(self, channel: ChannelState, target: Target, prepared: Prepared, opening: bytes) -> None:
        if prepared.form is None:
            return
        pattern = self._patterns.get(opening)
        if pattern is None or pattern.prepared is not prepared:
            self._pattern_bytes += prepared.remembered_bytes + len(opening)
            if len(self._patterns) >= PATTERNS_MAX or self._pattern_bytes > PATTERN_BYTES_MAX:
                self.forget_patterns()
                pattern = None
        if pattern is None:
            pattern = self._patterns[opening] = Pattern(opening)
        pattern.learn(channel, target, prepared, prepared.form)

    def _take_alike(self, data: bytes, position: int) -> int:
        """Publish all whole messages at `position` that are like one before; returns where the next frame starts."""
        pattern = self._last
        if pattern is None or not data.startswith(pattern.opening, position):
            if data[position + HEAD_BYTES : position + HEAD_BYTES + len(_PUBLISH)] != _PUBLISH:
                return position
            pattern = self._patterns.get(opening_at(data, position))
            if pattern is None:
                return position
            self._last = pattern
        channel = pattern.channel
        if not channel.is_open or channel.has_content or not pattern.fits(data, position):
            return position
        limit = channel.events.count_per_step(pattern.target, pattern.prepared)
        size_max = min(self.frame_max, self.body_bytes_max)
        bodies, properties, position = pattern.match(data, position, size_max, limit)
        if bodies:
            self.work += 1 + LOOKED_AT_EVERY * len(bodies) // limit
            try:
                channel.events.publish(pattern.target, pattern.prepared, bodies, properties)
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
