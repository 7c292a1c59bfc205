"""A broker that says what a test tells it to, for what a real one says only on a bad day."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from smista.client.wire import SUBPROTOCOL

Answering = Callable[[dict[str, Any]], dict[str, Any] | None]


class FakeBroker:
    """`answer` is called with each request, and returns what to answer, without the id; None for no answer."""

    def __init__(self, answer: Answering, *, subprotocol: str = SUBPROTOCOL) -> None:
        self._answer = answer
        self._subprotocol = subprotocol
        self._server: Server | None = None
        self.connections: list[ServerConnection] = []
        self.requests: list[dict[str, Any]] = []
        self.address = ""

    async def __aenter__(self) -> FakeBroker:
        self._server = await serve(
            self._serve, "127.0.0.1", 0, subprotocols=[Subprotocol(self._subprotocol)], compression=None
        )
        [listener, *_] = self._server.sockets
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def push(self, value: object) -> None:
        await self.connections[-1].send(msgspec.msgpack.encode(value))

    async def _serve(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        with contextlib.suppress(ConnectionClosed):
            async for data in connection:
                assert isinstance(data, bytes)
                request = msgspec.msgpack.decode(data)
                self.requests.append(request)
                answer = self._answer(request)
                if answer is not None:
                    await connection.send(msgspec.msgpack.encode({"id": request["id"], **answer}))
