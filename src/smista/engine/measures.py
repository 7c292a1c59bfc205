"""What is measured while the broker runs: how long things take, how large they are, how much is under way.

    delivered     ready ─────▶ first delivery       wait, per queue
    acknowledged  delivery ──▶ acknowledge          processing, per queue
    block durable append ────▶ synced               the log's sync, and the block's size
    timer         due ───────▶ called               how far the event loop lags

A measured value goes into a histogram: fixed bounds, and how many values lay at or below each but above the one before.
Histograms only grow, and begin at zero with the process, which is what Prometheus expects; totals that outlive a
restart are the queues' counters. Measuring is on the way of every message, so:

- Nothing is measured per message where it can be measured per batch. Messages that are delivered or acknowledged
  together were mostly published, or delivered, in the same millisecond, and are added as one value with a count.
  Measured at 0.04 us a message for each of the two in batches of 100, against 0.4 where each comes alone.
- A queue has histograms from its first delivery on and loses them when it is deleted; an idle queue costs nothing.
- Each histogram has one thread that adds to it, the loop's: the log's thread only passes on what it measured.

What counts and what does not is settled here. Wait is counted once in a message's life in a queue, at its first
delivery there; it begins when the message may first be received, so a delay is no wait. Processing is counted where a
delivery is acknowledged, from that delivery on, even if its lease had run out by then. A delivery that ends in any
other way (nacked, released, timed out, purged) was not processed, and counts in the queue's counters alone.
"""

from __future__ import annotations

import asyncio
import enum
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from smista.core.counters import QueueStats
from smista.core.message import Message
from smista.core.queue import Queue

WAIT_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000, 900_000)
SYNC_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
LAG_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
BLOCK_BYTES = tuple(float(1 << shift) for shift in range(8, 28, 2))
LAG_INTERVAL_S = 0.1


class Distribution(msgspec.Struct, frozen=True):
    """A histogram at one moment. There is one more count than bounds: what lay above them all."""

    bounds: Sequence[float]
    counts: tuple[int, ...]
    total: float
    """The sum of all values."""

    @property
    def count(self) -> int:
        return sum(self.counts)


class Histogram:
    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        # Numbers of their own would stay among the messages that came with them, see `kept_blocks`.
        self._counts = array("q", bytes(8 * (len(bounds) + 1)))
        self._total: float = 0

    def add(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def add_ages(self, instants: list[int], now_ms: int) -> None:
        """Add how long ago each of these instants was; nearly always they are all the same."""
        first = instants[0]
        if instants.count(first) == len(instants):
            self.add(now_ms - first, len(instants))
        else:
            for instant, count in Counter(instants).items():
                self.add(now_ms - instant, count)

    def read(self) -> Distribution:
        return Distribution(self._bounds, tuple(self._counts), self._total)


class QueueTimes:
    """Wait and processing times of every queue that has had deliveries since the start."""

    # A message that comes alone is added as it is: 0.4 us, against 0.7 by way of a list of one.

    def __init__(self) -> None:
        self._histograms: dict[int, tuple[Histogram, Histogram]] = {}

    def delivered(self, queue: Queue, messages: Sequence[Message], first_count: int, at_ms: int) -> None:
        """`first_count` of the messages were delivered for the first time, the others again."""
        if not first_count:
            return
        wait_ms, _ = self._histograms.get(queue.number) or self._open(queue)
        if len(messages) == 1:
            wait_ms.add(at_ms - messages[0].ready_at_ms)
        elif first_count == len(messages):
            wait_ms.add_ages([message.ready_at_ms for message in messages], at_ms)
        else:
            wait_ms.add_ages([message.ready_at_ms for message in messages if message.delivery_count == 1], at_ms)

    def acknowledged(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None:
        _, processing_ms = self._histograms.get(queue.number) or self._open(queue)
        if len(messages) == 1 and (deliveries := messages[0].deliveries) is not None:
            processing_ms.add(at_ms - deliveries.last_at_ms)
        else:
            processing_ms.add_ages(
                [message.deliveries.last_at_ms for message in messages if message.deliveries is not None], at_ms
            )

    def forget(self, queue: Queue) -> None:
        self._histograms.pop(queue.number, None)

    def read(self, queue: Queue) -> tuple[Distribution, Distribution] | None:
        """Wait and processing; None while there has been neither."""
        histograms = self._histograms.get(queue.number)
        return None if histograms is None else (histograms[0].read(), histograms[1].read())

    def _open(self, queue: Queue) -> tuple[Histogram, Histogram]:
        histograms = self._histograms[queue.number] = (Histogram(WAIT_MS), Histogram(WAIT_MS))
        return histograms


class LagTimer:
    """Has itself called ten times a second, and measures how late that happens: as late as anything else on the loop.

    By a clock of its own, since uvloop's time stands still while callbacks run. Good to about a millisecond.
    """

    def __init__(self) -> None:
        self.lag_ms = Histogram(LAG_MS)
        self._loop = asyncio.get_running_loop()
        self._plan()

    def stop(self) -> None:
        self._handle.cancel()

    def _plan(self) -> None:
        self._due_s = time.perf_counter() + LAG_INTERVAL_S
        self._handle = self._loop.call_later(LAG_INTERVAL_S, self._called)

    def _called(self) -> None:
        self.lag_ms.add(max(0.0, (time.perf_counter() - self._due_s) * 1000))
        self._plan()


# -- what `Statistics.measures` gives --------------------------------------------------------------------------------


class QueueMeasures(msgspec.Struct, frozen=True):
    stats: QueueStats
    wait_ms: Distribution | None
    """From ready to first delivery; None while nothing has been delivered since the start."""
    processing_ms: Distribution | None
    """From delivery to acknowledge."""


class LogMeasures(msgspec.Struct, frozen=True, kw_only=True):
    sync_ms: Distribution
    """How long it took to append and sync a block, once there was room for it."""
    block_bytes: Distribution
    """Of the same blocks; its count and total are what was written since the start."""
    sealed_position: int
    """The last block that was closed and handed to the log's thread."""
    durable_position: int
    """The last block that is on disk."""
    waiting_bytes: int
    """Noted but not durable yet."""
    kept_bytes: int
    """The size of all blocks that are kept."""
    disk_free_bytes: int | None
    """None for a log that has no disk."""
    reusable_bytes: int
    """What the log has taken of the disk and new blocks can use."""
    is_behind: bool
    """Whether so much waits that publishers are held back."""
    is_full: bool
    """Whether a block waits for room on a full disk."""
    is_reserve_spent: bool
    """Whether the space that was set aside for a full disk was given up."""
    damaged_blocks: int
    """Blocks found damaged since the start, and while starting."""
    unreadable_blocks: int
    """Blocks that could not be read when they were last tried, and are tried again."""
    damaged_messages: int
    """Messages set aside since the start because their bodies cannot be read."""


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What the log held when the broker was opened."""

    queues: int
    messages: int
    """In all states, set aside ones included."""
    blocks: int
    """Of these all that was made; others may be kept for readers of the log."""
    damaged_blocks: int
    """Left out, as they could not be read when a broker was opened with `on_damage`: this one, or one before it."""
    took_ms: int
    """How long it took to read them."""


class LogRange(msgspec.Struct, frozen=True):
    """What of the log is kept and durable: the blocks from `first` up to, and without, `next`."""

    first: int
    next: int
    first_at_ms: int | None
    """When the first of them was written; None where there is none."""
    next_at_ms: int | None
    """When the last of them was written."""


class KeptFor(enum.StrEnum):
    """Why the oldest block of the log, and with it all behind it, is still there."""

    LAST_BLOCK = "last_block"  # there is no other
    NEED = "need"  # the log holds little beside messages, claims, commits, declarations and remembered ids
    RETENTION = "retention"  # for readers of the log
    DAMAGE = "damage"  # it cannot be read, and bodies are in it that are nowhere else
    RECLAIMING = "reclaiming"  # nothing: it is about to go


class LogSpace(msgspec.Struct, frozen=True, kw_only=True):
    """How much the log holds, and why it is not less."""

    bytes: int
    needed_bytes: int
    """What of it is still needed: messages in any state, claims, commits, declarations, remembered ids ..."""
    spare_bytes: int
    """... and how much may lie beside that before the log is reclaimed."""
    kept_for: KeptFor
    oldest_at_ms: int | None
    """When the oldest block was written; None where there is none."""
    retention_ms: int
    """Younger blocks are kept for readers of the log ..."""
    retention_bytes: int
    """... while the log is not larger than this; both 0 while the disk is nearly full."""


class BrokerMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """The broker at one moment."""

    uptime_ms: int
    log: LogMeasures
    lag_ms: Distribution
    """How late the event loop calls what is due."""
    memory_bytes: int
    """What the whole process has in memory; 0 where the system does not tell."""
    held_bytes: int
    """What the broker holds in memory by its own accounts: what `memory_bytes_max` is held against."""
    resident_body_bytes: int
    """Bodies that are in memory, not paged out."""
    refusal: str | None
    """The code of the error with which publishes are refused just now; None while they are taken."""
    is_stopped: bool
    """Whether the log has failed and nothing is confirmed any more."""
    queue_count: int
    subscription_count: int
    long_poll_count: int
    queues: Iterator[QueueMeasures]
    """Each queue as it is when its turn comes, to be gone through once, in slices if there are many."""
