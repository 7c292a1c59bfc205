"""Time to live of a message, retention of a queue, and a queue that nobody uses."""

from __future__ import annotations

import pytest

from smista.core.message import Reason
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.errors import StaleReceipt
from tests.core import invariants
from tests.core.bench import DAY_MS, HOUR_MS, LEASE_MS, Bench, bodies


@pytest.mark.parametrize(
    ("own", "queues", "lives_ms"), [(4000, 8000, 4000), (8000, 4000, 4000), (8000, None, 8000), (None, 8000, 8000)]
)
def test_the_shorter_time_to_live_wins(own: int | None, queues: int | None, lives_ms: int) -> None:
    bench = Bench(QueueSettings(message_ttl_ms=queues))
    bench.publish(ttl_ms=own)
    bench.pass_time(ms=lives_ms - 1)
    assert bench.counts() == (1, 0, 0, 0)
    bench.pass_time(ms=1)
    assert bench.depth == 0
    assert bench.dead_letters()[0].deaths[-1].reason is Reason.EXPIRED
    assert bench.stats().expired_total == 1


def test_a_message_expires_wherever_it_stands(orders: Bench) -> None:
    orders.publish(b"first")
    orders.publish(b"middle", ttl_ms=2000)
    orders.publish(b"last")
    orders.pass_time(ms=2000)
    assert orders.counts() == (2, 0, 0, 0)
    invariants.check(orders.state)
    assert orders.receive_bodies() == [b"first", b"last"]


def test_time_spent_scheduled_does_not_count(orders: Bench) -> None:
    orders.publish(delay_ms=64_000, ttl_ms=2000)
    orders.pass_time(ms=65_999)
    assert orders.counts() == (1, 0, 0, 0)
    orders.pass_time(ms=1)
    assert orders.depth == 0


def test_time_spent_in_back_off_does_not_count_either(orders: Bench) -> None:
    orders.publish(ttl_ms=3200)
    orders.pass_time(ms=1600)
    orders.nack(orders.receive_one(), delay_ms=64_000)
    orders.pass_time(ms=64_000 + 1599)
    assert orders.counts() == (1, 0, 0, 0)
    orders.pass_time(ms=1)
    assert orders.depth == 0


def test_rescheduling_moves_the_end_of_life_along(orders: Bench) -> None:
    sequence = orders.publish(delay_ms=2000, ttl_ms=2000).number
    orders.reschedule(sequence, due_at_ms=orders.now_ms + 64_000)
    orders.pass_time(ms=64_000 + 1999)
    assert orders.counts() == (1, 0, 0, 0)


def test_the_holder_of_an_expired_message_may_finish(orders: Bench) -> None:
    orders.publish(ttl_ms=2000)
    delivery = orders.receive_one()
    orders.pass_time(ms=20_000)
    orders.acknowledge(delivery)
    assert orders.stats().acknowledged_total == 1
    assert orders.dead_letters() == []


@pytest.mark.parametrize("how", ["nack", "release", "timeout"])
def test_a_message_that_comes_back_past_its_time_expires(orders: Bench, how: str) -> None:
    orders.publish(ttl_ms=2000)
    delivery = orders.receive_one()
    orders.pass_time(ms=2000)
    match how:
        case "nack":
            assert not orders.nack(delivery, error="too slow")
        case "release":
            orders.release(delivery)
        case "timeout":
            orders.pass_time(ms=LEASE_MS)
    [letter] = orders.dead_letters()
    assert letter.deaths[-1].reason is Reason.EXPIRED
    assert orders.depth == 0
    if how == "nack":
        assert [failure.error for failure in letter.deaths[-1].failures] == ["too slow"]
        assert orders.stats().nacked_total == 1


def test_a_late_acknowledgement_comes_too_late_once_the_message_expired(orders: Bench) -> None:
    orders.publish(ttl_ms=32_000)
    delivery = orders.receive_one()
    orders.pass_time(ms=LEASE_MS)
    orders.pass_time(ms=2000)
    with pytest.raises(StaleReceipt):
        orders.acknowledge(delivery)
    assert len(orders.dead_letters()) == 1


def test_a_time_to_live_of_nothing_means_now_or_never(orders: Bench) -> None:
    """Now: whoever waits already, see `test_rabbitmq_rules`."""
    orders.publish(b"never", ttl_ms=0)
    assert orders.receive_bodies() == []
    assert bodies(orders.dead_letters()) == [b"never"]


def test_receiving_is_exact_even_where_the_clockwork_lags(orders: Bench) -> None:
    orders.publish(b"over", ttl_ms=1)
    orders.publish(b"good")
    orders.now_ms += 5
    assert orders.receive_bodies() == [b"good"]
    assert bodies(orders.dead_letters()) == [b"over"]
    invariants.check(orders.state)


@pytest.mark.parametrize("mode", [DeadLetterMode.PARK, DeadLetterMode.DROP])
def test_without_a_dead_letter_queue_what_expires_is_gone_and_counted(mode: DeadLetterMode) -> None:
    bench = Bench(QueueSettings(dead_letter=mode))
    bench.publish(ttl_ms=2000)
    bench.pass_time(ms=2000)
    assert (bench.depth, bench.stats().expired_total) == (0, 1)


def test_a_message_keeps_the_time_to_live_it_was_published_with() -> None:
    bench = Bench(QueueSettings(message_ttl_ms=8000))
    bench.publish(b"old")
    bench.alter(QueueSettings(message_ttl_ms=2000))
    bench.publish(b"new")
    bench.pass_time(ms=2000)
    assert bodies(bench.browse().messages) == [b"old"]


def test_what_outlives_the_retention_goes_without_becoming_a_dead_letter() -> None:
    bench = Bench(QueueSettings(retention_ms=DAY_MS))
    bench.publish(b"four")
    bench.pass_time(ms=DAY_MS - 1)
    assert bench.depth == 1
    bench.pass_time(ms=DAY_MS // 100 + 1 + 16)
    assert (bench.depth, bench.stats().body_bytes, bench.stats().expired_total) == (0, 0, 1)
    assert not bench.has_queue("orders_dlq")


def test_nothing_past_its_retention_is_ever_received() -> None:
    bench = Bench(QueueSettings(retention_ms=DAY_MS))
    bench.publish()
    bench.now_ms += DAY_MS
    assert bench.receive() == []


def test_retention_counts_from_when_a_message_could_first_be_received() -> None:
    bench = Bench(QueueSettings(retention_ms=DAY_MS))
    bench.publish(delay_ms=5 * DAY_MS)
    bench.pass_time(ms=5 * DAY_MS + HOUR_MS)
    assert len(bench.receive()) == 1


def test_retention_lets_a_great_many_go_in_slices() -> None:
    bench = Bench(QueueSettings(retention_ms=DAY_MS))
    bench.publish_many(1600)
    bench.pass_time(ms=2 * DAY_MS)
    assert bench.depth == 0
    assert bench.queue.deadline_ms is None, "an empty queue costs nothing"


def test_retention_looks_after_what_an_exchange_brought() -> None:
    bench = Bench(QueueSettings(retention_ms=DAY_MS))
    other = bench.declare("other", QueueSettings(retention_ms=DAY_MS))
    bench.fanout("all", bench.queue, other)
    bench.publish_to("all")
    bench.pass_time(ms=2 * DAY_MS)
    assert (bench.depth, other.depth) == (0, 0)


def test_without_retention_a_message_stays() -> None:
    bench = Bench(QueueSettings(retention_ms=None))
    bench.publish()
    bench.pass_time(ms=4000 * DAY_MS)
    assert len(bench.receive()) == 1


def test_a_queue_nobody_uses_goes_with_what_is_in_it() -> None:
    bench = Bench(QueueSettings(expires_ms=HOUR_MS))
    bench.publish()
    bench.pass_time(ms=HOUR_MS - 1)
    assert bench.has_queue("orders")
    bench.pass_time(ms=1 + 16)
    assert not bench.has_queue("orders")
    assert bench.queue.is_deleted


@pytest.mark.parametrize("use", ["publish", "receive", "declare", "purge"])
def test_using_a_queue_keeps_it(use: str) -> None:
    bench = Bench(QueueSettings(expires_ms=HOUR_MS))
    for _ in range(5):
        bench.pass_time(ms=HOUR_MS - 1000)
        match use:
            case "publish":
                bench.publish()
            case "receive":
                bench.receive()
            case "declare":
                bench.declare("orders", QueueSettings(expires_ms=HOUR_MS))
            case "purge":
                bench.purge()
    assert bench.has_queue("orders")
    bench.pass_time(ms=HOUR_MS + 16)
    assert not bench.has_queue("orders")


def test_a_queue_with_consumers_is_in_use() -> None:
    bench = Bench(QueueSettings(expires_ms=HOUR_MS))
    bench.queue.is_watched = True
    bench.pass_time(ms=10 * HOUR_MS)
    assert bench.has_queue("orders")
    bench.queue.is_watched = False
    bench.pass_time(ms=2 * HOUR_MS)
    assert not bench.has_queue("orders")
