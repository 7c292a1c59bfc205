"""Publishing: confirms, returns, transactions, what a message carries, and direct replies."""

from __future__ import annotations

import random
import struct

import pytest

from smista import Client
from tests.protocols.amqp.peer import Basic, Channel, Closed, Message, Peer, Queue, Tx
from tests.protocols.amqp.places import Place


class AnyDeclare(Queue.Declare):
    """As it is sent, whatever pamqp thinks of the name."""

    __slots__ = Queue.Declare.__slots__

    def validate(self) -> None:
        return


# -- confirms ---------------------------------------------------------------------------------------------------------


def test_confirms_count_from_1_on_each_channel(peer: Peer, queue: str) -> None:
    for channel in (peer.channel(), peer.channel()):
        channel.confirm()
        for _ in range(5):
            channel.publish(b"x", queue)
        assert channel.confirmed(5) == []


def test_selecting_confirms_again_counts_on(channel: Channel, queue: str) -> None:
    channel.confirm()
    channel.publish(b"1", queue)
    channel.confirmed(1)
    channel.confirm()
    channel.publish(b"2", queue)
    assert channel.expect(Basic.Ack).delivery_tag == 2


def test_what_leads_nowhere_is_confirmed_too(channel: Channel) -> None:
    channel.confirm()
    channel.publish(b"lost", "nowhere")
    assert channel.confirmed(1) == []


@pytest.mark.parametrize("delivery_mode", [None, 1, 2])
@pytest.mark.parametrize("durable", [False, True])
def test_everything_is_confirmed(place: Place, channel: Channel, delivery_mode: int | None, durable: bool) -> None:
    queue = channel.declare(place.name(), durable=durable)
    channel.confirm()
    for _ in range(100):
        channel.publish(b"x", queue, delivery_mode=delivery_mode)
    assert channel.confirmed(100) == []
    assert channel.count(queue) == (100, 0)


def test_a_mandatory_message_that_leads_nowhere_comes_back_before_its_confirm(channel: Channel) -> None:
    channel.confirm()
    channel.publish(b"back", "nowhere", mandatory=True, headers={"BCC": ["nobody"], "mine": 1}, reply_to="me")
    returned, confirm = channel.next(), channel.next()
    assert isinstance(returned, Message)
    assert dict(returned.method) == {
        "reply_code": 312,
        "reply_text": "NO_ROUTE",
        "exchange": "",
        "routing_key": "nowhere",
    }
    assert (returned.body, returned.headers, returned.properties.reply_to) == (b"back", {"mine": 1}, "me")
    assert isinstance(confirm, Basic.Ack)
    assert confirm.delivery_tag == 1


def test_a_mandatory_message_that_arrives_does_not_come_back(channel: Channel, queue: str) -> None:
    channel.confirm()
    channel.publish(b"fine", queue, mandatory=True)
    assert channel.confirmed(1) == []
    assert not channel.events


def test_a_queue_that_was_deleted_leads_nowhere(channel: Channel, queue: str) -> None:
    channel.publish(b"1", queue, mandatory=True)
    channel.settle(queue)
    channel.delete(queue)
    channel.publish(b"2", queue, mandatory=True)
    assert channel.returned().body == b"2"


# -- to several -------------------------------------------------------------------------------------------------------


def test_cc_and_bcc_add_keys_and_bcc_is_not_shown(place: Place, channel: Channel) -> None:
    to, copied, blind = (channel.declare(place.name(start)) for start in ("to", "cc", "bcc"))
    channel.publish(b"all", to, headers={"CC": [copied, to], "BCC": [blind], "mine": 1})
    for queue in (to, copied, blind):
        message = channel.got(queue)
        assert message.headers == {"CC": [copied, to], "mine": 1}
        assert getattr(message.method, "routing_key", None) == to
        assert channel.get(queue) is None


def test_further_keys_are_enough(channel: Channel, queue: str) -> None:
    channel.confirm()
    channel.publish(b"x", "nowhere", mandatory=True, headers={"CC": [queue, 5]})
    assert channel.confirmed(1) == []
    assert channel.got(queue).body == b"x"


def test_a_full_queue_does_not_keep_a_message_from_the_others(place: Place, channel: Channel) -> None:
    exchange = channel.exchange(place.name("x"), "fanout")
    full = channel.declare(place.name("full"), {"x-max-length": 1, "x-overflow": "reject-publish"})
    wide = channel.declare(place.name("wide"))
    channel.bind(full, exchange)
    channel.bind(wide, exchange)
    channel.confirm()
    for number in range(3):
        channel.publish(b"%d" % number, "", exchange)
    assert channel.confirmed(3) == [2, 3]
    assert channel.bodies(full) == [b"0"]
    assert channel.bodies(wide) == [b"0", b"1", b"2"]


def test_messages_through_different_exchanges_keep_their_order(place: Place, channel: Channel, queue: str) -> None:
    other = channel.declare(place.name("other"))
    both = channel.exchange(place.name("both"), "fanout")
    channel.bind(queue, both)
    channel.bind(other, both)
    for number in range(6):
        channel.publish(b"%d" % number, *(("", both) if number % 2 else (queue, "")))
    assert channel.bodies(queue) == [b"0", b"1", b"2", b"3", b"4", b"5"]


# -- what a message carries -------------------------------------------------------------------------------------------

TABLE = (
    b"\x01bb\xff\x01BB\xff\x01ss\xff\xfe\x01uu\xff\xfe\x01II\xff\xff\xff\xfe\x01ii\xff\xff\xff\xfe"
    b"\x01ll\xff\xff\xff\xff\xff\xff\xff\xff\x01ff\x40\x00\x00\x00\x01dd\x40\x00\x00\x00\x00\x00\x00\x00"
    b"\x01DD\x02\x00\x00\x00\x05\x01SS\x00\x00\x00\x02\xff\xfe\x01xx\x00\x00\x00\x02\xff\xfe"
    b"\x01TT\x00\x00\x00\x00\x00\x00\x00\x05\x01VV\x01tt\x01\x01FF\x00\x00\x00\x04\x01ab\x05"
    b"\x01AA\x00\x00\x00\x04b\x05b\x06"
)
"""A value of every type there is."""
ALL_BUT_EXPIRATION = (
    b"\xfe\xfc\x0atext/plain\x04gzip"
    + struct.pack(">I", len(TABLE))
    + TABLE
    + b"\x02\x07\x03cor\x03rep\x02id\x00\x00\x00\x00\x60\x00\x00\x00\x04type\x05guest\x03app\x03clu"
)


@pytest.mark.parametrize(
    "raw",
    [b"\x00\x00", b"\x20\x00\x00\x00\x00\x00", b"\x20\x00" + struct.pack(">I", len(TABLE)) + TABLE, ALL_BUT_EXPIRATION],
    ids=["nothing", "an empty table", "every type", "every property"],
)
def test_properties_go_through_byte_for_byte(channel: Channel, queue: str, raw: bytes) -> None:
    channel.publish_raw(b"body", raw, queue)
    assert channel.got(queue).raw == raw
    channel.consume(queue)
    channel.publish_raw(b"body", raw, queue)
    assert channel.delivery().raw == raw


def test_the_values_of_a_dead_letters_headers_keep_their_types(place: Place, channel: Channel) -> None:
    dead = channel.declare(place.name("dead"))
    queue = channel.declare(place.name(), {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    channel.publish_raw(b"body", ALL_BUT_EXPIRATION, queue)
    channel.reject(channel.got(queue).tag)
    channel.settle(queue)
    raw = channel.got(dead).raw
    for start, value in (("b", b"\xff"), ("s", b"\xff\xfe"), ("x", b"\x00\x00\x00\x02\xff\xfe"), ("V", b"")):
        entry = b"\x01" + start.encode() * 2 + value
        assert entry in TABLE
        assert entry in raw


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 262_128, 900_000])
def test_bodies_of_every_size_go_through(channel: Channel, queue: str, size: int) -> None:
    body = bytes(number % 251 for number in range(size))
    channel.publish(body, queue)
    assert channel.got(queue).body == body
    channel.consume(queue)
    channel.publish(body, queue)
    assert channel.delivery().body == body


def test_small_frames_carry_large_bodies(place: Place) -> None:
    with place.connect(frame_max=4096) as peer:
        channel = peer.channel()
        queue = channel.declare(place.name())
        channel.publish(b"x" * 100_000, queue)
        assert channel.got(queue).body == b"x" * 100_000


def test_headers_of_nearly_a_frame_go_through(channel: Channel, queue: str) -> None:
    channel.publish(b"small", queue, headers={"large": "x" * 130_000})
    assert channel.got(queue).headers == {"large": "x" * 130_000}


# -- transactions -----------------------------------------------------------------------------------------------------


def test_what_a_transaction_publishes_is_there_after_the_commit(peer: Peer, channel: Channel, queue: str) -> None:
    other = peer.channel()
    channel.tx()
    channel.publish(b"1", queue)
    channel.publish(b"2", queue)
    assert other.count(queue) == (0, 0)
    channel.commit()
    assert other.count(queue) == (2, 0)


def test_what_a_transaction_acknowledges_is_gone_after_the_commit(place: Place, peer: Peer, queue: str) -> None:
    with place.connect() as holder:
        channel = holder.channel()
        channel.publish(b"0", queue)
        channel.publish(b"1", queue)
        channel.tx()
        channel.ack(channel.got(queue).tag)
        channel.commit()
        channel.ack(channel.got(queue).tag)
    # The second acknowledgement was never committed.
    other = peer.channel()
    other.consume(queue)
    message = other.delivery()
    assert (message.body, message.redelivered) == (b"1", True)


def test_a_rollback_drops_what_was_published_and_takes_back_what_was_settled(
    peer: Peer, channel: Channel, queue: str
) -> None:
    channel.publish(b"kept", queue)
    channel.tx()
    channel.publish(b"dropped", queue)
    message = channel.got(queue)
    channel.ack(message.tag)
    channel.rollback()
    channel.nack(message.tag)
    assert peer.channel().count(queue) == (0, 0)
    channel.commit()
    assert channel.bodies(queue) == [b"kept"]


def test_a_transaction_requeues_at_the_commit(peer: Peer, channel: Channel, queue: str) -> None:
    channel.publish(b"x", queue)
    channel.tx()
    channel.nack(channel.got(queue).tag)
    assert peer.channel().count(queue) == (0, 0)
    channel.commit()
    assert peer.channel().count(queue) == (1, 0)


def test_a_transaction_publishes_before_it_requeues(peer: Peer, channel: Channel, queue: str) -> None:
    channel.publish(b"old", queue)
    busy = peer.channel()
    busy.tx()
    old = busy.got(queue)
    channel.consume(queue, no_ack=True)
    busy.nack(old.tag)
    busy.publish(b"new", queue)
    busy.commit()
    assert [message.body for message in channel.deliveries(2)] == [b"new", b"old"]


def test_mandatory_messages_come_back_before_the_commit_is_answered(channel: Channel) -> None:
    channel.tx()
    channel.publish(b"back", "nowhere", mandatory=True)
    channel.send(Tx.Commit())
    assert isinstance(channel.next(), Message)
    assert isinstance(channel.next(), Tx.CommitOk)


def test_a_transaction_to_an_exchange_that_is_not_there_fails_at_once(channel: Channel) -> None:
    channel.tx()
    channel.publish(b"x", "key", "nowhere")
    assert channel.ending() == "channel 404 NOT_FOUND - no exchange 'nowhere' in vhost '/'"


def test_a_transaction_that_a_full_queue_refuses_fails(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.tx()
    channel.publish(b"1", queue)
    channel.publish(b"2", queue)
    assert channel.refusal(Tx.Commit()) == "channel 406 PRECONDITION_FAILED - partial tx completion"


# -- direct replies ---------------------------------------------------------------------------------------------------

REPLY_TO = "amq.rabbitmq.reply-to"


def test_a_direct_reply_goes_to_who_asked(peer: Peer, channel: Channel, queue: str) -> None:
    client = peer.channel()
    tag = client.consume(REPLY_TO, no_ack=True)
    client.publish(b"question", queue, reply_to=REPLY_TO, correlation_id="7")
    question = channel.got(queue)
    address = question.properties.reply_to
    assert address is not None
    assert address.startswith(f"{REPLY_TO}.")
    channel.confirm()
    channel.publish(b"answer", address, correlation_id="7", headers={"mine": 1}, mandatory=True)
    assert channel.confirmed(1) == []
    answer = client.delivery()
    assert (answer.body, answer.consumer, answer.tag, answer.redelivered) == (b"answer", tag, 1, False)
    assert (answer.properties.correlation_id, answer.headers) == ("7", {"mine": 1})
    assert isinstance(answer.method, Basic.Deliver)
    assert (answer.method.exchange, answer.method.routing_key) == ("", address)


def test_a_direct_reply_to_nobody_comes_back(peer: Peer, channel: Channel, queue: str) -> None:
    client = peer.channel()
    tag = client.consume(REPLY_TO, no_ack=True)
    client.publish(b"question", queue, reply_to=REPLY_TO)
    address = channel.got(queue).properties.reply_to
    client.cancel(tag)
    channel.publish(b"answer", str(address), mandatory=True)
    assert channel.returned().body == b"answer"


def test_whoever_answers_can_see_whether_somebody_waits(peer: Peer, channel: Channel, queue: str) -> None:
    client = peer.channel()
    client.consume(REPLY_TO, no_ack=True)
    client.publish(b"question", queue, reply_to=REPLY_TO)
    declare = AnyDeclare(passive=True)
    declare.queue = str(channel.got(queue).properties.reply_to)
    there = channel.call(declare, Queue.DeclareOk)
    assert (there.queue, there.message_count, there.consumer_count) == (declare.queue, 0, 1)
    client.close()
    assert channel.refusal(declare) == f"channel 404 NOT_FOUND - no queue '{declare.queue}' in vhost '/'"


def test_replies_are_not_acknowledged(channel: Channel) -> None:
    assert channel.refusal(Basic.Consume(queue=REPLY_TO)) == (
        "channel 406 PRECONDITION_FAILED - reply consumer cannot acknowledge"
    )


def test_a_channel_waits_for_replies_once(channel: Channel) -> None:
    channel.consume(REPLY_TO, no_ack=True)
    assert channel.refusal(Basic.Consume(queue=REPLY_TO, no_ack=True)) == (
        "channel 406 PRECONDITION_FAILED - reply consumer already set"
    )


def test_who_waits_for_replies_may_share_its_tag_with_a_consumer(channel: Channel, queue: str) -> None:
    channel.consume(REPLY_TO, "twin", no_ack=True)
    channel.consume(queue, "twin")
    channel.publish(b"question", queue, reply_to=REPLY_TO)
    question = channel.delivery()
    channel.publish(b"answer", str(question.properties.reply_to))
    answer = channel.delivery()
    assert [(each.consumer, each.body) for each in (question, answer)] == [("twin", b"question"), ("twin", b"answer")]
    channel.cancel("twin")
    assert channel.count(queue) == (0, 1)
    channel.publish(b"late", str(question.properties.reply_to), mandatory=True)
    assert channel.returned().body == b"late"
    channel.cancel("twin")
    assert channel.count(queue) == (0, 0)


def test_who_waits_for_replies_has_a_tag_that_no_consumer_has(channel: Channel, queue: str) -> None:
    channel.consume(queue, "twin")
    assert channel.refusal(Basic.Consume(queue=REPLY_TO, consumer_tag="twin", no_ack=True)) == (
        "connection 530 NOT_ALLOWED - attempt to reuse consumer tag 'twin'"
    )


def test_who_asks_must_be_waiting_on_the_same_channel(peer: Peer, channel: Channel, queue: str) -> None:
    peer.channel().consume(REPLY_TO, no_ack=True)
    channel.publish(b"question", queue, reply_to=REPLY_TO)
    assert channel.ending() == "channel 406 PRECONDITION_FAILED - fast reply consumer does not exist"


def test_who_waits_again_gets_the_next_answer(channel: Channel, queue: str) -> None:
    for number in range(2):
        tag = channel.consume(REPLY_TO, no_ack=True)
        channel.publish(b"question", queue, reply_to=REPLY_TO)
        channel.publish(b"%d" % number, str(channel.got(queue).properties.reply_to))
        assert channel.delivery().body == b"%d" % number
        channel.cancel(tag)


# -- beyond RabbitMQ --------------------------------------------------------------------------------------------------


def test_x_delay_delays_a_message_without_any_plugin(here: Place) -> None:
    with here.connect() as peer:
        channel = peer.channel()
        queue = channel.declare(here.name())
        channel.publish(b"later", queue, headers={"x-delay": 300})
        channel.publish(b"now", queue)
        assert channel.count(queue) == (1, 0)
        channel.consume(queue)
        assert [message.body for message in channel.deliveries(2)] == [b"now", b"later"]


def test_an_exchange_of_the_delaying_plugins_type_is_of_the_type_it_names(here: Place) -> None:
    with here.connect() as peer:
        channel = peer.channel()
        exchange = channel.exchange(here.name("x"), "x-delayed-message", {"x-delayed-type": "topic"})
        queue = channel.declare(here.name())
        channel.bind(queue, exchange, "a.*")
        channel.consume(queue)
        channel.publish(b"later", "a.b", exchange, headers={"x-delay": 200})
        channel.publish(b"now", "a.c", exchange)
        assert [message.body for message in channel.deliveries(2)] == [b"now", b"later"]


def test_a_deduplication_header_lets_a_message_in_once(here: Place) -> None:
    with here.connect() as peer:
        channel = peer.channel()
        queue = channel.declare(here.name())
        channel.confirm()
        for body in (b"first", b"repeated"):
            channel.publish(body, queue, headers={"x-deduplication-header": "order 7"})
        channel.publish(b"other", queue, headers={"x-deduplication-header": "order 8"})
        assert channel.confirmed(3) == []
        assert channel.bodies(queue) == [b"first", b"other"]


def test_long_deduplication_headers_are_told_apart_by_their_ends(here: Place) -> None:
    with here.connect() as peer:
        channel = peer.channel()
        queue = channel.declare(here.name())
        channel.confirm()
        for end in ("a", "b", "a"):
            channel.publish(end.encode(), queue, headers={"x-deduplication-header": "x" * 2000 + end})
        assert channel.confirmed(3) == []
        assert channel.bodies(queue) == [b"a", b"b"]


def test_a_large_body_comes_back_as_it_was(place: Place, channel: Channel) -> None:
    body = random.Random(1).randbytes(22_000_000)
    queue = channel.declare(place.name(), durable=True)
    channel.confirm()
    channel.publish(body, queue, delivery_mode=2)
    assert channel.confirmed(1) == []
    got = channel.got(queue)
    assert got.body == body
    channel.nack(got.tag)
    channel.consume(queue)
    delivered = channel.delivery()
    assert delivered.body == body


def test_a_body_over_the_limit_of_a_queue_of_another_protocol_closes_the_channel(here: Place) -> None:
    queue = here.name()
    with Client(here.server.url) as client, here.connect() as peer:
        client.declare_queue(queue)
        channel = peer.channel()
        channel.publish(b"x" * ((1 << 20) + 1), queue)
        assert channel.ending() == (
            "channel 406 PRECONDITION_FAILED - A body of 1048577 bytes is over the limit of 1048576 bytes for queue "
            f"'{queue}'; raise its body_bytes_max, or send less."
        )
        with pytest.raises(Closed):
            channel.count(queue)
