"""Publishing: to a queue by name, or through an exchange to all queues it routes to.

Per message: checked, then deduplication, then limits, then it gets its sequence and enters. A message that is refused
changes nothing and does not keep its neighbours in the batch from being stored. What an exchange routes to several
queues is stored in all of them or in none.

Whatever has to leave a queue to make room leaves before anything enters: its records stand before those of the publish,
and none of them is about a message that is not noted yet.

A batch may have an id of its own, so that whoever did not hear the answer can send it again. Where the whole batch
enters in one step its messages have numbers in a row, and one memory, of the first number, stands for all of them.
Where messages are looked at one by one, each gets a deduplication id made of the batch's and its place in it. Which of
the two was used is found by looking for both: the queue's settings may have changed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from smista.core.dead_letters import DROPPED_AT_ONCE, discard, set_aside
from smista.core.declaring import look_after
from smista.core.dedup import DedupMemory, Seen, batch_key, dedup_key, sent_key
from smista.core.errors import InvalidArgument, InvalidPriority, MessageTooLarge, QueueFull
from smista.core.exchanges import route
from smista.core.limits import MAKES_ROOM, can_make_room, has_room, is_limited, may_not_stay
from smista.core.message import FOREVER_MS, PLAIN, Envelope, Fate, Message, Publication, Reason
from smista.core.queue import Queue
from smista.core.settings import PRIORITY_MAX, Overflow, check_text
from smista.core.state import BrokerState, Namespace
from smista.errors import BrokerError

ID_LENGTH_MAX = 1024
BATCH_ID_LENGTH_MAX = 512
"""Shorter: a message's place in its batch is added to it."""
RETRIES_MAX = 1 << 31
ROUNDS = 3
"""How often queues that fill each other, by their dead letters, are looked at for room."""


class Batch(msgspec.Struct, frozen=True):
    """What makes publications recognisable when they are sent again: see the module."""

    id: str
    first: int = 0
    """The place of the first of these publications in the batch ..."""
    is_whole: bool = True
    """... and whether they are all of it."""


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where a publication ended up."""

    number: int
    created_at_ms: int
    position: int
    """Its place in the queue: 1 is next. 0 for a duplicate."""
    queue: str
    is_duplicate: bool = False


Result = Placed | BrokerError


def is_one_by_one(queue: Queue) -> bool:
    """Whether a queue counts only what nobody holds, refuses what does not fit, and has consumers.

    Whether one more fits is then known only when those have got what came before it: publish one at a time, with
    `keep_limits` in between."""
    settings = queue.settings
    return queue.is_watched and settings.limit_ready_only and is_limited(queue) and settings.overflow not in MAKES_ROOM


def publish(
    state: BrokerState,
    queue: Queue,
    publications: Sequence[Publication],
    *,
    batch: Batch | None = None,
    is_use: bool = True,
    now_ms: int,
) -> list[Result]:
    """Publish to one queue; one result per publication, in order.

    Within the queue's deduplication window the same messages under the same batch id are not stored again. Without
    `is_use` a queue that is deleted when nobody uses it does not live longer for this.
    """
    if is_use:
        queue.used_at_ms = now_ms
    if batch is not None:
        check_id("batch_id", batch.id, BATCH_ID_LENGTH_MAX)
        seen = _seen(queue, batch_key(batch.id), now_ms)
        if seen is not None and batch.is_whole:
            return _publish_plain(state, queue, publications, batch, seen, now_ms)
        if not batch.is_whole or not _is_plain(queue, publications) or _is_numbered(queue, publications, batch, now_ms):
            publications = [_numbered(one, batch, place) for place, one in enumerate(publications, batch.first)]
    if (batch is not None or len(publications) > 1) and _is_plain(queue, publications):
        return _publish_plain(state, queue, publications, batch, None, now_ms)
    results: list[Result] = []
    entered: list[Message] = []
    for place, publication in enumerate(publications, 0 if batch is None else batch.first):
        if entered and is_limited(queue) and not has_room(queue, len(publication.body)):
            # What makes room notes records of its own; those of this batch come first.
            _note_entered(state, queue, entered, now_ms)
            entered = []
        try:
            message, placed = _place(state, queue, publication, now_ms, _sent_as(publication, batch, place))
        except BrokerError as error:
            _refuse(state, queue, publication, error, now_ms)
            results.append(error)
            continue
        results.append(placed)
        if message is not None:
            entered.append(message)
    _note_entered(state, queue, entered, now_ms)
    look_after(queue, now_ms)
    return results


def _note_entered(state: BrokerState, queue: Queue, entered: Sequence[Message], now_ms: int) -> None:
    """Note messages that have just entered a queue, and see to it that those leave again that may not stay."""
    if entered:
        state.journal.enqueued(queue, entered, now_ms)
        for message in entered:
            if may_not_stay(queue, message, now_ms):
                state.crowd(queue, message, now_ms)
        state.journal.between()


def publish_alike(
    state: BrokerState,
    queue: Queue,
    bodies: Sequence[bytes],
    like: Publication,
    *,
    is_use: bool = True,
    now_ms: int,
) -> list[tuple[int, BrokerError]]:
    """Publish bodies that have all but themselves in common with `like`. Tells which were refused, by their place in
    `bodies`, and why. Measured at half of what `publish` takes, where the queue looks at nothing one by one."""
    limit = queue.settings.body_bytes_max or state.body_bytes_max
    if not _is_plain(queue, (like,)) or max(map(len, bodies)) > limit:
        publications = [msgspec.structs.replace(like, body=body) for body in bodies]
        results = publish(state, queue, publications, is_use=is_use, now_ms=now_ms)
        return [(place, result) for place, result in enumerate(results) if not isinstance(result, Placed)]
    try:
        check_publication(state, queue, like)
    except BrokerError as error:
        queue.counters.rejected += len(bodies)
        return [(place, error) for place in range(len(bodies))]
    if is_use:
        queue.used_at_ms = now_ms
    number, envelope, priority = queue.number, like.envelope, queue.settings.default_priority
    entered = [
        Message(sequence, sequence, number, envelope, body, priority, now_ms, now_ms)
        for sequence, body in enumerate(bodies, state.next_sequence)
    ]
    state.next_sequence += len(entered)
    queue.insert_ready(entered, sum(map(len, bodies)))
    queue.counters.published += len(entered)
    state.journal.enqueued_alike(queue, entered, now_ms)
    look_after(queue, now_ms)
    return []


def publish_to_queues(
    state: BrokerState, queues: Sequence[Queue], publication: Publication, *, is_use: bool = True, now_ms: int
) -> list[Result]:
    """Publish one message to several queues, each for itself: one that refuses it does not keep it from the others."""
    refused: dict[Queue, BrokerError] = {}
    for _ in range(ROUNDS):
        # What had to leave one of them may have gone to another.
        for queue in queues:
            if queue not in refused:
                try:
                    _prepare(state, queue, publication, now_ms)
                except BrokerError as error:
                    refused[queue] = error
    results: list[Result] = []
    copies: list[tuple[Queue, Message]] = []
    for queue in queues:
        if is_use:
            queue.used_at_ms = now_ms
        is_full = queue not in refused and not _will_take(state, queue, len(publication.body))
        if is_full and not _is_duplicate(queue, publication, now_ms):
            refused[queue] = _full(queue)
        if queue in refused:
            results.append(refused[queue])
            continue
        message, placed = _place(state, queue, publication, now_ms)
        results.append(placed)
        if message is not None:
            copies.append((queue, message))
    _fan_out(state, copies, now_ms)
    for queue, refusal in refused.items():
        _refuse(state, queue, publication, refusal, now_ms)
    return results


def _prepare(state: BrokerState, queue: Queue, publication: Publication, now_ms: int) -> None:
    """Make room for a publication that may enter, or raise why it may not."""
    check_publication(state, queue, publication)
    if is_limited(queue) and not _is_duplicate(queue, publication, now_ms):
        make_room(state, queue, len(publication.body), now_ms)


def _refuse(state: BrokerState, queue: Queue, publication: Publication, error: BrokerError, now_ms: int) -> None:
    """Count a publish that failed, and set the message aside where the queue wants that of what it has no room for."""
    queue.counters.rejected += 1
    if isinstance(error, QueueFull) and queue.settings.overflow is Overflow.DEAD_LETTER_NEWEST:
        message = _enter(state, queue, publication, now_ms)
        state.journal.enqueued(queue, (message,), now_ms)
        fate = Fate(Reason.OVERFLOW, None, "", now_ms)
        if not set_aside(state, queue, message, fate):
            discard(state, queue, message, Reason.OVERFLOW, now_ms=now_ms)


def _is_plain(queue: Queue, publications: Sequence[Publication]) -> bool:
    """Whether all of a batch enter ready and at one priority, with nothing to look up, make room for or time."""
    settings = queue.settings
    if (
        queue.groups is not None
        or settings.dedup_by_body
        or is_limited(queue)
        or settings.message_ttl_ms is not None
        or settings.delay_ms
    ):
        return False
    is_flat = settings.clamp_priority and settings.max_priority == settings.default_priority == 0
    for publication in publications:
        envelope = publication.envelope
        if (
            (publication.priority is not None and not is_flat)
            or publication.delay_ms is not None
            or publication.deliver_at_ms is not None
            or (envelope is not PLAIN and not _is_plain_envelope(envelope))
        ):
            return False
    return True


def _is_plain_envelope(envelope: Envelope) -> bool:
    return type(envelope) is Envelope and envelope.deduplication_id is None and envelope.ttl_ms is None


def is_known_batch(queue: Queue, batch_id: str, now_ms: int) -> bool:
    """Whether a batch of this id entered in one step before; it is recognised as a whole then."""
    return _seen(queue, batch_key(batch_id), now_ms) is not None


def _is_numbered(queue: Queue, publications: Sequence[Publication], batch: Batch, now_ms: int) -> bool:
    """Whether messages of this batch were stored one by one before."""
    if queue.dedup is None:
        return False
    return any(
        _is_duplicate(queue, _numbered(one, batch, place), now_ms)
        for place, one in enumerate(publications, batch.first)
    )


def _numbered(publication: Publication, batch: Batch, place: int) -> Publication:
    envelope = publication.envelope
    if type(envelope) is not Envelope or envelope.deduplication_id is not None:
        return publication
    envelope = msgspec.structs.replace(envelope, deduplication_id=f"{batch.id}/{place}")
    return msgspec.structs.replace(publication, envelope=envelope)


def _sent_as(publication: Publication, batch: Batch | None, place: int) -> str | None:
    """What a message with an id of its own is remembered by as a part of its batch; None where its id says that."""
    if batch is None or publication.envelope.deduplication_id == f"{batch.id}/{place}":
        return None
    return sent_key(batch.id, place)


def _publish_plain(
    state: BrokerState,
    queue: Queue,
    publications: Sequence[Publication],
    batch: Batch | None,
    seen: Seen | None,
    now_ms: int,
) -> list[Result]:
    """As one after the other; measured at half the cost, for what is nearly every batch. `seen` where they entered so
    before, in one step."""
    results: list[Result] = []
    entered: list[Message] = []
    limit = queue.settings.body_bytes_max or state.body_bytes_max
    checked = PLAIN
    priority = queue.settings.default_priority
    position = 1 if queue.line is None else queue.line.position(priority) + 1
    sequence = state.next_sequence if seen is None else seen.number
    for publication in publications:
        envelope, body = publication.envelope, publication.body
        if envelope is not checked or type(body) is not bytes or len(body) > limit:
            try:
                check_publication(state, queue, publication)
            except BrokerError as error:
                queue.counters.rejected += 1
                results.append(error)
                continue
            # Messages published alike share an envelope.
            checked = envelope
        if seen is None:
            entered.append(Message(sequence, sequence, queue.number, envelope, body, priority, now_ms, now_ms))
            results.append(Placed(sequence, now_ms, position, queue.name))
            position += 1
        else:
            results.append(Placed(sequence, seen.created_at_ms, 0, queue.name, True))
            queue.counters.duplicates += 1
        sequence += 1
    if entered:
        state.next_sequence = sequence
        queue.insert_ready(entered, sum([message.body_bytes for message in entered]))
        queue.counters.published += len(entered)
        state.journal.enqueued(queue, entered, now_ms)
        if batch is not None:
            _remember(state, queue, batch_key(batch.id), entered[0], now_ms)
        look_after(queue, now_ms)
    return results


def publish_promised(state: BrokerState, queue: Queue, publications: Sequence[Publication], *, now_ms: int) -> int:
    """Publish what was checked before and may not be refused any more: duplicates stay out, limits do not count.

    All records of this stand together. What has to make room leaves afterwards, see `trimming`. Returns how many
    entered.
    """
    limit = queue.settings.body_bytes_max or state.body_bytes_max
    if max(len(one.body) for one in publications) <= limit and _is_plain(queue, publications):
        _publish_plain(state, queue, publications, None, None, now_ms)
        return len(publications)
    entered = [message for one in publications if (message := _enter_promised(state, queue, one, now_ms)) is not None]
    if entered:
        state.journal.enqueued(queue, entered, now_ms)
        for message in entered:
            _crowd_promised(state, queue, message, now_ms)
    look_after(queue, now_ms)
    return len(entered)


def publish_promised_to_several(
    state: BrokerState, queues: Sequence[Queue], publication: Publication, *, now_ms: int
) -> None:
    """As `publish_promised`, one message to several queues: one body for all of them."""
    copies = [
        (queue, message)
        for queue in queues
        if (message := _enter_promised(state, queue, publication, now_ms)) is not None
    ]
    if copies:
        state.journal.fanned_out(copies, now_ms)
    for queue, message in copies:
        _crowd_promised(state, queue, message, now_ms)
        look_after(queue, now_ms)


def _enter_promised(state: BrokerState, queue: Queue, publication: Publication, now_ms: int) -> Message | None:
    key = dedup_key(queue.settings, publication)
    if _seen(queue, key, now_ms) is not None:
        queue.counters.duplicates += 1
        return None
    message = _enter(state, queue, publication, now_ms)
    if key is not None:
        _remember(state, queue, key, message, now_ms)
    return message


def _crowd_promised(state: BrokerState, queue: Queue, message: Message, now_ms: int) -> None:
    """Nothing made room for it, so its queue may hold too much now."""
    if is_limited(queue) or may_not_stay(queue, message, now_ms):
        state.crowd(queue, message, now_ms)


def publish_to_exchange(
    state: BrokerState,
    namespace: Namespace,
    exchange: str,
    publication: Publication,
    *,
    headers: Mapping[str, object] | None = None,
    extra_keys: Sequence[str] = (),
    now_ms: int,
) -> list[Placed]:
    """Publish through an exchange: one `Placed` per queue, none when nothing matched. All or none."""
    namespace.topology.check_publish(exchange)
    envelope = publication.envelope
    found = route(
        namespace.topology, exchange, envelope.routing_key, headers, namespace.queues.__contains__, extra_keys
    )
    queues = [namespace.queues[name] for name in found.queues]
    if len(queues) == 1:
        [result] = publish(state, queues[0], (publication,), now_ms=now_ms)
        if isinstance(result, BrokerError):
            raise result
        return [result]
    for queue in queues:
        check_publication(state, queue, publication)
    _make_room_in_all(state, queues, publication, now_ms)
    results: list[Placed] = []
    copies: list[tuple[Queue, Message]] = []
    for queue in queues:
        queue.used_at_ms = now_ms
        message, placed = _place(state, queue, publication, now_ms)
        results.append(placed)
        if message is not None:
            copies.append((queue, message))
    _fan_out(state, copies, now_ms)
    return results


def _fan_out(state: BrokerState, copies: Sequence[tuple[Queue, Message]], now_ms: int) -> None:
    """Note one message that entered several queues."""
    if copies:
        state.journal.fanned_out(copies, now_ms)
    for queue, message in copies:
        if may_not_stay(queue, message, now_ms):
            state.crowd(queue, message, now_ms)
        look_after(queue, now_ms)


def _make_room_in_all(state: BrokerState, queues: Sequence[Queue], publication: Publication, now_ms: int) -> None:
    """Before anything enters: whoever is full says so while there is nothing to take back."""
    body_bytes = len(publication.body)
    needy = [queue for queue in queues if not _is_duplicate(queue, publication, now_ms)]
    for is_dry in (True, False):
        for queue in needy:
            make_room(state, queue, body_bytes, now_ms, is_dry=is_dry)
            state.journal.between()
    for queue in needy:
        # What had to leave one of them may have gone to another.
        if not _will_take(state, queue, body_bytes):
            raise _full(queue)


def _will_take(state: BrokerState, queue: Queue, body_bytes: int) -> bool:
    """Whether there is room, or will be when those have gone that have to."""
    return has_room(queue, body_bytes) or queue in state.crowded


def _place(
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
        seen = _seen(queue, key, now_ms)
        if seen is not None:
            queue.counters.duplicates += 1
            sent = _seen(queue, sent_as, now_ms)
            is_again = sent is not None and sent.number == seen.number
            return None, Placed(seen.number, seen.created_at_ms, 0, queue.name, not is_again)
    if is_limited(queue):
        make_room(state, queue, len(publication.body), now_ms)
    message = _enter(state, queue, publication, now_ms)
    if key is not None:
        _remember(state, queue, key, message, now_ms)
        if sent_as is not None:
            _remember(state, queue, sent_as, message, now_ms)
    line = queue.line
    if message.ready_at_ms > now_ms:
        position = len(queue.ready) + 1
    elif line is None or queue.groups is not None:
        # Of a group only the first stands in line.
        position = len(queue.ready)
    else:
        position = line.position(message.priority)
    return message, Placed(message.number, now_ms, position, queue.name)


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


def _seen(queue: Queue, key: str | None, now_ms: int) -> Seen | None:
    memory = queue.dedup
    return None if memory is None or key is None else memory.get(key, now_ms)


def _is_duplicate(queue: Queue, publication: Publication, now_ms: int) -> bool:
    return _seen(queue, dedup_key(queue.settings, publication), now_ms) is not None


def _remember(state: BrokerState, queue: Queue, key: str, message: Message, now_ms: int) -> None:
    seen = Seen(message.number, now_ms, now_ms + queue.settings.dedup_window_ms)
    if queue.dedup is None:
        queue.dedup = DedupMemory()
    queue.dedup.forget_expired(now_ms)
    queue.dedup.remember(key, seen)
    state.journal.remembered(queue, key, seen)


def check_publication(state: BrokerState, queue: Queue, publication: Publication) -> None:
    """Raise what is wrong with a publication for this queue."""
    body = publication.body
    if type(body) is not bytes:
        raise InvalidArgument(f"A body is bytes, not {type(body).__name__}; encode it first.")
    settings = queue.settings
    limit = settings.body_bytes_max or state.body_bytes_max
    if len(body) > limit:
        raise MessageTooLarge(
            f"A body of {len(body)} bytes is over the limit of {limit} bytes for queue {queue.name!r}."
        )
    priority = publication.priority
    highest = PRIORITY_MAX if settings.clamp_priority else settings.max_priority
    if priority is not None and not (type(priority) is int and 0 <= priority <= highest):
        raise InvalidPriority(
            f"Priority {priority!r} is not a whole number from 0 to {settings.max_priority}, "
            f"which is what queue {queue.name!r} takes."
        )
    if publication.delay_ms is not None:
        _check_ms("delay_ms", publication.delay_ms)
    if publication.deliver_at_ms is not None:
        _check_ms("deliver_at_ms", publication.deliver_at_ms)
    if publication.envelope is not PLAIN:
        check_envelope(publication.envelope)


def check_envelope(envelope: Envelope) -> None:
    if type(envelope) is not Envelope:
        raise InvalidArgument(f"An envelope is an Envelope, not {type(envelope).__name__}.")
    if type(envelope.properties) is not bytes:
        raise InvalidArgument(f"Properties are bytes, not {type(envelope.properties).__name__}; encode them first.")
    check_text("exchange", envelope.exchange)
    check_text("routing_key", envelope.routing_key)
    for name, value in (("group", envelope.group), ("deduplication_id", envelope.deduplication_id)):
        if value is not None:
            check_id(name, value)
    if envelope.ttl_ms is not None:
        _check_ms("ttl_ms", envelope.ttl_ms)
    max_retries = envelope.max_retries
    if max_retries is not None and not (type(max_retries) is int and 0 <= max_retries <= RETRIES_MAX):
        raise InvalidArgument(f"max_retries is {max_retries!r}; give a whole number from 0 to {RETRIES_MAX}.")


def check_id(name: str, value: str, longest: int = ID_LENGTH_MAX) -> None:
    check_text(name, value)
    if not 1 <= len(value) <= longest:
        raise InvalidArgument(f"{name} has {len(value)} characters; give it 1 to {longest}.")


def _check_ms(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value <= FOREVER_MS:
        raise InvalidArgument(f"{name} is {value!r}; give a whole number of milliseconds, 0 or more.")


def due_at_ms(queue: Queue, publication: Publication, now_ms: int) -> int:
    if publication.deliver_at_ms is not None:
        return max(now_ms, publication.deliver_at_ms)
    if publication.delay_ms is not None:
        return now_ms + publication.delay_ms
    return now_ms + queue.settings.delay_ms


def ttl_ms(queue: Queue, envelope: Envelope) -> int:
    """The shorter of the message's and the queue's time to live."""
    return min(ttl for ttl in (envelope.ttl_ms, queue.settings.message_ttl_ms) if ttl is not None)


def make_room(state: BrokerState, queue: Queue, body_bytes: int, now_ms: int, *, is_dry: bool = False) -> None:
    """Let the overflow policy see to it that one more body fits, or raise `QueueFull`. A dry run changes nothing."""
    settings = queue.settings
    for _ in range(DROPPED_AT_ONCE):
        if has_room(queue, body_bytes):
            return
        oldest = queue.line.oldest() if settings.overflow in MAKES_ROOM and queue.line is not None else None
        if oldest is None or not can_make_room(queue, body_bytes):
            raise _full(queue)
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


def _full(queue: Queue) -> QueueFull:
    settings = queue.settings
    is_too_deep = settings.max_depth is not None and queue.limited_depth >= settings.max_depth
    what = f"{queue.limited_depth} messages" if is_too_deep else f"{queue.limited_bytes} bytes"
    return QueueFull(
        f"Queue {queue.name!r} is full: it holds {what} and its limit is "
        f"{settings.max_depth if is_too_deep else settings.max_bytes}; consume, purge or raise the limit."
    )
