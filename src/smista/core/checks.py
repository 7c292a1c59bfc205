"""What a publication may look like; each function raises what is wrong and says how to put it right."""

from __future__ import annotations

from collections.abc import Sequence

from smista.core.message import FOREVER_MS, PLAIN, Envelope, Publication
from smista.core.queue import Queue
from smista.core.settings import check_text
from smista.core.state import BrokerState
from smista.errors import InvalidArgument, InvalidPriority, MessageTooLarge

ID_LENGTH_MAX = 1024
BATCH_ID_LENGTH_MAX = 512
"""Shorter: a message's place in its batch is added to it."""
RETRIES_MAX = 1 << 31


def check_publication(state: BrokerState, queue: Queue, publication: Publication) -> None:
    """Raise what is wrong with a publication for this queue."""
    if type(publication) is not Publication:
        raise InvalidArgument(f"One of the publications is of type {type(publication).__name__}; give a Publication.")
    body = publication.body
    if type(body) is not bytes:
        raise InvalidArgument(f"A body is bytes, not {type(body).__name__}; encode it first.")
    check_body_bytes(state, queue, len(body))
    priority = publication.priority
    highest = queue.settings.highest_priority
    if priority is not None and not (type(priority) is int and 0 <= priority <= highest):
        raise InvalidPriority(
            f"Priority {priority!r} is not a whole number from 0 to {highest}, "
            f"which is what queue {queue.name!r} takes{state.by_policy(queue, 'max_priority')}."
        )
    if publication.delay_ms is not None:
        _check_ms("delay_ms", publication.delay_ms)
    if publication.deliver_at_ms is not None:
        _check_ms("deliver_at_ms", publication.deliver_at_ms)
    if publication.envelope is not PLAIN:
        check_envelope(publication.envelope)


def check_body_bytes(state: BrokerState, queue: Queue, body_bytes: int) -> None:
    limit = state.body_limit(queue)
    if body_bytes > limit:
        raise MessageTooLarge(
            f"A body of {body_bytes} bytes is over the limit of {limit} bytes for queue {queue.name!r}"
            f"{state.by_policy(queue, 'body_bytes_max')}; raise its body_bytes_max, or send less."
        )


def check_publications(publications: object) -> None:
    """Raise `InvalidArgument` unless they are a sequence; what is in it is refused one by one."""
    if isinstance(publications, (str, bytes)) or not isinstance(publications, Sequence):
        raise InvalidArgument(f"publications is of type {type(publications).__name__}; give a list of Publication.")


def how_full(state: BrokerState, queue: Queue, count: int = 1) -> str:
    """For errors: which limit of a queue does not let in so many more messages, and whose it is."""
    settings = queue.settings
    is_too_deep = settings.max_depth is not None and queue.limited_depth + count > settings.max_depth
    held = f"{queue.limited_depth} messages" if is_too_deep else f"{queue.limited_bytes} bytes"
    limit = settings.max_depth if is_too_deep else settings.max_bytes
    origin = state.by_policy(queue, "max_depth" if is_too_deep else "max_bytes")
    return f"it holds {held} and its limit is {limit}{origin}"


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
