import asyncio
import logging

import pytest

from smista import AsyncClient
from smista.client import ClientClosed, ConnectionFailed, Delivery
from smista.errors import InvalidArgument, QueueDeleted, QueueNotFound, StaleReceipt
from tests.waiting import with_more_time


async def test_messages_are_pushed_as_they_come(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, 1)
    async with client.subscribe(orders) as subscription:
        assert (await anext(subscription)).json() == 1
        waiting = asyncio.create_task(anext(subscription))
        await client.publish(orders, 2)
        delivery = await waiting
        assert (delivery.json(), delivery.queue, delivery.receipt) == (2, orders, None)
        assert delivery.lease_until_ms is None


async def test_iterating_acks_and_goes_on(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, range(500))
    seen = []
    async with client.subscribe(orders, prefetch=50) as subscription:
        async for delivery in subscription:
            async with delivery:
                seen.append(delivery.json())
            if len(seen) == 500:
                break
        await subscription.settled()
        assert (await client.stats(orders)).depth == 0
    assert seen == list(range(500))


async def test_no_more_than_the_prefetch_is_unsettled(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, range(10))
    async with client.subscribe(orders, prefetch=3) as subscription:
        taken = await subscription.next_batch()
        assert [delivery.json() for delivery in taken] == [0, 1, 2]
        assert await subscription.next_batch(timeout_ms=20) == []
        assert (await client.stats(orders)).in_flight == 3
        await taken[0].ack()
        assert [delivery.json() for delivery in await subscription.next_batch()] == [3]
        await subscription.set_prefetch(5)
        assert [delivery.json() for delivery in await subscription.next_batch()] == [4, 5]


async def test_a_batch_may_be_limited(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, range(5))
    async with client.subscribe(orders) as subscription:
        assert len(await subscription.next_batch(2)) == 2
        assert len(await subscription.next_batch(2)) == 2
        assert len(await subscription.next_batch(2)) == 1
        assert await subscription.next(timeout_ms=1) is None


async def test_acking_up_to_one_acks_all_before_it(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, range(5))
    async with client.subscribe(orders) as subscription:
        batch = await subscription.next_batch()
        subscription.ack_up_to(batch[3])
        await subscription.settled()
        stats = await client.stats(orders)
        assert (stats.acknowledged_total, stats.in_flight) == (4, 1)


async def test_nacks_sent_together_each_tell_what_they_led_to(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, max_retries=1, retry_backoff="none")
    await client.publish(queue, "old")
    async with client.subscribe(queue) as subscription:
        assert await (await anext(subscription)).nack() == "requeued"
        await client.publish(queue, "new")
        again, new = await anext(subscription), await anext(subscription)
        assert list(await asyncio.gather(again.nack(), new.nack())) == ["dead_lettered", "requeued"]


async def test_several_tasks_share_a_subscription(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, range(100))
    seen: list[int] = []

    async with client.subscribe(orders, prefetch=10) as subscription:

        async def work() -> None:
            while (delivery := await subscription.next(timeout_ms=300)) is not None:
                seen.append(delivery.json())
                await asyncio.sleep(0)
                delivery.ack_soon()

        await asyncio.gather(*(work() for _ in range(4)))
    assert sorted(seen) == list(range(100))


async def test_a_task_that_stops_waiting_leaves_its_message_to_another(client: AsyncClient, orders: str) -> None:
    async with client.subscribe(orders) as subscription:
        first, second = (asyncio.create_task(subscription.next()) for _ in range(2))
        await client.info()
        first.cancel()
        await client.publish(orders, "x")
        delivery = await second
        assert delivery is not None
        assert delivery.json() == "x"
        assert first.cancelled()


async def test_what_was_not_handed_out_goes_back_uncounted(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, range(5))
    async with client.subscribe(orders) as subscription:
        delivery = await anext(subscription)
        await delivery.ack()
    await client.info()
    stats = await client.stats(orders)
    assert (stats.ready, stats.in_flight, stats.released_total, stats.nacked_total) == (4, 0, 4, 0)
    assert stats.consumers == 0


async def test_what_was_handed_out_can_be_settled_after_closing(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, "x")
    async with client.subscribe(orders) as subscription:
        delivery = await anext(subscription)
    await delivery.ack()
    assert (await client.stats(orders)).acknowledged_total == 1


async def test_a_closed_subscription_says_so(client: AsyncClient, orders: str) -> None:
    subscription = client.subscribe(orders)
    waiting = asyncio.create_task(anext(subscription))
    await client.info()
    await subscription.close()
    with pytest.raises(ClientClosed, match=orders):
        await waiting
    assert subscription.is_over


async def test_a_queue_that_is_not_there_is_an_error(client: AsyncClient, queue: str) -> None:
    with pytest.raises(QueueNotFound, match=queue):
        await anext(client.subscribe(queue))


async def test_a_prefetch_that_the_queue_does_not_allow_is_an_error(client: AsyncClient, orders: str) -> None:
    with pytest.raises(InvalidArgument, match="prefetch"):
        await anext(client.subscribe(orders, prefetch=5_000))


async def test_a_queue_that_is_deleted_ends_the_iteration(client: AsyncClient, orders: str) -> None:
    subscription = client.subscribe(orders)
    waiting = asyncio.create_task(anext(subscription))
    await client.info()
    await client.delete_queue(orders)
    with pytest.raises(QueueDeleted):
        await waiting
    with pytest.raises(QueueDeleted):
        await anext(subscription)


async def test_a_lease_on_pushed_messages_runs_out(
    client: AsyncClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.declare_queue(queue, retry_backoff="none", max_retries=None)
    for attempt in with_more_time(50, 3_000, 30_000, errors=(AssertionError, StaleReceipt)):
        with attempt as lease_ms:
            await client.purge(queue)
            caplog.clear()
            await client.publish(queue, "x")
            async with client.subscribe(queue, prefetch=2, lease_ms=int(lease_ms)) as subscription:
                first = await anext(subscription)
                assert first.lease_until_ms is not None
                second = await anext(subscription)
                assert (second.id, second.delivery_count) == (first.id, 2)
                first.ack_soon()
                with pytest.raises(StaleReceipt):
                    await subscription.settled()
                await subscription.settled()  # raised once
                await second.extend(60_000)
                await second.ack()
            assert [record.levelno for record in caplog.records if "could not be settled" in record.message] == [
                logging.WARNING
            ]


async def test_an_ack_that_is_waited_for_raises_and_does_not_log(
    client: AsyncClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.declare_queue(queue, retry_backoff="none", max_retries=None)
    for attempt in with_more_time(50, 3_000, 30_000, errors=(AssertionError, StaleReceipt)):
        with attempt as lease_ms:
            await client.purge(queue)
            caplog.clear()
            await client.publish(queue, "x")
            async with client.subscribe(queue, prefetch=2, lease_ms=int(lease_ms)) as subscription:
                first, second = [await anext(subscription) for _ in range(2)]
                with pytest.raises(StaleReceipt):
                    await first.ack()
                await second.ack()
                await subscription.settled()
            assert not caplog.records


async def test_a_higher_priority_is_served_first(client: AsyncClient, orders: str) -> None:
    async with client.subscribe(orders) as low, client.subscribe(orders, priority=5) as high:
        await client.info()
        await client.publish(orders, "x")
        assert (await anext(high)).json() == "x"
        assert await low.next(timeout_ms=20) is None


async def test_nobody_there_fails_at_once(unused_address: str) -> None:
    client = AsyncClient(unused_address)
    with pytest.raises(ConnectionFailed, match="smista serve"):
        await anext(client.subscribe("orders"))
    await client.close()


async def test_a_delivery_says_what_it_is(client: AsyncClient, orders: str) -> None:
    published = await client.publish(orders, "x")
    async with client.subscribe(orders) as subscription:
        delivery = await anext(subscription)
        assert isinstance(delivery, Delivery)
        assert repr(delivery) == f"<Delivery {published.id} of queue {orders!r}, delivery 1>"
        assert {delivery: 1}[delivery] == 1
