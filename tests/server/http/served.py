"""The HTTP server on a loop of its own, with a small application.

The time by which its deadlines are judged is moved by hand, so that no machine is too slow for them:

    served.pass_time(DEADLINE_S)    # and whoever is overdue has been dealt with
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self
from unittest import mock

import uvloop

from smista.protocols.stalled import StalledPeers
from smista.server.http.connection import HttpConnection
from smista.server.http.server import HttpServer
from smista.server.http.websocket_connection import WebSocketConnection
from smista.server.settings import ServerSettings
from tests.server.raw_http import Client
from tests.waiting import PATIENCE_S, eventually

SWEEP_S = 0.01
"""How often it looks for whoever is overdue."""


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


class Served:
    """Serves a small application. What the application saw is in `seen`; `opened` lets waiting requests go on."""

    def __init__(self, settings: ServerSettings) -> None:
        self.seen: list[str] = []
        self.opened = threading.Event()
        self.stalled = StalledPeers()
        self._server = HttpServer(self._application, settings, stalled=self.stalled)
        self.connections = self._server.connections
        self.connections._interval_s = SWEEP_S
        self._sweep_count = 0
        self._sweep = self.connections._sweep
        self.connections._sweep = self._counted_sweep  # type: ignore[method-assign]  # counted on the way
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()

    @contextlib.contextmanager
    def serving(self, loop_factory: LoopFactory) -> Iterator[Self]:
        started = threading.Event()

        async def serve() -> None:
            await self._server.start(self._listener)
            self._stopping = asyncio.Event()
            started.set()
            await self._stopping.wait()
            await self._server.stop(at_once=True)

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(serve())

        self._loop = loop_factory()
        thread = threading.Thread(target=run)
        # Whoever was refused has as long to read why as the slowest machine needs.
        with (
            mock.patch("smista.server.http.open_connection.LINGER_S", PATIENCE_S),
        ):
            thread.start()
            assert started.wait(PATIENCE_S)
            yield self
            self.opened.set()
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()

    def pass_time(self, seconds: float) -> None:
        """Move the loop's time on, and wait until the server has looked for whoever is overdue by then."""
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

    def make_room(self, bytes_max: int) -> None:
        """As when memory is low: those who stand still may keep so much."""
        self.on_loop(lambda: self.stalled.make_room(bytes_max))

    def begin_to_stop(self) -> None:
        """Stop in order, while whatever is under way may finish."""
        self.on_loop(lambda: setattr(self, "_stop", self._loop.create_task(self._server.stop())))

    def _counted_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep(loop)
        self._sweep_count += 1

    def connect(self, **options: int) -> Client:
        return Client(self.address, **options)

    @property
    def socket_count(self) -> int:
        """How many connections there are, turned away and closing ones among them."""
        return len(self.connections.all())

    @property
    def is_empty(self) -> bool:
        return self.socket_count == 0

    @property
    def is_read_paused(self) -> bool:
        """Whether it has stopped reading from the one client there is."""
        for connection in self.connections.all():
            assert isinstance(connection, HttpConnection | WebSocketConnection)
            return connection.flow.is_read_paused
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
        if action == "silent":
            return
        body = answer if action in ("early", "large") else await self._read(receive)
        if action == "poll":
            assert (await receive())["type"] == "http.disconnect"
            self.seen.append("disconnect")
        if action == "fail":
            raise LookupError("planted")
        if action == "length":
            answer = str(len(body)).encode()
        if action == "headers":
            answer = b" ".join(name for name, _ in scope["headers"])
        has_length = action not in ("pieces", "break")
        headers = [(b"content-length", b"%d" % len(answer))] if has_length else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if not has_length:
            await send({"type": "http.response.body", "body": b"piece", "more_body": True})
        if action == "break":
            raise LookupError("planted")
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
        if scope["path"] == "/silent":
            return
        if scope["path"] == "/refuse":
            await send({"type": "websocket.http.response.start", "status": 404, "headers": [(b"content-length", b"2")]})
            await send({"type": "websocket.http.response.body", "body": b"no"})
            return
        await send({"type": "websocket.accept"})
        if scope["path"] == "/fail":
            raise LookupError("planted")
        while scope["path"] == "/flood":
            await send({"type": "websocket.send", "bytes": b"x" * 50_000})
        if scope["path"] == "/wait":
            await self._until_opened()
        if scope["path"] == "/farewell":
            await self._until_opened()
            await send({"type": "websocket.send", "text": "last"})
            await send({"type": "websocket.close", "code": 1001, "reason": "stopping"})
        while (event := await receive())["type"] == "websocket.receive":
            await send({**event, "type": "websocket.send"})
        self.seen.append(f"disconnect {event['code']}")

    async def _until_opened(self) -> None:
        await asyncio.to_thread(self.opened.wait)
