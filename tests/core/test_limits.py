"""How much a queue holds, what happens when more comes, and how fast it gives."""

from __future__ import annotations

import msgspec
import pytest

from smista.core.browsing import Wanted
from smista.core.entering import Placed
from smista.core.governing import set_policy
from smista.core.message import Publication, Reason, State
from smista.core.policies import Policy
from smista.core.rate import RateLimit
from smista.core.settings import DeadLetterMode, Overflow, QueueSettings
from smista.core.table import Table
from smista.errors import MessageTooLarge, QueueFull
from tests.core import invariants
from tests.core.bench import START_MS, Bench, bodies


def test_a_full_queue_refuses_and_stays_as_it_is() -> None:
    bench = Bench(QueueSettings(max_depth=2))
    bench.publish_many(2)
    with pytest.raises(QueueFull, match=r"'orders'.*2 messages"):
        bench.publish(b"too many")
    assert bench.receive_bodies() == [b"0", b"1"]
    assert bench.stats().rejected_total == 1


@pytest.mark.parametrize("by", ["alter", "policy"])
@pytest.mark.parametrize("ready_only", [False, True])
def test_a_limit_of_bytes_comes_to_a_queue_without_counting_what_is_in_it(
    monkeypatch: pytest.MonkeyPatch, by: str, *, ready_only: bool
) -> None:
    """There may be millions of messages, and it is one step."""
    settings = QueueSettings(dead_letter=DeadLetterMode.PARK, limit_ready_only=ready_only)
    bench = Bench(settings)
    bench.publish(b"dead")
    bench.reject(bench.receive_one())
    bench.publish(b"in flight")
    bench.receive_one()
    bench.publish(b"scheduled", delay_ms=1000)
    bench.publish(b"ready")
    with monkeypatch.context() as patched:
        patched.setattr(Table, "values", None)
        patched.setattr(Table, "items", None)
        if by == "alter":
            bench.alter(msgspec.structs.replace(settings, max_bytes=100))
        else:
            governing = set_policy(bench.state, "/", Policy("p", "*", 0, {"max_bytes": 100}))
            governing.go_on(100, now_ms=bench.now_ms)
        assert bench.queue.settings.max_bytes == 100
    assert bench.queue.limited_bytes == len(b"ready" if ready_only else b"in flightscheduledready")
    bench.purge(ready_only=True)
    assert bench.queue.limited_bytes == (0 if ready_only else len(b"in flightscheduled"))
    invariants.check(bench.state)


def test_the_limit_counts_what_is_ready_scheduled_and_in_flight_but_not_what_is_dead() -> None:
    bench = Bench(QueueSettings(max_depth=3, dead_letter=DeadLetterMode.PARK))
    bench.publish()
    bench.reject(bench.receive_one())
    bench.publish()
    held = bench.receive_one()
    bench.publish(delay_ms=1000)
    bench.publish()
    assert bench.counts() == (1, 1, 1, 1)
    with pytest.raises(QueueFull):
        bench.publish()
    bench.acknowledge(held)
    bench.publish()


def test_a_batch_is_taken_up_to_the_limit() -> None:
    bench = Bench(QueueSettings(max_depth=2))
    results = bench.publish_all([Publication(b"%d" % number) for number in range(4)])
    assert [type(result) for result in results] == [Placed, Placed, QueueFull, QueueFull]


def test_bytes_are_counted_too() -> None:
    bench = Bench(QueueSettings(max_bytes=10))
    bench.publish(b"123456")
    with pytest.raises(QueueFull, match="6 bytes"):
        bench.publish(b"12345")
    bench.publish(b"1234")
    bench.acknowledge(bench.receive_one())
    bench.publish(b"123456")


@pytest.mark.parametrize("overflow", Overflow)
def test_a_body_over_the_byte_limit_is_refused_and_costs_the_others_nothing(overflow: Overflow) -> None:
    bench = Bench(QueueSettings(max_bytes=10, overflow=overflow))
    bench.publish(b"12345")
    with pytest.raises(QueueFull):
        bench.publish(b"12345678901")
    assert bench.receive_bodies() == [b"12345"]


def test_drop_oldest_makes_room_whatever_the_priority() -> None:
    bench = Bench(QueueSettings(max_depth=2, overflow=Overflow.DROP_OLDEST))
    bench.publish(b"oldest", priority=9)
    bench.publish(b"second")
    bench.publish(b"third")
    assert bench.receive_bodies() == [b"second", b"third"]
    assert (bench.stats().dropped_total, bench.stats().rejected_total) == (1, 0)
    assert not bench.has_queue("orders_dlq")


def test_drop_oldest_drops_as_many_as_the_new_body_needs() -> None:
    bench = Bench(QueueSettings(max_bytes=10, overflow=Overflow.DROP_OLDEST))
    for _ in range(5):
        bench.publish(b"12")
    bench.publish(b"12345")
    assert [len(body) for body in bench.receive_bodies()] == [2, 2, 5]


def test_dead_letter_oldest_sets_it_aside() -> None:
    bench = Bench(QueueSettings(max_depth=2, overflow=Overflow.DEAD_LETTER_OLDEST))
    for body in (b"1", b"2", b"3"):
        bench.publish(body)
    [letter] = bench.dead_letters()
    assert (letter.body, letter.deaths[-1].reason) == (b"1", Reason.OVERFLOW)
    assert bench.receive_bodies() == [b"2", b"3"]


@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.DEAD_LETTER_OLDEST])
def test_only_what_is_ready_can_make_room(overflow: Overflow) -> None:
    bench = Bench(QueueSettings(max_depth=2, overflow=overflow))
    bench.publish_many(2)
    bench.receive_one()
    bench.publish(b"2", delay_ms=1000)
    with pytest.raises(QueueFull):
        bench.publish(b"3")
    assert bench.counts() == (0, 1, 1, 0)


def test_dead_letter_oldest_refuses_and_kills_nobody_when_the_dead_letter_queue_is_full() -> None:
    bench = Bench(QueueSettings(max_depth=2, overflow=Overflow.DEAD_LETTER_OLDEST, dead_letter_max_depth=1))
    for number in range(3):
        bench.publish(b"%d" % number)
    for _ in range(3):
        with pytest.raises(QueueFull, match="dead-letter"):
            bench.publish(b"no room")
    assert bodies(bench.dead_letters()) == [b"0"]
    assert bench.counts() == (2, 0, 0, 0)
    assert bench.receive_bodies() == [b"1", b"2"]


def test_dead_letter_oldest_with_nowhere_to_go_refuses_and_kills_nobody() -> None:
    bench = Bench(QueueSettings(max_depth=1, overflow=Overflow.DEAD_LETTER_OLDEST, dead_letter=DeadLetterMode.PARK))
    bench.publish(b"first")
    with pytest.raises(QueueFull):
        bench.publish(b"second")
    assert bench.browse(Wanted(state=State.DEAD)).messages == []
    assert bench.receive_bodies() == [b"first"]


def test_a_body_may_be_as_long_as_the_broker_or_the_queue_says() -> None:
    bench = Bench()
    bench.publish(bytes(1 << 20))
    with pytest.raises(MessageTooLarge, match="1048577 bytes"):
        bench.publish(bytes((1 << 20) + 1))
    small = bench.declare("small", QueueSettings(body_bytes_max=3))
    with pytest.raises(MessageTooLarge, match="'small'"):
        bench.publish(b"four", queue=small)
    large = bench.declare("large", QueueSettings(body_bytes_max=2 << 20))
    bench.publish(bytes(2 << 20), queue=large)


# -- fan-out: all or none ---------------------------------------------------------------------------------------------


def test_what_an_exchange_routes_enters_every_queue() -> None:
    bench = Bench()
    others = [bench.declare(name) for name in ("billing", "audit")]
    bench.fanout("all", bench.queue, *others)
    placed = bench.publish_to("all", b"news")
    assert [place.queue for place in placed] == ["orders", "billing", "audit"]
    assert len({place.number for place in placed}) == 3
    assert [bench.receive_bodies(queue=queue) for queue in (bench.queue, *others)] == [[b"news"]] * 3
    invariants.check(bench.state)


def test_what_matches_nothing_goes_nowhere_and_the_caller_sees_it() -> None:
    bench = Bench()
    bench.fanout("empty")
    assert bench.publish_to("empty") == []


@pytest.mark.parametrize("full_one", [0, 1, 2])
def test_one_full_queue_keeps_the_message_out_of_all(full_one: int) -> None:
    bench = Bench(name="other")
    limits = [None, None, None]
    queues = [
        bench.declare(f"queue {number}", QueueSettings(max_depth=1 if number == full_one else limit))
        for number, limit in enumerate(limits)
    ]
    bench.fanout("all", *queues)
    bench.publish_to("all")
    with pytest.raises(QueueFull, match=f"queue {full_one}"):
        bench.publish_to("all")
    assert [queue.depth for queue in queues] == [1, 1, 1]


def test_a_queue_that_finds_out_late_that_it_has_no_room_keeps_the_message_out_of_all_too() -> None:
    """Its oldest could make room, it seems, but the dead-letter queue is full."""
    bench = Bench()
    late = bench.declare(
        "late", QueueSettings(max_depth=1, overflow=Overflow.DEAD_LETTER_OLDEST, dead_letter_max_depth=1)
    )
    bench.publish(queue=late)
    bench.publish(queue=late)
    bench.fanout("all", bench.queue, late)
    with pytest.raises(QueueFull, match="'late'"):
        bench.publish_to("all")
    assert (bench.depth, late.depth) == (0, 1)
    invariants.check(bench.state)


def test_so_does_one_whose_ready_messages_are_too_few_bytes() -> None:
    bench = Bench()
    late = bench.declare("late", QueueSettings(max_bytes=10, overflow=Overflow.DROP_OLDEST))
    bench.publish(b"12345", queue=late)
    bench.receive_one(queue=late)
    bench.publish(b"1", queue=late)
    bench.fanout("all", bench.queue, late)
    with pytest.raises(QueueFull, match="'late'"):
        bench.publish_to("all", b"1234567")
    assert (bench.depth, late.depth >= 1) == (0, True)
    invariants.check(bench.state)


def test_a_dead_letter_waits_where_it_is_while_the_message_that_pushes_it_out_fills_its_way() -> None:
    bench = Bench()
    first = bench.declare(
        "first", QueueSettings(max_depth=1, overflow=Overflow.DEAD_LETTER_OLDEST, dead_letter_queue="second")
    )
    second = bench.declare("second", QueueSettings(max_depth=1))
    bench.publish(b"old", queue=first)
    bench.fanout("all", second, first)
    bench.publish_to("all", b"new")
    assert bodies(bench.browse(queue=first).messages) == [b"old", b"new"], "over its limit by one"
    assert bodies(bench.browse(queue=second).messages) == [b"new"]
    with pytest.raises(QueueFull, match="no dead-letter queue takes its oldest"):
        bench.publish(queue=first)
    bench.acknowledge(bench.receive_one(queue=second))
    with pytest.raises(QueueFull, match="no dead-letter queue takes its oldest"):
        bench.publish_to("all", b"newer")
    bench.acknowledge(bench.receive_one(queue=first))
    bench.publish(b"newer", queue=first)
    assert bodies(bench.browse(queue=first).messages) == [b"newer"], "within its limit again"
    assert bodies(bench.browse(queue=second).messages) == [b"new"]
    invariants.check(bench.state)


# -- rate -------------------------------------------------------------------------------------------------------------


def test_a_rate_limit_hands_out_a_seconds_worth_and_then_as_time_goes() -> None:
    bench = Bench(QueueSettings(rate_limit=10.0))
    bench.publish_many(100)
    assert len(bench.receive(50)) == 10
    assert bench.receive(50) == []
    bench.pass_time(ms=99)
    assert bench.receive(50) == []
    bench.pass_time(ms=1)
    assert len(bench.receive(50)) == 1
    bench.pass_time(ms=60_000)
    assert len(bench.receive(50)) == 10, "no more than a second's worth at once"


def test_a_rate_below_one_a_second_still_lets_one_through() -> None:
    bench = Bench(QueueSettings(rate_limit=0.5))
    bench.publish_many(2)
    assert len(bench.receive(2)) == 1
    bench.pass_time(ms=1999)
    assert bench.receive(2) == []
    bench.pass_time(ms=1)
    assert len(bench.receive(2)) == 1


@pytest.mark.parametrize("per_second", [0.001, 0.3, 1.0, 3.0, 7.0, 999.0, 1e6])
def test_the_promised_instant_is_when_the_next_may_go(per_second: float) -> None:
    rate = RateLimit(per_second, START_MS)
    rate.take(rate.available(START_MS))
    promised_ms = rate.next_at_ms()
    # Floating point may be a millisecond off, never more.
    if promised_ms > START_MS + 2:
        assert rate.available(promised_ms - 2) == 0
    assert rate.available(promised_ms + 1) >= 1


def test_a_rate_does_not_mind_a_clock_that_goes_back() -> None:
    rate = RateLimit(1.0, START_MS)
    rate.take(1)
    assert rate.available(START_MS - 100_000) == 0
    assert rate.available(START_MS + 1000) == 1
