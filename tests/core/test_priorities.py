"""Strict: the highest first. Weighted: the highest most often, and nobody waits for ever."""

from __future__ import annotations

import pytest

from smista.core.settings import PriorityPolicy, QueueSettings
from smista.errors import InvalidPriority
from tests.core.bench import Bench


def weighted() -> Bench:
    return Bench(QueueSettings(priority_policy=PriorityPolicy.WEIGHTED))


def test_the_highest_priority_goes_first_and_within_it_the_oldest(orders: Bench) -> None:
    for body, priority in ((b"low 1", 0), (b"high 1", 255), (b"mid 1", 5), (b"high 2", 255), (b"low 2", 0)):
        orders.publish(body, priority=priority)
    assert orders.receive_bodies() == [b"high 1", b"high 2", b"mid 1", b"low 1", b"low 2"]


def test_a_message_without_a_priority_has_the_queues_default() -> None:
    bench = Bench(QueueSettings(max_priority=9, default_priority=5))
    for body, priority in ((b"4", 4), (b"default", None), (b"6", 6)):
        bench.publish(body, priority=priority)
    assert [(delivery.body, delivery.priority) for delivery in bench.receive(3)] == [
        (b"6", 6),
        (b"default", 5),
        (b"4", 4),
    ]


@pytest.mark.parametrize("priority", [-1, 10, 255, 2.0, "5", True])
def test_a_priority_out_of_range_is_refused_and_never_clamped(priority: object) -> None:
    bench = Bench(QueueSettings(max_priority=9))
    with pytest.raises(InvalidPriority, match="0 to 9"):
        bench.publish(priority=priority)  # type: ignore[arg-type]  # what a careless protocol may pass on
    assert bench.depth == 0


def test_what_comes_back_stands_at_its_old_place_in_its_priority(orders: Bench) -> None:
    orders.publish(b"high 1", priority=9)
    orders.publish(b"high 2", priority=9)
    orders.publish(b"low", priority=1)
    first, second = orders.receive(2)
    orders.publish(b"high 3", priority=9)
    orders.release(second)
    orders.release(first)
    assert orders.receive_bodies() == [b"high 1", b"high 2", b"high 3", b"low"]


def test_strict_priority_lets_the_low_wait(orders: Bench) -> None:
    orders.publish(b"low", priority=0)
    for _ in range(100):
        orders.publish(b"high", priority=9)
        assert orders.receive_bodies(1) == [b"high"]


def test_weighted_priority_shares_by_weight() -> None:
    bench = weighted()
    for _ in range(300):
        bench.publish(b"low", priority=0)
        bench.publish(b"high", priority=3)
    taken = bench.receive_bodies(250)
    assert taken.count(b"low") == pytest.approx(50, abs=1)
    assert taken.count(b"high") == pytest.approx(200, abs=1)


@pytest.mark.parametrize("levels", [(0, 9), (0, 1, 2, 3, 4, 5, 6, 7, 8, 9), (3, 255), (0, 100, 200)])
def test_weighted_priority_bounds_every_levels_wait(levels: tuple[int, ...]) -> None:
    bench = weighted()
    total = sum(level + 1 for level in levels)
    for level in levels:
        for _ in range(3 * total):
            bench.publish(b"%d" % level, priority=level)
    since_served = dict.fromkeys(levels, 0)
    for _ in range(2 * total):
        served = int(bench.receive_bodies(1)[0])
        for level in levels:
            since_served[level] = 0 if level == served else since_served[level] + 1
            assert since_served[level] <= total / (level + 1) + len(levels), f"level {level} waits"


def test_weighted_priority_does_not_make_up_for_absence() -> None:
    bench = weighted()
    for _ in range(60):
        bench.publish(b"low", priority=0)
    assert len(bench.receive(20)) == 20
    for _ in range(60):
        bench.publish(b"high", priority=3)
    taken = bench.receive_bodies(20)
    assert taken.count(b"high") == pytest.approx(16, abs=1)


def test_weighted_priority_is_served_while_high_ones_keep_coming() -> None:
    bench = weighted()
    bench.publish(b"low", priority=0)
    taken = []
    for _ in range(15):
        bench.publish(b"high", priority=9)
        taken += bench.receive_bodies(1)
    assert b"low" in taken[:12]


def test_weighted_order_within_a_priority_is_by_age() -> None:
    bench = weighted()
    for number in range(30):
        bench.publish(b"%d" % number, priority=number % 3)
    taken = [int(body) for body in bench.receive_bodies()]
    for level in range(3):
        of_level = [number for number in taken if number % 3 == level]
        assert of_level == sorted(of_level)
