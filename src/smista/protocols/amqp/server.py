"""The server of AMQP: a protocol for each connection, and the end of all of them."""

from __future__ import annotations

import asyncio
import contextlib

from smista.protocols.amqp import users
from smista.protocols.amqp.adapter import AmqpAdapter
from smista.protocols.amqp.settings import AmqpSettings
from smista.protocols.amqp.shared import PrincipalOf, Shared
from smista.protocols.places import Places
from smista.protocols.stalled import StalledPeers
from smista.protocols.turns import Turns
from smista.service.service import Service

DRAIN_S = 2.0


class AmqpServer:
    """Makes a protocol per connection; see `make_protocol`."""

    def __init__(
        self,
        service: Service,
        settings: AmqpSettings | None = None,
        turns: Turns | None = None,
        places: Places | None = None,
        stalled: StalledPeers | None = None,
        principal_of: PrincipalOf = users.principal_of,
    ) -> None:
        """`principal_of` says who a user is that has logged in, and so what it may do."""
        service.count_in_memory(self.kept_bytes)
        service.count_in_memory(self.output_bytes, is_going_out=True)
        self.shared = Shared(
            service,
            settings or AmqpSettings(),
            turns or Turns(),
            places or Places(),
            stalled or StalledPeers(),
            principal_of,
        )
        self.shared.places.count(lambda: len(self.shared.connections))

    def make_protocol(self) -> AmqpAdapter:
        return AmqpAdapter(self.shared)

    def kept_bytes(self) -> int:
        """What has come in and is not the broker's yet."""
        return sum(connection.kept_bytes for connection in self.shared.connections)

    def output_bytes(self) -> int:
        """What has left the broker and is not taken."""
        return sum(connection.peer.waiting_bytes for connection in self.shared.connections)

    async def drain(self) -> None:
        """Tell every client that the broker is stopping, and wait until they are gone or had their time.

        Nothing more is taken, and what was taken is on disk and confirmed before: a client has to publish again only
        what it knows nothing of.
        """
        shared = self.shared
        shared.is_draining = True
        shared.all_left.clear()
        for connection in shared.connections:
            connection.stop_reading()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                for connection in list(shared.connections):
                    await connection.until_answered()
        for connection in list(shared.connections):
            connection.force_close()
        if shared.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(shared.all_left.wait(), DRAIN_S)
        for connection in list(shared.connections):
            connection.abort()
        shared.close()
