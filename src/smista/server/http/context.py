"""What all connections of a server share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol

from smista.protocols.faults import Faults
from smista.protocols.http.access import SECURITY_HEADERS
from smista.protocols.places import Places
from smista.protocols.stalled import StalledPeers
from smista.protocols.turns import Turns
from smista.server.http.connections import Connections
from smista.server.http.responses import StandardHeaders
from smista.server.settings import ServerSettings

logger = logging.getLogger("smista.server")

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class Work(Protocol):
    """A request, or a WebSocket, that the application is at work on."""

    task: asyncio.Task[None]


class Context:
    def __init__(
        self,
        application: Application,
        settings: ServerSettings,
        turns: Turns,
        places: Places,
        stalled: StalledPeers,
    ) -> None:
        self.application = application
        self.settings = settings
        self.turns = turns
        self.connections = Connections(settings, places)
        self.stalled = stalled
        stalled.look_at(self.connections.all)
        self.standard = StandardHeaders(SECURITY_HEADERS)
        self.faults = Faults(logger)
        self.is_stopping = False
        self.works: set[Work] = set()
        """What the application is at work on, also for clients that have gone."""
