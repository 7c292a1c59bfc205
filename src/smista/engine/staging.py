"""Staged batches on a running broker: the rules are in `core/staging`, the rows come from outside.

    begin ──▶ the intent is durable ──▶ publish, slice by slice ──▶ done, durable
         after a restart: unfinished ──▶ publish from `done` on

Whoever keeps what was staged reads and decodes it, in threads of its own, and hands over slices of rows. The broker
does not know where they lie; the intent names parts, and the very bytes they name must be found again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from smista.core import staging
from smista.core.dead_letters import COPIES_AT_ONCE
from smista.core.queue import Queue
from smista.core.staging import Commit, Load, Row
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.accounts import KEPT_BYTES, MESSAGE_BYTES
from smista.engine.running import Running
from smista.engine.slices import SLICE_S, STEP_BYTES_MAX

STAGED_AT_ONCE = 1_000
"""How many rows are handed over at once ..."""
STEP = 250
"""... and how many of them enter in one step: with ids, headers and priorities that takes 2 ms."""


class Staging:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state
        self._keeper = running.keeper

    def find(self, job: str, batch: str) -> Commit | None:
        """What is known of a batch that was committed, done or not."""
        self._running.enter()
        return self._state.commits.get((job, batch))

    def unfinished(self) -> list[Commit]:
        """Those that a restart must go on with."""
        self._running.enter()
        return [commit for commit in self._state.commits.values() if not commit.is_done]

    async def route(
        self, exchange: str, rows: Sequence[Row], loads: dict[str, Load], *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Add to `loads`, by queue, what an exchange would make of these rows. It may take long to find where a row
        goes, so the clock is looked at after each."""
        self._running.enter()
        self._state.namespace(namespace).topology.check_publish(exchange)
        end_s = time.perf_counter() + SLICE_S
        for row in rows:
            for queues in staging.route_rows(self._state, namespace, exchange, [row]):
                for queue in queues:
                    loads.setdefault(queue.name, Load()).add_row(row.publication)
            if time.perf_counter() > end_s:
                await asyncio.sleep(0)
                self._running.enter()
                end_s = time.perf_counter() + SLICE_S

    async def begin(self, commit: Commit, loads: dict[str, Load]) -> None:
        """Check that every queue takes its load, and put down the intent; returns when that is durable."""
        now_ms = self._running.enter()
        self._running.check_pressure()
        for name, load in loads.items():
            queue: Queue = self._state.queue(name, commit.namespace)
            staging.check_load(self._state, queue, load)
        self._check_room(list(loads.values()))
        commit.at_ms = now_ms
        staging.begin(self._state, commit)
        await self._running.done_durably()

    def _check_room(self, loads: Sequence[Load]) -> None:
        """Later nothing of it can be refused."""
        rows = sum(load.rows for load in loads)
        body_bytes = sum(load.body_bytes for load in loads)
        refusal = self._keeper.pressure.refusal_for(
            memory_bytes=rows * KEPT_BYTES + min(body_bytes, self._keeper.resident_bytes_left),
            disk_bytes=rows * MESSAGE_BYTES + body_bytes,
        )
        if refusal is not None:
            raise refusal

    async def publish(self, commit: Commit, rows: Sequence[Row]) -> None:
        """Publish the next rows of a commit, some at a time, each time in one step with the note of it."""
        await self._keeper.room()
        end_s = time.perf_counter() + SLICE_S
        # What an exchange makes of a row is known when it is published: the first one alone, and then as many as are
        # within what may enter at once.
        at_once = STEP if commit.exchange is None else 1
        start = 0
        while start < len(rows):
            step = _step(rows, start, at_once)
            start += len(step)
            began_s = time.perf_counter()
            now_ms, since = self._running.enter(), self._state.next_sequence
            staging.publish_slice(self._state, commit, step, now_ms=now_ms)
            if commit.exchange is not None:
                entered = max(1, self._state.next_sequence - since)
                at_once = max(1, min(STEP, 2 * len(step), COPIES_AT_ONCE * len(step) // entered))
                if time.perf_counter() - began_s > SLICE_S:
                    # It took long to find where they go.
                    at_once = max(1, len(step) // 2)
            self._running.keep_limits(now_ms)
            self._running.after()
            if time.perf_counter() > end_s:
                await asyncio.sleep(0)
                end_s = time.perf_counter() + SLICE_S


def _step(rows: Sequence[Row], start: int, at_once: int) -> Sequence[Row]:
    """The next rows that enter together: they are in one block with the note of it."""
    step_bytes = 0
    for place in range(start, min(len(rows), start + at_once)):
        step_bytes += len(rows[place].publication.body)
        if place > start and step_bytes > STEP_BYTES_MAX:
            return rows[start:place]
    return rows[start : start + at_once]
