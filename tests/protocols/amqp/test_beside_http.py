"""AMQP and HTTP serve the same queues: what goes in over one comes out over the other. See docs/amqp.md."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.protocols.amqp.peer import Basic, Channel, Queue
from tests.protocols.amqp.places import Place
from tests.protocols.http.caller import Caller
from tests.served import Served


@pytest.fixture
def amqp(here: Place) -> Iterator[Channel]:
    with here.connect() as peer:
        yield peer.channel()


@pytest.fixture
def http(smista: Served) -> Iterator[Caller]:
    with Caller(smista.address) as caller:
        yield caller


@pytest.fixture
def shared(here: Place, amqp: Channel) -> str:
    return amqp.declare(here.name(), {"x-max-priority": 10}, durable=True)


def received(http: Caller, queue: str) -> dict[str, Any]:
    [message] = http.call("queue.receive", queue=queue, wait_ms=20_000)["messages"]
    assert isinstance(message, dict)
    return message


# -- from one to the other --------------------------------------------------------------------------------------------


def test_what_is_published_over_http_is_consumed_over_amqp(amqp: Channel, http: Caller, shared: str) -> None:
    amqp.consume(shared)
    http.call(
        "queue.publish",
        queue=shared,
        message={"order": 7},
        priority=4,
        headers={"tenant": "a", "n": 5, "deep": {"list": [1, None, 1.5, True]}},
        correlation_id="c",
        reply_to="r",
        type="t",
        app_id="app",
        user_id="u",
        external_id="id",
        timestamp_ms=1_700_000_000_123,
        ttl_ms=600_000,
    )
    message = amqp.delivery()
    assert message.body == b'{"order":7}'
    assert isinstance(message.method, Basic.Deliver)
    assert (message.method.exchange, message.method.routing_key) == ("", shared)
    properties = message.properties
    assert properties.content_type == "application/json"
    assert (properties.delivery_mode, properties.priority, properties.expiration) == (2, 4, "600000")
    assert (properties.correlation_id, properties.reply_to, properties.message_type) == ("c", "r", "t")
    assert (properties.app_id, properties.user_id, properties.message_id) == ("app", "u", "id")
    assert properties.timestamp == datetime.fromtimestamp(1_700_000_000, UTC)
    assert message.headers == {"tenant": "a", "n": 5, "deep": {"list": [1, None, 1.5, True]}}


def test_what_is_published_over_amqp_is_received_over_http(amqp: Channel, http: Caller, shared: str) -> None:
    amqp.publish(
        b'{"order": 7}',
        shared,
        content_type="application/json",
        content_encoding="identity",
        priority=4,
        headers={"tenant": "a", "at": datetime.fromtimestamp(1_700_000_000, UTC), "deep": {"list": [1, None]}},
        delivery_mode=2,
        correlation_id="c",
        reply_to="r",
        message_type="t",
        app_id="app",
        user_id="guest",
        message_id="id",
        timestamp=datetime.fromtimestamp(1_700_000_000, UTC),
        expiration="600000",
    )
    message = received(http, shared)
    expected = {
        "message": {"order": 7},
        "queue": shared,
        "routing_key": shared,
        "content_type": "application/json",
        "content_encoding": "identity",
        "priority": 4,
        "headers": {"tenant": "a", "at": 1_700_000_000, "deep": {"list": [1, None]}},
        "correlation_id": "c",
        "reply_to": "r",
        "type": "t",
        "app_id": "app",
        "user_id": "guest",
        "external_id": "id",
        "timestamp_ms": 1_700_000_000_000,
        "ttl_ms": 600_000,
        "delivery_count": 1,
    }
    assert {name: message.get(name) for name in expected} == expected
    http.call("queue.ack", receipt=message["receipt"])
    assert amqp.count(shared) == (0, 0)


def test_bodies_of_any_bytes_go_both_ways(amqp: Channel, http: Caller, shared: str) -> None:
    amqp.publish(bytes(range(256)), shared)
    message = http.call("queue.receive", queue=shared, raw=True)["messages"][0]
    http.call("queue.publish", queue=shared, body=message["body"])
    http.call("queue.ack", receipt=message["receipt"])
    assert amqp.got(shared).body == bytes(range(256))


def test_x_delay_and_delay_ms_are_the_same(amqp: Channel, http: Caller, shared: str) -> None:
    amqp.publish(b"a", shared, headers={"x-delay": 3_600_000})
    http.call("queue.publish", queue=shared, message="b", delay_ms=3_600_000)
    amqp.settle(shared)
    assert http.call("queue.stats", queue=shared)["scheduled"] == 2
    assert len(http.call("scheduled.list", queue=shared)["messages"]) == 2


def test_deduplication_knows_no_protocols(amqp: Channel, http: Caller, shared: str) -> None:
    amqp.confirm()
    amqp.publish(b"a", shared, headers={"x-deduplication-header": "7"})
    amqp.confirmed(1)
    assert http.call("queue.publish", queue=shared, message="b", deduplication_id="7")["duplicate"] is True
    assert amqp.count(shared) == (1, 0)


def test_a_fair_queue_knows_the_groups_of_every_protocol(here: Place, amqp: Channel, http: Caller) -> None:
    queue = amqp.declare(here.name(), {"x-fair": True}, durable=True)
    assert http.call("queue.settings", queue=queue)["settings"]["fair"] is True
    amqp.confirm()
    for body in (b"1", b"2", b"3"):
        amqp.publish(body, queue, headers={"x-group": "noisy"})
    amqp.confirmed(3)
    assert [amqp.got(queue).body for _ in range(2)] == [b"1", b"2"]
    http.call("queue.publish", queue=queue, message="4", group="quiet")
    message = http.call("queue.receive", queue=queue)["messages"][0]
    assert (message["message"], message["group"]) == ("4", "quiet")
    assert http.call("queue.receive", queue=queue)["messages"][0]["group"] == "noisy"


def test_an_exchange_declared_over_one_protocol_is_published_to_over_the_other(
    here: Place, amqp: Channel, http: Caller, shared: str
) -> None:
    exchange = amqp.exchange(here.name("x"), "topic", durable=True)
    amqp.bind(shared, exchange, "orders.#")
    routed = http.call("exchange.publish", exchange=exchange, routing_key="orders.eu", message="hello")["routed"]
    assert [each["queue"] for each in routed] == [shared]
    message = amqp.got(shared)
    assert isinstance(message.method, Basic.GetOk)
    assert (message.method.exchange, message.method.routing_key) == (exchange, "orders.eu")
    other = here.name("x")
    http.call("exchange.declare", exchange=other, kind="headers")
    http.call("exchange.bind", exchange=other, queue=shared, arguments={"wanted": 1})
    amqp.publish(b"no", "", other, headers={"wanted": 2})
    amqp.publish(b"yes", "", other, headers={"wanted": 1})
    assert amqp.got(shared).body == b"yes"


# -- settling ---------------------------------------------------------------------------------------------------------


def test_a_lease_over_http_that_runs_out_gives_the_message_to_an_amqp_consumer(
    amqp: Channel, http: Caller, shared: str
) -> None:
    amqp.publish(b"x", shared)
    amqp.settle(shared)
    http.call("queue.receive", queue=shared, lease_ms=200)
    amqp.consume(shared)
    assert amqp.delivery().redelivered


def test_what_an_amqp_channel_held_is_received_over_http(here: Place, http: Caller, shared: str) -> None:
    with here.connect() as peer:
        channel = peer.channel()
        channel.publish(b"x", shared)
        channel.got(shared)
    message = received(http, shared)
    assert (message["message"], message["delivery_count"]) == ("x", 2)


def test_dead_letters_say_why_over_both_protocols(here: Place, amqp: Channel, http: Caller) -> None:
    dead = amqp.declare(here.name("dead"))
    queue = amqp.declare(here.name(), {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    amqp.publish(b"1", queue)
    amqp.publish(b"2", queue)
    amqp.reject(amqp.got(queue).tag)
    amqp.settle(queue)
    message = received(http, queue)
    http.call("queue.nack", receipt=message["receipt"], requeue=False, error="no")
    first = amqp.got(dead)
    assert first.deaths == [{"count": 1, "reason": "rejected", "queue": queue, "exchange": "", "routing-keys": [queue]}]
    second = received(http, dead)
    assert second["routing_key"] == dead
    [death] = second["deaths"]
    assert (death["queue"], death["reason"], death["routing_key"]) == (queue, "rejected", queue)
    assert death["failures"][0]["error"] == "no"


# -- the queue itself -------------------------------------------------------------------------------------------------


def test_deleting_a_queue_over_http_cancels_its_amqp_consumers(amqp: Channel, http: Caller, shared: str) -> None:
    tag = amqp.consume(shared)
    http.call("queue.delete", queue=shared)
    assert amqp.expect(Basic.Cancel).consumer_tag == tag


def test_an_exclusive_queue_that_http_deleted_leaves_its_name_to_others(
    here: Place, amqp: Channel, http: Caller
) -> None:
    queue = amqp.declare(here.name(), exclusive=True)
    http.call("queue.delete", queue=queue)
    with here.connect() as peer:
        channel = peer.channel()
        assert channel.declare(queue) == queue
        amqp.peer.close()
        assert channel.count(queue) == (0, 0)


def test_purging_over_one_protocol_is_seen_over_the_other(amqp: Channel, http: Caller, shared: str) -> None:
    amqp.publish(b"1", shared)
    amqp.settle(shared)
    assert http.call("queue.purge", queue=shared)["purged"] == 1
    assert amqp.count(shared) == (0, 0)
    http.call("queue.publish", queue=shared, message="2")
    assert amqp.purge(shared) == 1
    assert http.call("queue.stats", queue=shared)["ready"] == 0


def test_a_queue_that_http_declared_is_declared_again_over_amqp(here: Place, amqp: Channel, http: Caller) -> None:
    """AMQP has no words for most of its settings, so only whether it is durable is compared."""
    queue = here.name()
    http.call("queue.declare", queue=queue, settings={"max_depth": 5, "message_ttl_ms": 60_000})
    assert amqp.declare(queue, durable=True) == queue
    assert amqp.declare(queue, {"x-message-ttl": 5}, durable=True) == queue
    amqp.consume(queue)
    http.call("queue.publish", queue=queue, message="hello")
    assert amqp.delivery().body == b'"hello"'
    assert amqp.refusal(Queue.Declare(queue=queue)) == (
        f"channel 406 PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': "
        "received 'false' but current is 'true'"
    )


def test_a_queue_that_amqp_declared_has_settings(here: Place, amqp: Channel, http: Caller) -> None:
    queue = amqp.declare(
        here.name(),
        {
            "x-message-ttl": 60_000,
            "x-expires": 600_000,
            "x-max-length": 10,
            "x-max-length-bytes": 1000,
            "x-max-priority": 5,
            "x-dead-letter-exchange": "dlx",
            "x-dead-letter-routing-key": "k",
            "x-single-active-consumer": True,
        },
        durable=True,
    )
    settings = http.call("queue.settings", queue=queue)["settings"]
    expected = {
        "message_ttl_ms": 60_000,
        "expires_ms": 600_000,
        "max_depth": 10,
        "max_bytes": 1000,
        "limit_ready_only": True,
        "max_priority": 5,
        "clamp_priority": True,
        "dead_letter": "move-or-drop",
        "dead_letter_exchange": "dlx",
        "dead_letter_routing_key": "k",
        "overflow": "dead-letter-oldest",
        "single_active_consumer": True,
        "durable": True,
        "retention_ms": None,
        "max_retries": None,
    }
    assert {name: settings[name] for name in expected} == expected


def test_a_queue_altered_over_http_is_still_declared_as_it_was(here: Place, amqp: Channel, http: Caller) -> None:
    queue = amqp.declare(here.name(), {"x-message-ttl": 60_000})
    http.call("queue.alter", queue=queue, settings={"message_ttl_ms": 1_000})
    assert amqp.declare(queue, {"x-message-ttl": 60_000}) == queue


def test_consumers_of_both_protocols_are_counted(amqp: Channel, http: Caller, shared: str) -> None:
    amqp.consume(shared)
    assert http.call("queue.stats", queue=shared)["consumers"] == 1


def test_pausing_over_http_holds_amqp_consumers_back(amqp: Channel, http: Caller, shared: str) -> None:
    http.call("queue.pause", queue=shared)
    amqp.consume(shared)
    amqp.publish(b"x", shared)
    amqp.settle(shared)
    assert amqp.count(shared) == (1, 1)
    http.call("queue.resume", queue=shared)
    assert amqp.delivery().body == b"x"
