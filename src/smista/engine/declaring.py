"""Queues, exchanges and policies of a running broker: declared, altered, deleted. The rules are in the core."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from smista.core import declaring, governing
from smista.core.exchanges import Binding, ExchangeSettings
from smista.core.governing import Governing
from smista.core.policies import Policy
from smista.core.settings import DEFAULT, IfExists, QueueSettings
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.running import Running
from smista.engine.tickets import Ticket
from smista.errors import BrokerClosed, BrokerError, BrokerStopped

GOVERNED_FIRST = 1_000
"""How much work is done at once for a policy, see `core/governing`: some 80 queues ..."""
GOVERNED_AT_ONCE = 10_000
"""... and how much whenever its turn comes: some 4 ms."""


class Declaring:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state
        self._keeper = running.keeper

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
        self._declare_queue(name, settings, namespace, if_exists)
        await self._keeper.durable()

    def submit_queue(
        self, name: str, settings: QueueSettings = DEFAULT, *, namespace: str = DEFAULT_NAMESPACE
    ) -> Ticket[int]:
        """As `declare_queue`: the queue's number."""
        try:
            return self._running.tickets.done(self._declare_queue(name, settings, namespace))
        except BrokerError as error:
            return self._running.tickets.refused(error)

    def _declare_queue(
        self, name: str, settings: QueueSettings, namespace: str, if_exists: IfExists = IfExists.SAME
    ) -> int:
        """The queue's number, which stays its own: another queue of its name, later, has another."""
        now_ms = self._running.enter()
        queue = declaring.declare_queue(
            self._state, name, settings, if_exists=if_exists, namespace=namespace, now_ms=now_ms
        )
        self._running.after()
        return queue.number

    async def alter_queue(
        self, name: str, settings: QueueSettings, *, namespace: str = DEFAULT_NAMESPACE
    ) -> QueueSettings:
        """Give a queue other settings; returns what it has now, which is something else where a policy says so."""
        now_ms = self._running.enter()
        queue = self._state.queue(name, namespace)
        declaring.alter_queue(self._state, queue, settings, now_ms=now_ms)
        self._running.consumers.settings_changed(queue)
        present = queue.settings
        await self._running.done_durably()
        return present

    async def delete_queue(
        self,
        name: str,
        *,
        if_empty: bool = False,
        if_unused: bool = False,
        waiting_only: bool = False,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int:
        """Delete a queue; returns how many messages went with it. Those who wait on it get `QueueDeleted`."""
        now_ms = self._running.enter_within_limits()
        queue = self._state.queue(name, namespace)
        depth = declaring.delete_queue(
            self._state, queue, if_empty=if_empty, if_unused=if_unused, waiting_only=waiting_only, now_ms=now_ms
        )
        self._running.consumers.end(queue)
        await self._running.done_durably()
        return depth

    def delete_queue_now(self, number: int, *, if_no_subscriptions: bool = False) -> bool:
        """Delete the queue of this number, whatever its name names by now; False where it is gone, or subscribed to."""
        now_ms = self._running.enter_within_limits()
        queue = self._state.queues.get(number)
        if queue is None or (if_no_subscriptions and self._running.consumers.count(queue)):
            return False
        declaring.delete_queue(self._state, queue, now_ms=now_ms)
        self._running.consumers.end(queue)
        self._running.after()
        return True

    def use_queue(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Somebody asked for the queue: one that is deleted when nobody uses it lives on from here."""
        self._state.queue(name, namespace).used_at_ms = self._running.enter()

    async def purge(self, name: str, *, ready_only: bool = False, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Remove exactly what is in the queue now; returns how many messages that was."""
        now_ms = self._running.enter_within_limits()
        count = declaring.purge(self._state, self._state.queue(name, namespace), ready_only=ready_only, now_ms=now_ms)
        await self._running.done_durably()
        return count

    async def pause(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Hand out nothing from this queue until it is resumed; publishing goes on."""
        self._running.enter()
        declaring.pause(self._state, self._state.queue(name, namespace), is_paused=True)
        await self._running.done_durably()

    async def resume(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._running.enter()
        declaring.pause(self._state, self._state.queue(name, namespace), is_paused=False)
        await self._running.done_durably()

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
        self._running.enter()
        policy = Policy(name, pattern, priority, settings)
        return await self._govern(governing.set_policy(self._state, namespace, policy))

    async def delete_policy(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """The queues for which it held have another one's settings from now on, or what they were declared with."""
        self._running.enter()
        await self._govern(governing.delete_policy(self._state, namespace, name))

    async def _govern(self, left: Governing) -> int:
        self._govern_some(left, GOVERNED_FIRST)
        if not left.is_done:
            # Whoever asked for it may be gone: the policy is in force, so all have to have it.
            await asyncio.shield(self._running.background.run(self._govern_rest(left)))
            if not left.is_done:
                # Says why.
                self._running.enter()
        await self._running.done_durably()
        return left.count

    async def _govern_rest(self, left: Governing) -> None:
        while not left.is_done:
            await self._running.fair_turns.turn()
            try:
                self._govern_some(left, GOVERNED_AT_ONCE)
            except (BrokerClosed, BrokerStopped):
                # Whoever opens the log again finds the policy in it.
                return

    def _govern_some(self, left: Governing, work_max: int) -> None:
        for queue in left.go_on(work_max, now_ms=self._running.enter()):
            self._running.consumers.settings_changed(queue)
        self._running.after()

    # -- exchanges ----------------------------------------------------------------------------------------------------

    async def declare_exchange(
        self, name: str, settings: ExchangeSettings, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        self._running.enter()
        declaring.declare_exchange(self._state, name, settings, namespace=namespace)
        await self._running.done_durably()

    async def delete_exchange(self, name: str, *, if_unused: bool = False, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._running.enter()
        declaring.delete_exchange(self._state, self._state.namespace(namespace), name, if_unused=if_unused)
        await self._running.done_durably()

    async def bind(self, binding: Binding, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._running.enter()
        declaring.bind(self._state, self._state.namespace(namespace), binding)
        await self._running.done_durably()

    async def unbind(self, binding: Binding, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._running.enter()
        declaring.unbind(self._state, self._state.namespace(namespace), binding)
        await self._running.done_durably()
