"""Statistics of a running broker and of its queues, nothing changed. What is measured is in `measures`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from smista.core import browsing
from smista.core.claims import claimants
from smista.core.counters import QueueStats
from smista.core.queue import Queue
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.consumers import Watch
from smista.engine.measures import BrokerMeasures, LagTimer, QueueMeasures, Recovered
from smista.engine.poll import Poll
from smista.engine.pressure import resident_set_bytes
from smista.engine.running import Running

QUEUES_AT_ONCE = 2_000
"""How many queues are counted before the rest of the loop has its turn."""


class Statistics:
    def __init__(self, running: Running, recovered: Recovered) -> None:
        self._running = running
        self._state = running.state
        self._keeper = running.keeper
        self._opened_s = time.monotonic()
        self._lag_timer = LagTimer()
        self.recovered = recovered
        """What the log held when this broker was opened."""

    def stop(self) -> None:
        self._lag_timer.stop()

    # -- queues -------------------------------------------------------------------------------------------------------

    def stats(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> QueueStats:
        now_ms = self._running.enter()
        return self._stats(self._state.queue(name, namespace), now_ms)

    def message_count(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """How many messages a queue holds, in any state; cheaper than all its statistics."""
        self._running.enter()
        return self._state.queue(name, namespace).message_count

    async def totals(self) -> tuple[int, int]:
        """How many queues there are, in all namespaces, and how many messages they hold, in any state."""
        self._running.enter()
        queue_count = messages = 0
        async for some in self._running.fair_turns.slices(list(self._state.queues.values()), QUEUES_AT_ONCE):
            for queue in some:
                if not queue.is_deleted:
                    queue_count += 1
                    messages += queue.message_count
        return queue_count, messages

    # -- the broker ---------------------------------------------------------------------------------------------------

    def measures(self) -> BrokerMeasures:
        """All that monitoring asks for, nothing changed; also of a broker that has stopped or is closed."""
        watches = [
            watch
            for queue in self._state.queues.values()
            if queue.is_watched and (watch := self._running.consumers.watch(queue)) is not None
        ]
        refusal = self._keeper.pressure.refusal
        return BrokerMeasures(
            uptime_ms=int((time.monotonic() - self._opened_s) * 1000),
            log=self._keeper.measures(),
            lag_ms=self._lag_timer.lag_ms.read(),
            memory_bytes=resident_set_bytes(),
            held_bytes=self.held_bytes,
            resident_body_bytes=self._keeper.journal.accounts.resident_bytes,
            refusal=None if refusal is None else refusal.code,
            is_stopped=self._keeper.failure is not None,
            queue_count=len(self._state.queues),
            subscription_count=sum(len(watch.subscriptions) for watch in watches),
            long_poll_count=sum(map(_poll_count, watches)),
            queues=self._queue_measures(),
        )

    @property
    def held_bytes(self) -> int:
        """What the broker holds in memory."""
        return self._keeper.held().total

    def _queue_measures(self) -> Iterator[QueueMeasures]:
        for queue in list(self._state.queues.values()):
            if not queue.is_deleted:
                stats = self._stats(queue, self._running.clock.now_ms())
                wait_ms, processing_ms = self._keeper.journal.times.read(queue) or (None, None)
                yield QueueMeasures(stats, wait_ms, processing_ms)

    def _stats(self, queue: Queue, now_ms: int) -> QueueStats:
        return browsing.stats(
            queue,
            consumers=self._running.consumers.count(queue),
            claimants=claimants(self._state, queue),
            now_ms=now_ms,
        )


def _poll_count(watch: Watch) -> int:
    return sum(isinstance(waiting, Poll) for waiting in watch.line)
