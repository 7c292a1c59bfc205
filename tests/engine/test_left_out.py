"""Starts on a damaged log: what one of them left out, every later one leaves out too, so all come to the same."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import AsyncIterator

import pytest

from smista.core.exchanges import ExchangeKind, ExchangeSettings
from smista.core.message import Envelope, Publication
from smista.core.queue import Queue
from smista.core.settings import QueueSettings
from smista.engine import Broker, BrokerSettings, recovery
from smista.errors import BrokerError, StaleReceipt
from smista.log import MemoryLog
from smista.log.errors import LogDamaged, LogUnreadable
from tests import snapshot
from tests.engine.bench import SETTINGS, Bench, KeptLog, MemoryPlace, until

KEEPING = BrokerSettings(disk_free_bytes_min=0, log_slack_bytes=2_000, block_bytes_max=2_000, watch_interval_s=0.01)
"""Keeps much for readers of the log that no start needs."""
DROPPING = BrokerSettings(
    disk_free_bytes_min=0,
    log_slack_bytes=500,
    block_bytes_max=1_000,
    watch_interval_s=0.01,
    log_retention_ms=0,
    log_retention_bytes=0,
)
SEEDS = 500 if os.environ.get("SMISTA_LONG") else 15


class SpottyLog(KeptLog):
    """Some blocks cannot be read for a while, or so many times."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: dict[int, int] = {}
        self.was_read: list[int] = []

    def read(self, position: int) -> bytes:
        self.was_read.append(position)
        if self.unreadable.get(position):
            self.unreadable[position] -= 1
            raise LogUnreadable("memory", position=position, what="it cannot be read (on purpose)")
        return super().read(position)


class SpottyPlace(MemoryPlace):
    def __init__(self) -> None:
        self.log: SpottyLog = SpottyLog()


Spotty = tuple[Bench, SpottyLog]


@pytest.fixture
async def spotty(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Spotty]:
    monkeypatch.setattr(recovery, "READ_AGAIN_S", (0.0, 0.0, 0.0))
    place = SpottyPlace()
    bench = Bench(place, SETTINGS)
    await bench.open()
    await bench.declare()
    yield bench, place.log
    await bench.broker.close()


def taken(broker: Broker, now_ms: int) -> snapshot.Snapshot:
    return snapshot.take(broker._state, now_ms, with_bodies=True)


async def serve(bench: Bench) -> list[LogDamaged]:
    """Start on what is left; what was reported."""
    damages: list[LogDamaged] = []
    await bench.broker.close()
    await bench.open(on_damage=damages.append)
    return damages


async def all_starts_agree(bench: Bench) -> None:
    """A plain start, one more, and one that would serve a damaged log: all find what the broker had."""
    now_ms = bench.broker.now_ms()
    before = taken(bench.broker, now_ms)
    for _ in range(2):
        await bench.restart()
        assert snapshot.difference(before, taken(bench.broker, now_ms)) == ""
    assert await serve(bench) == []
    assert snapshot.difference(before, taken(bench.broker, now_ms)) == ""


async def churn(bench: Bench, log: MemoryLog, until_folded_from: int) -> None:
    """Publish and acknowledge until the log is folded from behind that block."""
    while log.fold_position <= until_folded_from:
        await bench.publish(b"z" * 100, queue="other")
        await bench.acknowledge(await bench.receive_one("other"))
        await until(lambda: not bench.broker._keeper._is_reclaiming)


# -- which blocks are folded ------------------------------------------------------------------------------------------


async def test_damage_in_a_block_that_no_start_needs_changes_nothing() -> None:
    place = MemoryPlace()
    bench = Bench(place, KEEPING)
    await bench.open()
    for queue in ("orders", "other", "gone"):
        await bench.declare(queue)
    await bench.publish(b"1", b"2", b"3")
    deliveries = await bench.broker.receiving.receive("orders", 10)
    await bench.broker.durable()
    settled = place.log.next_position
    await bench.acknowledge(*deliveries)
    await bench.broker.declaring.delete_queue("gone")
    end = place.log.next_position
    await churn(bench, place.log, end)
    for position in range(settled, end):
        place.log.damage(position)
    assert place.log.first_position <= settled
    assert await serve(bench) == []
    assert bench.broker.catalog.queue_names() == ["orders", "other"]
    assert bench.counts() == (0, 0, 0, 0)
    await all_starts_agree(bench)
    await bench.broker.close()


async def test_what_comes_back_from_older_blocks_is_there_at_every_later_start() -> None:
    place = MemoryPlace()
    bench = Bench(place, KEEPING)
    await bench.open()
    await bench.declare("other")
    await bench.declare("gone")
    deleted = place.log.next_position
    await bench.broker.declaring.delete_queue("gone")
    await churn(bench, place.log, deleted)
    folded_from = place.log.fold_position
    await bench.broker.close()
    place.log.damage(deleted)
    last = place.log.next_position - 1
    place.log.damage(last)
    assert [damage.position for damage in await serve(bench)] == [last, deleted]
    await bench.declare("gone")
    await bench.publish(b"confirmed", queue="gone")
    assert place.log.fold_position < folded_from
    await all_starts_agree(bench)
    assert await bench.bodies(queue="gone") == [b"confirmed"]
    await bench.broker.close()


async def test_what_was_folded_in_vain_is_not_in_memory_beside_what_is_folded_again() -> None:
    place = MemoryPlace()
    bench = Bench(place, KEEPING)
    await bench.open()
    await bench.declare("other")
    await churn(bench, place.log, place.log.next_position)
    await bench.broker.close()
    assert place.log.first_position < place.log.fold_position
    place.log.damage(place.log.next_position - 1)

    def queue_count() -> int:
        return sum(isinstance(one, Queue) for one in gc.get_objects())

    gc.collect()
    before = queue_count()
    gc.disable()
    try:
        found = recovery.Recovery(resident_bytes_max=1 << 20)
        found.replay(place.log, lambda damage: None)
        assert place.log.fold_position == place.log.first_position, "or nothing was folded again"
        assert queue_count() - before == len(found.state.queues)
    finally:
        gc.enable()


# -- blocks that can be read again ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_served", [True, False])
async def test_a_moment_of_trouble_while_starting_costs_nothing(spotty: Spotty, is_served: bool) -> None:
    bench, log = spotty
    await bench.publish_one_by_one(b"a", b"b", b"c")
    log.unreadable[log.next_position - 2] = len(recovery.READ_AGAIN_S)
    damages = await serve(bench) if is_served else []
    if not is_served:
        await bench.restart()
    assert (damages, await bench.bodies()) == ([], [b"a", b"b", b"c"])


async def test_a_start_that_would_serve_a_damaged_log_reads_a_sound_one_once(spotty: Spotty) -> None:
    bench, log = spotty
    await bench.publish_one_by_one(b"a", b"b", b"c")
    end = log.next_position
    log.was_read.clear()
    assert await serve(bench) == []
    assert log.was_read == list(range(1, end))


async def test_a_plain_start_does_not_leave_out_what_it_cannot_read(spotty: Spotty) -> None:
    bench, log = spotty
    await bench.publish_one_by_one(b"a", b"b")
    await bench.broker.close()
    log.unreadable[log.next_position - 1] = 1_000
    with pytest.raises(LogUnreadable):
        await bench.open()
    assert log.left_out == frozenset()
    log.unreadable.clear()
    await bench.open()
    assert await bench.bodies() == [b"a", b"b"]


@pytest.mark.parametrize("lost", ["a deletion", "a message"])
async def test_a_block_left_out_once_stays_out_when_it_can_be_read_again(spotty: Spotty, lost: str) -> None:
    bench, log = spotty
    await bench.publish(b"first")
    position = log.next_position
    if lost == "a deletion":
        await bench.broker.declaring.delete_queue("orders")
    else:
        await bench.publish(b"lost")
    log.unreadable[position] = 1_000
    assert [damage.position for damage in await serve(bench)] == [position]
    await bench.publish(b"new 1", b"new 2")
    log.unreadable.clear()
    await all_starts_agree(bench)
    assert await bench.bodies() == [b"first", b"new 1", b"new 2"]
    assert bench.broker.statistics.recovered.damaged_blocks == 1


async def test_what_is_left_out_is_said_at_every_start_until_it_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    place = MemoryPlace()
    bench = Bench(place, DROPPING)
    await bench.open()
    await bench.declare("other")
    position = place.log.next_position
    await bench.publish(b"lost", queue="other")
    place.log.damage(position)
    await serve(bench)
    for _ in range(2):
        await bench.restart()
        assert "damaged blocks are left out" in caplog.text
        caplog.clear()
    await churn(bench, place.log, position)
    await until(lambda: place.log.first_position > position)
    await bench.restart()
    assert caplog.text == ""
    await bench.broker.close()


# -- what a start makes up --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_emptied", [True, False])
async def test_a_queue_whose_declaration_is_lost_stays_when_the_damaged_block_has_gone(is_emptied: bool) -> None:
    place = MemoryPlace()
    bench = Bench(place, DROPPING)
    await bench.open()
    declared = place.log.next_position
    await bench.declare()
    await bench.publish(b"x")
    place.log.damage(declared)
    assert len(await serve(bench)) == 1
    await bench.declare("other")
    if is_emptied:
        await bench.acknowledge(await bench.receive_one("recovered-1"))
    await churn(bench, place.log, declared)
    await until(lambda: place.log.first_position > declared)
    await all_starts_agree(bench)
    assert bench.counts("recovered-1") == (0 if is_emptied else 1, 0, 0, 0)
    await bench.broker.close()


async def test_a_binding_to_a_queue_whose_declaration_is_lost_does_not_come_back_with_its_name(spotty: Spotty) -> None:
    bench, log = spotty
    position = log.next_position
    await bench.declare("lost")
    await bench.fanout("all", "orders", "lost")
    log.damage(position)
    await serve(bench)
    await bench.declare("lost")
    assert bench.broker.catalog.queues_for("all", "") == ("orders",)
    await all_starts_agree(bench)


async def test_an_exchange_declared_again_after_its_deletion_was_lost_is_the_new_one(spotty: Spotty) -> None:
    bench, log = spotty
    await bench.fanout("e", "orders")
    position = log.next_position
    await bench.broker.declaring.delete_exchange("e")
    await bench.broker.declaring.declare_exchange("e", ExchangeSettings(ExchangeKind.DIRECT))
    log.damage(position)
    await serve(bench)
    assert bench.broker.catalog.queues_for("e", "") == ()
    await bench.broker.declaring.declare_exchange("e", ExchangeSettings(ExchangeKind.DIRECT))
    await all_starts_agree(bench)


# -- numbers ----------------------------------------------------------------------------------------------------------


async def test_a_receipt_of_a_run_that_is_lost_settles_nothing() -> None:
    log = KeptLog()
    broker = await Broker.open(log, SETTINGS)
    await broker.declaring.declare_queue("orders")
    await broker.publishing.publish("orders", [Publication(b"x")])
    blocks = log._next_position, dict(log._blocks)
    [lost] = await broker.receiving.receive("orders")
    await broker.close()
    # Killed before the delivery was written, and the block that numbers the run rots.
    log._next_position, log._blocks = blocks
    log.damage(1)
    broker = await Broker.open(log, SETTINGS, on_damage=lambda damage: None)
    [held] = await broker.receiving.receive("orders")
    [outcome] = await broker.settling.acknowledge([lost.receipt])
    assert isinstance(outcome, StaleReceipt), "one holder has acknowledged another's delivery"
    assert await broker.settling.acknowledge([held.receipt]) == [None]
    await broker.close()


@pytest.mark.parametrize("is_stopped_before_it_serves", [True, False])
async def test_no_number_is_given_out_twice_whatever_is_lost(is_stopped_before_it_serves: bool) -> None:
    place = MemoryPlace()
    bench = Bench(place)
    await bench.open()
    numbers: list[tuple[int, ...]] = []
    for life in range(3):
        state = bench.broker._state
        await bench.declare(f"q{life}")
        await bench.fanout(f"e{life}", f"q{life}")
        await bench.publish(b"x", queue=f"q{life}")
        numbers.append((state.run, state.next_sequence, state.next_queue, state.next_exchange))
        await bench.broker.close()
        for position in range(place.log.first_position, place.log.next_position):
            if position not in place.log.left_out:
                place.log.damage(position)
        if is_stopped_before_it_serves:
            place.log.leave_out(frozenset(range(1, place.log.next_position)), fold_position=1)
        await bench.open(on_damage=lambda damage: None)
        state = bench.broker._state
        numbers.append((state.run, state.next_sequence, state.next_queue, state.next_exchange))
    await bench.broker.close()
    for earlier, later in zip(numbers[::2], numbers[1::2], strict=True):
        assert earlier[0] < later[0]
        assert all(one <= other for one, other in zip(earlier, later, strict=True))


# -- all of it at random ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [KEEPING, DROPPING], ids=["keeping", "dropping"])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_whatever_is_damaged_plain_starts_and_serving_ones_agree(seed: int, settings: BrokerSettings) -> None:
    source = random.Random(seed)
    place = MemoryPlace()
    bench = Bench(place, settings)
    await bench.open()
    for _ in range(6):
        for _ in range(40):
            await _do_something(bench, source)
        await bench.broker.close()
        kept = [at for at in range(place.log.first_position, place.log.next_position) if at not in place.log.left_out]
        for position in source.sample(kept, min(len(kept), source.randrange(3))):
            place.log.damage(position)
        await serve(bench)
        for _ in range(10):
            await _do_something(bench, source)
        await all_starts_agree(bench)
    await bench.broker.close()


async def _do_something(bench: Bench, source: random.Random) -> None:
    broker, name = bench.broker, f"q{source.randrange(3)}"
    try:
        match source.randrange(12):
            case 0:
                await bench.declare(name, QueueSettings(dead_letter_queue="dead"))
            case 1 if source.random() < 0.3:
                await broker.declaring.delete_queue(name)
            case 2 if source.random() < 0.3:
                await bench.fanout("all", name)
            case 3:
                await broker.publishing.publish_to_exchange("all", Publication(b"f" * source.randrange(200)))
            case 4:
                unique = Envelope(deduplication_id=str(source.randrange(9)), properties=b"p")
                await bench.publish(b"once", queue=name, envelope=unique, delay_ms=source.choice([None, 3_600_000]))
            case 5:
                for delivery in await broker.receiving.receive(name, source.randrange(1, 4)):
                    await broker.settling.nack([delivery.receipt], requeue=source.random() < 0.3)
            case 6 if source.random() < 0.2:
                await broker.declaring.purge(name)
            case 7:
                await broker.redriving.redrive("dead")
            case 8 | 9:
                await bench.publish(*[b"%d" % source.randrange(1000) * 20] * source.randrange(1, 5), queue=name)
            case _:
                queue = source.choice([*broker.catalog.queue_names(), name])
                deliveries = await broker.receiving.receive(queue, source.randrange(1, 8))
                for delivery in deliveries:
                    if source.random() < 0.8:
                        await bench.acknowledge(delivery)
    except BrokerError:
        assert broker.failure is None
