"""Consuming: who gets what and when, how much at once, and what becomes of it."""

from __future__ import annotations

import pytest

from tests.protocols.amqp.peer import Basic, Channel, Closed, Message, Peer, Queue
from tests.protocols.amqp.places import Place


def fill(channel: Channel, queue: str, count: int) -> None:
    for number in range(count):
        channel.publish(b"%d" % number, queue)


def taken(channel: Channel, queue: str) -> list[tuple[bytes, bool]]:
    """Everything in the queue, each with whether it is marked as delivered before."""
    channel.settle(queue)
    found = []
    while (message := channel.get(queue, no_ack=True)) is not None:
        found.append((message.body, message.redelivered))
    return found


def shares(channel: Channel, queue: str) -> dict[str, int]:
    """Once nothing more comes: how many deliveries wait to be looked at, by consumer."""
    for _ in range(3):
        channel.settle(queue)
    found: dict[str, int] = {}
    for event in channel.events:
        if isinstance(event, Message):
            found[event.consumer] = found.get(event.consumer, 0) + 1
    return found


# -- prefetch ---------------------------------------------------------------------------------------------------------


def test_a_prefetch_holds_for_each_consumer_that_comes_after_it(channel: Channel, queue: str) -> None:
    fill(channel, queue, 10)
    channel.qos(2)
    channel.consume(queue, "two")
    channel.qos(3)
    channel.consume(queue, "three")
    assert shares(channel, queue) == {"two": 2, "three": 3}


def test_a_changed_prefetch_does_not_change_the_consumers_that_are_there(channel: Channel, queue: str) -> None:
    fill(channel, queue, 10)
    channel.qos(1)
    channel.consume(queue, "one")
    channel.qos(5)
    assert shares(channel, queue) == {"one": 1}


def test_without_a_prefetch_there_is_no_limit(channel: Channel, queue: str) -> None:
    fill(channel, queue, 5000)
    channel.consume(queue)
    assert [message.body for message in channel.deliveries(5000)] == [b"%d" % number for number in range(5000)]


def test_acknowledging_makes_room_for_the_next(channel: Channel, queue: str) -> None:
    fill(channel, queue, 5)
    channel.qos(2)
    channel.consume(queue, "c")
    first, _ = channel.deliveries(2)
    channel.ack(first.tag)
    assert channel.delivery().body == b"2"
    assert shares(channel, queue) == {}


def test_a_global_prefetch_is_shared_by_the_channel(channel: Channel, queue: str) -> None:
    fill(channel, queue, 10)
    channel.qos(3, is_global=True)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    assert sum(shares(channel, queue).values()) == 3
    channel.ack(channel.delivery().tag)
    assert sum(shares(channel, queue).values()) == 3


def test_both_kinds_of_prefetch_hold_together(channel: Channel, queue: str) -> None:
    fill(channel, queue, 10)
    channel.qos(3)
    channel.qos(4, is_global=True)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    found = shares(channel, queue)
    assert sum(found.values()) == 4
    assert max(found.values()) <= 3


def test_a_later_prefetch_for_consumers_ends_the_one_for_the_channel(channel: Channel, queue: str) -> None:
    fill(channel, queue, 10)
    channel.qos(4, is_global=True)
    channel.qos(3)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    assert shares(channel, queue) == {"a": 3, "b": 3}


def test_a_global_prefetch_can_be_raised_and_lifted(channel: Channel, queue: str) -> None:
    fill(channel, queue, 10)
    channel.qos(1, is_global=True)
    channel.consume(queue, "c")
    assert shares(channel, queue) == {"c": 1}
    channel.qos(5, is_global=True)
    assert shares(channel, queue) == {"c": 5}
    channel.qos(0, is_global=True)
    assert shares(channel, queue) == {"c": 10}


def test_a_get_does_not_ask_for_the_prefetch(channel: Channel, queue: str) -> None:
    fill(channel, queue, 3)
    channel.qos(1, is_global=True)
    assert [channel.got(queue).body for _ in range(3)] == [b"0", b"1", b"2"]


def test_what_needs_no_acknowledgement_needs_no_prefetch(channel: Channel, queue: str) -> None:
    fill(channel, queue, 100)
    channel.qos(1)
    channel.consume(queue, no_ack=True)
    assert len(channel.deliveries(100)) == 100
    assert channel.count(queue) == (0, 1)


# -- back in place ----------------------------------------------------------------------------------------------------


def test_messages_go_back_to_where_they_were(channel: Channel, queue: str) -> None:
    fill(channel, queue, 4)
    first, second = channel.got(queue), channel.got(queue)
    channel.nack(second.tag)
    channel.nack(first.tag)
    assert taken(channel, queue) == [(b"0", True), (b"1", True), (b"2", False), (b"3", False)]


def test_a_message_from_the_middle_goes_back_in_front_of_what_is_left(channel: Channel, queue: str) -> None:
    fill(channel, queue, 4)
    held = [channel.got(queue) for _ in range(3)]
    channel.reject(held[1].tag, requeue=True)
    assert taken(channel, queue) == [(b"1", True), (b"3", False)]


def test_several_are_given_back_at_once(channel: Channel, queue: str) -> None:
    fill(channel, queue, 4)
    held = [channel.got(queue) for _ in range(4)]
    channel.nack(held[2].tag, multiple=True)
    assert taken(channel, queue) == [(b"0", True), (b"1", True), (b"2", True)]


def test_what_a_channel_held_goes_back_when_it_is_closed(peer: Peer, channel: Channel, queue: str) -> None:
    fill(channel, queue, 4)
    other = peer.channel()
    other.consume(queue)
    other.deliveries(4)
    other.close()
    assert taken(channel, queue) == [(b"%d" % number, True) for number in range(4)]


def test_what_a_connection_held_goes_back_when_it_is_lost(place: Place, channel: Channel, queue: str) -> None:
    fill(channel, queue, 3)
    peer = place.connect()
    held = peer.channel()
    held.consume(queue)
    held.deliveries(3)
    channel.consume(queue)
    peer.drop()
    assert [(message.body, message.redelivered) for message in channel.deliveries(3)] == [
        (b"0", True),
        (b"1", True),
        (b"2", True),
    ]


def test_recovering_delivers_again_under_new_tags(channel: Channel, queue: str) -> None:
    fill(channel, queue, 3)
    channel.consume(queue)
    channel.deliveries(3)
    channel.call(Basic.Recover(requeue=True), Basic.RecoverOk)
    again = channel.deliveries(3)
    assert [(message.body, message.tag, message.redelivered) for message in again] == [
        (b"0", 4, True),
        (b"1", 5, True),
        (b"2", 6, True),
    ]


def test_a_rejected_message_goes_to_another_consumer_or_the_same(peer: Peer, queue: str) -> None:
    consumer = peer.channel()
    consumer.consume(queue)
    consumer.publish(b"try again", queue)
    consumer.nack(consumer.delivery().tag)
    again = consumer.delivery()
    assert (again.body, again.redelivered) == (b"try again", True)


# -- acknowledging ----------------------------------------------------------------------------------------------------


def test_acknowledging_up_to_a_tag_takes_all_before_it(channel: Channel, queue: str) -> None:
    fill(channel, queue, 4)
    held = [channel.got(queue) for _ in range(4)]
    channel.ack(held[2].tag, multiple=True)
    channel.nack(held[3].tag)
    assert taken(channel, queue) == [(b"3", True)]


def test_tag_0_with_multiple_means_all_there_are(channel: Channel, queue: str) -> None:
    channel.ack(0, multiple=True)
    fill(channel, queue, 3)
    for _ in range(3):
        channel.got(queue)
    channel.ack(0, multiple=True)
    channel.call(Basic.Recover(requeue=True), Basic.RecoverOk)
    assert taken(channel, queue) == []


def test_tags_that_were_acknowledged_alone_are_left_out_of_many(channel: Channel, queue: str) -> None:
    fill(channel, queue, 3)
    held = [channel.got(queue) for _ in range(3)]
    channel.ack(held[1].tag)
    channel.ack(held[2].tag, multiple=True)
    channel.settle(queue)
    assert not channel.closed


def test_what_was_delivered_before_a_cancel_can_still_be_acknowledged(channel: Channel, queue: str) -> None:
    channel.publish(b"held", queue)
    tag = channel.consume(queue)
    message = channel.delivery()
    channel.cancel(tag)
    assert channel.count(queue) == (0, 0)
    channel.ack(message.tag)
    assert taken(channel, queue) == []
    assert not channel.closed


def test_what_is_not_acknowledged_after_a_cancel_goes_back_with_the_channel(peer: Peer, queue: str) -> None:
    channel, other = peer.channel(), peer.channel()
    channel.publish(b"held", queue)
    tag = channel.consume(queue)
    channel.delivery()
    channel.cancel(tag)
    channel.close()
    assert taken(other, queue) == [(b"held", True)]


# -- the queue goes ---------------------------------------------------------------------------------------------------


def test_consumers_are_told_when_their_queue_is_deleted(peer: Peer, channel: Channel, queue: str) -> None:
    tag = channel.consume(queue)
    peer.channel().delete(queue)
    cancel = channel.expect(Basic.Cancel)
    assert (cancel.consumer_tag, cancel.nowait) == (tag, True)


def test_who_deletes_the_queue_it_consumes_from_is_answered_before_it_hears_of_its_end(
    channel: Channel, queue: str
) -> None:
    tag = channel.consume(queue)
    channel.send(Queue.Delete(queue=queue))
    assert isinstance(channel.next(), Queue.DeleteOk)
    assert channel.expect(Basic.Cancel).consumer_tag == tag


def test_clients_that_do_not_know_of_it_are_not_told(place: Place) -> None:
    with place.connect(capabilities={}) as peer:
        channel = peer.channel()
        queue = channel.declare(place.name())
        channel.consume(queue)
        peer.channel().delete(queue)
        channel.qos(1)
        channel.qos(1)
        assert not channel.events


@pytest.mark.parametrize("how", ["consume", "get"])
def test_acknowledging_what_went_with_its_queue_is_no_error(peer: Peer, channel: Channel, queue: str, how: str) -> None:
    channel.publish(b"gone", queue)
    if how == "consume":
        channel.consume(queue)
        message = channel.delivery()
    else:
        message = channel.got(queue)
    peer.channel().delete(queue)
    channel.ack(message.tag)
    channel.qos(1)
    assert not channel.closed


def test_a_purge_does_not_disturb_consumers(channel: Channel, queue: str) -> None:
    channel.qos(1)
    channel.consume(queue)
    fill(channel, queue, 3)
    message = channel.delivery()
    assert channel.purge(queue) == 2
    channel.ack(message.tag)
    channel.publish(b"next", queue)
    assert channel.delivery().body == b"next"


# -- who comes first --------------------------------------------------------------------------------------------------


def test_consumers_take_turns(channel: Channel, queue: str) -> None:
    channel.qos(1)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    fill(channel, queue, 2)
    assert shares(channel, queue) == {"a": 1, "b": 1}


def test_a_consumer_of_higher_priority_is_served_first_while_it_has_room(channel: Channel, queue: str) -> None:
    channel.qos(2)
    channel.consume(queue, "low", {"x-priority": -5})
    channel.consume(queue, "plain")
    channel.consume(queue, "high", {"x-priority": 10})
    channel.settle(queue)
    fill(channel, queue, 5)
    assert shares(channel, queue) == {"high": 2, "plain": 2, "low": 1}
    first = [message.consumer for message in channel.deliveries(2)]
    assert first == ["high", "high"]


@pytest.mark.parametrize(("value", "type_name"), [("a", "longstr"), (1.5, "float"), (None, "void"), (True, "bool")])
def test_a_consumers_priority_is_a_number(channel: Channel, queue: str, value: object, type_name: str) -> None:
    consume = Basic.Consume(queue=queue, arguments={"x-priority": value})  # type: ignore[dict-item] # wrong on purpose
    assert channel.refusal(consume) == (
        f"channel 406 PRECONDITION_FAILED - invalid arg 'x-priority' for queue '{queue}' in vhost '/': "
        f'"expected integer, got {type_name}"'
    )


def test_a_single_active_consumer_gets_everything_until_it_goes(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-single-active-consumer": True})
    channel.consume(queue, "first")
    channel.consume(queue, "second")
    fill(channel, queue, 3)
    assert [message.consumer for message in channel.deliveries(3)] == ["first"] * 3
    channel.cancel("first")
    channel.publish(b"next", queue)
    assert channel.delivery().consumer == "second"


def test_the_next_active_consumer_is_the_one_of_highest_priority(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-single-active-consumer": True})
    channel.consume(queue, "first")
    channel.consume(queue, "second", {"x-priority": 5})
    channel.consume(queue, "third", {"x-priority": 9})
    channel.publish(b"1", queue)
    assert channel.delivery().consumer == "first"
    channel.cancel("first")
    channel.publish(b"2", queue)
    assert channel.delivery().consumer == "third"


def test_a_get_takes_what_the_single_active_consumer_has_no_room_for(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-single-active-consumer": True})
    channel.qos(1)
    channel.consume(queue)
    fill(channel, queue, 2)
    channel.delivery()
    assert channel.got(queue).body == b"1"


def test_a_quorum_queue_with_a_single_active_consumer_knows_no_get(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-queue-type": "quorum", "x-single-active-consumer": True}, durable=True)
    assert channel.refusal(Basic.Get(queue=queue)) == (
        f"channel 405 RESOURCE_LOCKED - cannot obtain access to locked queue '{queue}' in vhost '/'. "
        "basic.get operations are not supported by quorum queues with single active consumer"
    )


# -- in turn, and out of turn -----------------------------------------------------------------------------------------


def test_a_burst_is_handed_to_several_consumers_one_by_one(place: Place, channel: Channel, queue: str) -> None:
    with place.connect() as one, place.connect() as other:
        first, second = one.channel(), other.channel()
        first.consume(queue)
        second.consume(queue)
        fill(channel, queue, 8)
        assert [message.body for message in first.deliveries(4)] == [b"0", b"2", b"4", b"6"]
        assert [message.body for message in second.deliveries(4)] == [b"1", b"3", b"5", b"7"]


def test_a_channel_that_closes_serves_none_of_its_own_consumers(peer: Peer, channel: Channel, queue: str) -> None:
    fill(channel, queue, 6)
    closing = peer.channel()
    closing.qos(2)
    closing.consume(queue, "a")
    closing.consume(queue, "b")
    closing.deliveries(4)
    closing.close()
    assert taken(channel, queue) == [(b"%d" % number, number < 4) for number in range(6)]


@pytest.mark.parametrize("way", ["nack", "recover"])
def test_what_goes_back_to_a_quorum_queue_goes_to_its_place(place: Place, channel: Channel, way: str) -> None:
    # RabbitMQ 3.10 puts it to the back unless the queue has a delivery limit, as in RabbitMQ 4 all have.
    arguments = {"x-queue-type": "quorum"} | ({"x-delivery-limit": 9} if place.is_rabbitmq else {})
    queue = channel.declare(place.name(), arguments, durable=True)
    fill(channel, queue, 3)
    tags = [got_soon(channel, queue).tag for _ in range(2)]
    if way == "nack":
        channel.nack(tags[1], multiple=True)
    else:
        channel.call(Basic.Recover(requeue=True), Basic.RecoverOk)
    assert [got_soon(channel, queue).body for _ in range(3)] == [b"0", b"1", b"2"]


# -- the prefetch of a whole channel ----------------------------------------------------------------------------------


def test_a_channels_prefetch_holds_back_who_acknowledges_nothing(
    place: Place, peer: Peer, channel: Channel, queue: str
) -> None:
    fill(channel, queue, 2)
    other = channel.declare(place.name())
    consumer = peer.channel()
    consumer.qos(2, is_global=True)
    consumer.consume(other, "unacknowledged", no_ack=True)
    fill(channel, other, 5)
    # They do not count, so there is no limit while there is room.
    assert [message.body for message in consumer.deliveries(5)] == [b"0", b"1", b"2", b"3", b"4"]
    consumer.consume(queue, "acknowledged")
    held = consumer.deliveries(2)
    channel.publish(b"held back", other)
    channel.settle(other)
    assert (shares(consumer, queue), channel.count(other)) == ({}, (1, 1))
    consumer.ack(held[0].tag)
    assert consumer.delivery().body == b"held back"


def test_a_channels_prefetch_counts_what_came_from_a_deleted_queue(
    place: Place, peer: Peer, channel: Channel, queue: str
) -> None:
    fill(channel, queue, 2)
    other = channel.declare(place.name())
    fill(channel, other, 3)
    consumer = peer.channel()
    consumer.qos(2, is_global=True)
    consumer.consume(queue, "gone")
    held = consumer.deliveries(2)
    channel.delete(queue)
    consumer.consume(other, "there")
    assert shares(consumer, other) == {}
    consumer.ack(held[0].tag)
    assert consumer.delivery().body == b"0"
    assert shares(consumer, other) == {}
    consumer.nack(held[1].tag)
    assert consumer.delivery().body == b"1"


def test_a_channels_prefetch_that_begins_in_a_transaction_does_not_count_what_that_has_settled(
    place: Place, peer: Peer, channel: Channel, queue: str
) -> None:
    fill(channel, queue, 2)
    other = channel.declare(place.name())
    fill(channel, other, 3)
    consumer = peer.channel()
    consumer.tx()
    consumer.consume(queue)
    held = consumer.deliveries(2)
    consumer.ack(held[0].tag)
    consumer.qos(2, is_global=True)
    consumer.consume(other)
    assert consumer.delivery().body == b"0"
    assert shares(consumer, other) == {}


def test_what_a_transaction_settles_counts_until_the_commit(peer: Peer, channel: Channel, queue: str) -> None:
    fill(channel, queue, 3)
    consumer = peer.channel()
    consumer.tx()
    consumer.qos(2, is_global=True)
    consumer.consume(queue)
    held = consumer.deliveries(2)
    consumer.ack(held[0].tag)
    assert shares(consumer, queue) == {}
    consumer.commit()
    assert consumer.delivery().body == b"2"


# -- how often --------------------------------------------------------------------------------------------------------


def got_soon(channel: Channel, queue: str) -> Message:
    """Quorum queues are a little behind."""
    while (message := channel.get(queue)) is None:
        pass
    return message


def test_a_quorum_queue_counts_deliveries(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-queue-type": "quorum"}, durable=True)
    channel.publish(b"x", queue, headers={"mine": 1})
    for count in range(3):
        message = got_soon(channel, queue)
        assert message.redelivered == (count > 0)
        assert message.headers == {"mine": 1, "x-delivery-count": count}
        channel.nack(message.tag)


def test_a_consumer_of_a_quorum_queue_sees_the_count_from_its_second_delivery_on(
    place: Place, channel: Channel
) -> None:
    queue = channel.declare(place.name(), {"x-queue-type": "quorum"}, durable=True)
    channel.consume(queue)
    channel.publish_raw(b"plain", b"\0\0", queue)
    first = channel.delivery()
    assert (first.raw, first.redelivered) == (b"\0\0", False)
    channel.nack(first.tag)
    second = channel.delivery()
    assert (second.headers, second.redelivered) == ({"x-delivery-count": 1}, True)


def test_a_delivery_limit_ends_in_the_dead_letters(place: Place, channel: Channel) -> None:
    dead = channel.declare(place.name("dead"))
    queue = channel.declare(
        place.name(),
        {
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        },
        durable=True,
    )
    channel.publish(b"poison", queue)
    for _ in range(3):
        channel.nack(got_soon(channel, queue).tag)
    message = got_soon(channel, dead)
    assert message.deaths == [
        {"count": 1, "reason": "delivery_limit", "queue": queue, "exchange": "", "routing-keys": [queue]}
    ]


def test_vanishing_with_a_message_counts_towards_its_limit(place: Place, channel: Channel) -> None:
    queue = channel.declare(place.name(), {"x-queue-type": "quorum", "x-delivery-limit": 1}, durable=True)
    channel.publish(b"poison", queue)
    for count in range(2):
        with place.connect() as peer:
            assert got_soon(peer.channel(), queue).headers == {"x-delivery-count": count}
    # What was published after it comes next: it is gone.
    channel.publish(b"good", queue)
    assert got_soon(channel, queue).body == b"good"


def test_a_classic_queue_counts_nothing(channel: Channel, queue: str) -> None:
    channel.publish(b"again and again", queue)
    for _ in range(30):
        channel.nack(channel.got(queue).tag)
        channel.settle(queue)
    assert channel.got(queue).headers == {}


# -- beyond RabbitMQ --------------------------------------------------------------------------------------------------


def test_a_consumer_timeout_takes_the_message_back(here: Place) -> None:
    with here.connect() as holder, here.connect() as other:
        channel, taker = holder.channel(), other.channel()
        queue = channel.declare(here.name(), {"x-consumer-timeout": 200})
        channel.publish(b"slow", queue)
        held = channel.got(queue)
        taker.consume(queue)
        again = taker.delivery()
        assert (again.body, again.redelivered) == (b"slow", True)
        # Too late, and no error: the message is somebody else's now.
        channel.ack(held.tag)
        channel.settle(queue)
        assert not channel.closed


def test_without_a_consumer_timeout_a_message_is_held_as_long_as_its_channel_lives(here: Place) -> None:
    """The lease of queues made over other protocols, too, is the channel's life."""
    with here.connect() as holder, here.connect() as other:
        channel, taker = holder.channel(), other.channel()
        queue = channel.declare(here.name())
        channel.publish(b"held", queue)
        channel.got(queue)
        taker.consume(queue)
        holder.drop()
        assert taker.delivery().redelivered


def test_a_closed_channel_says_why(place: Place, channel: Channel) -> None:
    channel.send(Queue.Purge(queue="nowhere"))
    with pytest.raises(Closed, match="channel 404 NOT_FOUND"):
        channel.qos(1)
