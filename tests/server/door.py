"""A uvicorn with our protocol on a loop of its own, and clients that write and read bytes as they please.

The time by which its deadlines are judged is moved by hand, so that no machine is too slow for them:

    door.pass_time(DEADLINE_S)      # and whoever is overdue has been dealt with
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self
from unittest import mock

import uvicorn
import uvloop

from smista.server.http_protocol import HttpProtocol, make_protocol
from smista.server.settings import ServerSettings
from smista.server.websocket_protocol import WebSocketProtocol
from tests.waiting import PATIENCE_S, eventually

SWEEP_S = 0.01
"""How often a door looks for whoever is overdue."""


class MovedUvloop(uvloop.Loop):
    """Its time can be moved on; its own timers keep to the real one."""

    passed_s = 0.0

    def time(self) -> float:
        return super().time() + self.passed_s


class MovedAsyncio(asyncio.SelectorEventLoop):
    """Its time can be moved on, and its timers follow."""

    passed_s = 0.0

    def time(self) -> float:
        return super().time() + self.passed_s


LoopFactory = type[MovedUvloop] | type[MovedAsyncio]
LOOP_FACTORIES = [MovedUvloop, MovedAsyncio]


class Door:
    """Serves a small application. What the application saw is in `seen`; `opened` lets waiting requests go on."""

    def __init__(self, settings: ServerSettings) -> None:
        self.seen: list[str] = []
        self.opened = threading.Event()
        self.protocol = make_protocol(settings)
        self.connections = self.protocol.shared
        self.connections._interval_s = SWEEP_S
        self._sweep_count = 0
        self._sweep = self.connections._sweep
        self.connections._sweep = self._counted_sweep  # type: ignore[method-assign]  # counted on the way
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        config = uvicorn.Config(
            self._application,
            interface="asgi3",
            http=self.protocol,
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)

    @contextlib.contextmanager
    def serving(self, loop_factory: LoopFactory) -> Iterator[Self]:
        def serve() -> None:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._server.serve([self._listener]))

        self._loop = loop_factory()
        thread = threading.Thread(target=serve)
        # Whoever was refused has as long to read why as the slowest machine needs.
        with (
            mock.patch("smista.server.http_protocol.LINGER_S", PATIENCE_S),
            mock.patch("smista.server.websocket_protocol.LINGER_S", PATIENCE_S),
        ):
            thread.start()
            eventually(lambda: self._server.started)
            yield self
            self.opened.set()
            self._server.should_exit = True
            thread.join()

    def pass_time(self, seconds: float) -> None:
        """Move the loop's time on, and wait until the door has looked for whoever is overdue by then."""
        self._loop.passed_s += seconds
        # A sweep that was held up leaves its work to the next.
        enough = self._sweep_count + 3
        eventually(lambda: self._sweep_count >= enough or self.connections._timer is None, every_s=SWEEP_S / 2)

    def pass_time_until(self, condition: Callable[[], bool], *, step_s: float) -> None:
        """Move the loop's time on, step by step: what a deadline counts from is not always to be seen from outside."""
        while not condition():
            self.pass_time(step_s)

    def on_loop(self, call: Callable[[], object]) -> None:
        """Have something called by the server's thread, and wait for that."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(call)
        self._loop.call_soon_threadsafe(done.set)
        assert done.wait(PATIENCE_S)

    def _counted_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep(loop)
        self._sweep_count += 1

    def connect(self, **options: int) -> Client:
        return Client(self.address, **options)

    @property
    def socket_count(self) -> int:
        """What uvicorn counts, turned away and closing ones among them."""
        return len(self._server.server_state.connections)

    @property
    def is_empty(self) -> bool:
        return self.connections.open_count == 0 and self.socket_count == 0

    @property
    def is_read_paused(self) -> bool:
        """Whether it has stopped reading from the one client there is."""
        for connection in list(self.connections._open):
            if isinstance(connection, WebSocketProtocol):
                return connection.read_paused
            assert isinstance(connection, HttpProtocol)
            return connection.flow.read_paused
        return False

    # -- the application ----------------------------------------------------------------------------------------------

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        _, action, *argument = scope["path"].split("/")
        self.seen.append(action)
        if action == "wait":
            await self._until_opened()
        answer = b"x" * int(argument[0]) if action == "large" else action.encode()
        body = answer if action in ("early", "large") else await self._read(receive)
        if action == "length":
            answer = str(len(body)).encode()
        if action == "headers":
            answer = b" ".join(name for name, _ in scope["headers"])
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]}
        )
        await send({"type": "http.response.body", "body": answer})

    async def _read(self, receive: Any) -> bytes:
        body = bytearray()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                self.seen.append("disconnect")
                return bytes(body)
            body += event["body"]
            if not event["more_body"]:
                return bytes(body)

    async def _websocket(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while scope["path"] == "/flood":
            await send({"type": "websocket.send", "bytes": b"x" * 50_000})
        if scope["path"] == "/wait":
            await self._until_opened()
        while (event := await receive())["type"] == "websocket.receive":
            await send({**event, "type": "websocket.send"})
        self.seen.append(f"disconnect {event['code']}")

    async def _until_opened(self) -> None:
        await asyncio.to_thread(self.opened.wait)


HANDSHAKE = (
    b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Opcode(enum.IntEnum):
    CONTINUATION = 0
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
