"""Who waits for messages: long polls and subscriptions, and how messages reach them.

    ready message ─▶ queue reports itself woken ─▶ `serve`, at the end of the turn, or before limits are kept:
        while somebody waits with credit and the queue has messages:
            the one that has waited longest gets its share, and goes to the back of the line

A burst is dealt out to those who wait, one message to each in turn, as in RabbitMQ; each gets its share in one go,
unless they share a lane.
Where they cannot be dealt with alike (long polls, several priorities, shared credit, ordered groups, a rate), a share
is what is ready divided by those waiting. A single message goes to the longest-waiting one.

A subscription has credit for `prefetch` unsettled deliveries and lives until it is cancelled; a long poll asks once.
Bodies that are paged out are fetched first; the queue serves nobody else meanwhile, so that order holds. Nor does it
while very much goes back to it, see `leaving`.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Iterable, Sequence

from smista.core.errors import ConsumerNotFound, QueueDeleted, QueueInExclusiveUse
from smista.core.message import Receipt
from smista.core.queue import Queue
from smista.core.waiting import WaitingLine
from smista.engine.clock import Clock
from smista.engine.delivery import Delivery
from smista.errors import BrokerError

RECEIVED_BYTES_MAX = 16 << 20
"""Of bodies that one receive or one look hands out, give or take a message: where they are large, fewer come."""
PUSHED_BYTES_MAX = 1 << 20
"""The same of what a subscription is handed at a time. It gets more as soon as it can: whoever writes to a slow reader
can say so in between."""
_entry_numbers = itertools.count(1 << 40)


class Poll:
    """One long poll: an entry of the calendar while it waits."""

    __slots__ = ("answer", "consumer", "deadline_ms", "lease_ms", "limit", "queue", "sequence", "several_per_group")

    priority = 0
    bytes_max = RECEIVED_BYTES_MAX

    def __init__(
        self,
        queue: Queue,
        limit: int,
        lease_ms: int | None,
        consumer: str,
        answer: asyncio.Future[list[Delivery]],
        *,
        several_per_group: bool,
    ) -> None:
        self.queue = queue
        self.limit = limit
        self.lease_ms = lease_ms
        self.consumer = consumer
        self.answer = answer
        self.several_per_group = several_per_group
        # As an entry of the calendar, far below the numbers of queues.
        self.sequence = -next(_entry_numbers)
        self.deadline_ms: int | None = None

    @property
    def credit(self) -> int:
        return self.limit


class CreditPool:
    """Credit that several subscriptions share, beside what each has of its own."""

    __slots__ = ("held", "limit", "members")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: set[tuple[int, int]] = set()
        """By queue and sequence, what counts against the limit: what members hold, and what they held when its queue
        was deleted, until whoever owns the pool lets go of it."""
        self.members: dict[Subscription, None] = {}

    @property
    def credit(self) -> int:
        return self.limit - len(self.held)


class Subscription:
    """A standing consumer. `deliver` is called with each batch, on the loop; `ended` once, if the broker ends it."""

    __slots__ = (
        "consumer",
        "deliver",
        "ended",
        "fetching",
        "held",
        "is_cancelled",
        "is_counted",
        "is_held_back",
        "lane",
        "lease_ms",
        "pool",
        "prefetch",
        "priority",
        "queue",
    )

    bytes_max = PUSHED_BYTES_MAX
    several_per_group = False

    def __init__(
        self,
        queue: Queue,
        consumer: str,
        deliver: Callable[[list[Delivery]], None],
        ended: Callable[[BrokerError], None],
        *,
        prefetch: int,
        priority: int,
        lease_ms: int | None,
        pool: CreditPool | None = None,
        is_counted: bool = True,
        lane: object = None,
    ) -> None:
        self.queue = queue
        self.consumer = consumer
        self.deliver = deliver
        self.ended = ended
        self.prefetch = prefetch
        self.priority = priority
        self.lease_ms = lease_ms
        self.held: dict[int, Receipt] = {}
        """By sequence, the receipts of what it has not settled."""
        self.fetching: list[Receipt] = []
        """Those of them that have not reached it, as their bodies are being read back."""
        self.is_cancelled = False
        self.is_held_back = False
        """Its consumer cannot take more just now, whatever its credit."""
        self.pool = pool
        self.lane = self if lane is None else lane
        """What brings messages to it. To those who share one, they go in the order in which they are dealt out."""
        self.is_counted = is_counted
        """Whether what it holds counts in its pool. If not, it gets what it likes while there is credit at all."""
        if pool is not None:
            pool.members[self] = None

    @property
    def credit(self) -> int:
        own = 0 if self.is_held_back else self.prefetch - len(self.held)
        if self.pool is None:
            return own
        if self.is_counted:
            return min(own, self.pool.credit)
        return own if self.pool.credit > 0 else 0

    def hold(self, sequences: list[int], receipts: list[Receipt]) -> None:
        self.held.update(zip(sequences, receipts, strict=True))
        if self.pool is not None and self.is_counted:
            self.pool.held.update((self.queue.number, sequence) for sequence in sequences)

    def let_go(self, sequences: list[int]) -> None:
        held = self.held
        for sequence in sequences:
            held.pop(sequence, None)
        if self.pool is not None and not self.queue.is_deleted:
            self.pool.held.difference_update((self.queue.number, sequence) for sequence in sequences)


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
        """Everybody who waits on the queue is told that it is over: it was deleted, unless `error` says otherwise."""
        watch = self._watches.pop(queue.number, None)
        queue.is_watched = False
        if watch is None:
            return
        error = error or deleted(queue)
        _end_polls(watch, error)
        # All of them are out of the line before the first one hears of it, and may do something about it.
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
