"""Publishing: to a queue by name, or through an exchange to all queues it routes to.

Per message: checked, then limits, then deduplication, then it gets its sequence and enters. A message that is refused
changes nothing and does not keep its neighbours in the batch from being stored. What an exchange routes to several
queues is stored in all of them or in none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from smista.core.dead_letters import bury_in_dead_letters, discard
from smista.core.declaring import schedule_check
from smista.core.dedup import DedupMemory, Seen, dedup_key
from smista.core.errors import InvalidArgument, InvalidPriority, MessageTooLarge, QueueFull
from smista.core.exchanges import route
from smista.core.message import FOREVER_MS, Envelope, Message, Publication, Reason
from smista.core.queue import Queue
from smista.core.settings import Overflow
from smista.core.state import BrokerState, Namespace
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


def publish(state: BrokerState, queue: Queue, publications: Sequence[Publication], *, now_ms: int) -> list[Result]:
    """Publish to one queue; one result per publication, in order."""
    results: list[Result] = []
    entered: list[Message] = []
    queue.used_at_ms = now_ms
    for publication in publications:
        try:
            results.append(_place(state, queue, publication, now_ms, entered))
        except BrokerError as error:
            queue.counters.rejected += 1
            results.append(error)
    if entered:
        state.journal.enqueued(queue, entered, now_ms)
        if queue.deadline_ms is None:
            schedule_check(queue, now_ms)
    return results


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
    for queue in queues:
        check_publication(state, queue, publication)
        make_room(state, queue, len(publication.body), now_ms, is_dry=True)
    if len(queues) == 1:
        [result] = publish(state, queues[0], (publication,), now_ms=now_ms)
        if isinstance(result, BrokerError):
            raise result
        return [result]
    results: list[Placed] = []
    copies: list[tuple[Queue, Message]] = []
    for queue in queues:
        entered: list[Message] = []
        queue.used_at_ms = now_ms
        results.append(_place(state, queue, publication, now_ms, entered))
        copies += [(queue, message) for message in entered]
    if copies:
        state.journal.fanned_out(copies, now_ms)
    return results


def _place(state: BrokerState, queue: Queue, publication: Publication, now_ms: int, entered: list[Message]) -> Placed:
    check_publication(state, queue, publication)
    settings = queue.settings
    envelope = publication.envelope
    key = None
    if envelope.deduplication_id is not None or settings.dedup_by_body:
        key = dedup_key(settings, publication)
        memory = queue.dedup
        seen = None if memory is None or key is None else memory.get(key, now_ms)
        if seen is not None:
            queue.counters.duplicates += 1
            return Placed(seen.number, seen.created_at_ms, 0, queue.name, True)
    if settings.max_depth is not None or settings.max_bytes is not None:
        if entered:
            # What makes room may itself note records; those of this batch come first.
            state.journal.enqueued(queue, entered, now_ms)
            entered.clear()
        make_room(state, queue, len(publication.body), now_ms)
    sequence = state.next_sequence
    state.next_sequence = sequence + 1
    priority = publication.priority
    message = Message(
        sequence,
        sequence,
        queue.number,
        envelope,
        publication.body,
        settings.default_priority if priority is None else priority,
        now_ms,
        now_ms,
    )
    if publication.deliver_at_ms is not None or publication.delay_ms is not None or settings.delay_ms:
        message.ready_at_ms = due_at_ms(queue, publication, now_ms)
    if settings.message_ttl_ms is not None or envelope.ttl_ms is not None:
        message.expires_at_ms = message.ready_at_ms + ttl_ms(queue, envelope)
    queue.insert(message, now_ms)
    queue.counters.published += 1
    entered.append(message)
    if key is not None:
        _remember(state, queue, key, message, now_ms)
    line = queue.line
    position = len(queue.ready) if line is None or message.ready_at_ms > now_ms else line.position(message.priority)
    return Placed(sequence, now_ms, position, queue.name)


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
    if priority is not None and not (type(priority) is int and 0 <= priority <= settings.max_priority):
        raise InvalidPriority(
            f"Priority {priority!r} is not a whole number from 0 to {settings.max_priority}, "
            f"which is what queue {queue.name!r} takes."
        )
    if publication.delay_ms is not None:
        _check_ms("delay_ms", publication.delay_ms)
    if publication.deliver_at_ms is not None:
        _check_ms("deliver_at_ms", publication.deliver_at_ms)
    if type(publication.envelope) is not Envelope:
        raise InvalidArgument(f"An envelope is an Envelope, not {type(publication.envelope).__name__}.")
    if publication.envelope.ttl_ms is not None:
        _check_ms("ttl_ms", publication.envelope.ttl_ms)


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
    while True:
        is_too_deep = settings.max_depth is not None and queue.depth >= settings.max_depth
        is_too_big = settings.max_bytes is not None and queue.body_bytes + body_bytes > settings.max_bytes
        if not is_too_deep and not is_too_big:
            return
        oldest = None
        if settings.overflow is not Overflow.REJECT and queue.line is not None:
            oldest = queue.line.oldest()
        if oldest is None or (settings.max_bytes is not None and body_bytes > settings.max_bytes):
            what = f"{queue.depth} messages" if is_too_deep else f"{queue.body_bytes} bytes"
            raise QueueFull(
                f"Queue {queue.name!r} is full: it holds {what} and its limit is "
                f"{settings.max_depth if is_too_deep else settings.max_bytes}; consume, purge or raise the limit."
            )
        if is_dry:
            return
        if settings.overflow is Overflow.DEAD_LETTER_OLDEST:
            bury_in_dead_letters(state, queue, oldest, Reason.OVERFLOW, now_ms=now_ms)
            if oldest.sequence in queue.dead:
                # It could only be parked here, which makes no room.
                raise QueueFull(
                    f"Queue {queue.name!r} is full and its dead-letter queue takes no more; empty one of them."
                )
        else:
            discard(state, queue, oldest, Reason.OVERFLOW, now_ms=now_ms)
