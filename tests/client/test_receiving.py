import asyncio

import pytest

from smista import AsyncClient
from smista.errors import InvalidReceipt, LeaseExpired, MessageNotFound, StaleReceipt


async def test_a_message_is_received_once_and_acked(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, {"n": 1})
    [delivery] = await client.receive(orders, 10)
    assert (delivery.json(), delivery.queue, delivery.delivery_count) == ({"n": 1}, orders, 1)
    assert not delivery.is_redelivered
    assert await client.receive(orders) == []
    await delivery.ack()
    assert delivery.is_settled
    assert (await client.stats(orders)).depth == 0


async def test_an_empty_queue_is_waited_on(client: AsyncClient, orders: str) -> None:
    waiting = asyncio.create_task(client.receive(orders, wait_ms=20_000))
    await client.publish(orders, b"x")
    [delivery] = await waiting
    assert delivery.body == b"x"


async def test_a_delivery_is_settled_once(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, b"x")
    [delivery] = await client.receive(orders)
    await delivery.ack()
    with pytest.raises(StaleReceipt, match="settled already"):
        await delivery.ack()
    with pytest.raises(StaleReceipt, match="settled already"):
        delivery.nack_soon()


async def test_a_nack_carries_its_error_and_comes_again(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, retry_backoff="none")
    await client.publish(queue, b"x")
    [first] = await client.receive(queue)
    assert await first.nack("the oven is cold") == "requeued"
    [second] = await client.receive(queue, wait_ms=20_000)
    assert (second.id, second.delivery_count, second.retry_count) == (first.id, 2, 1)
    assert [failure.error for failure in second.failures] == ["the oven is cold"]


async def test_a_nack_without_requeue_is_a_dead_letter(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, b"x")
    [delivery] = await client.receive(orders)
    assert await delivery.nack("burnt", requeue=False) == "dead_lettered"
    [dead] = [message async for message in client.dead_letters(orders)]
    assert (dead.id, dead.deaths[0].reason, dead.deaths[0].failures[0].error) == (delivery.id, "rejected", "burnt")


async def test_a_released_message_comes_again_uncounted(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, b"x")
    [first] = await client.receive(orders)
    await first.release()
    [second] = await client.receive(orders)
    assert (second.id, second.failures) == (first.id, [])


async def test_an_extended_lease_lasts_longer(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, b"x")
    [delivery] = await client.receive(orders, lease_ms=60_000)
    assert delivery.lease_until_ms == delivery.delivered_at_ms + 60_000
    await delivery.extend(600_000)
    [message] = [message async for message in client.browse(orders)]
    assert message.lease_until_ms is not None
    assert message.lease_until_ms > delivery.lease_until_ms
    assert not delivery.is_settled


async def test_settling_after_the_lease_ran_out_says_so(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, retry_backoff="none")
    await client.publish(queue, b"x")
    [first] = await client.receive(queue, lease_ms=1)
    [second] = await client.receive(queue, wait_ms=20_000)
    with pytest.raises(StaleReceipt):
        await first.ack()
    await second.ack()
    assert issubclass(LeaseExpired, StaleReceipt)


async def test_a_delivery_as_a_context_acks_on_success(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, [b"1", b"2"])
    for delivery in await client.receive(orders, 2):
        async with delivery as same:
            assert same is delivery
    await client.info()  # the acks went out before it
    assert (await client.stats(orders)).acknowledged_total == 2


async def test_a_delivery_as_a_context_nacks_with_the_error_and_lets_it_through(
    client: AsyncClient, orders: str
) -> None:
    await client.publish(orders, b"x")
    [delivery] = await client.receive(orders)
    with pytest.raises(LookupError):
        async with delivery:
            raise LookupError("no such pizza")
    await client.info()
    [message] = [message async for message in client.browse(orders)]
    assert message.failures[0].error == "LookupError: no such pizza"


async def test_a_program_that_is_stopped_releases_what_it_was_doing(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, b"x")
    [delivery] = await client.receive(orders)
    with pytest.raises(KeyboardInterrupt):
        async with delivery:
            raise KeyboardInterrupt
    await client.info()
    stats = await client.stats(orders)
    assert (stats.ready, stats.released_total, stats.nacked_total) == (1, 1, 0)


async def test_what_was_settled_inside_the_context_is_left_alone(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, b"x")
    [delivery] = await client.receive(orders)
    async with delivery:
        await delivery.release()
    assert (await client.stats(orders)).ready == 1


async def test_many_acks_of_one_turn_are_one_request(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, [b"x"] * 50)
    deliveries = await client.receive(orders, 50)
    before = next(client._session._request_ids)
    await asyncio.gather(*(delivery.ack() for delivery in deliveries))
    assert next(client._session._request_ids) == before + 2
    assert (await client.stats(orders)).acknowledged_total == 50


async def test_receipts_travel_as_text(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, [b"x"] * 4)
    receipts = [delivery.receipt for delivery in await client.receive(orders, 4)]
    assert all(receipts)
    first, second, third, fourth = (receipt or "" for receipt in receipts)
    await client.ack(first)
    assert await client.nack(second) == "requeued"
    assert await client.nack(third, requeue=False, error="no") == "dead_lettered"
    await client.extend(fourth, 60_000)
    await client.release(fourth)
    with pytest.raises(StaleReceipt):
        await client.ack(first)
    with pytest.raises(InvalidReceipt):
        await client.ack("what is this")


async def test_the_calls_of_seed_004_settle_by_message_id(client: AsyncClient, queue: str) -> None:
    await client.create_queue(queue)
    for _ in range(3):
        await client.send_message(queue, b'{"order_id": 123, "amount": 99.99}', priority=5)
    messages = await client.receive_message(queue, max_messages=10, wait_time_seconds=20)
    await client.acknowledge_message(queue, messages[0].id)
    assert await client.nack_message(queue, messages[1].id, requeue=True) == "requeued"
    await client.extend_message(queue, messages[2].id, 60_000)
    await client.release_message(queue, messages[2].id)
    with pytest.raises(MessageNotFound):
        await client.acknowledge_message(queue, messages[0].id)


async def test_a_body_is_read_as_what_it_says_it_is(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, body=b"caf\xc3\xa9", content_type="text/plain; charset=utf-8")
    await client.publish(orders, body=b"[1]", content_type="application/cloudevents+json")
    await client.publish(orders, body=b"\x89PNG", content_type="image/png")
    found = await client.receive(orders, 3)
    assert [delivery.value() for delivery in found] == ["café", [1], b"\x89PNG"]
    assert found[1].json(list[int]) == [1]
    assert found[0].text() == "café"
