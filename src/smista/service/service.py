"""The service: a broker as callers reach it, whatever protocol they speak."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.interface import Engine
from smista.errors import BrokerError
from smista.service import commands as commands  # imported so that all of them are there
from smista.service import properties
from smista.service.connection_room import ConnectionRoom
from smista.service.log_reading import LogReader
from smista.service.principal import Principal
from smista.service.session import LimitedSession, Session
from smista.service.staging.batches import Staging


class Service:
    """Made once for a broker, when it has recovered. `start` and `close` are for the work it does by itself.

    It is the broker's own: what a caller does goes through a `session`, which asks whether it may."""

    def __init__(
        self,
        engine: Engine,
        *,
        staging: Staging | None = None,
        log_reader: LogReader | None = None,
        connections: Callable[[], ConnectionRoom] = lambda: ConnectionRoom(0, None, None),
    ) -> None:
        """`staging` keeps staged batches, by default in a temporary folder; `log_reader` reads the log in bulk, None
        where nobody else can read it; `connections` counts those of all listeners."""
        self._engine = engine
        self.fair_turns = engine.fair_turns
        """For whoever has much to do: a slice of it in each turn of the loop."""
        self.ids = engine.ids
        """How messages are named."""
        self.staging = staging or Staging(engine)
        self.log_reader = log_reader
        self.connections = connections
        engine.read_routing_with(properties.read_routing)

    def session(self, principal: Principal, namespace: str = DEFAULT_NAMESPACE) -> Session:
        """A way in for one caller to one namespace. It holds nothing but these, and ends with its last use."""
        kind = Session if principal.grants is None else LimitedSession
        return kind(self, self._engine, principal, namespace)

    def has_namespace(self, name: str) -> bool:
        return name in self._engine.catalog.namespaces()

    # -- how it stands ------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The time by the broker's clock, which never goes back."""
        return self._engine.now_ms()

    @property
    def refusal(self) -> BrokerError | None:
        """Why publishes are refused just now: disk or memory is low."""
        return self._engine.intake.refusal

    @property
    def is_behind(self) -> bool:
        """Whether publishers have to wait for the log: `room`."""
        return self._engine.intake.is_behind

    async def room(self) -> None:
        """Return when publishers may go on."""
        await self._engine.intake.room()

    @property
    def failure(self) -> BaseException | None:
        """Why the broker has stopped, if it has: nothing is confirmed any more."""
        return self._engine.failure

    @property
    def is_over(self) -> bool:
        """Whether the broker has stopped or is closed, so that nothing can be done any more."""
        return self._engine.failure is not None or self._engine.is_closed

    # -- memory -------------------------------------------------------------------------------------------------------

    @property
    def memory_bytes_max(self) -> int:
        """How much memory all of it may take before publishes are refused."""
        return self._engine.intake.memory_bytes_max

    def count_in_memory(self, held_bytes: Callable[[], int], *, is_going_out: bool = False) -> None:
        """What a protocol holds that has not become messages, or that its clients have not read yet, counts there
        too."""
        self._engine.intake.count_in_memory(held_bytes, is_going_out=is_going_out)

    # -- the log ------------------------------------------------------------------------------------------------------

    async def durable(self) -> None:
        """Return when everything done so far is on disk."""
        await self._engine.durable()

    @property
    def is_log_full(self) -> bool:
        """Whether a block waits for room on a full disk."""
        return self._engine.log.is_full

    # -- work that belongs to nobody's session ------------------------------------------------------------------------

    def delete_queue(self, number: int, *, if_no_subscriptions: bool = False) -> None:
        """A queue that goes by itself, by its number: its name may be another's by now."""
        self._engine.declaring.delete_queue_now(number, if_no_subscriptions=if_no_subscriptions)

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin what comes to its end whoever waits for it: the broker closes after it."""
        return self._engine.background.run(work)

    def start(self) -> None:
        """Go on with the work that a stop or a crash interrupted."""
        self.staging.start()

    async def close(self) -> None:
        """Stop that work where it is; another start goes on."""
        await self.staging.close()
