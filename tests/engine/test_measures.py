"""What is measured, and exactly how often. Times are exact because a false clock stands still unless it is moved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smista.core.settings import DeadLetterMode, QueueSettings
from smista.engine import BrokerSettings
from smista.engine.clock import Clock
from smista.engine.measures import LAG_MS, WAIT_MS, Distribution, Histogram, QueueMeasures
from tests.engine.bench import LONGEST_WAIT_MS, SETTINGS, SHORT_MS, Bench, Consumer, KeptLog, MemoryPlace, turns, until

START_MS = 1_700_000_000_000


class TimedBench(Bench):
    """A broker whose clock is moved by hand."""

    def __init__(self, place: MemoryPlace, settings: BrokerSettings = SETTINGS) -> None:
        super().__init__(place, settings)
        self.now_ms = START_MS

    async def start(self) -> None:
        await self.open(clock=Clock(wall_ms=self._now, since_boot_ms=self._now, boot_id=lambda: "boot"))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    def queue(self, name: str = "orders") -> QueueMeasures:
        [queue] = [queue for queue in self.broker.statistics.measures().queues if queue.stats.queue == name]
        return queue

    def waits(self, name: str = "orders") -> dict[float, int]:
        return by_bound(self.queue(name).wait_ms)

    def processings(self, name: str = "orders") -> dict[float, int]:
        return by_bound(self.queue(name).processing_ms)

    def _now(self) -> int:
        return self.now_ms


@pytest.fixture
async def timed() -> AsyncIterator[TimedBench]:
    bench = TimedBench(MemoryPlace())
    await bench.start()
    await bench.declare()
    yield bench
    await bench.broker.close()


def by_bound(distribution: Distribution | None) -> dict[float, int]:
    """The counts that are not zero, each by the bound its values do not exceed."""
    assert distribution is not None
    pairs = zip([*distribution.bounds, float("inf")], distribution.counts, strict=True)
    return {bound: count for bound, count in pairs if count}


class Stopwatch:
    """In place of the module `time` where something is measured: stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_s = time.perf_counter()

    def perf_counter(self) -> float:
        return self.now_s


class StoppedLog(KeptLog):
    """Takes time by the stopwatch alone."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__()
        self.stopwatch = stopwatch
        self.seconds = 0.0

    def append(self, position: int, data: bytes) -> None:
        self.stopwatch.now_s += 10 if self.is_full else self.seconds
        super().append(position, data)


# -- histograms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "bound"),
    [(0, 1), (1, 1), (2, 2.5), (3, 5), (5, 5), (6, 10), (900_000, 900_000), (900_001, float("inf"))],
)
def test_a_value_counts_with_the_least_bound_it_does_not_exceed(value: int, bound: float) -> None:
    histogram = Histogram(WAIT_MS)
    histogram.add(value)
    assert by_bound(histogram.read()) == {bound: 1}


@given(st.lists(st.integers(0, 100), min_size=1), st.integers(100, 2_000_000))
def test_ages_added_together_count_as_if_added_one_by_one(instants: list[int], now_ms: int) -> None:
    together, single = Histogram(WAIT_MS), Histogram(WAIT_MS)
    together.add_ages(instants, now_ms)
    for instant in instants:
        single.add(now_ms - instant)
    assert together.read() == single.read()
    assert together.read().count == len(instants)


def test_what_was_read_does_not_change_any_more() -> None:
    histogram = Histogram(WAIT_MS)
    histogram.add(3, 2)
    before = histogram.read()
    histogram.add(3)
    assert (before.count, before.total) == (2, 6)


# -- wait -------------------------------------------------------------------------------------------------------------


async def test_wait_goes_from_publish_to_first_delivery(timed: TimedBench) -> None:
    await timed.publish(b"x", b"y")
    timed.pass_time(30)
    await timed.receive_one()
    timed.pass_time(300)
    await timed.receive_one()
    assert timed.waits() == {50: 1, 500: 1}
    wait_ms = timed.queue().wait_ms
    assert wait_ms is not None
    assert wait_ms.total == 30 + 330


async def test_a_redelivery_does_not_count_as_wait_again(timed: TimedBench) -> None:
    await timed.publish(b"x")
    held = await timed.receive_one()
    await timed.broker.settling.release([held.receipt])
    timed.pass_time(30)
    assert (await timed.receive_one()).delivery_count == 2
    assert timed.waits() == {1: 1}


async def test_of_a_batch_only_the_first_deliveries_count(timed: TimedBench) -> None:
    await timed.publish(b"x")
    held = await timed.receive_one()
    await timed.broker.settling.release([held.receipt])
    await timed.publish(b"y", b"z")
    timed.pass_time(30)
    assert await timed.bodies() == [b"x", b"y", b"z"]
    assert timed.waits() == {1: 1, 50: 2}


async def test_messages_of_one_batch_count_each_with_its_own_wait(timed: TimedBench) -> None:
    for body in (b"1", b"2", b"3"):
        await timed.publish(body, body)
        timed.pass_time(20)
    assert len(await timed.bodies()) == 6
    assert timed.waits() == {25: 2, 50: 2, 100: 2}


async def test_a_delay_is_no_wait(timed: TimedBench) -> None:
    await timed.publish(b"x", delay_ms=SHORT_MS)
    timed.pass_time(SHORT_MS + 100)
    await until(lambda: timed.counts() == (1, 0, 0, 0))
    await timed.receive_one()
    assert timed.waits() == {100: 1}


async def test_what_a_long_poll_and_a_subscription_get_counts_too(timed: TimedBench) -> None:
    poll = asyncio.create_task(timed.receive_one(wait_ms=LONGEST_WAIT_MS))
    await turns()
    await timed.publish(b"x")
    await poll
    await timed.publish(b"y")
    timed.pass_time(30)
    timed.broker.subscribing.subscribe("orders", Consumer().deliver)
    await turns()
    assert timed.waits() == {1: 1, 50: 1}


async def test_a_dead_letter_waits_anew_in_its_own_queue(timed: TimedBench) -> None:
    await timed.publish(b"x")
    timed.pass_time(30)
    await timed.reject(await timed.receive_one())
    timed.pass_time(300)
    await timed.receive_one("orders_dlq")
    assert (timed.waits(), timed.waits("orders_dlq")) == ({50: 1}, {500: 1})


async def test_a_queue_that_is_not_durable_is_measured_like_any_other(timed: TimedBench) -> None:
    await timed.declare("brief", QueueSettings(durable=False))
    await timed.publish(b"x", queue="brief")
    timed.pass_time(30)
    held = await timed.receive_one("brief")
    timed.pass_time(300)
    await timed.acknowledge(held)
    assert (timed.waits("brief"), timed.processings("brief")) == ({50: 1}, {500: 1})


# -- processing -------------------------------------------------------------------------------------------------------


async def test_processing_goes_from_delivery_to_acknowledge(timed: TimedBench) -> None:
    await timed.publish(b"x", b"y", b"z")
    timed.pass_time(30)
    first, second = await timed.broker.receiving.receive("orders", 2)
    timed.pass_time(300)
    third = await timed.receive_one()
    timed.pass_time(20)
    await timed.acknowledge(first, second, third)
    assert timed.processings() == {25: 1, 500: 2}
    processing_ms = timed.queue().processing_ms
    assert processing_ms is not None
    assert processing_ms.total == 20 + 2 * 320


async def test_processing_is_counted_from_the_delivery_that_is_acknowledged(timed: TimedBench) -> None:
    await timed.publish(b"x")
    held = await timed.receive_one()
    timed.pass_time(5000)
    await timed.broker.settling.release([held.receipt])
    held = await timed.receive_one()
    timed.pass_time(30)
    await timed.acknowledge(held)
    assert timed.processings() == {50: 1}


async def test_what_is_not_acknowledged_was_not_processed(timed: TimedBench) -> None:
    await timed.declare("parking", QueueSettings(dead_letter=DeadLetterMode.PARK))
    await timed.publish(*[b"x"] * 5, queue="parking")
    nacked, rejected, released, purged = await timed.broker.receiving.receive("parking", 4)
    timed_out = await timed.receive_one("parking", lease_ms=SHORT_MS)
    await timed.broker.settling.nack([nacked.receipt])
    await timed.reject(rejected)
    await timed.broker.settling.release([released.receipt])
    timed.pass_time(SHORT_MS * 2)
    await until(lambda: timed.queue("parking").stats.timed_out_total == 1)
    await timed.broker.declaring.purge("parking")
    assert await timed.broker.settling.acknowledge([purged.receipt, timed_out.receipt]) != [None, None]
    assert (timed.processings("parking"), timed.waits("parking")) == ({}, {1: 5})


async def test_an_acknowledge_that_comes_after_the_lease_and_still_counts_is_counted_in_full(timed: TimedBench) -> None:
    await timed.publish(b"x")
    held = await timed.receive_one(lease_ms=SHORT_MS)
    timed.pass_time(300)
    await until(lambda: timed.counts() == (1, 0, 0, 0))
    await timed.acknowledge(held)
    assert timed.processings() == {500: 1}


async def test_a_refused_acknowledge_counts_nothing(timed: TimedBench) -> None:
    await timed.publish(b"x")
    held = await timed.receive_one()
    await timed.acknowledge(held)
    assert await timed.broker.settling.acknowledge([held.receipt]) != [None]
    assert timed.processings() == {1: 1}


# -- the life of a queue's histograms ---------------------------------------------------------------------------------


async def test_a_queue_without_deliveries_has_no_histograms(timed: TimedBench) -> None:
    await timed.publish(b"x")
    queue = timed.queue()
    assert (queue.stats.published_total, queue.wait_ms, queue.processing_ms) == (1, None, None)


async def test_a_deleted_queue_takes_its_histograms_along(timed: TimedBench) -> None:
    await timed.publish(b"x")
    await timed.receive_one()
    times = timed.broker._keeper.journal.times
    assert len(times._histograms) == 1
    await timed.broker.declaring.delete_queue("orders")
    assert len(times._histograms) == 0
    assert list(timed.broker.statistics.measures().queues) == []
    await timed.declare()
    assert timed.queue().wait_ms is None


async def test_a_queue_that_expires_takes_its_histograms_along(timed: TimedBench) -> None:
    await timed.declare("brief", QueueSettings(expires_ms=SHORT_MS))
    await timed.publish(b"x", queue="brief")
    await timed.receive_one("brief")
    timed.pass_time(SHORT_MS * 2)
    await until(lambda: timed.broker.catalog.queue_names() == ["orders"])
    assert timed.broker._keeper.journal.times._histograms == {}


async def test_a_queue_that_is_deleted_while_the_queues_are_read_is_left_out(timed: TimedBench) -> None:
    await timed.declare("other")
    queues = timed.broker.statistics.measures().queues
    assert next(queues).stats.queue == "orders"
    await timed.broker.declaring.delete_queue("other")
    await timed.declare("third")
    assert list(queues) == []


async def test_after_a_restart_histograms_begin_at_zero_and_counters_go_on(orders: Bench) -> None:
    await orders.publish(b"x", b"y")
    held = await orders.receive_one()
    await orders.restart()
    [queue] = orders.broker.statistics.measures().queues
    assert (queue.stats.delivered_total, queue.wait_ms) == (1, None)
    await orders.acknowledge(held)
    [queue] = orders.broker.statistics.measures().queues
    assert queue.processing_ms is not None
    assert (queue.stats.acknowledged_total, queue.processing_ms.count) == (1, 1)


# -- the log ----------------------------------------------------------------------------------------------------------


async def test_every_block_is_counted_with_its_size(kept: tuple[Bench, MemoryPlace]) -> None:
    bench, place = kept
    await bench.declare()
    await bench.publish_one_by_one(b"x" * 10, b"y" * 5000, b"z" * 100)
    log = bench.broker.statistics.measures().log
    sizes = [len(data) for _, data in place.log._blocks.values()]
    assert log.block_bytes.count == log.sync_ms.count == place.log.append_count == len(sizes)
    assert log.block_bytes.total == log.kept_bytes == sum(sizes)
    assert by_bound(log.block_bytes)[16_384] == 1
    assert log.sealed_position == log.durable_position == len(sizes)


@pytest.fixture
async def stopped(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Bench, StoppedLog]]:
    """A broker over a log that takes as long as the test wants; with a queue."""
    stopwatch = Stopwatch()
    monkeypatch.setattr("smista.engine.commit.time", stopwatch)
    place = MemoryPlace()
    log = place.log = StoppedLog(stopwatch)
    bench = Bench(place)
    await bench.open()
    await bench.declare()
    yield bench, log
    await bench.broker.close()


async def test_a_sync_is_measured(stopped: tuple[Bench, StoppedLog]) -> None:
    bench, log = stopped
    before = bench.broker.statistics.measures().log.sync_ms
    log.seconds = 0.03
    await bench.publish(b"x")
    sync_ms = bench.broker.statistics.measures().log.sync_ms
    assert sync_ms.count == before.count + 1
    assert sync_ms.total - before.total == pytest.approx(30)


async def test_what_waits_for_the_disk_is_told(kept: tuple[Bench, MemoryPlace]) -> None:
    bench, place = kept
    await bench.declare()
    before = bench.broker.statistics.measures().log
    assert (before.waiting_bytes, before.is_behind) == (0, False)
    place.log.gate.clear()
    publishing = asyncio.create_task(bench.publish(b"x" * 1000))
    await until(lambda: bench.broker.statistics.measures().log.sealed_position == before.durable_position + 1)
    waiting = bench.broker.statistics.measures().log
    assert waiting.durable_position == before.durable_position
    assert 1000 < waiting.waiting_bytes < 1200
    place.log.gate.set()
    await publishing
    after = bench.broker.statistics.measures().log
    assert (after.durable_position, after.waiting_bytes) == (waiting.sealed_position, 0)


async def test_publishers_that_are_held_back_are_told(kept: tuple[Bench, MemoryPlace]) -> None:
    bench, place = kept
    await bench.restart(BrokerSettings(disk_free_bytes_min=0, waiting_bytes_max=1000))
    await bench.declare()
    place.log.gate.clear()
    publishing = asyncio.create_task(bench.publish(b"x" * 2000))
    await turns()
    assert bench.broker.statistics.measures().log.is_behind
    place.log.gate.set()
    await publishing
    assert not bench.broker.statistics.measures().log.is_behind


async def test_time_on_a_full_disk_is_no_sync(stopped: tuple[Bench, StoppedLog]) -> None:
    bench, log = stopped
    log.is_full = True
    publishing = asyncio.create_task(bench.publish(b"x"))
    await until(lambda: bench.broker.statistics.measures().refusal == "low_disk")
    before = bench.broker.statistics.measures().log.sync_ms
    log.is_full = False
    log.seconds = 0.03
    await publishing
    sync_ms = bench.broker.statistics.measures().log.sync_ms
    assert sync_ms.count == before.count + 1
    assert sync_ms.total - before.total == pytest.approx(30)
    await until(lambda: bench.broker.statistics.measures().refusal is None)


async def test_free_space_is_told_while_nothing_is_written(kept: tuple[Bench, MemoryPlace]) -> None:
    bench, place = kept
    place.log.free = 12_345
    await until(lambda: bench.broker.statistics.measures().log.disk_free_bytes == 12_345)


# -- the process ------------------------------------------------------------------------------------------------------


async def test_a_loop_that_is_held_up_lags(timed: TimedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    stopwatch = Stopwatch()
    monkeypatch.setattr("smista.engine.measures.time", stopwatch)
    started = timed.broker.statistics.measures().lag_ms
    await until(lambda: timed.broker.statistics.measures().lag_ms.count > started.count)
    before = timed.broker.statistics.measures().lag_ms
    stopwatch.now_s += 0.1 + 0.2  # how long it is until the next call, and how late that comes
    await until(lambda: timed.broker.statistics.measures().lag_ms.count > before.count)
    lag_ms = timed.broker.statistics.measures().lag_ms
    assert lag_ms.total - before.total == pytest.approx(200)
    assert lag_ms.counts[LAG_MS.index(250)] - before.counts[LAG_MS.index(250)] == 1


async def test_a_closed_broker_measures_no_lag_any_more(timed: TimedBench) -> None:
    await timed.broker.close()
    before = timed.broker.statistics.measures().lag_ms.count
    await asyncio.sleep(0.25)
    assert timed.broker.statistics.measures().lag_ms.count == before


async def test_those_who_wait_are_counted(timed: TimedBench) -> None:
    await timed.declare("other")
    subscription = timed.broker.subscribing.subscribe("orders", Consumer().deliver, prefetch=1)
    timed.broker.subscribing.subscribe("other", Consumer().deliver)
    polls = [asyncio.create_task(timed.broker.receiving.receive("orders", wait_ms=LONGEST_WAIT_MS)) for _ in range(3)]
    await turns()
    measures = timed.broker.statistics.measures()
    assert (measures.subscription_count, measures.long_poll_count, measures.queue_count) == (2, 3, 2)
    # The subscription uses up its credit and one poll is answered.
    await timed.publish(b"x", b"y")
    measures = timed.broker.statistics.measures()
    assert (measures.subscription_count, measures.long_poll_count) == (2, 2)
    timed.broker.subscribing.cancel(subscription)
    await turns()
    measures = timed.broker.statistics.measures()
    assert (measures.subscription_count, measures.long_poll_count) == (1, 1)
    await timed.broker.declaring.delete_queue("orders")
    measures = timed.broker.statistics.measures()
    assert (measures.subscription_count, measures.long_poll_count, measures.queue_count) == (1, 0, 1)
    await asyncio.gather(*polls, return_exceptions=True)


async def test_memory_is_told(timed: TimedBench) -> None:
    await timed.publish(b"x" * 1000, b"y" * 500)
    measures = timed.broker.statistics.measures()
    assert measures.resident_body_bytes == 1500
    assert measures.memory_bytes > 1 << 20


async def test_a_refusal_is_told_by_its_code(kept: tuple[Bench, MemoryPlace]) -> None:
    bench, _ = kept
    assert bench.broker.statistics.measures().refusal is None
    await bench.declare()
    await bench.publish(b"x")
    await bench.restart(BrokerSettings(disk_free_bytes_min=0, memory_bytes_max=1, watch_interval_s=0.005))
    await until(lambda: bench.broker.statistics.measures().refusal == "low_memory")


async def test_a_broker_that_has_stopped_can_still_be_measured(kept: tuple[Bench, MemoryPlace]) -> None:
    bench, place = kept
    await bench.declare()
    assert not bench.broker.statistics.measures().is_stopped
    place.log.is_failing = True
    bench.broker.publishing.submit("orders", []).result()
    await asyncio.gather(bench.publish(b"x"), return_exceptions=True)
    await until(lambda: bench.broker.failure is not None)
    measures = bench.broker.statistics.measures()
    assert measures.is_stopped
    assert [queue.stats.queue for queue in measures.queues] == ["orders"]
