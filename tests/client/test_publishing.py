import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from smista import AsyncClient, Client
from smista.client import Publication, Published
from smista.errors import BrokerError, InvalidArgument, InvalidPriority, MessageTooLarge, QueueFull, QueueNotFound
from tests.client.relay import Relay


async def bodies(client: AsyncClient, queue: str) -> list[bytes | None]:
    return [message.body async for message in client.browse(queue)]


async def test_a_message_is_any_json_value_or_bytes(client: AsyncClient, orders: str) -> None:
    first = await client.publish(orders, {"pizza": "margherita"})
    await client.publish(orders, b"\x00\xff")
    await client.publish(orders, body=b"plain")
    found = [message async for message in client.browse(orders)]
    assert found[0].id == first.id
    assert first == Published(first.id, 1)
    assert [message.value() for message in found] == [{"pizza": "margherita"}, b"\x00\xff", "plain"]
    assert [message.content_type for message in found] == ["application/json", None, None]


async def test_every_property_arrives(client: AsyncClient, orders: str) -> None:
    properties: dict[str, Any] = {
        "priority": 7,
        "ttl_ms": 60_000,
        "group": "customer-1",
        "deduplication_id": "order-1",
        "max_retries": 4,
        "headers": {"tenant": "a", "deep": {"list": [1, 2.5, None, True]}},
        "content_type": "text/plain",
        "content_encoding": "identity",
        "correlation_id": "c",
        "reply_to": "answers",
        "type": "order",
        "app_id": "shop",
        "user_id": "u",
        "external_id": "e",
        "timestamp_ms": 1_700_000_000_000,
    }
    await client.publish(orders, body=b"text", **properties)
    [message] = await client.peek(orders)
    assert {name: getattr(message, name) for name in properties} == properties


async def test_the_same_deduplication_id_is_a_duplicate(client: AsyncClient, orders: str) -> None:
    first = await client.publish(orders, 1, deduplication_id="one")
    again = await client.publish(orders, 1, deduplication_id="one")
    assert again == Published(first.id, 0, is_duplicate=True)


async def test_what_is_published_in_one_turn_travels_as_one_batch(client: AsyncClient, orders: str) -> None:
    before = next(client._publisher._numbers)
    mixed = [
        client.publish(orders, b"0"),
        client.publish(orders, 1),
        client.publish(orders, b"2", priority=0),
        client.publish(orders, "3"),
    ]
    results = await asyncio.gather(*mixed)
    assert [result.position for result in results] == [1, 2, 3, 4]
    assert await bodies(client, orders) == [b"0", b"1", b"2", b'"3"']
    assert next(client._publisher._numbers) == before + 2


async def test_in_a_batch_each_hears_of_its_own_error(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, body_bytes_max=10, max_priority=5)
    results = await asyncio.gather(
        client.publish(queue, b"small"),
        client.publish(queue, b"larger than ten"),
        client.publish(queue, b"urgent", priority=6),
        client.publish(queue, b"small too"),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [Published, MessageTooLarge, InvalidPriority, Published]


async def test_one_that_is_cancelled_does_not_take_its_batch_along(client: AsyncClient, orders: str) -> None:
    first, second = (asyncio.create_task(client.publish(orders, number)) for number in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).position == 2
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_what_cannot_be_sent_is_refused_before_it_is_sent(client: AsyncClient, orders: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be written as JSON"):
        await client.publish(orders, object())
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        await client.publish(orders, 1, headers={"when": object()})
    with pytest.raises(InvalidArgument, match="queue is 7"):
        await client.publish(7, 1)  # type: ignore[arg-type]  # what a program may do all the same
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        await client.stats(object())  # type: ignore[arg-type]
    assert await bodies(client, orders) == []


async def test_publishing_to_no_queue_says_so(client: AsyncClient, queue: str) -> None:
    with pytest.raises(QueueNotFound, match=queue):
        await client.publish(queue, 1)


async def test_unconfirmed_messages_are_bounded(broker_url: str, orders: str) -> None:
    async with AsyncClient(broker_url, unconfirmed_max=10) as client:
        results = await asyncio.gather(*(client.publish(orders, number) for number in range(100)))
        assert len({result.id for result in results}) == 100
        assert await bodies(client, orders) == [str(number).encode() for number in range(100)]


async def test_put_many_keeps_order_over_many_batches(client: AsyncClient, orders: str) -> None:
    summary = await client.put_many(orders, (str(number).encode() for number in range(5_000)), batch_count=100)
    assert (summary.accepted, summary.duplicates, summary.refused, summary.errors) == (5_000, 0, 0, [])
    assert await bodies(client, orders) == [str(number).encode() for number in range(5_000)]


async def test_put_many_takes_what_comes_asynchronously(client: AsyncClient, orders: str) -> None:
    async def source() -> AsyncIterator[int]:
        for number in range(50):
            yield number
            if number % 10 == 0:
                await asyncio.sleep(0)

    assert (await client.put_many(orders, source())).accepted == 50
    assert await bodies(client, orders) == [str(number).encode() for number in range(50)]


async def test_put_many_says_what_was_refused_and_why(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, body_bytes_max=5)
    mixed = [b"fits", b"does not", Publication(b"fits", deduplication_id="1"), Publication(b"x", deduplication_id="1")]
    progress: list[int] = []
    summary = await client.put_many(queue, mixed, on_progress=progress.append)
    assert (summary.accepted, summary.duplicates, summary.refused, summary.count) == (2, 1, 1, 4)
    [(place, error)] = summary.errors
    assert place == 1
    assert isinstance(error, MessageTooLarge)
    assert progress == [2, 4]


async def test_put_many_tells_each_result_if_asked(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, max_depth=3)
    results: list[tuple[int, Published | BrokerError]] = []
    summary = await client.put_many(
        queue, [b"x"] * 5, batch_count=2, on_result=lambda place, result: results.append((place, result))
    )
    assert [(place, type(result)) for place, result in results] == [
        (0, Published),
        (1, Published),
        (2, Published),
        (3, QueueFull),
        (4, QueueFull),
    ]
    assert (summary.accepted, summary.refused) == (3, 2)


async def test_put_many_raises_what_refuses_all(client: AsyncClient, queue: str) -> None:
    with pytest.raises(QueueNotFound) as caught:
        await client.put_many(queue, [b"x"] * 5_000)
    assert caught.value.__notes__ == ["0 messages before these were accepted."]


async def test_put_many_of_nothing_is_nothing(client: AsyncClient, orders: str) -> None:
    assert (await client.put_many(orders, [])).count == 0


async def test_large_bodies_travel(client: AsyncClient, orders: str) -> None:
    large = bytes(range(256)) * 4_000
    assert (await client.put_many(orders, [large] * 3)).accepted == 3
    [delivery] = await client.receive(orders)
    assert delivery.body == large


async def test_a_frame_that_is_too_large_for_the_broker_fails_and_the_rest_goes_on(
    client: AsyncClient, orders: str
) -> None:
    with pytest.raises(MessageTooLarge, match=r"This is a request of .* bytes, and the broker takes"):
        await client.publish(orders, b"x" * (17 * 1024 * 1024))
    await client.publish(orders, b"small")
    assert await bodies(client, orders) == [b"small"]


async def test_send_message_is_publish_by_another_name(client: AsyncClient, orders: str) -> None:
    message_id = await client.send_message(orders, b"body", priority=3)
    late_id = await client.send_message(orders, b"late", delay_seconds=60)
    assert (await client.get(orders, message_id)).priority == 3
    assert (await client.get(orders, late_id)).state == "scheduled"


BAD: list[dict[str, Any]] = [
    {"group": ""},
    {"priority": 300},
    {"priority": "high"},
    {"delay_ms": -1},
    {"ttl_ms": 1.5},
    {"deduplication_id": "d" * 2_000},
    {"headers": {"a": b"bytes"}},
    {"headers": []},
    {"headers": {1: 2}},
    {"max_retries": -1},
    {"content_type": 7},
    {"delay_ms": 1, "deliver_at_ms": 1},
    {"timestamp_ms": 1 << 60},
    {"headers": {"large": "x" * 70_000}},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: " ".join(bad))
async def test_one_tasks_invalid_publish_fails_nobody_elses(
    client: AsyncClient, orders: str, bad: dict[str, Any]
) -> None:
    results = await asyncio.gather(
        client.publish(orders, b"1"),
        client.publish(orders, b"2", headers={"a": 1}),
        client.publish(orders, b"bad", **bad),
        client.publish(orders, b"3", priority=0),
        return_exceptions=True,
    )
    assert [isinstance(result, BrokerError) for result in results] == [False, False, True, False]
    assert await bodies(client, orders) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: " ".join(bad))
async def test_put_many_goes_on_after_one_that_is_invalid(
    client: AsyncClient, orders: str, bad: dict[str, Any]
) -> None:
    done = await client.put_many(orders, [b"1", Publication(b"2"), Publication(b"bad", **bad), Publication(b"3"), b"4"])
    assert (done.accepted, done.refused, [place for place, _ in done.errors]) == (4, 1, [2])
    assert await bodies(client, orders) == [b"1", b"2", b"3", b"4"]


async def test_put_many_goes_on_after_one_that_no_request_can_carry(
    client: AsyncClient, sync_client: Client, orders: str
) -> None:
    """And nobody's connection breaks for it, which would cost others their deliveries."""
    huge = b"x" * (17 << 20)
    async with client.subscribe(orders, prefetch=1) as subscription:
        await client.publish(orders, b"held")
        delivery = await anext(subscription)
        done = await client.put_many(orders, [b"1", huge, b"2", Publication(huge), b"3"])
        assert (done.accepted, done.refused, [place for place, _ in done.errors]) == (3, 2, [1, 3])
        results: list[object] = []
        done = sync_client.put_many(orders, [b"4", huge, b"5"], on_result=lambda place, result: results.append(result))
        assert (done.accepted, [isinstance(each, MessageTooLarge) for each in results]) == (2, [False, True, False])
        await delivery.ack()  # raises when the connection was lost


async def test_a_request_that_is_too_large_is_not_sent_by_whoever_connects_for_it(broker_url: str, orders: str) -> None:
    other = AsyncClient(broker_url)
    with pytest.raises(MessageTooLarge):
        await other.publish(orders, b"x" * (17 << 20))
    await other.publish(orders, b"small")
    await other.close()


async def test_after_a_break_duplicates_are_reported_message_by_message(
    relay: Relay, client: AsyncClient, orders: str
) -> None:
    await client.publish(orders, b"before", deduplication_id="theirs")
    async with AsyncClient(relay.address) as other:
        relay.hold_answers()
        putting = asyncio.create_task(
            other.put_many(
                orders, [Publication(b"again", deduplication_id="theirs"), Publication(b"1"), Publication(b"2")]
            )
        )
        await relay.has_held.wait()
        relay.cut()
        done = await putting
    assert (done.accepted, done.duplicates) == (2, 1)
    assert (await client.stats(orders)).depth == 3


async def test_what_has_an_id_of_its_own_and_is_sent_again_after_a_break_is_no_duplicate(
    relay: Relay, client: AsyncClient, orders: str
) -> None:
    await client.publish(orders, b"before", deduplication_id="0")
    async with AsyncClient(relay.address) as other:
        relay.hold_answers()
        messages = [Publication(b"%d" % number, deduplication_id=str(number)) for number in range(10)]
        putting = asyncio.create_task(other.put_many(orders, messages))
        await relay.has_held.wait()
        relay.cut()
        done = await putting
        assert (done.accepted, done.duplicates) == (9, 1)
        again = await other.put_many(orders, messages)
        assert (again.accepted, again.duplicates) == (0, 10)
    assert (await client.stats(orders)).depth == 10


BAD_PLACES = [0, 700, 1_500, 2_600]


def with_bad_ones() -> list[Any]:
    """Some that cannot be sent, as values and for their headers, at the beginning, in the middle and at the end."""
    messages: list[Any] = list(range(2_601))
    messages[0] = object()
    messages[700] = Publication(700, headers={"x": object()})
    messages[1_500] = {1: object()}
    messages[2_600] = "\ud800"
    return messages


@pytest.mark.parametrize("is_brief", [True, False], ids=["brief", "with results"])
async def test_put_many_refuses_what_cannot_be_sent_in_its_place_and_puts_the_rest(
    client: AsyncClient, orders: str, is_brief: bool
) -> None:
    results: list[tuple[int, Published | BrokerError]] = []
    on_result = None if is_brief else lambda place, result: results.append((place, result))
    summary = await client.put_many(orders, with_bad_ones(), on_result=on_result)
    assert (summary.accepted, summary.refused) == (2_597, 4)
    assert [place for place, _ in summary.errors] == BAD_PLACES
    assert all(isinstance(error, InvalidArgument) for _, error in summary.errors)
    good = [number for number in range(2_601) if number not in BAD_PLACES]
    assert [message.json() async for message in client.browse(orders, page_size=5_000)] == good
    if not is_brief:
        assert [place for place, _ in results] == list(range(2_601))
        assert [place for place, result in results if isinstance(result, BrokerError)] == BAD_PLACES


async def test_put_many_tells_its_own_refusals_from_the_brokers(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, max_depth=2)
    summary = await client.put_many(queue, [object(), 1, object(), 2, 3, object(), 4])
    assert [(place, error.code) for place, error in summary.errors] == [
        (0, "invalid_argument"),
        (2, "invalid_argument"),
        (4, "queue_full"),
        (5, "invalid_argument"),
        (6, "queue_full"),
    ]


async def test_put_many_of_nothing_that_can_be_sent_puts_nothing(client: AsyncClient, orders: str) -> None:
    summary = await client.put_many(orders, [object()] * 3)
    assert (summary.accepted, summary.refused) == (0, 3)


async def test_put_many_puts_what_it_was_given_before_its_source_failed(client: AsyncClient, orders: str) -> None:
    def source() -> Iterator[int]:
        yield from range(2_500)
        raise LookupError("no more")

    async def coming() -> AsyncIterator[int]:
        for number in range(2_500):
            yield number
        raise LookupError("no more")

    for messages in (source(), coming()):
        with pytest.raises(LookupError, match="no more") as caught:
            await client.put_many(orders, messages)
        assert caught.value.__notes__ == ["2500 messages before that were accepted."]
        assert (await client.purge(orders)) == 2_500
