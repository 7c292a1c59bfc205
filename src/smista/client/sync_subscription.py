"""A subscription and pages for programs without an event loop.

The loop's thread and the program's meet once per batch or page, not once per message: a hop was measured at 75 us (on
a busy machine), against 3 to 6 us of the client's time for a whole message.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import Generic, Self, TypeVar

from smista.client.message import SyncDelivery
from smista.client.pages import Pages
from smista.client.portal import Portal, call_on
from smista.client.settling import RELEASE, TagSettler
from smista.client.subscription import Subscription

T = TypeVar("T")


class SyncSubscription:
    """An iterator of deliveries, and a context manager that closes it. Several threads may take from one."""

    def __init__(self, portal: Portal, subscription: Subscription[SyncDelivery]) -> None:
        self._portal = portal
        self._subscription = subscription
        self._lock = threading.Lock()
        self._batch: deque[SyncDelivery] = deque()

    @property
    def queue(self) -> str:
        return self._subscription.queue

    @property
    def is_over(self) -> bool:
        return self._subscription.is_over

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncDelivery:
        delivery = self.next()
        assert delivery is not None
        return delivery

    def next(self, *, timeout_ms: int | None = None) -> SyncDelivery | None:
        """The next delivery; None when there was none for so long."""
        batch = self._take(1, timeout_ms)
        return batch[0] if batch else None

    def next_batch(self, limit: int | None = None, *, timeout_ms: int | None = None) -> list[SyncDelivery]:
        """All that is here, up to `limit`, waiting for the first; an empty list when there was none for so long."""
        return self._take(limit, timeout_ms)

    def _take(self, limit: int | None, timeout_ms: int | None) -> list[SyncDelivery]:
        deadline_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        if not self._lock.acquire(timeout=-1 if timeout_ms is None else timeout_ms / 1000):
            return []
        try:
            while True:
                taken: list[SyncDelivery] = []
                while self._batch and (limit is None or len(taken) < limit):
                    delivery = self._batch.popleft()
                    # What the broker has put back since it came here comes again.
                    if not delivery.is_void:
                        taken.append(delivery)
                if taken:
                    return taken
                left_ms = None if deadline_s is None else max(0, round((deadline_s - time.monotonic()) * 1000))
                arrived = self._portal.run(self._subscription.next_batch(timeout_ms=left_ms))
                if not arrived:
                    return []
                self._batch.extend(arrived)
        finally:
            self._lock.release()

    def ack_up_to(self, delivery: SyncDelivery) -> None:
        """Acknowledge it and everything delivered before it to this subscription; not waited for."""
        settler = delivery.settler
        assert isinstance(settler, TagSettler)
        call_on(settler.loop, lambda: settler.ack_up_to(delivery.tag))

    def settled(self) -> None:
        """Return when all that was settled so far is on the broker's disk; raises the first that had no effect."""
        self._portal.run(self._subscription.settled())

    def set_prefetch(self, prefetch: int) -> None:
        """How many unsettled messages it may hold from now on."""
        self._portal.run(self._subscription.set_prefetch(prefetch))

    def close(self) -> None:
        """Take no more, give back what was not handed out, and wait until what was settled is on the broker's disk."""
        # First no more, then back: what is given back while we are subscribed is pushed to us again.
        self._portal.run(self._subscription.stop())
        while self._batch:
            delivery = self._batch.popleft()
            if not delivery.is_void:
                delivery.settle_soon(RELEASE)
        self._portal.run(self._subscription.close())

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
        page = list(self._page) or self._portal.run(self._pages.next_page())
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
