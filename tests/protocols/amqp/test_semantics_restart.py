"""What is durable, and so is as it was after a kill -9."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.protocols.amqp.peer import Channel, Exchange, Peer, Queue
from tests.server_process import ServerProcess

pytestmark = pytest.mark.slow


def restart(server: ServerProcess, before: Channel) -> Channel:
    """Kill the broker and start it again; a channel to what is there then."""
    server.kill()
    before.peer.drop()
    server.restart()
    return Peer(server.amqp_address).channel()


def test_bindings_with_arguments_of_every_type_match_as_before(mortal: ServerProcess) -> None:
    channel = Peer(mortal.amqp_address).channel()
    channel.exchange("x", "headers", durable=True)
    channel.declare("q", durable=True)
    rule: dict[str, Any] = {
        "time": datetime(2020, 1, 1, tzinfo=UTC),
        "decimal": Decimal("1.5"),
        "octets": bytearray(b"\xff\x00"),
        "list": [1, {"deep": None}],
        "real": 1.5,
        "flag": True,
        "small": 1,
        "large": 1 << 40,
    }
    channel.bind("q", "x", "", rule)
    channel = restart(mortal, channel)
    channel.publish(b"yes", "", "x", headers=rule)
    channel.publish(b"no", "", "x", headers={**rule, "decimal": Decimal("1.6")})
    assert channel.bodies("q") == [b"yes"]
    unbind = Queue.Unbind(queue="q", exchange="x", routing_key="", arguments=rule)
    channel.call(unbind, Queue.UnbindOk)
    channel.publish(b"no", "", "x", headers=rule)
    assert channel.bodies("q") == []
    channel.peer.drop()


def test_a_queue_is_held_against_the_arguments_it_was_declared_with(mortal: ServerProcess) -> None:
    channel = Peer(mortal.amqp_address).channel()
    arguments: dict[str, Any] = {"x-message-ttl": 60_000, "x-queue-mode": "lazy", "x-max-length": 5}
    channel.declare("q", arguments, durable=True)
    channel = restart(mortal, channel)
    channel.declare("q", arguments, durable=True)
    assert channel.refusal(Queue.Declare(queue="q", durable=True, arguments={**arguments, "x-max-length": 6})) == (
        "channel 406 PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': "
        "received '6' but current is '5'"
    )
    channel.peer.drop()


def test_exchanges_and_what_binds_them_are_there(mortal: ServerProcess) -> None:
    channel = Peer(mortal.amqp_address).channel()
    channel.exchange("alternate", "fanout", durable=True)
    channel.exchange("source", "topic", {"alternate-exchange": "alternate"}, durable=True)
    channel.exchange("middle", "fanout", durable=True)
    channel.exchange("fleeting", "fanout")
    channel.declare("q", durable=True)
    channel.call(Exchange.Bind(source="source", destination="middle", routing_key="a.*"), Exchange.BindOk)
    for exchange in ("middle", "alternate", "fleeting"):
        channel.bind("q", exchange)
    channel = restart(mortal, channel)
    channel.publish(b"bound", "a.b", "source")
    channel.publish(b"alternate", "unknown", "source")
    assert channel.bodies("q") == [b"bound", b"alternate"]
    assert channel.refusal(Exchange.Declare(exchange="fleeting", exchange_type="fanout", passive=True)).startswith(
        "channel 404"
    )
    channel.peer.drop()


def test_dead_letters_tell_what_they_told_before(mortal: ServerProcess) -> None:
    channel = Peer(mortal.amqp_address).channel()
    channel.exchange("dlx", "fanout", durable=True)
    channel.declare("dead", durable=True)
    channel.declare("also", durable=True)
    channel.bind("dead", "dlx")
    channel.bind("also", "dlx")
    channel.declare("q", {"x-dead-letter-exchange": "dlx"}, durable=True)
    channel.publish(b"x", "q", expiration="60000", headers={"small": 1, "octets": bytearray(b"\xff")})
    channel.reject(channel.got("q").tag)
    channel.settle("q")
    before = {}
    for queue in ("dead", "also"):
        message = channel.got(queue)
        before[queue] = (dict(message.method), message.raw)
        channel.nack(message.tag)
    # A confirm says that everything before it is on disk.
    channel.confirm()
    channel.publish(b"mark", "q")
    channel.confirmed(1)
    channel = restart(mortal, channel)
    for queue, (_, raw) in before.items():
        message = channel.got(queue)
        assert getattr(message.method, "exchange", None) == "dlx"
        assert getattr(message.method, "routing_key", None) == "q"
        assert message.raw == raw
        assert message.deaths[0]["original-expiration"] == "60000"
    channel.peer.drop()


def test_what_was_confirmed_is_there_and_what_was_held_is_marked(mortal: ServerProcess) -> None:
    channel = Peer(mortal.amqp_address).channel()
    channel.declare("q", {"x-max-priority": 5}, durable=True)
    channel.confirm()
    for number, priority in enumerate((1, 5, 3)):
        channel.publish(b"%d" % number, "q", priority=priority, delivery_mode=2)
    channel.confirmed(3)
    channel.got("q")
    channel.publish(b"3", "q")
    channel.expect_confirm()
    channel = restart(mortal, channel)
    found = [channel.got("q") for _ in range(4)]
    assert [(message.body, message.redelivered) for message in found] == [
        (b"1", True),
        (b"2", False),
        (b"0", False),
        (b"3", False),
    ]
    channel.peer.drop()


def test_what_is_not_durable_is_gone(mortal: ServerProcess) -> None:
    channel = Peer(mortal.amqp_address).channel()
    channel.declare("passing")
    channel.declare("mine", exclusive=True, durable=True)
    for queue in ("passing", "mine"):
        channel.publish(b"x", queue)
    channel = restart(mortal, channel)
    for queue in ("passing", "mine"):
        assert channel.peer.channel().refusal(Queue.Declare(queue=queue, passive=True)) == (
            f"channel 404 NOT_FOUND - no queue '{queue}' in vhost '/'"
        )
    channel.peer.drop()
