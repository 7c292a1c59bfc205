"""py-amqp, and kombu on top of it, unmodified."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import amqp  # type: ignore[import-untyped] # has no types
import kombu as typed_kombu
import kombu.pools as typed_pools
import kombu.simple as typed_simple
import pytest
from amqp.exceptions import (  # type: ignore[import-untyped] # has no types
    AccessRefused,
    MessageNacked,
    NotFound,
    PreconditionFailed,
)

from tests.protocols.amqp.places import Place
from tests.server_process import ServerProcess

# It says that it has types, and has none.
kombu: Any = typed_kombu
pools: Any = typed_pools
SimpleQueue: Any = typed_simple.SimpleQueue


@pytest.fixture
def plain(place: Place) -> Iterator[Any]:
    """py-amqp by itself, with confirms."""
    host, port = place.address
    connection = amqp.Connection(f"{host}:{port}", userid="guest", password="guest", confirm_publish=True, heartbeat=10)
    connection.connect()
    yield connection
    connection.close()


@pytest.fixture
def connection(place: Place) -> Iterator[Any]:
    with kombu.Connection(place.url, transport_options={"confirm_publish": True}) as connection:
        yield connection


# -- py-amqp ----------------------------------------------------------------------------------------------------------


def drain(connection: Any, found: list[Any], count: int) -> None:
    while len(found) < count:
        connection.drain_events(timeout=30)


def test_py_amqp_publishes_with_confirms_and_consumes_with_prefetch(place: Place, plain: Any) -> None:
    channel = plain.channel()
    queue = place.name()
    channel.queue_declare(queue, durable=True, auto_delete=False)
    for number in range(20):
        message = amqp.Message(str(number), delivery_mode=2, application_headers={"n": number, "big": 1 << 40})
        channel.basic_publish_confirm(message, routing_key=queue)
    channel.basic_qos(0, 5, False)
    found: list[Any] = []
    channel.basic_consume(queue, callback=found.append)
    drain(plain, found, 5)
    assert channel.queue_declare(queue, passive=True).message_count == 15
    for message in found:
        channel.basic_ack(message.delivery_tag)
    drain(plain, found, 10)
    assert [message.body for message in found] == [str(number) for number in range(10)]
    assert found[3].headers == {"n": 3, "big": 1 << 40}


def test_py_amqp_requeues_and_rejects_to_the_dead_letters(place: Place, plain: Any) -> None:
    channel = plain.channel()
    dead, queue = place.name("dead"), place.name()
    channel.queue_declare(dead, auto_delete=False)
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(queue, auto_delete=False, arguments=to_dead)
    channel.basic_publish_confirm(amqp.Message("poison"), routing_key=queue)
    channel.basic_reject(channel.basic_get(queue).delivery_tag, requeue=True)
    again = channel.basic_get(queue)
    assert again.delivery_info["redelivered"]
    channel.basic_reject(again.delivery_tag, requeue=False)
    found: list[Any] = []
    channel.basic_consume(dead, callback=found.append, no_ack=True)
    drain(plain, found, 1)
    assert found[0].headers["x-death"][0]["reason"] == "rejected"


def test_py_amqp_is_told_what_is_wrong(place: Place, plain: Any) -> None:
    queue = place.name()
    plain.channel().queue_declare(queue, auto_delete=False)
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'durable'"):
        plain.channel().queue_declare(queue, durable=True, auto_delete=False)
    with pytest.raises(NotFound, match="no queue 'nowhere' in vhost '/'"):
        plain.channel().queue_declare("nowhere", passive=True)
    with pytest.raises(AccessRefused, match="reserved prefix"):
        plain.channel().queue_declare("amq.mine")
    full = place.name("full")
    channel = plain.channel()
    channel.queue_declare(full, auto_delete=False, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    with pytest.raises(MessageNacked):
        channel.basic_publish_confirm(amqp.Message("no room"), routing_key=full)


def test_py_amqp_commits_and_rolls_back(place: Place) -> None:
    host, port = place.address
    with amqp.Connection(f"{host}:{port}") as connection:
        channel = connection.channel()
        queue = place.name()
        channel.queue_declare(queue, auto_delete=False)
        channel.tx_select()
        channel.basic_publish(amqp.Message("dropped"), routing_key=queue)
        channel.tx_rollback()
        channel.basic_publish(amqp.Message("kept"), routing_key=queue)
        channel.tx_commit()
        assert channel.basic_get(queue, no_ack=True).body == "kept"
        assert channel.basic_get(queue) is None


# -- kombu ------------------------------------------------------------------------------------------------------------


def take(connection: Any, queue: Any, count: int, **options: Any) -> list[Any]:
    """So many messages, each acknowledged."""
    found: list[Any] = []

    def consume(body: Any, message: Any) -> None:
        found.append(message)
        message.ack()

    with kombu.Consumer(connection.default_channel, [queue], callbacks=[consume], **options):
        while len(found) < count:
            connection.drain_events(timeout=30)
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
        message = simple.get(block=True, timeout=30)
        assert message.payload == {"hello": "world"}
        message.ack()
        assert simple.qsize() == 0


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
