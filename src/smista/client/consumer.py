"""One consumer of a worker: takes from its queue, has so many handlers run at a time, keeps their leases alive.

A handler that hangs, and a process that is stopped in the middle, must lose their message, and one that is merely slow
must keep it. So deliveries have a lease, and while a handler runs the lease is extended, up to `max_run_ms`; after that
it runs out, and the broker gives the message to somebody else. The same holds for what waits for a handler.

A subscription that ends, because its queue is gone, is tried again with a back-off: the queue may come.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

import msgspec

from smista.client.async_client import AsyncClient
from smista.client.backoff import Backoff
from smista.client.daemon_pool import DaemonPool
from smista.client.handler import Handler
from smista.client.message import Delivered
from smista.client.settling import RELEASE, Settling
from smista.client.subscription import Subscription
from smista.errors import BrokerError

logger = logging.getLogger("smista.worker")
_RETRY_BASE_MS = 500
_RETRY_CAP_MS = 15_000


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    concurrency: int
    prefetch: int
    lease_ms: int
    max_run_ms: int
    priority: int


class Consumer:
    def __init__(self, client: AsyncClient, handler: Handler, settings: ConsumerSettings) -> None:
        self._client = client
        self._handler = handler
        self._settings = settings
        self._threads = None
        if not handler.is_async:
            self._threads = DaemonPool(settings.concurrency, f"smista-{settings.queue}")
        self._subscription: Subscription[Delivered] | None = None
        self._running_since_s: dict[Delivered, float] = {}
        self._waiting_since_s: dict[Delivered, float] = {}
        """Since when each has been seen waiting for a handler."""
        self._given_up: set[Delivered] = set()
        """Those whose leases are not extended any more."""
        self._is_stopping = asyncio.Event()

    async def run(self) -> None:
        """Until `stop`, and until the handlers that were running then have ended."""
        backoff = Backoff(_RETRY_BASE_MS, _RETRY_CAP_MS)
        try:
            while not self._is_stopping.is_set():
                error = await self._consume(backoff)
                if not self._is_stopping.is_set():
                    wait_s = backoff.next_s()
                    logger.error("Queue %r: %s Trying again in %.1f s.", self._settings.queue, error, wait_s)
                    await self._pause(wait_s)
        finally:
            if self._threads is not None:
                self._threads.shutdown()

    async def stop(self) -> None:
        """Take no more, and give back what no handler has begun."""
        self._is_stopping.set()
        if self._subscription is not None:
            await self._subscription.stop()

    async def _consume(self, backoff: Backoff) -> BrokerError | None:
        """Have messages handled until the subscription ends; returns why it did."""
        settings = self._settings
        subscription = self._subscription = self._client.subscribe_as(
            self._handler.kind,
            settings.queue,
            prefetch=settings.prefetch,
            lease_ms=settings.lease_ms,
            priority=settings.priority,
            consumer=self._handler.name,
        )
        keeper = asyncio.create_task(self._keep_leases(subscription))
        slots = [asyncio.create_task(self._take(subscription, backoff)) for _ in range(settings.concurrency)]
        try:
            [error, *_] = await asyncio.gather(*slots)
        finally:
            keeper.cancel()
            for slot in slots:
                slot.cancel()
            await asyncio.gather(keeper, *slots, return_exceptions=True)
        await subscription.close()
        return error

    async def _take(self, subscription: Subscription[Delivered], backoff: Backoff) -> BrokerError:
        while True:
            try:
                delivery = await anext(subscription)
            except BrokerError as error:
                return error
            backoff.reset()
            if delivery not in self._given_up:
                await self._handle(delivery)
            self._given_up.discard(delivery)

    async def _handle(self, delivery: Delivered) -> None:
        self._running_since_s[delivery] = time.monotonic()
        try:
            settling = await self._handler.handle(delivery, self._threads)
        except asyncio.CancelledError:
            # Told to stop in the middle. A function in a thread runs on, so its message is left to count as failed.
            if self._handler.is_async and not delivery.is_settled:
                delivery.settle_soon(RELEASE)
            raise
        finally:
            del self._running_since_s[delivery]
        if not delivery.is_settled:
            delivery.settle_soon(settling)

    async def _keep_leases(self, subscription: Subscription[Delivered]) -> None:
        extension = Settling("extend", lease_ms=self._settings.lease_ms)
        while True:
            await asyncio.sleep(self._settings.lease_ms / 3000)
            for delivery in self._to_be_kept(subscription.waiting()):
                assert delivery.settler is not None
                delivery.settler.settle_soon(extension, delivery.name)

    def _to_be_kept(self, waiting: list[Delivered]) -> Iterator[Delivered]:
        now_s = time.monotonic()
        self._waiting_since_s = {delivery: self._waiting_since_s.get(delivery, now_s) for delivery in waiting}
        held = self._running_since_s | self._waiting_since_s
        self._given_up &= held.keys()
        for delivery, since_s in held.items():
            if delivery.is_settled or delivery.is_void or delivery in self._given_up:
                continue
            if (now_s - since_s) * 1000 < self._settings.max_run_ms:
                yield delivery
            else:
                self._given_up.add(delivery)
                logger.warning(
                    "Message %s of queue %r is not done after %d ms: its lease is left to run out.",
                    delivery.id,
                    delivery.queue,
                    self._settings.max_run_ms,
                )

    async def _pause(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._is_stopping.wait()
        except TimeoutError:
            return
