"""How often a message is tried again, and how long it waits in between."""

from __future__ import annotations

import pytest

from smista.core.message import Envelope, Publication
from smista.core.retry import backoff_ms
from smista.core.settings import Backoff, QueueSettings
from smista.errors import InvalidArgument
from tests.core.bench import LEASE_MS, Bench


def deliveries_until_dead(bench: Bench, *, by_timeout: bool) -> int:
    count = 0
    while delivered := bench.receive():
        count += 1
        if by_timeout:
            bench.pass_time(ms=LEASE_MS)
        else:
            bench.nack(delivered[0], delay_ms=0)
    assert len(bench.dead_letters()) == 1
    return count


@pytest.mark.parametrize("by_timeout", [False, True], ids=["nack", "timeout"])
@pytest.mark.parametrize("max_retries", [0, 1, 2, 3, 4, 10])
def test_a_message_is_delivered_once_and_then_max_retries_times(max_retries: int, by_timeout: bool) -> None:
    bench = Bench(QueueSettings(max_retries=max_retries))
    bench.publish()
    assert deliveries_until_dead(bench, by_timeout=by_timeout) == max_retries + 1


def test_nacks_and_timeouts_are_counted_together() -> None:
    bench = Bench(QueueSettings(max_retries=1))
    bench.publish()
    bench.nack(bench.receive_one(), delay_ms=0)
    bench.receive_one()
    bench.pass_time(ms=LEASE_MS)
    assert len(bench.dead_letters()) == 1


def test_without_a_limit_a_message_is_retried_for_ever() -> None:
    bench = Bench(QueueSettings(max_retries=None))
    bench.publish()
    for _ in range(200):
        assert bench.nack(bench.receive_one(), delay_ms=0)
    assert bench.receive_one().delivery_count == 201


@pytest.mark.parametrize(("own", "deliveries"), [(0, 1), (5, 6), (None, 4)])
def test_a_message_may_have_a_limit_of_its_own(orders: Bench, own: int | None, deliveries: int) -> None:
    orders.publish(max_retries=own)
    assert deliveries_until_dead(orders, by_timeout=False) == deliveries


@pytest.mark.parametrize("own", [-1, 1.5, "3", True])
def test_a_messages_own_limit_is_a_whole_number(orders: Bench, own: object) -> None:
    [result] = orders.publish_all([Publication(b"x", Envelope(max_retries=own))])  # type: ignore[arg-type]  # on purpose
    assert isinstance(result, InvalidArgument)
    assert "max_retries" in str(result)
    assert orders.depth == 0


def test_by_default_a_nacked_message_waits_2_then_4_then_8_seconds(orders: Bench) -> None:
    orders.publish()
    for wait_ms in (2000, 4000, 8000):
        assert orders.nack(orders.receive_one())
        orders.pass_time(ms=wait_ms - 1)
        assert orders.receive() == []
        orders.pass_time(ms=1)
    assert not orders.nack(orders.receive_one())


def test_by_default_a_timeout_brings_no_wait(orders: Bench) -> None:
    orders.publish()
    for _ in range(4):
        orders.receive_one()
        orders.pass_time(ms=LEASE_MS)
    assert len(orders.dead_letters()) == 1


def test_a_timeout_backs_off_where_the_queue_says_so() -> None:
    bench = Bench(QueueSettings(backoff_on_timeout=True))
    bench.publish()
    bench.receive_one()
    bench.pass_time(ms=LEASE_MS)
    assert bench.receive() == []
    bench.pass_time(ms=2000)
    assert len(bench.receive()) == 1


def test_a_nack_may_name_its_own_delay(orders: Bench) -> None:
    orders.publish()
    orders.nack(orders.receive_one(), delay_ms=64_000)
    orders.pass_time(ms=63_999)
    assert orders.receive() == []
    orders.pass_time(ms=1)
    assert len(orders.receive()) == 1


@pytest.mark.parametrize("delay_ms", [-1, 1.0, "1", True])
def test_a_nacks_delay_is_a_whole_number_of_milliseconds(orders: Bench, delay_ms: object) -> None:
    orders.publish()
    delivery = orders.receive_one()
    with pytest.raises(InvalidArgument, match="delay_ms"):
        orders.nack(delivery, delay_ms=delay_ms)  # type: ignore[arg-type]  # what a careless protocol may pass on
    orders.acknowledge(delivery)


def test_a_retried_message_comes_back_to_its_old_place(orders: Bench) -> None:
    orders.publish_many(3)
    orders.nack(orders.receive_one())
    orders.pass_time(ms=2000)
    assert orders.receive_bodies() == [b"0", b"1", b"2"]


def test_a_released_delivery_does_not_lengthen_the_back_off(orders: Bench) -> None:
    orders.publish()
    for _ in range(5):
        orders.release(orders.receive_one())
    orders.nack(orders.receive_one())
    orders.pass_time(ms=2000)
    assert orders.receive_one().delivery_count == 7


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        (QueueSettings(), [2000, 4000, 8000, 16000, 32000]),
        (QueueSettings(retry_base_ms=10), [20, 40, 80, 160, 320]),
        (QueueSettings(retry_cap_ms=5000), [2000, 4000, 5000, 5000, 5000]),
        (QueueSettings(retry_backoff=Backoff.LINEAR), [1000, 2000, 3000, 4000, 5000]),
        (QueueSettings(retry_backoff=Backoff.LINEAR, retry_cap_ms=2500), [1000, 2000, 2500, 2500, 2500]),
        (QueueSettings(retry_backoff=Backoff.NONE), [0, 0, 0, 0, 0]),
        (QueueSettings(retry_base_ms=0), [0, 0, 0, 0, 0]),
    ],
)
def test_the_back_offs(settings: QueueSettings, waits: list[int]) -> None:
    assert [backoff_ms(settings, failures, 0.0) for failures in range(1, 6)] == waits


def test_the_default_back_off_is_capped_at_15_minutes_however_many_failures() -> None:
    assert [backoff_ms(QueueSettings(), failures, 0.0) for failures in (9, 10, 1000, 1 << 40)] == [
        512_000,
        900_000,
        900_000,
        900_000,
    ]


@pytest.mark.parametrize(
    ("jitter", "chance", "wait_ms"), [(0.5, 0.0, 2000), (0.5, 0.5, 1500), (1.0, 1.0, 0), (0.0, 1.0, 2000)]
)
def test_jitter_only_shortens(jitter: float, chance: float, wait_ms: int) -> None:
    assert backoff_ms(QueueSettings(retry_jitter=jitter), 1, chance) == wait_ms


def test_leases_that_run_out_together_come_back_spread() -> None:
    bench = Bench(QueueSettings(backoff_on_timeout=True, retry_jitter=1.0, retry_base_ms=100_000))
    bench.publish_many(50)
    bench.receive(50)
    bench.pass_time(ms=LEASE_MS)
    due = {message.ready_at_ms for message in bench.queue.scheduled.values()}
    assert len(due) > 40


def test_a_nack_draws_on_the_chance_it_is_given() -> None:
    bench = Bench(QueueSettings(retry_jitter=0.5))
    bench.chance = 1.0
    bench.publish()
    bench.nack(bench.receive_one())
    bench.pass_time(ms=1000 + 16)
    assert len(bench.receive()) == 1
