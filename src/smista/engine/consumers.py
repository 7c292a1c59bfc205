"""Who waits for messages: long polls and subscriptions, and how messages reach them.

    ready message ─▶ queue reports itself woken ─▶ `serve`, at the end of the turn, or before limits are kept:
        while somebody waits with credit and the queue has messages:
            the one that has waited longest gets its share, and goes to the back of the line

A burst is distributed round robin among those who wait, as in RabbitMQ; each gets its share in one go, unless they
share a channel. Where that cannot be done (long polls, several priorities, shared credit, ordered groups, a rate), a
share is what is ready divided by those waiting. A single message goes to the longest-waiting one.

A subscription has credit for `prefetch` unsettled deliveries and lives until it is cancelled; a long poll asks once.
Bodies that are paged out are fetched first; the queue serves nobody else meanwhile, so that order holds. Nor does it
while very much goes back to it, see `settling`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

from smista.core.queue import Queue
from smista.core.receiving import check_lease
from smista.core.settings import check_text
from smista.core.waiting import WaitingLine
from smista.engine.clock import Clock
from smista.engine.poll import Poll
from smista.engine.subscription import Subscription
from smista.errors import BrokerError, ConsumerNotFound, InvalidArgument, QueueDeleted, QueueInExclusiveUse

CONSUMER_LENGTH_MAX = 1024


Waiting = Poll | Subscription


class Watch:
    """All that wait on one queue."""

    __slots__ = ("active", "is_fetching", "line", "subscriptions")

    def __init__(self) -> None:
        self.line: WaitingLine[Waiting] = WaitingLine()
        self.subscriptions: dict[Subscription, None] = {}
        self.active: Subscription | None = None
        """The one that is served, in a queue with a single active consumer."""
        self.is_fetching = False


class Consumers:
    """The waiting ones of all queues."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watches: dict[int, Watch] = {}
        self._held_up: dict[int, int] = {}
        """By number, queues that serve nobody for now, and how many want it so."""

    def watch(self, queue: Queue) -> Watch | None:
        return self._watches.get(queue.number)

    def count(self, queue: Queue) -> int:
        watch = self._watches.get(queue.number)
        return 0 if watch is None else len(watch.subscriptions)

    def hold_up(self, numbers: Iterable[int]) -> None:
        """These queues serve nobody who waits until they have been let `go_on` as many times."""
        for number in numbers:
            self._held_up[number] = self._held_up.get(number, 0) + 1

    def go_on(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._held_up[number] -= 1
            if not self._held_up[number]:
                del self._held_up[number]

    def is_held_up(self, queue: Queue) -> bool:
        return queue.number in self._held_up

    def check_poll(self, queue: Queue) -> None:
        if queue.settings.single_active_consumer and self.count(queue):
            raise _in_exclusive_use(queue)

    def add_poll(self, poll: Poll) -> None:
        self._open(poll.queue).line.join(poll)

    def add_subscription(self, subscription: Subscription) -> None:
        queue = subscription.queue
        watch = self._open(queue)
        watch.subscriptions[subscription] = None
        if not queue.settings.single_active_consumer:
            self.has_credit(subscription)
        else:
            self._hand_over(queue, watch)

    def remove_poll(self, poll: Poll) -> None:
        watch = self._watches.get(poll.queue.number)
        if watch is not None:
            watch.line.leave(poll)
            self._close_if_unused(poll.queue, watch)

    def check_subscribed(self, subscription: Subscription) -> None:
        if subscription.is_cancelled:
            raise ConsumerNotFound(
                f"Consumer {subscription.consumer!r} of queue {subscription.queue.name!r} has been cancelled already."
            )

    def leave(self, subscriptions: Sequence[Subscription]) -> None:
        """Subscriptions are over: none of them gets anything any more. What they hold they still have."""
        leaving = [subscription for subscription in subscriptions if not subscription.is_cancelled]
        for subscription in leaving:
            _end(subscription)
            watch = self._watches.get(subscription.queue.number)
            if watch is not None:
                watch.line.leave(subscription)
                watch.subscriptions.pop(subscription, None)
                if watch.active is subscription:
                    watch.active = None
        for queue in {subscription.queue for subscription in leaving}:
            watch = self._watches.get(queue.number)
            if watch is not None:
                self._hand_over(queue, watch)
                self._close_if_unused(queue, watch)

    def settings_changed(self, queue: Queue) -> None:
        """Whether only one consumer is served at a time may have changed."""
        watch = self._watches.get(queue.number)
        if watch is None:
            return
        if queue.settings.single_active_consumer:
            self._hand_over(queue, watch)
            for subscription in watch.subscriptions:
                if subscription is not watch.active:
                    watch.line.leave(subscription)
        else:
            watch.active = None
            for subscription in watch.subscriptions:
                self.has_credit(subscription)

    def _hand_over(self, queue: Queue, watch: Watch) -> None:
        """Where a queue serves one consumer at a time and none is served: of the highest priority, the one that has
        waited longest."""
        if queue.settings.single_active_consumer and watch.active is None and watch.subscriptions:
            watch.active = max(watch.subscriptions, key=lambda each: each.priority)
            # Whoever polled before there was one would get messages beside it.
            _end_polls(watch, _in_exclusive_use(queue))
            self.has_credit(watch.active)

    def _close_if_unused(self, queue: Queue, watch: Watch) -> None:
        is_used = watch.subscriptions or len(watch.line)
        if not is_used and self._watches.get(queue.number) is watch:
            del self._watches[queue.number]
            queue.is_watched = False
            # Waiting is use, until it ends.
            queue.used_at_ms = self._clock.now_ms()

    def settled(self, subscription: Subscription) -> None:
        """Messages it held were let go: their credit is free again."""
        if subscription.pool is None:
            self.has_credit(subscription)
        else:
            for member in subscription.pool.members:
                self.has_credit(member)

    def has_credit(self, subscription: Subscription) -> None:
        """A subscription may have become able to take more: it goes back into the line."""
        queue = subscription.queue
        watch = self._watches.get(queue.number)
        if watch is None or subscription.is_cancelled:
            return
        is_served = not queue.settings.single_active_consumer or watch.active is subscription
        if is_served and subscription.credit > 0:
            watch.line.join(subscription)
            queue.woken[queue] = None

    def end(self, queue: Queue, error: BrokerError | None = None) -> None:
        """Everybody who waits on the queue gets this error: that it was deleted, unless another is given."""
        watch = self._watches.pop(queue.number, None)
        queue.is_watched = False
        if watch is None:
            return
        error = error or deleted(queue)
        _end_polls(watch, error)
        # All of them are out of the line before the first one is called back, and may do something about it.
        ended = list(watch.subscriptions)
        for subscription in ended:
            _end(subscription)
        for subscription in ended:
            subscription.ended(error)

    def _open(self, queue: Queue) -> Watch:
        watch = self._watches.get(queue.number)
        if watch is None:
            watch = self._watches[queue.number] = Watch()
            queue.is_watched = True
        return watch


def check_consumer(consumer: str, lease_ms: int | None) -> None:
    """Before anybody stands in line: what is wrong must not come up when they are served, among others."""
    check_text("consumer", consumer)
    if len(consumer) > CONSUMER_LENGTH_MAX:
        raise InvalidArgument(
            f"The consumer's name has {len(consumer)} characters; give it {CONSUMER_LENGTH_MAX} at most."
        )
    if lease_ms is not None:
        check_lease(lease_ms)


def deleted(queue: Queue) -> QueueDeleted:
    return QueueDeleted(f"Queue {queue.name!r} was deleted meanwhile.")


def _in_exclusive_use(queue: Queue) -> QueueInExclusiveUse:
    return QueueInExclusiveUse(
        f"Queue {queue.name!r} serves a single active consumer; subscribe and wait to take over from it."
    )


def _end_polls(watch: Watch, error: BrokerError) -> None:
    for poll in [waiting for waiting in watch.line if isinstance(waiting, Poll)]:
        watch.line.leave(poll)
        if not poll.answer.done():
            # One for each: whoever catches it may add to it.
            poll.answer.set_exception(copy.copy(error))


def _end(subscription: Subscription) -> None:
    subscription.is_cancelled = True
    if subscription.pool is not None:
        subscription.pool.members.pop(subscription, None)
