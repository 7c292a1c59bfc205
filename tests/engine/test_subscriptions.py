"""Standing consumers: pushed to as their credit allows, the longest-waiting first, until they are cancelled."""

from __future__ import annotations

import pytest

from smista.core.message import FOREVER_MS, Envelope, Reason
from smista.core.settings import QueueSettings
from smista.engine import Delivery, Subscription
from smista.errors import BrokerClosed, ConsumerNotFound, InvalidArgument, QueueDeleted, QueueNotFound
from tests.engine.bench import SHORT_MS, Bench, Consumer, turns, until


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_a_subscription_gets_no_more_than_its_credit_until_it_settles(orders: Bench) -> None:
    consumer = Consumer()
    orders.broker.subscribing.subscribe("orders", consumer.deliver, prefetch=2)
    await orders.publish(*numbered(5))
    await turns()
    assert consumer.bodies == numbered(2)
    await orders.acknowledge(consumer.deliveries[0])
    await turns()
    assert consumer.bodies == numbered(3)
    await orders.broker.settling.nack([consumer.deliveries[1].receipt], delay_ms=60_000)
    await turns()
    assert consumer.bodies == numbered(4)


async def test_a_subscription_gets_what_was_there_before_it(orders: Bench) -> None:
    await orders.publish(*numbered(3))
    consumer = Consumer()
    orders.broker.subscribing.subscribe("orders", consumer.deliver)
    await turns()
    assert consumer.bodies == numbered(3)


async def test_the_default_prefetch_is_the_queues(orders: Bench) -> None:
    consumer = Consumer()
    subscription = orders.broker.subscribing.subscribe("orders", consumer.deliver)
    await orders.publish(*numbered(20))
    await turns()
    assert len(consumer.bodies) == subscription.prefetch == 10


async def test_single_messages_go_to_the_longest_waiting_in_turn(orders: Bench) -> None:
    consumers = [Consumer() for _ in range(3)]
    for consumer in consumers:
        orders.broker.subscribing.subscribe("orders", consumer.deliver)
    for body in numbered(6):
        await orders.publish(body)
        await turns()
    assert [consumer.bodies for consumer in consumers] == [[b"0", b"3"], [b"1", b"4"], [b"2", b"5"]]


async def test_who_is_cancelled_by_another_as_a_burst_is_dealt_out_holds_nothing(orders: Bench) -> None:
    kept: list[bytes] = []
    neighbours: list[Subscription] = []

    def deliver(deliveries: list[Delivery]) -> None:
        kept.extend(delivery.body for delivery in deliveries)
        while neighbours:
            orders.broker.subscribing.cancel(neighbours.pop(), keeps_held=True)

    orders.broker.subscribing.subscribe("orders", deliver, prefetch=2)
    gone = Consumer()
    neighbours.append(orders.broker.subscribing.subscribe("orders", gone.deliver, prefetch=2))
    await orders.publish(b"0", b"1", b"2", b"3")
    await turns()
    assert (kept, gone.bodies) == ([b"0", b"2"], [])
    assert await orders.bodies() == [b"1", b"3"]


async def test_a_burst_is_shared_out(orders: Bench) -> None:
    consumers = [Consumer() for _ in range(4)]
    for consumer in consumers:
        orders.broker.subscribing.subscribe("orders", consumer.deliver, prefetch=100)
    await orders.publish(*numbered(40))
    await turns()
    assert [len(consumer.bodies) for consumer in consumers] == [10] * 4


async def test_a_consumer_of_higher_priority_is_served_while_it_has_credit(orders: Bench) -> None:
    low, high = Consumer(), Consumer()
    orders.broker.subscribing.subscribe("orders", low.deliver)
    orders.broker.subscribing.subscribe("orders", high.deliver, priority=5, prefetch=2)
    for body in numbered(3):
        await orders.publish(body)
        await turns()
    assert (high.bodies, low.bodies) == ([b"0", b"1"], [b"2"])


async def test_a_subscription_stays_when_its_lease_runs_out(orders: Bench) -> None:
    consumer = Consumer()
    orders.broker.subscribing.subscribe("orders", consumer.deliver, prefetch=1, lease_ms=SHORT_MS)
    await orders.publish(b"x")
    await until(lambda: len(consumer.bodies) == 3)
    assert [delivery.delivery_count for delivery in consumer.deliveries] == [1, 2, 3]


async def test_a_lease_of_forever_lasts(orders: Bench) -> None:
    consumer = Consumer()
    orders.broker.subscribing.subscribe("orders", consumer.deliver, lease_ms=FOREVER_MS)
    await orders.publish(b"x")
    await turns()
    [delivery] = consumer.deliveries
    assert delivery.lease_until_ms is None
    await orders.acknowledge(delivery)


async def test_cancelling_releases_what_is_held_to_its_old_place(orders: Bench) -> None:
    consumer = Consumer()
    subscription = orders.broker.subscribing.subscribe("orders", consumer.deliver, prefetch=2)
    await orders.publish(*numbered(3))
    await turns()
    orders.broker.subscribing.cancel(subscription)
    assert orders.counts() == (3, 0, 0, 0)
    deliveries = await orders.broker.receiving.receive("orders", 3)
    assert [delivery.body for delivery in deliveries] == numbered(3)
    assert [delivery.delivery_count for delivery in deliveries] == [2, 2, 1]
    assert deliveries[0].failures == ()
    assert orders.broker.statistics.stats("orders").consumers == 0


async def test_a_consumer_that_vanishes_has_failed(orders: Bench) -> None:
    consumer = Consumer()
    subscription = orders.broker.subscribing.subscribe("orders", consumer.deliver)
    await orders.publish(b"x")
    await turns()
    orders.broker.subscribing.cancel(subscription, is_vanished=True)
    delivery = await orders.receive_one()
    assert [failure.reason for failure in delivery.failures] == [Reason.VANISHED]


async def test_a_message_that_kills_its_consumers_dies(orders: Bench) -> None:
    await orders.declare("deadly", QueueSettings(max_retries=2))
    await orders.publish(b"x", queue="deadly")
    for _ in range(3):
        subscription = orders.broker.subscribing.subscribe("deadly", Consumer().deliver)
        await turns()
        orders.broker.subscribing.cancel(subscription, is_vanished=True)
    assert orders.counts("deadly") == (0, 0, 0, 0)
    assert orders.counts("deadly_dlq") == (1, 0, 0, 0)


@pytest.mark.parametrize("is_vanished", [False, True])
async def test_cancelling_right_when_a_lease_has_run_out_is_fine(orders: Bench, is_vanished: bool) -> None:
    consumer = Consumer()
    subscription = orders.broker.subscribing.subscribe("orders", consumer.deliver, lease_ms=0)
    await orders.publish(b"x")
    await until(lambda: bool(consumer.bodies))
    orders.broker.subscribing.cancel(subscription, is_vanished=is_vanished)
    await turns()
    assert (
        sum(orders.counts()) + sum(orders.counts("orders_dlq") if len(orders.broker.catalog.queue_names()) > 1 else ())
        == 1
    )


async def test_cancelling_twice_is_refused(orders: Bench) -> None:
    subscription = orders.broker.subscribing.subscribe("orders", Consumer().deliver)
    other = orders.broker.subscribing.subscribe("orders", Consumer().deliver)
    orders.broker.subscribing.cancel(subscription)
    with pytest.raises(ConsumerNotFound):
        orders.broker.subscribing.cancel(subscription)
    orders.broker.subscribing.cancel(other)
    with pytest.raises(ConsumerNotFound):
        orders.broker.subscribing.cancel(other)


async def test_what_is_released_goes_to_another_consumer_at_once(orders: Bench) -> None:
    first, second = Consumer(), Consumer()
    subscription = orders.broker.subscribing.subscribe("orders", first.deliver, prefetch=1)
    await orders.publish(b"x")
    await turns()
    orders.broker.subscribing.subscribe("orders", second.deliver)
    orders.broker.subscribing.cancel(subscription)
    await turns()
    assert second.bodies == [b"x"]


async def test_only_the_first_of_a_single_active_consumer_queue_is_served_and_the_next_takes_over(
    orders: Bench,
) -> None:
    await orders.declare("alone", QueueSettings(single_active_consumer=True))
    first, second = Consumer(), Consumer()
    subscription = orders.broker.subscribing.subscribe("alone", first.deliver, prefetch=2)
    orders.broker.subscribing.subscribe("alone", second.deliver, prefetch=10)
    await orders.publish(*numbered(4), queue="alone")
    await turns()
    assert (first.bodies, second.bodies) == (numbered(2), [])
    orders.broker.subscribing.cancel(subscription)
    await turns()
    assert second.bodies == numbered(4)


async def test_a_standby_of_a_single_active_consumer_queue_may_leave(orders: Bench) -> None:
    await orders.declare("alone", QueueSettings(single_active_consumer=True))
    first = Consumer()
    orders.broker.subscribing.subscribe("alone", first.deliver)
    standby = orders.broker.subscribing.subscribe("alone", Consumer().deliver)
    orders.broker.subscribing.cancel(standby)
    await orders.publish(b"x", queue="alone")
    await turns()
    assert first.bodies == [b"x"]


async def test_deleting_the_queue_ends_the_subscription(orders: Bench) -> None:
    consumer = Consumer()
    subscription = orders.broker.subscribing.subscribe("orders", consumer.deliver, ended=consumer.ended)
    await orders.publish(b"x")
    await turns()
    await orders.broker.declaring.delete_queue("orders")
    assert [type(error) for error in consumer.endings] == [QueueDeleted]
    assert subscription.is_cancelled


async def test_a_queue_that_expires_ends_nothing_while_it_is_watched(orders: Bench) -> None:
    await orders.declare("idle")
    consumer = Consumer()
    subscription = orders.broker.subscribing.subscribe("idle", consumer.deliver, ended=consumer.ended)
    await orders.broker.declaring.alter_queue("idle", QueueSettings(expires_ms=60_000))
    await orders.declare("beside", QueueSettings(expires_ms=60_000))
    orders.pass_time(60_000)
    await until(lambda: "beside" not in orders.broker.catalog.queue_names())
    assert "idle" in orders.broker.catalog.queue_names()
    orders.broker.subscribing.cancel(subscription)
    orders.pass_time(60_000)
    await until(lambda: "idle" not in orders.broker.catalog.queue_names())
    assert consumer.endings == []


async def test_closing_the_broker_ends_the_subscription(orders: Bench) -> None:
    consumer = Consumer()
    orders.broker.subscribing.subscribe("orders", consumer.deliver, ended=consumer.ended)
    await orders.broker.close()
    assert [type(error) for error in consumer.endings] == [BrokerClosed]


async def test_nothing_is_pushed_from_a_paused_queue(orders: Bench) -> None:
    consumer = Consumer()
    orders.broker.subscribing.subscribe("orders", consumer.deliver)
    await orders.broker.declaring.pause("orders")
    await orders.publish(b"x")
    await turns()
    assert consumer.bodies == []
    await orders.broker.declaring.resume("orders")
    await turns()
    assert consumer.bodies == [b"x"]


async def test_a_rate_limit_holds_for_subscriptions(orders: Bench) -> None:
    await orders.declare("slow", QueueSettings(rate_limit=20.0))
    consumer = Consumer()
    orders.broker.subscribing.subscribe("slow", consumer.deliver, prefetch=100)
    await orders.publish(*numbered(24), queue="slow")
    await turns()
    assert len(consumer.bodies) == 20
    await until(lambda: len(consumer.bodies) == 24)
    assert consumer.bodies == numbered(24)


async def test_purging_frees_the_credit_of_what_was_held(orders: Bench) -> None:
    consumer = Consumer()
    orders.broker.subscribing.subscribe("orders", consumer.deliver, prefetch=1)
    await orders.publish(b"x")
    await turns()
    assert await orders.broker.declaring.purge("orders") == 1
    await orders.publish(b"y")
    await turns()
    assert consumer.bodies == [b"x", b"y"]


@pytest.mark.parametrize("prefetch", [0, -1, 1001, 1.5, "3"])
async def test_a_prefetch_out_of_range_is_refused(orders: Bench, prefetch: int) -> None:
    with pytest.raises(InvalidArgument):
        orders.broker.subscribing.subscribe("orders", Consumer().deliver, prefetch=prefetch)
    assert orders.broker.statistics.stats("orders").consumers == 0


async def test_a_lease_out_of_range_is_refused_when_subscribing(orders: Bench) -> None:
    with pytest.raises(InvalidArgument):
        orders.broker.subscribing.subscribe("orders", Consumer().deliver, lease_ms=-1)


async def test_subscribing_to_no_queue_is_refused(orders: Bench) -> None:
    with pytest.raises(QueueNotFound):
        orders.broker.subscribing.subscribe("nowhere", Consumer().deliver)


async def test_messages_of_one_group_reach_competing_consumers_one_at_a_time(orders: Bench) -> None:
    await orders.declare("ordered", QueueSettings(ordered=True))
    consumers = [Consumer(), Consumer()]
    for consumer in consumers:
        orders.broker.subscribing.subscribe("ordered", consumer.deliver)
    await orders.publish(*numbered(4), queue="ordered", envelope=Envelope(group="g"))
    seen: list[bytes] = []
    while len(seen) < 4:
        await turns()
        [held] = [delivery for consumer in consumers for delivery in consumer.deliveries if delivery.body not in seen]
        seen.append(held.body)
        await orders.acknowledge(held)
    assert seen == numbered(4)
