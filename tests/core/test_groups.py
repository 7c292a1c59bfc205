"""Ordered queues: strict order within a group, one in flight per group, and only that group waits."""

from __future__ import annotations

import pytest

from smista.core import dead_letters
from smista.core.groups import PART
from smista.core.message import Reason
from smista.core.settings import DeadLetterMode, Overflow, QueueSettings
from tests.core import invariants
from tests.core.bench import LEASE_MS, Bench, Delivery, bodies
from tests.core.exchanges.work import lines_run


@pytest.fixture
def ordered() -> Bench:
    return Bench(QueueSettings(ordered=True))


def publish(bench: Bench, *messages: str) -> None:
    """Each like `a1`: its group and its number."""
    for message in messages:
        bench.publish(message.encode(), group=message[0])


def test_one_message_of_a_group_is_in_flight_at_a_time(ordered: Bench) -> None:
    publish(ordered, "a1", "a2", "a3")
    for expected in (b"a1", b"a2", b"a3"):
        [delivery] = ordered.receive(10)
        assert delivery.body == expected
        ordered.acknowledge(delivery)


def test_other_groups_do_not_wait(ordered: Bench) -> None:
    publish(ordered, "a1", "a2", "b1", "c1", "b2")
    assert ordered.receive_bodies() == [b"a1", b"b1", b"c1"]


def test_messages_without_a_group_wait_for_nobody(ordered: Bench) -> None:
    for body in (b"1", b"2", b"3"):
        ordered.publish(body)
    assert ordered.receive_bodies() == [b"1", b"2", b"3"]


def test_a_group_waits_while_its_first_waits_for_a_retry(ordered: Bench) -> None:
    publish(ordered, "a1", "a2", "b1")
    ordered.nack(ordered.receive_one())
    assert ordered.receive_bodies() == [b"b1"]
    ordered.pass_time(ms=2000)
    assert ordered.receive_bodies() == [b"a1"]


def test_a_group_waits_while_its_first_waits_for_its_time(ordered: Bench) -> None:
    ordered.publish(b"a1", group="a", delay_ms=2000)
    publish(ordered, "a2", "b1")
    assert ordered.receive_bodies() == [b"b1"]
    ordered.pass_time(ms=2000)
    assert ordered.receive_bodies() == [b"a1"]


def test_a_group_goes_on_when_its_first_is_released_timed_out_dead_expired_or_cancelled() -> None:
    bench = Bench(QueueSettings(ordered=True, max_retries=1))
    publish(bench, "a1", "a2", "a3")
    bench.release(bench.receive_one())
    bench.receive_one()
    bench.pass_time(ms=LEASE_MS)
    assert bench.receive_bodies() == [b"a1"], "still the first"
    bench.pass_time(ms=LEASE_MS)
    assert bodies(bench.dead_letters()) == [b"a1"]
    assert bench.receive_bodies() == [b"a2"]
    bench.purge()
    bench.publish(b"expires", group="a", ttl_ms=2000)
    sequence = bench.publish(b"cancelled", group="a", delay_ms=64_000).number
    publish(bench, "a9")
    bench.pass_time(ms=2000)
    assert bench.receive_bodies() == []
    bench.cancel(sequence)
    assert bench.receive_bodies() == [b"a9"]
    invariants.check(bench.state)


def test_priority_does_not_break_the_order_of_a_group(ordered: Bench) -> None:
    ordered.publish(b"a1", group="a", priority=0)
    assert ordered.publish(b"a2", group="a", priority=9).position == 2
    ordered.publish(b"b1", group="b", priority=5)
    assert ordered.receive_bodies() == [b"b1", b"a1"]


def test_a_message_behind_one_in_flight_has_a_place(ordered: Bench) -> None:
    publish(ordered, "a1")
    ordered.receive_one()
    placed = ordered.publish(b"a2", group="a")
    assert (placed.position, placed.is_duplicate) == (1, False)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_one_call_may_take_several_of_a_group_and_settle_them_in_any_order(
    ordered: Bench, order: tuple[int, ...]
) -> None:
    publish(ordered, "a1", "b1", "a2", "a3", "a4")
    taken = ordered.receive(3, several_per_group=True)
    assert [delivery.body for delivery in taken] == [b"a1", b"a2", b"a3"]
    assert ordered.receive_bodies() == [b"b1"]
    for index in order:
        assert ordered.receive() == [], "the group waits until all are settled"
        ordered.acknowledge(taken[index])
    assert ordered.receive_bodies() == [b"a4"]
    invariants.check(ordered.state)


def test_several_of_a_group_come_back_in_order(ordered: Bench) -> None:
    publish(ordered, "a1", "a2", "a3")
    for delivery in reversed(ordered.receive(3, several_per_group=True)):
        ordered.release(delivery)
    assert [delivery.body for delivery in ordered.receive(3, several_per_group=True)] == [b"a1", b"a2", b"a3"]


def test_several_of_a_group_stop_at_a_gap(ordered: Bench) -> None:
    publish(ordered, "a1", "a2")
    ordered.publish(b"a3", group="a", delay_ms=1000)
    publish(ordered, "a4")
    assert [delivery.body for delivery in ordered.receive(9, several_per_group=True)] == [b"a1", b"a2"]


def test_one_that_is_parked_out_of_turn_does_not_stop_its_group() -> None:
    bench = Bench(QueueSettings(ordered=True, dead_letter=DeadLetterMode.PARK))
    publish(bench, "a1", "a2", "a3")
    first, second = bench.receive(2, several_per_group=True)
    bench.reject(second)
    bench.acknowledge(first)
    invariants.check(bench.state)
    assert bench.receive_bodies() == [b"a3"]


def test_one_that_expires_out_of_turn_and_is_parked_does_not_stop_its_group() -> None:
    bench = Bench(QueueSettings(ordered=True, dead_letter_max_depth=1))
    bench.publish()
    bench.reject(bench.receive_one())
    publish(bench, "a1")
    bench.publish(b"a2", group="a", ttl_ms=2000)
    publish(bench, "a3")
    first = bench.receive_one()
    bench.pass_time(ms=2000)
    assert bench.counts() == (1, 0, 1, 1)
    bench.acknowledge(first)
    assert bench.receive_bodies() == [b"a3"]


def test_a_redriven_message_stands_last_in_its_group(ordered: Bench) -> None:
    publish(ordered, "a1", "a2")
    ordered.reject(ordered.receive_one())
    [letter] = ordered.dead_letters()
    assert letter.deaths[-1].reason is Reason.REJECTED
    ordered.redrive([letter])
    for expected in (b"a2", b"a1"):
        delivery = ordered.receive_one()
        assert delivery.body == expected
        ordered.acknowledge(delivery)


def test_dead_letters_of_an_ordered_queue_are_kept_in_order_too(ordered: Bench) -> None:
    publish(ordered, "a1", "a2")
    for _ in range(2):
        ordered.reject(ordered.receive_one())
    letters = ordered.find("orders_dlq")
    assert letters.settings.ordered
    assert ordered.receive_bodies(queue=letters) == [b"a1"]


def test_a_purge_of_what_is_ready_leaves_the_group_in_flight_alone(ordered: Bench) -> None:
    publish(ordered, "a1", "a2", "b1")
    held = ordered.receive_one()
    assert ordered.purge(ready_only=True) == 2
    publish(ordered, "a3")
    assert ordered.receive() == []
    ordered.acknowledge(held)
    assert ordered.receive_bodies() == [b"a3"]
    invariants.check(ordered.state)


def test_drop_oldest_lets_the_group_go_on() -> None:
    bench = Bench(QueueSettings(ordered=True, max_depth=2, overflow=Overflow.DROP_OLDEST))
    publish(bench, "a1", "a2", "a3")
    assert bench.receive_bodies() == [b"a2"]
    invariants.check(bench.state)


def test_finished_groups_leave_nothing_behind(ordered: Bench) -> None:
    for number in range(100):
        ordered.publish(group=f"group {number}")
    for delivery in ordered.receive(100):
        ordered.acknowledge(delivery)
    assert ordered.queue.groups is not None
    assert len(ordered.queue.groups) == 0


def test_a_queue_can_become_ordered_and_stop_being_it(orders: Bench) -> None:
    publish(orders, "a1", "a2", "a3")
    held = orders.receive_one()
    orders.alter(QueueSettings(ordered=True))
    assert orders.receive() == []
    orders.acknowledge(held)
    assert orders.receive_bodies() == [b"a2"]
    orders.alter(QueueSettings())
    assert orders.receive_bodies() == [b"a3"]


# -- a long group -----------------------------------------------------------------------------------------------------


def finish_behind(bench: Bench, count: int) -> None:
    """Take the first of the group and those behind it, acknowledge all but the first, which comes back."""
    while count > 0:
        first, *others = bench.receive(10, several_per_group=True)
        for delivery in others:
            bench.acknowledge(delivery)
        bench.release(first)
        count -= len(others)


def test_what_is_finished_behind_a_first_that_keeps_coming_back_is_not_kept(ordered: Bench) -> None:
    publish(ordered, *["a"] * 101)
    finish_behind(ordered, 90)
    assert invariants.gone_in(ordered.queue) == []
    assert ordered.counts() == (11, 0, 0, 0)
    invariants.check(ordered.state)


@pytest.mark.parametrize("how", ["expired", "parked", "cancelled"])
def test_what_is_finished_behind_a_first_that_waits_is_not_kept(how: str) -> None:
    is_parked = how == "parked"
    bench = Bench(QueueSettings(ordered=True, dead_letter_max_depth=1 if is_parked else None))
    if is_parked:
        # No room for any other.
        bench.publish()
        bench.reject(bench.receive_one())
    bench.publish(group="a", delay_ms=64_000)
    for _ in range(50):
        if how == "cancelled":
            bench.cancel(bench.publish(group="a", delay_ms=32_000).number)
        else:
            bench.publish(group="a", ttl_ms=2_000)
    bench.pass_time(ms=2_000)
    assert bench.queue.message_count == (51 if is_parked else 1)
    for message in list(bench.queue.dead.values()):
        dead_letters.discard(bench.state, bench.queue, message, Reason.CANCELLED, now_ms=bench.now_ms)
    assert invariants.gone_in(bench.queue) == []
    invariants.check(bench.state)


def test_a_receive_costs_the_same_however_many_were_finished_behind_the_first(ordered: Bench) -> None:
    def receive_ten() -> None:
        taken.extend(ordered.receive(10, several_per_group=True))

    publish(ordered, *["a"] * 3_000)
    taken: list[Delivery] = []
    lines = []
    for finished in (0, 900, 1_800):
        finish_behind(ordered, finished)
        lines.append(lines_run(receive_ten, of="smista/core"))
        assert len(taken) == 10
        while taken:
            ordered.release(taken.pop())
    assert max(lines) <= lines[0] + 10


def test_members_of_a_long_group_may_finish_in_any_order(ordered: Bench) -> None:
    count = 3 * PART + 5
    publish(ordered, *["a"] * count)
    taken = ordered.receive(count, several_per_group=True)
    assert len(taken) == count
    for delivery in [*taken[1::2], *reversed(taken[2::2])]:
        ordered.acknowledge(delivery)
    publish(ordered, "a!")
    invariants.check(ordered.state)
    ordered.release(taken[0])
    assert [one.body for one in ordered.receive(9, several_per_group=True)] == [b"a", b"a!"]


def test_a_long_group_goes_out_in_order(ordered: Bench) -> None:
    count = 2 * PART + 5
    publish(ordered, *[f"a{number}" for number in range(count)])
    for number in range(count):
        delivery = ordered.receive_one()
        assert delivery.body == b"a%d" % number
        ordered.acknowledge(delivery)
    assert ordered.queue.groups is not None
    assert len(ordered.queue.groups) == 0
