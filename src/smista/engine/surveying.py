"""Listing very many queues, exchanges and bindings: in slices, and those who ask at the same time take turns.

What is found in one turn of the loop may be gone in the next. A page holds what was there when its turn came.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from smista.core.exchanges import Binding, Exchange, Topology
from smista.core.settings import QueueSettings
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.running import Running

NAMES_AT_ONCE = 10_000
"""How many names, or bindings, are looked at before the rest of the loop has its turn: some 2 ms ..."""
QUEUES_AT_ONCE = 2_000
"""... and how many queues, of which more is asked than their names."""


class Surveying:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state

    # -- pages --------------------------------------------------------------------------------------------------------

    async def queue_page(
        self,
        *,
        prefix: str = "",
        after: str = "",
        limit: int,
        accepts: Callable[[str, QueueSettings], bool] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[str]:
        """The first names of queues in their order, of those that begin with `prefix`, come after `after` and are
        accepted by name and settings."""
        names: Iterable[str] = self._state.namespace(namespace).queues
        if accepts is not None:
            names = await self.queues_where(accepts, namespace=namespace)
        return await self._first(names, prefix, after, limit)

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
        found: list[str] = []
        async for some in self._running.fair_turns.slices(list(names), NAMES_AT_ONCE):
            found += [name for name in some if (after is None or name > after) and name.startswith(prefix)]
            if len(found) > limit:
                found = heapq.nsmallest(limit, found)
        return sorted(found)

    # -- all queues ---------------------------------------------------------------------------------------------------

    async def queues_where(
        self, accepts: Callable[[str, QueueSettings], bool], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[str]:
        """The names of the queues that are accepted by name and settings."""
        found: list[str] = []
        queues = list(self._state.namespace(namespace).queues.values())
        async for some in self._running.fair_turns.slices(queues, QUEUES_AT_ONCE):
            found += [queue.name for queue in some if not queue.is_deleted and accepts(queue.name, queue.settings)]
        return found

    # -- where dead letters go ----------------------------------------------------------------------------------------

    async def distinct_settings(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[QueueSettings]:
        """The settings there are. Queues declared alike share theirs, so that of 100,000 queues there are few."""
        found: dict[int, QueueSettings] = {}
        queues = list(self._state.namespace(namespace).queues.values())
        async for some in self._running.fair_turns.slices(queues, QUEUES_AT_ONCE):
            found |= {id(queue.settings): queue.settings for queue in some}
        return list(found.values())

    async def queues_behind(self, exchange: str, *, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
        """The queues an exchange leads to, itself or through others, by whatever key."""
        queues: dict[str, None] = {}
        bindings = _bindings_behind(self._state.namespace(namespace).topology, exchange)
        async for some in self._running.fair_turns.slices(bindings, NAMES_AT_ONCE):
            queues |= {binding.destination: None for binding in some if binding.destination_kind == "queue"}
        return list(queues)

    async def exchanges_before(self, queue: str, *, namespace: str = DEFAULT_NAMESPACE) -> set[str]:
        """The exchanges that lead to a queue, themselves or through others, by whatever key."""
        found: set[str] = set()
        bindings = _bindings_before(self._state.namespace(namespace).topology, queue)
        async for some in self._running.fair_turns.slices(bindings, NAMES_AT_ONCE):
            found |= {binding.source for binding in some}
        return found


def _bindings_behind(topology: Topology, exchange: str) -> Iterator[Binding]:
    """The bindings of an exchange, and of all it leads to, as they are when it is their turn."""
    seen, pending = {exchange}, deque([exchange])
    while pending:
        found = topology.find(pending.popleft())
        for binding in () if found is None else tuple(found.bindings):
            if binding.destination_kind != "queue" and binding.destination not in seen:
                seen.add(binding.destination)
                pending.append(binding.destination)
            yield binding


def _bindings_before(topology: Topology, queue: str) -> Iterator[Binding]:
    """The bindings to a queue, and to all that leads to it, as they are when it is their turn."""
    seen: set[str] = set()
    pending = deque([topology.bindings_of_queue(queue)])
    while pending:
        for binding in pending.popleft():
            if binding.source not in seen:
                seen.add(binding.source)
                pending.append(topology.bindings_of_exchange(binding.source))
            yield binding
