"""Receiving: the next messages of a queue, each under a lease."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from smista.core.at_once import properties_bytes
from smista.core.dead_letters import expire, is_much
from smista.core.message import FOREVER_MS, Message
from smista.core.queue import Queue
from smista.core.state import BrokerState
from smista.errors import InvalidArgument

Deal = tuple[int | None, str]
"""How one of several gets its share: the lease, and the consumer's name, as `receive` takes them."""
UNBOUNDED = 1 << 62
EXPIRED_AT_ONCE = 250
MEASURED_AT_ONCE = 64
"""So many messages are taken before their properties are added up, where there is a bound on those."""
WEIGHED = 16
"""Where bodies are small, so many messages may come together however long their headers are."""


def receive(
    state: BrokerState,
    queue: Queue,
    limit: int,
    *,
    lease_ms: int | None = None,
    consumer: str = "",
    several_per_group: bool = False,
    bytes_max: int = UNBOUNDED,
    properties_max: int = UNBOUNDED,
    now_ms: int,
) -> list[Message]:
    """Up to `limit` messages, in flight from now on; none when the queue is empty, paused or over its rate.

    None comes after the one whose body and headers make them `bytes_max` bytes or more together, or whose properties
    alone make them `properties_max` bytes; where bodies are large there may be fewer still, but one at least.

    Of messages whose time is over it lets go of some; where there are very many of them, see `has_more`.

    `lease_ms` None means the queue's; `FOREVER_MS` never runs out. `several_per_group` lets one call take messages that
    follow each other in one ordered group. Nothing else of the group goes out before the first of them is settled.
    """
    if lease_ms is None:
        lease_ms = queue.settings.lease_ms
    else:
        check_lease(lease_ms)
    queue.used_at_ms = now_ms
    if queue.line is None or queue.is_paused:
        return []
    if queue.rate is not None:
        limit = min(limit, queue.rate.available(now_ms))
    counters = queue.counters
    before = counters.first_delivered, counters.wait_ms_total
    taken = _take_at_once(queue, limit, bytes_max, properties_max, now_ms) if queue.groups is None else None
    leased = 0
    if taken is None:
        taken, leased = _take_one_by_one(state, queue, limit, bytes_max, properties_max, several_per_group, now_ms)
    if taken:
        _lease(state, queue, taken, leased, before, lease_ms, consumer, now_ms)
    return taken


def deal(
    state: BrokerState,
    queue: Queue,
    rounds: int,
    to: Sequence[Deal],
    *,
    is_fit: Callable[[list[Message]], bool],
    bytes_max: int,
    properties_max: int = UNBOUNDED,
    now_ms: int,
) -> list[list[Message]]:
    """Hand out messages one by one in turn, as cards are dealt, up to `rounds` to each; what each of them gets.

    Nothing, where `is_fit` says so of the messages, or where they have to be looked at one by one: some are over, or
    wait for others, or may only go out so fast. `bytes_max` and `properties_max` as in `receive`.
    """
    line = queue.line
    if line is None or queue.is_paused or queue.groups is not None or queue.rate is not None:
        return []
    taken = _take_at_once(queue, rounds * len(to), bytes_max, properties_max, now_ms)
    if taken is None:
        return []
    if not is_fit(taken):
        for one in taken:
            line.untake(one)
        return []
    queue.used_at_ms = now_ms
    counters = queue.counters
    shares = [taken[place :: len(to)] for place in range(len(to))]
    for share, (lease_ms, consumer) in zip(shares, to, strict=True):
        if share:
            before = counters.first_delivered, counters.wait_ms_total
            lease_ms = queue.settings.lease_ms if lease_ms is None else lease_ms
            _lease(state, queue, share, 0, before, lease_ms, consumer, now_ms)
    return shares


def _take_at_once(queue: Queue, limit: int, bytes_max: int, properties_max: int, now_ms: int) -> list[Message] | None:
    """The next messages, out of the line; None, and all where they were, where some of them are over."""
    line = queue.line
    assert line is not None
    is_bounded = queue.body_bytes > bytes_max
    if is_bounded:
        limit = _count_within(queue, limit, bytes_max)
    taken = line.take(limit) if properties_max >= UNBOUNDED else _take_measured(queue, limit, properties_max)
    if _over(queue, taken, now_ms):
        for one in taken:
            line.untake(one)
        return None
    if ((is_bounded or len(taken) > WEIGHED) and weigh(taken) > bytes_max) or (
        properties_max < UNBOUNDED and properties_bytes(taken) > properties_max
    ):
        fitting = _within(taken, bytes_max, properties_max)
        for one in taken[len(fitting) :]:
            line.untake(one)
        return fitting
    return taken


def _take_measured(queue: Queue, limit: int, properties_max: int) -> list[Message]:
    """The next messages up to `limit`, and at most `MEASURED_AT_ONCE` beyond those whose properties fit: what is taken
    and put back is work done twice. With properties of 150 bytes each it doubled the cost of a message."""
    line = queue.line
    assert line is not None
    taken: list[Message] = []
    while len(taken) < limit and properties_max > 0:
        some = line.take(min(limit - len(taken), MEASURED_AT_ONCE))
        if not some:
            break
        taken += some
        properties_max -= properties_bytes(some)
    return taken


def _take_one_by_one(
    state: BrokerState,
    queue: Queue,
    limit: int,
    bytes_max: int,
    properties_max: int,
    several_per_group: bool,
    now_ms: int,
) -> tuple[list[Message], int]:
    """The next messages, and how many of them are leased already: those before the last one that was over. Nobody may
    be half out of the line while a message goes."""
    line = queue.line
    assert line is not None
    if queue.body_bytes > bytes_max:
        limit = _count_within(queue, limit, bytes_max)
    taken: list[Message] = []
    leased = expired_count = 0
    since = state.work
    while len(taken) < limit and bytes_max > 0 and properties_max > 0:
        if expired_count >= EXPIRED_AT_ONCE or is_much(state, since):
            break
        message = line.pop()
        if message is None:
            break
        if _over(queue, (message,), now_ms):
            line.untake(message)
            queue.lease_all(taken[leased:], now_ms, state.run)
            leased = len(taken)
            expire(state, queue, message, now_ms=now_ms)
            expired_count += 1
            continue
        taken.append(message)
        bytes_max -= weight(message)
        properties_max -= len(message.envelope.properties)
        if several_per_group and queue.groups is not None:
            following = _within(queue.groups.followers(message, limit - len(taken)), bytes_max, properties_max)
            bytes_max -= weigh(following)
            properties_max -= properties_bytes(following)
            taken += following
    return taken, leased


def _lease(
    state: BrokerState,
    queue: Queue,
    taken: list[Message],
    leased: int,
    before: tuple[int, int],
    lease_ms: int,
    consumer: str,
    now_ms: int,
) -> None:
    """Lease what was taken, all but the first `leased`, which are, and note it. `before` is what the queue had counted
    of first deliveries, and of their waiting, before any of them was leased."""
    queue.lease_all(taken[leased:] if leased else taken, now_ms, state.run)
    deadline_ms = None if lease_ms >= FOREVER_MS else state.shared_instant(now_ms + lease_ms)
    if deadline_ms is not None:
        state.calendar.add_all(taken, deadline_ms, now_ms)
    if queue.rate is not None:
        queue.rate.take(len(taken))
    state.journal.delivered(
        queue,
        taken,
        deadline_ms,
        first_count=queue.counters.first_delivered - before[0],
        wait_ms=queue.counters.wait_ms_total - before[1],
        consumer=consumer,
        at_ms=now_ms,
    )


def _over(queue: Queue, messages: Sequence[Message], now_ms: int) -> list[Message]:
    """Those whose time to live, or their queue's retention, has run out. One that was over as it entered has no
    deadline and is for those who wait, however late they are served; see `trimming`."""
    retention_ms = queue.settings.retention_ms
    oldest_ms = -1 if retention_ms is None else now_ms - retention_ms
    return [
        one
        for one in messages
        if ((one.expires_at_ms or now_ms) < now_ms and one.deadline_ms is not None) or one.ready_at_ms <= oldest_ms
    ]


def _count_within(queue: Queue, limit: int, bytes_max: int) -> int:
    """How many fit into `bytes_max`, up to `limit`, if the next are as large as the others are: what is taken in vain
    makes the line slower."""
    return min(limit, 1 + (bytes_max * (queue.depth + len(queue.dead)) - 1) // queue.body_bytes)


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
    if type(limit) is not int:
        raise InvalidArgument(f"limit is {limit!r:.80}; give a whole number.")
    if queue.line is None:
        return []
    return _within((message for message, _ in zip(queue.line.in_order(), range(limit), strict=False)), bytes_max)


def _within(messages: Iterable[Message], bytes_max: int, properties_max: int = UNBOUNDED) -> list[Message]:
    """Those up to the one that makes them `bytes_max` bytes or more, or their properties `properties_max`."""
    fitting = []
    for message in messages:
        if bytes_max <= 0 or properties_max <= 0:
            break
        fitting.append(message)
        bytes_max -= weight(message)
        properties_max -= len(message.envelope.properties)
    return fitting


def weigh(messages: Sequence[Message]) -> int:
    """What they are together, for whoever gets them: 0.04 us each against 0.1."""
    bodies = [message.body for message in messages]
    try:
        return sum(map(len, bodies)) + properties_bytes(messages)  # type: ignore[arg-type]  # see below
    except TypeError:
        # Some are paged out: there stands how many bytes they have.
        return sum(map(weight, messages))


def weight(message: Message) -> int:
    """What a message is for whoever gets it: here many may share their headers, there each has its own."""
    return message.body_bytes + len(message.envelope.properties)
