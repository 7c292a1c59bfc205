"""Emptying a queue: exactly what was there when asked, at once, its memory freed in slices."""

from __future__ import annotations

import pytest

from smista.core.settings import DeadLetterMode, Overflow, QueueSettings
from smista.errors import StaleReceipt
from tests.core import invariants
from tests.core.bench import LEASE_MS, Bench
from tests.core.exchanges.work import lines_run


def one_in_each_state() -> Bench:
    bench = Bench(QueueSettings(dead_letter=DeadLetterMode.PARK))
    bench.publish(b"dead")
    bench.reject(bench.receive_one())
    bench.publish(b"in flight")
    bench.receive_one()
    bench.publish(b"scheduled", delay_ms=2000)
    bench.publish(b"ready")
    assert bench.counts() == (1, 1, 1, 1)
    return bench


def test_a_purge_takes_everything_and_says_how_much() -> None:
    bench = one_in_each_state()
    assert bench.purge() == 4
    assert (bench.counts(), bench.stats().purged_total) == ((0, 0, 0, 0), 4)
    bench.pass_time(ms=2 * LEASE_MS)
    assert (bench.receive(), bench.depth) == ([], 0)


def test_a_purge_of_what_is_ready_leaves_the_rest() -> None:
    bench = one_in_each_state()
    assert bench.purge(ready_only=True) == 1
    assert bench.counts() == (0, 1, 1, 1)
    invariants.check(bench.state)
    bench.pass_time(ms=LEASE_MS)
    assert bench.receive_bodies() == [b"in flight", b"scheduled"]


def test_what_is_sent_later_survives(orders: Bench) -> None:
    orders.publish(b"before")
    orders.purge()
    orders.publish(b"after")
    orders.free_purged()
    assert orders.receive_bodies() == [b"after"]
    invariants.check(orders.state)


def test_a_delivery_that_was_in_flight_survives_a_purge_of_what_is_ready(orders: Bench) -> None:
    orders.publish_many(2)
    held, other = orders.receive(2)
    orders.purge(ready_only=True)
    orders.acknowledge(held)
    orders.release(other)
    assert orders.receive_bodies() == [b"1"]


def test_the_receipts_of_purged_messages_are_over(orders: Bench) -> None:
    orders.publish()
    held = orders.receive_one()
    orders.purge()
    for settle in (orders.acknowledge, orders.nack, orders.release):
        with pytest.raises(StaleReceipt):
            settle(held)
    assert orders.depth == 0


def test_purged_messages_neither_expire_nor_become_ready_nor_time_out(orders: Bench) -> None:
    orders.publish(ttl_ms=2000)
    orders.publish(delay_ms=2000)
    orders.publish(priority=9)
    orders.receive_one()
    orders.purge()
    orders.pass_time(ms=2 * LEASE_MS)
    stats = orders.stats()
    assert (stats.depth, stats.expired_total, stats.timed_out_total) == (0, 0, 0)
    assert not orders.has_queue("orders_dlq")


def test_memory_is_freed_in_slices(orders: Bench) -> None:
    for _ in range(10):
        orders.publish(b"12345", ttl_ms=100_000)
    orders.purge()
    assert orders.stats().body_bytes == 0
    assert orders.free_purged(4)
    assert sum(map(len, orders.state.purged)) == 6
    invariants.check(orders.state)
    assert not orders.free_purged(100)
    assert orders.state.purged == []


def test_a_purge_costs_the_same_however_deep_the_queue(orders: Bench) -> None:
    orders.publish_many(10)
    few = lines_run(orders.purge)
    orders.publish_many(2000)
    assert lines_run(orders.purge) <= few


@pytest.mark.parametrize("overflow", Overflow)
@pytest.mark.parametrize("ready_only", [True, False])
def test_a_purged_queue_has_room_at_once(overflow: Overflow, ready_only: bool) -> None:
    bench = Bench(QueueSettings(max_bytes=10, overflow=overflow))
    bench.publish(b"1234567890")
    bench.purge(ready_only=ready_only)
    bench.publish(b"1234567890")
    assert bench.depth == 1
    assert not bench.has_queue("orders_dlq")


def test_two_purges_one_after_the_other(orders: Bench) -> None:
    orders.publish_many(3)
    assert (orders.purge(ready_only=True), orders.purge()) == (3, 0)
    orders.publish_many(2)
    assert orders.purge() == 2
    orders.free_purged()
    assert orders.stats().body_bytes == 0
    invariants.check(orders.state)


def test_dead_letters_are_purged_like_any_queue(orders: Bench) -> None:
    orders.publish()
    orders.reject(orders.receive_one())
    assert orders.purge(orders.find("orders_dlq")) == 1
    assert orders.dead_letters() == []
