"""What a call found before it waited may be gone, or another's, afterwards; and a cancelled call owns nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from smista.core.browsing import Wanted
from smista.core.settings import Backoff, QueueSettings
from smista.engine import Broker, BrokerSettings
from smista.errors import MessageNotFound, QueueDeleted
from tests.engine.bench import LONGEST_WAIT_MS, Bench, Consumer, turns, until
from tests.engine.slow_log import SlowPlace

COUNT = 100


@pytest.fixture
async def slow() -> AsyncIterator[tuple[Bench, SlowPlace]]:
    """Every body is paged out, and reading one waits until the test lets it."""
    place = SlowPlace()
    bench = Bench(place, BrokerSettings(disk_free_bytes_min=0, resident_bytes_max=1))
    await bench.open()
    await bench.declare("orders", QueueSettings(retry_backoff=Backoff.NONE))
    for number in range(COUNT):
        await bench.publish(b"%d" % number * 10)
    first = await bench.broker.receiving.receive("orders", COUNT - 10)
    await bench.acknowledge(*first)
    place.log.hold_reads()
    yield bench, place
    place.log.let_read()
    await bench.broker.close()


Slow = tuple[Bench, SlowPlace]


async def look(broker: Broker, what: str) -> object:
    if what == "receive":
        return await broker.receiving.receive("orders", 3)
    if what == "browse":
        return (await broker.browsing.browse("orders", limit=50)).messages
    return await broker.browsing.peek("orders", 5)


@pytest.mark.parametrize("what", ["receive", "browse", "peek"])
async def test_what_is_purged_while_it_is_read_back_is_not_there(slow: Slow, what: str) -> None:
    bench, place = slow
    task = asyncio.ensure_future(look(bench.broker, what))
    await place.log.reading()
    await bench.broker.declaring.purge("orders")
    place.log.let_read()
    assert await task == []
    await bench.publish(b"after")
    assert await bench.bodies() == [b"after"]


async def test_a_message_that_goes_while_it_is_read_back_is_not_found(slow: Slow) -> None:
    bench, place = slow
    [found, *_] = (await bench.broker.browsing.browse("orders", limit=1, with_bodies=False)).messages
    message_id = bench.broker.ids.message_id(found.number, found.created_at_ms)
    task = asyncio.ensure_future(bench.broker.browsing.get("orders", message_id))
    await place.log.reading()
    await bench.broker.declaring.delete_queue("orders")
    place.log.let_read()
    with pytest.raises(MessageNotFound):
        await task


@pytest.mark.parametrize("what", ["purged", "deleted"])
async def test_a_poll_whose_messages_go_while_they_are_read_back_goes_on(slow: Slow, what: str) -> None:
    bench, place = slow
    broker = bench.broker
    poll = asyncio.ensure_future(broker.receiving.receive("orders", 3, wait_ms=LONGEST_WAIT_MS))
    await place.log.reading()
    await (broker.declaring.purge if what == "purged" else broker.declaring.delete_queue)("orders")
    place.log.let_read()
    if what == "purged":
        await turns()
        await bench.publish(b"after")
        assert [delivery.body for delivery in await poll] == [b"after"]
    else:
        with pytest.raises(QueueDeleted):
            await poll


@pytest.mark.parametrize("what", ["purged", "deleted"])
async def test_the_same_for_a_poll_that_had_to_wait_in_line(slow: Slow, what: str) -> None:
    bench, place = slow
    broker = bench.broker
    await broker.declaring.pause("orders")
    poll = asyncio.ensure_future(broker.receiving.receive("orders", 3, wait_ms=LONGEST_WAIT_MS))
    await turns()
    await broker.declaring.resume("orders")
    await place.log.reading()
    await (broker.declaring.purge if what == "purged" else broker.declaring.delete_queue)("orders")
    place.log.let_read()
    if what == "purged":
        await turns()
        await bench.publish(b"after")
        assert [delivery.body for delivery in await poll] == [b"after"]
    else:
        with pytest.raises(QueueDeleted):
            await poll


async def test_a_cancelled_receive_gives_back_its_own_delivery_and_no_other(slow: Slow) -> None:
    bench, place = slow
    first = asyncio.ensure_future(bench.broker.receiving.receive("orders", 1, lease_ms=1000))
    await place.log.reading()
    bench.pass_time(ms=2000)
    await until(lambda: bench.counts()[2] == 0)
    second = asyncio.ensure_future(bench.broker.receiving.receive("orders", 1))
    await until(lambda: bench.counts()[2] == 1)
    first.cancel()
    await turns()
    assert bench.counts()[2] == 1
    place.log.let_read()
    [delivery] = await second
    assert delivery.delivery_count == 2
    await bench.acknowledge(delivery)


async def test_a_cancelled_receive_leaves_nothing_in_flight(slow: Slow) -> None:
    bench, place = slow
    task = asyncio.ensure_future(bench.broker.receiving.receive("orders", 5))
    await place.log.reading()
    task.cancel()
    await turns()
    assert bench.counts() == (10, 0, 0, 0)


@pytest.mark.parametrize("deleted", ["work_dlq", "target"])
async def test_a_redrive_stops_when_either_end_is_deleted(orders: Bench, deleted: str) -> None:
    broker = orders.broker
    await orders.declare("work")
    await orders.declare("target")
    await orders.publish(*[b"x"] * 2500, queue="work")
    while deliveries := await broker.receiving.receive("work", 1000):
        await orders.reject(*deliveries)
    task = asyncio.ensure_future(broker.redriving.redrive("work_dlq", to="target"))
    # Two turns: some have been moved, and not all.
    await turns(2)
    await broker.declaring.delete_queue(deleted)
    if deleted == "target":
        await orders.declare("target")
    with pytest.raises(QueueDeleted, match=deleted):
        await task
    moved = broker.statistics.stats("target").depth
    await orders.restart()
    assert orders.broker.statistics.stats("target").depth == moved
    if deleted == "target":
        assert moved == 0
        assert 0 < orders.broker.statistics.stats("work_dlq").depth < 2500


async def test_looking_for_what_is_not_there_lets_others_have_their_turn(orders: Bench) -> None:
    for _ in range(5):
        await orders.publish(*[b"x"] * 1000)
    wanted = Wanted(headers={"a": 1})

    async def others(task: asyncio.Future[object]) -> int:
        count = 0
        while not task.done():
            await asyncio.sleep(0)
            count += 1
        return count

    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: orders.broker.browsing.browse("orders", wanted),
        lambda: orders.broker.redriving.redrive("orders", wanted, to="orders", dry_run=True),
        lambda: orders.broker.redriving.discard("orders", wanted),
    ]
    assert min([await others(asyncio.ensure_future(call())) for call in calls]) >= 5


async def test_a_claim_that_expires_while_it_is_made_loses_nothing(orders: Bench) -> None:
    settings = QueueSettings(max_retries=None, retry_backoff=Backoff.NONE)
    await orders.declare("deep", settings)
    for _ in range(3):
        await orders.publish(*[b"x"] * 1000, queue="deep")
    claim = asyncio.ensure_future(
        orders.broker.claiming.claim("deep", "c", session="s", after=0, max_rows=3000, lease_ms=1000)
    )
    await until(lambda: orders.counts("deep")[2] > 0)
    orders.pass_time(ms=5000)
    await claim
    await until(lambda: orders.counts("deep") == (3000, 0, 0, 0))


async def test_a_claim_that_waited_for_its_turn_finds_the_queue_deleted(orders: Bench) -> None:
    broker = orders.broker
    await orders.publish(*[b"x"] * 5000)
    view = await broker.claiming.claim("orders", "c", session="s", after=0, max_rows=5000)
    assert view is not None
    first = asyncio.ensure_future(broker.claiming.acknowledge("orders", "c", view.number, session="s"))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(broker.claiming.claim("orders", "c", session="s", after=view.number, max_rows=10))
    await asyncio.sleep(0)
    await broker.declaring.delete_queue("orders")
    await first
    with pytest.raises(QueueDeleted):
        await second
    assert broker._state.claimants == {}
    await orders.restart()


async def test_a_subscription_ended_while_bodies_are_read_back_keeps_nothing(slow: Slow) -> None:
    bench, place = slow
    subscription = bench.broker.subscribing.subscribe("orders", Consumer().deliver, prefetch=5)
    await place.log.reading()
    bench.broker.subscribing.cancel(subscription)
    await turns()
    assert bench.counts() == (10, 0, 0, 0)


async def test_a_body_that_is_read_back_for_a_message_that_moved_is_not_counted(slow: Slow) -> None:
    bench, place = slow
    peek = asyncio.ensure_future(bench.broker.browsing.peek("orders", 3))
    await place.log.reading()
    before = bench.broker._keeper.journal.accounts.resident_bytes
    await bench.declare("elsewhere")
    assert await bench.broker.redriving.redrive("orders", to="elsewhere") == 10
    place.log.let_read()
    assert await peek == []
    assert bench.broker._keeper.journal.accounts.resident_bytes == before
