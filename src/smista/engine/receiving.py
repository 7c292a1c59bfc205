"""Receiving on a running broker: the next messages at once, some at a time where they are many, or waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from smista.core import receiving, settling
from smista.core.message import Message, Receipt
from smista.core.queue import Queue
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.consumers import check_consumer, deleted
from smista.engine.delivery import Delivery
from smista.engine.poll import RECEIVED_BYTES_MAX, Poll
from smista.engine.running import Running
from smista.errors import InvalidArgument

RECEIVED_AT_ONCE = 500
"""So many are handed out in one turn of the loop: some 3 ms."""
WAIT_MS_MAX = 20_000


class Receiving:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state
        self._consumers = running.consumers

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
        now_ms = self._running.enter_within_limits()
        source = self._state.queue(queue, namespace)
        if type(limit) is not int or not 1 <= limit <= source.settings.max_prefetch:
            raise InvalidArgument(
                f"limit is {limit!r}; queue {queue!r} hands out 1 to {source.settings.max_prefetch} messages at a time"
                f"{self._state.by_policy(source, 'max_prefetch')}."
            )
        if type(wait_ms) is not int or not 0 <= wait_ms <= WAIT_MS_MAX:
            raise InvalidArgument(f"wait_ms is {wait_ms!r}; give 0 to {WAIT_MS_MAX} milliseconds.")
        check_consumer(consumer, lease_ms)
        if not beside_active:
            self._consumers.check_poll(source)
        watch = self._consumers.watch(source)
        if watch is None or not len(watch.line):
            messages = self._receive_some(source, limit, lease_ms, consumer, several_per_group, now_ms)
            self._running.after()
            while not messages and receiving.has_more(source, now_ms):
                # Very many are over: they go some at a time.
                await asyncio.sleep(0)
                now_ms = self._enter_again(source)
                messages = self._receive_some(source, limit, lease_ms, consumer, several_per_group, now_ms)
                self._running.after()
            if messages:
                deliveries = await self._running.dispatcher.deliveries(messages)
                if deliveries or not wait_ms:
                    return await self._with_more(source, deliveries, limit, lease_ms, consumer, several_per_group)
                # All of it went while it was being read.
                now_ms = self._enter_again(source)
        if not wait_ms:
            return []
        deliveries = await self.poll(source, limit, wait_ms, lease_ms, consumer, now_ms, several_per_group)
        return await self._with_more(source, deliveries, limit, lease_ms, consumer, several_per_group)

    async def held(self, receipts: Iterable[Receipt]) -> list[Delivery]:
        """Deliveries that are in flight, once more; without those that are over."""
        found = [settling.find_held(self._state, receipt) for receipt in receipts]
        return await self._running.dispatcher.deliveries([one[1] for one in found if one is not None])

    async def poll(
        self,
        queue: Queue,
        limit: int,
        wait_ms: int,
        lease_ms: int | None,
        consumer: str,
        now_ms: int,
        several_per_group: bool,
    ) -> list[Delivery]:
        """Wait in line for what becomes ready: some of it, or nothing when the time is over."""
        answer: asyncio.Future[list[Delivery]] = self._running.loop.create_future()
        at_once = min(limit, RECEIVED_AT_ONCE)
        poll = Poll(queue, at_once, lease_ms, consumer, answer, several_per_group=several_per_group)
        self._consumers.add_poll(poll)
        self._state.calendar.add(poll, now_ms + wait_ms, now_ms)
        self._running.dispatcher.serve(queue, is_cut=True)
        self._running.after()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._running.give_back([delivery.receipt for delivery in answer.result()])
            raise
        finally:
            self._state.calendar.remove(poll)
            self._consumers.remove_poll(poll)

    def _enter_again(self, queue: Queue) -> int:
        """As `enter`, when others had their turns: the queue may be gone."""
        now_ms = self._running.enter()
        if queue.is_deleted:
            raise deleted(queue)
        return now_ms

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
                await self._running.fair_turns.turn()
                now_ms = self._running.enter()
                watch = self._consumers.watch(queue)
                if queue.is_deleted or (watch is not None and len(watch.line)):
                    break
                left = limit - len(deliveries)
                messages = self._receive_some(queue, left, lease_ms, consumer, several_per_group, now_ms)
                self._running.after()
                more = await self._running.dispatcher.deliveries(messages)
                deliveries += more
                bytes_left -= _size(more)
                if len(messages) < RECEIVED_AT_ONCE:
                    break
        except BaseException:
            # Whoever asked does not get what came first either.
            self._running.give_back([delivery.receipt for delivery in deliveries])
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


def _size(deliveries: Iterable[Delivery]) -> int:
    """What they take for whoever gets them: messages may share their headers here, and do not there."""
    return sum(len(delivery.body) + len(delivery.envelope.properties) for delivery in deliveries)
