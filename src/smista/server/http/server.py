"""The HTTP server: it accepts connections, and stops in order.

stop ──▶ no new connections; idle ones are closed, what is under way may finish, those who stand still get 5 s
     ──▶ after `drain_timeout_s`: who waits for an answer reads that it is unknown, all else is cut off
"""

from __future__ import annotations

import asyncio
import logging
import socket

from smista.protocols.places import Places
from smista.protocols.stalled import StalledPeers
from smista.protocols.turns import Turns
from smista.server.http.connection import HttpConnection
from smista.server.http.context import Application, Context
from smista.server.listening import BACKLOG, beginning_to_accept
from smista.server.logs import fields
from smista.server.settings import ServerSettings

logger = logging.getLogger("smista.server")

HTTP_FLAG = "--http-port"
POLL_S = 0.05
"""How often to ask whether all have gone."""
CUT_OFF_S = 1.0
"""How long those who get an answer at the last moment may take to read it."""


class HttpServer:
    def __init__(
        self,
        application: Application,
        settings: ServerSettings,
        turns: Turns | None = None,
        places: Places | None = None,
        stalled: StalledPeers | None = None,
    ) -> None:
        self._context = Context(application, settings, turns or Turns(), places or Places(), stalled or StalledPeers())
        self.connections = self._context.connections
        self._drain_timeout_s = settings.drain_timeout_s
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accept connections on `listener`, which is closed at the stop. Raises `CannotListen`."""
        loop = asyncio.get_running_loop()
        with beginning_to_accept(listener, HTTP_FLAG):
            self._server = await loop.create_server(
                lambda: HttpConnection(self._context), sock=listener, backlog=BACKLOG
            )

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop, and wait until all connections and requests are over. May be called again."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._context.is_stopping = True
        for connection in self.connections.all():
            connection.shut_down()
        if not await self._is_over_within(0.0 if at_once else self._drain_timeout_s):
            await self._cut_off(is_unexpected=not at_once)

    async def _cut_off(self, *, is_unexpected: bool) -> None:
        works = self._context.works
        if is_unexpected:
            logger.warning(
                "cutting off what has not finished: drain_timeout_s is over",
                extra=fields(connections=len(self.connections.all()), requests=len(works)),
            )
        for connection in self.connections.all():
            connection.cut_off()
        # After that, since nobody hears their answers any more.
        for work in list(works):
            work.task.cancel()
        if not await self._is_over_within(CUT_OFF_S):
            for connection in self.connections.all():
                connection.abort()

    async def _is_over_within(self, seconds: float) -> bool:
        """Whether all connections and requests are over, by then at the latest."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while self.connections.all() or self._context.works:
            if loop.time() >= end_s:
                return False
            await asyncio.sleep(min(POLL_S, end_s - loop.time()))
        return True
