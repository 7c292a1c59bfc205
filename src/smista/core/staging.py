"""Committing staged batches: rows that wait outside the queues are published together, once.

What is staged lies in files, of which the core knows nothing. Here is what must hold whatever they contain:

- A batch is named by its job and its number there. Committing it puts down a durable *intent* first: where to, which
  parts, how many rows. From then on the batch will be published, all of it, whatever happens in between.
- Rows go in by slices, in the order of the parts, each slice in one step with a note of how far that brought us. So a
  restart goes on behind the last slice that is on disk, and no row enters twice.
- Everything that could refuse a row is asked before the intent: whether the queue is there, has room, takes bodies of
  that size and such priorities. What changes later (the queue filled up or was altered meanwhile) refuses nothing any
  more. Rows for a queue or exchange that was deleted meanwhile go nowhere, as if they had gone with it.
- A batch that was committed is remembered, and committing it again does nothing, for `REMEMBERED_MS`, or until
  `REMEMBERED_MAX` others have come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from smista.core.checks import check_body_bytes, how_full
from smista.core.exchanges import route
from smista.core.fan_out import publish_promised_to_several
from smista.core.limits import MAKES_ROOM, fits
from smista.core.message import Publication
from smista.core.publishing import publish_promised
from smista.core.queue import Queue
from smista.core.settings import DAY_MS
from smista.core.state import BrokerState
from smista.errors import InvalidPriority, QueueFull
from smista.exchange_errors import ReachTooWide

REMEMBERED_MS = 14 * DAY_MS
REMEMBERED_MAX = 100_000


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What one task staged in one attempt."""

    partition: int
    attempt: int
    rows: int
    crc: int
    """Of all that was staged, so that no other bytes are published in its place."""


class Commit(msgspec.Struct, kw_only=True):
    """A batch that is being published, or was."""

    job: str
    batch: str
    namespace: str
    queue: str | None
    exchange: str | None
    parts: tuple[Part, ...]
    """Empty when all is done."""
    rows: int
    at_ms: int
    done: int = 0
    """How many rows have been seen to."""
    duplicates: int = 0
    unrouted: int = 0
    position: int = 0
    """The log block that holds this."""

    @property
    def is_done(self) -> bool:
        return self.done >= self.rows

    @property
    def published(self) -> int:
        return self.done - self.duplicates - self.unrouted


class Row(msgspec.Struct, gc=False):
    publication: Publication
    headers: Mapping[str, object] | None = None


class Load(msgspec.Struct):
    """What a queue would have to take."""

    rows: int = 0
    body_bytes: int = 0
    body_bytes_max: int = 0
    priority_max: int = 0

    def add(self, other: Load) -> None:
        self.rows += other.rows
        self.body_bytes += other.body_bytes
        self.body_bytes_max = max(self.body_bytes_max, other.body_bytes_max)
        self.priority_max = max(self.priority_max, other.priority_max)

    def add_row(self, publication: Publication) -> None:
        body_bytes = len(publication.body)
        self.add(Load(1, body_bytes, body_bytes, publication.priority or 0))


def check_load(state: BrokerState, queue: Queue, load: Load) -> None:
    """Raise why the queue cannot take this, all of it."""
    settings = queue.settings
    check_body_bytes(state, queue, load.body_bytes_max)
    highest = settings.highest_priority
    if load.priority_max > highest:
        raise InvalidPriority(
            f"Priority {load.priority_max} is above {highest}, the highest queue {queue.name!r} takes"
            f"{state.by_policy(queue, 'max_priority')}."
        )
    if settings.overflow not in MAKES_ROOM and not fits(queue, load.body_bytes, load.rows):
        raise QueueFull(
            f"Queue {queue.name!r} has no room for {load.rows} messages of {load.body_bytes} bytes: "
            f"{how_full(state, queue, load.rows)}; consume, purge or raise the limit."
        )


def begin(state: BrokerState, commit: Commit) -> None:
    """Put down the intent."""
    _forget(state, commit.at_ms)
    state.journal.committed(commit)
    apply_committed(state, commit)


def publish_slice(state: BrokerState, commit: Commit, rows: Sequence[Row], *, now_ms: int) -> None:
    """Publish the next rows and note how far that brings the commit, in one step."""
    for queues, publications in _routed(state, commit, rows).items():
        if not queues:
            commit.unrouted += len(publications)
        elif len(queues) == 1:
            entered = publish_promised(state, queues[0], publications, now_ms=now_ms)
            if commit.queue is not None:
                commit.duplicates += len(publications) - entered
        else:
            for publication in publications:
                publish_promised_to_several(state, queues, publication, now_ms=now_ms)
    commit.done += len(rows)
    if commit.is_done:
        commit.parts = ()
    state.journal.committed(commit)


def route_rows(
    state: BrokerState, namespace: str, exchange: str, rows: Sequence[Row], *, is_promised: bool = False
) -> dict[tuple[Queue, ...], list[Publication]]:
    """Where an exchange would send the rows: what goes to the same queues together, in order; no queues for what goes
    nowhere. What would go to too many is refused; where it is promised already, it goes nowhere."""
    space = state.namespaces.get(namespace)
    found: dict[tuple[Queue, ...], list[Publication]] = {}
    if space is None or (exchange and space.topology.find(exchange) is None):
        return {(): [row.publication for row in rows]}
    for row in rows:
        key = row.publication.envelope.routing_key
        names: tuple[str, ...] = ()
        try:
            names = route(space.topology, exchange, key, row.headers, space.queues.__contains__, ()).queues
        except ReachTooWide:
            if not is_promised:
                raise
            names = ()
        found.setdefault(tuple(space.queues[name] for name in names), []).append(row.publication)
    return found


def apply_committed(state: BrokerState, commit: Commit) -> None:
    state.commits[commit.job, commit.batch] = commit


def _routed(state: BrokerState, commit: Commit, rows: Sequence[Row]) -> dict[tuple[Queue, ...], list[Publication]]:
    if commit.queue is not None:
        space = state.namespaces.get(commit.namespace)
        queue = None if space is None else space.queues.get(commit.queue)
        return {() if queue is None else (queue,): [row.publication for row in rows]}
    assert commit.exchange is not None
    return route_rows(state, commit.namespace, commit.exchange, rows, is_promised=True)


def _forget(state: BrokerState, now_ms: int) -> None:
    """Oldest first; one that is not done stays, and so do those behind it."""
    while state.commits:
        key, oldest = next(iter(state.commits.items()))
        is_old = oldest.at_ms + REMEMBERED_MS <= now_ms or len(state.commits) >= REMEMBERED_MAX
        if not is_old or not oldest.is_done:
            return
        del state.commits[key]
