"""A subscription and pages for programs without an event loop.

The loop's thread and the program's meet once per batch or page, not once per message: a hop was measured at 75 us (on
a busy machine), against 3 to 6 us of the client's time for a whole message.

A thread can be interrupted between any two calls, by Ctrl-C or by a signal handler that raises, and then what a call
has returned is lost before it has a name. So deliveries are never passed as a result: the loop's thread puts them where
they are kept, and one that is being handed out is in two places rather than in none.
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
from smista.client.portal import Portal, call_on
from smista.client.session import heard
from smista.client.settling import RELEASE, TagSettler
from smista.client.subscription import Subscription

T = TypeVar("T")


class SyncSubscription:
    """An iterator of deliveries, and a context manager that closes it. Several threads may take from one."""

    def __init__(self, portal: Portal, subscription: Subscription[SyncDelivery]) -> None:
        self._portal = portal
        self._subscription = subscription
        # It knows who holds it, so that it can be released by whoever was interrupted on the way to know it himself.
        self._lock = threading.RLock()
        self._batch: deque[SyncDelivery] = deque()
        """What is here and not handed out; filled by the loop's thread, emptied by whoever has the lock."""
        self._filling: asyncio.Task[None] | None = None
        """Fills it when something comes, whether somebody still waits for that or was interrupted."""

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
        """The next delivery; None when there was none for so long."""
        taken: list[SyncDelivery] = []
        try:
            self._take(taken, 1, timeout_ms)
            return taken[0] if taken else None
        except BaseException:
            self._put_back(taken)
            raise

    def next_batch(self, limit: int | None = None, *, timeout_ms: int | None = None) -> list[SyncDelivery]:
        """All that is here, up to `limit`, waiting for the first; an empty list when there was none for so long."""
        taken: list[SyncDelivery] = []
        try:
            self._take(taken, limit, timeout_ms)
            return taken
        except BaseException:
            self._put_back(taken)
            raise

    def _take(self, taken: list[SyncDelivery], limit: int | None, timeout_ms: int | None) -> None:
        # In a forked child the lock may be held for ever.
        self._portal.check_process()
        deadline_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        try:
            if not self._lock.acquire(timeout=-1 if timeout_ms is None else timeout_ms / 1000):
                return
            while not self._hand_out(taken, limit):
                left_ms = None if deadline_s is None else max(0, round((deadline_s - time.monotonic()) * 1000))
                if not self._portal.run(functools.partial(self._fill, left_ms)):
                    return
        finally:
            # Nothing is called before, since a thread is interrupted at calls: it must not be left locked.
            try:  # noqa: SIM105
                self._lock.release()
            except RuntimeError:
                pass  # we do not hold it

    def _hand_out(self, taken: list[SyncDelivery], limit: int | None) -> bool:
        """Move deliveries into `taken`; whether there are any."""
        batch = self._batch
        while batch and (limit is None or len(taken) < limit):
            delivery = batch[0]
            # What the broker has put back since it came here comes again.
            if not delivery.is_void:
                taken.append(delivery)
            batch.popleft()
        return bool(taken)

    def _put_back(self, taken: list[SyncDelivery]) -> None:
        """Interrupted: what was to be handed out is still here."""
        if taken and self._batch and self._batch[0] is taken[-1]:
            taken.pop()
        self._batch.extendleft(reversed(taken))

    async def _fill(self, timeout_ms: int | None) -> bool:
        """On the loop: wait for something to be here; whether it is."""
        if not self._batch:
            if self._filling is None or self._filling.done():
                self._filling = asyncio.create_task(self._arrival())
                self._filling.add_done_callback(heard)
            await asyncio.wait({self._filling}, timeout=None if timeout_ms is None else timeout_ms / 1000)
            if self._filling.done():
                self._filling.result()
        return bool(self._batch)

    async def _arrival(self) -> None:
        self._batch.extend(await self._subscription.next_batch())

    def ack_up_to(self, delivery: SyncDelivery) -> None:
        """Acknowledge it and everything delivered before it to this subscription; not waited for."""
        settler = delivery.settler
        assert isinstance(settler, TagSettler)
        settler.check_process()
        call_on(settler.loop, lambda: settler.ack_up_to(delivery.tag))

    def settled(self) -> None:
        """Return when all that was settled so far is on the broker's disk; raises the first that had no effect."""
        self._portal.run(self._subscription.settled)

    def set_prefetch(self, prefetch: int) -> None:
        """How many unsettled messages it may hold from now on."""
        self._portal.run(lambda: self._subscription.set_prefetch(prefetch))

    def close(self) -> None:
        """Take no more, give back what was not handed out, and wait until what was settled is on the broker's disk."""
        # First no more, then back: what is given back while we are subscribed is pushed to us again.
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
    """An iterator; pages are fetched as it goes, so what changes meanwhile may or may not be seen."""

    def __init__(self, portal: Portal, pages: Pages[T]) -> None:
        self._portal = portal
        self._pages = pages
        self._page: deque[T] = deque()

    def next_page(self) -> list[T]:
        """The next messages, at least one; an empty list at the end."""
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
