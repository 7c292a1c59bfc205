"""Keeping queues within their limits: what has to go, goes here.

A queue that takes one more although it is full lets go of what was there, before the newcomer enters (`make_room`), so
that the newcomer gets its place. Room is made only when everything about the publish is decided: whoever is refused
has pushed nobody out. What could not be done then is done when the command is over (`keep_limits`): the queue takes
more than its limits say, and is left in `state.over_limit`. So it is also where

- everything is let in first, as RabbitMQ does it. In a queue with `limit_ready_only` a message counts against the
  limits only while nobody holds it: whoever waits gets what is ready, and only what nobody took must fit, or go. The
  same is true of a message whose time to live is over as it enters. Both need the consumers, whom the core does not
  know, and serving them is a transition of its own;
- nothing may be refused any more: staged rows, messages that come back, dead letters, a limit that was lowered;
- a step has made dead letters in very many queues, and more would follow (see `entering`);
- a dead letter comes to a queue that has consumers, counts only what nobody holds, and refuses what does not fit. They
  come many at a time, and in RabbitMQ one by one: whether one fits is known when those have got what came before it.
  What is still beyond the limits then, newest first, is refused after all.

The rule is that a command never serves: it notes its records, and when it is over and nothing is half done, somebody
calls `keep_limits`:

    command ──▶ records noted, queue in `over_limit` ──▶ command is over ──▶ keep_limits: serve, expire, drop

One call does a bounded amount of work; what is left stays in `over_limit` for the next one. Dropping keeps pace with
publishing, since the bound grows with what entered.
"""

from __future__ import annotations

from collections.abc import Callable

from smista.core.dead_letters import discard, expire, is_much, set_aside
from smista.core.limits import MAKES_ROOM, drops_first, has_room, is_over, next_to_go
from smista.core.message import Fate, Message, Reason
from smista.core.queue import Queue
from smista.core.settings import Overflow
from smista.core.state import BrokerState

TRIMMED_AT_ONCE = 250
"""How many messages one call drops beyond twice what entered, and how many queues it looks at."""
MADE_ROOM_AT_ONCE = 100
"""How many messages one that enters may push out at once; the rest goes some at a time."""

Serve = Callable[[Queue, int], object]


def keep_limits(state: BrokerState, *, serve: Serve, now_ms: int) -> Queue | None:
    """Serve the queues over their limits, then drop what nobody took and may not stay. Some may be over even then.

    Returns the one of them whose dead letters went to so many queues that the rest of them should wait for a while."""
    entered, since = sum(state.over_limit.values()), state.work
    budget = TRIMMED_AT_ONCE + 2 * entered
    while state.over_limit and budget > 0:
        queue, _ = state.over_limit.popitem()
        if queue.is_deleted:
            state.fleeting.pop(queue, None)
            state.beyond.pop(queue, None)
            continue
        if queue.is_watched:
            serve(queue, now_ms)
        fleeting = state.fleeting.pop(queue, [])
        for place, message in enumerate(fleeting):
            if is_much(state, since, 2 * entered):
                state.fleeting[queue] = fleeting[place:]
                break
            if queue.ready.get(message.sequence) is message:
                expire(state, queue, message, now_ms=now_ms)
                state.journal.between()
        beyond = state.beyond.pop(queue, [])
        for message in _newest_beyond(queue, beyond):
            if is_much(state, since, 2 * entered):
                state.beyond[queue] = beyond
                break
            turn_away(state, queue, message, now_ms)
            state.journal.between()
        if is_much(state, since, 2 * entered):
            state.over_limit.setdefault(queue, 0)
            return queue
        count = 0
        while is_over(queue) and queue.settings.overflow in MAKES_ROOM:
            if is_much(state, since, 2 * entered):
                state.over_limit.setdefault(queue, 0)
                return queue
            if count >= budget:
                # More than one call may do.
                state.over_limit.setdefault(queue, 0)
                break
            if not _let_go(state, queue, now_ms):
                break
            state.journal.between()
            count += 1
        budget -= 1 + count
    return None


def make_room(state: BrokerState, queue: Queue, body_bytes: int, now_ms: int) -> None:
    """Let go of what has to leave for one more body that the queue takes, see `entering.admit`."""
    for _ in range(MADE_ROOM_AT_ONCE):
        if has_room(queue, body_bytes) or not _let_go(state, queue, now_ms):
            return
        state.looked_at += 1


def _newest_beyond(queue: Queue, entered: list[Message]) -> list[Message]:
    """Those of the messages that must go again for the queue to be within its limits: the newest, in their order."""
    settings = queue.settings
    depth, size = queue.limited_depth, queue.limited_bytes
    found = []
    for message in reversed(entered):
        is_within = settings.max_depth is None or depth <= settings.max_depth
        if is_within and (settings.max_bytes is None or size <= settings.max_bytes):
            break
        if queue.ready.get(message.sequence) is message:
            found.append(message)
            depth -= 1
            size -= message.body_bytes
    return found[::-1]


def turn_away(state: BrokerState, queue: Queue, message: Message, now_ms: int) -> None:
    """Have a message that entered leave again since the queue is full: set aside where the queue wants that."""
    fate = Fate(Reason.OVERFLOW, None, "", now_ms)
    is_set_aside = queue.settings.overflow is Overflow.DEAD_LETTER_NEWEST and set_aside(state, queue, message, fate)
    if not is_set_aside:
        discard(state, queue, message, Reason.OVERFLOW, now_ms=now_ms)


def _let_go(state: BrokerState, queue: Queue, now_ms: int) -> bool:
    """Have the next message leave a queue for its limits. False where none is ready, or where it should become a dead
    letter and nobody takes it: then it stays, and the queue refuses what comes until somebody does."""
    message = next_to_go(queue)
    if message is None:
        return False
    if queue.settings.overflow is Overflow.DEAD_LETTER_OLDEST:
        if set_aside(state, queue, message, Fate(Reason.OVERFLOW, None, "", now_ms)):
            return True
        if not drops_first(queue):
            return False
    discard(state, queue, message, Reason.OVERFLOW, now_ms=now_ms)
    return True
