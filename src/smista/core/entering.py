"""How one message enters one queue: checked, then deduplication, then limits, then it gets its sequence.

A message that is refused changes nothing. Whatever has to leave a queue to make room leaves before anything enters: its
records stand before those of the publish, and none of them is about a message that is not noted yet. The caller notes
what entered, since several may share a record.
"""

from __future__ import annotations

import msgspec

from smista.core.checks import check_publication
from smista.core.dead_letters import DROPPED_AT_ONCE, discard, set_aside
from smista.core.dedup import DedupMemory, Seen, dedup_key
from smista.core.errors import QueueFull
from smista.core.limits import MAKES_ROOM, can_make_room, has_room, is_limited, may_not_stay
from smista.core.message import Envelope, Fate, Message, Publication, Reason
from smista.core.queue import Queue
from smista.core.settings import Overflow
from smista.core.state import BrokerState
from smista.errors import BrokerError


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where a publication ended up."""

    number: int
    created_at_ms: int
    position: int
    """Its place in the queue: 1 is next. 0 for a duplicate."""
    queue: str
    is_duplicate: bool = False


Result = Placed | BrokerError


def let_in(
    state: BrokerState, queue: Queue, publication: Publication, now_ms: int, sent_as: str | None = None
) -> tuple[Message | None, Placed]:
    """Let a publication in, or raise why not. The caller notes the message; None where it was stored before.

    `sent_as` names it as a part of its batch: one that has an id of its own and is sent again in the same batch is not
    stored again, but is no duplicate to whoever sends it.
    """
    check_publication(state, queue, publication)
    settings = queue.settings
    envelope = publication.envelope
    key = None
    if envelope.deduplication_id is not None or settings.dedup_by_body:
        key = dedup_key(settings, publication)
        seen = seen_before(queue, key, now_ms)
        if seen is not None:
            queue.counters.duplicates += 1
            sent = seen_before(queue, sent_as, now_ms)
            is_again = sent is not None and sent.number == seen.number
            return None, Placed(seen.number, seen.created_at_ms, 0, queue.name, not is_again)
    if is_limited(queue):
        make_room(state, queue, len(publication.body), now_ms)
    message = enter(state, queue, publication, now_ms)
    if key is not None:
        remember(state, queue, key, message, now_ms)
        if sent_as is not None:
            remember(state, queue, sent_as, message, now_ms)
    line = queue.line
    if message.ready_at_ms > now_ms:
        position = len(queue.ready) + 1
    elif line is None or queue.groups is not None:
        # Of a group only the first stands in line.
        position = len(queue.ready)
    else:
        position = line.position(message.priority)
    return message, Placed(message.number, now_ms, position, queue.name)


def enter(state: BrokerState, queue: Queue, publication: Publication, now_ms: int) -> Message:
    settings, envelope, priority = queue.settings, publication.envelope, publication.priority
    sequence = state.next_sequence
    state.next_sequence = sequence + 1
    message = Message(
        sequence,
        sequence,
        queue.number,
        envelope,
        publication.body,
        settings.default_priority if priority is None else min(priority, settings.max_priority),
        now_ms,
        now_ms,
    )
    if publication.deliver_at_ms is not None or publication.delay_ms is not None or settings.delay_ms:
        message.ready_at_ms = due_at_ms(queue, publication, now_ms)
    if settings.message_ttl_ms is not None or envelope.ttl_ms is not None:
        message.expires_at_ms = message.ready_at_ms + ttl_ms(queue, envelope)
    queue.insert(message, now_ms)
    queue.counters.published += 1
    return message


def enter_promised(state: BrokerState, queue: Queue, publication: Publication, now_ms: int) -> Message | None:
    key = dedup_key(queue.settings, publication)
    if seen_before(queue, key, now_ms) is not None:
        queue.counters.duplicates += 1
        return None
    message = enter(state, queue, publication, now_ms)
    if key is not None:
        remember(state, queue, key, message, now_ms)
    return message


def crowd_promised(state: BrokerState, queue: Queue, message: Message, now_ms: int) -> None:
    """Nothing made room for it, so its queue may hold too much now."""
    if is_limited(queue) or may_not_stay(queue, message, now_ms):
        state.crowd(queue, message, now_ms)


def refuse(state: BrokerState, queue: Queue, publication: Publication, error: BrokerError, now_ms: int) -> None:
    """Count a publish that failed, and set the message aside where the queue wants that of what it has no room for."""
    queue.counters.rejected += 1
    if isinstance(error, QueueFull) and queue.settings.overflow is Overflow.DEAD_LETTER_NEWEST:
        message = enter(state, queue, publication, now_ms)
        state.journal.enqueued(queue, (message,), now_ms)
        fate = Fate(Reason.OVERFLOW, None, "", now_ms)
        if not set_aside(state, queue, message, fate):
            discard(state, queue, message, Reason.OVERFLOW, now_ms=now_ms)


def make_room(state: BrokerState, queue: Queue, body_bytes: int, now_ms: int, *, is_dry: bool = False) -> None:
    """Let the overflow policy see to it that one more body fits, or raise `QueueFull`. A dry run changes nothing."""
    settings = queue.settings
    for _ in range(DROPPED_AT_ONCE):
        if has_room(queue, body_bytes):
            return
        oldest = queue.line.oldest() if settings.overflow in MAKES_ROOM and queue.line is not None else None
        if oldest is None or not can_make_room(queue, body_bytes):
            raise queue_full(queue)
        if is_dry:
            return
        if settings.overflow is Overflow.DEAD_LETTER_OLDEST:
            # Parked here it would make no room.
            if not set_aside(state, queue, oldest, Fate(Reason.OVERFLOW, None, "", now_ms)):
                raise QueueFull(
                    f"Queue {queue.name!r} is full and no dead-letter queue takes its oldest; empty one of them."
                )
        else:
            discard(state, queue, oldest, Reason.OVERFLOW, now_ms=now_ms)
    # A limit that was lowered, or one large body for many small ones: the rest goes when this is over.
    state.crowd(queue, None, now_ms)


def will_take(state: BrokerState, queue: Queue, body_bytes: int) -> bool:
    """Whether there is room, or will be when those have gone that have to."""
    return has_room(queue, body_bytes) or queue in state.crowded


def queue_full(queue: Queue) -> QueueFull:
    settings = queue.settings
    is_too_deep = settings.max_depth is not None and queue.limited_depth >= settings.max_depth
    what = f"{queue.limited_depth} messages" if is_too_deep else f"{queue.limited_bytes} bytes"
    return QueueFull(
        f"Queue {queue.name!r} is full: it holds {what} and its limit is "
        f"{settings.max_depth if is_too_deep else settings.max_bytes}; consume, purge or raise the limit."
    )


def is_duplicate(queue: Queue, publication: Publication, now_ms: int) -> bool:
    return seen_before(queue, dedup_key(queue.settings, publication), now_ms) is not None


def seen_before(queue: Queue, key: str | None, now_ms: int) -> Seen | None:
    memory = queue.dedup
    return None if memory is None or key is None else memory.get(key, now_ms)


def remember(state: BrokerState, queue: Queue, key: str, message: Message, now_ms: int) -> None:
    seen = Seen(message.number, now_ms, now_ms + queue.settings.dedup_window_ms)
    if queue.dedup is None:
        queue.dedup = DedupMemory()
    queue.dedup.forget_expired(now_ms)
    queue.dedup.remember(key, seen)
    state.journal.remembered(queue, key, seen)


def due_at_ms(queue: Queue, publication: Publication, now_ms: int) -> int:
    if publication.deliver_at_ms is not None:
        return max(now_ms, publication.deliver_at_ms)
    if publication.delay_ms is not None:
        return now_ms + publication.delay_ms
    return now_ms + queue.settings.delay_ms


def ttl_ms(queue: Queue, envelope: Envelope) -> int:
    """The shorter of the message's and the queue's time to live."""
    return min(ttl for ttl in (envelope.ttl_ms, queue.settings.message_ttl_ms) if ttl is not None)
