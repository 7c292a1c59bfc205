"""Publishing to one queue.

A message that is refused does not keep its neighbours in the batch from being stored. How messages enter is in
`entering`; how one enters several queues in `fan_out`.

A batch may have an id of its own, so that whoever did not get the answer can send it again. Where the whole batch
enters in one step its messages have numbers in a row, and one memory, of the first number, stands for all of them.
Where some are refused, or messages are looked at one by one, each that enters is remembered by the batch's id and its
place in it, beside whatever id it has of its own. Which of the two was done is found by looking for both.

The queue's settings may have changed since. What is recognised is not checked again: it is stored, whatever the queue
takes by now. What was refused is not remembered, so it is checked as if it were new, and may be stored this time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from smista.core.checks import BATCH_ID_LENGTH_MAX, check_id, check_publication
from smista.core.dead_letters import is_much
from smista.core.dedup import Seen, batch_key, sent_key
from smista.core.entering import (
    Entering,
    Placed,
    Planned,
    Result,
    enter_plain,
    plan_promised,
    remember,
    seen_before,
)
from smista.core.message import PLAIN, Alike, Envelope, Message, Publication
from smista.core.queue import Queue
from smista.core.settings import QueueSettings
from smista.core.state import BrokerState
from smista.errors import BrokerError, QueueFull


class Batch(msgspec.Struct, frozen=True):
    """What makes publications recognisable when they are sent again: see the module."""

    id: str
    first: int = 0
    """The place of the first of these publications in the batch ..."""
    is_whole: bool = True
    """... and whether they are all of it."""


def publish(
    state: BrokerState,
    queue: Queue,
    publications: Sequence[Publication],
    *,
    batch: Batch | None = None,
    is_use: bool = True,
    is_cut: bool = False,
    since: int | None = None,
    now_ms: int,
) -> list[Result]:
    """Publish to one queue; one result per publication, in order.

    Within the queue's deduplication window the same messages under the same batch id are not stored again. Without
    `is_use` a queue that is deleted when nobody uses it does not live longer for this. With `is_cut` there are fewer
    results where some, or what had to make room for them, became dead letters in very many queues, or would have: the
    others are not published yet. `since` is what `state.work` was before that began, if that was before this call.
    """
    if is_use:
        queue.used_at_ms = now_ms
    try:
        is_plain = are_plain(queue.settings, publications)
    except AttributeError:
        # One is no publication at all, and is refused by itself.
        is_plain = False
    if batch is not None:
        check_id("batch_id", batch.id, BATCH_ID_LENGTH_MAX)
        seen = seen_before(queue, batch_key(batch.id), now_ms)
        if seen is not None and batch.is_whole:
            return _recognised(queue, seen, len(publications))
        is_plain = is_plain and batch.is_whole and not _was_sent(queue, len(publications), batch, now_ms)
    if is_plain:
        return _publish_plain(state, queue, publications, batch, now_ms)
    entering = Entering(state, queue, now_ms)
    since, is_open = state.work if since is None else since, True
    for place, publication in enumerate(publications, 0 if batch is None else batch.first):
        is_hurried = is_much(state, since, entering.known_count)
        if is_hurried and is_cut:
            break
        sent_as = None if batch is None else sent_key(batch.id, place)
        try:
            entering.plan(publication, sent_as, is_open=is_open if is_hurried else None)
            is_open = True
        except BrokerError as error:
            entering.refuse(publication, error, is_hurried=is_hurried)
            is_open = is_open and not isinstance(error, QueueFull)
    entering.let_in()
    return entering.results


def publish_alike(
    state: BrokerState,
    queue: Queue,
    alike: Alike,
    *,
    is_use: bool = True,
    since: int | None = None,
    now_ms: int,
) -> list[tuple[int, BrokerError]]:
    """Publish messages that are alike. Tells which were refused, by their place among them, and why. Measured at half
    of what `publish` takes, where the queue looks at nothing one by one."""
    like, bodies = alike.like, alike.bodies
    limit = state.body_limit(queue)
    if not are_plain(queue.settings, (like,)) or max(map(len, bodies)) > limit:
        results = publish(state, queue, alike.publications(), is_use=is_use, since=since, now_ms=now_ms)
        return [(place, result) for place, result in enumerate(results) if not isinstance(result, Placed)]
    try:
        check_publication(state, queue, like)
    except BrokerError as error:
        queue.counters.rejected += len(bodies)
        return [(place, error) for place in range(len(bodies))]
    if is_use:
        queue.used_at_ms = now_ms
    number, priority = queue.number, queue.settings.default_priority
    entered = [
        Message(sequence, sequence, number, envelope, body, priority, now_ms, now_ms)
        for sequence, (envelope, body) in enumerate(zip(alike.envelopes, bodies, strict=True), state.next_sequence)
    ]
    enter_plain(state, queue, entered, sum(map(len, bodies)), now_ms, are_alike=True)
    return []


def publish_promised(state: BrokerState, queue: Queue, publications: Sequence[Publication], *, now_ms: int) -> int:
    """Publish what was checked before and may not be refused any more: duplicates stay out, limits do not count.

    All records of this stand together. What has to make room leaves afterwards, see `trimming`. Returns how many
    entered.
    """
    limit = state.body_limit(queue)
    if max(len(one.body) for one in publications) <= limit and are_plain(queue.settings, publications):
        _publish_plain(state, queue, publications, None, now_ms)
        return len(publications)
    planned = Planned()
    for publication in publications:
        plan_promised(state, queue, publication, planned, now_ms)
    return len(planned.enter(state, now_ms))


def _publish_plain(
    state: BrokerState, queue: Queue, publications: Sequence[Publication], batch: Batch | None, now_ms: int
) -> list[Result]:
    """As one after the other; measured at half the cost, for what is nearly every batch."""
    results: list[Result] = []
    entered: list[Message] = []
    limit = state.body_limit(queue)
    checked = PLAIN
    number, name, priority = queue.number, queue.name, queue.settings.default_priority
    body_bytes = 0
    position = 1 if queue.line is None else queue.line.position(priority) + 1
    sequence = state.next_sequence
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
        entered.append(Message(sequence, sequence, number, envelope, body, priority, now_ms, now_ms))
        results.append(Placed(sequence, now_ms, position, name))
        position += 1
        body_bytes += len(body)
        sequence += 1
    if entered:
        enter_plain(state, queue, entered, body_bytes, now_ms)
        if batch is not None:
            _remember_batch(state, queue, batch, entered, results, now_ms)
    return results


def _remember_batch(
    state: BrokerState, queue: Queue, batch: Batch, entered: list[Message], results: list[Result], now_ms: int
) -> None:
    if len(entered) == len(results):
        remember(state, queue, batch_key(batch.id), entered[0], now_ms)
        return
    messages = iter(entered)
    for place, result in enumerate(results):
        if isinstance(result, Placed):
            remember(state, queue, sent_key(batch.id, place), next(messages), now_ms)


def _recognised(queue: Queue, seen: Seen, count: int) -> list[Result]:
    """The answer to a whole batch that entered before in one step."""
    queue.counters.duplicates += count
    numbers = range(seen.number, seen.number + count)
    return [Placed(number, seen.created_at_ms, 0, queue.name, True) for number in numbers]


def are_plain(settings: QueueSettings, publications: Sequence[Publication]) -> bool:
    """Whether all of a batch enter a queue ready and at one priority, with nothing to look up, make room for or
    time."""
    if not settings.is_plain:
        return False
    is_flat = settings.clamp_priority and settings.max_priority == settings.default_priority == 0
    for publication in publications:
        envelope = publication.envelope
        if (
            (publication.priority is not None and not is_flat)
            or publication.delay_ms is not None
            or publication.deliver_at_ms is not None
            or type(envelope) is not Envelope
            or envelope.deduplication_id is not None
            or envelope.ttl_ms is not None
        ):
            return False
    return True


def is_known_batch(queue: Queue, batch_id: str, now_ms: int) -> bool:
    """Whether a batch of this id entered in one step before; it is recognised as a whole then."""
    return seen_before(queue, batch_key(batch_id), now_ms) is not None


def _was_sent(queue: Queue, count: int, batch: Batch, now_ms: int) -> bool:
    """Whether messages of this batch were stored one by one before."""
    if queue.dedup is None:
        return False
    places = range(batch.first, batch.first + count)
    return any(seen_before(queue, sent_key(batch.id, place), now_ms) is not None for place in places)
