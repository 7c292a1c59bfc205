"""From publish to acknowledgement, and what a queue says of itself on the way."""

from __future__ import annotations

import pytest

from smista.core.entering import Placed
from smista.core.message import Envelope, Publication, State
from smista.core.settings import QueueSettings
from smista.core.settling import acknowledge
from smista.errors import InvalidArgument, InvalidPriority, MessageTooLarge, StaleReceipt
from tests.core import invariants
from tests.core.bench import Bench


def test_a_message_is_received_as_it_was_published(orders: Bench) -> None:
    envelope = Envelope(properties=b"\x00\xff", exchange="amq.direct", routing_key="a.b", group="g", max_retries=7)
    orders.publish_all([Publication(b"\x00\xff body", envelope, 3)])
    delivery = orders.receive_one()
    assert (delivery.body, delivery.priority, delivery.delivery_count) == (b"\x00\xff body", 3, 1)
    assert delivery.message.envelope == envelope


def test_first_in_first_out(orders: Bench) -> None:
    orders.publish_many(20)
    assert orders.receive_bodies() == [b"%d" % number for number in range(20)]


def test_no_more_are_received_than_asked_for(orders: Bench) -> None:
    orders.publish_many(5)
    assert [len(orders.receive(limit)) for limit in (0, 2, 2, 2, 2)] == [0, 2, 2, 1, 0]


def test_a_message_that_is_in_flight_is_nobody_elses(orders: Bench) -> None:
    orders.publish()
    assert len(orders.receive(10)) == 1
    assert orders.receive(10) == []


def test_an_acknowledged_message_is_gone(orders: Bench) -> None:
    orders.publish(b"body")
    delivery = orders.receive_one()
    orders.acknowledge(delivery)
    assert delivery.message.state is State.GONE
    assert (orders.depth, orders.stats().body_bytes) == (0, 0)
    orders.pass_time(ms=10 * orders.queue.settings.lease_ms)
    assert orders.receive() == []


def test_the_counts_follow_a_message_through_its_states(orders: Bench) -> None:
    orders.publish(delay_ms=2000)
    assert orders.counts() == (0, 1, 0, 0)
    orders.pass_time(ms=2000)
    assert orders.counts() == (1, 0, 0, 0)
    delivery = orders.receive_one()
    assert orders.counts() == (0, 0, 1, 0)
    orders.acknowledge(delivery)
    assert orders.counts() == (0, 0, 0, 0)


def test_an_empty_body_is_a_body(orders: Bench) -> None:
    orders.publish(b"")
    assert orders.receive_bodies() == [b""]


def test_ids_rise_and_are_never_used_twice(orders: Bench) -> None:
    ids = orders.publish_many(3)
    orders.purge()
    ids += orders.publish_many(3)
    assert ids == sorted(set(ids))


def test_the_position_says_how_many_go_out_first(orders: Bench) -> None:
    positions = [orders.publish(priority=priority).position for priority in (0, 0, 9, 5, 9, 0)]
    assert positions == [1, 2, 1, 2, 2, 6]


def test_the_position_of_a_scheduled_message_is_behind_what_is_ready(orders: Bench) -> None:
    assert orders.publish(delay_ms=1000).position == 1
    orders.publish()
    assert orders.publish(delay_ms=1000).position == 2


def test_one_bad_message_does_not_keep_its_neighbours_in_the_batch_out(orders: Bench) -> None:
    results = orders.publish_all(
        [Publication(b"1"), Publication(b"2", priority=256), Publication(bytes((1 << 20) + 1)), Publication(b"4")]
    )
    assert [type(result) for result in results] == [Placed, InvalidPriority, MessageTooLarge, Placed]
    assert orders.receive_bodies() == [b"1", b"4"]
    assert orders.stats().rejected_total == 2


def test_acknowledging_many_answers_for_each(orders: Bench) -> None:
    elsewhere = orders.declare("elsewhere")
    orders.publish_many(3)
    orders.publish(queue=elsewhere)
    first, second, third = orders.receive(3)
    other = orders.receive_one(queue=elsewhere)
    orders.acknowledge(second)
    receipts = [delivery.receipt for delivery in (first, second, other, third, third)]
    outcomes = acknowledge(orders.state, receipts, now_ms=orders.now_ms)
    assert [type(outcome) for outcome in outcomes] == [type(None), StaleReceipt, type(None), type(None), StaleReceipt]
    assert (orders.depth, elsewhere.depth) == (0, 0)


def test_the_statistics_add_up(orders: Bench) -> None:
    orders.publish(b"1234")
    orders.publish(b"56")
    orders.pass_time(ms=1000)
    assert orders.stats().oldest_age_ms == 1000
    first, second = orders.receive(2)
    orders.pass_time(ms=500)
    orders.acknowledge(first)
    orders.nack(second, delay_ms=0)
    stats = orders.stats()
    assert (stats.published_total, stats.delivered_total, stats.acknowledged_total, stats.nacked_total) == (2, 2, 1, 1)
    assert (stats.depth, stats.body_bytes, stats.wait_ms_average) == (1, 2, 1000.0)
    assert stats.oldest_age_ms == 1500


def test_a_second_delivery_is_not_a_second_wait(orders: Bench) -> None:
    orders.publish()
    orders.pass_time(ms=100)
    orders.release(orders.receive_one())
    orders.pass_time(ms=100_000)
    orders.receive_one()
    assert orders.stats().wait_ms_average == 100.0


def test_a_paused_queue_takes_messages_and_hands_none_out(orders: Bench) -> None:
    orders.publish(b"before")
    held = orders.receive_one()
    orders.pause()
    orders.publish(b"during")
    assert orders.receive(10) == []
    assert orders.stats().is_paused
    orders.acknowledge(held)
    orders.resume()
    assert orders.receive_bodies() == [b"during"]


def test_leases_and_delays_go_on_in_a_paused_queue(orders: Bench) -> None:
    orders.publish()
    orders.receive_one()
    orders.publish(delay_ms=2000)
    orders.pause()
    orders.pass_time(ms=30_000)
    assert orders.counts() == (2, 0, 0, 0)
    assert orders.receive(10) == []


def test_peeking_shows_what_comes_next_and_takes_nothing(orders: Bench) -> None:
    for priority, body in ((0, b"a"), (9, b"b"), (0, b"c"), (9, b"d")):
        orders.publish(body, priority=priority)
    orders.publish(b"later", delay_ms=1000)
    before = orders.stats()
    assert orders.peek(3) == [b"b", b"d", b"a"]
    assert orders.stats() == before
    assert orders.receive_bodies() == [b"b", b"d", b"a", b"c"]


def test_somebody_who_waits_is_woken_by_whatever_becomes_ready(orders: Bench) -> None:
    def is_woken() -> bool:
        woken = orders.queue in orders.state.woken
        orders.state.woken.clear()
        return woken

    orders.publish()
    assert not is_woken(), "nobody waits"
    orders.queue.is_watched = True
    orders.publish(delay_ms=2000)
    assert not is_woken()
    orders.pass_time(ms=2000)
    assert is_woken()
    orders.release(orders.receive_one())
    assert is_woken()
    orders.pause()
    assert not is_woken()
    orders.resume()
    assert is_woken()


def test_the_structures_are_sound_after_a_busy_day() -> None:
    bench = Bench(QueueSettings(message_ttl_ms=50_000, max_depth=50))
    for step in range(400):
        if step % 3 != 2:
            bench.publish(priority=step % 4, delay_ms=(step % 5) * 700)
        for delivery in bench.receive(2):
            match step % 4:
                case 0 | 1:
                    bench.acknowledge(delivery)
                case 2:
                    bench.nack(delivery)
        bench.pass_time(ms=333)
        invariants.check(bench.state)


@pytest.mark.parametrize("lease_ms", [-1, 1.5, "10", True, 1 << 53])
def test_a_lease_is_a_whole_number_of_milliseconds(orders: Bench, lease_ms: object) -> None:
    orders.publish()
    with pytest.raises(InvalidArgument, match="lease_ms"):
        orders.receive(lease_ms=lease_ms)  # type: ignore[arg-type]  # what a careless protocol may pass on
    assert orders.counts() == (1, 0, 0, 0)
