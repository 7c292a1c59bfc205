"""A socket, and frames put together by hand: for all that a client library would never send."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any, TypeVar

from smista.protocols.amqp.wire import frames, methods
from smista.protocols.amqp.wire.frames import BODY, HEADER, HEARTBEAT, METHOD
from smista.protocols.amqp.wire.methods import Method
from tests.waiting import PATIENCE_S

HELLO = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = {"authentication_failure_close": True, "connection.blocked": True, "consumer_cancel_notify": True}
CLOSE = methods.ConnectionClose(200, "bye", 0, 0)
CLOSE_CHANNEL = methods.ChannelClose(200, "bye", 0, 0)
M = TypeVar("M", bound=Method)
Frame = tuple[int, int, bytes]
"""Type, channel, payload."""


def on(channel: int, *sent: Method) -> bytes:
    """Methods in their frames."""
    return b"".join(frames.method_frame(channel, method) for method in sent)


def frame(kind: int, channel: int, payload: bytes, *, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def head(size: int, *, properties: bytes = b"\0\0", channel: int = 1, class_number: int = 60, weight: int = 0) -> bytes:
    return frame(HEADER, channel, struct.pack(">HHQ", class_number, weight, size) + properties)


def part(data: bytes, *, channel: int = 1) -> bytes:
    return frame(BODY, channel, data)


def publish(key: str, exchange: str = "", *, channel: int = 1) -> bytes:
    """The method alone."""
    return on(channel, methods.BasicPublish(0, exchange, key, False, False))


def message(body: bytes, key: str, exchange: str = "", *, channel: int = 1, properties: bytes = b"\0\0") -> bytes:
    """A whole message, its body in one frame."""
    sent = publish(key, exchange, channel=channel) + head(len(body), channel=channel, properties=properties)
    return sent + (part(body, channel=channel) if body else b"")


def declare(
    queue: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    is_passive: bool = False,
    is_exclusive: bool = False,
    is_auto_delete: bool = False,
) -> Method:
    more = dict(arguments or {})
    return methods.QueueDeclare(0, queue, is_passive, not is_passive, is_exclusive, is_auto_delete, False, more)


def consume(queue: str, tag: str = "t", *, is_no_ack: bool = False, is_exclusive: bool = False) -> Method:
    return methods.BasicConsume(0, queue, tag, False, is_no_ack, is_exclusive, False, {})


def get(queue: str, *, is_no_ack: bool = False) -> Method:
    return methods.BasicGet(0, queue, is_no_ack)


def start_ok(
    mechanism: str = "PLAIN",
    response: bytes = b"\0guest\0guest",
    capabilities: Mapping[str, bool] = CAPABILITIES,
) -> bytes:
    return on(0, methods.ConnectionStartOk({"capabilities": dict(capabilities)}, mechanism, response, "en_US"))


def tune_ok(channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 0) -> bytes:
    return on(0, methods.ConnectionTuneOk(channel_max, frame_max, heartbeat))


OPEN = on(0, methods.ConnectionOpen("/"))
OPEN_CHANNEL = on(1, methods.ChannelOpen())


class Raw:
    """One connection, as yet without a handshake."""

    def __init__(self, address: tuple[str, int], *, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def open(
        self,
        *,
        channels: int = 1,
        capabilities: Mapping[str, bool] = CAPABILITIES,
        channel_max: int = 2047,
        frame_max: int = 131_072,
        heartbeat: int = 0,
    ) -> Raw:
        """Through the handshake, with channels 1 to `channels`."""
        self.send(HELLO)
        self.expect(methods.ConnectionStart)
        self.send(start_ok(capabilities=capabilities))
        self.expect(methods.ConnectionTune)
        self.send(tune_ok(channel_max, frame_max, heartbeat), OPEN)
        self.expect(methods.ConnectionOpenOk)
        for number in range(1, channels + 1):
            self.send(on(number, methods.ChannelOpen()))
            self.expect(methods.ChannelOpenOk)
        return self

    def send(self, *data: bytes) -> Raw:
        self.socket.sendall(b"".join(data))
        return self

    def call(self, method: Method, reply: type[M], *, channel: int = 1) -> M:
        self.send(on(channel, method))
        return self.expect(reply)

    def expect(self, kind: type[M]) -> M:
        """The next frame, which has to be this method."""
        found, _, payload = self.next()
        assert found == METHOD, (found, payload)
        method = methods.read(payload)
        assert isinstance(method, kind), method
        return method

    def next(self) -> Frame:
        """The next frame that is no heartbeat."""
        while True:
            found = self.frame()
            if found[0] != HEARTBEAT:
                return found

    def frame(self) -> Frame:
        kind, number, length = struct.unpack(">BHI", self.take(7))
        payload = self.take(length)
        assert self.take(1) == b"\xce"
        return kind, number, payload

    def take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            self._buffer += data
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def is_over(self) -> bool:
        """Whether nothing more comes, and the socket is closed."""
        try:
            self.take(1)
        except EOFError:
            return True
        return False

    def ending(self) -> str:
        """How the server closes the connection, which is answered: "540 NOT_IMPLEMENTED - ... (60, 40)"; or "cut"."""
        try:
            while True:
                kind, number, payload = self.next()
                method = methods.read(payload) if kind == METHOD else None
                if number == 0 and isinstance(method, methods.ConnectionClose):
                    break
        except EOFError:
            return "cut"
        self.send(on(0, methods.ConnectionCloseOk()))
        assert self.is_over()
        return _told(method)

    def channel_ending(self, channel: int = 1) -> str:
        """How the server closes a channel, which is answered."""
        method = self.expect(methods.ChannelClose)
        self.send(on(channel, methods.ChannelCloseOk()))
        return _told(method)

    def is_well(self, channel: int = 1) -> bool:
        """Whether a channel still does what it is asked."""
        return self.call(methods.BasicQos(0, 0, False), methods.BasicQosOk, channel=channel) is not None

    def get(self, queue: str, channel: int = 1) -> bytes | None:
        """The next body in a queue, taken out of it."""
        self.send(on(channel, methods.BasicGet(0, queue, True)))
        kind, _, payload = self.next()
        assert kind == METHOD
        method = methods.read(payload)
        if isinstance(method, methods.BasicGetEmpty):
            return None
        assert isinstance(method, methods.BasicGetOk), method
        return self.content()

    def content(self) -> bytes:
        """Header and body frames of one message."""
        kind, _, payload = self.next()
        assert kind == HEADER
        size = int.from_bytes(payload[4:12], "big")
        body = b""
        while len(body) < size:
            kind, _, payload = self.next()
            assert kind == BODY
            body += payload
        return body

    def delivery(self) -> tuple[methods.BasicDeliver, bytes]:
        return self.expect(methods.BasicDeliver), self.content()

    def close(self) -> None:
        """With the handshake."""
        self.send(on(0, CLOSE))
        self.expect(methods.ConnectionCloseOk)
        assert self.is_over()
        self.drop()

    def drop(self) -> None:
        """Without a word."""
        self.socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


def _told(method: methods.ConnectionClose | methods.ChannelClose) -> str:
    return f"{method.reply_code} {method.reply_text} ({method.class_id}, {method.method_id})"
