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
import copy
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from smista.core import browsing, dead_letters, declaring, publishing, receiving, settling
from smista.core.browsing import ANY, Filter
from smista.core.claims import claimants
from smista.core.counters import QueueStats
from smista.core.errors import InvalidArgument, InvalidReceipt, MessageNotFound, QueueDeleted
from smista.core.exchanges import Binding, Exchange, ExchangeSettings, Route, explain, route
from smista.core.message import Message, Publication, Reason, Receipt, State
from smista.core.queue import Queue
from smista.core.settings import DEFAULT, QueueSettings
from smista.core.settling import Outcome
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.claiming import WAIT_MS_MAX
from smista.engine.consumers import RECEIVED_BYTES_MAX, CreditPool, Poll, Subscription, deleted
from smista.engine.delivery import Delivery, Published
from smista.engine.running import SLICE, STEP_BYTES_MAX
from smista.engine.staging import StagingBroker
from smista.errors import BrokerError

LOOKED_AT_ONCE = 1000
"""How many messages of a queue are looked at before the rest of the loop has its turn; or a tenth as many changed."""
PAGE_SLICES = 20
"""How often that is done for one page, which may then be short."""


class Broker(StagingBroker):
    """See the module. Make one with `open`; all methods belong to the loop it was opened on."""

    # -- queues -------------------------------------------------------------------------------------------------------

    async def declare_queue(
        self, name: str, settings: QueueSettings = DEFAULT, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        self.declare_queue_now(name, settings, namespace=namespace)
        await self._keeper.durable()

    def declare_queue_now(
        self, name: str, settings: QueueSettings = DEFAULT, *, namespace: str = DEFAULT_NAMESPACE
    ) -> int:
        """The queue's number, which stays its own: another queue of its name, later, has another."""
        now_ms = self._enter()
        queue = declaring.declare_queue(self._state, name, settings, namespace=namespace, now_ms=now_ms)
        self._after()
        return queue.number

    async def alter_queue(self, name: str, settings: QueueSettings, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        now_ms = self._enter()
        queue = self._state.queue(name, namespace)
        declaring.alter_queue(self._state, queue, settings, now_ms=now_ms)
        self._consumers.settings_changed(queue)
        await self._leave()

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
        await self._leave()
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
        await self._leave()
        return count

    async def pause(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Hand out nothing from this queue until it is resumed; publishing goes on."""
        self._enter()
        declaring.pause(self._state, self._state.queue(name, namespace), is_paused=True)
        await self._leave()

    async def resume(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._enter()
        declaring.pause(self._state, self._state.queue(name, namespace), is_paused=False)
        await self._leave()

    def queue_names(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
        self._enter()
        return list(self._state.namespace(namespace).queues)

    def namespaces(self) -> list[str]:
        return list(self._state.namespaces)

    def queue_settings(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> QueueSettings:
        return self._state.queue(name, namespace).settings

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

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(
        self,
        queue: str,
        publications: Sequence[Publication],
        *,
        batch_id: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published | BrokerError]:
        """Publish to a queue; per publication what became of it, in order. Returns when all are durable.

        The same messages under the same `batch_id` again, within the queue's deduplication window, are not stored
        again. Raises where nothing at all was stored: no such queue, disk or memory low, broker stopped.
        """
        await self.room()
        results = self.publish_now(queue, publications, batch_id=batch_id, namespace=namespace)
        await self._keeper.durable()
        return results

    def publish_now(
        self,
        queue: str,
        publications: Sequence[Publication],
        *,
        batch_id: str | None = None,
        is_use: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published | BrokerError]:
        """Without `is_use` a queue that is deleted when nobody uses it does not live longer for this."""
        now_ms = self._enter_within_limits()
        self._check_pressure()
        target = self._state.queue(queue, namespace)
        placed: list[publishing.Result] = []
        for part in _parts(target, publications, [len(one.body) for one in publications]):
            batch = None
            if batch_id is not None:
                batch = publishing.Batch(batch_id, len(placed), len(part) == len(publications))
            placed += publishing.publish(self._state, target, part, batch=batch, is_use=is_use, now_ms=now_ms)
            self._after_part(now_ms)
        self._after()
        return [self._published(one) if isinstance(one, publishing.Placed) else one for one in placed]

    def publish_alike_now(
        self,
        queue: str,
        bodies: Sequence[bytes],
        like: Publication,
        *,
        is_use: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[tuple[int, BrokerError]]:
        """Publish bodies that have all but themselves in common with `like`: which of them were refused, and why."""
        now_ms = self._enter_within_limits()
        self._check_pressure()
        target = self._state.queue(queue, namespace)
        refused: list[tuple[int, BrokerError]] = []
        count = 0
        for part in _parts(target, bodies, list(map(len, bodies))):
            found = publishing.publish_alike(self._state, target, part, like, is_use=is_use, now_ms=now_ms)
            refused += [(count + place, error) for place, error in found]
            count += len(part)
            self._after_part(now_ms)
        self._after()
        return refused

    def _after_part(self, now_ms: int) -> None:
        """A batch has been noted, or a part of one that does not enter in one step. Limits are kept in the same
        instant, since a message with no time to live is for whoever waits now."""
        self._keep_limits(now_ms)
        self._keeper.seal_if_large()

    async def publish_to_exchange(
        self,
        exchange: str,
        publication: Publication,
        *,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published]:
        """Publish through an exchange by the envelope's routing key: stored in every queue it leads to, or in none."""
        await self.room()
        results = self.publish_to_exchange_now(
            exchange, publication, headers=headers, extra_keys=extra_keys, namespace=namespace
        )
        await self._keeper.durable()
        return results

    def publish_to_exchange_now(
        self,
        exchange: str,
        publication: Publication,
        *,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published]:
        now_ms = self._enter_within_limits()
        self._check_pressure()
        placed = publishing.publish_to_exchange(
            self._state,
            self._state.namespace(namespace),
            exchange,
            publication,
            headers=headers,
            extra_keys=extra_keys,
            now_ms=now_ms,
        )
        self._keep_limits(now_ms)
        self._after()
        return [self._published(one) for one in placed]

    def publish_to_queues_now(
        self,
        queues: Iterable[str],
        publication: Publication,
        *,
        is_use: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published | BrokerError]:
        """Publish to several queues, each for itself: per queue what became of it, also where another refused it."""
        now_ms = self._enter_within_limits()
        self._check_pressure()
        found = [self._state.queue(name, namespace) for name in queues]
        placed = publishing.publish_to_queues(self._state, found, publication, is_use=is_use, now_ms=now_ms)
        self._keep_limits(now_ms)
        self._after()
        return [self._published(one) if isinstance(one, publishing.Placed) else one for one in placed]

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be written that publishers should be held back."""
        return self._keeper.is_behind

    async def room(self) -> None:
        """Wait until the log has caught up far enough to take more."""
        await self._keeper.room()

    def queues_for(
        self,
        exchange: str,
        routing_key: str,
        *,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        namespace: str = DEFAULT_NAMESPACE,
    ) -> tuple[str, ...]:
        """The queues a message would go to; the same as long as `topology_version` is, if no headers are looked at."""
        space = self._state.namespace(namespace)
        space.topology.check_publish(exchange)
        return route(space.topology, exchange, routing_key, headers, space.queues.__contains__, extra_keys).queues

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

    # -- exchanges ----------------------------------------------------------------------------------------------------

    async def declare_exchange(
        self, name: str, settings: ExchangeSettings, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        self._enter()
        declaring.declare_exchange(self._state, name, settings, namespace=namespace)
        await self._leave()

    async def delete_exchange(self, name: str, *, if_unused: bool = False, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._enter()
        declaring.delete_exchange(self._state, self._state.namespace(namespace), name, if_unused=if_unused)
        await self._leave()

    async def bind(self, binding: Binding, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._enter()
        declaring.bind(self._state, self._state.namespace(namespace), binding)
        await self._leave()

    async def unbind(self, binding: Binding, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._enter()
        declaring.unbind(self._state, self._state.namespace(namespace), binding)
        await self._leave()

    def exchanges(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[Exchange]:
        return list(self._state.namespace(namespace).topology.exchanges())

    def exchange_settings(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> ExchangeSettings:
        return self._state.namespace(namespace).topology.exchange(name).settings

    def bindings(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[Binding]:
        return list(self._state.namespace(namespace).topology.bindings())

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
        if not beside_active:
            self._consumers.check_poll(source)
        watch = self._consumers.watch(source)
        if watch is None or not len(watch.line):
            messages = receiving.receive(
                self._state,
                source,
                limit,
                lease_ms=lease_ms,
                consumer=consumer,
                several_per_group=several_per_group,
                bytes_max=RECEIVED_BYTES_MAX,
                now_ms=now_ms,
            )
            self._after()
            if messages:
                deliveries = await self._dispatcher.deliveries(messages)
                if deliveries or not wait_ms:
                    return deliveries
                # All of it went while it was being read.
                now_ms = self._enter()
                if source.is_deleted:
                    raise deleted(source)
        if not wait_ms:
            return []
        return await self._poll(source, limit, wait_ms, lease_ms, consumer, now_ms, several_per_group)

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
        poll = Poll(queue, limit, lease_ms, consumer, answer, several_per_group=several_per_group)
        self._consumers.add_poll(poll)
        self._state.calendar.add(poll, now_ms + wait_ms, now_ms)
        self._dispatcher.serve(queue)
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
        if lease_ms is not None:
            receiving.check_lease(lease_ms)
        subscription = Subscription(
            source, consumer, deliver, ended, prefetch=prefetch, priority=priority, lease_ms=lease_ms, pool=pool
        )
        self._consumers.add_subscription(subscription)
        self._state.woken.add(source)
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
        outcomes = self.acknowledge_now(receipts)
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
        results = self.nack_now(receipts, requeue=requeue, delay_ms=delay_ms, error=error)
        await self._keeper.durable()
        return results

    def nack_now(
        self, receipts: Iterable[Receipt], *, requeue: bool = True, delay_ms: int | None = None, error: str = ""
    ) -> list[bool | BrokerError]:
        now_ms = self._enter()
        results: list[bool | BrokerError] = []
        for receipt in receipts:
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
        outcomes = self.release_now(receipts)
        await self._keeper.durable()
        return outcomes

    async def extend(self, receipts: Sequence[Receipt], lease_ms: int) -> list[Outcome]:
        """The leases now end `lease_ms` from now."""
        now_ms = self._enter()
        outcomes = settling.extend(self._state, receipts, lease_ms, now_ms=now_ms)
        await self._leave()
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
        return (
            deliveries is not None
            and deliveries.is_open
            and deliveries.count == receipt.delivery
            and deliveries.run == receipt.run
        )

    def delivered_at_ms(self, receipt: Receipt) -> int | None:
        """When the delivery began that a receipt names; None where it is over."""
        try:
            _, message = settling.held(self._state, receipt)
        except BrokerError:
            return None
        assert message.deliveries is not None
        return message.deliveries.last_at_ms

    # -- scheduled ----------------------------------------------------------------------------------------------------

    async def reschedule(
        self, queue: str, message_id: str, due_at_ms: int, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Give a scheduled message another due time."""
        now_ms = self._enter()
        source = self._state.queue(queue, namespace)
        settling.reschedule(self._state, source, self._sequence(source, message_id), due_at_ms, now_ms=now_ms)
        await self._leave()

    async def cancel_scheduled(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Remove a message that has not become ready yet."""
        now_ms = self._enter()
        source = self._state.queue(queue, namespace)
        settling.cancel(self._state, source, self._sequence(source, message_id), now_ms=now_ms)
        await self._leave()

    # -- looking ------------------------------------------------------------------------------------------------------

    async def browse(
        self,
        queue: str,
        wanted: Filter = ANY,
        *,
        after: int = 0,
        limit: int = 100,
        with_bodies: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> browsing.Page:
        """A page of messages in any state, nothing changed. Pass the page's `after` on for the next one."""
        self._enter_within_limits()
        source = self._state.queue(queue, namespace)
        found: list[Message] = []
        for _ in range(PAGE_SLICES):
            page = browsing.browse(source, wanted, after=after, limit=limit - len(found))
            found += page.messages
            if page.after is None or len(found) == limit:
                break
            after = page.after
            await asyncio.sleep(0)
        found = [message for message in found if self._is_in_its_queue(message)]
        return browsing.Page(await self._copies(found, with_bodies=with_bodies), page.after)

    async def peek(self, queue: str, limit: int = 1, *, namespace: str = DEFAULT_NAMESPACE) -> list[Message]:
        """The messages that would be received next, nothing changed. Where bodies are large, fewer."""
        self._enter_within_limits()
        source = self._state.queue(queue, namespace)
        return await self._copies(receiving.peek(source, limit, bytes_max=RECEIVED_BYTES_MAX))

    async def get(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Message:
        """One message by its id, in whatever state it is."""
        self._enter()
        source = self._state.queue(queue, namespace)
        messages = await self._copies([browsing.get(source, self._sequence(source, message_id))])
        if not messages:
            raise _not_found(source, message_id)
        return messages[0]

    # -- dead letters -------------------------------------------------------------------------------------------------

    async def redrive(
        self,
        queue: str,
        wanted: Filter = ANY,
        *,
        to: str | None = None,
        limit: int | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int:
        """Send dead letters back to where they came from, or to queue `to`; returns how many.

        What is in the queue when this starts, narrowed by `wanted` and `limit`; what is in flight is left alone, and
        so is what never died, unless `to` says where it shall go. A dry run only counts. `QueueFull` when a target
        takes no more: what was moved until then stays moved.
        """
        self._enter()
        if per_second is not None and per_second <= 0:
            raise InvalidArgument(f"per_second is {per_second!r}; give a number above 0, or None for no limit.")
        source = self._state.queue(queue, namespace)
        target = None if to is None else self._state.queue(to, namespace)
        moved = 0
        async for message in self._matching(source, wanted):
            if limit is not None and moved >= limit:
                break
            if message.state not in (State.READY, State.DEAD) or not (message.deaths or target):
                continue
            if not dry_run:
                _check_there(target, moved)
                if not dead_letters.redrive(self._state, source, [message], to=target, now_ms=self._enter()):
                    continue
                self._after()
                if per_second is not None:
                    await asyncio.sleep(1 / per_second)
            moved += 1
        _check_there(source, moved)
        await self._keeper.durable()
        return moved

    async def discard(self, queue: str, wanted: Filter, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Remove what a filter accepts and nobody holds; returns how many messages that was."""
        self._enter()
        source = self._state.queue(queue, namespace)
        count = 0
        async for message in self._matching(source, wanted):
            if message.state is not State.IN_FLIGHT:
                dead_letters.discard(self._state, source, message, Reason.CANCELLED, now_ms=self._enter())
                self._after()
                count += 1
        await self._leave()
        return count

    async def _matching(self, queue: Queue, wanted: Filter) -> AsyncIterator[Message]:
        """What is in the queue now and is accepted by a filter when its turn comes, the rest of the loop in between.
        What has left the queue by then, or has gone with it, does not come."""
        after, cut = 0, self._state.next_sequence
        work = 0
        while sequences := browsing.sequences_after(queue, after, LOOKED_AT_ONCE):
            for after in sequences:
                if after >= cut:
                    return
                message = queue.find(after)
                work += 1
                if message is not None and wanted.accepts(message):
                    work += LOOKED_AT_ONCE // SLICE
                    yield message
                if work >= LOOKED_AT_ONCE:
                    work = 0
                    await asyncio.sleep(0)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _published(self, placed: publishing.Placed) -> Published:
        return Published(
            placed.number, placed.created_at_ms, placed.queue, placed.position, placed.is_duplicate, self.ids
        )

    def _sequence(self, queue: Queue, message_id: str) -> int:
        """Where the message with this id stands in the queue: under its number, unless it has moved.

        The time in the id tells it from a message that a crash made us forget and whose number was used again.
        """
        number, created_at_ms = self.ids.parse(message_id)
        moved = self._keeper.recorder.moved_messages.get(number)
        message = queue.find(number if moved is None else moved.sequence)
        if message is None or message.created_at_ms != created_at_ms:
            raise _not_found(queue, message_id)
        return message.sequence

    async def _copies(self, messages: list[Message], *, with_bodies: bool = True) -> list[Message]:
        """Copies that stay as they are, for somebody to look at; without bodies they have those that are in memory.
        What has left its queue while bodies were read is left out."""
        if with_bodies and not self._keeper.are_at_hand(messages):
            await self._keeper.fetch(messages)
            messages = [message for message in messages if self._is_in_its_queue(message)]
        copies = [copy.copy(message) for message in messages]
        self._keeper.handed_over(messages)
        return copies


def _not_found(queue: Queue, message_id: str) -> MessageNotFound:
    return MessageNotFound(f"Queue {queue.name!r} has no message {message_id}; it may have been settled or moved.")


def _check_there(queue: Queue | None, moved: int) -> None:
    """Look at a queue again that was found before others had their turn."""
    if queue is not None and queue.is_deleted:
        raise QueueDeleted(f"Queue {queue.name!r} was deleted after {moved} messages had been moved.")


P = TypeVar("P")


def _parts(queue: Queue, publications: Sequence[P], sizes: list[int]) -> Iterator[Sequence[P]]:
    """A batch as it enters: whole, unless that is too much for one block, or its queue has to serve in between."""
    if publishing.is_one_by_one(queue):
        yield from (publications[place : place + 1] for place in range(len(publications)))
        return
    if sum(sizes) <= STEP_BYTES_MAX:
        yield publications
        return
    start = part_bytes = 0
    for place, size in enumerate(sizes):
        if part_bytes + size > STEP_BYTES_MAX and place > start:
            yield publications[start:place]
            start, part_bytes = place, 0
        part_bytes += size
    yield publications[start:]


def _check_prefetch(queue: Queue, prefetch: object) -> None:
    if type(prefetch) is not int or not 1 <= prefetch <= queue.settings.max_prefetch:
        raise InvalidArgument(
            f"prefetch is {prefetch!r}; queue {queue.name!r} allows 1 to {queue.settings.max_prefetch}."
        )
