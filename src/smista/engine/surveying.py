"""Looking at very many queues, exchanges and bindings: in slices, and those who ask at the same time take turns.

What is found in one turn of the loop may be gone in the next. A page holds what was there when its turn came.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from smista.core.exchanges import Binding, Exchange, ReachTooWide, route
from smista.core.queue import Queue
from smista.core.settings import QueueSettings
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.looking import LookingBroker

NAMES_AT_ONCE = 10_000
"""How many names, or bindings, are looked at before the rest of the loop has its turn: some 2 ms ..."""
QUEUES_AT_ONCE = 2_000
"""... and how many queues, of which more is asked than their names."""


class SurveyingBroker(LookingBroker):
    # -- pages --------------------------------------------------------------------------------------------------------

    async def queue_page(
        self, *, prefix: str = "", after: str = "", limit: int, namespace: str = DEFAULT_NAMESPACE
    ) -> list[str]:
        """The first names of queues in their order, of those that begin with `prefix` and come after `after`."""
        return await self._first(self._state.namespace(namespace).queues, prefix, after, limit)

    async def exchange_page(
        self, *, after: str | None = None, limit: int, namespace: str = DEFAULT_NAMESPACE
    ) -> list[Exchange]:
        """The first exchanges in the order of their names, of those after `after`."""
        topology = self._state.namespace(namespace).topology
        names = await self._first(topology.names(), "", after, limit)
        return [exchange for name in names if (exchange := topology.find(name)) is not None]

    def binding_page(
        self, exchange: str | None = None, *, after: int = 0, limit: int, namespace: str = DEFAULT_NAMESPACE
    ) -> list[Binding]:
        """Bindings from an exchange, or all, in the order they are kept in: those behind the first `after` of them."""
        topology = self._state.namespace(namespace).topology
        return topology.some_bindings(exchange, after, limit)

    async def _first(self, names: Iterable[str], prefix: str, after: str | None, limit: int) -> list[str]:
        """The lowest of very many names, without putting all of them in order."""
        there = list(names)
        found: list[str] = []
        for start in range(0, len(there), NAMES_AT_ONCE):
            if start:
                await self.lane.turn()
            some = there[start : start + NAMES_AT_ONCE]
            found += [name for name in some if (after is None or name > after) and name.startswith(prefix)]
            if len(found) > limit:
                found = heapq.nsmallest(limit, found)
        return sorted(found)

    # -- all queues ---------------------------------------------------------------------------------------------------

    async def totals(self) -> tuple[int, int]:
        """How many queues there are, in all namespaces, and how many messages they hold, in any state."""
        self._enter_within_limits()
        queues = messages = 0
        async for some in self._in_slices(self._state.queues.values()):
            for queue in some:
                if not queue.is_deleted:
                    queues += 1
                    messages += queue.message_count
        return queues, messages

    async def queues_where(
        self, accepts: Callable[[str, QueueSettings], bool], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[str]:
        """The names of the queues that are accepted by name and settings."""
        found: list[str] = []
        async for some in self._in_slices(self._state.namespace(namespace).queues.values()):
            found += [queue.name for queue in some if not queue.is_deleted and accepts(queue.name, queue.settings)]
        return found

    async def _in_slices(self, queues: Iterable[Queue]) -> AsyncIterator[Sequence[Queue]]:
        """All of them, also those that are deleted meanwhile."""
        there = list(queues)
        for start in range(0, len(there), QUEUES_AT_ONCE):
            if start:
                await self.lane.turn()
            yield there[start : start + QUEUES_AT_ONCE]

    # -- where dead letters go ----------------------------------------------------------------------------------------

    async def distinct_settings(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[QueueSettings]:
        """The settings there are. Queues declared alike share theirs, so that of 100,000 queues there are few."""
        found: dict[int, QueueSettings] = {}
        async for some in self._in_slices(self._state.namespace(namespace).queues.values()):
            found |= {id(queue.settings): queue.settings for queue in some}
        return list(found.values())

    def reached(self, exchange: str, routing_key: str, *, namespace: str = DEFAULT_NAMESPACE) -> tuple[str, ...]:
        """The queues an exchange leads to by this key; none where it is not there, or leads to very many exchanges."""
        space = self._state.namespace(namespace)
        if space.topology.find(exchange) is None:
            return ()
        try:
            return route(space.topology, exchange, routing_key, None, space.queues.__contains__, queues_max=None).queues
        except ReachTooWide:
            return ()

    async def queues_behind(self, exchange: str, *, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
        """The queues an exchange leads to, itself or through others, by whatever key."""
        topology = self._state.namespace(namespace).topology
        queues: dict[str, None] = {}
        seen, pending = {exchange}, deque([exchange])
        work = 0
        while pending:
            found = topology.find(pending.popleft())
            for binding in () if found is None else tuple(found.bindings):
                if binding.destination_kind == "queue":
                    queues[binding.destination] = None
                elif binding.destination not in seen:
                    seen.add(binding.destination)
                    pending.append(binding.destination)
                work += 1
                if work % NAMES_AT_ONCE == 0:
                    await self.lane.turn()
        return list(queues)

    async def exchanges_before(self, queue: str, *, namespace: str = DEFAULT_NAMESPACE) -> set[str]:
        """The exchanges that lead to a queue, themselves or through others, by whatever key."""
        topology = self._state.namespace(namespace).topology
        found: set[str] = set()
        pending = deque([topology.bindings_of_queue(queue)])
        work = 0
        while pending:
            for binding in pending.popleft():
                if binding.source not in found:
                    found.add(binding.source)
                    pending.append(topology.bindings_of_exchange(binding.source))
                work += 1
                if work % NAMES_AT_ONCE == 0:
                    await self.lane.turn()
        return found
