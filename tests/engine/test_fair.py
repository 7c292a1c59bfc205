"""Fair queues behind the broker: over restarts, and between consumers that wait."""

from __future__ import annotations

from smista.core.message import Envelope
from smista.core.settings import QueueSettings
from tests.engine.bench import Bench, Consumer, until

A, B = Envelope(group="a"), Envelope(group="b")
FLOOD = [b"a%d" % number for number in range(10)]


async def test_what_a_group_has_in_flight_still_counts_after_a_restart(orders: Bench) -> None:
    await orders.declare("fair", QueueSettings(fair=True))
    await orders.publish(*FLOOD, queue="fair", envelope=A)
    await orders.publish(b"b0", b"b1", queue="fair", envelope=B)
    held = await orders.broker.receiving.receive("fair", 3)
    assert [delivery.envelope.group for delivery in held] == ["a", "b", "a"]
    await orders.restart()
    assert orders.broker.catalog.queue_settings("fair").fair
    assert await orders.bodies(1, "fair") == [b"b1"]
    await orders.acknowledge(*held)
    await orders.restart()
    await orders.publish(b"b2", queue="fair", envelope=B)
    [delivery] = await orders.broker.receiving.receive("fair")
    assert delivery.body == b"a2", "b1 is still held, nothing of a is"


async def test_a_consumer_that_waits_is_served_fairly(orders: Bench) -> None:
    await orders.declare("fair", QueueSettings(fair=True))
    consumer = Consumer()
    orders.broker.subscribing.subscribe("fair", consumer.deliver, prefetch=2)
    await orders.publish(*FLOOD, queue="fair", envelope=A)
    await orders.publish(b"b0", queue="fair", envelope=B)
    await until(lambda: consumer.bodies == [b"a0", b"a1"])
    await orders.acknowledge(consumer.deliveries[0])
    await until(lambda: len(consumer.bodies) == 3)
    assert consumer.bodies[-1] == b"b0"
