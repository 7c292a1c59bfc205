"""The broker: a log, the state folded from it, and everybody who waits for messages, on a running event loop.

    broker = await Broker.open(SqliteLog.open("data"))
    await broker.declare_queue("orders")
    [published] = await broker.publish("orders", [Publication(b"...")])
    [delivery] = await broker.receive("orders", wait_ms=20_000)
    await broker.acknowledge([delivery.receipt])
    await broker.close()

What changes something returns when the change is durable. Publishing and settling come in a second form, ending in
`_now`, that returns at once, as the protocols need it that answer many requests together; they await `durable()`, or
ask `when_durable`, once for all of them. Both do the whole transition in one synchronous step of the loop, which is
what makes it atomic: nothing here awaits between deciding and doing.

What a caller may rely on: after `OutcomeUnknown` or `BrokerStopped` nothing is confirmed any more, and the process
should end; a new broker on the same log finds what was confirmed. A cancelled call may have taken effect.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from smista.core import receiving, settling
from smista.core.dead_letters import is_much
from smista.core.errors import InvalidArgument, InvalidReceipt
from smista.core.message import Message, Receipt
from smista.core.queue import Queue
from smista.core.settings import check_text
from smista.core.settling import Outcome
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.claiming import WAIT_MS_MAX
from smista.engine.consumers import RECEIVED_BYTES_MAX, CreditPool, Poll, Subscription, deleted
from smista.engine.delivery import Delivery
from smista.engine.leaving import ACKNOWLEDGED_AT_ONCE, SETTLED_AT_ONCE
from smista.engine.surveying import SurveyingBroker
from smista.errors import BrokerError

CONSUMER_LENGTH_MAX = 1024
RECEIVED_AT_ONCE = 500
"""So many are handed out in one turn of the loop: some 3 ms."""

T = TypeVar("T")


class Broker(SurveyingBroker):
    """See the module. Make one with `open`; all methods belong to the loop it was opened on."""

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def receive(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        consumer: str = "",
        several_per_group: bool = False,
        beside_active: bool = False,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Delivery]:
        """Up to `limit` messages under lease. With `wait_ms`, an empty queue is waited on, and answers at once when
        something becomes ready; an empty list when nothing did. Where bodies are large, fewer: some 16 MiB of them.

        `beside_active`: also where a queue serves a single active consumer, of what that one has no credit for.
        """
        now_ms = self._enter_within_limits()
        source = self._state.queue(queue, namespace)
        if type(limit) is not int or not 1 <= limit <= source.settings.max_prefetch:
            raise InvalidArgument(
                f"limit is {limit!r}; queue {queue!r} hands out 1 to {source.settings.max_prefetch} messages at a time."
            )
        if type(wait_ms) is not int or not 0 <= wait_ms <= WAIT_MS_MAX:
            raise InvalidArgument(f"wait_ms is {wait_ms!r}; give 0 to {WAIT_MS_MAX} milliseconds.")
        _check_consumer(consumer, lease_ms)
        if not beside_active:
            self._consumers.check_poll(source)
        watch = self._consumers.watch(source)
        if watch is None or not len(watch.line):
            messages = self._receive_some(source, limit, lease_ms, consumer, several_per_group, now_ms)
            self._after()
            while not messages and receiving.has_more(source, now_ms):
                # Very many are over: they go some at a time.
                await asyncio.sleep(0)
                now_ms = self._enter()
                if source.is_deleted:
                    raise deleted(source)
                messages = self._receive_some(source, limit, lease_ms, consumer, several_per_group, now_ms)
                self._after()
            if messages:
                deliveries = await self._dispatcher.deliveries(messages)
                if deliveries or not wait_ms:
                    return await self._with_more(source, deliveries, limit, lease_ms, consumer, several_per_group)
                # All of it went while it was being read.
                now_ms = self._enter()
                if source.is_deleted:
                    raise deleted(source)
        if not wait_ms:
            return []
        deliveries = await self._poll(source, limit, wait_ms, lease_ms, consumer, now_ms, several_per_group)
        return await self._with_more(source, deliveries, limit, lease_ms, consumer, several_per_group)

    async def _with_more(
        self,
        queue: Queue,
        deliveries: list[Delivery],
        limit: int,
        lease_ms: int | None,
        consumer: str,
        several_per_group: bool,
    ) -> list[Delivery]:
        """What came first, and of what else is asked for as much as is there, everybody else in between."""
        if len(deliveries) < RECEIVED_AT_ONCE:
            return deliveries
        bytes_left = RECEIVED_BYTES_MAX - _size(deliveries)
        try:
            while len(deliveries) < limit and bytes_left > 0:
                await self.lane.turn()
                now_ms = self._enter()
                watch = self._consumers.watch(queue)
                if queue.is_deleted or (watch is not None and len(watch.line)):
                    break
                left = limit - len(deliveries)
                messages = self._receive_some(queue, left, lease_ms, consumer, several_per_group, now_ms)
                self._after()
                more = await self._dispatcher.deliveries(messages)
                deliveries += more
                bytes_left -= _size(more)
                if len(messages) < RECEIVED_AT_ONCE:
                    break
        except BaseException:
            # Whoever asked does not hear of what came first either.
            if self.failure is None and not self.is_closed:
                self._give_back([delivery.receipt for delivery in deliveries])
            raise
        return deliveries

    def _receive_some(
        self, queue: Queue, limit: int, lease_ms: int | None, consumer: str, several_per_group: bool, now_ms: int
    ) -> list[Message]:
        return receiving.receive(
            self._state,
            queue,
            min(limit, RECEIVED_AT_ONCE),
            lease_ms=lease_ms,
            consumer=consumer,
            several_per_group=several_per_group,
            bytes_max=RECEIVED_BYTES_MAX,
            now_ms=now_ms,
        )

    async def _poll(
        self,
        queue: Queue,
        limit: int,
        wait_ms: int,
        lease_ms: int | None,
        consumer: str,
        now_ms: int,
        several_per_group: bool,
    ) -> list[Delivery]:
        answer: asyncio.Future[list[Delivery]] = self._loop.create_future()
        at_once = min(limit, RECEIVED_AT_ONCE)
        poll = Poll(queue, at_once, lease_ms, consumer, answer, several_per_group=several_per_group)
        self._consumers.add_poll(poll)
        self._state.calendar.add(poll, now_ms + wait_ms, now_ms)
        self._dispatcher.serve(queue, is_cut=True)
        self._after()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._give_back([delivery.receipt for delivery in answer.result()])
            raise
        finally:
            self._state.calendar.remove(poll)
            self._consumers.remove_poll(poll)

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
        lane: object = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Subscription:
        """Have messages pushed to `deliver` until `cancel`, never more than `prefetch` of them unsettled.

        `ended` is called if the broker ends the subscription: the queue was deleted, the broker closes. Subscriptions
        with the same `pool` together hold no more than its limit.
        """
        self._enter()
        source = self._state.queue(queue, namespace)
        if prefetch is None:
            prefetch = source.settings.prefetch
        _check_prefetch(source, prefetch)
        _check_consumer(consumer, lease_ms)
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
            lane=lane,
        )
        self._consumers.add_subscription(subscription)
        self._state.woken[source] = None
        self._after()
        return subscription

    def set_prefetch(self, subscription: Subscription, prefetch: int) -> None:
        """How many unsettled messages a subscription may hold from now on; what it holds beyond that, it keeps."""
        self._enter()
        _check_prefetch(subscription.queue, prefetch)
        subscription.prefetch = prefetch
        self._consumers.has_credit(subscription)
        self._after()

    def hold_back(self, subscription: Subscription, is_held_back: bool) -> None:
        """Push nothing to a subscription for now, whatever its credit: its connection is full. Or do so again."""
        self._enter()
        subscription.is_held_back = is_held_back
        self._consumers.has_credit(subscription)
        self._after()

    def let_go_in_pool(self, pool: CreditPool, receipts: Iterable[Receipt]) -> None:
        """These count in the pool no longer, whatever has become of their messages and queues."""
        self._enter()
        count = len(pool.held)
        pool.held.difference_update((receipt.queue, receipt.sequence) for receipt in receipts)
        if len(pool.held) < count:
            for member in pool.members:
                self._consumers.has_credit(member)
            self._after()

    def set_pool_limit(self, pool: CreditPool, limit: int) -> None:
        """How much the subscriptions of a pool may hold together from now on."""
        self._enter()
        pool.limit = limit
        for member in pool.members:
            self._consumers.has_credit(member)
        self._after()

    # -- settling -----------------------------------------------------------------------------------------------------

    async def acknowledge(self, receipts: Sequence[Receipt]) -> list[Outcome]:
        """These deliveries succeeded; returns when that is durable. Per receipt None, or why it had no effect."""
        outcomes = self.acknowledge_now(receipts[:ACKNOWLEDGED_AT_ONCE])
        while len(outcomes) < len(receipts):
            await self.lane.turn()
            outcomes += self.acknowledge_now(receipts[len(outcomes) : len(outcomes) + ACKNOWLEDGED_AT_ONCE])
        await self._keeper.durable()
        return outcomes

    def acknowledge_now(self, receipts: Iterable[Receipt]) -> list[Outcome]:
        now_ms = self._enter()
        outcomes = settling.acknowledge(self._state, receipts, now_ms=now_ms)
        self._after()
        return outcomes

    async def nack(
        self, receipts: Sequence[Receipt], *, requeue: bool = True, delay_ms: int | None = None, error: str = ""
    ) -> list[bool | BrokerError]:
        """These deliveries failed. Per receipt True if it will be retried, False if it is dead, or why neither."""
        return await self._settle_durably(
            receipts,
            lambda some: self.nack_now(some, requeue=requeue, delay_ms=delay_ms, error=error, is_cut=True),
        )

    def nack_now(
        self,
        receipts: Iterable[Receipt],
        *,
        requeue: bool = True,
        delay_ms: int | None = None,
        error: str = "",
        is_cut: bool = False,
    ) -> list[bool | BrokerError]:
        """With `is_cut` there are fewer results than receipts where some became dead letters in very many queues: the
        others are not settled yet."""
        now_ms, since = self._enter(), self._state.work
        results: list[bool | BrokerError] = []
        for receipt in receipts:
            if is_cut and is_much(self._state, since):
                break
            try:
                results.append(
                    settling.nack(
                        self._state,
                        receipt,
                        requeue=requeue,
                        delay_ms=delay_ms,
                        error=error,
                        chance=random.random(),
                        now_ms=now_ms,
                    )
                )
            except BrokerError as refusal:
                results.append(refusal)
            self._keeper.seal_if_large()
        self._after()
        return results

    async def release(self, receipts: Sequence[Receipt]) -> list[Outcome]:
        """Give messages back to their old places, not counted as failures."""
        return await self._settle_durably(receipts, lambda some: self.release_now(some, is_cut=True))

    async def _settle_durably(
        self, receipts: Sequence[Receipt], settle: Callable[[Sequence[Receipt]], list[T]]
    ) -> list[T]:
        """Settle all of them, those that `settle` leaves, and those of very many, in later turns; returns when that is
        durable. Where they are very many, their queues serve nobody who waits until all are back."""
        is_much = len(receipts) > SETTLED_AT_ONCE
        go_on = self.hold_up({receipt.queue for receipt in receipts}) if is_much else None
        try:
            results = settle(receipts[:SETTLED_AT_ONCE])
            while len(results) < len(receipts):
                await self.lane.turn()
                results += settle(receipts[len(results) : len(results) + SETTLED_AT_ONCE])
        finally:
            if go_on is not None:
                go_on()
        await self._keeper.durable()
        return results

    async def extend(self, receipts: Sequence[Receipt], lease_ms: int) -> list[Outcome]:
        """The leases now end `lease_ms` from now."""
        outcomes: list[Outcome] = []
        while True:
            now_ms = self._enter()
            some = receipts[len(outcomes) : len(outcomes) + ACKNOWLEDGED_AT_ONCE]
            outcomes += settling.extend(self._state, some, lease_ms, now_ms=now_ms)
            self._after()
            if len(outcomes) == len(receipts):
                break
            await self.lane.turn()
        await self._done_durably()
        return outcomes

    def receipt_for(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Receipt:
        """The receipt of whoever holds a message now: for commands that can only name the message."""
        source = self._state.queue(queue, namespace)
        return settling.receipt_for(source, self._sequence(source, message_id))

    def receipt(self, text: str) -> Receipt:
        """Read a receipt that left the process as text; `InvalidReceipt` for what this broker never gave out."""
        receipt = self.ids.receipt(text)
        if receipt.sequence >= self._state.next_sequence:
            raise InvalidReceipt("The receipt names a message that does not exist yet; was the data restored?")
        return receipt

    def is_there(self, receipt: Receipt) -> bool:
        """Whether the message that a receipt names is still in its queue, in whatever state."""
        queue = self._state.queues.get(receipt.queue)
        return queue is not None and queue.find(receipt.sequence) is not None

    def can_be_settled(self, receipt: Receipt) -> bool:
        """Whether a receipt names the last delivery of a message and nobody has settled that; its lease may be over."""
        queue = self._state.queues.get(receipt.queue)
        message = None if queue is None else queue.find(receipt.sequence)
        deliveries = None if message is None else message.deliveries
        return deliveries is not None and deliveries.is_open and deliveries.is_named_by(receipt)

    async def held_deliveries(self, receipts: Iterable[Receipt]) -> list[Delivery]:
        """Deliveries that are in flight, once more; without those that are over."""
        found = [settling.find_held(self._state, receipt) for receipt in receipts]
        return await self._dispatcher.deliveries([one[1] for one in found if one is not None])

    def delivered_at_ms(self, receipt: Receipt) -> int | None:
        """When the delivery began that a receipt names; None where it is over."""
        try:
            _, message = settling.held(self._state, receipt)
        except BrokerError:
            return None
        assert message.deliveries is not None
        return message.deliveries.last_at_ms


def _size(deliveries: Iterable[Delivery]) -> int:
    """What they take for whoever gets them: messages may share their headers here, and do not there."""
    return sum(len(delivery.body) + len(delivery.envelope.properties) for delivery in deliveries)


def _check_consumer(consumer: str, lease_ms: int | None) -> None:
    """Before anybody stands in line: what is wrong must not come up when they are served, among others."""
    check_text("consumer", consumer)
    if len(consumer) > CONSUMER_LENGTH_MAX:
        raise InvalidArgument(
            f"The consumer's name has {len(consumer)} characters; give it {CONSUMER_LENGTH_MAX} at most."
        )
    if lease_ms is not None:
        receiving.check_lease(lease_ms)


def _check_prefetch(queue: Queue, prefetch: object) -> None:
    if type(prefetch) is not int or not 1 <= prefetch <= queue.settings.max_prefetch:
        raise InvalidArgument(
            f"prefetch is {prefetch!r}; queue {queue.name!r} allows 1 to {queue.settings.max_prefetch}."
        )
