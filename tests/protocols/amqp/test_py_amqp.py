"""py-amqp, unmodified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import amqp  # type: ignore[import-untyped] # has no types
import pytest
from amqp.exceptions import (  # type: ignore[import-untyped] # has no types
    AccessRefused,
    MessageNacked,
    NotFound,
    PreconditionFailed,
)

from tests.protocols.amqp.places import Place
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S


def connect(address: tuple[str, int]) -> Any:
    host, port = address
    connection = amqp.Connection(f"{host}:{port}", userid="guest", password="guest", confirm_publish=True, heartbeat=60)
    connection.connect()
    return connection


@pytest.fixture
def plain(place: Place) -> Iterator[Any]:
    connection = connect(place.address)
    yield connection
    connection.close()


def drain(connection: Any, found: list[Any], count: int) -> None:
    while len(found) < count:
        connection.drain_events(timeout=PATIENCE_S)


def test_messages_are_published_with_confirms_and_consumed_with_prefetch(place: Place, plain: Any) -> None:
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


def test_a_message_is_requeued_and_then_rejected_to_the_dead_letters(place: Place, plain: Any) -> None:
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


def test_an_error_closes_the_channel_and_not_the_connection(place: Place, plain: Any) -> None:
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


def test_a_transaction_publishes_all_or_nothing(place: Place) -> None:
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


def take(connection: Any, channel: Any, queue: str, count: int) -> list[Any]:
    """So many messages, without acknowledging."""
    found: list[Any] = []
    tag = channel.basic_consume(queue, callback=found.append, no_ack=True)
    drain(connection, found, count)
    channel.basic_cancel(tag)
    return found


def test_what_outlives_its_time_goes_to_the_dead_letters(place: Place, plain: Any) -> None:
    channel = plain.channel()
    dead, queue = place.name("dead"), place.name()
    channel.queue_declare(dead, auto_delete=False)
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(queue, auto_delete=False, arguments={"x-message-ttl": 60_000, **to_dead})
    channel.basic_publish_confirm(amqp.Message("late", expiration="100"), routing_key=queue)
    [late] = take(plain, channel, dead, 1)
    [death] = late.headers["x-death"]
    assert (late.body, death["reason"], death["original-expiration"]) == ("late", "expired", "100")


def test_higher_priorities_come_first(place: Place, plain: Any) -> None:
    channel = plain.channel()
    queue = place.name()
    channel.queue_declare(queue, auto_delete=False, arguments={"x-max-priority": 10})
    for priority in (1, 9, 5):
        channel.basic_publish_confirm(amqp.Message(str(priority), priority=priority), routing_key=queue)
    assert [message.body for message in take(plain, channel, queue, 3)] == ["9", "5", "1"]


def test_topic_and_headers_exchanges_choose(place: Place, plain: Any) -> None:
    channel = plain.channel()
    queue, topic, headers = place.name(), place.name("topic"), place.name("headers")
    channel.queue_declare(queue, auto_delete=False)
    channel.exchange_declare(topic, "topic", auto_delete=False)
    channel.exchange_declare(headers, "headers", auto_delete=False)
    channel.queue_bind(queue, topic, "orders.#.paid")
    channel.queue_bind(queue, headers, arguments={"x-match": "all", "kind": "order", "size": 5})
    for key in ("orders.open", "orders.paid", "orders.eu.north.paid"):
        channel.basic_publish_confirm(amqp.Message(key), exchange=topic, routing_key=key)
    for body, size in (("no", 6), ("yes", 5)):
        given = {"kind": "order", "size": size, "more": None}
        channel.basic_publish_confirm(amqp.Message(body, application_headers=given), exchange=headers)
    assert [message.body for message in take(plain, channel, queue, 3)] == [
        "orders.paid",
        "orders.eu.north.paid",
        "yes",
    ]


def test_the_channel_goes_and_the_connection_stays(place: Place, plain: Any) -> None:
    queue = place.name()
    channel = plain.channel()
    channel.queue_declare(queue, auto_delete=False)
    with pytest.raises(NotFound, match="no exchange 'nowhere' in vhost '/'"):
        channel.basic_publish_confirm(amqp.Message("x"), exchange="nowhere", routing_key="k")
    assert plain.channel().queue_declare(queue, passive=True).message_count == 0


@pytest.mark.slow
def test_what_was_confirmed_is_there_after_a_kill(mortal: ServerProcess) -> None:
    connection = connect(mortal.amqp_address)
    channel = connection.channel()
    channel.queue_declare("lasting", durable=True, auto_delete=False)
    channel.basic_publish_confirm(amqp.Message("before", delivery_mode=2), routing_key="lasting")
    mortal.kill()
    with pytest.raises(connection.connection_errors):
        drain(connection, [], 1)
    connection.collect()
    mortal.restart()
    again = connect(mortal.amqp_address)
    channel = again.channel()
    channel.basic_publish_confirm(amqp.Message("after", delivery_mode=2), routing_key="lasting")
    assert [message.body for message in take(again, channel, "lasting", 2)] == ["before", "after"]
    again.close()
