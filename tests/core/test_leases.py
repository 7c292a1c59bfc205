"""Leases and receipts: one holder at a time, and a receipt that is over changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from smista.core.message import FOREVER_MS
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.core.settling import receipt_for
from smista.errors import LeaseExpired, MessageNotFound, StaleReceipt
from tests.core import invariants
from tests.core.bench import DAY_MS, LEASE_MS, Bench, Delivery


@pytest.fixture
def ordered() -> Bench:
    return Bench(QueueSettings(ordered=True))


def test_a_lease_that_runs_out_makes_the_message_ready_again(orders: Bench) -> None:
    orders.publish(b"x")
    [first] = orders.receive()
    orders.pass_time(ms=LEASE_MS)
    [second] = orders.receive()
    assert (second.id, second.delivery_count) == (first.id, 2)
    with pytest.raises(StaleReceipt):
        orders.acknowledge(first)


def test_a_lease_holds_until_its_very_end(orders: Bench) -> None:
    orders.publish()
    orders.receive_one()
    orders.pass_time(ms=LEASE_MS - 1)
    assert orders.receive() == []


def test_each_receive_may_name_its_own_lease(orders: Bench) -> None:
    orders.publish_many(2)
    orders.receive_one(lease_ms=8000)
    orders.receive_one(lease_ms=200_000)
    orders.pass_time(ms=8000)
    assert orders.receive_bodies() == [b"0"]


def test_a_lease_can_last_for_ever(orders: Bench) -> None:
    orders.publish()
    delivery = orders.receive_one(lease_ms=FOREVER_MS)
    orders.pass_time(ms=400 * DAY_MS)
    orders.acknowledge(delivery)
    assert orders.depth == 0


def test_a_message_whose_lease_ran_out_stands_at_its_old_place(orders: Bench) -> None:
    orders.publish_many(3)
    orders.receive_one()
    orders.pass_time(ms=LEASE_MS)
    assert orders.receive_bodies() == [b"0", b"1", b"2"]


def test_a_late_acknowledgement_counts_while_nobody_else_has_the_message(orders: Bench) -> None:
    orders.publish()
    delivery = orders.receive_one()
    orders.pass_time(ms=LEASE_MS + 5000)
    orders.acknowledge(delivery)
    assert orders.depth == 0
    assert orders.receive() == []
    assert (orders.stats().acknowledged_total, orders.stats().timed_out_total) == (1, 1)
    invariants.check(orders.state)


def test_a_late_acknowledgement_counts_during_the_back_off_of_a_timeout() -> None:
    bench = Bench(QueueSettings(backoff_on_timeout=True))
    bench.publish()
    delivery = bench.receive_one()
    bench.pass_time(ms=LEASE_MS)
    assert bench.counts() == (0, 1, 0, 0)
    bench.acknowledge(delivery)
    assert bench.depth == 0


def test_a_late_acknowledgement_is_refused_in_an_ordered_queue(ordered: Bench) -> None:
    ordered.publish(group="g")
    delivery = ordered.receive_one()
    ordered.pass_time(ms=LEASE_MS)
    with pytest.raises(LeaseExpired) as late:
        ordered.acknowledge(delivery)
    assert late.value.code == "ack_deadline_exceeded"
    assert ordered.counts() == (1, 0, 0, 0)


def test_only_the_acknowledgement_may_come_late(orders: Bench) -> None:
    orders.publish()
    delivery = orders.receive_one()
    orders.pass_time(ms=LEASE_MS)
    before = orders.all_stats()
    for settle in (orders.nack, orders.reject, orders.release):
        with pytest.raises(LeaseExpired, match="'orders'"):
            settle(delivery)
    with pytest.raises(LeaseExpired):
        orders.extend(delivery, lease_ms=1000)
    assert orders.all_stats() == before


Settle = Callable[[Bench, Delivery], object]
SETTLE: dict[str, Settle] = {
    "acknowledge": lambda bench, delivery: bench.acknowledge(delivery),
    "nack": lambda bench, delivery: bench.nack(delivery, delay_ms=0),
    "reject": lambda bench, delivery: bench.reject(delivery),
    "release": lambda bench, delivery: bench.release(delivery),
    "extend": lambda bench, delivery: bench.extend(delivery, lease_ms=90_000),
}
ENDS = {name: settle for name, settle in SETTLE.items() if name != "extend"}


@pytest.mark.parametrize("again", SETTLE)
@pytest.mark.parametrize("first", ENDS)
def test_no_receipt_settles_twice(orders: Bench, first: str, again: str) -> None:
    orders.publish()
    delivery = orders.receive_one()
    SETTLE[first](orders, delivery)
    before = orders.all_stats()
    with pytest.raises(StaleReceipt) as stale:
        SETTLE[again](orders, delivery)
    assert stale.value.code == "stale_receipt"
    assert orders.all_stats() == before


@pytest.mark.parametrize("again", SETTLE)
@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_stale_receipt_does_nothing_to_another_holders_delivery(again: str, is_ordered: bool) -> None:
    bench = Bench(QueueSettings(ordered=is_ordered))
    bench.publish(group="g")
    stale = bench.receive_one()
    bench.pass_time(ms=LEASE_MS)
    current = bench.receive_one()
    before = bench.all_stats(), current.message.deadline_ms
    with pytest.raises(StaleReceipt):
        SETTLE[again](bench, stale)
    assert (bench.all_stats(), current.message.deadline_ms) == before
    bench.acknowledge(current)
    assert bench.depth == 0


@pytest.mark.parametrize("again", SETTLE)
def test_the_receipts_of_a_deleted_queue_are_dead_even_when_it_is_made_again(orders: Bench, again: str) -> None:
    orders.publish()
    stale = orders.receive_one()
    orders.delete()
    remade = orders.declare("orders")
    orders.publish(queue=remade)
    held = orders.receive_one(queue=remade)
    with pytest.raises(StaleReceipt, match="deleted"):
        SETTLE[again](orders, stale)
    orders.acknowledge(held)


def refusal(orders: Bench, delivery: Delivery) -> str:
    with pytest.raises(StaleReceipt) as raised:
        orders.acknowledge(delivery)
    return str(raised.value)


def test_a_stale_receipt_says_what_became_of_its_delivery_and_what_to_do(orders: Bench) -> None:
    orders.publish(b"x")
    [first] = orders.receive()
    orders.pass_time(ms=LEASE_MS)
    [second] = orders.receive()
    message = refusal(orders, first)
    assert "Delivery 1 of the message is over: its lease ran out" in message
    assert "handed out again since, as delivery 2" in message
    assert "Extend the lease of slow work, or ask for a longer one." in message
    orders.release(second)
    message = refusal(orders, second)
    assert "Delivery 2 of the message is over: it was released" in message
    assert "waits in queue 'orders'" in message
    [third] = orders.receive()
    orders.nack(third, delay_ms=0)
    assert "Delivery 3 of the message is over: it was nacked" in refusal(orders, third)
    [fourth] = orders.receive()
    orders.acknowledge(fourth)
    message = refusal(orders, fourth)
    assert "settled before, by this receipt or by whoever had it after you, or it became a dead letter, " in message
    assert "There is nothing left to settle" in message


def test_the_receipt_of_a_message_that_was_set_aside_says_so() -> None:
    parking = Bench(QueueSettings(dead_letter=DeadLetterMode.PARK))
    parking.publish(b"x")
    [delivery] = parking.receive()
    parking.nack(delivery, requeue=False)
    assert "set aside as a dead letter" in refusal(parking, delivery)


def test_extending_counts_from_now(orders: Bench) -> None:
    orders.publish()
    delivery = orders.receive_one()
    orders.pass_time(ms=LEASE_MS - 1)
    orders.extend(delivery, lease_ms=64_000)
    orders.pass_time(ms=63_999)
    assert orders.receive() == []
    orders.pass_time(ms=1 + 16)
    assert orders.receive_one().delivery_count == 2


def test_extending_may_also_shorten(orders: Bench) -> None:
    orders.publish()
    delivery = orders.receive_one()
    orders.extend(delivery, lease_ms=2000)
    orders.pass_time(ms=2000)
    assert len(orders.receive()) == 1


def test_extending_for_ever_takes_the_deadline_away(orders: Bench) -> None:
    orders.publish()
    delivery = orders.receive_one()
    orders.extend(delivery, lease_ms=FOREVER_MS)
    orders.pass_time(ms=DAY_MS)
    assert orders.receive() == []
    orders.extend(delivery, lease_ms=2000)
    orders.pass_time(ms=2000)
    assert len(orders.receive()) == 1


def test_a_release_puts_the_message_back_at_once_and_counts_no_failure() -> None:
    bench = Bench(QueueSettings(max_retries=0))
    bench.publish_many(2)
    for count in range(1, 10):
        delivery = bench.receive_one()
        assert (delivery.body, delivery.delivery_count) == (b"0", count)
        bench.release(delivery)
    assert (bench.stats().released_total, bench.stats().nacked_total) == (9, 0)
    assert bench.dead_letters() == []


def test_the_current_holders_receipt_can_be_asked_for_by_message(orders: Bench) -> None:
    sequence = orders.publish().number
    with pytest.raises(MessageNotFound, match="'orders'"):
        receipt_for(orders.queue, sequence)
    orders.receive_one()
    orders.pass_time(ms=LEASE_MS)
    second = orders.receive_one()
    assert receipt_for(orders.queue, sequence) == second.receipt
