"""Subscriptions on a running broker: made, given credit, held back, and ended, many together where they go together.

    leave_all ─▶ their queues are held up ─▶ all of them out of the line ─▶ what they held goes back ─▶ the queues go on
                                                                            few: at once
                                                                            many: in slices, everybody else in between

Whoever is leaving is out of the line before anything goes back: a consumer of a connection that has died must not be
served what its neighbour gave back. How what goes back is settled, and why queues are held up, is in `settling`. Who is
served, and when, is in `consumers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from smista.core.message import Receipt
from smista.core.queue import Queue
from smista.core.state import DEFAULT_NAMESPACE, BrokerState
from smista.engine.consumers import check_consumer
from smista.engine.delivery import Delivery
from smista.engine.running import Running
from smista.engine.settling import SETTLED_AT_ONCE, Settle, Settling
from smista.engine.slices import in_slices
from smista.engine.subscription import CreditPool, Subscription
from smista.errors import BrokerClosed, BrokerError, BrokerStopped, InvalidArgument


class Subscribing:
    def __init__(self, running: Running, settling: Settling) -> None:
        self._running = running
        self._settling = settling
        self._state = running.state
        self._consumers = running.consumers

    def subscribe(
        self,
        queue: str,
        deliver: Callable[[list[Delivery]], None],
        *,
        ended: Callable[[BrokerError], None] = lambda error: None,
        consumer: str = "",
        prefetch: int | None = None,
        priority: int = 0,
        lease_ms: int | None = None,
        pool: CreditPool | None = None,
        is_counted: bool = True,
        channel: object = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Subscription:
        """Have messages pushed to `deliver` until `cancel`, never more than `prefetch` of them unsettled.

        `ended` is called if the broker ends the subscription: the queue was deleted, the broker closes. Subscriptions
        with the same `pool` together hold no more than its limit; those on the same `channel` get theirs in order.
        """
        self._running.enter()
        source = self._state.queue(queue, namespace)
        if prefetch is None:
            prefetch = source.settings.prefetch
        _check_prefetch(self._state, source, prefetch)
        check_consumer(consumer, lease_ms)
        subscription = Subscription(
            source,
            consumer,
            deliver,
            ended,
            prefetch=prefetch,
            priority=priority,
            lease_ms=lease_ms,
            pool=pool,
            is_counted=is_counted,
            channel=channel,
        )
        self._consumers.add_subscription(subscription)
        self._state.woken[source] = None
        self._running.after()
        return subscription

    def pool(self, limit: int) -> CreditPool:
        """Credit for subscriptions to share, whatever their queues."""
        return CreditPool(limit)

    # -- credit -------------------------------------------------------------------------------------------------------

    def set_prefetch(self, subscription: Subscription, prefetch: int) -> None:
        """How many unsettled messages a subscription may hold from now on; what it holds beyond that, it keeps."""
        self._running.enter()
        _check_prefetch(self._state, subscription.queue, prefetch)
        subscription.prefetch = prefetch
        self._consumers.has_credit(subscription)
        self._running.after()

    def widen(self, subscription: Subscription, more: int, most: int) -> None:
        """Let a subscription hold so many more than it holds now, `most` and what its queue allows at most."""
        prefetch = min(most, len(subscription.held) + more, subscription.queue.settings.max_prefetch)
        if prefetch != subscription.prefetch:
            self.set_prefetch(subscription, prefetch)

    def hold_back(self, subscription: Subscription, is_held_back: bool) -> None:
        """Push nothing to a subscription for now, whatever its credit: its connection is full. Or do so again."""
        self._running.enter()
        subscription.is_held_back = is_held_back
        self._consumers.has_credit(subscription)
        self._running.after()

    def begin_pool(self, pool: CreditPool, members: Iterable[Subscription], receipts: Iterable[Receipt]) -> None:
        """These share it, too, and what counts in it are these deliveries and no others."""
        self._running.enter()
        for member in members:
            member.pool = pool
            pool.members[member] = None
        pool.held = {(receipt.queue, receipt.sequence) for receipt in receipts}
        self._running.after()

    def let_go_in_pool(self, pool: CreditPool, receipts: Iterable[Receipt]) -> None:
        """These count in the pool no longer, whatever has become of their messages and queues."""
        self._running.enter()
        count = len(pool.held)
        pool.held.difference_update((receipt.queue, receipt.sequence) for receipt in receipts)
        if len(pool.held) < count:
            for member in pool.members:
                self._consumers.has_credit(member)
            self._running.after()

    def set_pool_limit(self, pool: CreditPool, limit: int) -> None:
        """How much the subscriptions of a pool may hold together from now on."""
        self._running.enter()
        pool.limit = limit
        for member in pool.members:
            self._consumers.has_credit(member)
        self._running.after()

    # -- leaving ------------------------------------------------------------------------------------------------------

    def cancel(self, subscription: Subscription, *, is_vanished: bool = False, keeps_held: bool = False) -> None:
        """End a subscription; `ConsumerNotFound` if it has ended already. Its unsettled messages go back: released, or,
        if the consumer vanished with them, as failed deliveries, so that a message that kills its consumers does not go
        round for ever.

        With `keeps_held` the consumer keeps what has reached it, to settle it still.
        """
        self._running.enter()
        self._consumers.check_subscribed(subscription)
        held_by_it = [] if keeps_held else list(subscription.held.values())
        self.leave_all([subscription], held_by_it, is_vanished=is_vanished)

    def leave_all(
        self, subscriptions: Sequence[Subscription], receipts: Sequence[Receipt], *, is_vanished: bool
    ) -> asyncio.Future[None] | None:
        """End subscriptions that go together; those that have ended already do no harm. What `receipts` name goes back:
        released, or failed where their consumers vanished with it. What has not reached them yet is released; what else
        they hold is somebody's who settles it still.

        None where that is done already; else what is to be waited for until it is. A broker that stops or closes
        meanwhile leaves the rest in flight: it is given back when its log is opened again.
        """
        self._running.enter()
        give_back: Settle = self._settling.vanish_now if is_vanished else self._settling.release_some
        go_on = self._settling.hold_up(
            {subscription.queue.number for subscription in subscriptions} | {receipt.queue for receipt in receipts}
        )
        is_held_up_longer = False
        try:
            self._consumers.leave(subscriptions)
            for subscription in subscriptions:
                if subscription.fetching:
                    self._running.release(subscription.fetching)
            rest = receipts
            if receipts and len(receipts) <= SETTLED_AT_ONCE:
                rest = receipts[give_back(receipts) :]
            if rest:
                is_held_up_longer = True
                # Whoever waits for it may be cancelled; it may not.
                return asyncio.shield(self._running.background.run(_give_back(rest, give_back, go_on)))
            return None
        finally:
            if not is_held_up_longer:
                go_on()


async def _give_back(receipts: Sequence[Receipt], give_back: Settle, go_on: Callable[[], None]) -> None:
    try:
        await in_slices(receipts, give_back)
    except (BrokerClosed, BrokerStopped):
        return
    finally:
        go_on()


def _check_prefetch(state: BrokerState, queue: Queue, prefetch: object) -> None:
    if type(prefetch) is not int or not 1 <= prefetch <= queue.settings.max_prefetch:
        raise InvalidArgument(
            f"prefetch is {prefetch!r}; queue {queue.name!r} allows 1 to {queue.settings.max_prefetch}"
            f"{state.by_policy(queue, 'max_prefetch')}."
        )
