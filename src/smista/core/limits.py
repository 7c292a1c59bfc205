"""How much a queue may hold, and whether one more fits. What happens when it does not: `trimming`, `publishing`."""

from __future__ import annotations

from smista.core.message import Message
from smista.core.queue import Queue
from smista.core.settings import Overflow

MAKES_ROOM = (Overflow.DROP_OLDEST, Overflow.DEAD_LETTER_OLDEST)


def is_limited(queue: Queue) -> bool:
    return queue.settings.max_depth is not None or queue.settings.max_bytes is not None


def drops_first(queue: Queue) -> bool:
    """Whether a publish to this queue never fails for its limits, as in RabbitMQ: it may itself be what has to go."""
    return queue.settings.limit_ready_only and queue.settings.overflow in MAKES_ROOM and is_limited(queue)


def may_not_stay(queue: Queue, message: Message, now_ms: int) -> bool:
    """Whether a message should reach whoever waits before its queue's limits, or its own lifetime, are looked at."""
    if queue.settings.limit_ready_only and is_limited(queue):
        return True
    return message.expires_at_ms is not None and message.expires_at_ms <= now_ms


def is_over(queue: Queue) -> bool:
    """Whether a queue holds more than its limits say."""
    settings = queue.settings
    return (settings.max_depth is not None and queue.limited_depth > settings.max_depth) or (
        settings.max_bytes is not None and queue.limited_bytes > settings.max_bytes
    )


def fits(queue: Queue, body_bytes: int) -> bool:
    """Whether one more body is within the limits."""
    settings = queue.settings
    return (settings.max_depth is None or queue.limited_depth < settings.max_depth) and (
        settings.max_bytes is None or queue.limited_bytes + body_bytes <= settings.max_bytes
    )


def can_make_room(queue: Queue, body_bytes: int) -> bool:
    """Whether one more body would be within the limits if everything that is ready went. If not, nothing should go."""
    settings = queue.settings
    depth_left = queue.limited_depth - len(queue.ready)
    bytes_left = queue.limited_bytes - queue.ready_bytes
    return (settings.max_depth is None or depth_left < settings.max_depth) and (
        settings.max_bytes is None or bytes_left + body_bytes <= settings.max_bytes
    )


def has_room(queue: Queue, body_bytes: int) -> bool:
    """Whether a queue takes one more body as it is."""
    return drops_first(queue) or fits(queue, body_bytes)
