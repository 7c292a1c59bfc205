"""aio-pika, unmodified: confirms are on by default, and a robust connection comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed, DeliveryError, PublishError
from aio_pika.patterns import RPC
from pamqp.common import Arguments

from tests.protocols.amqp.places import Place
from tests.server_process import ServerProcess


@pytest.fixture
async def connection(place: Place) -> AsyncIterator[AbstractConnection]:
    async with await aio_pika.connect(place.url) as connection:
        yield connection


@pytest.fixture
async def channel(connection: AbstractConnection) -> AbstractChannel:
    return await connection.channel()


async def publish(channel: AbstractChannel, queue: AbstractQueue, *bodies: bytes) -> None:
    for body in bodies:
        await channel.default_exchange.publish(Message(body), queue.name)


async def take(queue: AbstractQueue, count: int) -> list[AbstractIncomingMessage]:
    """So many messages, each acknowledged."""
    found: list[AbstractIncomingMessage] = []
    async with queue.iterator() as messages:
        async for message in messages:
            await message.ack()
            found.append(message)
            if len(found) == count:
                break
    return found


async def test_messages_are_published_with_confirms_and_consumed(place: Place, channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(place.name(), durable=True)
    given: dict[str, Any] = {
        "text": "ü",
        "small": 5,
        "large": 1 << 40,
        "list": [1, {"deep": None}],
        "real": 1.5,
        "flag": True,
    }
    for number in range(50):
        message = Message(
            b"%d" % number, headers=given, delivery_mode=DeliveryMode.PERSISTENT, content_type="text/plain"
        )
        await channel.default_exchange.publish(message, queue.name)
    found = await take(queue, 50)
    assert [message.body for message in found] == [b"%d" % number for number in range(50)]
    assert found[0].headers == given
    assert found[0].content_type == "text/plain"


async def test_a_prefetch_limits_what_is_in_flight(place: Place, channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(place.name())
    await publish(channel, queue, *[b"%d" % number for number in range(10)])
    await channel.set_qos(prefetch_count=3)
    inbox: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    await queue.consume(inbox.put)
    held = [await inbox.get() for _ in range(3)]
    declared = await channel.declare_queue(queue.name, passive=True)
    assert declared.declaration_result.message_count == 7
    assert inbox.empty()
    for message in held:
        await message.ack()
    assert (await inbox.get()).body == b"3"


async def test_a_message_is_requeued_and_then_rejected_to_the_dead_letters(
    place: Place, channel: AbstractChannel
) -> None:
    exchange = await channel.declare_exchange(place.name("dlx"), ExchangeType.FANOUT)
    dead = await channel.declare_queue(place.name("dead"))
    await dead.bind(exchange)
    queue = await channel.declare_queue(place.name(), arguments={"x-dead-letter-exchange": exchange.name})
    await publish(channel, queue, b"poison")
    first = await queue.get()
    assert not first.redelivered
    await first.reject(requeue=True)
    second = await queue.get()
    assert second.redelivered
    await second.reject()
    [message] = await take(dead, 1)
    deaths: Any = message.headers["x-death"]
    assert [(death["queue"], death["reason"], death["count"]) for death in deaths] == [(queue.name, "rejected", 1)]
    assert message.exchange == exchange.name


async def test_what_outlives_its_time_goes_to_the_dead_letters(place: Place, channel: AbstractChannel) -> None:
    dead = await channel.declare_queue(place.name("dead"))
    arguments: Arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
    queue = await channel.declare_queue(place.name(), arguments=arguments)
    await channel.default_exchange.publish(Message(b"late", expiration=0.1), queue.name)
    [message] = await take(dead, 1)
    assert (message.body, message.headers["x-first-death-reason"]) == (b"late", "expired")
    assert message.expiration is None


async def test_higher_priorities_come_first(place: Place, channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(place.name(), arguments={"x-max-priority": 10})
    for priority in (1, 9, 5):
        await channel.default_exchange.publish(Message(b"%d" % priority, priority=priority), queue.name)
    assert [message.body for message in await take(queue, 3)] == [b"9", b"5", b"1"]


async def test_topic_and_headers_exchanges_choose(place: Place, connection: AbstractConnection) -> None:
    channel = await connection.channel(on_return_raises=True)
    queue = await channel.declare_queue(place.name())
    topic = await channel.declare_exchange(place.name("topic"), ExchangeType.TOPIC)
    headers = await channel.declare_exchange(place.name("headers"), ExchangeType.HEADERS)
    await queue.bind(topic, "orders.#")
    await queue.bind(headers, arguments={"x-match": "all", "kind": "order", "size": 5})
    await topic.publish(Message(b"1"), "orders.eu.paid")
    await headers.publish(Message(b"2", headers={"kind": "order", "size": 5}), "")
    with pytest.raises(PublishError):
        await headers.publish(Message(b"no", headers={"kind": "order", "size": 6}), "")
    with pytest.raises(PublishError):
        await topic.publish(Message(b"no"), "invoices")
    assert [message.body for message in await take(queue, 2)] == [b"1", b"2"]


async def test_a_full_queue_answers_with_a_nack(place: Place, channel: AbstractChannel) -> None:
    arguments: Arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = await channel.declare_queue(place.name(), arguments=arguments)
    await publish(channel, queue, b"fits")
    with pytest.raises(DeliveryError):
        await publish(channel, queue, b"does not")


async def test_an_error_closes_the_channel_and_not_the_connection(
    place: Place, connection: AbstractConnection, channel: AbstractChannel
) -> None:
    queue = await channel.declare_queue(place.name())
    with pytest.raises(ChannelPreconditionFailed, match="inequivalent arg 'durable'"):
        await channel.declare_queue(queue.name, durable=True)
    other = await connection.channel()
    with pytest.raises(ChannelNotFoundEntity, match="no queue 'nowhere' in vhost '/'"):
        await other.declare_queue("nowhere", passive=True)
    assert (await (await connection.channel()).declare_queue(queue.name)).name == queue.name


async def test_a_remote_call_is_answered(
    place: Place, channel: AbstractChannel, connection: AbstractConnection
) -> None:
    rpc = await RPC.create(channel)
    method = place.name("double")

    async def double(*, number: int) -> int:
        return 2 * number

    await rpc.register(method, double, auto_delete=True)
    caller = await RPC.create(await connection.channel())
    answers = await asyncio.gather(*(caller.call(method, kwargs={"number": number}) for number in range(20)))
    assert answers == [2 * number for number in range(20)]
    await caller.close()
    await rpc.close()


async def test_a_transaction_publishes_all_or_nothing(place: Place, connection: AbstractConnection) -> None:
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue(place.name())
    async with channel.transaction():
        await publish(channel, queue, b"1", b"2")
    transaction = channel.transaction()
    await transaction.select()
    await publish(channel, queue, b"3")
    await transaction.rollback()
    declared = await channel.declare_queue(queue.name, passive=True)
    assert declared.declaration_result.message_count == 2


async def test_the_password_of_a_connection_can_be_updated(connection: AbstractConnection) -> None:
    await connection.update_secret("anything", reason="rotated")


@pytest.mark.slow
async def test_a_robust_connection_comes_back_after_a_restart(mortal: ServerProcess) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{mortal.amqp_port}"
    connection = await aio_pika.connect_robust(url, reconnect_interval=0.1)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=5)
        lasting = await channel.declare_queue("lasting", durable=True)
        passing = await channel.declare_queue("passing", exclusive=True)
        exchange = await channel.declare_exchange("events", ExchangeType.FANOUT, durable=True)
        await lasting.bind(exchange)
        await passing.bind(exchange)
        seen: asyncio.Queue[tuple[str, bytes, bool | None]] = asyncio.Queue()

        async def consume(message: AbstractIncomingMessage) -> None:
            await seen.put(("passing", message.body, message.redelivered))
            await message.ack()

        await passing.consume(consume)
        await exchange.publish(Message(b"before", delivery_mode=DeliveryMode.PERSISTENT), "")
        assert await seen.get() == ("passing", b"before", False)
        back = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: back.set())
        await asyncio.to_thread(mortal.kill)
        await asyncio.to_thread(mortal.restart)
        await back.wait()
        await channel.ready()
        # Everything it had declared it has declared again, and the consumer is there.
        await exchange.publish(Message(b"after", delivery_mode=DeliveryMode.PERSISTENT), "")
        assert await seen.get() == ("passing", b"after", False)
        assert [message.body for message in await take(lasting, 2)] == [b"before", b"after"]
