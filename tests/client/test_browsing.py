import time

import pytest

from smista import AsyncClient
from smista.errors import MessageNotFound, RedriveEnded, RedriveRunning


async def killed(client: AsyncClient, queue: str, count: int, error: str) -> list[str]:
    await client.put_many(queue, [b"poison"] * count)
    deliveries = await client.receive(queue, count)
    for delivery in deliveries:
        await delivery.nack(error, requeue=False)
    return [delivery.id for delivery in deliveries]


async def test_browsing_goes_over_all_pages(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, range(25))
    pages = client.browse(orders, page_size=10)
    sizes = []
    while page := await pages.next_page():
        sizes.append(len(page))
    assert sizes == [10, 10, 5]
    assert [message.json() async for message in client.browse(orders, page_size=10)] == list(range(25))


async def test_browsing_is_narrowed_by_filters(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, 1, priority=1, headers={"tenant": "a"})
    await client.publish(orders, 2, priority=2, headers={"tenant": "b"})
    await client.publish(orders, 3, delay_ms=60_000)
    assert [message.json() async for message in client.browse(orders, priority=2)] == [2]
    assert [message.json() async for message in client.browse(orders, headers={"tenant": "a"})] == [1]
    assert [message.json() async for message in client.browse(orders, state="scheduled")] == [3]
    [first, *_] = [message async for message in client.browse(orders, bodies=False)]
    assert first.body is None
    with pytest.raises(ValueError, match="has no body here"):
        first.json()


async def test_a_page_and_single_messages_may_be_mixed(client: AsyncClient, orders: str) -> None:
    await client.put_many(orders, range(5))
    pages = client.browse(orders, page_size=3)
    assert (await anext(pages)).json() == 0
    assert [message.json() for message in await pages.next_page()] == [1, 2]
    assert [message.json() async for message in pages] == [3, 4]
    assert await pages.next_page() == []


async def test_peeking_shows_what_comes_next_and_changes_nothing(client: AsyncClient, orders: str) -> None:
    await client.publish(orders, "later")
    await client.publish(orders, "first", priority=9)
    assert [message.json() for message in await client.peek(orders, 2)] == ["first", "later"]
    assert (await client.stats(orders)).ready == 2


async def test_a_message_is_found_by_its_id(client: AsyncClient, orders: str) -> None:
    published = await client.publish(orders, "x")
    assert (await client.get(orders, published.id)).state == "ready"
    await client.purge(orders)
    with pytest.raises(MessageNotFound):
        await client.get(orders, published.id)


async def test_dead_letters_are_seen_and_redriven(client: AsyncClient, orders: str) -> None:
    first, second = await killed(client, orders, 2, "cold oven")
    [third] = await killed(client, orders, 1, "no cheese")
    assert [message.id async for message in client.dead_letters(orders)] == [first, second, third]
    assert [message.id async for message in client.dead_letters(orders, error_contains="cheese")] == [third]
    assert await client.redrive(orders, error_contains="oven", dry_run=True) == 2
    assert await client.redrive(orders, message_ids=[first]) == 1
    assert await client.redrive(orders, limit=1) == 1
    assert (await client.stats(orders)).ready == 2
    await killed(client, orders, 2, "cold again")
    assert await client.purge_dead_letters(orders, error_contains="again", priority=0) == 2
    assert await client.purge_dead_letters(orders, error_contains="nothing like it") == 0
    assert await client.purge_dead_letters(orders) == 1
    assert [message async for message in client.dead_letters(orders)] == []


async def test_dead_letters_may_go_to_another_queue(client: AsyncClient, orders: str) -> None:
    await client.declare_queue(f"{orders}-fixed")
    await killed(client, orders, 1, "x")
    assert await client.redrive(orders, to=f"{orders}-fixed", per_second=1_000) == 1
    assert (await client.stats(f"{orders}-fixed")).ready == 1


async def test_a_redrive_goes_on_by_itself_and_is_seen_and_cancelled(client: AsyncClient, orders: str) -> None:
    await killed(client, orders, 2, "x")
    started = await client.start_redrive(orders, per_second=0.001)
    assert (started.state, started.expected, started.queue) == ("running", 2, orders)
    with pytest.raises(RedriveRunning, match=started.job):
        await client.start_redrive(f"{orders}_dlq")
    ended = await client.cancel_redrive(orders, started.job)
    assert (ended.state, ended.job) == ("cancelled", started.job)
    assert await client.redrives(orders) == [ended]
    assert ended in await client.redrives()
    with pytest.raises(RedriveEnded):
        await client.cancel_redrive(orders, started.job)


async def test_scheduled_messages_are_moved_and_cancelled(client: AsyncClient, orders: str) -> None:
    first = await client.publish(orders, 1, delay_ms=60_000)
    second = await client.publish(orders, 2, deliver_at_ms=round(time.time() * 1000) + 3_600_000)
    third = await client.publish(orders, 3, delay_ms=60_000)
    assert [message.id async for message in client.scheduled(orders, page_size=2)] == [first.id, second.id, third.id]
    assert [message.id async for message in client.scheduled(orders, created_before_ms=1)] == []
    await client.cancel_scheduled(orders, second.id)
    await client.reschedule(orders, first.id, delay_ms=1)
    await client.reschedule(orders, third.id, deliver_at_ms=1)
    received = [(await client.receive(orders, wait_ms=20_000))[0].id for _ in range(2)]
    assert sorted(received) == sorted([first.id, third.id])
    with pytest.raises(MessageNotFound):
        await client.cancel_scheduled(orders, second.id)
