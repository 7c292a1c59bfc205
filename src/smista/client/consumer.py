"""One consumer of a worker: takes messages from its queue, runs handlers for them, and extends their leases.

A handler that hangs must lose its message, and so must a process that is stopped in the middle; a handler that is
merely slow must keep it. So deliveries have a lease, which is extended while the handler runs, up to `max_run_ms`.
After that the lease runs out, and the broker gives the message to another consumer. Messages that wait for a handler
are kept as long as at least one handler works. When all of them hang, the waiting messages are released, and no more
are taken until a handler ends; otherwise each would come again and again, and fail each time because its lease ran out.

A subscription that ends because its queue is gone is retried with a back-off: the queue may be declared again.
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
        self._given_up: set[Delivered] = set()
        """Deliveries whose handlers run, but whose leases are not extended any more."""
        self._is_stalled = False
        """Whether all handlers hang, so that no message is taken."""
        self._is_stopping = asyncio.Event()

    async def run(self) -> None:
        """Run until `stop` is called and the handlers that were running then have ended."""
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
        """Handle messages until the subscription ends; returns why it ended."""
        self._subscribe()
        keeper = asyncio.create_task(self._keep_leases())
        slots = [asyncio.create_task(self._take(backoff)) for _ in range(self._settings.concurrency)]
        try:
            [error, *_] = await asyncio.gather(*slots)
        finally:
            keeper.cancel()
            for slot in slots:
                slot.cancel()
            await asyncio.gather(keeper, *slots, return_exceptions=True)
        assert self._subscription is not None
        await self._subscription.close()
        return error

    def _subscribe(self) -> None:
        settings = self._settings
        self._is_stalled = False
        self._subscription = self._client.subscribe_as(
            self._handler.kind,
            settings.queue,
            prefetch=settings.prefetch,
            lease_ms=settings.lease_ms,
            priority=settings.priority,
            consumer=self._handler.name,
        )

    async def _take(self, backoff: Backoff) -> BrokerError:
        while True:
            # Read each time: there is a new subscription after all handlers hung.
            subscription = self._subscription
            assert subscription is not None
            try:
                delivery = await anext(subscription)
            except BrokerError as error:
                if self._subscription is not subscription:
                    continue
                return error
            backoff.reset()
            await self._handle(delivery)
            if self._is_stalled and not self._is_stopping.is_set():
                logger.warning("Queue %r: a handler has ended, so messages are taken again.", self._settings.queue)
                self._subscribe()

    async def _handle(self, delivery: Delivered) -> None:
        self._running_since_s[delivery] = time.monotonic()
        try:
            settling = await self._handler.handle(delivery, self._threads)
        except asyncio.CancelledError:
            # Stopped in the middle. A function in a thread cannot be stopped, so its message is left to count as
            # failed.
            if self._handler.is_async and not delivery.is_settled:
                delivery.settle_soon(RELEASE)
            raise
        finally:
            del self._running_since_s[delivery]
            self._given_up.discard(delivery)
        if settling is not None and not delivery.is_settled:
            delivery.settle_soon(settling)

    async def _keep_leases(self) -> None:
        extension = Settling("extend", lease_ms=self._settings.lease_ms)
        while True:
            await asyncio.sleep(self._settings.lease_ms / 3000)
            for delivery in self._to_be_kept():
                assert delivery.settler is not None
                delivery.settler.settle_soon(extension, delivery.name)
            if len(self._given_up) >= self._settings.concurrency and not self._is_stalled:
                await self._stall()

    async def _stall(self) -> None:
        assert self._subscription is not None
        self._is_stalled = True
        logger.error(
            "Queue %r: all %d handlers hang, so no messages are taken until one of them ends.",
            self._settings.queue,
            self._settings.concurrency,
        )
        await self._subscription.stop()

    def _to_be_kept(self) -> Iterator[Delivered]:
        now_s = time.monotonic()
        assert self._subscription is not None
        for delivery in self._subscription.waiting():
            if not delivery.is_void:
                yield delivery
        for delivery, since_s in self._running_since_s.items():
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
