"""The broker: a log, the state folded from it, and everybody who waits for messages, on a running event loop.

    broker = await Broker.open(SqliteLog.open("data"))
    await broker.declare_queue("orders")
    [published] = await broker.publish("orders", [Publication(b"...")])
    [delivery] = await broker.receive("orders", wait_ms=20_000)
    await broker.acknowledge([delivery.receipt])
    await broker.close()

Everything that changes something comes in two forms. The awaited one returns when the change is durable. The one ending
in `_now` returns at once, as the protocols need it that answer many requests together; they await `durable()`, or ask
`when_durable`, once for all of them. Both do the whole transition in one synchronous step of the loop, which is what
makes it atomic: nothing here awaits between deciding and doing.

What a caller may rely on: after `OutcomeUnknown` or `BrokerStopped` nothing is confirmed any more, and the process
should end; a new broker on the same log finds what was confirmed. A cancelled call may have taken effect.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Self

from smista.core import browsing, dead_letters, declaring, publishing, receiving, settling
from smista.core.browsing import ANY, Filter
from smista.core.counters import QueueStats
from smista.core.due import run_due
from smista.core.errors import InvalidArgument, InvalidReceipt
from smista.core.exchanges import Binding, ExchangeSettings, Route, explain
from smista.core.message import Message, Publication, Reason, Receipt, State
from smista.core.queue import Queue
from smista.core.settings import DEFAULT, QueueSettings
from smista.core.settling import Outcome
from smista.core.state import DEFAULT_NAMESPACE, BrokerState
from smista.engine.clock import Clock
from smista.engine.commit import Committer
from smista.engine.consumers import Consumers, Poll, Subscription, Waiting, Watch
from smista.engine.delivery import Delivery, Published, make_delivery
from smista.engine.errors import BrokerClosed, BrokerStopped
from smista.engine.ids import Ids
from smista.engine.paging import Paging
from smista.engine.pressure import Pressure
from smista.engine.reclaim import Reclaimer, note_opened
from smista.engine.recorder import Recorder
from smista.engine.recovery import Recovery
from smista.engine.settings import BrokerSettings
from smista.errors import BrokerError
from smista.log import Log
from smista.log.errors import LogDamaged

WAIT_MS_MAX = 20_000
SLICE = 500
STALL_MS = 1_000


class Broker:
    """See the module. Make one with `open`; all methods belong to the loop it was opened on."""

    def __init__(
        self, log: Log, settings: BrokerSettings, clock: Clock, state: BrokerState, recovery: Recovery
    ) -> None:
        self._log = log
        self._settings = settings
        self._clock = clock
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._failure: BaseException | None = None
        self._is_closed = False
        self.ids = Ids(log.identity)
        self._consumers = Consumers(self._serve)
        self._recorder = Recorder(log.next_position, on_first=self._seal_soon, on_settled=self._settled)
        self._committer = Committer(log, on_durable=self._block_durable, on_failed=self._failed)
        self._reclaimer = Reclaimer(
            state,
            self._recorder,
            clock,
            retention_ms=settings.log_retention_ms,
            retention_bytes=settings.log_retention_bytes,
            slack_bytes=settings.log_slack_bytes,
        )
        self._paging = Paging(state, self._recorder, resident_bytes_max=settings.resident_bytes_max)
        self._pressure = Pressure(
            disk_free_bytes_min=settings.disk_free_bytes_min, memory_bytes_max=settings.memory_bytes_max
        )
        for block in recovery.blocks:
            self._reclaimer.block_written(*block)
        recovery.finish(self._recorder, clock.now_ms())
        state.journal = self._recorder
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_reclaiming = False
        self._is_seal_planned = False
        self._is_turn_planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._watch_timer = self._loop.call_later(0, self._look_around)
        note_opened(self._recorder, state, clock)
        self._after()

    # -- life ---------------------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        log: Log,
        settings: BrokerSettings | None = None,
        *,
        clock: Clock | None = None,
        on_damage: Callable[[LogDamaged], None] | None = None,
    ) -> Self:
        """Recover from `log` and start. The broker owns the log from here on and closes it.

        A damaged log is refused (`LogDamaged`) unless `on_damage` is given: it is then called for each damaged block,
        and the rest is served.
        """
        settings = settings or BrokerSettings()
        clock = clock or Clock()
        state = BrokerState(body_bytes_max=settings.body_bytes_max)
        recovery = Recovery(state, resident_bytes_max=settings.resident_bytes_max)
        try:
            await asyncio.to_thread(recovery.replay, log, on_damage)
            clock.resume(recovery.anchor, recovery.last_ms)
            return cls(log, settings, clock, state, recovery)
        except BaseException:
            log.close()
            raise

    async def close(self) -> None:
        """Make everything durable, end everybody's waiting, and close the log. Leases stay as they are."""
        if self._is_closed:
            return
        self._is_closed = True
        self._watch_timer.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for queue in list(self._state.queues.values()):
            if queue.is_watched:
                self._consumers.end(queue)
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failure is None and self._recorder.parts:
            self._seal()
        await self._committer.close()
        await asyncio.sleep(0)
        await asyncio.to_thread(self._log.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def failure(self) -> BaseException | None:
        """Why the broker stopped confirming; None while it is well."""
        return self._failure

    @property
    def refusal(self) -> BrokerError | None:
        """Why publishes are refused just now; None while they are taken."""
        return self._pressure.refusal

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def durable(self) -> None:
        """Return when everything done so far is on disk; raise `OutcomeUnknown` if that fails."""
        await self._durable()

    def when_durable(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call back, on the loop, when everything done so far is on disk: with None, or with what went wrong."""
        self._durable().add_done_callback(lambda future: callback(future.exception()))

    def _durable(self) -> asyncio.Future[None]:
        position = self._recorder.position if self._recorder.parts else self._committer.submitted_position
        return self._committer.wait_for(position)

    # -- queues -------------------------------------------------------------------------------------------------------

    async def declare_queue(
        self, name: str, settings: QueueSettings = DEFAULT, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        now_ms = self._enter()
        declaring.declare_queue(self._state, name, settings, namespace=namespace, now_ms=now_ms)
        await self._leave()

    async def alter_queue(self, name: str, settings: QueueSettings, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        now_ms = self._enter()
        declaring.alter_queue(self._state, self._state.queue(name, namespace), settings, now_ms=now_ms)
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
        now_ms = self._enter()
        queue = self._state.queue(name, namespace)
        depth = declaring.delete_queue(self._state, queue, if_empty=if_empty, if_unused=if_unused, now_ms=now_ms)
        self._consumers.end(queue)
        await self._leave()
        return depth

    async def purge(self, name: str, *, ready_only: bool = False, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Remove exactly what is in the queue now; returns how many messages that was."""
        now_ms = self._enter()
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

    def stats(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> QueueStats:
        now_ms = self._enter()
        queue = self._state.queue(name, namespace)
        return browsing.stats(queue, consumers=self._consumers.count(queue), now_ms=now_ms)

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(
        self, queue: str, publications: Sequence[Publication], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[Published | BrokerError]:
        """Publish to a queue; per publication what became of it, in order. Returns when all are durable.

        Raises where nothing at all was stored: no such queue, disk or memory low, broker stopped.
        """
        await self.room()
        results = self.publish_now(queue, publications, namespace=namespace)
        await self._durable()
        return results

    def publish_now(
        self, queue: str, publications: Sequence[Publication], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[Published | BrokerError]:
        now_ms = self._enter()
        self._check_pressure()
        target = self._state.queue(queue, namespace)
        placed = publishing.publish(self._state, target, publications, now_ms=now_ms)
        self._after()
        return [self._published(one) if isinstance(one, publishing.Placed) else one for one in placed]

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
        await self._durable()
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
        now_ms = self._enter()
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
        self._after()
        return [self._published(one) for one in placed]

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be written that publishers should be held back."""
        return self._committer.waiting_bytes + self._recorder.bytes > self._settings.waiting_bytes_max

    async def room(self) -> None:
        """Wait until the log has caught up far enough to take more."""
        while self.is_behind and self._failure is None:
            await self._committer.wait_for(self._committer.durable_position + 1)

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

    def exchange_names(self, *, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
        return [exchange.name for exchange in self._state.namespace(namespace).topology.exchanges()]

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
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Delivery]:
        """Up to `limit` messages under lease. With `wait_ms`, an empty queue is waited on, and answers at once when
        something becomes ready; an empty list when nothing did."""
        now_ms = self._enter()
        source = self._state.queue(queue, namespace)
        if type(limit) is not int or not 1 <= limit <= source.settings.max_prefetch:
            raise InvalidArgument(
                f"limit is {limit!r}; queue {queue!r} hands out 1 to {source.settings.max_prefetch} messages at a time."
            )
        if type(wait_ms) is not int or not 0 <= wait_ms <= WAIT_MS_MAX:
            raise InvalidArgument(f"wait_ms is {wait_ms!r}; give 0 to {WAIT_MS_MAX} milliseconds.")
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
                now_ms=now_ms,
            )
            self._after()
            if messages:
                return await self._deliveries(messages)
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
        self._serve(queue)
        self._after()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._release_all(answer.result())
            raise
        finally:
            self._state.calendar.remove(poll)
            self._consumers.remove(poll)

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
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Subscription:
        """Have messages pushed to `deliver` until `cancel`, never more than `prefetch` of them unsettled.

        `ended` is called if the broker ends the subscription: the queue was deleted, the broker closes.
        """
        self._enter()
        source = self._state.queue(queue, namespace)
        if prefetch is None:
            prefetch = source.settings.prefetch
        if type(prefetch) is not int or not 1 <= prefetch <= source.settings.max_prefetch:
            raise InvalidArgument(
                f"prefetch is {prefetch!r}; queue {queue!r} allows 1 to {source.settings.max_prefetch}."
            )
        subscription = Subscription(
            source, consumer, deliver, ended, prefetch=prefetch, priority=priority, lease_ms=lease_ms
        )
        self._consumers.add_subscription(subscription)
        self._state.woken.add(source)
        self._after()
        return subscription

    def cancel(self, subscription: Subscription, *, is_vanished: bool = False) -> None:
        """End a subscription. Its unsettled messages go back at once: released, or, if the consumer vanished with them,
        as failed deliveries, so that a message that kills its consumers does not go round for ever."""
        now_ms = self._enter()
        self._consumers.remove(subscription)
        subscription.is_cancelled = True
        for sequence, delivery in list(subscription.held.items()):
            receipt = Receipt(subscription.queue.number, sequence, delivery)
            if is_vanished:
                queue, message = settling.held(self._state, receipt)
                settling.fail(self._state, queue, message, Reason.VANISHED, delay_ms=0, now_ms=now_ms)
            else:
                settling.release(self._state, receipt, now_ms=now_ms)
        self._after()

    # -- settling -----------------------------------------------------------------------------------------------------

    async def acknowledge(self, receipts: Sequence[Receipt]) -> list[Outcome]:
        """These deliveries succeeded; returns when that is durable. Per receipt None, or why it had no effect."""
        outcomes = self.acknowledge_now(receipts)
        await self._durable()
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
        await self._durable()
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
        self._after()
        return results

    async def release(self, receipts: Sequence[Receipt]) -> list[Outcome]:
        """Give messages back to their old places, not counted as failures."""
        outcomes = self.release_now(receipts)
        await self._durable()
        return outcomes

    def release_now(self, receipts: Iterable[Receipt]) -> list[Outcome]:
        now_ms = self._enter()
        outcomes: list[Outcome] = []
        for receipt in receipts:
            try:
                settling.release(self._state, receipt, now_ms=now_ms)
                outcomes.append(None)
            except BrokerError as refusal:
                outcomes.append(refusal)
        self._after()
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
        return settling.receipt_for(source, self._sequence(message_id))

    def receipt(self, text: str) -> Receipt:
        """Read a receipt that left the process as text; `InvalidReceipt` for what this broker never gave out."""
        receipt = self.ids.receipt(text)
        if receipt.sequence >= self._state.next_sequence:
            raise InvalidReceipt("The receipt names a message that does not exist yet; was the data restored?")
        return receipt

    # -- scheduled ----------------------------------------------------------------------------------------------------

    async def reschedule(
        self, queue: str, message_id: str, due_at_ms: int, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Give a scheduled message another due time."""
        now_ms = self._enter()
        source = self._state.queue(queue, namespace)
        settling.reschedule(self._state, source, self._sequence(message_id), due_at_ms, now_ms=now_ms)
        await self._leave()

    async def cancel_scheduled(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Remove a message that has not become ready yet."""
        now_ms = self._enter()
        source = self._state.queue(queue, namespace)
        settling.cancel(self._state, source, self._sequence(message_id), now_ms=now_ms)
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
        self._enter()
        page = browsing.browse(self._state.queue(queue, namespace), wanted, after=after, limit=limit)
        messages = await self._copies(page.messages) if with_bodies else page.messages
        return browsing.Page(messages, page.after)

    async def peek(self, queue: str, limit: int = 1, *, namespace: str = DEFAULT_NAMESPACE) -> list[Message]:
        """The messages that would be received next, nothing changed."""
        self._enter()
        return await self._copies(receiving.peek(self._state.queue(queue, namespace), limit))

    async def get(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Message:
        """One message by its id, in whatever state it is."""
        self._enter()
        source = self._state.queue(queue, namespace)
        [message] = await self._copies([browsing.get(source, self._sequence(message_id))])
        return message

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

        What is in the queue when this starts, narrowed by `wanted` and `limit`. A dry run only counts.
        """
        self._enter()
        source = self._state.queue(queue, namespace)
        target = None if to is None else self._state.queue(to, namespace)
        cut = self._state.next_sequence
        moved = 0
        for message in browsing.all_matching(source, wanted):
            if message.sequence >= cut or (limit is not None and moved >= limit):
                break
            if message.state not in (State.READY, State.DEAD) or source.find(message.sequence) is not message:
                continue
            if not dry_run:
                now_ms = self._enter()
                dead_letters.redrive(self._state, source, [message], to=target, now_ms=now_ms)
                self._after()
                if per_second is not None:
                    await asyncio.sleep(1 / per_second)
                elif moved % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
            moved += 1
        await self._durable()
        return moved

    # -- every call ---------------------------------------------------------------------------------------------------

    def _enter(self) -> int:
        if self._is_closed:
            raise BrokerClosed("The broker has been closed; open another one on its data.")
        if self._failure is not None:
            raise BrokerStopped(f"The broker has stopped because its log failed; restart it. ({self._failure})")
        return self._clock.now_ms()

    def _after(self) -> None:
        """What each synchronous step ends with: plan serving, sealing and the next deadline."""
        if (self._state.woken or self._state.graves) and not self._is_turn_planned:
            self._is_turn_planned = True
            self._loop.call_soon(self._turn)
        if self._recorder.bytes >= self._settings.block_bytes_max:
            self._seal()
        next_ms = self._state.calendar.next_ms()
        if next_ms is not None and (self._timer is None or next_ms < self._timer_at_ms):
            self._arm(next_ms)

    async def _leave(self) -> None:
        self._after()
        await self._durable()

    def _check_pressure(self) -> None:
        if self._pressure.refusal is not None:
            raise self._pressure.refusal

    def _published(self, placed: publishing.Placed) -> Published:
        return Published(
            placed.number, placed.created_at_ms, placed.queue, placed.position, placed.is_duplicate, self.ids
        )

    def _sequence(self, message_id: str) -> int:
        """Where the message with this id stands now: under its number, unless it has moved."""
        number = self.ids.number(message_id)
        moved = self._recorder.moved_messages.get(number)
        return number if moved is None else moved.sequence

    # -- turns and deadlines ------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Once per turn of the loop: serve the queues in which something happened, free purged memory."""
        self._is_turn_planned = False
        if self._is_closed or self._failure is not None:
            return
        woken = list(self._state.woken)
        self._state.woken.clear()
        for queue in woken:
            if not queue.is_deleted:
                self._serve(queue)
        self._state.bury(SLICE)
        self._after()

    def _arm(self, next_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = next_ms
        wait_ms = max(0, next_ms - self._clock.now_ms())
        self._timer = self._loop.call_later(wait_ms / 1000, self._deadline)

    def _deadline(self) -> None:
        self._timer = None
        if self._is_closed or self._failure is not None:
            return
        now_ms = self._clock.now_ms()
        if 0 < self._timer_at_ms < now_ms - STALL_MS:
            # We were held up ourselves: what consumers sent meanwhile is read before their leases are judged.
            self._timer_at_ms = 0
            self._timer = self._loop.call_later(0.05, self._deadline)
            return
        for entry in run_due(self._state, now_ms=now_ms, limit=SLICE, chance=random.random()):
            assert isinstance(entry, Poll)
            if not entry.answer.done():
                entry.answer.set_result([])
        self._after()
        if self._timer is None and (next_ms := self._state.calendar.next_ms()) is not None:
            self._arm(next_ms)

    # -- serving ------------------------------------------------------------------------------------------------------

    def _serve(self, queue: Queue) -> None:
        watch = self._consumers.watch(queue)
        if watch is None or watch.is_fetching or queue.is_deleted:
            return
        now_ms = self._clock.now_ms()
        while (waiting := watch.line.first()) is not None:
            if isinstance(waiting, Poll) and waiting.answer.done():
                watch.line.leave(waiting)
                continue
            share = max(1, -(-len(queue.ready) // len(watch.line)))
            messages = receiving.receive(
                self._state,
                queue,
                min(waiting.credit, share),
                lease_ms=waiting.lease_ms,
                consumer=waiting.consumer,
                several_per_group=waiting.several_per_group,
                now_ms=now_ms,
            )
            if not messages:
                if queue.rate is not None and queue.ready:
                    queue.look_at(max(queue.rate.next_at_ms(), now_ms + 1), now_ms)
                break
            self._hold(watch, waiting, messages)
            missing = self._paging.missing(messages)
            if missing:
                watch.is_fetching = True
                self._spawn(self._fetch_and_hand_over(watch, waiting, messages))
                break
            self._hand_over(waiting, self._make_deliveries(messages))
        self._after()

    def _hold(self, watch: Watch, waiting: Waiting, messages: list[Message]) -> None:
        """Account for what is about to be handed over, and move whoever gets it to the back of the line."""
        if isinstance(waiting, Poll):
            watch.line.leave(waiting)
            return
        for message in messages:
            waiting.held[message.sequence] = message.delivery_count
            self._recorder.held[message.sequence] = waiting
        if waiting.credit > 0:
            watch.line.to_the_back(waiting)
        else:
            watch.line.leave(waiting)

    def _hand_over(self, waiting: Waiting, deliveries: list[Delivery]) -> None:
        if isinstance(waiting, Subscription):
            if not waiting.is_cancelled and deliveries:
                waiting.deliver(deliveries)
        elif waiting.answer.done():
            self._release_all(deliveries)
        else:
            waiting.answer.set_result(deliveries)

    async def _fetch_and_hand_over(self, watch: Watch, waiting: Waiting, messages: list[Message]) -> None:
        queue = waiting.queue
        try:
            self._hand_over(waiting, await self._deliveries(messages))
        finally:
            watch.is_fetching = False
        if self._failure is None and not self._is_closed:
            self._serve(queue)

    def _settled(self, message: Message) -> None:
        subscription = self._recorder.held.pop(message.sequence)
        assert isinstance(subscription, Subscription)
        self._consumers.settled(subscription, message)

    def _release_all(self, deliveries: list[Delivery]) -> None:
        if self._failure is None and not self._is_closed:
            self.release_now([delivery.receipt for delivery in deliveries])

    # -- bodies -------------------------------------------------------------------------------------------------------

    async def _deliveries(self, messages: list[Message]) -> list[Delivery]:
        await self._fetch(messages)
        return self._make_deliveries(messages)

    def _make_deliveries(self, messages: list[Message]) -> list[Delivery]:
        deliveries = []
        is_over = self._paging.is_over
        for message in messages:
            body = self._paging.body(message)
            if body is None:
                # Damaged or given back while its block was being read; `_fetch` has seen to it.
                continue
            deliveries.append(make_delivery(message, body, self.ids))
            if is_over and message.position <= self._committer.durable_position:
                self._paging.let_go(message)
        return deliveries

    async def _fetch(self, messages: list[Message]) -> None:
        """Read back the blocks that hold paged-out bodies. A damaged one costs its messages, no others."""
        for position in self._paging.missing(messages):
            try:
                self._paging.block_read(position, await asyncio.to_thread(self._log.read, position))
            except LogDamaged as damage:
                self._set_damaged_aside([message for message in messages if message.position == position], damage)

    def _set_damaged_aside(self, messages: list[Message], damage: LogDamaged) -> None:
        now_ms = self._clock.now_ms()
        for message in messages:
            queue = self._state.queues.get(message.queue)
            if queue is not None and queue.find(message.sequence) is message:
                dead_letters.park(self._state, queue, message, Reason.DAMAGED, error=str(damage), now_ms=now_ms)
        self._after()

    async def _copies(self, messages: list[Message]) -> list[Message]:
        """Copies that stay as they are, with their bodies, for somebody to look at."""
        await self._fetch(messages)
        copies = []
        for message in messages:
            shown = copy.copy(message)
            body = self._paging.body(message)
            if body is not None:
                shown.body = body
            copies.append(shown)
        return copies

    # -- the log ------------------------------------------------------------------------------------------------------

    def _seal_soon(self) -> None:
        if not self._is_seal_planned:
            self._is_seal_planned = True
            self._loop.call_soon(self._seal_if_idle)

    def _seal_if_idle(self) -> None:
        self._is_seal_planned = False
        if self._recorder.parts and self._committer.is_idle and self._failure is None:
            self._seal()

    def _seal(self) -> None:
        position = self._recorder.position
        now_ms = self._clock.now_ms()
        block = self._recorder.seal(now_ms)
        self._paging.block_sealed(position)
        self._reclaimer.block_written(position, len(block), now_ms)
        self._committer.submit(position, block)

    def _block_durable(self, position: int) -> None:
        self._paging.block_durable(position)
        if self._recorder.parts and self._committer.is_idle:
            self._seal()
        if not self._is_reclaiming and not self._is_closed and self._reclaimer.next_block() is not None:
            self._is_reclaiming = True
            self._spawn(self._reclaim())

    async def _reclaim(self) -> None:
        """Drop blocks from the front while that is worth it, writing again what still lives in them."""
        try:
            floor = None
            while not self._is_closed and self._failure is None:
                position = self._reclaimer.next_block()
                if position is None or position > self._committer.durable_position:
                    break
                if self._reclaimer.needs_reading(position):
                    block = await asyncio.to_thread(self._log.read, position)
                    self._reclaimer.relocate(position, block)
                    self._after()
                    await self._durable()
                self._reclaimer.dropped(position)
                floor = position + 1
                if floor % 16 == 0:
                    self._committer.drop(floor)
                    await asyncio.sleep(0)
            if floor is not None:
                self._committer.drop(floor)
        finally:
            self._is_reclaiming = False

    def _failed(self, error: BaseException) -> None:
        """The log failed: everybody who waits is told, and every later call is refused."""
        self._failure = error
        stopped = BrokerStopped(f"The broker has stopped because its log failed; restart it. ({error})")
        for queue in self._state.queues.values():
            watch = self._consumers.watch(queue)
            if watch is None:
                continue
            while (waiting := watch.line.first()) is not None:
                watch.line.leave(waiting)
                if isinstance(waiting, Poll) and not waiting.answer.done():
                    waiting.answer.set_exception(stopped)
            for subscription in watch.subscriptions:
                subscription.ended(stopped)

    def _look_around(self) -> None:
        """A few times a second: how disk and memory stand."""
        if self._is_closed:
            return
        free_bytes = self._log.free_bytes()
        is_spent = self._log.is_reserve_spent
        if is_spent and free_bytes is not None and free_bytes >= self._settings.disk_free_bytes_min:
            self._committer.restore_reserve()
        self._pressure.look(free_bytes=free_bytes, is_full=self._committer.is_full, is_reserve_spent=is_spent)
        self._watch_timer = self._loop.call_later(self._settings.watch_interval_s, self._look_around)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._work_done)

    def _work_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is None:
            self._failed(error)
