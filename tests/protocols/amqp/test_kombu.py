"""kombu, unmodified, on py-amqp."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import kombu as typed_kombu
import kombu.pools as typed_pools
import kombu.simple as typed_simple
import pytest
from amqp.exceptions import NotFound, PreconditionFailed  # type: ignore[import-untyped] # has no types

from tests.protocols.amqp.places import Place
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S

# It says that it has types, and has none.
kombu: Any = typed_kombu
pools: Any = typed_pools
SimpleQueue: Any = typed_simple.SimpleQueue


@pytest.fixture
def connection(place: Place) -> Iterator[Any]:
    with kombu.Connection(place.url, transport_options={"confirm_publish": True}) as connection:
        yield connection


def take(connection: Any, queue: Any, count: int, **options: Any) -> list[Any]:
    """So many messages, each acknowledged."""
    found: list[Any] = []

    def consume(body: Any, message: Any) -> None:
        found.append(message)
        message.ack()

    with kombu.Consumer(connection.default_channel, [queue], callbacks=[consume], **options):
        while len(found) < count:
            connection.drain_events(timeout=PATIENCE_S)
    return found


def test_kombu_declares_publishes_and_consumes(place: Place, connection: Any) -> None:
    exchange = kombu.Exchange(place.name("x"), "topic", durable=True)
    queue = kombu.Queue(place.name(), exchange, routing_key="orders.#", durable=True, max_priority=5)
    with pools.producers[connection].acquire(block=True) as producer:
        for number in range(10):
            producer.publish(
                {"number": number}, exchange=exchange, routing_key="orders.eu", declare=[queue], serializer="json"
            )
    found = take(connection, queue, 10, prefetch_count=3)
    assert [message.payload for message in found] == [{"number": number} for number in range(10)]
    assert found[0].delivery_info["routing_key"] == "orders.eu"
    pools.reset()


def test_kombu_requeues_rejects_and_orders_by_priority(place: Place, connection: Any) -> None:
    dead = kombu.Queue(place.name("dead"), auto_delete=False, durable=False)
    dead(connection.default_channel).declare()
    queue = kombu.Queue(
        place.name(),
        durable=False,
        max_priority=10,
        message_ttl=60.0,
        expires=600.0,
        queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name},
    )
    bound = queue(connection.default_channel)
    bound.declare()
    producer = connection.Producer()
    for priority in (1, 9, 5):
        producer.publish(str(priority), routing_key=queue.name, priority=priority)
    first = bound.get()
    assert first is not None
    assert first.payload == "9"
    first.requeue()
    second = bound.get()
    assert second is not None
    assert (second.payload, second.delivery_info["redelivered"]) == ("9", True)
    second.reject()
    assert [message.payload for message in take(connection, dead, 1)] == ["9"]
    assert [message.payload for message in take(connection, queue, 2)] == ["5", "1"]


def test_kombu_lets_messages_expire(place: Place, connection: Any) -> None:
    dead = kombu.Queue(place.name("dead"), auto_delete=False, durable=False)
    dead(connection.default_channel).declare()
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
    queue = kombu.Queue(place.name(), durable=False, queue_arguments=to_dead)
    queue(connection.default_channel).declare()
    connection.Producer().publish("late", routing_key=queue.name, expiration=0.1)
    [message] = take(connection, dead, 1)
    assert (message.payload, message.headers["x-death"][0]["reason"]) == ("late", "expired")


def test_an_error_closes_kombus_channel_and_not_its_connection(place: Place, connection: Any) -> None:
    queue = kombu.Queue(place.name(), durable=False)
    queue(connection.default_channel).declare()
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'durable'"):
        kombu.Queue(queue.name, durable=True)(connection.channel()).declare()
    with pytest.raises(NotFound, match="no queue 'nowhere' in vhost '/'"):
        kombu.Queue("nowhere")(connection.channel()).queue_declare(passive=True)
    connection.Producer().publish("still here", routing_key=queue.name)
    assert [message.payload for message in take(connection, queue, 1)] == ["still here"]


def test_kombu_chooses_by_topic(place: Place, connection: Any) -> None:
    exchange = kombu.Exchange(place.name("x"), "topic", durable=False)
    queue = kombu.Queue(place.name(), exchange, routing_key="orders.*.paid", durable=False)
    queue(connection.default_channel).declare()
    producer = connection.Producer()
    for key in ("orders.paid", "orders.eu.paid", "orders.eu.open", "orders.us.paid"):
        producer.publish(key, exchange=exchange, routing_key=key)
    assert [message.payload for message in take(connection, queue, 2)] == ["orders.eu.paid", "orders.us.paid"]


def test_kombu_chooses_by_headers(place: Place, connection: Any) -> None:
    exchange = kombu.Exchange(place.name("x"), "headers", durable=False)
    queue = kombu.Queue(place.name(), exchange, durable=False, binding_arguments={"x-match": "all", "size": 5})
    queue(connection.default_channel).declare()
    producer = connection.Producer()
    producer.publish("no", exchange=exchange, headers={"size": 6})
    producer.publish("yes", exchange=exchange, headers={"size": 5})
    assert [message.payload for message in take(connection, queue, 1)] == ["yes"]


def test_kombus_simple_queue_waits_for_what_comes(place: Place, connection: Any) -> None:
    with SimpleQueue(connection, place.name("simple")) as simple:
        simple.put({"hello": "world"})
        message = simple.get(block=True, timeout=PATIENCE_S)
        assert message.payload == {"hello": "world"}
        message.ack()
        assert simple.qsize() == 0


@pytest.mark.slow
def test_kombu_connects_again_after_a_restart(mortal: ServerProcess) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{mortal.amqp_port}"
    queue = kombu.Queue("lasting", durable=True)
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        connection.Producer().publish("before", routing_key="lasting", declare=[queue], delivery_mode=2)
        mortal.kill()
        mortal.restart()
        tried: list[Exception] = []
        producer = connection.Producer()
        publish = connection.ensure(
            producer, producer.publish, errback=lambda error, _: tried.append(error), interval_start=0.1
        )
        publish("after", routing_key="lasting", declare=[queue], delivery_mode=2)
        assert tried
        assert isinstance(tried[0], (ConnectionError, socket.error))
        assert [message.payload for message in take(connection, queue, 2)] == ["before", "after"]
