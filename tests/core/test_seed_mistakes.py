"""The mistakes in the seeds' own sample code: each is shown not to be made here.

Two of the ten show elsewhere: the length check that races needs threads, and consuming from a read replica needs
replicas; here it is shown that the core answers both by being one step at a time over one state.
"""

from __future__ import annotations

import pytest

from smista.core.declaring import bind, declare_exchange
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.fan_out import publish_to_exchange
from smista.core.message import Envelope, Publication
from smista.core.settings import QueueSettings
from smista.errors import QueueFull, StaleReceipt
from tests.core.bench import LEASE_MS, START_MS, Bench, bodies
from tests.core.exchanges.work import lines_run


def test_dead_lettering_does_not_deadlock_on_its_own_lock(orders: Bench) -> None:
    """The seed's nack holds the queue's lock and calls send, which takes it. Here a queue may even be dead-lettered
    into from several sources, making the target on the way, within one command."""
    orders.publish()
    orders.reject(orders.receive_one())
    assert len(orders.dead_letters()) == 1


def test_a_delayed_message_at_the_head_hides_no_ready_ones(orders: Bench) -> None:
    orders.publish(b"delayed", delay_ms=900_000, priority=255)
    orders.publish(b"ready")
    assert orders.receive_bodies() == [b"ready"]
    orders.publish(b"backing off")
    orders.nack(orders.receive_one())
    orders.publish(b"behind it")
    assert orders.receive_bodies() == [b"behind it"]


def test_a_nack_without_requeue_below_the_limit_does_not_lose_the_message(orders: Bench) -> None:
    orders.publish(b"precious")
    delivery = orders.receive_one()
    assert delivery.delivery_count < 3
    assert not orders.reject(delivery)
    assert bodies(orders.dead_letters()) == [b"precious"]


def test_timeouts_alone_lead_to_the_dead_letters(orders: Bench) -> None:
    orders.publish(b"crashes its consumer")
    for _ in range(4):
        orders.receive_one()
        orders.pass_time(ms=LEASE_MS)
    assert bodies(orders.dead_letters()) == [b"crashes its consumer"]


def test_the_length_check_cannot_race() -> None:
    bench = Bench(QueueSettings(max_depth=10))
    results = bench.publish_all([Publication(b"x") for _ in range(25)])
    assert sum(isinstance(result, QueueFull) for result in results) == 15
    assert bench.depth == 10


def test_a_late_ack_does_not_delete_another_holders_delivery(orders: Bench) -> None:
    orders.publish()
    late = orders.receive_one()
    orders.pass_time(ms=LEASE_MS)
    current = orders.receive_one()
    with pytest.raises(StaleReceipt):
        orders.acknowledge(late)
    assert orders.counts() == (0, 0, 1, 0)
    orders.acknowledge(current)


def test_orders_hash_does_not_miss_orders(orders: Bench) -> None:
    declare_exchange(orders.state, "events", ExchangeSettings(ExchangeKind.TOPIC))
    bind(orders.state, orders.state.namespace("/"), Binding.to_queue("events", "orders", "orders.#"))
    for key in ("orders", "orders.new", "orders.new.eu", "order"):
        publication = Publication(key.encode(), Envelope(exchange="events", routing_key=key))
        publish_to_exchange(orders.state, orders.state.namespace("/"), "events", publication, now_ms=orders.now_ms)
    assert orders.receive_bodies() == [b"orders", b"orders.new", b"orders.new.eu"]


def test_two_messages_in_one_millisecond_do_not_overwrite_each_other(orders: Bench) -> None:
    for number in range(100):
        orders.publish(b"%02d" % number, deliver_at_ms=START_MS + 16_000)
    orders.pass_time(ms=16_000)
    assert orders.receive_bodies() == [b"%02d" % number for number in range(100)]


@pytest.mark.parametrize("priority", [0, 9])
def test_publishing_does_not_scan_the_queue(orders: Bench, priority: int) -> None:
    for level in (0, 9):
        orders.publish(priority=level)

    def publish() -> None:
        orders.publish(priority=priority)

    few = lines_run(publish)
    for _ in range(3000):
        orders.publish(priority=5)
    assert lines_run(publish) <= few + 20


def test_receiving_and_settling_do_not_scan_the_queue_either(orders: Bench) -> None:
    def work() -> None:
        orders.acknowledge(orders.receive_one())
        orders.nack(orders.receive_one(), delay_ms=0)

    orders.publish_many(3)
    few = lines_run(work)
    orders.publish_many(3000)
    assert lines_run(work) <= few + 20


def test_one_message_is_never_handed_to_several_consumers(orders: Bench) -> None:
    """The seed lets a replica hand out what the master has not marked. Here handing out is the change of state."""
    orders.publish_many(50)
    seen = [delivery.id for _ in range(20) for delivery in orders.receive(5)]
    assert len(seen) == len(set(seen)) == 50
