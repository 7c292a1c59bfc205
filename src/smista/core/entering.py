"""How one message enters one queue: checked, then deduplication, then limits, then it gets its sequence.

First everything is asked that could refuse a message (`check_publication`, `find_duplicate`, `admit`), of every queue
that it goes to, and nothing changes. Then room is made for it, and then it is stored, which nothing can refuse. So a
message that is refused has changed nothing, and one that goes to several queues enters all of them.

The caller notes what entered, since several may share a record. Whatever leaves to make room leaves before: none of its
records is about a message that is not noted yet.

To ask whether dead letters would be taken, to make room by them and to set aside what is refused may be very much work,
for each message. Where it was in one step (see `is_much`), the rest of the step is *hurried*: what was found last goes
for all that follows, and what has to leave leaves later, see `trimming`.
"""

from __future__ import annotations

import msgspec

from smista.core.checks import check_publication
from smista.core.dead_letters import can_set_aside
from smista.core.dedup import DedupMemory, Seen, dedup_key
from smista.core.errors import QueueFull
from smista.core.limits import MAKES_ROOM, can_make_room, has_room, next_to_go, over_by
from smista.core.message import Envelope, Fate, Message, Publication, Reason
from smista.core.queue import Queue
from smista.core.settings import Overflow
from smista.core.state import BrokerState
from smista.core.trimming import make_room, turn_away
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
    state: BrokerState,
    queue: Queue,
    publication: Publication,
    now_ms: int,
    sent_as: str | None = None,
    *,
    is_open: bool | None = None,
) -> tuple[Message | None, Placed]:
    """Let a publication in, or raise why not. The caller notes the message; None where it was stored before. `is_open`
    where it is hurried, as in `admit`."""
    check_publication(state, queue, publication)
    key = dedup_key(queue.settings, publication)
    duplicate = find_duplicate(
        queue, key, now_ms, sent_as, has_own_id=publication.envelope.deduplication_id is not None
    )
    if duplicate is not None:
        queue.counters.duplicates += 1
        return None, duplicate
    if queue.settings.is_limited:
        admit(state, queue, len(publication.body), now_ms, is_open=is_open)
        if is_open is None:
            make_room(state, queue, len(publication.body), now_ms)
    message = store(state, queue, publication, key, now_ms, sent_as)
    return message, placed(queue, message, now_ms)


def find_duplicate(
    queue: Queue, key: str | None, now_ms: int, sent_as: str | None = None, *, has_own_id: bool = False
) -> Placed | None:
    """Where a message is that was stored before under the same key, see `dedup_key`; None where it is new.

    `sent_as` names it as a part of its batch: what is sent again in the same batch is not stored again. One that has an
    id of its own is no duplicate then to whoever sends it.
    """
    if queue.dedup is None:
        return None
    seen, sent = seen_before(queue, key, now_ms), seen_before(queue, sent_as, now_ms)
    found = seen or sent
    if found is None:
        return None
    is_again = has_own_id and sent is not None and sent.number == found.number
    return Placed(found.number, found.created_at_ms, 0, queue.name, not is_again)


def admit(state: BrokerState, queue: Queue, body_bytes: int, now_ms: int, *, is_open: bool | None = None) -> None:
    """Raise why a queue does not take one more body, if it does not. Changes nothing: others may refuse it yet.

    `is_open` says whether its oldest would be taken as a dead letter; None asks those who would."""
    if has_room(queue, body_bytes):
        return
    overflow = queue.settings.overflow
    goes = next_to_go(queue)
    if overflow not in MAKES_ROOM or goes is None or not can_make_room(queue, body_bytes):
        raise _full(queue)
    # Parked here it would make no room. If others could not go before, they have to go too.
    if is_open is None and overflow is Overflow.DEAD_LETTER_OLDEST:
        fate = Fate(Reason.OVERFLOW, None, "", now_ms)
        is_open = can_set_aside(state, queue, goes, fate, 1 + over_by(queue))
    if overflow is Overflow.DEAD_LETTER_OLDEST and not is_open:
        raise QueueFull(f"Queue {queue.name!r} is full and no dead-letter queue takes its oldest; empty one of them.")


def placed(queue: Queue, message: Message, now_ms: int) -> Placed:
    """The answer for a message that has just entered."""
    line = queue.line
    if message.ready_at_ms > now_ms:
        position = len(queue.ready) + 1
    elif line is None or queue.groups is not None:
        # Of a group only the first stands in line.
        position = len(queue.ready)
    else:
        position = line.position(message.priority)
    return Placed(message.number, now_ms, position, queue.name)


def store(
    state: BrokerState,
    queue: Queue,
    publication: Publication,
    key: str | None,
    now_ms: int,
    sent_as: str | None = None,
) -> Message:
    """Put a message into a queue and remember its deduplication key. Refuses nothing; the caller notes it."""
    message = _enter(state, queue, publication, now_ms)
    for name in (key, sent_as):
        if name is not None:
            remember(state, queue, name, message, now_ms)
    return message


def _enter(state: BrokerState, queue: Queue, publication: Publication, now_ms: int) -> Message:
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


def refuse(
    state: BrokerState,
    queue: Queue,
    publication: Publication,
    error: BrokerError,
    now_ms: int,
    *,
    is_hurried: bool = False,
) -> None:
    """Count a publish that failed, and set the message aside where the queue wants that of what it has no room for."""
    queue.counters.rejected += 1
    if isinstance(error, QueueFull) and queue.settings.overflow is Overflow.DEAD_LETTER_NEWEST:
        message = _enter(state, queue, publication, now_ms)
        state.journal.enqueued(queue, (message,), now_ms)
        if is_hurried:
            state.beyond.setdefault(queue, []).append(message)
            state.crowd(queue)
        else:
            turn_away(state, queue, message, now_ms)


def _full(queue: Queue) -> QueueFull:
    settings = queue.settings
    is_too_deep = settings.max_depth is not None and queue.limited_depth >= settings.max_depth
    what = f"{queue.limited_depth} messages" if is_too_deep else f"{queue.limited_bytes} bytes"
    return QueueFull(
        f"Queue {queue.name!r} is full: it holds {what} and its limit is "
        f"{settings.max_depth if is_too_deep else settings.max_bytes}; consume, purge or raise the limit."
    )


def seen_before(queue: Queue, key: str | None, now_ms: int) -> Seen | None:
    memory = queue.dedup
    return None if memory is None or key is None else memory.get(key, now_ms)


def remember(state: BrokerState, queue: Queue, key: str, message: Message, now_ms: int) -> None:
    seen = Seen(message.number, now_ms, now_ms + queue.settings.dedup_window_ms)
    if queue.dedup is None:
        queue.dedup = DedupMemory(state.remembered)
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
