"""Queues and exchanges: what a declaration says, what another may say, and when what was declared goes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.protocols.amqp.peer import Basic, Channel, Closed, Confirm, Exchange, Peer, Queue
from tests.protocols.amqp.places import Place
from tests.protocols.http.caller import Caller
from tests.served import Served
from tests.waiting import with_more_time

Refused = Callable[..., str]
QUORUM = {"x-queue-type": "quorum"}
FINE = "channel 406 PRECONDITION_FAILED - unknown delivery tag 99"
"""How a channel ends that was asked for that after something which was in order."""


def declaring(place: Place, queue: str, arguments: dict[str, Any], **flags: bool) -> str:
    """How a channel ends on which a queue is declared."""
    with place.connect() as peer:
        declare = Queue.Declare(queue=queue, arguments=arguments, **flags)
        return peer.channel().refusal(declare, Basic.Ack(delivery_tag=99))


# -- declared again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{"durable": True}, {"auto_delete": True}, {"durable": True, "auto_delete": True}])
def test_a_queue_is_declared_again_with_the_same_flags(place: Place, channel: Channel, flags: dict[str, bool]) -> None:
    queue = place.name()
    for _ in range(2):
        assert channel.declare(queue, **flags) == queue


def test_a_queue_for_which_a_policy_holds_is_declared_again_as_before(here: Place, smista: Served) -> None:
    queue = here.name()
    arguments = {"x-message-ttl": 60_000}
    with here.connect() as peer:
        assert peer.channel().declare(queue, arguments) == queue
    with Caller(smista.address) as caller:
        caller.call("policy.set", policy=queue, pattern=queue, settings={"message_ttl_ms": 5, "max_depth": 3})
        assert declaring(here, queue, arguments) == FINE
        assert "inequivalent arg 'x-message-ttl'" in declaring(here, queue, {"x-message-ttl": 5})
        caller.call("policy.delete", policy=queue)


@pytest.mark.parametrize(("flag", "named"), [("durable", "durable"), ("auto_delete", "auto_delete")])
@pytest.mark.parametrize("is_set", [False, True])
def test_a_queue_declared_again_with_another_flag_is_refused(
    place: Place, channel: Channel, flag: str, named: str, is_set: bool
) -> None:
    queue = channel.declare(place.name(), **{flag: is_set})
    current, received = str(is_set).lower(), str(not is_set).lower()
    assert declaring(place, queue, {}, **{flag: not is_set}) == (
        f"channel 406 PRECONDITION_FAILED - inequivalent arg '{named}' for queue '{queue}' in vhost '/': "
        f"received '{received}' but current is '{current}'"
    )


@pytest.mark.parametrize(
    ("first", "then", "name", "difference"),
    [
        ({}, {"x-message-ttl": 1000}, "x-message-ttl", "the value '1000' of type 'short' but current is none"),
        ({"x-message-ttl": 10}, {}, "x-message-ttl", "none but current is the value '10' of type 'byte'"),
        (
            {"x-message-ttl": 40_000},
            {},
            "x-message-ttl",
            "none but current is the value '40000' of type 'unsignedshort'",
        ),
        ({"x-message-ttl": 70_000}, {}, "x-message-ttl", "none but current is the value '70000' of type 'signedint'"),
        ({}, {"x-message-ttl": 1 << 33}, "x-message-ttl", "the value '8589934592' of type 'long' but current is none"),
        ({"x-message-ttl": 1000}, {"x-message-ttl": 2000}, "x-message-ttl", "'2000' but current is '1000'"),
        ({"x-message-ttl": 5}, {"x-message-ttl": "5"}, "x-message-ttl", "'5' but current is '5'"),
        ({"x-message-ttl": 5}, {"x-message-ttl": 5.0}, "x-message-ttl", "'5.0' but current is '5'"),
        ({}, {"x-message-ttl": -1}, "x-message-ttl", "the value '-1' of type 'byte' but current is none"),
        ({}, {"x-expires": 10_000}, "x-expires", "the value '10000' of type 'short' but current is none"),
        ({}, {"x-max-length": 0}, "x-max-length", "the value '0' of type 'byte' but current is none"),
        ({"x-max-length": 0}, {"x-max-length": 1}, "x-max-length", "'1' but current is '0'"),
        ({}, {"x-max-length-bytes": 5}, "x-max-length-bytes", "the value '5' of type 'byte' but current is none"),
        ({"x-max-priority": 5}, {"x-max-priority": 6}, "x-max-priority", "'6' but current is '5'"),
        ({"x-max-priority": 0}, {}, "x-max-priority", "none but current is the value '0' of type 'byte'"),
        (
            {},
            {"x-dead-letter-exchange": "a"},
            "x-dead-letter-exchange",
            "the value 'a' of type 'longstr' but current is none",
        ),
        (
            {"x-dead-letter-exchange": "a"},
            {"x-dead-letter-exchange": "b"},
            "x-dead-letter-exchange",
            "'b' but current is 'a'",
        ),
        (
            {"x-dead-letter-exchange": "a"},
            {"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "k"},
            "x-dead-letter-routing-key",
            "the value 'k' of type 'longstr' but current is none",
        ),
        ({}, {"x-overflow": "drop-head"}, "x-overflow", "the value 'drop-head' of type 'longstr' but current is none"),
        (
            {"x-overflow": "reject-publish"},
            {"x-overflow": "reject-publish-dlx"},
            "x-overflow",
            "'reject-publish-dlx' but current is 'reject-publish'",
        ),
        ({}, {"x-queue-mode": "lazy"}, "x-queue-mode", "the value 'lazy' of type 'longstr' but current is none"),
        (
            {},
            {"x-single-active-consumer": False},
            "x-single-active-consumer",
            "the value 'false' of type 'bool' but current is none",
        ),
        ({}, QUORUM, "x-queue-type", "the value 'quorum' of type 'longstr' but current is none"),
        (
            {"x-max-length": 5, "x-message-ttl": 5, "x-expires": 5000},
            {"x-max-length": 6, "x-message-ttl": 6, "x-expires": 6000},
            "x-expires",
            "'6000' but current is '5000'",
        ),
    ],
)
def test_a_queue_declared_again_with_another_argument_is_refused(
    place: Place, channel: Channel, first: dict[str, Any], then: dict[str, Any], name: str, difference: str
) -> None:
    queue = channel.declare(place.name(), first)
    assert declaring(place, queue, then) == (
        f"channel 406 PRECONDITION_FAILED - inequivalent arg '{name}' for queue '{queue}' in vhost '/': "
        f"received {difference}"
    )


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"x-message-ttl": 1000}, {"x-message-ttl": 1000}),
        ({}, {"x-queue-type": "classic"}),
        ({"x-queue-type": "classic"}, {}),
        ({}, {"x-anything": 5}),
        ({"x-anything": 5}, {}),
        ({}, {"x-delivery-limit": 5}),
        # Bytes that are marked as such, as some clients send what is no text to them.
        ({"x-overflow": "drop-head"}, {"x-overflow": bytearray(b"drop-head")}),
        ({"x-dead-letter-exchange": "x"}, {"x-dead-letter-exchange": bytearray(b"x")}),
        ({"x-queue-master-locator": bytearray(b"client-local")}, {"x-queue-master-locator": "client-local"}),
        ({"x-queue-master-locator": bytearray(b"min-masters")}, {"x-queue-master-locator": bytearray(b"min-masters")}),
    ],
)
def test_a_queue_is_declared_again_with_what_amounts_to_the_same(
    place: Place, channel: Channel, first: dict[str, Any], then: dict[str, Any]
) -> None:
    queue = channel.declare(place.name(), first)
    assert declaring(place, queue, then) == FINE


@pytest.mark.parametrize(
    ("first", "then", "difference"),
    [
        (QUORUM, {}, "'x-queue-type' for {}: received none but current is the value 'quorum' of type 'longstr'"),
        (QUORUM, {"x-queue-type": "classic"}, "'x-queue-type' for {}: received 'classic' but current is 'quorum'"),
        (
            QUORUM,
            {**QUORUM, "x-delivery-limit": 3},
            "'x-delivery-limit' for {}: received the value '3' of type 'byte' but current is none",
        ),
    ],
)
def test_a_quorum_queue_declared_again_otherwise_is_refused(
    place: Place, channel: Channel, first: dict[str, Any], then: dict[str, Any], difference: str
) -> None:
    queue = channel.declare(place.name(), first, durable=True)
    named = difference.format(f"queue '{queue}' in vhost '/'")
    assert declaring(place, queue, then, durable=True) == f"channel 406 PRECONDITION_FAILED - inequivalent arg {named}"


def test_whose_a_queue_is_counts_before_how_it_was_declared(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name())
    refusal = declaring(place, queue, {"x-message-ttl": 5}, durable=True, auto_delete=True, exclusive=True)
    assert refusal.startswith("channel 405 RESOURCE_LOCKED")


def test_an_exclusive_queue_is_not_durable_whatever_was_said(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), exclusive=True, durable=True)
    assert channel.declare(queue, exclusive=True) == queue


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"exchange_type": "fanout"}, "'type' for {}: received 'fanout' but current is 'direct'"),
        ({"durable": True}, "'durable' for {}: received 'true' but current is 'false'"),
        ({"auto_delete": True}, "'auto_delete' for {}: received 'true' but current is 'false'"),
        ({"internal": True}, "'internal' for {}: received 'true' but current is 'false'"),
        (
            {"arguments": {"alternate-exchange": "other"}},
            "'alternate-exchange' for {}: received the value 'other' of type 'longstr' but current is none",
        ),
    ],
)
def test_an_exchange_declared_again_otherwise_is_refused(
    place: Place, channel: Channel, refused: Refused, changed: dict[str, Any], difference: str
) -> None:
    exchange = channel.exchange(place.name("x"))
    again = Exchange.Declare(**{"exchange": exchange, "exchange_type": "direct", **changed})
    named = difference.format(f"exchange '{exchange}' in vhost '/'")
    assert refused(again) == f"channel 406 PRECONDITION_FAILED - inequivalent arg {named}"


# -- arguments that are wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", "a", '"expected integer, got longstr"'),
        ("x-message-ttl", 1.5, '"expected integer, got float"'),
        ("x-message-ttl", True, '"expected integer, got bool"'),
        ("x-message-ttl", None, '"expected integer, got void"'),
        ("x-message-ttl", bytearray(b"x"), '"expected integer, got binary"'),
        ("x-message-ttl", 315_360_000_001, "{value_too_large,315360000001}"),
        ("x-expires", 0, "{value_zero,0}"),
        ("x-expires", -1, "{value_negative,-1}"),
        ("x-max-length", -1, "{value_negative,-1}"),
        ("x-max-length-bytes", "a", '"expected integer, got longstr"'),
        ("x-max-priority", -1, "{value_negative,-1}"),
        ("x-max-priority", 256, "{max_value_exceeded,256}"),
        ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-routing-key", 5, "{unacceptable_type,byte}"),
        ("x-overflow", "explode", "invalid_overflow"),
        ("x-overflow", 5, "{unacceptable_type,byte}"),
        ("x-single-active-consumer", "true", "{unacceptable_type,longstr}"),
        ("x-queue-type", "nope", "\"unsupported queue type 'nope'\""),
        ("x-queue-type", 5, "{unacceptable_type,byte}"),
        ("x-queue-mode", "nope", "\"unsupported queue mode 'nope'\""),
        ("x-queue-version", 3, "\"unsupported queue version '3'\""),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(place: Place, name: str, value: Any, why: str) -> None:
    queue = place.name()
    assert declaring(place, queue, {name: value}) == (
        f"channel 406 PRECONDITION_FAILED - invalid arg '{name}' for queue '{queue}' in vhost '/': {why}"
    )


def test_our_own_argument_is_checked_and_compared_like_the_others(here: Place) -> None:
    queue = here.name()
    problem = "channel 406 PRECONDITION_FAILED - {} arg 'x-fair' for queue '" + queue + "' in vhost '/': {}"
    assert declaring(here, queue, {"x-fair": 1}) == problem.format("invalid", "{unacceptable_type,byte}")
    assert declaring(here, queue, {"x-fair": True}) == FINE
    assert declaring(here, queue, {}) == problem.format(
        "inequivalent", "received none but current is the value 'true' of type 'bool'"
    )
    quorum = here.name()
    assert declaring(here, quorum, {**QUORUM, "x-fair": True}, durable=True) == FINE


def test_a_dead_letter_exchange_is_named_by_text(place: Place) -> None:
    queue = place.name()
    assert declaring(place, queue, {"x-dead-letter-exchange": 5}) == (
        "channel 406 PRECONDITION_FAILED - invalid type 'byte' for arg 'x-dead-letter-exchange' in "
        f"queue '{queue}' in vhost '/'"
    )


def test_an_alternate_exchange_is_named_by_text(place: Place, refused: Refused) -> None:
    exchange = place.name("x")
    declare = Exchange.Declare(exchange=exchange, exchange_type="direct", arguments={"alternate-exchange": 5})
    assert refused(declare) == (
        "channel 406 PRECONDITION_FAILED - invalid type 'byte' for arg 'alternate-exchange' in "
        f"exchange '{exchange}' in vhost '/'"
    )


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("x-delivery-limit", 5, "classic"),
        ("x-max-age", "1D", "classic"),
        ("x-quorum-initial-group-size", 3, "classic"),
        ("x-dead-letter-strategy", "at-least-once", "classic"),
        ("x-max-priority", 5, "quorum"),
        ("x-queue-mode", "lazy", "quorum"),
        ("x-queue-version", 1, "quorum"),
    ],
)
def test_an_argument_for_another_type_of_queue_is_refused(place: Place, name: str, value: Any, kind: str) -> None:
    queue = place.name()
    assert declaring(place, queue, {name: value, "x-queue-type": kind}, durable=True) == (
        f"channel 406 PRECONDITION_FAILED - invalid arg '{name}' for queue '{queue}' in vhost '/' "
        f"of queue type rabbit_{kind}_queue"
    )


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({}, "non-durable"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
        ({"exclusive": True}, "exclusive-owner"),
    ],
)
def test_a_quorum_queue_is_durable_and_everybodys(place: Place, flags: dict[str, bool], named: str) -> None:
    queue = place.name()
    assert declaring(place, queue, QUORUM, **flags) == (
        f"channel 406 PRECONDITION_FAILED - invalid property '{named}' for queue '{queue}' in vhost '/'"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": 315_360_000_000},
        {"x-max-length": 10**18},
        {"x-max-priority": 255},
        {"x-dead-letter-exchange": "not-there-yet"},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"},
        {"x-queue-mode": "lazy"},
        {"x-queue-version": 2},
        {"x-queue-type": "classic"},
        {"x-queue-master-locator": "client-local"},
        {"x-unheard-of": [1, {"a": None}]},
        {**QUORUM, "x-delivery-limit": 0},
        {**QUORUM, "x-message-ttl": 5000, "x-max-length": 10, "x-overflow": "reject-publish"},
        {**QUORUM, "x-single-active-consumer": True, "x-quorum-initial-group-size": 1},
    ],
    ids=str,
)
def test_arguments_that_rabbitmq_takes_are_taken(place: Place, arguments: dict[str, Any]) -> None:
    assert declaring(place, place.name(), arguments, durable=True) == FINE


def test_streams_are_refused_clearly(here: Place) -> None:
    queue = here.name()
    assert declaring(here, queue, {"x-queue-type": "stream"}, durable=True) == (
        f"channel 406 PRECONDITION_FAILED - invalid arg 'x-queue-type' for queue '{queue}' in vhost '/': "
        "\"unsupported queue type 'stream'\""
    )


# -- names ------------------------------------------------------------------------------------------------------------


def test_the_broker_names_queues_and_consumers_that_have_no_name(channel: Channel) -> None:
    queue, other = channel.declare(exclusive=True), channel.declare(exclusive=True)
    assert queue != other
    assert queue.startswith("amq.gen-")
    assert len(queue) == len("amq.gen-") + 22
    tag = channel.consume(queue)
    assert tag.startswith("amq.ctag-")
    assert len(tag) == len("amq.ctag-") + 22


def test_no_name_means_the_queue_declared_last_on_the_channel(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.bind("", "amq.direct", f"key-{queue}")
    channel.publish(b"bound", f"key-{queue}", "amq.direct")
    channel.publish(b"named", queue)
    assert [channel.got("").body, channel.got("").body] == [b"bound", b"named"]
    channel.publish(b"purged", queue)
    assert channel.purge("") == 1
    channel.consume("")
    assert channel.count(queue) == (0, 1)
    assert channel.delete("") == 0


def test_a_binding_with_neither_name_nor_key_has_the_queues_name_as_key(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    channel.bind("", "amq.direct", "")
    channel.publish(b"by name", queue, "amq.direct")
    assert channel.got(queue).body == b"by name"


def test_a_binding_of_a_named_queue_without_a_key_has_none(channel: Channel, queue: str, place: Place) -> None:
    exchange = channel.exchange(place.name("x"))
    channel.bind(queue, exchange, "")
    channel.publish(b"by name", queue, exchange)
    channel.publish(b"by nothing", "", exchange)
    assert channel.bodies(queue) == [b"by nothing"]


def test_a_passive_declare_counts_as_the_last_declared(channel: Channel, queue: str) -> None:
    channel.declare(exclusive=True)
    channel.declare(queue, passive=True)
    channel.publish(b"x", queue)
    assert channel.got("").body == b"x"


def test_without_waiting_there_are_no_answers(channel: Channel, place: Place) -> None:
    queue, exchange = place.name(), place.name("x")
    channel.send(
        Queue.Declare(queue=queue, nowait=True),
        Exchange.Declare(exchange=exchange, exchange_type="fanout", nowait=True),
        Queue.Bind(queue=queue, exchange=exchange, routing_key="", nowait=True),
        Confirm.Select(nowait=True),
        Basic.Consume(queue=queue, consumer_tag="t", nowait=True),
    )
    channel.publish(b"hello", "", exchange)
    assert channel.confirmed(1) == []
    assert channel.delivery().consumer == "t"
    channel.send(
        Basic.Cancel(consumer_tag="t", nowait=True),
        Queue.Purge(queue=queue, nowait=True),
        Queue.Delete(queue=queue, nowait=True),
        Exchange.Delete(exchange=exchange, nowait=True),
    )
    channel.qos(1)
    assert not channel.events


# -- counts -----------------------------------------------------------------------------------------------------------


def test_a_declare_tells_what_is_ready_and_who_consumes(peer: Peer, channel: Channel, queue: str) -> None:
    for _ in range(3):
        channel.publish(b"x", queue)
    channel.got(queue)
    assert channel.count(queue) == (2, 0)
    consumer = peer.channel()
    consumer.qos(1)
    consumer.consume(queue)
    consumer.consume(queue)
    consumer.deliveries(2)
    assert channel.count(queue) == (0, 2)


def test_a_get_tells_what_remains(channel: Channel, queue: str) -> None:
    for _ in range(3):
        channel.publish(b"x", queue)
    counts = [getattr(channel.got(queue).method, "message_count", None) for _ in range(3)]
    assert counts == [2, 1, 0]
    assert channel.get(queue) is None


def test_a_delete_tells_what_was_ready(channel: Channel, queue: str) -> None:
    for _ in range(3):
        channel.publish(b"x", queue)
    channel.got(queue)
    assert channel.delete(queue) == 2


def test_a_purge_takes_what_is_ready_and_nothing_else(channel: Channel, queue: str) -> None:
    for _ in range(3):
        channel.publish(b"x", queue)
    held = channel.got(queue)
    assert channel.purge(queue) == 2
    channel.nack(held.tag)
    channel.settle(queue)
    assert channel.count(queue) == (1, 0)


# -- what goes by itself ----------------------------------------------------------------------------------------------


def is_gone(channel: Channel, queue: str) -> bool:
    """Whether there is no such queue; the channel is then closed."""
    try:
        channel.count(queue)
    except Closed as closed:
        return str(closed) == f"channel 404 NOT_FOUND - no queue '{queue}' in vhost '/'"
    return False


@pytest.mark.parametrize("is_polite", [True, False])
def test_an_exclusive_queue_goes_with_its_connection(place: Place, channel: Channel, is_polite: bool) -> None:
    peer = place.connect()
    queue = peer.channel().declare(place.name(), exclusive=True, durable=True)
    if is_polite:
        peer.close()
    else:
        peer.drop()
    probe = channel
    while not is_gone(probe, queue):
        pass


def test_an_exclusive_queue_outlives_the_channel_that_declared_it(place: Place, peer: Peer, channel: Channel) -> None:
    other = peer.channel()
    queue = other.declare(place.name(), exclusive=True)
    other.close()
    assert channel.count(queue) == (0, 0)


def test_an_auto_delete_queue_goes_with_its_last_consumer(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), auto_delete=True)
    first, second = channel.consume(queue), channel.consume(queue)
    channel.cancel(first)
    assert channel.count(queue) == (0, 1)
    channel.cancel(second)
    assert is_gone(channel, queue)


def test_an_auto_delete_queue_goes_when_its_consumers_channel_does(place: Place, peer: Peer, channel: Channel) -> None:
    queue = channel.declare(place.name(), auto_delete=True)
    other = peer.channel()
    other.consume(queue)
    other.close()
    assert is_gone(channel, queue)


def test_an_auto_delete_queue_that_never_had_a_consumer_stays(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), auto_delete=True)
    channel.get(queue)
    assert not is_gone(channel, queue)


@pytest.mark.parametrize("cause", ["unbind", "delete"])
def test_an_auto_delete_exchange_goes_with_the_last_binding_from_it(
    place: Place, channel: Channel, queue: str, refused: Refused, cause: str
) -> None:
    exchange = channel.exchange(place.name("x"), auto_delete=True)
    channel.bind(queue, exchange, "k")
    if cause == "unbind":
        channel.call(Queue.Unbind(queue=queue, exchange=exchange, routing_key="k"), Queue.UnbindOk)
    else:
        channel.delete(queue)
    assert refused(Exchange.Declare(exchange=exchange, exchange_type="direct", passive=True)) == (
        f"channel 404 NOT_FOUND - no exchange '{exchange}' in vhost '/'"
    )


def test_bindings_to_an_auto_delete_exchange_do_not_count(place: Place, channel: Channel) -> None:
    exchange = channel.exchange(place.name("x"), auto_delete=True)
    bind = Exchange.Bind(source="amq.direct", destination=exchange, routing_key=exchange)
    channel.call(bind, Exchange.BindOk)
    unbind = Exchange.Unbind(source="amq.direct", destination=exchange, routing_key=exchange)
    channel.call(unbind, Exchange.UnbindOk)
    channel.exchange(exchange, passive=True)


def test_a_queue_that_nobody_uses_expires(place: Place, peer: Peer) -> None:
    for attempt in with_more_time(200, 2_000, 20_000, errors=(Closed,)):
        with attempt as expires_ms:
            channel = peer.channel()
            queue = channel.declare(place.name(), {"x-expires": int(expires_ms)})
            tag = channel.consume(queue)
    # While it has a consumer it stays, however long that is.
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    waiter = channel.declare(place.name(), {"x-message-ttl": int(2.5 * expires_ms), **dead_letters})
    channel.publish(b"later", waiter)
    assert channel.delivery().body == b"later"
    channel.cancel(tag)
    with place.connect() as other:
        wait_until_gone(other, queue)


def wait_until_gone(peer: Peer, queue: str) -> None:
    """By publishing to it, which does not keep it; a declare would."""
    channel = peer.channel()
    channel.confirm()
    tag = 0
    while True:
        tag += 1
        channel.publish(b"anybody?", queue, mandatory=True)
        channel.expect(Basic.Ack)
        if any(not isinstance(event, Basic.Ack) for event in channel.events):
            return


def test_publishing_does_not_keep_a_queue_from_expiring(place: Place, peer: Peer, channel: Channel) -> None:
    wait_until_gone(peer, channel.declare(place.name(), {"x-expires": 300}))


@pytest.mark.slow
def test_looking_at_a_queue_keeps_it_from_expiring(place: Place, peer: Peer) -> None:
    for attempt in with_more_time(2_000, 20_000, errors=(Closed,)):
        with attempt as expires_ms:
            channel = peer.channel()
            rang = channel.declare(place.name("rang"))
            dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": rang}
            clock = channel.declare(place.name(), {"x-message-ttl": int(1.5 * expires_ms), **dead_letters})
            queue = channel.declare(place.name(), {"x-expires": int(expires_ms)})
            channel.publish(b"later", clock)
            while channel.get(rang, no_ack=True) is None:
                channel.count(queue)
