"""Receiving: the next messages of a queue, each under a lease."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from smista.core.dead_letters import expire, is_much
from smista.core.errors import InvalidArgument
from smista.core.message import FOREVER_MS, Message
from smista.core.queue import Queue
from smista.core.state import BrokerState

Deal = tuple[int | None, str]
"""How one of several gets its share: the lease, and the consumer's name, as `receive` takes them."""
UNBOUNDED = 1 << 62
EXPIRED_AT_ONCE = 250
_body_bytes = attrgetter("body_bytes")


def receive(
    state: BrokerState,
    queue: Queue,
    limit: int,
    *,
    lease_ms: int | None = None,
    consumer: str = "",
    several_per_group: bool = False,
    bytes_max: int = UNBOUNDED,
    now_ms: int,
) -> list[Message]:
    """Up to `limit` messages, in flight from now on; none when the queue is empty, paused or over its rate.

    None comes after the one whose body makes them `bytes_max` bytes or more together; where bodies are large there may
    be fewer still, but one at least.

    Of messages whose time is over it lets go of some; where there are very many of them, see `has_more`.

    `lease_ms` None means the queue's; `FOREVER_MS` never runs out. `several_per_group` lets one call take messages that
    follow each other in one ordered group. Nothing else of the group goes out before the first of them is settled.
    """
    if lease_ms is None:
        lease_ms = queue.settings.lease_ms
    else:
        check_lease(lease_ms)
    queue.used_at_ms = now_ms
    line = queue.line
    if line is None or queue.is_paused:
        return []
    if queue.rate is not None:
        limit = min(limit, queue.rate.available(now_ms))
    is_bounded = queue.body_bytes > bytes_max
    if is_bounded:
        # What fits where the next are as large as the others are: what is taken in vain makes the line slower.
        limit = min(limit, 1 + (bytes_max * (queue.depth + len(queue.dead)) - 1) // queue.body_bytes)
    retention_ms = queue.settings.retention_ms
    deadline_ms = None if lease_ms >= FOREVER_MS else state.shared_instant(now_ms + lease_ms)
    counters = queue.counters
    first_before, wait_before_ms = counters.first_delivered, counters.wait_ms_total
    taken: list[Message] = []
    leased = 0
    if queue.groups is None:
        taken = line.take(limit)
        oldest_ms = -1 if retention_ms is None else now_ms - retention_ms
        if [one for one in taken if (one.expires_at_ms or now_ms) < now_ms or one.ready_at_ms <= oldest_ms]:
            # One by one, then: some may have to go first.
            for one in taken:
                line.untake(one)
            taken = []
        else:
            limit = 0
            if is_bounded and sum(map(_body_bytes, taken)) > bytes_max:
                fitting = _within(taken, bytes_max)
                for one in taken[len(fitting) :]:
                    line.untake(one)
                taken = fitting
    expired_count, since = 0, state.next_sequence
    while len(taken) < limit and bytes_max > 0 and expired_count < EXPIRED_AT_ONCE and not is_much(state, since):
        message = line.pop()
        if message is None:
            break
        if _is_over(queue, message, now_ms):
            line.untake(message)
            queue.lease_all(taken[leased:], now_ms, state.run)
            leased = len(taken)
            expire(state, queue, message, now_ms=now_ms)
            expired_count += 1
            continue
        taken.append(message)
        bytes_max -= message.body_bytes
        if several_per_group and queue.groups is not None:
            following = _within(queue.groups.followers(message, limit - len(taken)), bytes_max)
            bytes_max -= sum(follower.body_bytes for follower in following)
            taken += following
    if taken:
        queue.lease_all(taken[leased:] if leased else taken, now_ms, state.run)
        if deadline_ms is not None:
            state.calendar.add_all(taken, deadline_ms, now_ms)
        if queue.rate is not None:
            queue.rate.take(len(taken))
        state.journal.delivered(
            queue,
            taken,
            deadline_ms,
            first_count=counters.first_delivered - first_before,
            wait_ms=counters.wait_ms_total - wait_before_ms,
            consumer=consumer,
            at_ms=now_ms,
        )
    return taken


def deal(
    state: BrokerState,
    queue: Queue,
    rounds: int,
    to: Sequence[Deal],
    *,
    is_fit: Callable[[list[Message]], bool],
    bytes_max: int,
    now_ms: int,
) -> list[list[Message]]:
    """Hand out messages one by one in turn, as cards are dealt, up to `rounds` to each; what each of them gets.

    Nothing, where `is_fit` says so of the messages, or where they have to be looked at one by one: some are over, or
    wait for others, or may only go out so fast. At most about `bytes_max` bytes go out.
    """
    line = queue.line
    if line is None or queue.is_paused or queue.groups is not None or queue.rate is not None:
        return []
    limit = rounds * len(to)
    if queue.body_bytes > bytes_max:
        limit = max(1, min(limit, bytes_max * (queue.depth + len(queue.dead)) // queue.body_bytes))
    taken = line.take(limit)
    retention_ms = queue.settings.retention_ms
    oldest_ms = -1 if retention_ms is None else now_ms - retention_ms
    is_over = any((one.expires_at_ms or now_ms) < now_ms or one.ready_at_ms <= oldest_ms for one in taken)
    if is_over or not is_fit(taken):
        for one in taken:
            line.untake(one)
        return []
    queue.used_at_ms = now_ms
    shares = [taken[place :: len(to)] for place in range(len(to))]
    for share, (lease_ms, consumer) in zip(shares, to, strict=True):
        if share:
            _lease(state, queue, share, queue.settings.lease_ms if lease_ms is None else lease_ms, consumer, now_ms)
    return shares


def _lease(state: BrokerState, queue: Queue, taken: list[Message], lease_ms: int, consumer: str, now_ms: int) -> None:
    counters = queue.counters
    first_before, wait_before_ms = counters.first_delivered, counters.wait_ms_total
    queue.lease_all(taken, now_ms, state.run)
    deadline_ms = None if lease_ms >= FOREVER_MS else state.shared_instant(now_ms + lease_ms)
    if deadline_ms is not None:
        state.calendar.add_all(taken, deadline_ms, now_ms)
    state.journal.delivered(
        queue,
        taken,
        deadline_ms,
        first_count=counters.first_delivered - first_before,
        wait_ms=counters.wait_ms_total - wait_before_ms,
        consumer=consumer,
        at_ms=now_ms,
    )


def _is_over(queue: Queue, message: Message, now_ms: int) -> bool:
    """Whether a message's time to live, or its queue's retention, has run out. One that was over as it entered has no
    deadline and is for those who wait, however late they are served; see `trimming`."""
    if message.expires_at_ms is not None and message.expires_at_ms < now_ms and message.deadline_ms is not None:
        return True
    retention_ms = queue.settings.retention_ms
    return retention_ms is not None and message.ready_at_ms + retention_ms <= now_ms


def has_more(queue: Queue, now_ms: int) -> bool:
    """Whether a receive that got nothing should be tried again: it met very many that are over, and others follow."""
    if queue.line is None or queue.is_paused or (queue.rate is not None and not queue.rate.available(now_ms)):
        return False
    return queue.line.first() is not None


def check_lease(lease_ms: object) -> None:
    if type(lease_ms) is not int or not 0 <= lease_ms <= FOREVER_MS:
        raise InvalidArgument(f"lease_ms is {lease_ms!r}; give a whole number of milliseconds, 0 or more.")


def peek(queue: Queue, limit: int, *, bytes_max: int = UNBOUNDED) -> list[Message]:
    """The next messages in the order in which they would be received, without any effect; `bytes_max` as there."""
    if queue.line is None:
        return []
    return _within((message for message, _ in zip(queue.line.in_order(), range(limit), strict=False)), bytes_max)


def _within(messages: Iterable[Message], bytes_max: int) -> list[Message]:
    """Those up to the one whose body makes them `bytes_max` bytes or more."""
    fitting = []
    for message in messages:
        if bytes_max <= 0:
            break
        fitting.append(message)
        bytes_max -= message.body_bytes
    return fitting
