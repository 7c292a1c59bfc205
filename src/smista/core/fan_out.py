"""Publishing to several queues: through an exchange to all that it routes to, or to queues that a caller names.

What an exchange routes is stored in all queues or in none; queues named one by one take or refuse it each for itself.
Either way all of them are asked before anything changes, room is made in all before the message enters one, and its
copies share one body.

That is one step, however many queues they are, at some 6 us each. So what is stored in all queues or in none goes to
`QUEUES_MAX` of them at most: more would hold up everybody. Whoever publishes to queues each for itself may do so in
several steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smista.core.checks import BATCH_ID_LENGTH_MAX, check_id, check_publication
from smista.core.dead_letters import is_much
from smista.core.dedup import dedup_key, sent_key
from smista.core.entering import Placed, Planned, Result, admit, find_duplicate, find_sent, plan_promised, refuse
from smista.core.exchanges import Reach, Work, route
from smista.core.message import Publication
from smista.core.publishing import Batch, publish
from smista.core.queue import Queue
from smista.core.settings import Overflow, QueueSettings
from smista.core.state import BrokerState, Namespace
from smista.core.trimming import make_room
from smista.errors import BrokerError

_Decided = tuple[Queue, str | None, Placed | None]
"""A queue that takes the message, the key under which it remembers it (see `dedup_key`), and, if it has it already,
where."""
_Keys = dict[int, tuple[QueueSettings, str | None]]
"""By their ids, settings that were held against the message, with the key: queues declared alike share them, and of
5,000 queues there are few to look at."""


def publish_to_exchange(
    state: BrokerState,
    namespace: Namespace,
    exchange: str,
    publication: Publication,
    *,
    headers: Mapping[str, object] | None = None,
    extra_keys: Sequence[str] = (),
    batch_id: str | None = None,
    within: Reach | None = None,
    now_ms: int,
) -> list[Placed]:
    """Publish through an exchange: one `Placed` per queue, none when nothing matched. All or none.

    Within a queue's deduplication window what is sent again under the same batch id is not stored there again. `within`
    less than what any message may reach, `ReachTooWide` says that it goes further, and nothing has changed.
    """
    if batch_id is not None:
        check_id("batch_id", batch_id, BATCH_ID_LENGTH_MAX)
    namespace.topology.check_publish(exchange)
    envelope = publication.envelope
    where = namespace.topology, exchange, envelope.routing_key, headers, namespace.queues.__contains__, extra_keys
    found = route(*where) if within is None else route(*where, queues_max=within.queues, work=Work(within.work))
    queues = [namespace.queues[name] for name in found.queues]
    if len(queues) == 1:
        # Not as a whole batch: the next time it may be routed to several queues, which remember by places.
        batch = None if batch_id is None else Batch(batch_id, is_whole=False)
        [result] = publish(state, queues[0], (publication,), batch=batch, now_ms=now_ms)
        if isinstance(result, BrokerError):
            raise result
        return [result]
    sent_as = None if batch_id is None else sent_key(batch_id, 0)
    keys: _Keys = {}
    since = state.work
    decided = [_decide(state, queue, publication, keys, since, now_ms, sent_as) for queue in queues]
    for queue in queues:
        queue.used_at_ms = now_ms
    return _store(state, decided, publication, now_ms, sent_as)


def publish_to_queues(
    state: BrokerState, queues: Sequence[Queue], publication: Publication, *, is_use: bool = True, now_ms: int
) -> list[Result]:
    """Publish one message to several queues, no two of them the same, each for itself: one that refuses it does not
    keep it from the others."""
    keys: _Keys = {}
    since = state.work
    decided: list[_Decided] = []
    refused: dict[Queue, BrokerError] = {}
    for queue in queues:
        if is_use:
            queue.used_at_ms = now_ms
        try:
            decided.append(_decide(state, queue, publication, keys, since, now_ms))
        except BrokerError as error:
            refused[queue] = error
    stored = iter(_store(state, decided, publication, now_ms))
    for queue, refusal in refused.items():
        is_hurried = is_much(state, since, len(queues))
        refuse(state, queue, publication, refusal, now_ms, is_hurried=is_hurried)
    return [refused[queue] if queue in refused else next(stored) for queue in queues]


def publish_promised_to_several(
    state: BrokerState, queues: Sequence[Queue], publication: Publication, *, now_ms: int
) -> None:
    """As `publish_promised`, one message to several queues: one body for all of them."""
    planned = Planned()
    for queue in queues:
        plan_promised(state, queue, publication, planned, now_ms)
    planned.enter(state, now_ms)


def _decide(
    state: BrokerState,
    queue: Queue,
    publication: Publication,
    keys: _Keys,
    since: int,
    now_ms: int,
    sent_as: str | None = None,
) -> _Decided:
    """Raise why a queue does not take a message. Nothing changes: others may refuse it yet.

    `since`: what `state.work` was when the first queue was asked."""
    if sent_as is not None and (duplicate := find_sent(queue, sent_as, publication, now_ms)) is not None:
        return queue, None, duplicate
    settings = queue.settings
    known = keys.get(id(settings))
    if known is None:
        check_publication(state, queue, publication)
        known = keys[id(settings)] = settings, dedup_key(settings, publication)
    key = known[1]
    duplicate = None if queue.dedup is None else find_duplicate(queue, key, now_ms)
    if duplicate is None and settings.is_limited:
        admit(state, queue, len(publication.body), now_ms, is_open=True if is_much(state, since) else None)
    return queue, key, duplicate


def _store(
    state: BrokerState,
    decided: Sequence[_Decided],
    publication: Publication,
    now_ms: int,
    sent_as: str | None = None,
) -> list[Placed]:
    """Nothing is refused here any more."""
    since = state.work
    for queue, _, duplicate in decided:
        if is_much(state, since):
            # The others let go of what has to leave some at a time, see `keep_limits`.
            break
        # A dead letter could fill another of these queues: it goes when all have theirs, see `keep_limits`.
        if duplicate is None and queue.settings.overflow is Overflow.DROP_OLDEST and queue.settings.is_limited:
            make_room(state, queue, len(publication.body), now_ms)
            state.journal.between()
    planned = Planned()
    for queue, key, duplicate in decided:
        if duplicate is None:
            planned.add(state, queue, publication, key, now_ms, sent_as)
        else:
            queue.counters.duplicates += 1
    places = iter(planned.enter(state, now_ms))
    return [next(places) if duplicate is None else duplicate for _, _, duplicate in decided]
