"""Dispatching: messages that are ready meet those who wait for them. Who waits, and the rules, are in `consumers`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import repeat, zip_longest

from smista.core.at_once import PROPERTIES_AT_ONCE, properties_bytes
from smista.core.message import Message, Receipt
from smista.core.queue import Queue
from smista.core.receiving import UNBOUNDED, deal, has_more, receive, weigh
from smista.core.settling import find_held
from smista.core.state import BrokerState
from smista.engine.clock import Clock
from smista.engine.consumers import Consumers, Waiting, Watch, deleted
from smista.engine.delivery import Delivery, make_delivery, receipt_of
from smista.engine.ids import Ids
from smista.engine.keeper import Keeper
from smista.engine.poll import Poll
from smista.engine.subscription import PUSHED_BYTES_MAX, Subscription
from smista.errors import BrokerError

PUSHED_AT_ONCE = 1_000
"""So many messages of a queue are handed to those who wait in one turn of the loop: some 10 ms where each is shown."""


class Dispatcher:
    def __init__(
        self,
        state: BrokerState,
        clock: Clock,
        ids: Ids,
        *,
        after: Callable[[], None],
        give_back: Callable[[list[Receipt]], None],
    ) -> None:
        """`after` is the broker's, called when state has changed; `give_back` takes what nobody is there for."""
        self._state = state
        self._clock = clock
        self._ids = ids
        self._after = after
        self._give_back = give_back
        self._fetching: set[asyncio.Task[None]] = set()
        self.properties_left = PROPERTIES_AT_ONCE
        """How many bytes of properties may still be handed out in this turn of the loop, by whoever is cut short."""
        self.consumers = Consumers(clock)
        self.keeper: Keeper
        """Set by the broker: each needs the other."""

    def serve(self, queue: Queue, now_ms: int | None = None, *, is_cut: bool = False) -> int:
        """Hand out what is ready in a queue to those who wait on it, in their order; returns how many messages. Where
        that is very much, the rest goes in the next turn of the loop; with `is_cut` also where properties are large."""
        watch = self.consumers.watch(queue)
        if watch is None or watch.is_fetching or queue.is_deleted or self.keeper.failure is not None:
            return 0
        if self.consumers.is_held_up(queue):
            return 0
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        count = weight_bytes = 0
        waiting_count = len(watch.line)
        share = max(1, -(-len(queue.ready) // max(1, waiting_count)))
        while waiting_count > 1 and share > 1 and queue.ready and count < PUSHED_AT_ONCE:
            if is_cut and self.properties_left <= 0:
                break
            distributed = self._distribute(queue, watch, now_ms, is_cut=is_cut)
            if not distributed:
                break
            count += distributed
        while (waiting := watch.line.first()) is not None:
            are_properties_large = is_cut and self.properties_left <= 0
            if count >= PUSHED_AT_ONCE or weight_bytes >= PUSHED_BYTES_MAX or are_properties_large:
                self._state.woken[queue] = None
                break
            if (isinstance(waiting, Poll) and waiting.answer.done()) or waiting.credit <= 0:
                # Answered already; or its shared credit was used up by another.
                watch.line.leave(waiting)
                continue
            messages = receive(
                self._state,
                queue,
                min(waiting.credit, share, PUSHED_AT_ONCE),
                lease_ms=waiting.lease_ms,
                consumer=waiting.consumer,
                several_per_group=waiting.several_per_group,
                bytes_max=waiting.bytes_max,
                # Whoever polls sees to it by itself.
                properties_max=self.properties_left if is_cut and isinstance(waiting, Subscription) else UNBOUNDED,
                now_ms=now_ms,
            )
            if not messages:
                if has_more(queue, now_ms):
                    self._state.woken[queue] = None
                if queue.rate is not None and queue.ready:
                    queue.look_at(max(queue.rate.next_at_ms(), now_ms + 1), now_ms)
                break
            count += len(messages)
            weight_bytes += weigh(messages)
            if isinstance(waiting, Subscription):
                self.properties_left -= properties_bytes(messages)
            receipts = self._hold(watch, waiting, messages)
            if not self.keeper.are_at_hand(messages):
                watch.is_fetching = True
                if isinstance(waiting, Subscription):
                    waiting.fetching = receipts
                task = asyncio.get_running_loop().create_task(
                    self._fetch_and_hand_over(watch, waiting, messages, receipts)
                )
                self._fetching.add(task)
                task.add_done_callback(self._fetching.discard)
                break
            self._hand_over(waiting, self._make(messages, receipts))
        self._after()
        return count

    def _distribute(self, queue: Queue, watch: Watch, now_ms: int, *, is_cut: bool) -> int:
        """Distribute a burst round robin among those who wait for it, as many rounds as the one with the least credit
        can take. Returns how many messages; where that is none, they have to be served in shares."""
        line = watch.line
        for each in line.foremost():
            if each.credit <= 0:
                line.leave(each)
        subscriptions = [each for each in line.foremost() if isinstance(each, Subscription)]
        if (
            len(subscriptions) < 2
            or len(subscriptions) < len(line)
            or any(each.pool is not None for each in subscriptions)
        ):
            return 0
        shares = deal(
            self._state,
            queue,
            min(
                -(-len(queue.ready) // len(subscriptions)),
                min(each.credit for each in subscriptions),
                max(1, PUSHED_AT_ONCE // len(subscriptions)),
            ),
            [(each.lease_ms, each.consumer) for each in subscriptions],
            # Bodies that are paged out are fetched for one after the other.
            is_fit=self.keeper.are_at_hand,
            bytes_max=PUSHED_BYTES_MAX,
            properties_max=self.properties_left if is_cut else UNBOUNDED,
            now_ms=now_ms,
        )
        self.properties_left -= sum(map(properties_bytes, shares))
        served = [(subscription, share) for subscription, share in zip(subscriptions, shares, strict=False) if share]
        held = [(subscription, share, self._hold(watch, subscription, share)) for subscription, share in served]
        # Whoever would have got the next one stands first in line.
        for subscription in subscriptions[: sum(map(len, shares)) % len(subscriptions)]:
            if subscription.credit > 0:
                line.to_the_back(subscription)
        self._hand_over_shares([(subscription, self._make(share, receipts)) for subscription, share, receipts in held])
        return sum(len(share) for _, share in served)

    def _hand_over_shares(self, shares: list[tuple[Subscription, list[Delivery]]]) -> None:
        """Each one's share in one go; but one by one to those who share a channel, which keeps them in order."""
        parts = shares
        if len({id(subscription.channel) for subscription, _ in shares}) < len(shares):
            rounds = zip_longest(*(deliveries for _, deliveries in shares))
            subscriptions = [subscription for subscription, _ in shares]
            parts = [
                (p, [one]) for each in rounds for p, one in zip(subscriptions, each, strict=True) if one is not None
            ]
        for subscription, deliveries in parts:
            if subscription.is_cancelled:
                # By what another did with its own.
                self._give_back([delivery.receipt for delivery in deliveries])
            else:
                self._hand_over(subscription, deliveries)

    async def deliveries(self, messages: list[Message]) -> list[Delivery]:
        """The messages as their consumer gets them, bodies and all."""
        receipts = list(map(receipt_of, messages))
        if self.keeper.are_at_hand(messages):
            return self._make(messages, receipts)
        return await self._fetched(messages, receipts)

    async def _fetched(self, messages: list[Message], receipts: list[Receipt]) -> list[Delivery]:
        try:
            await self.keeper.fetch(messages)
        except BaseException:
            # Whoever asked is gone: nobody would settle them before their leases run out.
            self._give_back(receipts)
            raise
        # Reading took time: leave out what was purged, set aside or handed to somebody else meanwhile.
        left = [(m, receipt) for m, receipt in zip(messages, receipts, strict=True) if find_held(self._state, receipt)]
        return self._make([message for message, _ in left], [receipt for _, receipt in left])

    def free(self, freed: dict[Subscription, list[int]]) -> None:
        """Messages that these held have been settled, by whomever: their credit is free again."""
        for holder, sequences in freed.items():
            holder.let_go(sequences)
            self.consumers.settled(holder)

    def end_all(self, error: BrokerError) -> None:
        """Nobody will get anything any more, for this reason."""
        for queue in self._state.queues.values():
            if queue.is_watched:
                self.consumers.end(queue, error)

    async def close(self) -> None:
        if self._fetching:
            await asyncio.gather(*self._fetching, return_exceptions=True)

    def _make(self, messages: list[Message], receipts: Iterable[Receipt]) -> list[Delivery]:
        deliveries = list(map(make_delivery, messages, receipts, repeat(self._ids)))
        self.keeper.handed_over(messages)
        return deliveries

    def _hold(self, watch: Watch, waiting: Waiting, messages: list[Message]) -> list[Receipt]:
        """Account for what is about to be handed over, and move whoever gets it to the back of the line."""
        receipts = list(map(receipt_of, messages))
        if isinstance(waiting, Poll):
            watch.line.leave(waiting)
            return receipts
        sequences = [message.sequence for message in messages]
        waiting.hold(sequences, receipts)
        self.keeper.journal.holders.hold(waiting, sequences)
        if waiting.credit > 0:
            watch.line.to_the_back(waiting)
        else:
            watch.line.leave(waiting)
        return receipts

    def _hand_over(self, waiting: Waiting, deliveries: list[Delivery]) -> None:
        if isinstance(waiting, Subscription):
            if not waiting.is_cancelled and deliveries:
                self._deliver(waiting, deliveries)
        elif waiting.answer.done():
            self._give_back([delivery.receipt for delivery in deliveries])
        elif deliveries:
            waiting.answer.set_result(deliveries)
        elif waiting.queue.is_deleted:
            waiting.answer.set_exception(deleted(waiting.queue))
        else:
            # All of it went while it was being read: the poll goes on.
            self.consumers.add_poll(waiting)

    def _deliver(self, subscription: Subscription, deliveries: list[Delivery]) -> None:
        """A fault of one consumer is its own: others are served all the same. It keeps what it was given, until its
        leases end or it does."""
        try:
            subscription.deliver(deliveries)
        except Exception as fault:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a consumer of queue {subscription.queue.name!r} failed", "exception": fault}
            )

    async def _fetch_and_hand_over(
        self, watch: Watch, waiting: Waiting, messages: list[Message], receipts: list[Receipt]
    ) -> None:
        try:
            deliveries = await self._fetched(messages, receipts)
            if isinstance(waiting, Subscription):
                waiting.fetching = []
            self._hand_over(waiting, deliveries)
        finally:
            watch.is_fetching = False
        self.serve(waiting.queue, is_cut=True)
