"""How many bytes one receive hands out: it ends with the message that reaches the bound, and with one at the least."""

from __future__ import annotations

import pytest

from smista.core.settings import PriorityPolicy, QueueSettings
from tests.core import invariants
from tests.core.bench import Bench, Delivery


def firsts(deliveries: list[Delivery]) -> list[bytes]:
    """The first byte of each body."""
    return [delivery.body[:1] for delivery in deliveries]


def all_received(bench: Bench, *, bytes_max: int) -> list[list[Delivery]]:
    """What one receive after the other hands out, each of all that is allowed, until there is no more."""
    found = []
    while some := bench.receive(1_000, bytes_max=bytes_max):
        invariants.check(bench.state)
        found.append(some)
    return found


def test_a_receive_ends_with_the_message_that_reaches_the_bound_and_the_next_goes_on() -> None:
    bench = Bench()
    for number in range(10):
        bench.publish(b"%d" % number * 100)
    batches = all_received(bench, bytes_max=250)
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    assert [delivery.body[:1] for batch in batches for delivery in batch] == [b"%d" % number for number in range(10)]
    assert bench.counts() == (0, 0, 10, 0)


def test_a_message_larger_than_the_bound_comes_alone() -> None:
    bench = Bench()
    for size in (1_000, 1_000, 1):
        bench.publish(b"x" * size)
    assert [[len(each.body) for each in batch] for batch in all_received(bench, bytes_max=100)] == [
        [1_000],
        [1_000],
        [1],
    ]


def test_small_messages_behind_large_ones_come_by_the_usual_number() -> None:
    bench = Bench()
    for size in [500] * 10 + [1] * 90:
        bench.publish(b"x" * size)
    sizes = [[len(each.body) for each in batch] for batch in all_received(bench, bytes_max=1_000)]
    assert sizes[:5] == [[500, 500]] * 5
    assert [size for batch in sizes[5:] for size in batch] == [1] * 90
    assert len(sizes) < 20


def test_what_has_expired_is_passed_over_and_does_not_count() -> None:
    bench = Bench()
    for number in range(10):
        bench.publish(b"%d" % number * 100, ttl_ms=1_000 if number < 3 else None)
    bench.now_ms += 2_000
    assert firsts(bench.receive(10, bytes_max=250)) == [b"3", b"4", b"5"]


@pytest.mark.parametrize("policy", PriorityPolicy)
def test_priorities_hold(policy: PriorityPolicy) -> None:
    bench = Bench(QueueSettings(priority_policy=policy))
    for number in range(12):
        bench.publish(b"%02d" % number * 50, priority=number % 3)
    received = [delivery for batch in all_received(bench, bytes_max=250) for delivery in batch]
    assert len({delivery.id for delivery in received}) == 12
    for priority in range(3):
        of_it = [delivery.body for delivery in received if delivery.priority == priority]
        assert of_it == sorted(of_it)
    if policy is PriorityPolicy.STRICT:
        assert [delivery.priority for delivery in received] == [2] * 4 + [1] * 4 + [0] * 4


def test_ordered_groups_hold() -> None:
    bench = Bench(QueueSettings(ordered=True))
    for number in range(8):
        bench.publish(b"%d" % number * 100, group="ab"[number % 2])
    first = bench.receive(8, several_per_group=True, bytes_max=250)
    assert firsts(first) == [b"0", b"2", b"4"]
    second = bench.receive(8, several_per_group=True, bytes_max=250)
    assert firsts(second) == [b"1", b"3", b"5"]
    for delivery in first + second:
        bench.acknowledge(delivery)
    assert firsts(bench.receive(8, bytes_max=100)) == [b"6"]
    invariants.check(bench.state)


def test_a_look_is_bounded_alike() -> None:
    bench = Bench()
    for number in range(10):
        bench.publish(b"%d" % number * 100)
    assert [body[:1] for body in bench.peek(bytes_max=250)] == [b"0", b"1", b"2"]
    assert len(bench.peek(2, bytes_max=250)) == 2
    assert len(bench.peek(bytes_max=1)) == 1
