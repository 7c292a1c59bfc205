"""Messages for later: never early, hidden from nobody, changed and cancelled."""

from __future__ import annotations

import pytest

from smista.core.browsing import Wanted
from smista.core.message import State
from smista.core.settings import QueueSettings
from smista.errors import InvalidArgument, MessageNotFound
from tests.core import invariants
from tests.core.bench import DAY_MS, START_MS, Bench, bodies

TICK_MS = 16


@pytest.mark.parametrize("delay_ms", [1, 15, 16, 17, 999, 65_536, 131_072, 200_001, DAY_MS, 400 * DAY_MS])
@pytest.mark.parametrize("start", [0, 5])
def test_a_delayed_message_is_never_early_and_at_most_a_tick_late(delay_ms: int, start: int) -> None:
    bench = Bench(QueueSettings(retention_ms=None), now_ms=START_MS + start)
    bench.publish(delay_ms=delay_ms)
    bench.pass_time(ms=delay_ms - 1)
    assert bench.receive() == []
    bench.pass_time(ms=1 + TICK_MS)
    assert len(bench.receive()) == 1


def test_a_delayed_message_at_the_head_hides_nothing(orders: Bench) -> None:
    orders.publish(b"later", delay_ms=60_000, priority=9)
    orders.publish(b"now")
    assert orders.receive_bodies() == [b"now"]


def test_once_due_a_message_takes_the_place_its_publishing_gave_it(orders: Bench) -> None:
    orders.publish(b"1", delay_ms=2000)
    orders.publish(b"2")
    orders.pass_time(ms=2000)
    assert orders.receive_bodies() == [b"1", b"2"]


def test_a_message_can_name_the_instant_and_that_wins_over_a_delay(orders: Bench) -> None:
    orders.publish(deliver_at_ms=orders.now_ms + 2000, delay_ms=5)
    orders.pass_time(ms=1999)
    assert orders.receive() == []
    orders.pass_time(ms=1)
    assert len(orders.receive()) == 1


def test_an_instant_that_has_passed_is_now(orders: Bench) -> None:
    orders.publish(deliver_at_ms=12)
    assert len(orders.receive()) == 1
    assert orders.stats().wait_ms_average == 0.0


def test_a_queues_own_delay_holds_where_a_message_names_none() -> None:
    bench = Bench(QueueSettings(delay_ms=2000))
    bench.publish(b"the queue's")
    bench.publish(b"none", delay_ms=0)
    assert bench.receive_bodies() == [b"none"]
    bench.pass_time(ms=2000)
    assert bench.receive_bodies() == [b"the queue's"]


def test_messages_due_together_go_out_in_the_order_of_publishing(orders: Bench) -> None:
    for number in range(50):
        orders.publish(b"%02d" % number, deliver_at_ms=START_MS + 8000)
    orders.pass_time(ms=8000)
    assert orders.receive_bodies() == [b"%02d" % number for number in range(50)]


def test_scheduled_messages_can_be_listed(orders: Bench) -> None:
    orders.publish(b"now")
    orders.publish(b"later", delay_ms=1000)
    assert bodies(orders.browse(Wanted(state=State.SCHEDULED)).messages) == [b"later"]


@pytest.mark.parametrize("change_ms", [500_000, 2000])
def test_a_scheduled_message_can_be_put_off_or_brought_forward(orders: Bench, change_ms: int) -> None:
    sequence = orders.publish(delay_ms=64_000).number
    orders.reschedule(sequence, due_at_ms=orders.now_ms + change_ms)
    invariants.check(orders.state)
    orders.pass_time(ms=change_ms - 1)
    assert orders.receive() == []
    orders.pass_time(ms=1 + TICK_MS)
    assert len(orders.receive()) == 1


def test_rescheduling_into_the_past_makes_it_ready_at_once(orders: Bench) -> None:
    sequence = orders.publish(delay_ms=64_000).number
    orders.pass_time(ms=TICK_MS)
    orders.reschedule(sequence, due_at_ms=5)
    orders.pass_time(ms=TICK_MS)
    assert len(orders.receive()) == 1


def test_a_cancelled_message_never_comes(orders: Bench) -> None:
    sequence = orders.publish(b"four", delay_ms=2000).number
    orders.cancel(sequence)
    assert (orders.depth, orders.stats().body_bytes, orders.stats().purged_total) == (0, 0, 1)
    orders.pass_time(ms=10_000)
    assert orders.receive() == []


def test_only_a_scheduled_message_can_be_changed(orders: Bench) -> None:
    ready = orders.publish().number
    for sequence in (ready, 12345):
        with pytest.raises(MessageNotFound, match="'orders'"):
            orders.cancel(sequence)
        with pytest.raises(MessageNotFound, match="'orders'"):
            orders.reschedule(sequence, due_at_ms=orders.now_ms)
    assert orders.counts() == (1, 0, 0, 0)


@pytest.mark.parametrize("delay_ms", [-1, 0.5, "1", True, 1 << 53])
def test_a_delay_is_a_whole_number_of_milliseconds(orders: Bench, delay_ms: object) -> None:
    with pytest.raises(InvalidArgument, match="delay_ms"):
        orders.publish(delay_ms=delay_ms)  # type: ignore[arg-type]  # what a careless protocol may pass on
    with pytest.raises(InvalidArgument, match="deliver_at_ms"):
        orders.publish(deliver_at_ms=delay_ms)  # type: ignore[arg-type]  # same
    assert orders.depth == 0


def test_a_broker_that_slept_through_many_deadlines_makes_up_in_slices(orders: Bench) -> None:
    for number in range(1000):
        orders.publish(b"%03d" % number, delay_ms=1 + 97 * number)
    orders.leap(ms=DAY_MS, limit=7)
    assert orders.receive_bodies() == [b"%03d" % number for number in range(1000)]
