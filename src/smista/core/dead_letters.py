"""Dead letters: where a message goes that failed for good, expired or had to make room; and how it comes back.

A move is one record: out of one queue and into the other. The message is a new object in its new queue, under a new
sequence (so it stands behind what is there) and the same number; its past deliveries go into a `Death`, its count
starts again. When no target can take it, it is parked, in state dead, where it is; it is never dropped in silence.

Where a message can go is found first, and asked of each target without changing it; only then is a dead-letter queue
made that is not there yet, and the message moved. A target that drops its oldest takes one too many and is left in
`state.over_limit`, see `trimming`. A full target that refuses takes it only where it has consumers and its limits count
what nobody holds, and only where the dead letter would be dropped otherwise. If it would be parked, it is parked.

A dead-letter exchange may lead to very many queues, and it may take long to find them; that is one step for each
message. So whoever sets aside many messages one after the other counts what that takes (`is_much`) and leaves the rest
for later. One that would reach more queues than a publish may is parked.
"""

from __future__ import annotations

from msgspec.structs import replace

from smista.caches import cached_if_small
from smista.core.checks import how_full
from smista.core.dead_letter_target import MOVES, find_way
from smista.core.declaring import declare_queue, look_after
from smista.core.exchanges import QUEUES_MAX
from smista.core.limits import has_room, is_one_by_one, is_over
from smista.core.message import PLAIN, Death, Envelope, Fate, Message, Reason, State
from smista.core.queue import Queue
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.core.state import BrokerState
from smista.errors import MessageNotFound, QueueFull

DEATHS_KEPT = 16
COPIES_AT_ONCE = 1_000
"""So many enter queues before the rest has to wait: some 6 ms."""
TOO_WIDE = (
    f"The dead-letter exchange leads to more than {QUEUES_MAX} queues, or past very many exchanges or patterns; bind "
    "less to it."
)
BODY_LOST = "The body cannot be read from the log, so the message cannot be moved to where its body is written again."


def is_much(state: BrokerState, since: int, more: int = 0) -> bool:
    """Whether so much was done since `state.work` was this, that the rest should wait."""
    return state.work - since >= COPIES_AT_ONCE + more


def expire(
    state: BrokerState,
    queue: Queue,
    message: Message,
    *,
    failed_by: Reason | None = None,
    error: str = "",
    now_ms: int,
) -> None:
    """A message's time to live, or its queue's retention, has run out. Only the former makes a dead letter."""
    # What is dead already can only outlive the retention.
    is_ttl = message.expires_at_ms is not None and message.expires_at_ms <= now_ms and message.state is not State.DEAD
    if is_ttl and queue.settings.dead_letter in MOVES:
        dead_letter(state, queue, message, Fate(Reason.EXPIRED, failed_by, error, now_ms))
    else:
        discard(state, queue, message, Reason.EXPIRED if is_ttl else Reason.RETIRED, now_ms=now_ms)


def discard(state: BrokerState, queue: Queue, message: Message, reason: Reason, *, now_ms: int) -> None:
    """A message goes for good without having been acknowledged."""
    state.journal.removed(queue, (message,), reason, now_ms)
    apply_removed(queue, message, reason)


def dead_letter(state: BrokerState, queue: Queue, message: Message, fate: Fate) -> None:
    """Set a message aside as the queue's settings say: to its target, parked, or dropped."""
    if not set_aside(state, queue, message, fate):
        park(state, queue, message, fate)


def set_aside(state: BrokerState, queue: Queue, message: Message, fate: Fate) -> bool:
    """Get a message out of the queue as its settings say; False, and still there, if it can only be parked."""
    mode = queue.settings.dead_letter
    if mode is DeadLetterMode.DROP:
        discard(state, queue, message, fate.reason, now_ms=fate.at_ms)
        return True
    way = find_way(state, queue, message, fate)
    if way.is_open:
        if not _can_be_written(state, queue, message, way.targets):
            park(state, queue, message, replace(fate, reason=Reason.DAMAGED, error=BODY_LOST))
            return True
        targets = way.targets or [_make_target(state, queue, way.to_make, fate.at_ms)]
        _move_to(state, queue, message, targets, fate, way.address)
    elif way.is_too_wide:
        park(state, queue, message, replace(fate, error=TOO_WIDE))
        return True
    elif mode is DeadLetterMode.MOVE_OR_DROP:
        discard(state, queue, message, fate.reason, now_ms=fate.at_ms)
    return way.is_open or mode is DeadLetterMode.MOVE_OR_DROP


def can_set_aside(state: BrokerState, queue: Queue, message: Message, fate: Fate, count: int = 1) -> bool:
    """Whether `set_aside` would get a message out of the queue as things are now, and so many in all like it."""
    mode = queue.settings.dead_letter
    if mode in (DeadLetterMode.DROP, DeadLetterMode.MOVE_OR_DROP):
        return True
    way = find_way(state, queue, message, fate, count)
    state.looked_at += len(way.targets)
    return way.is_open


def park(state: BrokerState, queue: Queue, message: Message, fate: Fate) -> None:
    """Set a message aside where it is, in state dead."""
    state.journal.dying(message)
    apply_parked(queue, message, fate)
    state.journal.parked(queue, message, fate)


def _move_to(
    state: BrokerState,
    source: Queue,
    message: Message,
    targets: list[Queue],
    fate: Fate,
    address: tuple[str, str] | None = None,
) -> Message:
    """Move a message to the first target in one step; the other targets of a dead-letter exchange get copies.

    `address`: the exchange and key by which it goes there.
    """
    sequence = state.next_sequence
    state.next_sequence = sequence + len(targets)
    moved = _restart(message, targets[0], sequence, fate.at_ms)
    if address is not None:
        moved.envelope = readdressed(message.envelope, *address)
    state.journal.dying(message)
    apply_moved(source, message, targets[0], moved, fate)
    state.journal.moved(source, message, targets[0], moved, fate)
    if address is not None:
        state.journal.readdressed(targets[0], moved)
    copies: list[tuple[Queue, Message]] = []
    for extra, target in enumerate(targets[1:], 1):
        copy = _restart(moved, target, sequence + extra, fate.at_ms)
        copy.number = copy.sequence
        target.insert(copy, fate.at_ms)
        copies.append((target, copy))
    if copies:
        state.journal.copied(copies, moved)
    for target, copy in ((targets[0], moved), *copies):
        look_after(target, fate.at_ms)
        state.entered(target, copy, fate.at_ms)
        if fate.reason is not Reason.REDRIVEN and is_one_by_one(target) and is_over(target):
            state.beyond.setdefault(target, []).append(copy)
    return moved


def redrive(
    state: BrokerState,
    queue: Queue,
    message: Message,
    *,
    to: Queue | None = None,
    now_ms: int,
) -> Message | None:
    """Send a dead letter back: to the queue it came from, or to `to`, whose limits hold.

    Deduplication does not apply, and the retry count starts again. A parked message goes back into its own queue. None
    where it has left the queue since it was found, or cannot be moved.
    """
    if queue.find(message.sequence) is not message:
        return None
    target = to or source_of(state, queue, message)
    is_counted = target is queue and message.state is not State.DEAD
    if not is_counted and not has_room(target, message.body_bytes):
        raise QueueFull(
            f"Queue {target.name!r} is full: {how_full(state, target)}; what has not been redriven yet stays in "
            f"{queue.name!r}."
        )
    if not _can_be_written(state, queue, message, [target]):
        if message.state is not State.DEAD:
            park(state, queue, message, Fate(Reason.DAMAGED, None, BODY_LOST, now_ms))
        return None
    return _move_to(state, queue, message, [target], Fate(Reason.REDRIVEN, None, "", now_ms))


def _can_be_written(state: BrokerState, source: Queue, message: Message, targets: list[Queue]) -> bool:
    """Whether a move can do what it must with the body: asked before it begins, so that it never ends halfway. Without
    targets one is made that is like its source.

    Within the log a move leaves the body where it is. Copies, and a queue on only one side of it that is not durable,
    need its bytes."""
    stays = not targets or (len(targets) == 1 and source.settings.durable == targets[0].settings.durable)
    return stays or state.journal.has_body(message)


def source_of(state: BrokerState, queue: Queue, message: Message) -> Queue:
    """The queue a dead letter came from."""
    if not message.deaths:
        raise MessageNotFound(f"This message of queue {queue.name!r} is no dead letter; name a queue to move it to.")
    return state.queue(message.deaths[-1].queue, queue.namespace)


# -- transitions, shared with recovery ------------------------------------------------------------------------------


def apply_moved(source: Queue, message: Message, target: Queue, copy: Message, fate: Fate) -> None:
    """Out of one queue, into the other as `copy`."""
    if fate.reason is Reason.REDRIVEN:
        target.counters.redriven += 1
    else:
        _die(source, message, fate)
    copy.deaths = message.deaths
    source.remove(message)
    target.insert(copy, fate.at_ms)


def apply_left(source: Queue, message: Message, fate: Fate) -> None:
    """Out of a queue into one that is not kept in the log: to recovery that is the end of it."""
    if fate.reason is not Reason.REDRIVEN:
        _die(source, message, fate)
    source.remove(message)


def apply_parked(queue: Queue, message: Message, fate: Fate) -> None:
    _die(queue, message, fate)
    queue.park(message)


def apply_removed(queue: Queue, message: Message, reason: Reason) -> None:
    queue.counters.count_removal(reason)
    queue.remove(message)


def _restart(message: Message, target: Queue, sequence: int, at_ms: int) -> Message:
    """The message as it enters another queue. Its old lifetime ends: TTL and retention count from here."""
    ttl_ms = target.settings.message_ttl_ms
    return Message(
        sequence,
        message.number,
        target.number,
        message.envelope,
        message.body,
        min(message.priority, target.settings.max_priority),
        message.created_at_ms,
        at_ms,
        position=message.position,
        expires_at_ms=None if ttl_ms is None else at_ms + ttl_ms,
        deaths=message.deaths,
    )


def readdressed(envelope: Envelope, exchange: str, routing_key: str) -> Envelope:
    """As a dead-letter exchange sends it on. Its own time to live is over."""
    global _last_readdressed
    before, sent_on = _last_readdressed
    # What messages share, copies of a fan-out, they share afterwards too, however large.
    if before is not envelope or (sent_on.exchange, sent_on.routing_key) != (exchange, routing_key):
        sent_on = _readdressed(envelope, exchange, routing_key)
        _last_readdressed = envelope, sent_on
    return sent_on


_last_readdressed = (PLAIN, PLAIN)


@cached_if_small(lambda envelope, exchange, routing_key: envelope.size + len(exchange) + len(routing_key))
def _readdressed(envelope: Envelope, exchange: str, routing_key: str) -> Envelope:
    return replace(envelope, exchange=exchange, routing_key=routing_key, ttl_ms=None)


def _die(queue: Queue, message: Message, fate: Fate) -> None:
    """Add one more death to a message; dying again in the same place for the same reason counts that one up."""
    queue.counters.count_death(fate.reason)
    if fate.failed_by is not None:
        queue.note_failure(message, fate.failed_by, fate.error, fate.at_ms)
    deliveries = message.deliveries
    same = [death for death in message.deaths if (death.queue, death.reason) == (queue.name, fate.reason)]
    others = [death for death in message.deaths if (death.queue, death.reason) != (queue.name, fate.reason)]
    death = Death(
        queue.name,
        fate.reason,
        fate.at_ms,
        0 if deliveries is None else deliveries.count,
        () if deliveries is None else deliveries.failures,
        same[0].exchange if same else message.envelope.exchange,
        same[0].routing_key if same else message.envelope.routing_key,
        1 + sum(earlier.count for earlier in same),
        same[0].first_at_ms if same else fate.at_ms,
        same[0].is_first if same else not message.deaths,
    )
    message.deaths = (*others[-DEATHS_KEPT + 1 :], death)


def _make_target(state: BrokerState, queue: Queue, name: str, now_ms: int) -> Queue:
    return declare_queue(
        state,
        name,
        QueueSettings(
            dead_letter=DeadLetterMode.PARK,
            max_depth=queue.settings.dead_letter_max_depth,
            max_priority=queue.settings.max_priority,
            ordered=queue.settings.ordered,
            group_turns=queue.settings.group_turns,
            fair=queue.settings.fair,
            durable=queue.settings.durable,
        ),
        namespace=queue.namespace,
        now_ms=now_ms,
    )
