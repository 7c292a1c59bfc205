"""A subscription and pages for programs without an event loop.

The program's thread calls the loop's once per batch or page, not once per message: a call between threads took 75 us
(on a busy machine), where the client takes 3 to 6 us for a whole message.

A thread can be interrupted between any two calls, by Ctrl-C or by a signal handler that raises, and then the result of
a call is lost before it is assigned. So deliveries are never passed as a result: the loop's thread stores them, and a
delivery that is being taken is in two places rather than in none.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections import deque
from types import TracebackType
from typing import Generic, Self, TypeVar

from smista.client.message import SyncDelivery
from smista.client.pages import Pages
from smista.client.portal import Portal, acquire, call_on
from smista.client.session import retrieve_error
from smista.client.settling import RELEASE, TagSettler
from smista.client.subscription import Subscription

T = TypeVar("T")


class SyncSubscription:
    """An iterator of deliveries, and a context manager that closes it. Several threads may take from one."""

    def __init__(self, portal: Portal, subscription: Subscription[SyncDelivery]) -> None:
        self._portal = portal
        self._subscription = subscription
        # Reentrant, because it knows its owner: a thread interrupted while acquiring it can still release it.
        self._lock = threading.RLock()
        self._batch: deque[SyncDelivery] = deque()
        """Deliveries not taken yet; filled by the loop's thread, emptied under the lock."""
        self._filling: asyncio.Task[None] | None = None
        """Fills `_batch` when something arrives, even if the thread that waited was interrupted."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._subscription.queue

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or the broker ended it."""
        return self._subscription.is_over

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncDelivery:
        delivery = self.next()
        assert delivery is not None
        return delivery

    def next(self, *, timeout_ms: int | None = None) -> SyncDelivery | None:
        """The next delivery; None if none came within `timeout_ms`."""
        taken: list[SyncDelivery] = []
        try:
            self._take(taken, 1, timeout_ms)
            return taken[0] if taken else None
        except BaseException:
            self._put_back(taken)
            raise

    def next_batch(self, limit: int | None = None, *, timeout_ms: int | None = None) -> list[SyncDelivery]:
        """All deliveries that are here, up to `limit`; waits for the first. Empty if none came within `timeout_ms`."""
        taken: list[SyncDelivery] = []
        try:
            self._take(taken, limit, timeout_ms)
            return taken
        except BaseException:
            self._put_back(taken)
            raise

    def _take(self, taken: list[SyncDelivery], limit: int | None, timeout_ms: int | None) -> None:
        # First: in a forked child the lock may stay held for ever.
        self._portal.check_process()
        deadline_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        try:
            if not acquire(self._lock, None if timeout_ms is None else timeout_ms / 1000):
                return
            while not self._hand_out(taken, limit):
                left_ms = None if deadline_s is None else max(0, round((deadline_s - time.monotonic()) * 1000))
                if not self._portal.run(functools.partial(self._fill, left_ms)):
                    return
        finally:
            # First, without another call before it, since a call can be interrupted: the lock must be released.
            try:  # noqa: SIM105
                self._lock.release()
            except RuntimeError:
                pass  # we do not hold it

    def _hand_out(self, taken: list[SyncDelivery], limit: int | None) -> bool:
        """Move deliveries into `taken`; returns whether there are any."""
        batch = self._batch
        while batch and (limit is None or len(taken) < limit):
            delivery = batch[0]
            # A void delivery is dropped: the broker delivers its message again.
            if not delivery.is_void:
                taken.append(delivery)
            batch.popleft()
        return bool(taken)

    def _put_back(self, taken: list[SyncDelivery]) -> None:
        """After an interrupt: keep the deliveries that were being taken."""
        if taken and self._batch and self._batch[0] is taken[-1]:
            taken.pop()
        self._batch.extendleft(reversed(taken))

    async def _fill(self, timeout_ms: int | None) -> bool:
        """On the loop: wait for deliveries; returns whether there are any."""
        if not self._batch:
            if self._filling is None or self._filling.done():
                self._filling = asyncio.create_task(self._arrival())
                self._filling.add_done_callback(retrieve_error)
            await asyncio.wait({self._filling}, timeout=None if timeout_ms is None else timeout_ms / 1000)
            if self._filling.done():
                self._filling.result()
        return bool(self._batch)

    async def _arrival(self) -> None:
        self._batch.extend(await self._subscription.next_batch())

    def ack_up_to(self, delivery: SyncDelivery) -> None:
        """Acknowledge it and everything delivered before it to this subscription, without waiting."""
        settler = delivery.settler
        assert isinstance(settler, TagSettler)
        settler.check_process()
        call_on(settler.loop, lambda: settler.ack_up_to(delivery.tag))

    def settled(self) -> None:
        """Return when all that was settled so far is on the broker's disk; raises the first error."""
        self._portal.run(self._subscription.settled)

    def set_prefetch(self, prefetch: int) -> None:
        """Change how many unsettled messages it may hold."""
        self._portal.run(lambda: self._subscription.set_prefetch(prefetch))

    def close(self) -> None:
        """Take no more, release what was not taken, and wait until what was settled is on the broker's disk."""
        # Unsubscribe before releasing: a message released while subscribed would be pushed here again.
        self._portal.run(self._subscription.stop)
        with self._lock:
            self._portal.run(self._give_back)
        self._portal.run(self._subscription.close)

    async def _give_back(self) -> None:
        while self._batch:
            delivery = self._batch.popleft()
            if not delivery.is_void:
                delivery.settle_soon(RELEASE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SyncPages(Generic[T]):
    """An iterator that fetches a page at a time; changes made meanwhile may or may not be seen."""

    def __init__(self, portal: Portal, pages: Pages[T]) -> None:
        self._portal = portal
        self._pages = pages
        self._page: deque[T] = deque()

    def next_page(self) -> list[T]:
        """The next items, at least one; an empty list at the end."""
        page = list(self._page) or self._portal.run(self._pages.next_page)
        self._page.clear()
        return page

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not self._page:
            self._page.extend(self.next_page())
            if not self._page:
                raise StopIteration
        return self._page.popleft()
