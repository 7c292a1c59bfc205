"""A client of HTTP and WebSocket that writes and reads bytes as it pleases."""

from __future__ import annotations

import contextlib
import enum
import json
import select
import socket
import struct

from tests.waiting import PATIENCE_S

HANDSHAKE = (
    b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Opcode(enum.IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


def frame(opcode: Opcode, payload: bytes, *, is_last: bool = True, says_bytes: int | None = None) -> bytes:
    """A WebSocket frame as clients send them, under a mask that changes nothing."""
    length = struct.pack("!BQ", 0xFF, len(payload) if says_bytes is None else says_bytes)
    return bytes([0x80 * is_last + opcode]) + length + bytes(4) + payload


class Client(contextlib.closing["Client"]):
    """One connection."""

    def __init__(self, address: tuple[str, int], *, receive_buffer: int | None = None) -> None:
        super().__init__(self)
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(address)
        self._input = self.socket.makefile("rb")

    def close(self) -> None:
        self._input.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def get(self, path: str) -> Answer:
        self.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return self.answer()

    def upgrade(self, path: str) -> None:
        self.send(f"GET {path} HTTP/1.1\r\n".encode() + HANDSHAKE)
        assert self.answer().status == 101

    def frame(self) -> tuple[Opcode, bytes]:
        """The next WebSocket frame."""
        first, length = self.read(2)
        if length == 126:
            [length] = struct.unpack("!H", self.read(2))
        elif length == 127:
            [length] = struct.unpack("!Q", self.read(8))
        return Opcode(first & 15), self.read(length)

    def read(self, count: int) -> bytes:
        return self._input.read(count)

    def rest(self) -> bytes:
        """All that comes until the server has closed the connection."""
        return self._input.read()

    def answer(self) -> Answer:
        """The next response. It must have a Content-Length."""
        status = self._input.readline().split()
        headers = {}
        while line := self._input.readline().strip():
            name, value = line.decode().split(": ", 1)
            headers[name.lower()] = value
        assert status, "closed without an answer"
        body = self._input.read(int(headers.get("content-length", "0")))
        return Answer(int(status[1]), headers, body)

    @property
    def is_readable(self) -> bool:
        """Whether something has come, or the end."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def is_cut(self) -> bool:
        """Wait until the server has closed the connection; whether it did so without saying anything."""
        try:
            return self._input.read() == b""
        except ConnectionResetError:
            return True


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def error(self) -> tuple[int, str]:
        """Status and code. The shape of the body is checked on the way."""
        assert self.headers["content-type"] == "application/json"
        assert self.headers["connection"] == "close"
        content = json.loads(self.body)
        assert list(content) == ["error"]
        assert sorted(content["error"]) == ["code", "message"]
        assert content["error"]["message"].endswith(".")
        return self.status, content["error"]["code"]
