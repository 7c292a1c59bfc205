"""Confirmed means synced; many share one sync; a log that fails ends everything; a full disk ends only publishing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from smista.core.message import Envelope, Publication
from smista.core.settings import Overflow, QueueSettings
from smista.engine import Broker, BrokerSettings
from smista.engine.reclaim import Reclaimer
from smista.engine.recorder import FullBlock
from smista.engine.settling import ACKNOWLEDGED_AT_ONCE
from smista.errors import BrokerClosed, BrokerStopped, LowDisk, LowMemory, OutcomeUnknown
from smista.log import MemoryLog, SqliteLog
from smista.log.errors import LogLocked
from tests.engine.bench import LONGEST_WAIT_MS, SETTINGS, Bench, Consumer, KeptLog, MemoryPlace, turns, until
from tests.waiting import patience

Kept = tuple[Bench, MemoryPlace]


async def test_a_publish_is_not_confirmed_before_its_block_is_synced(kept: Kept) -> None:
    bench, place = kept
    await bench.declare()
    place.log.gate.clear()
    publishing = asyncio.create_task(bench.publish(b"x"))
    await place.log.held_up()
    await turns()
    assert not publishing.done()
    place.log.gate.set()
    assert len(await publishing) == 1


async def test_an_acknowledgement_is_not_confirmed_before_its_block_is_synced(kept: Kept) -> None:
    bench, place = kept
    await bench.declare()
    await bench.publish(b"x")
    delivery = await bench.receive_one()
    await bench.broker.durable()
    place.log.gate.clear()
    acknowledging = asyncio.ensure_future(bench.broker.settling.acknowledge([delivery.receipt]))
    await place.log.held_up()
    await turns()
    assert not acknowledging.done()
    place.log.gate.set()
    assert await acknowledging == [None]


async def test_a_delivery_does_not_wait_for_the_disk(kept: Kept) -> None:
    bench, place = kept
    await bench.declare()
    await bench.publish(b"x")
    place.log.gate.clear()
    async with patience():
        assert (await bench.receive_one()).body == b"x"
    place.log.gate.set()


async def test_publishers_that_wait_together_share_one_block(kept: Kept) -> None:
    bench, place = kept
    await bench.declare()
    place.log.gate.clear()
    first = asyncio.create_task(bench.publish(b"first"))
    await turns()
    others = [asyncio.create_task(bench.publish(b"%d" % number)) for number in range(500)]
    await turns()
    appended = place.log.append_count
    place.log.gate.set()
    await asyncio.gather(first, *others)
    assert place.log.append_count == appended + 2


async def test_a_large_block_is_sealed_before_the_earlier_one_is_written() -> None:
    place = MemoryPlace()
    bench = Bench(place, BrokerSettings(disk_free_bytes_min=0, block_bytes_max=1000))
    async with await bench.open():
        await bench.declare()
        appended = place.log.append_count
        place.log.gate.clear()
        tasks = [asyncio.create_task(bench.publish(b"x" * 600)) for _ in range(6)]
        await turns()
        place.log.gate.set()
        await asyncio.gather(*tasks)
        assert place.log.append_count > appended + 2


async def test_when_nothing_is_left_to_write_durable_returns_at_once(kept: Kept) -> None:
    bench, place = kept
    await bench.declare()
    place.log.gate.clear()
    async with patience():
        await bench.broker.durable()
    place.log.gate.set()


# -- the log fails ----------------------------------------------------------------------------------------------------


async def test_a_failed_sync_leaves_the_waiting_with_an_unknown_outcome_and_stops_the_broker(kept: Kept) -> None:
    bench, place = kept
    await bench.declare()
    await bench.publish(b"held")
    held = await bench.receive_one()
    await bench.broker.durable()
    place.log.is_failing = True
    with pytest.raises(OutcomeUnknown, match="it has to fail"):
        await bench.publish(b"x")
    assert bench.broker.failure is not None
    with pytest.raises(BrokerStopped):
        await bench.publish(b"y")
    with pytest.raises(BrokerStopped):
        await bench.broker.settling.acknowledge([held.receipt])
    with pytest.raises(BrokerStopped):
        await bench.broker.receiving.receive("orders")


async def test_a_failed_log_ends_polls_and_subscriptions(kept: Kept) -> None:
    bench, place = kept
    await bench.declare()
    await bench.declare("others")
    consumer = Consumer()
    bench.broker.subscribing.subscribe("others", consumer.deliver, ended=consumer.ended)
    poll = asyncio.create_task(bench.broker.receiving.receive("orders", wait_ms=LONGEST_WAIT_MS))
    await turns()
    place.log.is_failing = True
    with pytest.raises(OutcomeUnknown):
        await bench.declare("third")
    with pytest.raises(BrokerStopped):
        await poll
    [ending] = consumer.endings
    assert isinstance(ending, BrokerStopped)


async def test_a_new_broker_on_the_log_of_one_that_failed_has_what_was_confirmed(kept: Kept) -> None:
    bench, place = kept
    await bench.declare()
    await bench.publish(b"confirmed")
    place.log.is_failing = True
    with pytest.raises(OutcomeUnknown):
        await bench.publish(b"unknown")
    place.log.is_failing = False
    await bench.restart()
    assert await bench.bodies() == [b"confirmed"]


async def test_a_closed_broker_refuses(kept: Kept) -> None:
    bench, _ = kept
    await bench.declare()
    await bench.broker.close()
    with pytest.raises(BrokerClosed):
        await bench.publish(b"x")
    with pytest.raises(BrokerClosed):
        await bench.broker.receiving.receive("orders")
    await bench.broker.close()


async def test_closing_makes_durable_what_was_done_before(orders: Bench) -> None:
    orders.broker.publishing.submit("orders", [Publication(b"x")]).result()
    await orders.restart()
    assert await orders.bodies() == [b"x"]


async def test_two_brokers_never_open_one_directory(tmp_path: Path) -> None:
    async with await Broker.open(SqliteLog.open(tmp_path / "data", reserve_bytes=0), SETTINGS):
        with pytest.raises(LogLocked):
            SqliteLog.open(tmp_path / "data", reserve_bytes=0)


# -- pressure ---------------------------------------------------------------------------------------------------------


async def test_publishers_wait_while_the_log_is_behind() -> None:
    place = MemoryPlace()
    bench = Bench(place, BrokerSettings(disk_free_bytes_min=0, waiting_bytes_max=1000))
    async with await bench.open() as broker:
        await bench.declare()
        place.log.gate.clear()
        first = asyncio.create_task(bench.publish(b"x" * 2000))
        await turns()
        assert broker.intake.is_behind
        room = asyncio.create_task(broker.intake.room())
        second = asyncio.create_task(bench.publish(b"y"))
        await place.log.held_up()
        await turns()
        assert not room.done()
        assert bench.counts()[0] == 1, "the second has not entered"
        place.log.gate.set()
        await asyncio.gather(first, room, second)
        assert not broker.intake.is_behind


async def test_nobody_waits_for_a_log_that_has_failed_while_it_was_behind() -> None:
    bench = Bench(place := MemoryPlace(), BrokerSettings(disk_free_bytes_min=0, waiting_bytes_max=100))
    broker = await bench.open()
    await bench.declare()
    place.log.gate.clear()
    place.log.is_failing = True
    publish = asyncio.create_task(broker.publishing.publish("orders", [Publication(b"x" * 1000)]))
    await until(lambda: broker.intake.is_behind)
    place.log.gate.set()
    with pytest.raises(OutcomeUnknown):
        await publish
    assert not broker.intake.is_behind, "whoever waits until it is not would wait for ever"
    await broker.close()


async def test_a_low_disk_refuses_publishes_while_consuming_goes_on() -> None:
    place = MemoryPlace()
    bench = Bench(place, BrokerSettings(disk_free_bytes_min=1000, watch_interval_s=0.005))
    async with await bench.open() as broker:
        await bench.declare()
        await bench.publish(b"x")
        place.log.free = 999
        await until(lambda: broker.intake.refusal is not None)
        with pytest.raises(LowDisk):
            await bench.publish(b"y")
        await bench.acknowledge(await bench.receive_one())
        place.log.free = 1000
        await until(lambda: broker.intake.refusal is None)
        await bench.publish(b"z")
        assert await bench.bodies() == [b"z"]


async def test_a_full_disk_refuses_publishes_and_the_broker_goes_on_when_there_is_room() -> None:
    place = MemoryPlace()
    bench = Bench(place, SETTINGS)
    async with await bench.open() as broker:
        await bench.declare()
        await bench.publish(b"x")
        delivery = await bench.receive_one()
        place.log.is_full = True
        acknowledging = asyncio.ensure_future(broker.settling.acknowledge([delivery.receipt]))
        await until(lambda: broker.intake.refusal is not None)
        with pytest.raises(LowDisk):
            await bench.publish(b"y")
        assert not acknowledging.done()
        place.log.is_full = False
        assert await acknowledging == [None]
        await until(lambda: broker.intake.refusal is None)
        assert broker.failure is None


async def test_low_memory_refuses_publishes_while_consuming_goes_on() -> None:
    place = MemoryPlace()
    bench = Bench(place)
    async with await bench.open():
        await bench.declare()
        await bench.publish(b"x")
    bench.settings = BrokerSettings(disk_free_bytes_min=0, memory_bytes_max=1, watch_interval_s=0.005)
    async with await bench.open() as broker:
        await until(lambda: broker.intake.refusal is not None)
        with pytest.raises(LowMemory):
            await bench.publish(b"y")
        await bench.acknowledge(await bench.receive_one())
        # Whatever the process has kept of it: the broker holds nothing any more.
        await until(lambda: broker.intake.refusal is None)
        await bench.publish(b"z")


async def fill(broker: Broker, envelope: Callable[[int], Envelope]) -> None:
    """Publish next to nothing, with this beside it, until no more is taken; then empty the queue."""
    settings = QueueSettings(max_depth=20, overflow=Overflow.DROP_OLDEST)
    await broker.declaring.declare_queue("orders", settings)
    with contextlib.suppress(LowMemory):
        for number in range(200):
            broker.publishing.submit("orders", [Publication(b"", envelope(number))]).result()
    await until(lambda: broker.intake.refusal is not None)
    with pytest.raises(LowMemory, match="memory_bytes_max"):
        broker.publishing.submit("orders", [Publication(b"")]).result()
    await broker.declaring.purge("orders")
    await until(lambda: broker.intake.refusal is None)


async def test_what_stands_beside_bodies_counts_in_memory_too() -> None:
    settings = BrokerSettings(disk_free_bytes_min=0, memory_bytes_max=100_000, watch_interval_s=0.005)
    async with await Broker.open(MemoryLog(), settings) as broker:
        await fill(broker, lambda number: Envelope(b"\x01" + b"h" * 10_000))
        await fill(broker, lambda number: Envelope(deduplication_id=f"{number}" + "i" * 1_000))


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_copies_that_share_their_properties_count_them_once(is_restarted: bool) -> None:
    """Ten publishes of 100 KB of properties to 100 queues are 1 MB of them, not 100."""
    bench = Bench(MemoryPlace(), BrokerSettings(disk_free_bytes_min=0, memory_bytes_max=10 << 20))
    await bench.open()
    names = [f"copies-{number}" for number in range(100)]
    for name in names:
        await bench.declare(name)
    await bench.fanout("all", *names)
    empty_bytes = bench.broker._keeper.held().total
    for number in range(10):
        properties = b"\x01%d" % number + b"p" * 100_000
        await bench.broker.publishing.publish_to_exchange("all", Publication(b"", Envelope(properties)))
    if is_restarted:
        await bench.restart()
    assert 1_000_000 < bench.broker._keeper.held().total - empty_bytes < 2_000_000
    for name in names[1:]:
        await bench.broker.declaring.purge(name)
    await until(lambda: not bench.broker._state.purged)
    assert bench.broker._keeper.held().total - empty_bytes > 1_000_000, "the last copies still have them"
    await bench.broker.declaring.purge(names[0])
    await until(lambda: bench.broker._keeper.held().total <= empty_bytes)
    await bench.broker.close()


async def test_a_block_for_which_there_is_no_memory_stops_the_broker_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(full: FullBlock, written_at_ms: int) -> bytes:
        raise MemoryError

    broker = await Broker.open(MemoryLog(), SETTINGS)
    await broker.declaring.declare_queue("orders")
    monkeypatch.setattr(FullBlock, "seal", no_memory)
    publishing = [asyncio.create_task(broker.publishing.publish("orders", [Publication(b"x")])) for _ in range(3)]
    async with patience():
        outcomes = await asyncio.gather(*publishing, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 3
    assert isinstance(broker.failure, MemoryError)
    with pytest.raises(BrokerStopped):
        await broker.publishing.publish("orders", [Publication(b"y")])
    async with patience():
        await broker.close()


async def test_reclaiming_that_fails_answers_everybody_who_waits_for_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: Reclaimer, position: int, block: bytes) -> None:
        raise MemoryError

    place = MemoryPlace()
    bench = Bench(place)
    broker = await bench.open()
    await bench.declare()
    place.log.gate.clear()
    being_synced = asyncio.create_task(bench.publish(b"1"))
    await place.log.held_up()
    noted = asyncio.create_task(bench.publish(b"2"))
    answers: list[BaseException | None] = []
    broker.publishing.submit("orders", [Publication(b"3")]).when_done(lambda ticket: answers.append(ticket.error))
    in_background = broker._running.tickets.under_way(asyncio.sleep(0))
    await turns()
    monkeypatch.setattr(Reclaimer, "relocate", no_memory)
    monkeypatch.setattr(Reclaimer, "next_to_give_up", lambda self: self.fold_position)
    broker._keeper._begin_to_reclaim()
    async with patience():
        outcomes = await asyncio.gather(being_synced, noted, in_background, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 3
    assert [type(answer) for answer in answers] == [OutcomeUnknown]
    assert isinstance(broker.failure, MemoryError)
    place.log.gate.set()
    async with patience():
        await broker.close()


async def test_closing_with_a_full_disk_ends_though_something_long_waits_for_it() -> None:
    place = MemoryPlace()
    bench = Bench(place)
    broker = await bench.open()
    await bench.declare("orders", QueueSettings(max_prefetch=10_000))
    count = ACKNOWLEDGED_AT_ONCE + 500
    await broker.publishing.publish("orders", [Publication(b"x")] * count)
    deliveries = await broker.receiving.receive("orders", count)
    assert len(deliveries) == count
    await broker.durable()
    place.log.is_full = True
    ticket = broker.settling.acknowledge([delivery.receipt for delivery in deliveries])
    await until(lambda: broker.log.is_full)
    async with patience():
        await broker.close()
        with pytest.raises(OutcomeUnknown):
            await ticket


async def test_closing_with_a_full_disk_ends_and_says_that_the_outcome_is_unknown() -> None:
    log = KeptLog()
    broker = await Broker.open(log, SETTINGS)
    await broker.declaring.declare_queue("orders")
    log.is_full = True
    publishing = asyncio.create_task(broker.publishing.publish("orders", [Publication(b"x")]))
    await turns()
    async with patience():
        await broker.close()
        with pytest.raises(OutcomeUnknown):
            await publishing


async def test_closing_with_a_full_disk_ends_while_the_log_is_being_reclaimed() -> None:
    place = MemoryPlace()
    settings = msgspec.structs.replace(SETTINGS, log_retention_ms=0, log_retention_bytes=0, log_slack_bytes=0)
    bench = Bench(place, settings)
    await bench.open()
    await bench.declare()
    await bench.publish(b"alive")
    place.log.is_full = True
    publish = asyncio.ensure_future(bench.publish(*[b"x" * 1000] * 10))
    await until(lambda: bench.broker.intake.refusal is not None)
    bench.broker._keeper._spawn(bench.broker._keeper._reclaim())
    await turns()
    await bench.broker.close()
    with pytest.raises(OutcomeUnknown):
        await publish
