"""pika's asyncio adapter, unmodified: its callbacks as futures, and nothing else between it and the tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pika  # type: ignore[import-untyped] # has no types
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection  # type: ignore[import-untyped] # has no types

from tests.protocols.amqp.places import Place
from tests.server_process import ServerProcess


class Session:
    """A connection and a channel with confirms."""

    def __init__(self, address: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        self._address = address
        self._opened: asyncio.Future[Any] = loop.create_future()
        self._published = 0
        self._answers: dict[int, asyncio.Future[bool]] = {}
        self.ended: asyncio.Future[Any] = loop.create_future()
        """Why the connection is over."""
        self.channel: Any = None

    async def open(self) -> Session:
        self.connection = AsyncioConnection(
            pika.ConnectionParameters(*self._address, heartbeat=60),
            on_open_callback=self._opened.set_result,
            on_open_error_callback=lambda _, error: self._opened.set_exception(error),
            on_close_callback=lambda _, reason: self.ended.set_result(reason),
            custom_ioloop=asyncio.get_running_loop(),
        )
        await self._opened
        self.channel = await self.new_channel()
        await self.call(self.channel.confirm_delivery, self._answered)
        return self

    async def new_channel(self) -> Any:
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.connection.channel(on_open_callback=ready.set_result)
        return await ready

    async def call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What the broker answers to a method."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        method(*arguments, **options, callback=answer.set_result)
        return (await answer).method

    async def declare(self, queue: str, **arguments: Any) -> str:
        await self.call(self.channel.queue_declare, queue, arguments=arguments)
        return queue

    async def publish(self, key: str, body: bytes, exchange: str = "", **properties: Any) -> bool:
        """Whether the broker took it."""
        self._published += 1
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answers[self._published] = answer
        self.channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties))
        return await answer

    def _answered(self, frame: Any) -> None:
        last, taken = frame.method.delivery_tag, isinstance(frame.method, pika.spec.Basic.Ack)
        for tag in [tag for tag in self._answers if tag == last or (frame.method.multiple and tag < last)]:
            self._answers.pop(tag).set_result(taken)

    async def take(self, queue: str, count: int, settle: Callable[[Any], None] | None = None) -> list[Any]:
        """So many deliveries, each acknowledged unless `settle` does something else."""
        found: list[Any] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def consume(_: Any, method: Any, properties: Any, body: bytes) -> None:
            if done.done():
                self.channel.basic_nack(method.delivery_tag)
                return
            found.append((method, properties, body))
            if settle is None:
                self.channel.basic_ack(method.delivery_tag)
            else:
                settle(method)
            if len(found) == count:
                done.set_result(None)

        tag = self.channel.basic_consume(queue, consume)
        await done
        await self.call(self.channel.basic_cancel, tag)
        return found

    async def close(self) -> None:
        if self.connection.is_open:
            self.connection.close()
        await self.ended


@pytest.fixture
async def session(place: Place) -> AsyncIterator[Session]:
    session = await Session(place.address).open()
    yield session
    await session.close()


def bodies(found: list[Any]) -> list[bytes]:
    return [body for _, _, body in found]


async def test_messages_are_published_with_confirms_and_consumed_with_prefetch(place: Place, session: Session) -> None:
    queue = await session.declare(place.name())
    sent = [b"%d" % number for number in range(200)]
    assert all(await asyncio.gather(*(session.publish(queue, body) for body in sent)))
    await session.call(session.channel.basic_qos, prefetch_count=10)
    assert bodies(await session.take(queue, 200)) == sent


async def test_a_prefetch_limits_what_is_in_flight(place: Place, session: Session) -> None:
    queue = await session.declare(place.name())
    await asyncio.gather(*(session.publish(queue, b"x") for _ in range(10)))
    await session.call(session.channel.basic_qos, prefetch_count=3)
    await session.take(queue, 3, lambda method: None)
    assert (await session.call(session.channel.queue_declare, queue, passive=True)).message_count == 7


async def test_a_message_is_requeued_and_then_rejected_to_the_dead_letters(place: Place, session: Session) -> None:
    dead = await session.declare(place.name("dead"))
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = await session.declare(place.name(), **to_dead)
    await session.publish(queue, b"poison")
    settle = session.channel.basic_nack
    await session.take(queue, 1, lambda method: settle(method.delivery_tag, requeue=True))
    [(method, _, _)] = await session.take(queue, 1, lambda method: settle(method.delivery_tag, requeue=False))
    assert method.redelivered
    [(_, properties, body)] = await session.take(dead, 1)
    assert (body, properties.headers["x-death"][0]["reason"]) == (b"poison", "rejected")


async def test_what_outlives_its_time_goes_to_the_dead_letters(place: Place, session: Session) -> None:
    dead = await session.declare(place.name("dead"))
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = await session.declare(place.name(), **{"x-message-ttl": 100}, **to_dead)
    await session.publish(queue, b"late")
    [(_, properties, body)] = await session.take(dead, 1)
    assert (body, properties.headers["x-first-death-reason"]) == (b"late", "expired")


async def test_higher_priorities_come_first(place: Place, session: Session) -> None:
    queue = await session.declare(place.name(), **{"x-max-priority": 10})
    for priority in (1, 9, 5):
        await session.publish(queue, b"%d" % priority, priority=priority)
    assert bodies(await session.take(queue, 3)) == [b"9", b"5", b"1"]


async def test_topic_and_headers_exchanges_choose(place: Place, session: Session) -> None:
    queue, topic, headers = await session.declare(place.name()), place.name("topic"), place.name("headers")
    await session.call(session.channel.exchange_declare, topic, "topic")
    await session.call(session.channel.exchange_declare, headers, "headers")
    await session.call(session.channel.queue_bind, queue, topic, "orders.*.paid")
    await session.call(session.channel.queue_bind, queue, headers, arguments={"x-match": "any", "size": 5})
    for key in ("orders.eu.open", "orders.eu.paid"):
        await session.publish(key, key.encode(), topic)
    for size in (6, 5):
        await session.publish("", b"%d" % size, headers, headers={"size": size})
    assert bodies(await session.take(queue, 2)) == [b"orders.eu.paid", b"5"]


async def test_a_full_queue_answers_with_a_nack(place: Place, session: Session) -> None:
    queue = await session.declare(place.name(), **{"x-max-length": 1, "x-overflow": "reject-publish"})
    assert await session.publish(queue, b"fits")
    assert not await session.publish(queue, b"does not")


async def test_an_error_closes_the_channel_and_not_the_connection(place: Place, session: Session) -> None:
    channel = await session.new_channel()
    closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    channel.add_on_close_callback(lambda _, reason: closed.set_result(reason))
    channel.basic_publish("nowhere", "key", b"x")
    reason = await closed
    assert (reason.reply_code, reason.reply_text) == (404, "NOT_FOUND - no exchange 'nowhere' in vhost '/'")
    assert await session.publish(await session.declare(place.name()), b"x")


@pytest.mark.slow
async def test_what_was_confirmed_is_there_after_a_kill(mortal: ServerProcess) -> None:
    session = await Session(mortal.amqp_address).open()
    await session.call(session.channel.queue_declare, "lasting", durable=True)
    assert await session.publish("lasting", b"before", delivery_mode=2)
    mortal.kill()
    assert isinstance(await session.ended, pika.exceptions.AMQPConnectionError)
    mortal.restart()
    session = await Session(mortal.amqp_address).open()
    assert await session.publish("lasting", b"after", delivery_mode=2)
    assert bodies(await session.take("lasting", 2)) == [b"before", b"after"]
    await session.close()
