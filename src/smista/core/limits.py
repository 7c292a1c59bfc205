"""How much a queue may hold, whether one more fits, and which message goes first where it does not.

Questions only: nothing here changes a queue. What has to go goes in `trimming`; whoever is refused gets that from
`entering`, `dead_letters` or `staging`.
"""

from __future__ import annotations

from smista.core.message import Message
from smista.core.queue import Queue
from smista.core.settings import Overflow

MAKES_ROOM = (Overflow.DROP_OLDEST, Overflow.DEAD_LETTER_OLDEST)


def drops_first(queue: Queue) -> bool:
    """Whether a publish to this queue never fails for its limits, as in RabbitMQ: it may itself be what has to go."""
    settings = queue.settings
    return settings.limit_ready_only and settings.overflow in MAKES_ROOM and settings.is_limited


def is_over(queue: Queue) -> bool:
    """Whether a queue holds more than its limits say."""
    settings = queue.settings
    return (settings.max_depth is not None and queue.limited_depth > settings.max_depth) or (
        settings.max_bytes is not None and queue.limited_bytes > settings.max_bytes
    )


def fits(queue: Queue, body_bytes: int, count: int = 1) -> bool:
    """Whether so many more messages, of so many bytes together, are within the limits."""
    settings = queue.settings
    return (settings.max_depth is None or queue.limited_depth + count <= settings.max_depth) and (
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


def has_room(queue: Queue, body_bytes: int, count: int = 1) -> bool:
    """Whether a queue takes so many more as it is."""
    return drops_first(queue) or fits(queue, body_bytes, count)


def over_by(queue: Queue) -> int:
    """How many messages a queue holds beyond its limit of them."""
    return 0 if queue.settings.max_depth is None else max(0, queue.limited_depth - queue.settings.max_depth)


def next_to_go(queue: Queue) -> Message | None:
    """The message that leaves first when one has to; None where nothing is ready.

    Of a queue that lets everything in, the one that would be received next, as in RabbitMQ; else the one that has been
    ready longest."""
    message = None
    if queue.line is not None:
        message = queue.line.first() if queue.settings.limit_ready_only else queue.line.oldest()
    if message is None:
        # Of an ordered group only the first stands in line, and not even that one while it is in flight.
        message = next(iter(queue.ready.values()), None)
    return message


def is_one_by_one(queue: Queue) -> bool:
    """Whether a batch has to be published one message at a time, with `keep_limits` in between.

    So it is where a queue with consumers counts only what nobody holds and refuses what does not fit: whether one more
    fits is known only when those have got what came before it."""
    settings = queue.settings
    return (
        queue.is_watched and settings.limit_ready_only and settings.is_limited and settings.overflow not in MAKES_ROOM
    )
