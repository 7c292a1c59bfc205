"""Subscriptions and the credit that some share, as a session hands them out: what their owner may do with them.

All of these take effect at the engine, wherever it is, and return nothing: whoever subscribed learns by what it is
delivered, and by `ended`. On a subscription that has ended they do nothing, but for `cancel`.
"""

from __future__ import annotations

from collections.abc import Iterable

from smista.engine import CreditPool, QueueSettings, Receipt
from smista.engine import Subscription as EngineSubscription
from smista.engine.interface import Subscribing


class Subscription:
    """See the module; made by `Session.subscribe`."""

    __slots__ = ("_engines", "_subscribing", "prefetch", "queue_number", "settings")

    def __init__(
        self,
        subscribing: Subscribing,
        engines: EngineSubscription,
        prefetch: int,
        queue_number: int,
        settings: QueueSettings,
    ) -> None:
        self._subscribing = subscribing
        self._engines = engines
        self.prefetch = prefetch
        """How many unsettled messages it was promised at most."""
        self.queue_number = queue_number
        self.settings = settings
        """Those of its queue when it began."""

    def set_prefetch(self, prefetch: int) -> None:
        """How many unsettled messages it may hold from now on; what it holds beyond that, it keeps."""
        self._subscribing.set_prefetch(self._engines, prefetch)
        self.prefetch = prefetch

    def widen(self, more: int, most: int) -> None:
        """Let it hold so many more than it holds now, `most` and what its queue allows at most."""
        self._subscribing.widen(self._engines, more, most)

    def hold_back(self, is_held_back: bool) -> None:
        """Push nothing to it for now, whatever its credit; or do so again."""
        self._subscribing.hold_back(self._engines, is_held_back)

    def cancel(self) -> None:
        """End it. What has reached it stays its own, to be settled still; `ConsumerNotFound` if it has ended."""
        self._subscribing.cancel(self._engines, keeps_held=True)


class SharedCredit:
    """Made by `Session.shared_credit`: what several subscriptions may hold together, beside what each may."""

    __slots__ = ("_pool", "_subscribing", "limit")

    def __init__(self, subscribing: Subscribing, limit: int) -> None:
        self._subscribing = subscribing
        self._pool = subscribing.pool(limit)
        self.limit = limit

    def begin(self, members: Iterable[Subscription], receipts: Iterable[Receipt]) -> None:
        """These subscriptions share it, too, and these deliveries count in it, and no others."""
        self._subscribing.begin_pool(self._pool, [member._engines for member in members], receipts)

    def set_limit(self, limit: int) -> None:
        """How much they may hold together from now on."""
        self._subscribing.set_pool_limit(self._pool, limit)
        self.limit = limit

    def let_go(self, receipts: Iterable[Receipt]) -> None:
        """These count no longer, whatever has become of their messages and queues."""
        self._subscribing.let_go_in_pool(self._pool, receipts)

    def counts(self, receipt: Receipt) -> bool:
        return self._pool.counts(receipt)


# What only a session does with them: it knows the engine's own.


def engines(subscriptions: Iterable[Subscription]) -> list[EngineSubscription]:
    return [one._engines for one in subscriptions]


def pool_of(shared: SharedCredit | None) -> CreditPool | None:
    return None if shared is None else shared._pool
