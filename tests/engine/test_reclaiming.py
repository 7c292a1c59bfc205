"""The log stays small: what still lives in its oldest blocks is written again, and the front is dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from smista.core.exchanges import Binding
from smista.core.message import Envelope, Publication
from smista.core.settings import QueueSettings
from smista.engine import BrokerSettings, KeptFor, paging, reclaim
from tests.engine.bench import LONGEST_WAIT_MS, Bench, KeptLog, MemoryPlace, until

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
    await bench.broker.declare_queue("churn")
    for _ in range(rounds):
        await bench.publish(*[b"x" * 100] * 10, queue="churn")
        await bench.acknowledge(*await bench.broker.receive("churn", 10))
    keeper = bench.broker._keeper
    await until(lambda: not keeper._is_reclaiming)
    # The log's thread does one thing after another: when this is durable, so is the last drop.
    await bench.publish(b"x", queue="churn")
    await bench.acknowledge(*await bench.broker.receive("churn", 1))


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
    await bench.broker.pause("paused")
    await bench.fanout("all", "orders", "others")
    await bench.broker.bind(Binding.to_queue("amq.topic", "orders", "a.#"))
    [remembered] = await bench.publish(b"once", envelope=Envelope(deduplication_id="1"))
    await bench.acknowledge(await bench.receive_one())
    await bench.publish(b"held", b"poison", b"ready")
    held, poison = await bench.broker.receive("orders", 2)
    await bench.reject(poison, error="why")
    await bench.publish(b"later", delay_ms=60_000)
    written = log.next_position
    await churn(bench, 100)
    assert log.first_position > written, "all of that has been relocated"
    for _ in range(2):
        await bench.restart()
        assert bench.counts() == (1, 1, 1, 0)
        assert bench.broker.queue_settings("others") == settings
        assert bench.broker.stats("paused").is_paused
        assert len(bench.broker.bindings()) == 3
        [again] = await bench.publish(b"once", envelope=Envelope(deduplication_id="1"))
        assert (again.is_duplicate, again.id) == (True, remembered.id)
        page = await bench.broker.browse("orders_dlq")
        [dead_letter] = page.messages
        assert (dead_letter.body, dead_letter.deaths[-1].queue) == (b"poison", "orders")
        assert dead_letter.deaths[-1].failures[-1].error == "why"
        await churn(bench, 100)
    await bench.acknowledge(held)
    assert await bench.bodies() == [b"ready"]
    assert await bench.broker.redrive("orders_dlq") == 1
    assert await bench.bodies() == [b"poison"]


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_what_was_purged_and_is_not_buried_yet_does_not_trip_reclaiming_up(
    small: Small, is_deleted: bool
) -> None:
    bench, _ = small
    for _ in range(60):
        await bench.publish(*[b"y" * 100] * 500)
    emptying = asyncio.create_task(bench.broker.delete_queue("orders") if is_deleted else bench.broker.purge("orders"))
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
            deliveries = await bench.broker.receive("orders", 1, wait_ms=LONGEST_WAIT_MS)
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


async def test_fanned_out_messages_share_a_body_also_after_relocation(small: Small) -> None:
    bench, log = small
    names = [f"q{number}" for number in range(5)]
    for name in names:
        await bench.declare(name)
    await bench.fanout("all", *names)
    await bench.broker.publish_to_exchange("all", Publication(b"z" * 1000))
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
    settings = BrokerSettings(disk_free_bytes_min=0, log_slack_bytes=0, log_retention_ms=0, log_retention_bytes=0)
    bench = Bench(place, settings)
    async with await bench.open():
        for number in range(100):
            await bench.broker.declare_queue(f"queue-{number}")
        await churn(bench, 10)
        await until(lambda: not bench.broker._keeper._is_reclaiming)
        before = place.log.next_position
        await churn(bench, 3)
        assert place.log.next_position - before < 20, "an idle broker keeps rewriting its declarations"


async def test_it_says_why_the_log_is_not_smaller() -> None:
    place = MemoryPlace()
    keeping = msgspec.structs.replace(SETTINGS, log_retention_ms=3_600_000, log_retention_bytes=10_000_000)
    bench = Bench(place, keeping)
    async with await bench.open() as broker:
        await bench.declare()
        await bench.publish(*[b"y" * 1000] * 20)
        space = broker.log_space()
        assert space.kept_for is KeptFor.NEED
        assert 20_000 < space.needed_bytes <= space.bytes == broker.log_bytes
        await churn(bench)
        space = broker.log_space()
        assert (space.kept_for, space.retention_ms) == (KeptFor.RETENTION, 3_600_000)
        assert space.bytes > space.needed_bytes + space.spare_bytes
        assert space.oldest_at_ms is not None
        bench.pass_time(3_600_001)
        await until(lambda: broker.log_space().kept_for is KeptFor.NEED)
        space = broker.log_space()
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
        assert broker.log_space().kept_for is KeptFor.RETENTION
        place.log.free = 1_100
        await until(lambda: broker.log_space().kept_for is KeptFor.NEED)
        assert broker.log_space().retention_ms == 0


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
    await bench.broker.publish_to_exchange("fan", Publication(b"body"))
    for queue in queues:
        # Each has a history of its own from now on.
        await bench.broker.nack([(await bench.receive_one(queue)).receipt], delay_ms=0, error=queue)
    await bench.restart()
    keeper = bench.broker._keeper
    [message] = bench.broker._state.queue(queues[0]).messages()
    position = message.position
    churning = asyncio.create_task(churn(bench))
    while not churning.done():
        for queue in queues:
            for each in bench.broker._state.queue(queue).messages():
                assert type(each.body) is bytes or each.position <= keeper._committer.durable_position
        await asyncio.sleep(0)
    await churning
    assert message.position > position, "it was relocated"
    assert [(await bench.receive_one(queue)).body for queue in queues] == [b"body"] * len(queues)
    await bench.broker.close()
