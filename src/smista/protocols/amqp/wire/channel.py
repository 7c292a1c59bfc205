"""What may come next on one channel, and the message that is on its way in.

    open ── channel.close came ──▶ gone; it is answered when nothing of the channel is left
    open ── we close it ─────────▶ closing: what comes is dropped ── close-ok came ──▶ gone

    a message: basic.publish ─▶ content header ─▶ body frames up to the size that it announced ─▶ whole

The three frames of a message follow each other on their channel, but frames of other channels may come in between. A
method in the middle of a message is an error of the connection.
"""

from __future__ import annotations

from typing import Any, Protocol

from smista.protocols.amqp.wire import content, frames, methods
from smista.protocols.amqp.wire.content import PUBLISH
from smista.protocols.amqp.wire.methods import Method
from smista.protocols.amqp.wire.replies import (
    FRAME_ERROR,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
    ChannelClosing,
    ConnectionClosing,
)

KEPT_BYTES_MAX = 256 << 20
"""Of messages that are on their way in on all channels of a connection."""
PART_BYTES_MIN = 1024

Target = Any
"""What `ChannelEvents.target` made of a publish method; it is handed back with the message."""
Prepared = Any
"""What `ChannelEvents.prepare` made of a message's properties; the same. Its `kept_bytes` are what it takes in memory,
or more: a table may take many times the bytes that it came in. Its `form` is that of properties for which it would have
made the same, or None; with it, it takes its `remembered_bytes`."""


class ChannelEvents(Protocol):
    """What comes on a channel, as calls: see `events`."""

    def target(self, payload: bytes) -> Target:
        """A publish method came. Called for each, so the same bytes should be looked up and not read again."""

    def prepare(self, target: Target, raw: bytes) -> Prepared:
        """The content header came, with these bytes of properties; again the same ones most of the time."""

    def publish(self, target: Target, prepared: Prepared, bodies: list[bytes], properties: list[bytes]) -> None:
        """The message is whole; or several are, which came together: the properties of all of them have the form of
        the one that was prepared."""

    def count_per_step(self, target: Target, prepared: Prepared) -> int:
        """How many messages whose properties have that form may come in one `publish`; 0 where each is to be prepared
        for itself."""

    def acknowledge(self, tag: int, multiple: bool) -> None:
        """basic.ack came."""

    def method(self, method: Method) -> None:
        """Any other method came."""

    def closed(self) -> None:
        """The client closes the channel: send close-ok when nothing of it is left."""

    def failed(self, error: ChannelClosing) -> None:
        """We close the channel, and say so next: nothing of it may be left."""


class Arriving:
    """The messages of one connection that are not whole yet."""

    __slots__ = ("body_bytes_max", "kept_bytes")

    def __init__(self, body_bytes_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        self.kept_bytes = 0
        """Of their properties, and of what has come of their bodies."""


class ChannelState:
    __slots__ = (
        "_arriving",
        "_body_bytes",
        "_kept_bytes",
        "_parts",
        "_parts_bytes",
        "_prepared",
        "_properties",
        "_target",
        "events",
        "frame_max",
        "is_closing",
        "is_open",
        "number",
        "out",
    )

    def __init__(self, number: int, out: list[bytes], frame_max: int, arriving: Arriving) -> None:
        self.number = number
        self.out = out
        """What goes out with the next write of its connection: frames, or pieces of them."""
        self.frame_max = frame_max
        self.events: ChannelEvents
        self.is_open = True
        self.is_closing = False
        """We have sent channel.close and wait for its -ok."""
        self._arriving = arriving
        self._target: Target = None
        self._prepared: Prepared = None
        self._properties = b""
        self._body_bytes = 0
        self._parts: list[bytes | bytearray] = []
        self._parts_bytes = 0
        self._kept_bytes = 0
        """Of the parts and of what was prepared."""

    # -- out ----------------------------------------------------------------------------------------------------------

    def send(self, method: Method) -> None:
        self.out.append(frames.method_frame(self.number, method))

    def send_content(self, method: Method, raw: bytes, body: bytes) -> None:
        """A method that carries a message, and the message, whose properties are these bytes."""
        self.send(method)
        self.out.append(frames.frame(frames.HEADER, self.number, content.write_head(len(body), raw)))
        self.out.extend(frames.body_frames(self.number, body, self.frame_max))

    # -- in -----------------------------------------------------------------------------------------------------------

    @property
    def has_content(self) -> bool:
        """Whether a message is on its way in."""
        return self._target is not None

    def method(self, method: Method) -> None:
        if self._target is not None:
            raise self._out_of_order()
        self.events.method(method)

    def publish_method(self, payload: bytes) -> None:
        if self._target is not None:
            raise self._out_of_order()
        self._target = self.events.target(payload)

    def header(self, payload: bytes) -> None:
        target = self._target
        if target is None or self._prepared is not None:
            raise self._out_of_order()
        size, raw = content.read_head(payload)
        if size > self._arriving.body_bytes_max:
            raise ChannelClosing(
                PRECONDITION_FAILED,
                f"message size {size} is larger than configured max size {self._arriving.body_bytes_max}",
            )
        self._prepared = prepared = self.events.prepare(target, raw)
        self._properties = raw
        self._body_bytes = size
        if size:
            self._keep(prepared.kept_bytes)
        else:
            self._complete(prepared, b"")

    def body(self, data: bytes) -> tuple[Target, Prepared] | None:
        """How the message is addressed, if all of its body came in this one frame."""
        target, prepared = self._target, self._prepared
        if prepared is None:
            raise self._out_of_order()
        if not self._parts and len(data) == self._body_bytes:
            self._complete(prepared, data)
            return target, prepared
        self._keep_part(data)
        if self._parts_bytes > self._body_bytes:
            raise ConnectionClosing(FRAME_ERROR, "more content than the header announced", ids=PUBLISH)
        if self._parts_bytes == self._body_bytes:
            self._complete(prepared, b"".join(self._parts))
        return None

    def _complete(self, prepared: Prepared, body: bytes) -> None:
        target, properties = self._target, self._properties
        self._forget_content()
        self.events.publish(target, prepared, [body], [properties])

    def _keep_part(self, data: bytes) -> None:
        # Small parts are put together at once: each by itself would take many times the memory it took to send.
        if len(data) >= PART_BYTES_MIN:
            self._parts.append(data)
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += data
        elif data:
            self._parts.append(bytearray(data))
        self._parts_bytes += len(data)
        self._keep(len(data))

    def _keep(self, kept_bytes: int) -> None:
        self._kept_bytes += kept_bytes
        self._arriving.kept_bytes += kept_bytes
        if self._arriving.kept_bytes > KEPT_BYTES_MAX:
            raise ConnectionClosing(
                RESOURCE_ERROR,
                f"more than {KEPT_BYTES_MAX} bytes of messages that are not whole; send them one after the other",
                ids=PUBLISH,
            )

    def _out_of_order(self) -> ConnectionClosing:
        """A frame that should not come now."""
        if self._target is None:
            return ConnectionClosing(
                UNEXPECTED_FRAME, "expected method frame, got non method frame instead", ids=(0, 0)
            )
        if self._prepared is None:
            expected = "expected content header for class 60, got non content header frame instead"
        else:
            expected = "expected content body, got non content body frame instead"
        return ConnectionClosing(UNEXPECTED_FRAME, expected, ids=PUBLISH)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self, error: ChannelClosing, ids: tuple[int, int]) -> None:
        """We close it: say why, and drop what comes until the other side has agreed."""
        self.is_open, self.is_closing = False, True
        self._forget_content()
        self.events.failed(error)
        self.send(methods.ChannelClose(error.code, error.reply_text, *(error.ids or ids)))

    def leave(self) -> None:
        """It is gone."""
        self.is_open = False
        self._forget_content()

    def end(self) -> None:
        """It is gone, and nobody hears of it any more: else it and whoever does would keep each other in memory."""
        self.leave()
        del self.events

    def _forget_content(self) -> None:
        self._target = self._prepared = None
        self._properties = b""
        self._arriving.kept_bytes -= self._kept_bytes
        self._kept_bytes = 0
        if self._parts:
            self._parts, self._parts_bytes = [], 0
