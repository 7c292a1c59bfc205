"""The broker's measures as Prometheus reads them: `/metrics`, in its text format 0.0.4.

What concerns the whole broker goes through `prometheus_client`. What concerns a queue does not: with 10,000 queues that
is half a million lines, and `prometheus_client` would make them in one piece of several seconds. Here each line is one
f-string, and the loop gets its turn every few milliseconds. The lines of a family must stand together, so each family
collects its own.

Metric names and labels are promises to dashboards and alerts: `docs/metrics.md` explains each, `deploy/grafana.json`
uses them, and a test holds the three against each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from smista import __version__
from smista.errors import LowDisk, LowMemory, TooManyRequests
from smista.service.log_reading import BulkMeasures
from smista.service.session import Session
from smista.service.values import WAIT_MS, BrokerMeasures, Distribution, QueueMeasures

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SLICE_S = 0.005
READERS_MAX = 16
"""How many are answered at a time."""


async def render_parts(session: Session, bulk: BulkMeasures) -> list[bytes]:
    """All metrics, in pieces to be sent one after the other: putting 50 MB together takes 35 ms, in which nobody else
    gets a turn. That is 10,000 queues with traffic. They are read in slices, the rest of the loop in between."""
    measures = session.measures()
    registry = CollectorRegistry()
    registry.register(_BrokerCollector(measures, bulk))
    ProcessCollector(registry=registry)
    page = _QueuePage()
    end_s = time.perf_counter() + SLICE_S
    for queue in measures.queues:
        page.add(queue)
        if time.perf_counter() > end_s:
            page.fold()
            await session.service.fair_turns.turn()
            end_s = time.perf_counter() + SLICE_S
    page.fold()
    return [generate_latest(registry), *page.parts()]


class SharedPage:
    """Whoever asks for the metrics while they are being put together gets those: of 50,000 queues they take a second or
    more and are 100 MB, and nobody should be able to have that done many times over."""

    def __init__(self) -> None:
        self._being_made: asyncio.Task[list[bytes]] | None = None
        self._reader_count = 0

    async def parts(self, session: Session) -> list[bytes]:
        # Asked of everybody, whoever it is made for: it refuses those who may not see it.
        bulk = session.bulk_measures()
        if self._being_made is None:
            self._being_made = asyncio.create_task(render_parts(session, bulk))
            self._being_made.add_done_callback(self._made)
        # Whoever asked may go; others may wait for it.
        return await asyncio.shield(self._being_made)

    def _made(self, task: asyncio.Task[list[bytes]]) -> None:
        self._being_made = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While somebody is being answered, who holds a page in memory until it is read."""
        if self._reader_count >= READERS_MAX:
            raise TooManyRequests(f"{READERS_MAX} others are reading the metrics; ask again when one has ended.")
        self._reader_count += 1
        try:
            yield
        finally:
            self._reader_count -= 1


# -- the broker -------------------------------------------------------------------------------------------------------


class _BrokerCollector(Collector):
    def __init__(self, measures: BrokerMeasures, bulk: BulkMeasures) -> None:
        self._measures = measures
        self._bulk = bulk

    def collect(self) -> Iterator[Metric]:
        measures, log = self._measures, self._measures.log
        yield InfoMetricFamily("smista_build", "Which Smista this is.", value={"version": __version__})
        yield _gauge("smista_uptime_seconds", "How long the broker has been open.", measures.uptime_ms / 1000)
        yield _gauge(
            "smista_broker_stopped", "1 when the log has failed and nothing is confirmed.", measures.is_stopped
        )
        refused = GaugeMetricFamily(
            "smista_publishing_refused", "1 while publishes are refused for this reason.", labels=["reason"]
        )
        for error in (LowDisk, LowMemory):
            refused.add_metric([error.code], measures.refusal == error.code)
        yield refused
        yield _gauge("smista_queues", "Queues declared.", measures.queue_count)
        yield _gauge("smista_subscriptions", "Subscriptions open.", measures.subscription_count)
        yield _gauge("smista_long_polls", "Receives that are waiting for a message.", measures.long_poll_count)
        yield _gauge("smista_memory_bytes", "What the process has in memory.", measures.memory_bytes)
        yield _gauge("smista_held_bytes", "What the broker holds in memory.", measures.held_bytes)
        yield _gauge("smista_body_memory_bytes", "Bodies in memory, not paged out.", measures.resident_body_bytes)
        yield _histogram(
            "smista_event_loop_lag_seconds", "How late the event loop calls what is due.", measures.lag_ms, 1000
        )
        yield _histogram("smista_log_sync_seconds", "Appending and syncing one block.", log.sync_ms, 1000)
        yield _histogram("smista_log_block_bytes", "Size of the blocks written.", log.block_bytes, 1)
        yield CounterMetricFamily("smista_log_blocks_total", "Blocks written.", log.block_bytes.count)
        yield CounterMetricFamily("smista_log_written_bytes_total", "Bytes written in blocks.", log.block_bytes.total)
        yield _gauge("smista_log_bytes", "Size of all blocks that are kept.", log.kept_bytes)
        yield _gauge("smista_log_waiting_bytes", "Noted, but not durable yet.", log.waiting_bytes)
        yield _gauge("smista_log_behind", "1 while publishers are held back until the log catches up.", log.is_behind)
        yield _gauge("smista_log_sealed_position", "The last block handed to the log.", log.sealed_position)
        yield _gauge("smista_log_durable_position", "The last block that is on disk.", log.durable_position)
        if log.disk_free_bytes is not None:
            yield _gauge("smista_disk_free_bytes", "Free space on the log's disk.", log.disk_free_bytes)
        yield _gauge("smista_log_reusable_bytes", "Taken by the log and free for new blocks.", log.reusable_bytes)
        yield _gauge("smista_log_full", "1 while a block waits for room on a full disk.", log.is_full)
        yield _gauge("smista_log_reserve_spent", "1 while the log's reserve is given up.", log.is_reserve_spent)
        yield CounterMetricFamily("smista_log_damaged_blocks_total", "Blocks found damaged.", log.damaged_blocks)
        yield _gauge(
            "smista_log_unreadable_blocks", "Blocks that cannot be read and are tried again.", log.unreadable_blocks
        )
        yield CounterMetricFamily(
            "smista_damaged_messages_total", "Messages set aside because their bodies are lost.", log.damaged_messages
        )
        bulk = self._bulk
        yield _gauge("smista_bulk_readers", "Connections on which the log is being read in bulk.", bulk.readers)
        yield CounterMetricFamily("smista_bulk_rows_total", "Rows of the log that were read in bulk.", bulk.rows_total)
        yield CounterMetricFamily("smista_bulk_bytes_total", "Bytes that were sent for them.", bulk.bytes_total)
        yield CounterMetricFamily(
            "smista_bulk_starts_total", "Starts of the process that reads the log in bulk.", bulk.starts_total
        )


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value)


def _histogram(name: str, meaning: str, distribution: Distribution, scale: int) -> HistogramMetricFamily:
    buckets = list(zip(_limits(distribution.bounds, scale), accumulate(distribution.counts), strict=True))
    return HistogramMetricFamily(name, meaning, buckets, distribution.total / scale)


def _limits(bounds: Iterable[float], scale: int) -> list[str]:
    """The bounds of a histogram as the label `le` gives them."""
    return [*(str(bound / scale) for bound in bounds), "+Inf"]


# -- the queues -------------------------------------------------------------------------------------------------------


class _Family(NamedTuple):
    name: str
    kind: str
    meaning: str
    field: str = ""
    """Of `QueueStats`, where one of its fields is the value."""

    def head(self) -> bytes:
        return f"# HELP {self.name} {self.meaning}\n# TYPE {self.name} {self.kind}\n".encode()


_MESSAGES = _Family("smista_queue_messages", "gauge", "Messages in each state.")
_AGE = _Family("smista_queue_oldest_message_age_seconds", "gauge", "How long the oldest ready message has been ready.")
_PAUSED = _Family("smista_queue_paused", "gauge", "1 while the queue is paused.")
_WAIT = _Family("smista_queue_wait_seconds", "histogram", "From ready to first delivery.")
_PROCESSING = _Family("smista_queue_processing_seconds", "histogram", "From delivery to acknowledge.")
_STATES = ("ready", "scheduled", "in_flight", "dead")
_PLAIN = (
    _Family("smista_queue_depth", "gauge", "Messages ready, scheduled and in flight.", "depth"),
    _Family("smista_queue_body_bytes", "gauge", "Bytes of the bodies of all messages.", "body_bytes"),
    _Family("smista_queue_consumers", "gauge", "Subscriptions open.", "consumers"),
    _Family("smista_queue_claims", "gauge", "Claims open.", "claims"),
    _Family("smista_queue_claimed", "gauge", "Messages in open claims.", "claimed"),
    *(
        _Family(f"smista_queue_{total}", "counter", meaning, total)
        for total, meaning in (
            ("published_total", "Messages stored by a publish."),
            ("delivered_total", "Deliveries, redeliveries included."),
            ("acknowledged_total", "Deliveries acknowledged."),
            ("nacked_total", "Deliveries nacked, or whose consumer vanished."),
            ("timed_out_total", "Deliveries whose lease ran out."),
            ("released_total", "Deliveries given back, not counted as failed."),
            ("dead_lettered_total", "Messages set aside."),
            ("redriven_total", "Dead letters sent back to this queue."),
            ("expired_total", "Messages whose time to live or retention ran out."),
            ("dropped_total", "Messages gone for want of room, or failed where dead letters are dropped."),
            ("purged_total", "Messages purged or cancelled."),
            ("duplicates_total", "Publishes recognised as repeated."),
            ("rejected_total", "Publishes refused."),
            ("acknowledged_late_total", "Rows of claims that had expired when they were acknowledged."),
        )
    ),
)
_FAMILIES = (_MESSAGES, _AGE, _PAUSED, *_PLAIN, _WAIT, _PROCESSING)
_WAIT_LIMITS = _limits(WAIT_MS, 1000)
# The text format's own escapes for label values.
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class _QueuePage:
    """The lines of all queues, each with its family."""

    def __init__(self) -> None:
        self._lines: dict[_Family, list[str]] = {family: [] for family in _FAMILIES}
        self._folded: dict[_Family, list[bytes]] = {family: [] for family in _FAMILIES}

    def add(self, queue: QueueMeasures) -> None:
        stats, lines = queue.stats, self._lines
        labels = f'namespace="{stats.namespace.translate(_ESCAPES)}",queue="{stats.queue.translate(_ESCAPES)}"'
        for state in _STATES:
            lines[_MESSAGES].append(f'{_MESSAGES.name}{{{labels},state="{state}"}} {getattr(stats, state)}\n')
        lines[_AGE].append(f"{_AGE.name}{{{labels}}} {stats.oldest_age_ms / 1000}\n")
        lines[_PAUSED].append(f"{_PAUSED.name}{{{labels}}} {int(stats.is_paused)}\n")
        for family in _PLAIN:
            lines[family].append(f"{family.name}{{{labels}}} {getattr(stats, family.field)}\n")
        if queue.wait_ms is not None:
            lines[_WAIT] += _histogram_lines(_WAIT.name, labels, queue.wait_ms)
        if queue.processing_ms is not None:
            lines[_PROCESSING] += _histogram_lines(_PROCESSING.name, labels, queue.processing_ms)

    def fold(self) -> None:
        """Make one piece of what was added since the last time, so that the end has few pieces to put together."""
        for family, lines in self._lines.items():
            self._folded[family].append("".join(lines).encode())
            lines.clear()

    def parts(self) -> Iterator[bytes]:
        for family, folded in self._folded.items():
            yield family.head()
            yield from folded


def _histogram_lines(name: str, labels: str, distribution: Distribution) -> Sequence[str]:
    counts = list(accumulate(distribution.counts))
    lines = [
        f'{name}_bucket{{{labels},le="{limit}"}} {count}\n' for limit, count in zip(_WAIT_LIMITS, counts, strict=True)
    ]
    lines.append(f"{name}_count{{{labels}}} {counts[-1]}\n")
    lines.append(f"{name}_sum{{{labels}}} {distribution.total / 1000}\n")
    return lines
