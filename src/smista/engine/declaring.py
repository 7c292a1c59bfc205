"""Queues and exchanges of a running broker: declared, altered, deleted, asked about. The rules are in the core."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from smista.core import browsing, declaring, governing
from smista.core.claims import claimants
from smista.core.counters import QueueStats
from smista.core.exchanges import Binding, Exchange, ExchangeSettings, Route, Work, explain, route
from smista.core.governing import Governing
from smista.core.message import Receipt
from smista.core.policies import Policy
from smista.core.settings import DEFAULT, IfExists, QueueSettings
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.staging import StagingBroker
from smista.errors import BrokerClosed, BrokerStopped

GOVERNED_FIRST = 1_000
"""How much work is done at once for a policy, see `core/governing`: some 80 queues ..."""
GOVERNED_AT_ONCE = 10_000
"""... and how much whenever its turn comes: some 4 ms."""


class DeclaringBroker(StagingBroker):
    # -- queues -------------------------------------------------------------------------------------------------------

    async def declare_queue(
        self,
        name: str,
        settings: QueueSettings = DEFAULT,
        *,
        if_exists: IfExists = IfExists.SAME,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Make a queue, or see that it is there: with these settings, or by `if_exists` with whatever it has."""
        self.declare_queue_now(name, settings, if_exists=if_exists, namespace=namespace)
        await self._keeper.durable()

    def declare_queue_now(
        self,
        name: str,
        settings: QueueSettings = DEFAULT,
        *,
        if_exists: IfExists = IfExists.SAME,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int:
        """The queue's number, which stays its own: another queue of its name, later, has another."""
        now_ms = self._enter()
        queue = declaring.declare_queue(
            self._state, name, settings, if_exists=if_exists, namespace=namespace, now_ms=now_ms
        )
        self._after()
        return queue.number

    async def alter_queue(
        self, name: str, settings: QueueSettings, *, namespace: str = DEFAULT_NAMESPACE
    ) -> QueueSettings:
        """Give a queue other settings; returns what it has now, which is something else where a policy says so."""
        now_ms = self._enter()
        queue = self._state.queue(name, namespace)
        declaring.alter_queue(self._state, queue, settings, now_ms=now_ms)
        self._consumers.settings_changed(queue)
        present = queue.settings
        await self._done_durably()
        return present

    async def delete_queue(
        self,
        name: str,
        *,
        if_empty: bool = False,
        if_unused: bool = False,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int:
        """Delete a queue; returns how many messages went with it. Those who wait on it get `QueueDeleted`."""
        now_ms = self._enter_within_limits()
        queue = self._state.queue(name, namespace)
        depth = declaring.delete_queue(self._state, queue, if_empty=if_empty, if_unused=if_unused, now_ms=now_ms)
        self._consumers.end(queue)
        await self._done_durably()
        return depth

    def delete_queue_now(self, number: int, *, if_no_subscriptions: bool = False) -> bool:
        """Delete the queue of this number, whatever its name names by now; False where it is gone, or subscribed to."""
        now_ms = self._enter_within_limits()
        queue = self._state.queues.get(number)
        if queue is None or (if_no_subscriptions and self._consumers.count(queue)):
            return False
        declaring.delete_queue(self._state, queue, now_ms=now_ms)
        self._consumers.end(queue)
        self._after()
        return True

    def has_queue(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> bool:
        space = self._state.namespaces.get(namespace)
        return space is not None and name in space.queues

    def queue_number(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """The number of the queue that has this name now."""
        return self._state.queue(name, namespace).number

    def use_queue(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Somebody asked for the queue: one that is deleted when nobody uses it lives on from here."""
        self._state.queue(name, namespace).used_at_ms = self._enter()

    async def purge(self, name: str, *, ready_only: bool = False, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Remove exactly what is in the queue now; returns how many messages that was."""
        now_ms = self._enter_within_limits()
        count = declaring.purge(self._state, self._state.queue(name, namespace), ready_only=ready_only, now_ms=now_ms)
        await self._done_durably()
        return count

    async def pause(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Hand out nothing from this queue until it is resumed; publishing goes on."""
        self._enter()
        declaring.pause(self._state, self._state.queue(name, namespace), is_paused=True)
        await self._done_durably()

    async def resume(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._enter()
        declaring.pause(self._state, self._state.queue(name, namespace), is_paused=False)
        await self._done_durably()

    def queue_names(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
        self._enter()
        return list(self._state.namespace(namespace).queues)

    def namespaces(self) -> list[str]:
        return list(self._state.namespaces)

    def queue_settings(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> QueueSettings:
        return self._state.queue(name, namespace).settings

    def declared_settings(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> QueueSettings:
        """What a queue was declared with, or altered to: what it has where no policy says otherwise."""
        return self._state.queue(name, namespace).declared

    def is_receipt_of(self, receipt: Receipt, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """Whether a receipt was given out for a message of this queue."""
        return self._state.queue(name, namespace).number == receipt.queue

    def message_count(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """How many messages a queue holds, in any state; cheaper than all its statistics."""
        self._enter_within_limits()
        return self._state.queue(name, namespace).message_count

    def stats(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> QueueStats:
        now_ms = self._enter_within_limits()
        queue = self._state.queue(name, namespace)
        return browsing.stats(
            queue,
            consumers=self._consumers.count(queue),
            claimants=claimants(self._state, queue),
            now_ms=now_ms,
        )

    # -- policies -----------------------------------------------------------------------------------------------------

    async def set_policy(
        self,
        name: str,
        pattern: str,
        settings: Mapping[str, Any],
        *,
        priority: int = 0,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int:
        """Give settings to all queues whose names match a pattern, now and later; returns how many have them now, when
        all that are there have taken them up."""
        self._enter()
        policy = Policy(name, pattern, priority, settings)
        return await self._govern(governing.set_policy(self._state, namespace, policy))

    async def delete_policy(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """The queues for which it held have another one's settings from now on, or what they were declared with."""
        self._enter()
        await self._govern(governing.delete_policy(self._state, namespace, name))

    async def _govern(self, left: Governing) -> int:
        self._govern_some(left, GOVERNED_FIRST)
        if not left.is_done:
            # Whoever asked for it may be gone: the policy is in force, so all have to have it.
            await asyncio.shield(self.run_errand(self._govern_rest(left)))
            if not left.is_done:
                # Says why.
                self._enter()
        await self._done_durably()
        return left.count

    async def _govern_rest(self, left: Governing) -> None:
        while not left.is_done:
            await self.lane.turn()
            try:
                self._govern_some(left, GOVERNED_AT_ONCE)
            except (BrokerClosed, BrokerStopped):
                # Whoever opens the log again finds the policy in it.
                return

    def _govern_some(self, left: Governing, work_max: int) -> None:
        for queue in left.go_on(work_max, now_ms=self._enter()):
            self._consumers.settings_changed(queue)
        self._after()

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

    async def declare_exchange(
        self, name: str, settings: ExchangeSettings, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        self._enter()
        declaring.declare_exchange(self._state, name, settings, namespace=namespace)
        await self._done_durably()

    async def delete_exchange(self, name: str, *, if_unused: bool = False, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._enter()
        declaring.delete_exchange(self._state, self._state.namespace(namespace), name, if_unused=if_unused)
        await self._done_durably()

    async def bind(self, binding: Binding, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._enter()
        declaring.bind(self._state, self._state.namespace(namespace), binding)
        await self._done_durably()

    async def unbind(self, binding: Binding, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._enter()
        declaring.unbind(self._state, self._state.namespace(namespace), binding)
        await self._done_durably()

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
        """The queues a message would go to, however many; the same as long as `topology_version` is, if no headers are
        looked at. `work` says afterwards what it took to find them."""
        space = self._state.namespace(namespace)
        space.topology.check_publish(exchange)
        exists = space.queues.__contains__
        return route(
            space.topology, exchange, routing_key, headers, exists, extra_keys, queues_max=None, work=work
        ).queues

    def looks_at_headers(self, exchange: str, *, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """Whether a headers exchange is on the way from here: `queues_for` then depends on the headers too."""
        return self._state.namespace(namespace).topology.looks_at_headers(exchange)

    def topology_version(self, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Another number whenever exchanges, bindings or queues have changed."""
        return self._state.namespace(namespace).topology.version

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
