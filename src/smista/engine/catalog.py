"""The catalog: what is declared, and where a message would go by it. Answered at once, from this process, by a version.

Nothing here changes anything or looks into a queue. So it stays as it is where the queues themselves lie in other
processes: whoever asks has a copy of it that follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smista.core.exchanges import Binding, Exchange, ExchangeSettings, Route, Work, explain, route
from smista.core.policies import Policy
from smista.core.settings import QueueSettings
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.running import Running
from smista.exchange_errors import ReachTooWide


class Catalog:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state

    def version(self, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Another number whenever exchanges, bindings or queues have changed."""
        return self._state.namespace(namespace).topology.version

    def namespaces(self) -> list[str]:
        return list(self._state.namespaces)

    # -- queues -------------------------------------------------------------------------------------------------------

    def has_queue(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> bool:
        space = self._state.namespaces.get(namespace)
        return space is not None and name in space.queues

    def queue_number(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """The number of the queue that has this name now."""
        return self._state.queue(name, namespace).number

    def queue_names(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
        self._running.enter()
        return list(self._state.namespace(namespace).queues)

    def queue_settings(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> QueueSettings:
        return self._state.queue(name, namespace).settings

    def declared_settings(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> QueueSettings:
        """What a queue was declared with, or altered to: what it has where no policy says otherwise."""
        return self._state.queue(name, namespace).declared

    @property
    def body_bytes_max(self) -> int:
        """The largest body a queue takes unless it says otherwise."""
        return self._state.body_bytes_max

    def body_limit(self, queue: str, *, namespace: str = DEFAULT_NAMESPACE) -> tuple[int, str]:
        """The largest body that this queue takes; and, for errors, the policy that says so, if one does."""
        found = self._state.queue(queue, namespace)
        return self._state.body_limit(found), self._state.by_policy(found, "body_bytes_max")

    # -- policies -----------------------------------------------------------------------------------------------------

    def policies(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[Policy]:
        """Those of a namespace, the one that wins first."""
        space = self._state.namespaces.get(namespace)
        return [] if space is None else list(space.policies)

    def policy_of(self, queue: str, *, namespace: str = DEFAULT_NAMESPACE) -> tuple[str | None, dict[str, Any]]:
        """The policy that holds for a queue, and the settings that the queue has by it."""
        found = self._state.queue(queue, namespace)
        policy = None if found.policy is None else self._state.namespace(namespace).policies.find(found.policy)
        if policy is None:
            return None, {}
        return policy.name, policy.gives(found.declared, found.settings)

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def exchanges(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[Exchange]:
        return list(self._state.namespace(namespace).topology.exchanges())

    def exchange_settings(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> ExchangeSettings:
        return self._state.namespace(namespace).topology.exchange(name).settings

    def bindings(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[Binding]:
        return list(self._state.namespace(namespace).topology.bindings())

    # -- routing ------------------------------------------------------------------------------------------------------

    def queues_for(
        self,
        exchange: str,
        routing_key: str,
        *,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        work: Work | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> tuple[str, ...]:
        """The queues a message would go to, however many; the same as long as `version` is, if no headers are looked
        at. `work` says afterwards what it took to find them."""
        space = self._state.namespace(namespace)
        space.topology.check_publish(exchange)
        exists = space.queues.__contains__
        return route(
            space.topology, exchange, routing_key, headers, exists, extra_keys, queues_max=None, work=work
        ).queues

    def looks_at_headers(self, exchange: str, *, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """Whether a headers exchange is on the way from here: `queues_for` then depends on the headers too."""
        return self._state.namespace(namespace).topology.looks_at_headers(exchange)

    def route(
        self,
        exchange: str,
        routing_key: str,
        *,
        headers: Mapping[str, object] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Route:
        """Dry run: where a message would go, and by which bindings."""
        space = self._state.namespace(namespace)
        return explain(space.topology, exchange, routing_key, headers, space.queues.__contains__)

    def reached(self, exchange: str, routing_key: str, *, namespace: str = DEFAULT_NAMESPACE) -> tuple[str, ...]:
        """The queues an exchange leads to by this key; none where it is not there, or leads to very many exchanges."""
        space = self._state.namespace(namespace)
        if space.topology.find(exchange) is None:
            return ()
        try:
            return route(space.topology, exchange, routing_key, None, space.queues.__contains__, queues_max=None).queues
        except ReachTooWide:
            return ()
