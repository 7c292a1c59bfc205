"""What a break means for what was under way. Breaks are made by a wire that can be held and cut; in `test_kills.py` the
broker itself dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from smista import AsyncClient, Client
from smista.client import ClientClosed, ConnectionFailed, ConnectionLost, Published
from smista.client.backoff import Backoff
from smista.errors import StaleReceipt
from tests.client.relay import Relay
from tests.waiting import answers, eventually, until


@pytest.fixture
async def wired(relay: Relay) -> AsyncIterator[AsyncClient]:
    """A client at the far end of the wire."""
    async with AsyncClient(relay.address) as client:
        yield client


async def test_a_client_connects_again_by_itself(wired: AsyncClient, relay: Relay) -> None:
    await wired.info()
    relay.cut()
    await wired.info()
    assert relay.connection_count == 2


async def test_a_publish_without_answer_is_sent_again_and_stored_once(
    wired: AsyncClient, client: AsyncClient, relay: Relay, orders: str
) -> None:
    relay.hold_answers()
    publishing = asyncio.gather(wired.publish(orders, 1), wired.publish(orders, 2, priority=3))
    await relay.has_held.wait()  # it is stored, and we do not know
    relay.cut()
    first, second = await publishing
    assert not first.is_duplicate
    assert not second.is_duplicate
    assert {message.id async for message in client.browse(orders)} == {first.id, second.id}
    assert (await client.stats(orders)).duplicates_total == 2


async def test_a_batch_without_answer_is_sent_again_and_stored_once(
    wired: AsyncClient, client: AsyncClient, relay: Relay, orders: str
) -> None:
    relay.hold_answers()
    putting = asyncio.create_task(wired.put_many(orders, range(5_000), batch_count=100))
    await relay.has_held.wait()
    relay.cut()
    summary = await putting
    assert (summary.accepted, summary.duplicates, summary.refused) == (5_000, 0, 0)
    assert [message.json() async for message in client.browse(orders, page_size=5_000)] == list(range(5_000))


async def test_what_goes_through_an_exchange_without_answer_is_stored_once_and_has_no_id_made_up_for_it(
    wired: AsyncClient, client: AsyncClient, relay: Relay, orders: str
) -> None:
    exchange = f"events-{orders}"
    await client.declare_exchange(exchange, "fanout")
    await client.bind(exchange, orders)
    await wired.connect()
    relay.hold_answers()
    publishing = asyncio.create_task(wired.publish_to_exchange(exchange, "", 1))
    await relay.has_held.wait()
    relay.cut()
    [routed] = await publishing
    assert [(one.id, one.deduplication_id) async for one in client.browse(orders)] == [(routed.id, None)]


async def test_a_duplicate_by_the_publishers_own_id_is_still_reported(
    wired: AsyncClient, client: AsyncClient, relay: Relay, orders: str
) -> None:
    await client.publish(orders, 1, deduplication_id="one")
    relay.hold_answers()
    publishing = asyncio.create_task(wired.publish(orders, 1, deduplication_id="one"))
    await relay.has_held.wait()
    relay.cut()
    assert (await publishing).is_duplicate


async def test_a_publish_through_an_exchange_is_stored_once(
    wired: AsyncClient, client: AsyncClient, relay: Relay, orders: str
) -> None:
    await client.declare_exchange(f"events-{orders}", "fanout")
    await client.bind(f"events-{orders}", orders)
    relay.hold_answers()
    publishing = asyncio.create_task(wired.publish_to_exchange(f"events-{orders}", "", 1))
    await relay.has_held.wait()
    relay.cut()
    assert len(await publishing) == 1
    assert (await client.stats(orders)).ready == 1


async def test_without_deduplication_the_publisher_learns_that_the_outcome_is_unknown(
    client: AsyncClient, relay: Relay, orders: str
) -> None:
    async with AsyncClient(relay.address, deduplicate=False) as careless:
        relay.hold_answers()
        publishing = asyncio.create_task(careless.publish(orders, 1))
        putting = asyncio.create_task(careless.put_many(orders, [2]))
        routing = asyncio.create_task(careless.publish_to_exchange("", orders, 3))
        await relay.has_held.wait()
        relay.cut()
        for task in (publishing, putting, routing):
            with pytest.raises(ConnectionLost, match="may or may not"):
                await task
        assert isinstance(await careless.publish(orders, 4), Published)


async def test_a_read_is_repeated(wired: AsyncClient, relay: Relay, orders: str) -> None:
    relay.hold_answers()
    asking = asyncio.create_task(wired.stats(orders))
    await relay.has_held.wait()
    relay.cut()
    assert (await asking).queue == orders


async def test_a_purge_is_not_repeated(wired: AsyncClient, client: AsyncClient, relay: Relay, orders: str) -> None:
    await client.publish(orders, 1)
    relay.hold_answers()
    purging = asyncio.create_task(wired.purge(orders))
    await relay.has_held.wait()
    relay.cut()
    with pytest.raises(ConnectionLost, match="may or may not have happened"):
        await purging


async def test_what_is_asked_while_there_is_no_connection_waits(wired: AsyncClient, relay: Relay, orders: str) -> None:
    await relay.stop_listening()
    relay.cut()
    await until(lambda: not wired.is_connected)
    asking = asyncio.gather(wired.publish(orders, 1), wired.purge(orders))
    await asyncio.sleep(0.05)
    assert not asking.done()
    await relay.listen()
    await asking


async def test_a_subscription_goes_on_and_what_it_held_comes_again(
    wired: AsyncClient, client: AsyncClient, relay: Relay, queue: str
) -> None:
    await client.declare_queue(queue, retry_backoff="none")
    await client.put_many(queue, range(3))
    async with wired.subscribe(queue, prefetch=3) as subscription:
        first = await anext(subscription)
        relay.cut()
        await until(lambda: first.is_void)
        again = await anext(subscription)
        assert (again.id, again.delivery_count) == (first.id, 2)
        with pytest.raises(StaleReceipt, match="will be delivered again"):
            await first.ack()
        rest = [await anext(subscription) for _ in range(2)]
        assert [delivery.json() for delivery in rest] == [1, 2]
        for delivery in (again, *rest):
            await delivery.ack()
    assert (await client.stats(queue)).acknowledged_total == 3


async def test_an_ack_without_answer_fails_with_the_reason(
    wired: AsyncClient, client: AsyncClient, relay: Relay, orders: str
) -> None:
    await client.publish(orders, 1)
    async with wired.subscribe(orders) as subscription:
        delivery = await anext(subscription)
        relay.hold_answers()
        acking = asyncio.create_task(delivery.ack())
        await relay.has_held.wait()
        relay.cut()
        with pytest.raises(ConnectionLost):
            await acking
    assert (await client.stats(orders)).acknowledged_total == 1


async def test_a_loop_over_deliveries_survives_a_break_in_the_middle_of_one(
    wired: AsyncClient, client: AsyncClient, relay: Relay, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.declare_queue(queue, retry_backoff="none")
    await client.put_many(queue, range(10))
    seen = []
    async with wired.subscribe(queue, prefetch=4) as subscription:
        async for delivery in subscription:
            async with delivery:
                seen.append(delivery.json())
                if len(seen) == 5:
                    relay.cut()
                    await until(lambda: delivery.is_void)  # noqa: B023  # it is waited for here
            if delivery.json() == 9:
                break
        await subscription.settled()
    assert sorted(set(seen)) == list(range(10))
    assert (await client.stats(queue)).acknowledged_total == 10
    assert any("could not be settled" in record.message for record in caplog.records)


async def test_a_synchronous_subscription_leaves_out_what_has_gone_back(
    client: AsyncClient, relay: Relay, queue: str
) -> None:
    await client.declare_queue(queue, retry_backoff="none")
    await client.put_many(queue, range(4))

    def consume(wired: Client, cut: Callable[[], object]) -> list[tuple[int, int]]:
        seen = []
        with wired.subscribe(queue, prefetch=4) as subscription:
            first = next(subscription)
            cut()
            eventually(lambda: first.is_void)
            with pytest.raises(StaleReceipt):
                first.ack()
            for delivery in subscription:
                with delivery:
                    seen.append((delivery.json(), delivery.delivery_count))
                if len(seen) == 4:
                    return seen
        raise AssertionError("the iteration ended")

    loop = asyncio.get_running_loop()
    wired = await asyncio.to_thread(Client, relay.address)
    seen = await asyncio.to_thread(consume, wired, lambda: loop.call_soon_threadsafe(relay.cut))
    await asyncio.to_thread(wired.close)
    assert seen == [(0, 2), (1, 2), (2, 2), (3, 2)]
    assert (await client.stats(queue)).acknowledged_total == 4


async def test_received_deliveries_outlive_the_connection(
    wired: AsyncClient, client: AsyncClient, relay: Relay, orders: str
) -> None:
    await client.publish(orders, 1)
    [delivery] = await wired.receive(orders)
    relay.cut()
    await delivery.ack()
    assert (await client.stats(orders)).acknowledged_total == 1


async def test_an_ack_by_receipt_that_was_sent_twice_is_in_doubt(
    wired: AsyncClient, client: AsyncClient, relay: Relay, orders: str
) -> None:
    await client.publish(orders, 1)
    [delivery] = await wired.receive(orders)
    relay.hold_answers()
    acking = asyncio.create_task(delivery.ack())
    await relay.has_held.wait()
    relay.cut()
    with pytest.raises(ConnectionLost, match="sent twice"):
        await acking
    assert (await client.stats(orders)).acknowledged_total == 1


async def test_a_broker_that_stays_away_is_given_up_after_a_while(relay: Relay, orders: str) -> None:
    async with AsyncClient(relay.address, retry_for_ms=100) as client:
        subscription = client.subscribe(orders)
        waiting = asyncio.create_task(anext(subscription))
        await client.info()
        await relay.stop_listening()
        relay.cut()
        await until(lambda: not client.is_connected)  # what is sent before may have arrived
        with pytest.raises(ConnectionFailed, match="is it running"):
            await client.publish(orders, 1)
        with pytest.raises(ConnectionFailed):
            await waiting
        await relay.listen()
        await client.publish(orders, 2)  # asked again, it looks again


async def test_what_was_sent_before_the_broker_was_given_up_may_have_happened(
    client: AsyncClient, relay: Relay, orders: str
) -> None:
    async with AsyncClient(relay.address, retry_for_ms=100) as wired:
        relay.hold_answers()
        sent = [
            asyncio.create_task(wired.publish(orders, 1)),
            asyncio.create_task(wired.publish(orders, 2)),
            asyncio.create_task(wired.put_many(orders, [3, 4])),
            asyncio.create_task(wired.publish_to_exchange("", orders, 5)),
        ]
        await answers(lambda: client.stats(orders), lambda stats: stats.depth == 5)
        await relay.stop_listening()
        relay.cut()
        await until(lambda: not wired.is_connected)
        not_sent = asyncio.create_task(wired.publish(orders, 6))
        for task in sent:
            with pytest.raises(ConnectionLost, match=r"may or may not have happened.*is it running"):
                await task
        with pytest.raises(ConnectionFailed, match="is it running"):
            await not_sent
    assert (await client.stats(orders)).depth == 5


async def test_closing_says_of_what_was_sent_that_it_may_have_happened(relay: Relay, orders: str) -> None:
    client = AsyncClient(relay.address)
    await client.connect()
    relay.hold_answers()
    publishing = asyncio.create_task(client.publish(orders, 1))
    await relay.has_held.wait()
    closing = asyncio.create_task(client.close())
    with pytest.raises(ClientClosed, match="may or may not have happened"):
        await publishing
    relay.cut()
    await closing


async def test_a_client_that_nobody_uses_does_not_knock(wired: AsyncClient, relay: Relay) -> None:
    await wired.info()
    relay.cut()
    await until(lambda: not wired.is_connected)
    await asyncio.sleep(0.15)
    assert relay.connection_count == 1
    await wired.info()
    assert relay.connection_count == 2


async def test_connecting_may_wait_for_the_broker(relay: Relay) -> None:
    await relay.stop_listening()
    client = AsyncClient(relay.address)
    with pytest.raises(ConnectionFailed):
        await client.connect()
    connecting = asyncio.create_task(client.connect(retry_for_ms=None))
    await asyncio.sleep(0.05)
    await relay.listen()
    await connecting
    assert client.is_connected
    await client.close()


async def test_closing_fails_what_is_under_way(relay: Relay, orders: str) -> None:
    client = AsyncClient(relay.address)
    await client.connect()
    relay.hold_answers()
    publishing = asyncio.create_task(client.publish(orders, 1))
    await relay.has_held.wait()
    closing = asyncio.create_task(client.close())
    with pytest.raises(ClientClosed):
        await publishing
    relay.cut()
    await closing
    with pytest.raises(ClientClosed, match="make a new one"):
        await client.publish(orders, 2)
    await client.close()


async def test_a_break_is_logged(wired: AsyncClient, relay: Relay, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="smista.client")
    await wired.info()
    relay.cut()
    await wired.info()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_the_back_off_grows_to_its_cap_and_is_spread_over_all_of_it() -> None:
    backoff = Backoff(100, 1_000)
    waits = [backoff.next_s() for _ in range(200)]
    assert all(wait <= 0.1 for wait in waits[:1])
    assert all(wait <= 1.0 for wait in waits)
    assert min(waits[5:]) < 0.2
    assert max(waits[5:]) > 0.8
    backoff.reset()
    assert backoff.next_s() <= 0.1
