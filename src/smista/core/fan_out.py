"""Publishing to several queues: through an exchange to all that it routes to, or to queues that a caller names.

What an exchange routes is stored in all queues or in none; queues named one by one take or refuse it each for itself.
Either way room is made in all of them before the message enters one, and its copies share one body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smista.core.checks import check_publication
from smista.core.declaring import look_after
from smista.core.entering import (
    Placed,
    Result,
    crowd_promised,
    enter_promised,
    is_duplicate,
    let_in,
    make_room,
    queue_full,
    refuse,
    will_take,
)
from smista.core.exchanges import route
from smista.core.limits import is_limited, may_not_stay
from smista.core.message import Message, Publication
from smista.core.publishing import publish
from smista.core.queue import Queue
from smista.core.state import BrokerState, Namespace
from smista.errors import BrokerError

ROUNDS = 3
"""How often queues that fill each other, by their dead letters, are looked at for room."""


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
        message, placed = let_in(state, queue, publication, now_ms)
        results.append(placed)
        if message is not None:
            copies.append((queue, message))
    _note_copies(state, copies, now_ms)
    return results


def _make_room_in_all(state: BrokerState, queues: Sequence[Queue], publication: Publication, now_ms: int) -> None:
    """Before anything enters: whoever is full says so while there is nothing to take back."""
    body_bytes = len(publication.body)
    needy = [queue for queue in queues if not is_duplicate(queue, publication, now_ms)]
    for is_dry in (True, False):
        for queue in needy:
            make_room(state, queue, body_bytes, now_ms, is_dry=is_dry)
            state.journal.between()
    for queue in needy:
        # What had to leave one of them may have gone to another.
        if not will_take(state, queue, body_bytes):
            raise queue_full(queue)


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
        is_full = queue not in refused and not will_take(state, queue, len(publication.body))
        if is_full and not is_duplicate(queue, publication, now_ms):
            refused[queue] = queue_full(queue)
        if queue in refused:
            results.append(refused[queue])
            continue
        message, placed = let_in(state, queue, publication, now_ms)
        results.append(placed)
        if message is not None:
            copies.append((queue, message))
    _note_copies(state, copies, now_ms)
    for queue, refusal in refused.items():
        refuse(state, queue, publication, refusal, now_ms)
    return results


def _prepare(state: BrokerState, queue: Queue, publication: Publication, now_ms: int) -> None:
    """Make room for a publication that may enter, or raise why it may not."""
    check_publication(state, queue, publication)
    if is_limited(queue) and not is_duplicate(queue, publication, now_ms):
        make_room(state, queue, len(publication.body), now_ms)


def publish_promised_to_several(
    state: BrokerState, queues: Sequence[Queue], publication: Publication, *, now_ms: int
) -> None:
    """As `publish_promised`, one message to several queues: one body for all of them."""
    copies = [
        (queue, message)
        for queue in queues
        if (message := enter_promised(state, queue, publication, now_ms)) is not None
    ]
    if copies:
        state.journal.fanned_out(copies, now_ms)
    for queue, message in copies:
        crowd_promised(state, queue, message, now_ms)
        look_after(queue, now_ms)


def _note_copies(state: BrokerState, copies: Sequence[tuple[Queue, Message]], now_ms: int) -> None:
    """Note one message that entered several queues."""
    if copies:
        state.journal.fanned_out(copies, now_ms)
    for queue, message in copies:
        if may_not_stay(queue, message, now_ms):
            state.crowd(queue, message, now_ms)
        look_after(queue, now_ms)
