"""Browsing messages without touching them: by state, by filter, a page at a time; one by its number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from smista.core.at_once import PROPERTIES_AT_ONCE
from smista.core.counters import QueueStats
from smista.core.message import Message, Reason, State
from smista.core.queue import Queue
from smista.errors import InvalidArgument, MessageNotFound

if TYPE_CHECKING:
    from smista.core.claims import Claimant
    from smista.core.state import ReadRouting

LOOKED_AT_MAX = 1_000
READ_BYTES = PROPERTIES_AT_ONCE // LOOKED_AT_MAX
"""To read so many bytes of its properties counts as much as to look at one message."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a message must be like; None leaves a thing open. All of it is data, so that the log can keep it."""

    state: State | None = None
    priority: int | None = None
    group: str | None = None
    reason: Reason | None = None
    """Why it last died."""
    source: str | None = None
    """The queue it last died in."""
    error_contains: str | None = None
    created_from_ms: int | None = None
    created_before_ms: int | None = None
    deliveries_min: int | None = None
    messages: frozenset[tuple[int, int]] | None = None
    """Only these, by number and time of creation."""
    headers: dict[str, Any] | None = None
    """It has all of these, as dead letters are routed by them."""

    def accepts(self, message: Message, read_routing: ReadRouting) -> bool:
        death = message.deaths[-1] if message.deaths else None
        return (
            (self.state is None or message.state is self.state)
            and (self.priority is None or message.priority == self.priority)
            and (self.group is None or message.envelope.group == self.group)
            and (self.reason is None or (death is not None and death.reason is self.reason))
            and (self.source is None or (death is not None and death.queue == self.source))
            and (self.error_contains is None or self.error_contains in last_error(message))
            and (self.created_from_ms is None or message.created_at_ms >= self.created_from_ms)
            and (self.created_before_ms is None or message.created_at_ms < self.created_before_ms)
            and (self.deliveries_min is None or message.delivery_count >= self.deliveries_min)
            and (self.messages is None or (message.number, message.created_at_ms) in self.messages)
            and (self.headers is None or _has(self.headers, read_routing(message.envelope.properties)[0] or {}))
        )

    def excludes(self, other: Wanted) -> bool:
        """Whether no message can be what both want."""
        return any(
            None not in (mine, theirs) and mine != theirs
            for mine, theirs in (
                (self.state, other.state),
                (self.priority, other.priority),
                (self.group, other.group),
                (self.reason, other.reason),
                (self.source, other.source),
            )
        ) or (self.messages is not None and other.messages is not None and self.messages.isdisjoint(other.messages))

    def effort(self, message: Message) -> int:
        """What it takes to judge a message; 1 where nothing of it has to be read."""
        return 1 if self.headers is None else 1 + len(message.envelope.properties) // READ_BYTES


def _has(headers: Mapping[str, object], present: Mapping[str, object]) -> bool:
    return all(present.get(name) == value for name, value in headers.items())


ANY = Wanted()


class Page(msgspec.Struct, frozen=True):
    messages: list[Message]
    after: int | None
    """Where the next page starts; None when this was the last."""
    looked_at: int = 0
    """How many messages were looked at for it."""


def browse(
    queue: Queue,
    wanted: Wanted,
    read_routing: ReadRouting,
    *,
    after: int = 0,
    limit: int = 100,
    looked_at_max: int = LOOKED_AT_MAX,
) -> Page:
    """Messages in the order of their sequences, from the first above `after`.

    Looks at no more than `looked_at_max` messages a call, fewer where their headers have to be read, so a page may be
    short and still have a next one.
    """
    if type(after) is not int or after < 0:
        raise InvalidArgument(f"after is {after!r:.80}; give what the page before has as its `after`, or 0.")
    if type(limit) is not int or not 1 <= limit <= 10_000:
        raise InvalidArgument(f"limit is {limit!r:.80}; a page has 1 to 10000 messages.")
    sequences = sequences_after(queue, after, looked_at_max + 1, wanted.state)
    found: list[Message] = []
    effort = looked_at = 0
    for sequence in sequences[:looked_at_max]:
        message = queue.find(sequence)
        assert message is not None
        after = sequence
        looked_at += 1
        if wanted.accepts(message, read_routing):
            found.append(message)
        effort += wanted.effort(message)
        if len(found) == limit or effort >= looked_at_max:
            break
    return Page(found, after if sequences and after < sequences[-1] else None, looked_at)


def sequences_after(queue: Queue, after: int, limit: int, state: State | None = None) -> list[int]:
    """The lowest `limit` sequences above `after`, of messages in one state or in any. However deep the queue is, this
    looks at a few thousand of them."""
    tables = [queue.tables()[_TABLES[state]]] if state in _TABLES else queue.tables()
    found = [table.above(after, limit) for table in tables if table]
    return (found[0] if len(found) == 1 else sorted(chain.from_iterable(found)))[:limit]


_TABLES: dict[State | None, int] = {State.READY: 0, State.SCHEDULED: 1, State.IN_FLIGHT: 2, State.DEAD: 3}


def get(queue: Queue, sequence: int) -> Message:
    message = queue.find(sequence)
    if message is None:
        raise MessageNotFound(f"Queue {queue.name!r} has no such message; it may have been settled or moved.")
    return message


def last_error(message: Message) -> str:
    """The error text the last failed delivery carried, here or before the message died."""
    failures = message.deliveries.failures if message.deliveries is not None else ()
    if not failures and message.deaths:
        failures = message.deaths[-1].failures
    return failures[-1].error if failures else ""


def stats(queue: Queue, *, consumers: int = 0, claimants: Sequence[Claimant] = (), now_ms: int) -> QueueStats:
    counters = queue.counters
    claims = [claim for claimant in claimants for claim in claimant.open_claims]
    oldest = None if queue.line is None else queue.line.oldest()
    return QueueStats(
        queue=queue.name,
        namespace=queue.namespace,
        ready=len(queue.ready),
        scheduled=len(queue.scheduled),
        in_flight=len(queue.in_flight),
        dead=len(queue.dead),
        depth=queue.depth,
        body_bytes=queue.body_bytes,
        consumers=consumers,
        claims=len(claims),
        claimed=sum(claim.row_count for claim in claims),
        is_paused=queue.is_paused,
        published_total=counters.published,
        delivered_total=counters.delivered,
        acknowledged_total=counters.acknowledged,
        nacked_total=counters.nacked,
        timed_out_total=counters.timed_out,
        released_total=counters.released,
        dead_lettered_total=counters.dead_lettered,
        redriven_total=counters.redriven,
        expired_total=counters.expired,
        dropped_total=counters.dropped,
        purged_total=counters.purged,
        duplicates_total=counters.duplicates,
        rejected_total=counters.rejected,
        acknowledged_late_total=sum(claimant.late_count for claimant in claimants),
        wait_ms_average=counters.wait_ms_total / counters.first_delivered if counters.first_delivered else 0.0,
        oldest_age_ms=0 if oldest is None else max(0, now_ms - oldest.ready_at_ms),
        policy=queue.policy,
    )
