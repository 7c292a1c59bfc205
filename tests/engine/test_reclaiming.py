"""The log stays small: what still lives in its oldest blocks is written again, and the front is dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from smista.core.exchanges import Binding
from smista.core.message import Envelope, Publication
from smista.core.settings import QueueSettings
from smista.engine import BrokerSettings, KeptFor, keeper, paging, reclaim
from smista.log.errors import LogDamaged
from tests.engine.bench import LONGEST_WAIT_MS, Bench, KeptLog, MemoryPlace, SqlitePlace, until

SLACK_BYTES = 20_000
SETTINGS = BrokerSettings(
    disk_free_bytes_min=0,
    log_retention_ms=0,
    log_retention_bytes=0,
    log_slack_bytes=SLACK_BYTES,
    watch_interval_s=0.01,
)
Small = tuple[Bench, KeptLog]


@pytest.fixture
async def small() -> AsyncIterator[Small]:
    """A broker that keeps next to nothing beyond what lives."""
    place = MemoryPlace()
    bench = Bench(place, SETTINGS)
    await bench.open()
    await bench.declare()
    yield bench, place.log
    await bench.broker.close()


async def churn(bench: Bench, rounds: int = 60) -> None:
    """Ten messages of 100 bytes into a queue of their own and out again, over and over."""
    await bench.broker.declaring.declare_queue("churn")
    for _ in range(rounds):
        await bench.publish(*[b"x" * 100] * 10, queue="churn")
        await bench.acknowledge(*await bench.broker.receiving.receive("churn", 10))
    keeper = bench.broker._keeper
    await until(lambda: not keeper._is_reclaiming)
    # The log's thread does one thing after another: when this is durable, so is the last drop.
    await bench.publish(b"x", queue="churn")
    await bench.acknowledge(*await bench.broker.receiving.receive("churn", 1))


async def test_the_log_stays_within_twice_what_lives_and_some_slack(small: Small) -> None:
    bench, log = small
    await bench.publish(*[b"y" * 1000] * 20)
    live_bytes = 20 * 1100
    largest = 0
    for _ in range(20):
        await churn(bench, 20)
        largest = max(largest, log.size_bytes())
    assert largest < 2 * live_bytes + SLACK_BYTES + 30_000
    assert log.first_position > 100
    assert [len(body) for body in await bench.bodies()] == [1000] * 20


async def test_everything_that_lasts_survives_relocation_and_a_restart(small: Small) -> None:
    bench, log = small
    settings = QueueSettings(max_depth=77)
    await bench.declare("others", settings)
    await bench.declare("paused")
    await bench.broker.declaring.pause("paused")
    await bench.fanout("all", "orders", "others")
    await bench.broker.declaring.bind(Binding.to_queue("amq.topic", "orders", "a.#"))
    [remembered] = await bench.publish(b"once", envelope=Envelope(deduplication_id="1"))
    await bench.acknowledge(await bench.receive_one())
    await bench.publish(b"held", b"poison", b"ready")
    held, poison = await bench.broker.receiving.receive("orders", 2)
    await bench.reject(poison, error="why")
    await bench.publish(b"later", delay_ms=60_000)
    written = log.next_position
    await churn(bench, 100)
    assert log.first_position > written, "all of that has been relocated"
    for _ in range(2):
        await bench.restart()
        assert bench.counts() == (1, 1, 1, 0)
        assert bench.broker.catalog.queue_settings("others") == settings
        assert bench.broker.statistics.stats("paused").is_paused
        assert len(bench.broker.catalog.bindings()) == 3
        [again] = await bench.publish(b"once", envelope=Envelope(deduplication_id="1"))
        assert (again.is_duplicate, again.id) == (True, remembered.id)
        page = await bench.broker.browsing.browse("orders_dlq")
        [dead_letter] = page.messages
        assert (dead_letter.body, dead_letter.deaths[-1].queue) == (b"poison", "orders")
        assert dead_letter.deaths[-1].failures[-1].error == "why"
        await churn(bench, 100)
    await bench.acknowledge(held)
    assert await bench.bodies() == [b"ready"]
    assert await bench.broker.redriving.redrive("orders_dlq") == 1
    assert await bench.bodies() == [b"poison"]


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_what_was_purged_and_is_not_buried_yet_does_not_trip_reclaiming_up(
    small: Small, is_deleted: bool
) -> None:
    bench, _ = small
    for _ in range(60):
        await bench.publish(*[b"y" * 100] * 500)
    emptying = asyncio.create_task(
        bench.broker.declaring.delete_queue("orders") if is_deleted else bench.broker.declaring.purge("orders")
    )
    await churn(bench, 10)
    assert await emptying == 30_000
    await churn(bench, 10)
    assert bench.broker.failure is None
    await bench.restart()
    assert is_deleted or bench.counts() == (0, 0, 0, 0)


async def test_a_paged_out_message_can_be_received_while_it_is_being_relocated() -> None:
    place = MemoryPlace()
    settings = BrokerSettings(
        disk_free_bytes_min=0,
        log_retention_ms=0,
        log_retention_bytes=0,
        log_slack_bytes=5_000,
        resident_bytes_max=1,
    )
    bench = Bench(place, settings)
    await bench.open()
    await bench.declare()
    bodies = [b"%03d" % number * 30 for number in range(100)]
    await bench.publish(*bodies)
    await bench.restart()
    received: list[bytes] = []

    async def consume() -> None:
        while len(received) < 100:
            deliveries = await bench.broker.receiving.receive("orders", 1, wait_ms=LONGEST_WAIT_MS)
            assert deliveries, f"{bench.counts()} after {len(received)}"
            received.extend(delivery.body for delivery in deliveries)

    consuming = asyncio.create_task(consume())
    for _ in range(300):
        if consuming.done():
            break
        await churn(bench, 1)
    await consuming
    assert received == bodies
    assert bench.broker.failure is None
    await bench.broker.close()


async def test_blocks_are_kept_for_readers_as_long_as_retention_says() -> None:
    place = MemoryPlace()
    bench = Bench(place, BrokerSettings(disk_free_bytes_min=0, log_slack_bytes=0, log_retention_bytes=1 << 30))
    async with await bench.open():
        await churn(bench, 30)
        assert place.log.first_position == 1
    bench.settings = BrokerSettings(disk_free_bytes_min=0, log_slack_bytes=0, log_retention_bytes=1)
    async with await bench.open():
        await churn(bench, 1)
        await until(lambda: place.log.first_position > 1)


KEEPING = msgspec.structs.replace(SETTINGS, log_retention_ms=3_600_000, log_retention_bytes=1 << 30)


async def test_a_start_reads_what_lives_and_not_what_is_kept_for_readers() -> None:
    place = MemoryPlace()
    bench = Bench(place, KEEPING)
    async with await bench.open():
        await bench.declare()
        await bench.publish(b"alive")
        await churn(bench, 300)
        kept = place.log.next_position
        assert place.log.first_position == 1, "all of it is kept"
        await until(lambda: place.log.next_position - place.log.fold_position < kept / 5)
    broker = await bench.open()
    assert broker.statistics.recovered.blocks < kept / 5
    assert broker.log.bytes > 5 * SLACK_BYTES
    assert (broker.log.range().first, broker.log.position_at(0)) == (1, 1)
    assert await bench.bodies() == [b"alive"]
    await broker.close()


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_a_quarter_of_a_gibibyte_kept_for_readers_costs_a_start_nothing(is_on_disk: bool, tmp_path: Path) -> None:
    """256 MiB is what is kept by default, and 8 MiB what may lie beside it."""
    place = SqlitePlace(tmp_path / "data") if is_on_disk else MemoryPlace()
    bench = Bench(place, BrokerSettings(disk_free_bytes_min=0))
    async with await bench.open() as broker:
        await bench.declare()
        for _ in range(300):
            await bench.publish(*[b"x" * 100_000] * 9)
            await bench.acknowledge(*await broker.receiving.receive("orders", 9))
        kept_bytes = broker.log.bytes
        assert kept_bytes > 250 << 20
        log = broker._keeper._log
        await until(lambda: log.next_position - log.fold_position < 40)
    async with await bench.open() as broker:
        assert broker.log.bytes > kept_bytes - (20 << 20), "it is still there for readers"
        assert broker.statistics.recovered.messages == 0
        assert broker.statistics.recovered.blocks < 40, "8 MiB and a little, of blocks of nearly 1 MB"


@pytest.mark.parametrize("settings", [KEEPING, SETTINGS], ids=["kept", "dropped"])
async def test_what_only_the_next_start_has_something_of_takes_a_small_share_of_the_time(
    settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    clock = iter(range(1_000_000))
    monkeypatch.setattr(keeper, "time", SimpleNamespace(perf_counter=lambda: next(clock)))

    async def wait(self: keeper.Keeper, seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(keeper.Keeper, "_wait", wait)
    bench = Bench(MemoryPlace(), settings)
    async with await bench.open():
        await bench.declare()
        await bench.publish(b"alive")
        await churn(bench, 100)
        [message] = bench.broker._state.queue("orders").messages()
        assert message.position > 100, "it was written again"
    # Writing takes a second each time by that clock.
    assert set(pauses) == ({1 / keeper.FOLD_SHARE - 1} if settings is KEEPING else set())


async def test_a_crash_that_undoes_how_far_was_folded_costs_nothing() -> None:
    """Whatever was stored last, a start from there finds the same."""
    place = MemoryPlace()
    bench = Bench(place, KEEPING)
    async with await bench.open():
        await bench.declare()
        await bench.publish(*[b"%d" % number for number in range(20)])
        await bench.acknowledge(*await bench.broker.receiving.receive("orders", 5))
        await churn(bench, 100)
        await until(lambda: place.log.fold_position > 100)
    folded_from = place.log.fold_position
    for position in range(1, folded_from, 17):
        place.log._fold_position = position
        broker = await bench.open()
        assert broker.statistics.recovered.blocks > folded_from - position
        assert bench.counts("orders") == (15, 0, 0, 0)
        assert bench.counts("churn") == (0, 0, 0, 0)
        await broker.close()


async def test_what_a_damaged_block_held_may_still_stand_in_one_that_is_kept_for_readers() -> None:
    place = MemoryPlace()
    bench = Bench(place, KEEPING)
    async with await bench.open():
        await bench.declare()
        await bench.publish(b"alive")
        written = place.log.next_position
        await churn(bench, 100)
        [message] = bench.broker._state.queue("orders").messages()
        assert message.position > written, "it was relocated"
    place.log.damage(message.position)
    reports: list[LogDamaged] = []
    async with await bench.open(on_damage=reports.append):
        assert [report.position for report in reports] == [message.position]
        assert await bench.bodies() == [b"alive"]


async def test_fanned_out_messages_share_a_body_also_after_relocation(small: Small) -> None:
    bench, log = small
    names = [f"q{number}" for number in range(5)]
    for name in names:
        await bench.declare(name)
    await bench.fanout("all", *names)
    await bench.broker.publishing.publish_to_exchange("all", Publication(b"z" * 1000))
    written = log.next_position
    await churn(bench, 100)
    assert log.first_position > written
    holding = [data for _, data in log._blocks.values() if b"z" * 1000 in data]
    assert sum(data.count(b"z" * 1000) for data in holding) == 1
    await bench.restart()
    for name in names:
        assert await bench.bodies(queue=name) == [b"z" * 1000]


async def test_what_is_needed_is_not_written_again_and_again() -> None:
    place = MemoryPlace()
    bench = Bench(place, msgspec.structs.replace(SETTINGS, log_slack_bytes=0))
    async with await bench.open():
        for number in range(100):
            await bench.broker.declaring.declare_queue(f"queue-{number}")
        keeper = bench.broker._keeper
        # It looks for work a hundred times a second. If it did not know what its declarations take, it would write them
        # again each time.
        await until(lambda: not keeper._is_reclaiming and not keeper.reclaimer.has_work())


async def test_it_says_why_the_log_is_not_smaller() -> None:
    place = MemoryPlace()
    keeping = msgspec.structs.replace(SETTINGS, log_retention_ms=3_600_000, log_retention_bytes=10_000_000)
    bench = Bench(place, keeping)
    async with await bench.open() as broker:
        await bench.declare()
        await bench.publish(*[b"y" * 1000] * 20)
        space = broker.log.space()
        assert space.kept_for is KeptFor.NEED
        assert 20_000 < space.needed_bytes <= space.bytes == broker.log.bytes
        await churn(bench)
        space = broker.log.space()
        assert (space.kept_for, space.retention_ms) == (KeptFor.RETENTION, 3_600_000)
        assert space.bytes > space.needed_bytes + space.spare_bytes
        assert space.oldest_at_ms is not None
        bench.pass_time(3_600_001)
        await until(lambda: broker.log.space().kept_for is KeptFor.NEED)
        space = broker.log.space()
        assert space.bytes <= space.needed_bytes + space.spare_bytes


async def test_while_the_disk_is_nearly_full_nothing_is_kept_for_readers() -> None:
    place = MemoryPlace()
    keeping = msgspec.structs.replace(
        SETTINGS, disk_free_bytes_min=1_000, log_retention_ms=3_600_000, log_retention_bytes=10_000_000
    )
    bench = Bench(place, keeping)
    async with await bench.open() as broker:
        await bench.declare()
        await churn(bench)
        assert broker.log.space().kept_for is KeptFor.RETENTION
        place.log.free = 1_100
        await until(lambda: broker.log.space().kept_for is KeptFor.NEED)
        assert broker.log.space().retention_ms == 0


async def test_a_body_is_let_go_only_when_the_block_it_was_written_to_again_is_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copies of one message are relocated one by one, each into a block of its own, and nothing stays in memory."""
    monkeypatch.setattr(reclaim, "PART_BYTES", 1)
    monkeypatch.setattr(paging, "BACKLOG", 0)
    settings = msgspec.structs.replace(SETTINGS, resident_bytes_max=1, block_bytes_max=1, log_slack_bytes=2_000)
    place = MemoryPlace()
    bench = Bench(place, settings)
    await bench.open()
    append = place.log.append

    def append_slowly(position: int, data: bytes) -> None:
        # Slower than the loop, which sees each block become durable by itself.
        time.sleep(0.002)
        append(position, data)

    monkeypatch.setattr(place.log, "append", append_slowly)
    queues = [f"q{number}" for number in range(20)]
    for queue in queues:
        await bench.declare(queue, QueueSettings(max_retries=None))
    await bench.fanout("fan", *queues)
    await bench.broker.publishing.publish_to_exchange("fan", Publication(b"body"))
    for queue in queues:
        # Each has a history of its own from now on.
        await bench.broker.settling.nack([(await bench.receive_one(queue)).receipt], delay_ms=0, error=queue)
    await bench.restart()
    keeper = bench.broker._keeper
    [message] = bench.broker._state.queue(queues[0]).messages()
    position = message.position
    churning = asyncio.create_task(churn(bench))
    while not churning.done():
        for queue in queues:
            for each in bench.broker._state.queue(queue).messages():
                assert type(each.body) is bytes or each.position <= keeper.committer.durable_position
        await asyncio.sleep(0)
    await churning
    assert message.position > position, "it was relocated"
    assert [(await bench.receive_one(queue)).body for queue in queues] == [b"body"] * len(queues)
    await bench.broker.close()
