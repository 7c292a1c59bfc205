"""Keeping queues within their limits where everything is let in first, as RabbitMQ does it.

In a queue with `limit_ready_only` a message counts against the limits only while nobody holds it. So whoever waits gets
what is ready first, and only what nobody took must fit, or go; the same is true of a message whose time to live is
over as it enters. Both need the consumers, whom the core does not know, and serving them is a transition of its own.

The rule is therefore: a command never serves and never trims. It notes its records, and leaves the queue in
`state.crowded`. When the command is over, and nothing is half done, somebody calls `keep_limits`:

    command ──▶ records noted, queue in `crowded` ──▶ command is over ──▶ keep_limits: serve, expire, drop

Until then a queue may hold more than its limits say. One call does a bounded amount of work; what is left stays in
`crowded` for the next one. Dropping keeps pace with publishing, since the bound grows with what entered.
"""

from __future__ import annotations

from collections.abc import Callable

from smista.core.dead_letters import discard, expire, set_aside
from smista.core.limits import MAKES_ROOM, is_over
from smista.core.message import Fate, Message, Reason
from smista.core.queue import Queue
from smista.core.settings import Overflow
from smista.core.state import BrokerState

AT_ONCE = 250
"""How many messages one call drops beyond twice what entered, and how many queues it looks at."""

Serve = Callable[[Queue, int], None]


def keep_limits(state: BrokerState, *, serve: Serve, now_ms: int) -> None:
    """Serve the crowded queues, then drop what nobody took and may not stay. Some may still be crowded afterwards."""
    budget = AT_ONCE + 2 * sum(state.crowded.values())
    while state.crowded and budget > 0:
        queue, _ = state.crowded.popitem()
        if queue.is_deleted:
            state.fleeting.pop(queue, None)
            continue
        if queue.is_watched:
            serve(queue, now_ms)
        for message in state.fleeting.pop(queue, ()):
            if queue.ready.get(message.sequence) is message:
                expire(state, queue, message, now_ms=now_ms)
                state.journal.between()
        budget -= 1 + _trim(state, queue, budget, now_ms)
        if _dropped_next(queue) is not None:
            # More than one call may do.
            state.crowded.setdefault(queue, 0)


def _trim(state: BrokerState, queue: Queue, limit: int, now_ms: int) -> int:
    """Drop what is over the limits, up to `limit` messages; returns how many."""
    count = 0
    while count < limit and (message := _dropped_next(queue)) is not None:
        fate = Fate(Reason.OVERFLOW, None, "", now_ms)
        if queue.settings.overflow is Overflow.DROP_OLDEST or not set_aside(state, queue, message, fate):
            discard(state, queue, message, Reason.OVERFLOW, now_ms=now_ms)
        state.journal.between()
        count += 1
    return count


def _dropped_next(queue: Queue) -> Message | None:
    """The message that must leave a queue that is over its limits; None while none must, or nobody's is there."""
    if queue.line is None or queue.settings.overflow not in MAKES_ROOM or not is_over(queue):
        return None
    message = queue.line.first() if queue.settings.limit_ready_only else queue.line.oldest()
    if message is None and queue.groups is not None:
        # Of an ordered group only the first stands in line, and not even that one while it is in flight.
        message = next(iter(queue.ready.values()), None)
    return message
