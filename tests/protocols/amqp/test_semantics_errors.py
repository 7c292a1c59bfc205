"""What a client may not do: RabbitMQ's code and text, at the level at which RabbitMQ gives it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from pamqp import base, header

from tests.protocols.amqp.peer import Basic, Channel, ChannelClass, Confirm, Exchange, Peer, Queue, Tx
from tests.protocols.amqp.places import Place

Refused = Callable[..., str]
QUORUM = {"x-queue-type": "quorum"}
DEFAULT_EXCHANGE = "channel 403 ACCESS_REFUSED - operation not permitted on the default exchange"
LOCKED = (
    "channel 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{}' in vhost '/'. It could be "
    "originally declared on another connection or the exclusive property value does not match that of the original "
    "declaration."
)


# -- what is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        Queue.Declare(queue="nowhere", passive=True),
        Queue.Purge(queue="nowhere"),
        Queue.Bind(queue="nowhere", exchange="amq.direct", routing_key=""),
        Basic.Consume(queue="nowhere"),
        Basic.Get(queue="nowhere"),
    ],
    ids=lambda method: method.name,
)
def test_a_queue_that_is_not_there_closes_the_channel(refused: Refused, method: base.Frame) -> None:
    assert refused(method) == "channel 404 NOT_FOUND - no queue 'nowhere' in vhost '/'"


@pytest.mark.parametrize(
    "method",
    [
        Exchange.Declare(exchange="nowhere", exchange_type="direct", passive=True),
        Exchange.Bind(source="nowhere", destination="amq.direct", routing_key=""),
        Exchange.Bind(source="amq.direct", destination="nowhere", routing_key=""),
        Queue.Bind(queue="nor-that", exchange="nowhere", routing_key=""),
    ],
    ids=lambda method: method.name,
)
def test_an_exchange_that_is_not_there_closes_the_channel(refused: Refused, method: base.Frame) -> None:
    assert refused(method) == "channel 404 NOT_FOUND - no exchange 'nowhere' in vhost '/'"


def test_a_publish_to_an_exchange_that_is_not_there_closes_the_channel(channel: Channel) -> None:
    channel.publish(b"lost", "key", "nowhere")
    assert channel.ending() == "channel 404 NOT_FOUND - no exchange 'nowhere' in vhost '/'"


@pytest.mark.parametrize(
    "method",
    [
        Queue.Bind(queue="", exchange="amq.direct", routing_key=""),
        Queue.Purge(queue=""),
        Queue.Delete(queue=""),
        Basic.Consume(queue=""),
        Basic.Get(queue=""),
    ],
    ids=lambda method: method.name,
)
def test_no_name_before_anything_was_declared_closes_the_channel(refused: Refused, method: base.Frame) -> None:
    assert refused(method) == "channel 404 NOT_FOUND - no previously declared queue"


def test_a_passive_declare_takes_no_name_literally(refused: Refused) -> None:
    assert refused(Queue.Declare(queue="", passive=True)) == "channel 404 NOT_FOUND - no queue '' in vhost '/'"


def test_deleting_and_unbinding_what_is_not_there_is_no_error(channel: Channel, queue: str) -> None:
    assert channel.delete("nowhere") == 0
    channel.call(Exchange.Delete(exchange="nowhere"), Exchange.DeleteOk)
    channel.call(Queue.Unbind(queue="nowhere", exchange="amq.direct", routing_key="k"), Queue.UnbindOk)
    channel.call(Queue.Unbind(queue=queue, exchange="nowhere", routing_key="k"), Queue.UnbindOk)
    channel.call(Queue.Unbind(queue=queue, exchange="amq.direct", routing_key="k"), Queue.UnbindOk)
    unbind = Exchange.Unbind(source="nowhere", destination="amq.direct", routing_key="k")
    channel.call(unbind, Exchange.UnbindOk)


def test_cancelling_a_consumer_that_is_not_there_is_no_error(channel: Channel) -> None:
    channel.cancel("nobody")


# -- what belongs to the broker ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        Exchange.Declare(exchange="", exchange_type="direct"),
        Exchange.Declare(exchange="", exchange_type="direct", passive=True),
        Exchange.Delete(exchange=""),
        Exchange.Bind(source="", destination="amq.direct", routing_key=""),
        Exchange.Bind(source="amq.direct", destination="", routing_key=""),
        Exchange.Unbind(source="", destination="amq.direct", routing_key=""),
        Exchange.Unbind(source="amq.direct", destination="", routing_key=""),
    ],
    ids=lambda method: method.name,
)
def test_the_default_exchange_is_not_to_be_touched(refused: Refused, method: base.Frame) -> None:
    assert refused(method) == DEFAULT_EXCHANGE


@pytest.mark.parametrize("kind", [Queue.Bind, Queue.Unbind])
def test_queues_are_bound_to_the_default_exchange_by_nobody(
    refused: Refused, queue: str, kind: type[Queue.Bind] | type[Queue.Unbind]
) -> None:
    assert refused(kind(queue=queue, exchange="", routing_key=queue)) == DEFAULT_EXCHANGE


def test_names_with_the_prefix_of_the_broker_are_refused(refused: Refused) -> None:
    assert refused(Queue.Declare(queue="amq.mine")) == (
        "channel 403 ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"
    )
    assert refused(Exchange.Declare(exchange="amq.mine", exchange_type="direct")) == (
        "channel 403 ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"
    )


def test_a_queue_named_by_the_broker_cannot_be_declared_again_by_its_name(channel: Channel) -> None:
    queue = channel.declare(exclusive=True)
    assert channel.refusal(Queue.Declare(queue=queue, exclusive=True)) == (
        f"channel 403 ACCESS_REFUSED - queue name '{queue}' contains reserved prefix 'amq.*'"
    )


def test_what_has_the_prefix_may_be_declared_as_it_is_and_looked_at(channel: Channel) -> None:
    channel.exchange("amq.direct", "direct", durable=True)
    channel.exchange("amq.match", "headers", durable=True)
    queue = channel.declare(exclusive=True)
    assert channel.declare(queue, passive=True) == queue


@pytest.mark.parametrize("name", ["amq.direct", "amq.no-such-exchange"])
def test_exchanges_of_the_broker_cannot_be_deleted(refused: Refused, name: str) -> None:
    assert refused(Exchange.Delete(exchange=name)) == (
        f"channel 403 ACCESS_REFUSED - deletion of system exchange '{name}' in vhost '/' not allowed"
    )


def test_an_internal_exchange_takes_nothing_from_publishers(channel: Channel, place: Place) -> None:
    exchange = channel.exchange(place.name("internal"), internal=True)
    channel.publish(b"no", "key", exchange)
    assert channel.ending() == (
        f"channel 403 ACCESS_REFUSED - cannot publish to internal exchange '{exchange}' in vhost '/'"
    )


def test_an_exchange_type_that_nobody_knows_is_refused(refused: Refused, place: Place) -> None:
    refusal = refused(Exchange.Declare(exchange=place.name("x"), exchange_type="zz"))
    if place.is_rabbitmq:  # 3.10; 4.x answers as we do
        assert refusal == "connection 503 COMMAND_INVALID - unknown exchange type 'zz'"
    else:
        assert refusal == "channel 406 PRECONDITION_FAILED - unknown exchange type 'zz'"


# -- what belongs to somebody else ------------------------------------------------------------------------------------


def test_another_connections_exclusive_queue_is_locked(place: Place, channel: Channel, refused: Refused) -> None:
    queue = channel.declare(place.name(), exclusive=True)
    channel.bind(queue, "amq.direct", queue)
    for method in (
        Queue.Declare(queue=queue, passive=True),
        Queue.Declare(queue=queue, exclusive=True),
        Queue.Declare(queue=queue),
        Queue.Bind(queue=queue, exchange="amq.direct", routing_key="k"),
        Queue.Unbind(queue=queue, exchange="amq.direct", routing_key=queue),
        Queue.Purge(queue=queue),
        Queue.Delete(queue=queue),
        Basic.Consume(queue=queue),
        Basic.Get(queue=queue),
    ):
        assert refused(method) == LOCKED.format(queue), method.name
    assert channel.count(queue) == (0, 0)
    channel.publish(b"still bound", queue, "amq.direct")
    assert channel.got(queue).body == b"still bound"


def test_a_queue_cannot_become_exclusive_nor_cease_to_be(place: Place, peer: Peer, channel: Channel) -> None:
    shared = channel.declare(place.name())
    assert channel.refusal(Queue.Declare(queue=shared, exclusive=True)) == LOCKED.format(shared)
    channel = peer.channel()
    exclusive = channel.declare(place.name(), exclusive=True)
    assert channel.refusal(Queue.Declare(queue=exclusive)) == LOCKED.format(exclusive)


def test_beside_an_exclusive_consumer_there_is_no_other(peer: Peer, queue: str) -> None:
    in_use = f"channel 403 ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"
    first = peer.channel()
    tag = first.consume(queue, exclusive=True)
    assert peer.channel().refusal(Basic.Consume(queue=queue)) == in_use
    assert peer.channel().refusal(Basic.Consume(queue=queue, exclusive=True)) == in_use
    first.cancel(tag)
    first.consume(queue)
    assert peer.channel().refusal(Basic.Consume(queue=queue, exclusive=True)) == in_use


def test_a_queue_with_a_single_active_consumer_has_no_exclusive_one(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-single-active-consumer": True})
    assert channel.refusal(Basic.Consume(queue=queue, exclusive=True)) == (
        f"channel 403 ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"
    )


# -- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        Basic.Ack(delivery_tag=99),
        Basic.Ack(delivery_tag=99, multiple=True),
        Basic.Nack(delivery_tag=99),
        Basic.Nack(delivery_tag=99, multiple=True),
        Basic.Reject(delivery_tag=99),
    ],
    ids=lambda method: f"{method.name}-{getattr(method, 'multiple', False)}",
)
def test_a_delivery_tag_that_nobody_knows_closes_the_channel(refused: Refused, method: base.Frame) -> None:
    assert refused(method) == "channel 406 PRECONDITION_FAILED - unknown delivery tag 99"


@pytest.mark.parametrize("multiple", [False, True])
def test_a_delivery_is_acknowledged_once(channel: Channel, queue: str, multiple: bool) -> None:
    channel.publish(b"once", queue)
    tag = channel.got(queue).tag
    channel.ack(tag)
    channel.ack(tag, multiple=multiple)
    assert channel.ending() == f"channel 406 PRECONDITION_FAILED - unknown delivery tag {tag}"


def test_tag_0_names_no_single_delivery(refused: Refused) -> None:
    assert refused(Basic.Ack(delivery_tag=0)) == "channel 406 PRECONDITION_FAILED - unknown delivery tag 0"


def test_deliveries_belong_to_their_channel(peer: Peer, channel: Channel, queue: str) -> None:
    channel.publish(b"mine", queue)
    tag = channel.got(queue).tag
    assert peer.channel().refusal(Basic.Ack(delivery_tag=tag)) == (
        f"channel 406 PRECONDITION_FAILED - unknown delivery tag {tag}"
    )


def test_what_needs_no_acknowledgement_cannot_be_acknowledged(peer: Peer, channel: Channel, queue: str) -> None:
    channel.publish(b"one", queue)
    tag = channel.got(queue, no_ack=True).tag
    assert channel.refusal(Basic.Ack(delivery_tag=tag)).endswith(f"unknown delivery tag {tag}")
    channel = peer.channel()
    channel.publish(b"two", queue)
    channel.consume(queue, no_ack=True)
    tag = channel.delivery().tag
    assert channel.refusal(Basic.Ack(delivery_tag=tag)).endswith(f"unknown delivery tag {tag}")


def test_a_queue_that_is_not_empty_is_kept_from_a_careful_delete(channel: Channel, queue: str) -> None:
    channel.publish(b"still here", queue)
    assert channel.refusal(Queue.Delete(queue=queue, if_empty=True)) == (
        f"channel 406 PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty"
    )


def test_unacknowledged_messages_do_not_make_a_queue_not_empty(channel: Channel, queue: str) -> None:
    channel.publish(b"held", queue)
    channel.got(queue)
    assert channel.delete(queue, if_empty=True) == 0


def test_a_queue_with_consumers_is_kept_from_a_careful_delete(channel: Channel, queue: str) -> None:
    channel.consume(queue)
    assert channel.refusal(Queue.Delete(queue=queue, if_unused=True)) == (
        f"channel 406 PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use"
    )


def test_of_a_queue_that_is_neither_empty_nor_unused_the_messages_are_named(channel: Channel, queue: str) -> None:
    channel.qos(1)
    channel.consume(queue)
    channel.publish(b"one", queue)
    channel.publish(b"two", queue)
    channel.delivery()
    assert channel.refusal(Queue.Delete(queue=queue, if_unused=True, if_empty=True)) == (
        f"channel 406 PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty"
    )


def test_an_exchange_with_bindings_is_kept_from_a_careful_delete(channel: Channel, queue: str, place: Place) -> None:
    exchange = channel.exchange(place.name("x"))
    channel.bind(queue, exchange, "key")
    assert channel.refusal(Exchange.Delete(exchange=exchange, if_unused=True)) == (
        f"channel 406 PRECONDITION_FAILED - exchange '{exchange}' in vhost '/' in use"
    )


@pytest.mark.parametrize(
    ("expiration", "why"),
    [
        ("abc", "no_integer"),
        (" 5", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("1.5", '{leftover_string,".5"}'),
        ("5 ", '{leftover_string," "}'),
        ("0x5", '{leftover_string,"x5"}'),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_an_expiration_is_a_number_of_milliseconds(channel: Channel, expiration: str, why: str) -> None:
    channel.publish(b"when", "anywhere", expiration=expiration)
    assert channel.ending() == f"channel 406 PRECONDITION_FAILED - invalid expiration '{expiration}': {why}"


@pytest.mark.parametrize("expiration", ["0", "+5000", "315360000000"])
def test_expirations_go_up_to_ten_years(channel: Channel, queue: str, expiration: str) -> None:
    channel.publish(b"in time", queue, expiration=expiration)
    channel.settle(queue)


@pytest.mark.parametrize("mode", [0, 3, 255])
def test_a_message_is_persistent_or_not(channel: Channel, mode: int) -> None:
    channel.publish_raw(b"which", struct.pack(">HB", 1 << 12, mode), "anywhere")
    assert channel.ending() == (f"channel 406 PRECONDITION_FAILED - invalid message: {{delivery_mode_unknown,{mode}}}")


@pytest.mark.parametrize("mode", [1, 2])
def test_delivery_modes_go_through(channel: Channel, queue: str, mode: int) -> None:
    channel.publish(b"which", queue, delivery_mode=mode)
    assert channel.got(queue).properties.delivery_mode == mode


def test_nobody_publishes_in_somebody_elses_name(channel: Channel, queue: str) -> None:
    channel.publish(b"mine", queue, user_id="guest")
    assert channel.got(queue).properties.user_id == "guest"
    channel.publish(b"not mine", queue, user_id="bob")
    assert channel.ending() == (
        "channel 406 PRECONDITION_FAILED - user_id property set to 'bob' but authenticated user was 'guest'"
    )


@pytest.mark.parametrize(
    ("headers", "shown"), [({"CC": "k"}, '"CC",longstr'), ({"BCC": 5}, '"BCC",byte'), ({"CC": None}, '"CC",void')]
)
def test_further_keys_come_in_a_list(channel: Channel, headers: dict[str, object], shown: str) -> None:
    channel.publish(b"to whom", "anywhere", headers=headers)
    assert channel.ending() == (
        f"channel 406 PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,{shown}}}"
    )


def test_a_channel_is_confirming_or_transactional(peer: Peer) -> None:
    channel = peer.channel()
    channel.confirm()
    assert channel.refusal(Tx.Select()) == "channel 406 PRECONDITION_FAILED - cannot switch from confirm to tx mode"
    channel = peer.channel()
    channel.tx()
    assert (
        channel.refusal(Confirm.Select()) == "channel 406 PRECONDITION_FAILED - cannot switch from tx to confirm mode"
    )


@pytest.mark.parametrize("method", [Tx.Commit(), Tx.Rollback()], ids=lambda method: method.name)
def test_a_transaction_has_to_be_begun(refused: Refused, method: base.Frame) -> None:
    assert refused(method) == "channel 406 PRECONDITION_FAILED - channel is not transactional"


# -- what closes the connection ---------------------------------------------------------------------------------------


def test_a_consumer_tag_is_used_once_on_a_channel(channel: Channel, queue: str) -> None:
    channel.consume(queue, "twin")
    assert channel.refusal(Basic.Consume(queue=queue, consumer_tag="twin")) == (
        "connection 530 NOT_ALLOWED - attempt to reuse consumer tag 'twin'"
    )


def test_another_channel_may_use_the_same_consumer_tag(peer: Peer, queue: str) -> None:
    assert peer.channel().consume(queue, "twin") == peer.channel().consume(queue, "twin") == "twin"


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (Basic.Qos(prefetch_size=10), "prefetch_size!=0 (10)"),
        (Basic.Recover(requeue=False), "requeue=false"),
        (ChannelClass.Flow(active=False), "active=false"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_rabbitmq_never_had_is_not_implemented(refused: Refused, method: base.Frame, text: str) -> None:
    assert refused(method) == f"connection 540 NOT_IMPLEMENTED - {text}"


@pytest.mark.filterwarnings("ignore:This command is deprecated in AMQP 0-9-1")
def test_recovering_asynchronously_without_requeueing_is_not_implemented(refused: Refused) -> None:
    assert refused(Basic.RecoverAsync(requeue=False)) == "connection 540 NOT_IMPLEMENTED - requeue=false"


def test_publishing_immediately_is_not_implemented(channel: Channel) -> None:
    channel.send(Basic.Publish(exchange="", routing_key="q", immediate=True))
    channel.send(header.ContentHeader(body_size=0, properties=Basic.Properties()))
    assert channel.ending() == "connection 540 NOT_IMPLEMENTED - immediate=true"


def test_a_quorum_queue_knows_no_prefetch_for_the_whole_channel(channel: Channel, place: Place) -> None:
    queue = channel.declare(place.name(), QUORUM, durable=True)
    channel.qos(1, is_global=True)
    assert channel.refusal(Basic.Consume(queue=queue)) == (
        f"connection 540 NOT_IMPLEMENTED - queue '{queue}' in vhost '/' does not support global qos"
    )


@pytest.mark.parametrize("flag", ["if_unused", "if_empty"])
def test_a_quorum_queue_is_not_deleted_carefully(channel: Channel, place: Place, flag: str) -> None:
    queue = channel.declare(place.name(), QUORUM, durable=True)
    assert channel.refusal(Queue.Delete(queue=queue, **{flag: True})) == (
        f"connection 540 NOT_IMPLEMENTED - cannot delete queue '{queue}' in vhost '/'. queue.delete operations with "
        f"{flag.replace('_', '-')} flag set are not supported by quorum queues"
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [("classic", "x-stream-offset"), ("quorum", "x-stream-offset"), ("quorum", "x-cancel-on-ha-failover")],
)
def test_a_consumer_cannot_ask_for_what_other_queues_do(channel: Channel, place: Place, kind: str, name: str) -> None:
    queue = channel.declare(place.name(), {"x-queue-type": kind}, durable=True)
    assert channel.refusal(Basic.Consume(queue=queue, arguments={name: "first"})) == (
        f"channel 406 PRECONDITION_FAILED - invalid arg '{name}' for queue '{queue}' in vhost '/' of queue type "
        f"rabbit_{kind}_queue"
    )


def test_an_error_hurts_its_channel_and_no_other(peer: Peer, channel: Channel, queue: str) -> None:
    assert peer.channel().refusal(Basic.Ack(delivery_tag=1)).startswith("channel 406")
    channel.publish(b"unhurt", queue)
    assert channel.got(queue).body == b"unhurt"


def test_the_number_of_a_closed_channel_can_be_opened_again(peer: Peer) -> None:
    channel = peer.channel(7)
    assert channel.refusal(Basic.Ack(delivery_tag=1)).startswith("channel 406")
    peer.channel(7).qos(1)
