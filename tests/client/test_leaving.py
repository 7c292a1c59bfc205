"""Leaving a queue in order, and settling what cannot be settled as asked: nothing is lost, or counts as a failure."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from smista import AsyncClient
from smista.client import ClientClosed, Delivery
from smista.errors import BrokerError, InvalidArgument, QueueDeleted
from tests.client.relay import Relay
from tests.waiting import answers, until


async def given_back(client: AsyncClient, queue: str, count: int) -> None:
    """Wait until all is in the queue again; nothing may count as a failure."""
    stats = await answers(lambda: client.stats(queue), lambda stats: not stats.in_flight)
    assert (stats.ready, stats.consumers, stats.nacked_total, stats.dead_lettered_total) == (count, 0, 0, 0)


@pytest.fixture
async def fragile(client: AsyncClient, queue: str) -> str:
    """A queue with messages in which one failure makes a dead letter."""
    await client.declare_queue(queue, max_retries=0)
    await client.put_many(queue, range(50))
    return queue


async def test_closed_before_the_broker_has_answered_it_gives_its_messages_back(
    client: AsyncClient, fragile: str
) -> None:
    async with client.subscribe(fragile, prefetch=50):
        pass
    await given_back(client, fragile, 50)
    subscription = client.subscribe(fragile, prefetch=50)
    assert await subscription.next(timeout_ms=0) is None
    await subscription.close()
    await given_back(client, fragile, 50)


async def test_a_client_closed_before_the_broker_has_answered_gives_its_messages_back(
    broker_url: str, client: AsyncClient, fragile: str
) -> None:
    for _ in range(5):
        async with AsyncClient(broker_url) as other:
            other.subscribe(fragile, prefetch=50).start()
    await given_back(client, fragile, 50)


async def test_what_is_pushed_while_it_leaves_is_given_back(relay: Relay, client: AsyncClient, fragile: str) -> None:
    """Two leave at the same time: the second does not go before the broker has answered the first."""
    async with AsyncClient(relay.address) as other:
        subscription = other.subscribe(fragile, prefetch=10)
        first = await anext(subscription)
        relay.hold_answers()
        first.ack_soon()  # which makes the broker push one more
        await relay.has_held.wait()
        leaving = asyncio.create_task(subscription.stop())
        closing = asyncio.create_task(subscription.close())
        await asyncio.sleep(0)
        with pytest.raises(ClientClosed):
            await anext(subscription)
        relay.let_pass()
        await asyncio.gather(leaving, closing)
    await given_back(client, fragile, 49)


async def test_a_client_with_thousands_of_subscriptions_gives_everything_back(
    broker_url: str, client: AsyncClient, queue: str
) -> None:
    count = 2_000
    await client.declare_queue(queue, max_retries=0)
    await client.put_many(queue, range(count))
    async with AsyncClient(broker_url) as other:
        subscriptions = [other.subscribe(queue, prefetch=1) for _ in range(count)]
        for subscription in subscriptions:
            subscription.start()
        await until(lambda: all(each.waiting() for each in subscriptions))
        asked = len(other._session._pending)
        closing = asyncio.create_task(other.close())
        await until(lambda: len(other._session._pending) - asked == count)
        await closing
    await given_back(client, queue, count)


async def test_subscriptions_that_are_over_are_forgotten(client: AsyncClient, orders: str) -> None:
    for _ in range(20):
        async with client.subscribe(orders) as subscription:
            await subscription.next(timeout_ms=1)
    ended = client.subscribe(orders)
    await ended.next(timeout_ms=1)
    await until(lambda: ended._number is not None)
    await client.delete_queue(orders)
    with pytest.raises(QueueDeleted):
        await anext(ended)
    assert (client._session._by_number, client._session._early, client._session._feeds) == ({}, {}, {})


async def test_a_prefetch_set_before_the_broker_has_answered_counts(client: AsyncClient, fragile: str) -> None:
    async with client.subscribe(fragile, prefetch=1) as subscription:
        await subscription.set_prefetch(7)
        await until(lambda: len(subscription.waiting()) == 7)
        with pytest.raises(BrokerError):
            await subscription.set_prefetch(65_000)
        assert subscription._wanted.prefetch == 7


async def test_two_extensions_of_one_delivery_in_one_turn_are_one(client: AsyncClient, fragile: str) -> None:
    async with client.subscribe(fragile, prefetch=2, lease_ms=60_000) as subscription:
        one, other = await anext(subscription), await anext(subscription)
        await asyncio.gather(one.extend(90_000), one.extend(90_000), other.extend(90_000), one.extend(80_000))
        assert (await client.get(fragile, one.id)).lease_until_ms is not None
        await asyncio.gather(one.release(), other.release())


@pytest.mark.parametrize("delay_ms", [-1, 1.5, 1 << 60, True, "1"])
async def test_a_nack_that_cannot_be_sent_settles_nothing(client: AsyncClient, fragile: str, delay_ms: Any) -> None:
    async with client.subscribe(fragile, prefetch=1) as subscription:
        delivery = await anext(subscription)
        with pytest.raises(InvalidArgument):
            await delivery.nack("no", delay_ms=delay_ms)
        with pytest.raises(InvalidArgument):
            delivery.nack_soon("no", delay_ms=delay_ms)
        assert not delivery.is_settled
        assert await delivery.nack("no", delay_ms=0) == "dead_lettered"


async def test_an_error_whose_text_is_not_utf_8_is_escaped(client: AsyncClient, fragile: str) -> None:
    async with client.subscribe(fragile, prefetch=1) as subscription:
        with pytest.raises(ValueError, match="cannot read"):
            async with await anext(subscription):
                raise ValueError("cannot read caf\udce9.txt")
        await anext(subscription)
    [dead] = [message async for message in client.dead_letters(fragile) if message.json() == 0]
    assert dead.deaths[0].failures[0].error == "ValueError: cannot read caf\\udce9.txt"


async def test_more_received_messages_than_a_request_takes_can_be_acked_in_one_turn(
    client: AsyncClient, queue: str
) -> None:
    await client.declare_queue(queue, max_prefetch=20_000)
    await client.put_many(queue, (b"%d" % number for number in range(12_000)))
    deliveries: list[Delivery] = []
    while len(deliveries) < 12_000:
        deliveries += await client.receive(queue, 6_000)
    await asyncio.gather(*(delivery.ack() for delivery in deliveries))
    assert (await client.stats(queue)).acknowledged_total == 12_000


async def test_closing_waits_for_what_a_forgotten_subscription_has_settled(
    relay: Relay, client: AsyncClient, fragile: str
) -> None:
    other = AsyncClient(relay.address)
    subscription = other.subscribe(fragile, prefetch=1)
    delivery = await anext(subscription)
    await subscription.stop()
    relay.hold_answers()
    delivery.ack_soon()
    del subscription, delivery
    gc.collect()
    closing = asyncio.create_task(other.close())
    await relay.has_held.wait()
    assert not closing.done()
    relay.let_pass()
    await closing
    assert (await client.stats(fragile)).acknowledged_total == 1
