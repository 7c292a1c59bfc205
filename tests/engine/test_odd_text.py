"""Text that has no UTF-8 form (a lone surrogate): refused, or made harmless, before anything has changed."""

from __future__ import annotations

import pytest

from smista.core import declaring, publishing, receiving, settling
from smista.core.exchanges import Binding
from smista.core.message import Envelope, Publication
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.errors import BrokerError
from tests.engine.bench import Bench
from tests.engine.world import World

ODD = "odd \ud800"


@pytest.mark.parametrize("field", ["exchange", "routing_key", "group", "deduplication_id"])
async def test_an_envelope_with_odd_text_is_refused(orders: Bench, field: str) -> None:
    envelope = Envelope(**{field: ODD})  # type: ignore[arg-type]  # which field is the test's parameter
    [result] = await orders.broker.publishing.publish("orders", [Publication(b"x", envelope)])
    assert isinstance(result, BrokerError)
    assert orders.counts() == (0, 0, 0, 0)
    await orders.restart()
    assert orders.counts() == (0, 0, 0, 0)


async def test_names_with_odd_text_are_refused(orders: Bench) -> None:
    broker = orders.broker
    for mistake in (
        broker.declaring.declare_queue(ODD),
        broker.declaring.declare_queue("q", namespace=ODD),
        broker.declaring.declare_queue("q", QueueSettings(dead_letter_exchange=ODD)),
        broker.declaring.declare_queue("q", QueueSettings(dead_letter_exchange="e", dead_letter_routing_key=ODD)),
        broker.declaring.bind(Binding.to_queue("amq.topic", "orders", ODD)),
        broker.declaring.bind(Binding.to_queue("amq.headers", "orders", "", {"x-match": "all", ODD: 1})),
        broker.declaring.bind(Binding.to_queue("amq.headers", "orders", "", {"x-match": "all", "a": ODD})),
    ):
        with pytest.raises(BrokerError):
            await mistake
    await orders.restart()
    assert orders.broker.catalog.queue_names() == ["orders"]
    assert orders.broker.catalog.bindings() == []


@pytest.mark.parametrize("mode", [DeadLetterMode.PARK, DeadLetterMode.MOVE])
def test_a_nack_with_odd_text_survives_relocation(mode: DeadLetterMode) -> None:
    world = World()
    queue = declaring.declare_queue(world.state, "q", QueueSettings(dead_letter=mode), now_ms=world.now_ms)
    for requeue in (True, False):
        publishing.publish(world.state, queue, [Publication(b"x")], now_ms=world.now_ms)
        [message] = receiving.receive(world.state, queue, 1, consumer=ODD, now_ms=world.now_ms)
        receipt = settling.receipt_for(queue, message.sequence)
        settling.nack(world.state, receipt, requeue=requeue, error=ODD, now_ms=world.now_ms)
    world.seal()
    while world.front < 3:
        assert world.reclaim()
    world.check()
