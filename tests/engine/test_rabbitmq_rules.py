"""What the engine adds to the rules of queues that were declared as RabbitMQ knows them."""

from __future__ import annotations

from smista.core.message import Envelope
from smista.core.settings import DeadLetterMode, Overflow, QueueSettings
from tests.engine.bench import SHORT_MS, Bench, Consumer, turns

PASSING_ON = QueueSettings(limit_ready_only=True, max_depth=0, overflow=Overflow.DROP_OLDEST)


async def test_the_way_a_dead_letter_went_outlives_a_restart(orders: Bench) -> None:
    to_dead = QueueSettings(
        dead_letter=DeadLetterMode.MOVE_OR_DROP, dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    await orders.declare("source", to_dead)
    await orders.declare("dead")
    await orders.publish(b"x", queue="source", envelope=Envelope(b"properties", "fan", "key", ttl_ms=60_000))
    delivery = await orders.receive_one("source")
    await orders.broker.settling.nack([delivery.receipt], requeue=False)
    await orders.restart()
    letter = await orders.receive_one("dead")
    assert letter.envelope == Envelope(b"properties", "", "dead")
    [death] = letter.deaths
    assert (death.queue, death.exchange, death.routing_key, death.is_first) == ("source", "fan", "key", True)


async def test_a_consumer_that_waits_gets_what_may_not_stay(orders: Bench) -> None:
    await orders.declare("passing", PASSING_ON)
    consumer = Consumer()
    orders.broker.subscribing.subscribe("passing", consumer.deliver)
    await turns()
    await orders.publish(b"1", b"2", b"3", queue="passing")
    await orders.publish(b"4", queue="passing", envelope=Envelope(ttl_ms=0))
    assert [delivery.body for batch in consumer.batches for delivery in batch] == [b"1", b"2", b"3", b"4"]


async def test_what_may_not_stay_is_gone_at_once(orders: Bench) -> None:
    await orders.declare("passing", PASSING_ON)
    await orders.publish(b"1", queue="passing")
    assert orders.counts("passing") == (0, 0, 0, 0)
    await orders.publish(b"2", envelope=Envelope(ttl_ms=0))
    assert await orders.broker.receiving.receive("orders") == []


async def test_the_next_active_consumer_is_the_one_of_highest_priority(orders: Bench) -> None:
    await orders.declare("single", QueueSettings(single_active_consumer=True))
    consumers = [Consumer() for _ in range(3)]
    subscriptions = [
        orders.broker.subscribing.subscribe("single", consumer.deliver, priority=priority)
        for consumer, priority in zip(consumers, (0, 5, 9), strict=True)
    ]
    orders.broker.subscribing.cancel(subscriptions[0])
    await orders.publish(b"x", queue="single")
    await turns()
    assert [len(consumer.batches) for consumer in consumers] == [0, 0, 1]


async def test_a_queue_that_is_looked_at_lives_on(orders: Bench) -> None:
    await orders.declare("idle", QueueSettings(expires_ms=60_000))
    used_at_ms = orders.broker._state.queue("idle").used_at_ms
    while orders.broker.now_ms() == used_at_ms:
        await turns()
    orders.broker.declaring.use_queue("idle")
    assert orders.broker._state.queue("idle").used_at_ms > used_at_ms


async def test_a_get_beside_the_single_active_consumer_takes_what_that_one_has_no_credit_for(orders: Bench) -> None:
    await orders.declare("single", QueueSettings(single_active_consumer=True))
    consumer = Consumer()
    orders.broker.subscribing.subscribe("single", consumer.deliver, prefetch=1)
    await orders.publish(b"1", b"2", queue="single")
    await turns()
    [delivery] = await orders.broker.receiving.receive("single", lease_ms=SHORT_MS, beside_active=True)
    assert delivery.body == b"2"
