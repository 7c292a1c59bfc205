"""What one caller or consumer does wrong, or does in the middle of being served, is no matter of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from smista.core import dead_letters
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Envelope, Message, Publication
from smista.core.queue import Queue
from smista.core.settings import DeadLetterMode, DeduplicationScope, Overflow, QueueSettings
from smista.core.state import BrokerState
from smista.engine import FOREVER_MS, Broker, BrokerSettings, Delivery
from smista.errors import BrokerClosed, InvalidArgument, OutcomeUnknown, QueueDeleted
from smista.log import MemoryLog
from tests.engine.bench import LONGEST_WAIT_MS, SETTINGS, Bench, Consumer, KeptLog, MemoryPlace, stored, turns, until

BOUNDED = QueueSettings(limit_ready_only=True, max_depth=100, overflow=Overflow.DROP_OLDEST)


@pytest.mark.parametrize(("lease_ms", "consumer"), [(-5, ""), (None, "\ud800"), (None, "x" * 2000)])
async def test_what_is_wrong_with_a_call_comes_up_before_it_stands_in_line(
    orders: Bench, lease_ms: int | None, consumer: str
) -> None:
    good = asyncio.ensure_future(orders.broker.receiving.receive("orders", wait_ms=LONGEST_WAIT_MS))
    await turns()
    with pytest.raises(InvalidArgument):
        await orders.broker.receiving.receive("orders", wait_ms=LONGEST_WAIT_MS, lease_ms=lease_ms, consumer=consumer)
    with pytest.raises(InvalidArgument):
        orders.broker.subscribing.subscribe("orders", Consumer().deliver, lease_ms=lease_ms, consumer=consumer)
    await orders.publish(b"x")
    assert len(await good) == 1


async def test_a_consumer_that_fails_keeps_nobody_from_being_served(orders: Bench) -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context.get("exception")))
    names = [f"q{number}" for number in range(5)]
    consumer = Consumer()

    def fail(deliveries: list[Delivery]) -> None:
        raise RuntimeError("a consumer's fault")

    for name in names:
        await orders.declare(name)
        orders.broker.subscribing.subscribe(name, fail if name == "q2" else consumer.deliver)
    for name in names:
        orders.broker.publishing.submit(name, [Publication(b"x")]).result()
    await until(lambda: len(consumer.deliveries) == 4)
    assert [str(fault) for fault in faults] == ["a consumer's fault"]


async def test_a_message_that_cannot_be_let_go_keeps_no_other_from_it(
    orders: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context.get("exception")))

    def fail_for_the_second(state: BrokerState, queue: Queue, message: Message, *, now_ms: int) -> None:
        if message.body == b"1":
            raise RuntimeError("our own fault")
        dead_letters.expire(state, queue, message, now_ms=now_ms)

    monkeypatch.setattr("smista.core.due.expire", fail_for_the_second)
    await orders.declare("short", QueueSettings(message_ttl_ms=10_000, dead_letter=DeadLetterMode.DROP))
    poll = asyncio.ensure_future(orders.broker.receiving.receive("orders", wait_ms=10_000))
    await orders.broker.publishing.publish("short", [Publication(b"%d" % number) for number in range(4)])
    orders.pass_time(ms=20_000)
    await until(lambda: orders.counts("short") == (1, 0, 0, 0))
    assert await poll == []
    assert [str(fault) for fault in faults] == ["our own fault"]


async def test_a_consumer_may_publish_as_it_is_served(orders: Bench) -> None:
    """Time goes on while it does, and it may be served that very message in the instant of the first."""
    await orders.declare("bounded", BOUNDED)
    got: list[bytes] = []

    def publish_more(deliveries: list[Delivery]) -> None:
        got.extend(delivery.body for delivery in deliveries)
        orders.pass_time(ms=50)
        if len(got) < 3:
            orders.broker.publishing.submit("bounded", [Publication(b"more")]).result()

    orders.broker.subscribing.subscribe("bounded", publish_more, lease_ms=3_600_000)
    await orders.publish(b"first", queue="bounded")
    await until(lambda: len(got) == 3)
    await orders.restart()
    assert orders.counts("bounded") == (0, 0, 3, 0)


@pytest.mark.parametrize("overflow", [Overflow.REJECT, Overflow.DROP_OLDEST])
async def test_a_consumer_may_delete_the_queue_between_the_messages_of_a_batch(overflow: Overflow) -> None:
    place = MemoryPlace()
    bench = Bench(place, BrokerSettings(disk_free_bytes_min=0, block_bytes_max=1))
    await bench.open()
    await bench.declare("gone", QueueSettings(limit_ready_only=True, max_depth=100, overflow=overflow))
    number = bench.broker.catalog.queue_number("gone")

    def delete(deliveries: list[Delivery]) -> None:
        bench.broker.declaring.delete_queue_now(number)

    bench.broker.subscribing.subscribe("gone", delete)
    results = bench.broker.publishing.submit("gone", [Publication(b"x")] * 3).result()
    is_one_by_one = overflow is Overflow.REJECT
    assert [isinstance(result, QueueDeleted) for result in results] == [False, is_one_by_one, is_one_by_one]
    await bench.broker.durable()
    for front in range(place.log.first_position, place.log.next_position):
        log = MemoryLog()
        for position in range(1, place.log.next_position):
            log.append(position, place.log.read(position))
        log.drop(front)
        await (await Broker.open(log)).close()
    await bench.broker.close()


async def test_a_batch_is_recognised_though_it_would_enter_in_parts_now(orders: Bench) -> None:
    batch = [Publication(b"%d" % number) for number in range(3)]
    first = await orders.broker.publishing.publish("orders", batch, batch_id="b")
    await orders.broker.declaring.alter_queue("orders", QueueSettings(limit_ready_only=True, max_depth=100))
    orders.broker.subscribing.subscribe("orders", Consumer().deliver, prefetch=1)
    again = await orders.broker.publishing.publish("orders", batch, batch_id="b")
    assert [stored(one).number for one in again] == [stored(one).number for one in first]


async def test_no_message_is_taken_for_a_batch(orders: Bench) -> None:
    await orders.declare("grouped", QueueSettings(dedup_scope=DeduplicationScope.GROUP))
    await orders.publish(b"x", queue="grouped", envelope=Envelope(group="batch", deduplication_id="7"))
    await orders.publish(b"x", envelope=Envelope(deduplication_id="batch 7"))
    await orders.publish(b"x", envelope=Envelope(deduplication_id="batch\0" + "7"))
    for queue in ("orders", "grouped"):
        await orders.broker.publishing.publish(queue, [Publication(b"1"), Publication(b"2")], batch_id="7")
    assert (orders.counts("orders")[0], orders.counts("grouped")[0]) == (4, 3)


async def test_a_claim_that_waited_for_its_first_row_keeps_within_its_bytes(orders: Bench) -> None:
    claim = asyncio.ensure_future(
        orders.broker.claiming.claim(
            "orders", "c", session="s", after=0, max_rows=10, max_bytes=100, wait_ms=LONGEST_WAIT_MS
        )
    )
    await turns()
    await orders.publish(b"x" * 80, b"x" * 80)
    view = await claim
    assert view is not None
    assert (view.rows, view.body_bytes) == (1, 80)


async def test_many_that_are_over_go_some_at_a_time_and_hide_nothing(
    orders: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await orders.publish(*[b"over"] * 1000, envelope=Envelope(ttl_ms=60_000))
    await orders.publish(b"good")
    # The clockwork that would see to it is held up.
    monkeypatch.setattr(orders.broker._running.deadlines, "_due", lambda: None)
    monkeypatch.setattr(orders.broker._running.deadlines, "plan", lambda next_ms: None)
    orders.pass_time(ms=100_000)
    receiving = asyncio.ensure_future(orders.broker.receiving.receive("orders"))
    await asyncio.sleep(0)
    assert not receiving.done(), "not all of them in one step"
    assert [delivery.body for delivery in await receiving] == [b"good"]


async def test_closing_goes_on_though_whoever_asked_was_cancelled() -> None:
    place = MemoryPlace()
    broker = await Broker.open(place.open(), SETTINGS)
    await broker.declaring.declare_queue("q")
    place.log.gate.clear()
    publishing = asyncio.ensure_future(broker.publishing.publish("q", [Publication(b"x")]))
    await place.log.held_up()
    closing = asyncio.ensure_future(broker.close())
    await turns()
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    with pytest.raises(BrokerClosed):
        broker.publishing.submit("q", [Publication(b"y")]).result()
    place.log.gate.set()
    await broker.close()
    await publishing


async def test_a_broker_that_cannot_open_closes_its_log() -> None:
    class Failing(KeptLog):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    log = Failing()
    log.is_failing = True
    with pytest.raises(OutcomeUnknown):
        await Broker.open(log, SETTINGS)
    assert log.is_closed


async def test_dead_letters_are_routed_by_their_headers_while_the_broker_starts(orders: Bench) -> None:
    def read(properties: bytes) -> tuple[Mapping[str, object] | None, Sequence[str]]:
        return {"kind": properties.decode()}, ()

    await orders.broker.declaring.declare_exchange("dead", ExchangeSettings(ExchangeKind.HEADERS))
    await orders.declare("letters")
    await orders.broker.declaring.bind(Binding.to_queue("dead", "letters", "", {"x-match": "all", "kind": "a"}))
    settings = QueueSettings(dead_letter=DeadLetterMode.MOVE_OR_DROP, dead_letter_exchange="dead", message_ttl_ms=5_000)
    await orders.declare("brief", settings)
    await orders.publish(b"x", queue="brief", envelope=Envelope(properties=b"a"))
    await orders.receive_one("brief", lease_ms=FOREVER_MS)
    orders.pass_time(ms=10_000)
    await orders.broker.close()
    orders.broker = await Broker.open(orders.place.open(), orders.settings, clock=orders._clock(), read_routing=read)
    assert orders.counts("letters")[0] == 1
