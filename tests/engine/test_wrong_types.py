"""A value of the wrong type is refused in the name of its argument, and nothing has happened then."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from smista.engine import Broker, Publication, QueueSettings
from smista.errors import BrokerError, InvalidArgument, MessageNotFound
from tests.engine.bench import Bench

ONE = [Publication(b"x")]
Call = Callable[[Broker, Any], Any]
CALLS: dict[str, tuple[Call, str]] = {
    "publish to a queue": (lambda broker, wrong: broker.publishing.publish(wrong, ONE), "queue"),
    "publish at once": (lambda broker, wrong: broker.publishing.submit(wrong, ONE), "queue"),
    "publish in a namespace": (
        lambda broker, wrong: broker.publishing.publish("orders", ONE, namespace=wrong),
        "namespace",
    ),
    "publish": (lambda broker, wrong: broker.publishing.publish("orders", wrong), "publications"),
    "publish one": (lambda broker, wrong: broker.publishing.publish("orders", [wrong]), "Publication"),
    "publish one of several": (lambda broker, wrong: broker.publishing.publish("orders", [*ONE, wrong]), "Publication"),
    "publish to a queue with limits": (
        lambda broker, wrong: broker.publishing.publish("limited", [*ONE, wrong]),
        "Publication",
    ),
    "publish as a batch": (lambda broker, wrong: broker.publishing.publish("orders", ONE, batch_id=wrong), "batch_id"),
    "publish through": (lambda broker, wrong: broker.publishing.publish_to_exchange(wrong, ONE[0]), "exchange"),
    "publish one through": (
        lambda broker, wrong: broker.publishing.publish_to_exchange("amq.fanout", wrong),
        "Publication",
    ),
    "receive": (lambda broker, wrong: broker.receiving.receive(wrong), "queue"),
    "receive so many": (lambda broker, wrong: broker.receiving.receive("orders", wrong), "limit"),
    "receive and wait": (lambda broker, wrong: broker.receiving.receive("orders", wait_ms=wrong), "wait_ms"),
    "receive for": (lambda broker, wrong: broker.receiving.receive("orders", lease_ms=wrong), "lease_ms"),
    "receive as": (lambda broker, wrong: broker.receiving.receive("orders", consumer=wrong), "consumer"),
    "subscribe": (lambda broker, wrong: broker.subscribing.subscribe(wrong, lambda _: None), "queue"),
    "acknowledge": (lambda broker, wrong: broker.settling.acknowledge([wrong]), "receipt"),
    "nack": (lambda broker, wrong: broker.settling.nack([wrong]), "receipt"),
    "release": (lambda broker, wrong: broker.settling.release([wrong]), "receipt"),
    "extend": (lambda broker, wrong: broker.settling.extend([wrong], 1), "receipt"),
    "get": (lambda broker, wrong: broker.browsing.get("orders", wrong), "id of a message"),
    "browse": (lambda broker, wrong: broker.browsing.browse(wrong), "queue"),
    "browse so many": (lambda broker, wrong: broker.browsing.browse("orders", limit=wrong), "limit"),
    "browse after": (lambda broker, wrong: broker.browsing.browse("orders", after=wrong), "after"),
    "peek": (lambda broker, wrong: broker.browsing.peek("orders", wrong), "limit"),
    "redrive": (lambda broker, wrong: broker.redriving.redrive(wrong), "queue"),
    "redrive so many": (lambda broker, wrong: broker.redriving.redrive("orders", limit=wrong), "limit"),
    "declare": (lambda broker, wrong: broker.declaring.declare_queue(wrong), "queue"),
    "declare with": (lambda broker, wrong: broker.declaring.declare_queue("new", wrong), "QueueSettings"),
    "declare in": (lambda broker, wrong: broker.declaring.declare_queue("new", namespace=wrong), "namespace"),
    "purge": (lambda broker, wrong: broker.declaring.purge(wrong), "queue"),
    "stats": (lambda broker, wrong: broker.statistics.stats(wrong), "queue"),
    "settings": (lambda broker, wrong: broker.catalog.queue_settings(wrong), "queue"),
}


async def refusal(call: Call, broker: Broker, wrong: object) -> BrokerError | None:
    """Raised, or what became of one of several."""
    try:
        result = call(broker, wrong)
        if inspect.isawaitable(result):
            result = await result
    except BrokerError as error:
        return error
    return next((one for one in result if isinstance(one, BrokerError)), None)


@pytest.mark.parametrize("wrong", [b"x", 1.5, ["x"], object()], ids=["bytes", "float", "list", "object"])
@pytest.mark.parametrize(("call", "named"), CALLS.values(), ids=list(CALLS))
async def test_it_is_refused_by_its_name(orders: Bench, call: Call, named: str, wrong: object) -> None:
    await orders.declare("limited", QueueSettings(max_depth=5))
    refused = await refusal(call, orders.broker, wrong)
    assert isinstance(refused, InvalidArgument | MessageNotFound)
    assert named in str(refused)
    assert orders.broker.failure is None
    # Those beside it in a batch have entered, as beside any other that is refused.
    assert sum(orders.counts()) + sum(orders.counts("limited")) <= 1


@pytest.mark.parametrize("queue", ["orders", "limited"])
async def test_a_body_of_text_is_refused_alone(orders: Bench, queue: str) -> None:
    await orders.declare("limited", QueueSettings(max_depth=5))
    text: Any = "text"
    first, second = await orders.broker.publishing.publish(queue, [Publication(text), *ONE])
    assert isinstance(first, InvalidArgument)
    assert "A body is bytes, not str" in str(first)
    assert not isinstance(second, BrokerError)


async def test_receipts_beside_what_is_none_stay_good(orders: Bench) -> None:
    await orders.publish(b"x")
    delivery = await orders.receive_one()
    wrong: Any = "receipt"
    with pytest.raises(InvalidArgument):
        await orders.broker.settling.acknowledge([delivery.receipt, wrong])
    await orders.acknowledge(delivery)
    assert sum(orders.counts()) == 0
