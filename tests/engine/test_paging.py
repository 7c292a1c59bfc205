"""Bodies that stay in the log while memory is short: right, in order, and no slower to come than their turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from smista.core.browsing import Wanted
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Message, Publication, Reason, State
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.engine import BrokerSettings
from tests.engine.bench import LONGEST_WAIT_MS, Bench, Consumer, KeptLog, MemoryPlace, turns, until
from tests.waiting import PATIENCE_S

SETTINGS = BrokerSettings(disk_free_bytes_min=0, resident_bytes_max=1)
COUNT = 300


def body(number: int) -> bytes:
    return b"%d:" % number * 20


ALL = [body(number) for number in range(COUNT)]


@pytest.fixture
async def short() -> AsyncIterator[tuple[Bench, KeptLog]]:
    """A broker with memory for no body at all."""
    place = MemoryPlace()
    bench = Bench(place, SETTINGS)
    await bench.open()
    await bench.declare()
    yield bench, place.log
    await bench.broker.close()


Short = tuple[Bench, KeptLog]


async def publish_in_blocks(bench: Bench, count: int = COUNT, queue: str = "orders") -> None:
    """Ten messages to a block."""
    for start in range(0, count, 10):
        await bench.publish(*[body(number) for number in range(start, start + 10)], queue=queue)


async def test_paged_out_bodies_come_back_in_order(orders: Bench) -> None:
    orders.settings = SETTINGS
    await orders.restart()
    await publish_in_blocks(orders)
    received: list[bytes] = []
    while deliveries := await orders.broker.receiving.receive("orders", 7):
        received += [delivery.body for delivery in deliveries]
        await orders.acknowledge(*deliveries)
    assert received == ALL


async def test_one_receive_may_need_many_blocks(short: Short) -> None:
    bench, _ = short
    await publish_in_blocks(bench)
    deliveries = await bench.broker.receiving.receive("orders", COUNT)
    assert [delivery.body for delivery in deliveries] == ALL
    assert bench.counts() == (0, 0, COUNT, 0)


async def test_one_page_may_need_many_blocks(short: Short) -> None:
    bench, _ = short
    await publish_in_blocks(bench)
    page = await bench.broker.browsing.browse("orders", limit=COUNT)
    assert [message.body for message in page.messages] == ALL


async def test_bodies_beyond_memory_come_back_after_a_restart(orders: Bench) -> None:
    await publish_in_blocks(orders)
    await orders.restart(SETTINGS)
    assert [message.body for message in await orders.broker.browsing.peek("orders", 5)] == ALL[:5]
    deliveries = await orders.broker.receiving.receive("orders", COUNT)
    assert [delivery.body for delivery in deliveries] == ALL


async def test_a_subscription_gets_paged_out_bodies_in_order(short: Short) -> None:
    bench, _ = short
    await publish_in_blocks(bench)
    consumer = Consumer()
    bench.broker.subscribing.subscribe("orders", consumer.deliver, prefetch=COUNT)
    await until(lambda: len(consumer.bodies) >= COUNT)
    assert consumer.bodies == ALL


async def test_subscriptions_side_by_side_get_each_paged_out_body_once(short: Short) -> None:
    bench, _ = short
    await publish_in_blocks(bench)
    consumers = [Consumer(), Consumer()]
    for consumer in consumers:
        bench.broker.subscribing.subscribe("orders", consumer.deliver, prefetch=COUNT)
    await until(lambda: sum(len(consumer.bodies) for consumer in consumers) >= COUNT)
    await turns()
    assert sorted(consumers[0].bodies + consumers[1].bodies) == sorted(ALL)


async def test_a_long_poll_gets_paged_out_bodies(short: Short) -> None:
    bench, _ = short
    poll = asyncio.create_task(bench.broker.receiving.receive("orders", 1000, wait_ms=LONGEST_WAIT_MS))
    await turns()
    await publish_in_blocks(bench)
    assert [delivery.body for delivery in await poll][:1] == ALL[:1]


async def test_a_receive_that_is_cancelled_while_bodies_are_read_keeps_nothing(short: Short) -> None:
    bench, _ = short
    await publish_in_blocks(bench)
    receiving = asyncio.create_task(bench.broker.receiving.receive("orders", 100))
    await asyncio.sleep(0)
    assert bench.counts()[2] == 100
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert bench.counts()[2] == 0
    assert await bench.bodies(COUNT, "orders") == ALL


async def test_fanned_out_bodies_come_back(short: Short) -> None:
    bench, _ = short
    await bench.declare("others")
    await bench.fanout("all", "orders", "others")
    for message in ALL:
        bench.broker.publishing.submit_to_exchange("all", Publication(message)).result()
        if message.startswith(b"5"):
            await bench.broker.durable()
    await bench.broker.durable()
    for queue in ("orders", "others"):
        assert await bench.bodies(COUNT, queue) == ALL


async def test_a_paged_out_message_can_be_dead_lettered_and_redriven(short: Short) -> None:
    bench, _ = short
    await publish_in_blocks(bench, 100)
    deliveries = await bench.broker.receiving.receive("orders", 100)
    await bench.reject(*deliveries)
    assert await bench.bodies(100, "orders_dlq") == ALL[:100]


async def test_a_paged_out_message_can_be_dead_lettered_to_several_queues(short: Short) -> None:
    bench, _ = short
    await bench.declare("a")
    await bench.declare("b")
    await bench.broker.declaring.declare_exchange("dead letters", ExchangeSettings(ExchangeKind.FANOUT))
    for queue in ("a", "b"):
        await bench.broker.declaring.bind(Binding.to_queue("dead letters", queue))
    await bench.declare("deadly", QueueSettings(dead_letter_exchange="dead letters"))
    await publish_in_blocks(bench, 100, "deadly")
    await bench.reject(*await bench.broker.receiving.receive("deadly", 100))
    for queue in ("a", "b"):
        assert await bench.bodies(100, queue) == ALL[:100]


async def test_a_paged_out_message_keeps_its_body_in_a_queue_that_is_not_durable(short: Short) -> None:
    bench, _ = short
    await bench.declare("fleeting", QueueSettings(durable=False))
    await bench.declare("deadly", QueueSettings(dead_letter_queue="fleeting"))
    await publish_in_blocks(bench, 100, "deadly")
    await bench.reject(*await bench.broker.receiving.receive("deadly", 100))
    assert await bench.bodies(100, "fleeting") == ALL[:100]


async def test_a_damaged_block_costs_its_messages_and_no_others(short: Short) -> None:
    bench, log = short
    await publish_in_blocks(bench)
    await bench.broker.close()
    damaged = log.first_position + 20
    await bench.open()
    log.damage(damaged)
    deliveries = await bench.broker.receiving.receive("orders", COUNT)
    parked = [message async for message in dead(bench)]
    assert len(parked) == 10
    assert {message.deaths[-1].reason for message in parked} == {Reason.DAMAGED}
    assert len(deliveries) == COUNT - 10
    assert bench.broker.failure is None


async def dead(bench: Bench) -> AsyncIterator[Message]:
    for message in (await bench.broker.browsing.browse("orders", Wanted(state=State.DEAD), with_bodies=False)).messages:
        yield message


class SlowReads(KeptLog):
    """Reads wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.read_gate = threading.Event()
        self.read_gate.set()
        self.reading = threading.Event()

    def read(self, position: int) -> bytes:
        self.reading.set()
        assert self.read_gate.wait(PATIENCE_S), "nobody let it through"
        return super().read(position)


async def slow_reads() -> tuple[Bench, SlowReads]:
    place = MemoryPlace()
    log = place.log = SlowReads()
    bench = Bench(place, SETTINGS)
    await bench.open()
    await bench.declare()
    await publish_in_blocks(bench, 100)
    await bench.restart()
    return bench, log


async def test_a_poll_cancelled_while_bodies_are_read_gives_its_messages_back() -> None:
    bench, log = await slow_reads()
    log.read_gate.clear()
    receiving = asyncio.create_task(bench.broker.receiving.receive("orders", 5))
    await until(log.reading.is_set)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    log.read_gate.set()
    await turns()
    assert bench.counts() == (100, 0, 0, 0)
    await bench.broker.close()


async def test_messages_purged_while_their_bodies_are_read_are_not_handed_over() -> None:
    bench, log = await slow_reads()
    log.read_gate.clear()
    consumer = Consumer()
    bench.broker.subscribing.subscribe("orders", consumer.deliver, prefetch=5)
    await until(log.reading.is_set)
    await bench.broker.declaring.purge("orders")
    await bench.publish(b"new")
    log.read_gate.set()
    await until(lambda: b"new" in consumer.bodies)
    assert consumer.bodies == [b"new"]
    await bench.broker.close()


async def test_a_consumer_cancelled_while_bodies_are_read_gives_its_messages_back() -> None:
    bench, log = await slow_reads()
    log.read_gate.clear()
    consumer = Consumer()
    subscription = bench.broker.subscribing.subscribe("orders", consumer.deliver, prefetch=5)
    await until(log.reading.is_set)
    bench.broker.subscribing.cancel(subscription)
    log.read_gate.set()
    await until(lambda: bench.counts() == (100, 0, 0, 0))
    # Bodies of one queue are read for one consumer after the other.
    following = Consumer()
    bench.broker.subscribing.subscribe("orders", following.deliver, prefetch=100)
    await until(lambda: following.bodies == ALL[:100])
    assert consumer.bodies == []
    await bench.broker.close()


async def test_a_parked_message_still_shows_its_body(short: Short) -> None:
    bench, _ = short
    await bench.declare("parking", QueueSettings(dead_letter=DeadLetterMode.PARK))
    [published] = await bench.publish(b"poison", queue="parking")
    await bench.reject(await bench.receive_one("parking"))
    assert (await bench.broker.browsing.get("parking", published.id)).body == b"poison"
    [message] = (await bench.broker.browsing.browse("parking")).messages
    assert message.body == b"poison"
    assert await bench.broker.redriving.redrive("parking") == 1
    assert await bench.bodies(queue="parking") == [b"poison"]


async def test_fanned_out_bodies_leave_memory_too(short: Short) -> None:
    bench, _ = short
    await bench.declare("others")
    await bench.fanout("all", "orders", "others")
    for number in range(COUNT):
        await bench.broker.publishing.publish_to_exchange("all", Publication(body(number)))
    page = await bench.broker.browsing.browse("orders", limit=COUNT, with_bodies=False)
    assert sum(type(message.body) is int for message in page.messages) > COUNT // 2


async def test_bodies_of_scheduled_messages_leave_memory_too(short: Short) -> None:
    bench, _ = short
    for number in range(COUNT):
        await bench.publish(body(number), delay_ms=60_000)
    page = await bench.broker.browsing.browse("orders", limit=COUNT, with_bodies=False)
    assert sum(type(message.body) is int for message in page.messages) > COUNT // 2


async def test_what_is_kept_in_memory_at_a_start_is_bounded_though_copies_were_settled(
    kept: tuple[Bench, object],
) -> None:
    """Copies of dead letters share a body; when they are settled they do not each make room for another."""
    bench, _ = kept
    await bench.restart(BrokerSettings(disk_free_bytes_min=0))
    targets = [f"d{number}" for number in range(10)]
    for target in targets:
        await bench.declare(target)
    await bench.fanout("dlx", *targets)
    await bench.declare("orders", QueueSettings(max_retries=0, dead_letter_exchange="dlx"))
    await bench.publish(*[b"l" * 1_000] * 20)
    await bench.reject(*await bench.broker.receiving.receive("orders", 20))
    await until(lambda: bench.counts("d9")[0] == 20)
    for target in targets:
        await bench.acknowledge(*await bench.broker.receiving.receive(target, 20))
    await bench.declare("backlog")
    await bench.publish(*[b"b" * 1_000] * 200, queue="backlog")
    # Enough for the letters, so that their bodies are read and freed again, and for half of the backlog.
    await bench.restart(BrokerSettings(disk_free_bytes_min=0, resident_bytes_max=100_000))
    assert 0 < bench.broker._keeper.journal.accounts.resident_bytes <= 100_000
