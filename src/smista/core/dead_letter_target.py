"""Where dead letters of a queue go.

    dead_letter      goes to                                                          when none takes it
    park             nowhere: it is set aside where it is                             -
    drop             nowhere: it is gone                                              -
    move             the dead-letter exchange, by its key; else the dead-letter       it is parked
                     queue; else QUEUE_dlq, which is made when it is first needed
    move-or-drop     the same                                                         it is gone

`move-or-drop` is RabbitMQ's way, in all that follows from nothing being kept that cannot be moved: what was published
to a queue by its name has that name as its key, as there it has no other; those who wait on a full target may make
room for it; and what a consumer rejected may go back into its own queue.

A target is asked whether it takes one more, and not changed: it does where it has room, or makes some by dropping its
oldest.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from smista.core.exchanges import Work, route
from smista.core.limits import can_make_room, has_room, is_one_by_one
from smista.core.message import Fate, Message, Reason
from smista.core.queue import Queue
from smista.core.settings import NAME_BYTES_MAX, DeadLetterMode, Overflow, QueueSettings
from smista.core.state import BrokerState
from smista.exchange_errors import ReachTooWide

DEAD_LETTER_SUFFIX = "_dlq"
MOVES = (DeadLetterMode.MOVE, DeadLetterMode.MOVE_OR_DROP)
WORK_PER_COPY = 20
"""So much work to find where a dead letter goes takes as long as one that enters a queue ..."""
READ_PER_COPY = 64
"""... and so do so many bytes of its properties, which have to be read for that."""


def named_target(name: str, settings: QueueSettings) -> str | None:
    """The queue to which the dead letters of queue `name` go by its name, whether it is there or not; None where they
    go through an exchange, or nowhere."""
    if settings.dead_letter not in MOVES or settings.dead_letter_exchange is not None:
        return None
    return settings.dead_letter_queue or usual_target(name)


def usual_target(name: str) -> str:
    """The dead-letter queue of a queue that names none."""
    return name + DEAD_LETTER_SUFFIX


def usual_source(name: str) -> str | None:
    """The queue of which this is the usual dead-letter queue; None where its name is not one of those."""
    return name.removesuffix(DEAD_LETTER_SUFFIX) if name.endswith(DEAD_LETTER_SUFFIX) else None


class Way(msgspec.Struct, frozen=True):
    """Where a dead letter can go: to queues that take it, or to one that has to be made first."""

    targets: list[Queue] = []
    to_make: str = ""
    address: tuple[str, str] | None = None
    """The exchange and key by which it goes there."""
    is_too_wide: bool = False

    @property
    def is_open(self) -> bool:
        return bool(self.targets or self.to_make)


NO_WAY = Way()


def find_way(state: BrokerState, queue: Queue, message: Message, fate: Fate, count: int = 1) -> Way:
    """Where a message would go just now, `count` in all like it."""
    if queue.settings.dead_letter not in MOVES:
        return NO_WAY
    namespace = state.namespaces[queue.namespace]
    address = _address(queue, message)
    if address is None:
        name = named_target(queue.name, queue.settings)
        assert name is not None
        if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
            return NO_WAY
        if name not in namespace.queues:
            return Way(to_make=name)
        names: Iterable[str] = (name,)
    else:
        exchange, key = address
        if namespace.topology.find(exchange) is None:
            return NO_WAY
        properties = message.envelope.properties
        headers, extra_keys = state.read_routing(properties)
        if queue.settings.dead_letter_routing_key is not None:
            extra_keys = ()
        work = Work()
        exists = namespace.queues.__contains__
        try:
            names = route(namespace.topology, exchange, key, headers, exists, extra_keys, work=work).queues
        except ReachTooWide:
            return Way(is_too_wide=True)
        finally:
            state.looked_at += work.done // WORK_PER_COPY + len(properties) // READ_PER_COPY
    found = [namespace.queues[name] for name in names]
    targets = [
        target
        for target in found
        if not _goes_in_a_circle(queue, target, message, fate)
        and (
            _has_it(queue, target)
            or _takes(target, message.body_bytes * count, count)
            or _may_pass_on(queue, target, message)
        )
    ]
    state.looked_at += len(found) - len(targets)
    return Way(targets, address=address)


def _address(queue: Queue, message: Message) -> tuple[str, str] | None:
    """The exchange and the key by which its dead letters leave a queue; None where they go to a queue by name."""
    settings, envelope = queue.settings, message.envelope
    if settings.dead_letter_exchange is None:
        return None
    key = settings.dead_letter_routing_key
    if key is None:
        key = envelope.routing_key
        if not key and not envelope.exchange and settings.dead_letter is DeadLetterMode.MOVE_OR_DROP:
            # In RabbitMQ what is published to a queue by its name has that name as its key.
            key = queue.name
    return settings.dead_letter_exchange, key


def _takes(target: Queue, body_bytes: int, count: int) -> bool:
    """Whether a dead-letter queue has room, or makes some by dropping its oldest where it was declared so."""
    if has_room(target, body_bytes, count):
        return True
    return target.settings.overflow is Overflow.DROP_OLDEST and can_make_room(target, body_bytes)


def _has_it(source: Queue, target: Queue) -> bool:
    """Whether a message that moves is one more in its target: not in its own queue, if what is held counts there."""
    return target is source and not source.settings.limit_ready_only


def _may_pass_on(source: Queue, target: Queue, message: Message) -> bool:
    """Whether those who wait on a full queue may make room for a dead letter, which is dropped unless they do."""
    is_dropped = source.settings.dead_letter is DeadLetterMode.MOVE_OR_DROP
    return is_dropped and is_one_by_one(target) and can_make_room(target, message.body_bytes)


def _goes_in_a_circle(source: Queue, target: Queue, message: Message, fate: Fate) -> bool:
    """Whether it died in the target before and nobody has rejected it since: nothing would ever stop it.

    RabbitMQ's rule. A rejection is a consumer's wish, so "reject, wait in a queue with a TTL, come back" may go on. Of
    a queue with `own_dead_letters` what consumers give up goes to its end; what expires, or has to make room, would
    come back at once, and again.
    """
    if target is source and source.settings.own_dead_letters:
        return fate.reason not in (Reason.REJECTED, Reason.MAX_RETRIES)
    if target is source:
        return fate.reason is not Reason.REJECTED or source.settings.dead_letter is not DeadLetterMode.MOVE_OR_DROP
    if fate.reason is Reason.REJECTED:
        return False
    for death in reversed(message.deaths):
        if death.reason is Reason.REJECTED:
            return False
        if death.queue == target.name:
            return True
    return False
