"""pika's blocking adapter, unmodified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika  # type: ignore[import-untyped] # has no types
import pytest
from pika.exceptions import (  # type: ignore[import-untyped] # has no types
    AMQPConnectionError,
    ChannelClosedByBroker,
    NackError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    UnroutableError,
)

from tests.protocols.amqp.places import Place
from tests.server_process import ServerProcess

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def parameters(address: tuple[str, int]) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(*address, heartbeat=60)


@pytest.fixture
def connection(place: Place) -> Iterator[Any]:
    connection = pika.BlockingConnection(parameters(place.address))
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection: Any) -> Any:
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def take(channel: Any, queue: str, count: int) -> list[tuple[Any, Any, bytes]]:
    """So many messages, each acknowledged."""
    found = []
    for method, properties, body in channel.consume(queue):
        channel.basic_ack(method.delivery_tag)
        found.append((method, properties, body))
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_messages_are_declared_for_published_with_confirms_and_consumed(place: Place, channel: Any) -> None:
    queue = place.name()
    assert channel.queue_declare(queue, durable=True).method.queue == queue
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT, mandatory=True)
    assert channel.queue_declare(queue, passive=True).method.message_count == 20
    assert [body for _, _, body in take(channel, queue, 20)] == [b"%d" % number for number in range(20)]


def test_properties_and_headers_come_back_as_they_were(place: Place, channel: Any) -> None:
    queue = place.name()
    channel.queue_declare(queue)
    given = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"text": "ü", "number": 1 << 40, "list": [1, {"deep": None}], "bytes": b"\xff", "flag": True},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    channel.basic_publish("", queue, "ü".encode(), given)
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    assert body == "ü".encode()
    assert properties == given


def test_a_prefetch_limits_what_is_in_flight(place: Place, connection: Any, channel: Any) -> None:
    queue = place.name()
    channel.queue_declare(queue)
    for number in range(10):
        channel.basic_publish("", queue, b"%d" % number)
    channel.basic_qos(prefetch_count=3)
    tags: list[int] = []
    consumer = channel.basic_consume(queue, lambda _, method, properties, body: tags.append(method.delivery_tag))
    while len(tags) < 3:
        connection.process_data_events(time_limit=1)
    assert channel.queue_declare(queue, passive=True).method.message_count == 7
    channel.basic_ack(tags[-1], multiple=True)
    while len(tags) < 6:
        connection.process_data_events(time_limit=1)
    channel.basic_cancel(consumer)


def test_a_message_is_requeued_and_then_rejected_to_the_dead_letters(place: Place, channel: Any) -> None:
    dead, queue, exchange = place.name("dead"), place.name(), place.name("dlx")
    channel.exchange_declare(exchange, "fanout")
    channel.queue_declare(dead)
    channel.queue_bind(dead, exchange)
    channel.queue_declare(queue, arguments={"x-dead-letter-exchange": exchange})
    channel.basic_publish("", queue, b"poison")
    method, _, _ = channel.basic_get(queue)
    assert not method.redelivered
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, _ = channel.basic_get(queue)
    assert method.redelivered
    channel.basic_reject(method.delivery_tag, requeue=False)
    [(method, properties, body)] = take(channel, dead, 1)
    assert (method.exchange, method.routing_key, body) == (exchange, queue, b"poison")
    [death] = properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (queue, "rejected", 1)


def test_what_outlives_its_time_goes_to_the_dead_letters(place: Place, channel: Any) -> None:
    dead, queue = place.name("dead"), place.name()
    channel.queue_declare(dead)
    arguments = {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(queue, arguments=arguments)
    channel.basic_publish("", queue, b"late")
    [(_, properties, body)] = take(channel, dead, 1)
    assert (body, properties.headers["x-first-death-reason"]) == (b"late", "expired")


def test_higher_priorities_come_first(place: Place, channel: Any) -> None:
    queue = place.name()
    channel.queue_declare(queue, arguments={"x-max-priority": 10})
    for priority in (1, 9, 5):
        channel.basic_publish("", queue, b"%d" % priority, pika.BasicProperties(priority=priority))
    assert [body for _, _, body in take(channel, queue, 3)] == [b"9", b"5", b"1"]


def test_topic_and_headers_exchanges_choose(place: Place, channel: Any) -> None:
    queue, topic, headers = place.name(), place.name("topic"), place.name("headers")
    channel.queue_declare(queue)
    channel.exchange_declare(topic, "topic")
    channel.exchange_declare(headers, "headers")
    channel.queue_bind(queue, topic, "orders.*.paid")
    channel.queue_bind(queue, headers, arguments={"x-match": "any", "kind": "order", "size": 5})
    channel.basic_publish(topic, "orders.eu.paid", b"1", mandatory=True)
    channel.basic_publish(headers, "", b"2", pika.BasicProperties(headers={"size": 5}), mandatory=True)
    for exchange, key in ((topic, "orders.eu"), (headers, "")):
        with pytest.raises(UnroutableError):
            channel.basic_publish(exchange, key, b"no", pika.BasicProperties(headers={"size": 6}), mandatory=True)
    assert [body for _, _, body in take(channel, queue, 2)] == [b"1", b"2"]


def test_a_full_queue_answers_with_a_nack(place: Place, channel: Any) -> None:
    queue = place.name()
    channel.queue_declare(queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.basic_publish("", queue, b"fits")
    with pytest.raises(NackError):
        channel.basic_publish("", queue, b"does not")


def test_an_error_closes_the_channel_and_not_the_connection(place: Place, connection: Any, channel: Any) -> None:
    queue = place.name()
    channel.queue_declare(queue)
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare(queue, durable=True)
    assert closed.value.reply_code == 406
    assert closed.value.reply_text == (
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': "
        "received 'true' but current is 'false'"
    )
    with pytest.raises(ChannelClosedByBroker) as closed:
        connection.channel().queue_declare("nowhere", passive=True)
    assert (closed.value.reply_code, closed.value.reply_text) == (404, "NOT_FOUND - no queue 'nowhere' in vhost '/'")
    assert connection.channel().queue_declare(queue).method.queue == queue


def test_arguments_are_named_by_the_type_pika_gives_them(place: Place, channel: Any) -> None:
    queue = place.name()
    channel.queue_declare(queue)
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare(queue, arguments={"x-message-ttl": 1000})
    assert closed.value.reply_text.endswith("received the value '1000' of type 'signedint' but current is none")


def test_the_consumers_of_a_deleted_queue_are_cancelled(place: Place, connection: Any, channel: Any) -> None:
    queue = place.name()
    channel.queue_declare(queue)
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume(queue, lambda *_: None)
    connection.channel().queue_delete(queue)
    while not cancelled:
        connection.process_data_events(time_limit=1)


def test_a_wrong_password_and_an_unknown_virtual_host_are_refused(place: Place) -> None:
    wrong = parameters(place.address)
    wrong.credentials = pika.PlainCredentials("guest", "wrong")
    with pytest.raises(ProbableAuthenticationError, match=r"403.*ACCESS_REFUSED - Login was refused"):
        pika.BlockingConnection(wrong)
    elsewhere = parameters(place.address)
    elsewhere.virtual_host = "nowhere"
    with pytest.raises(ProbableAccessDeniedError, match=r"530.*NOT_ALLOWED - vhost nowhere not found"):
        pika.BlockingConnection(elsewhere)


def test_a_transaction_publishes_all_or_nothing(place: Place, connection: Any) -> None:
    channel = connection.channel()
    queue = place.name()
    channel.queue_declare(queue)
    channel.tx_select()
    channel.basic_publish("", queue, b"dropped")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"kept")
    channel.tx_commit()
    assert channel.basic_get(queue, auto_ack=True)[2] == b"kept"
    assert channel.basic_get(queue, auto_ack=True) == (None, None, None)


def until_the_connection_ends(connection: Any) -> None:
    while True:
        connection.process_data_events(time_limit=1)


# -- the broker restarts ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_confirmed_is_there_after_a_restart(mortal: ServerProcess, is_killed: bool) -> None:
    connection = pika.BlockingConnection(parameters(mortal.amqp_address))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("orders", "topic", durable=True)
    channel.queue_declare("work", durable=True, arguments={"x-message-ttl": 3_600_000, "x-max-priority": 5})
    channel.queue_declare("passing")
    channel.queue_bind("work", "orders", "#.eu")
    channel.basic_publish("orders", "paid.eu", b"kept", pika.BasicProperties(delivery_mode=2, priority=3))
    channel.basic_get("work")
    channel.basic_publish("orders", "paid.eu", b"second", PERSISTENT)
    if is_killed:
        mortal.kill()
    else:
        assert mortal.stop() == 0
    with pytest.raises(AMQPConnectionError):
        until_the_connection_ends(connection)
    mortal.restart()
    connection = pika.BlockingConnection(parameters(mortal.amqp_address))
    channel = connection.channel()
    # Declared as it was, and the binding is there; what was not durable is gone.
    channel.queue_declare("work", durable=True, arguments={"x-message-ttl": 3_600_000, "x-max-priority": 5})
    channel.confirm_delivery()
    channel.basic_publish("orders", "new.eu", b"third", PERSISTENT, mandatory=True)
    found = take(channel, "work", 3)
    assert [(body, method.redelivered) for method, _, body in found] == [
        (b"kept", True),
        (b"second", False),
        (b"third", False),
    ]
    with pytest.raises(ChannelClosedByBroker):
        channel.queue_declare("passing", passive=True)
    connection.close()
