"""Consumers that leave: out of the line first, then what they held goes back, all of it, in bounded steps."""

from __future__ import annotations

import asyncio

import pytest

from smista.core.settings import Overflow, QueueSettings
from smista.engine import FOREVER_MS, Delivery
from smista.engine.subscription import CreditPool
from smista.errors import ConsumerNotFound
from tests.engine.bench import Bench, Consumer, turns, until

BOUNDED = QueueSettings(limit_ready_only=True, max_depth=1000, overflow=Overflow.DROP_OLDEST, max_retries=None)


@pytest.mark.parametrize("is_vanished", [False, True])
async def test_a_consumer_is_not_served_what_it_gives_back(orders: Bench, is_vanished: bool) -> None:
    await orders.declare("bounded", BOUNDED)
    consumer = Consumer()
    subscription = orders.broker.subscribing.subscribe("bounded", consumer.deliver, prefetch=10, lease_ms=FOREVER_MS)
    await orders.publish(b"1", b"2", b"3", queue="bounded")
    await until(lambda: len(consumer.deliveries) == 3)
    orders.broker.subscribing.cancel(subscription, is_vanished=is_vanished)
    await turns()
    assert orders.counts("bounded") == (3, 0, 0, 0)
    assert await orders.bodies(queue="bounded") == [b"1", b"2", b"3"]


async def test_none_that_leave_together_gets_what_another_gives_back(orders: Bench) -> None:
    settings = QueueSettings(limit_ready_only=True, max_depth=1000, overflow=Overflow.DROP_OLDEST, max_retries=3)
    await orders.declare("bounded", settings)
    consumer = Consumer()
    subscriptions = [
        orders.broker.subscribing.subscribe("bounded", consumer.deliver, prefetch=10, lease_ms=FOREVER_MS)
        for _ in range(6)
    ]
    await orders.publish(b"poison", queue="bounded")
    await until(lambda: len(consumer.deliveries) == 1)
    held = [receipt for subscription in subscriptions for receipt in subscription.held.values()]
    orders.broker.subscribing.leave_all(subscriptions, held, is_vanished=True)
    await turns()
    assert len(consumer.deliveries) == 1
    assert (await orders.receive_one("bounded")).delivery_count == 2


async def test_a_purge_that_is_being_worked_off_does_not_keep_a_consumer_in_line(orders: Bench) -> None:
    consumer = Consumer()
    subscription = orders.broker.subscribing.subscribe("orders", consumer.deliver, prefetch=100, lease_ms=FOREVER_MS)
    await orders.publish(b"1", b"2")
    await until(lambda: len(consumer.deliveries) == 2)
    purge = asyncio.ensure_future(orders.broker.declaring.purge("orders"))
    await asyncio.sleep(0)
    orders.broker.subscribing.cancel(subscription, is_vanished=True)
    assert await purge == 2
    assert orders.broker.statistics.stats("orders").consumers == 0
    await orders.publish(b"later")
    await turns()
    assert await orders.bodies() == [b"later"]


async def test_what_was_settled_or_deleted_meanwhile_stays_so(orders: Bench) -> None:
    await orders.declare("other")
    first, second = Consumer(), Consumer()
    subscriptions = [
        orders.broker.subscribing.subscribe("orders", first.deliver, lease_ms=FOREVER_MS),
        orders.broker.subscribing.subscribe("other", second.deliver, lease_ms=FOREVER_MS),
    ]
    await orders.publish(b"1", b"2")
    await orders.publish(b"3", queue="other")
    await until(lambda: len(first.deliveries) == 2 and len(second.deliveries) == 1)
    orders.broker.settling.acknowledge([first.deliveries[0].receipt]).result()
    await orders.broker.declaring.delete_queue("other")
    held = [receipt for subscription in subscriptions for receipt in subscription.held.values()]
    orders.broker.subscribing.leave_all(subscriptions, held, is_vanished=True)
    await turns()
    assert orders.counts() == (1, 0, 0, 0)
    with pytest.raises(ConsumerNotFound):
        orders.broker.subscribing.cancel(subscriptions[0])


async def test_very_many_go_back_in_steps_and_in_order(orders: Bench) -> None:
    count = 3000
    await orders.declare("deep", QueueSettings(max_prefetch=count, max_retries=None))
    consumer = Consumer()
    pool = CreditPool(count)
    subscription = orders.broker.subscribing.subscribe(
        "deep", consumer.deliver, prefetch=count, lease_ms=FOREVER_MS, pool=pool
    )
    await orders.publish(*[b"%d" % number for number in range(count)], queue="deep")
    await until(lambda: len(consumer.deliveries) == count)
    orders.broker.subscribing.cancel(subscription, is_vanished=True)
    assert orders.counts("deep")[0] < count, "not all of it in one step"
    await until(lambda: orders.counts("deep")[0] == count)
    assert await orders.bodies(count, queue="deep") == [b"%d" % number for number in range(count)]
    assert pool.held == set()


async def test_closing_does_not_forget_what_was_going_back(orders: Bench) -> None:
    count = 1500
    await orders.declare("deep", QueueSettings(max_prefetch=count, max_retries=None))
    consumer = Consumer()
    subscription = orders.broker.subscribing.subscribe("deep", consumer.deliver, prefetch=count, lease_ms=FOREVER_MS)
    await orders.publish(*[b"x"] * count, queue="deep")
    await until(lambda: len(consumer.deliveries) == count)
    orders.broker.subscribing.cancel(subscription, is_vanished=True)
    await orders.restart()
    assert orders.counts("deep") == (count, 0, 0, 0)


async def test_the_next_active_consumer_gets_first_what_the_last_one_held(orders: Bench) -> None:
    count = 1000
    await orders.declare("single", QueueSettings(single_active_consumer=True, max_prefetch=2 * count, max_retries=None))
    first, second = Consumer(), Consumer()
    subscription = orders.broker.subscribing.subscribe("single", first.deliver, prefetch=count, lease_ms=FOREVER_MS)
    orders.broker.subscribing.subscribe("single", second.deliver, prefetch=2 * count, lease_ms=FOREVER_MS)
    bodies = [b"%d" % number for number in range(2 * count)]
    await orders.publish(*bodies, queue="single")
    await until(lambda: len(first.deliveries) == count)
    orders.broker.subscribing.cancel(subscription, is_vanished=True)
    await until(lambda: len(second.deliveries) == 2 * count)
    assert second.bodies == bodies


async def test_a_queue_that_stops_being_for_one_consumer_serves_all(orders: Bench) -> None:
    await orders.declare("single", QueueSettings(single_active_consumer=True))
    holds, settles = Consumer(), Consumer()

    def settle(deliveries: list[Delivery]) -> None:
        settles.deliver(deliveries)
        orders.broker.settling.acknowledge([delivery.receipt for delivery in deliveries]).result()

    for deliver in (holds.deliver, settle):
        orders.broker.subscribing.subscribe("single", deliver, prefetch=1, lease_ms=FOREVER_MS)
    await orders.publish(*[b"x"] * 5, queue="single")
    await until(lambda: len(holds.deliveries) == 1)
    await orders.broker.declaring.alter_queue("single", QueueSettings())
    await until(lambda: len(settles.deliveries) == 4)
    assert len(holds.deliveries) == 1


async def test_a_queue_lives_its_whole_time_after_the_last_consumer_left(orders: Bench) -> None:
    await orders.declare("idle", QueueSettings(expires_ms=10_000))
    subscription = orders.broker.subscribing.subscribe("idle", Consumer().deliver)
    orders.pass_time(ms=9_000)
    orders.broker.subscribing.cancel(subscription)
    orders.pass_time(ms=9_000)
    await turns()
    assert "idle" in orders.broker.catalog.queue_names()
    orders.pass_time(ms=2_000)
    await until(lambda: "idle" not in orders.broker.catalog.queue_names())


async def test_a_queue_that_becomes_one_for_one_consumer_serves_one(orders: Bench) -> None:
    first, second = Consumer(), Consumer()
    for consumer in (first, second):
        orders.broker.subscribing.subscribe("orders", consumer.deliver, prefetch=100)
    await orders.broker.declaring.alter_queue("orders", QueueSettings(single_active_consumer=True))
    await orders.publish(*[b"x"] * 10)
    await until(lambda: len(first.deliveries) == 10)
    assert second.deliveries == []
