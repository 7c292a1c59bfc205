"""A queue's number is its own, whatever becomes of its name: for those who hold on to a queue across turns."""

from __future__ import annotations

import pytest

from smista.core.settings import QueueSettings
from smista.errors import QueueDiffers, QueueNotFound
from tests.engine.bench import Bench, Consumer


async def test_a_queue_is_declared_at_once_and_keeps_its_number(orders: Bench) -> None:
    number = orders.broker.declaring.submit_queue("inbox").result()
    assert orders.broker.catalog.queue_number("inbox") == number
    assert orders.broker.declaring.submit_queue("inbox").result() == number
    with pytest.raises(QueueDiffers):
        orders.broker.declaring.submit_queue("inbox", QueueSettings(ordered=True)).result()
    await orders.publish(b"kept", queue="inbox")
    await orders.restart()
    assert orders.broker.catalog.queue_number("inbox") == number


async def test_another_queue_of_the_name_has_another_number(orders: Bench) -> None:
    first = orders.broker.declaring.submit_queue("inbox").result()
    await orders.broker.declaring.delete_queue("inbox")
    with pytest.raises(QueueNotFound):
        orders.broker.catalog.queue_number("inbox")
    second = orders.broker.declaring.submit_queue("inbox").result()
    await orders.publish(b"confirmed", queue="inbox")
    assert second != first
    assert not orders.broker.declaring.delete_queue_now(first)
    assert orders.counts("inbox") == (1, 0, 0, 0)


async def test_a_queue_is_deleted_at_once_by_its_number(orders: Bench) -> None:
    consumer = Consumer()
    number = orders.broker.declaring.submit_queue("inbox").result()
    orders.broker.subscribing.subscribe("inbox", consumer.deliver, ended=consumer.ended)
    assert orders.broker.declaring.delete_queue_now(number)
    assert [ending.code for ending in consumer.endings] == ["queue_deleted"]
    assert "inbox" not in orders.broker.catalog.queue_names()
    await orders.restart()
    assert "inbox" not in orders.broker.catalog.queue_names()


async def test_a_queue_that_is_subscribed_to_can_be_spared(orders: Bench) -> None:
    number = orders.broker.catalog.queue_number("orders")
    subscription = orders.broker.subscribing.subscribe("orders", Consumer().deliver)
    assert not orders.broker.declaring.delete_queue_now(number, if_no_subscriptions=True)
    orders.broker.subscribing.cancel(subscription)
    assert orders.broker.declaring.delete_queue_now(number, if_no_subscriptions=True)
