"""uvicorn's server, with our way to stop.

    stop ──▶ no new connections; idle ones are closed, what is under way may finish, those who stand still get 5 s
         ──▶ after `drain_timeout_s`: who waits for an answer is told that it is unknown, all else is cut off

uvicorn would cancel what is left, log each of them as an error of the application, and answer 500 in plain text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from smista.protocols.http.access import SECURITY_HEADERS
from smista.protocols.places import Places
from smista.protocols.turns import Turns
from smista.server.http_protocol import HttpProtocol, make_protocol
from smista.server.listening import BACKLOG, beginning_to_accept
from smista.server.logs import fields
from smista.server.settings import ServerSettings
from smista.server.websocket_protocol import WebSocketProtocol

logger = logging.getLogger("smista.server")

HTTP_FLAG = "--http-port"
LOOK_S = 0.05
"""How often to look whether all have gone."""
CUT_OFF_S = 1.0
"""How long those who were told may take to read it."""


class HttpServer(uvicorn.Server):
    def __init__(self, application: Any, settings: ServerSettings, turns: Turns, places: Places) -> None:
        protocol = make_protocol(settings, turns, places)
        self.connections = protocol.shared
        super().__init__(
            uvicorn.Config(
                application,
                http=protocol,
                ws=WebSocketProtocol,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                headers=[(name.decode(), value.decode()) for name, value in SECURITY_HEADERS],
                proxy_headers=False,
                backlog=BACKLOG,
            )
        )
        self._drain_timeout_s = settings.drain_timeout_s

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are for whoever runs us

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        with beginning_to_accept(sockets[0], HTTP_FLAG):
            await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if not await self._is_over_within(0.0 if self.force_exit else self._drain_timeout_s):
            await self._cut_off()

    async def _cut_off(self) -> None:
        connections, tasks = self.server_state.connections, self.server_state.tasks
        if not self.force_exit:
            logger.warning(
                "cutting off what has not finished: drain_timeout_s is over",
                extra=fields(connections=len(connections), requests=len(tasks)),
            )
        for connection in list(connections):
            assert isinstance(connection, HttpProtocol | WebSocketProtocol)
            connection.cut_off()
        # After that: what they still have to say is heard by nobody.
        for task in list(tasks):
            task.cancel()
        if not await self._is_over_within(CUT_OFF_S):
            for connection in list(connections):
                connection.transport.abort()

    async def _is_over_within(self, seconds: float) -> bool:
        """Whether all connections and requests are over, by then at the latest."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while self.server_state.connections or self.server_state.tasks:
            if loop.time() >= end_s:
                return False
            await asyncio.sleep(min(LOOK_S, end_s - loop.time()))
        return True
