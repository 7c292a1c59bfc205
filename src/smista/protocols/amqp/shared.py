"""What all AMQP connections of a server share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from smista.errors import LowMemory
from smista.protocols.amqp.leaving import Leaving
from smista.protocols.amqp.leaving_queues import LeavingQueues
from smista.protocols.amqp.reply_to import ReplyTo
from smista.protocols.amqp.served import ServedConnection
from smista.protocols.amqp.settings import AmqpSettings
from smista.protocols.amqp.wire.channel import ChannelState
from smista.protocols.places import Places
from smista.protocols.refusing import Refusing
from smista.protocols.stalled import StalledPeers
from smista.protocols.turns import Turns
from smista.service.principal import Principal
from smista.service.service import Service

logger = logging.getLogger("smista.amqp")

WATCH_S = 0.1
PrincipalOf = Callable[[str, str], Principal]
"""Who a user is, by its name and where it comes from."""


class Shared:
    def __init__(
        self,
        service: Service,
        settings: AmqpSettings,
        turns: Turns,
        places: Places,
        stalled: StalledPeers,
        principal_of: PrincipalOf,
    ) -> None:
        self.service = service
        self.principal_of = principal_of
        self.settings = settings
        self.turns = turns
        self.places = places
        self.connections: set[ServedConnection] = set()
        self.all_left = asyncio.Event()
        self.stalled = stalled
        stalled.look_at(lambda: [connection.peer for connection in self.connections])
        self.queues = LeavingQueues(service)
        self.leaving_channels = Leaving(service, ChannelState.end)
        self.reply_to = ReplyTo()
        self.is_draining = False
        self.refusing = Refusing(logger, protocol="amqp")
        """Connections that are not let in ..."""
        self.refusing_logins = Refusing(logger, "logins are refused", protocol="amqp")
        """... and logins, apart from them: clients choose the names in those lines."""
        self.closing = Refusing(logger, "connections are closed", level=logging.INFO, protocol="amqp")
        """Connections that were let in and have done something wrong, or are gone ..."""
        self.closing_channels = Refusing(logger, "channels are closed", level=logging.INFO, protocol="amqp")
        """... and single channels of theirs."""
        self._watching: asyncio.Task[None] | None = None
        """While publishes are refused and somebody waits for the end of that."""

    def why_full(self) -> str | None:
        """Why no connection is let in any more; None where there is room."""
        connections_max = self.settings.connections_max
        if len(self.connections) >= connections_max:
            return f"{connections_max} connections are open, which is the limit, connections_max"
        return self.places.why_full if self.places.is_full else None

    def left(self, connection: ServedConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.all_left.set()

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for lines in (self.refusing, self.refusing_logins, self.closing, self.closing_channels):
            lines.close()

    # -- holding publishers back --------------------------------------------------------------------------------------

    def refusal_text(self) -> str:
        """Why publishers are held back, in RabbitMQ's words."""
        return "low on memory" if isinstance(self.service.refusal, LowMemory) else "low on disk"

    async def until_publishes_are_taken(self) -> None:
        """Return at once, or when the broker does no longer refuse publishes."""
        while self.service.refusal is not None:
            if self._watching is None:
                self._watching = asyncio.get_running_loop().create_task(self._watch())
            await asyncio.shield(self._watching)

    async def _watch(self) -> None:
        try:
            while self.service.refusal is not None:  # noqa: ASYNC110 (one for all that wait, and rare)
                await asyncio.sleep(WATCH_S)
        finally:
            self._watching = None
