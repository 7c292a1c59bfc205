"""Attaching: line, groups and deadlines of a queue are built from its tables.

When a log has been replayed, or settings changed what the line is built on. That is why a due time that passed needs no
record of its own: the calendar finds it.
"""

from __future__ import annotations

from smista.core.message import State
from smista.core.queue import Messages, Queue
from smista.core.rate import RateLimit
from smista.core.settings import PriorityPolicy, QueueSettings
from smista.core.table import Table


def attach(queue: Queue, now_ms: int) -> None:
    """Build line, groups and deadlines from the tables; from here on the primitives keep them."""
    assert not queue.is_attached
    queue.is_attached = True
    if queue.settings.rate_limit is not None:
        queue.rate = RateLimit(queue.settings.rate_limit, now_ms)
    queue.ready = _in_sequence(queue.ready)
    queue.make_groups()
    groups = queue.groups
    if queue.settings.fair:
        for message in queue.in_flight.values():
            queue.make_fair_line().hold(message)
    for message in queue.ready.values():
        if groups is None or groups.is_first(message):
            queue.make_line().append(message)
        if message.expires_at_ms is not None:
            queue.calendar.add(message, message.expires_at_ms, now_ms)
    for message in queue.scheduled.values():
        queue.calendar.add(message, message.ready_at_ms, now_ms)
    for message in queue.in_flight.values():
        if message.deadline_ms is not None:
            queue.calendar.add(message, message.deadline_ms, now_ms)


def take_up_settings(queue: Queue, before: QueueSettings, now_ms: int, *, is_lined_up_anew: bool) -> None:
    """Go on under the settings it has now, after those it had before; `is_lined_up_anew` where that changes what
    the ready line is built on."""
    settings = queue.settings
    if is_lined_up_anew:
        _detach(queue)
        attach(queue, now_ms)
        return
    if settings.rate_limit != before.rate_limit:
        queue.rate = None if settings.rate_limit is None else RateLimit(settings.rate_limit, now_ms)
    if queue.line is not None:
        queue.line.is_weighted = settings.priority_policy is PriorityPolicy.WEIGHTED


def _detach(queue: Queue) -> None:
    """Forget the deadlines; its settings have changed, and it is attached again."""
    for message in queue.messages():
        deadline_ms = message.deadline_ms
        if deadline_ms is not None:
            queue.calendar.remove(message)
            if message.state is State.IN_FLIGHT:
                message.deadline_ms = deadline_ms
    queue.calendar.remove(queue)
    queue.line = queue.fair = queue.groups = queue.rate = None
    queue.is_attached = False


def _in_sequence(table: Messages) -> Messages:
    """The table in the order of its keys, which relocated and returned messages may have disturbed."""
    sequences = list(table)
    if sequences == sorted(sequences):
        return table
    return Table(dict(table.items()))
