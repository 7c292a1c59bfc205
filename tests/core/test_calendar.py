"""Deadlines: never early, in slices, near and far alike."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smista.core.calendar import LEAD_MS, NEAR_MS, TICK_MS, Calendar, Entry
from tests.core.bench import DAY_MS, START_MS


@dataclass
class Alarm:
    sequence: int
    deadline_ms: int | None = None
    rang_at_ms: list[int] = field(default_factory=list)


def run(calendar: Calendar, *, until_ms: int, limit: int = 1000) -> None:
    """Call when the calendar asks to be called, and let everything that is due ring."""
    now_ms = START_MS
    while (next_ms := calendar.next_ms()) is not None and next_ms <= until_ms:
        now_ms = max(now_ms, next_ms)
        for entry in calendar.pop_due(now_ms, limit):
            assert isinstance(entry, Alarm)
            entry.deadline_ms = None
            entry.rang_at_ms.append(now_ms)


def lateness_ms(alarm: Alarm, deadline_ms: int) -> int:
    [rang_at_ms] = alarm.rang_at_ms
    return rang_at_ms - deadline_ms


@pytest.mark.parametrize(
    "in_ms",
    [0, 1, 15, 16, 17, 1000, NEAR_MS - 1, NEAR_MS, NEAR_MS + 1, 3 * NEAR_MS + 7, DAY_MS, 365 * DAY_MS, 1 << 50],
)
@pytest.mark.parametrize("offset_ms", [0, 1, 9, 65_535])
def test_an_alarm_rings_once_never_early_and_within_a_tick(in_ms: int, offset_ms: int) -> None:
    calendar = Calendar()
    alarm = Alarm(1)
    deadline_ms = START_MS + offset_ms + in_ms
    calendar.add(alarm, deadline_ms, START_MS + offset_ms)
    run(calendar, until_ms=deadline_ms + TICK_MS)
    assert 0 <= lateness_ms(alarm, deadline_ms) < TICK_MS
    assert calendar.next_ms() is None


@given(st.lists(st.integers(0, 4 * NEAR_MS), min_size=1, max_size=60), st.integers(1, 9))
def test_any_number_of_alarms_in_slices(deadlines: list[int], limit: int) -> None:
    calendar = Calendar()
    alarms = [Alarm(sequence) for sequence, _ in enumerate(deadlines)]
    for alarm, in_ms in zip(alarms, deadlines, strict=True):
        calendar.add(alarm, START_MS + in_ms, START_MS)
    run(calendar, until_ms=START_MS + 5 * NEAR_MS, limit=limit)
    for alarm, in_ms in zip(alarms, deadlines, strict=True):
        assert 0 <= lateness_ms(alarm, START_MS + in_ms) < TICK_MS


@given(st.lists(st.tuples(st.integers(0, 4 * NEAR_MS), st.integers(0, 4 * NEAR_MS)), min_size=1, max_size=40))
def test_moved_alarms_ring_at_their_last_time_only(moves: list[tuple[int, int]]) -> None:
    calendar = Calendar()
    alarms = [Alarm(sequence) for sequence, _ in enumerate(moves)]
    for alarm, (first_ms, _) in zip(alarms, moves, strict=True):
        calendar.add(alarm, START_MS + first_ms, START_MS)
    for alarm, (_, then_ms) in zip(alarms, moves, strict=True):
        calendar.remove(alarm)
        calendar.add(alarm, START_MS + then_ms, START_MS)
    run(calendar, until_ms=START_MS + 5 * NEAR_MS)
    for alarm, (_, then_ms) in zip(alarms, moves, strict=True):
        assert 0 <= lateness_ms(alarm, START_MS + then_ms) < TICK_MS


@pytest.mark.parametrize("in_ms", [100, NEAR_MS * 3])
def test_a_removed_alarm_does_not_ring(in_ms: int) -> None:
    calendar = Calendar()
    alarm = Alarm(1)
    calendar.add(alarm, START_MS + in_ms, START_MS)
    calendar.remove(alarm)
    assert alarm.deadline_ms is None
    calendar.remove(alarm)
    run(calendar, until_ms=START_MS + 5 * NEAR_MS)
    assert alarm.rang_at_ms == []


def test_an_alarm_removed_while_its_bucket_is_worked_off_does_not_ring() -> None:
    calendar = Calendar()
    alarms = [Alarm(sequence) for sequence in range(4)]
    for alarm in alarms:
        calendar.add(alarm, START_MS, START_MS)
    assert calendar.pop_due(START_MS, 2) == alarms[:2]
    calendar.remove(alarms[2])
    assert calendar.is_behind(START_MS)
    assert calendar.pop_due(START_MS, 2) == alarms[3:]


def test_an_alarm_put_off_while_its_bucket_is_worked_off_rings_later() -> None:
    calendar = Calendar()
    alarms = [Alarm(sequence) for sequence in range(4)]
    for alarm in alarms:
        calendar.add(alarm, START_MS, START_MS)
    for due in calendar.pop_due(START_MS, 1):
        due.deadline_ms = None
    calendar.remove(alarms[3])
    calendar.add(alarms[3], START_MS + 1600, START_MS)
    run(calendar, until_ms=START_MS + 2000)
    assert alarms[3].rang_at_ms == [START_MS + 1600]


def test_a_clock_that_goes_back_between_two_slices_loses_no_alarm() -> None:
    calendar = Calendar()
    alarms = [Alarm(sequence) for sequence in range(4)]
    for alarm in alarms:
        calendar.add(alarm, START_MS + 1600, START_MS)
    for due in calendar.pop_due(START_MS + 1600, 1):
        due.deadline_ms = None
    assert calendar.pop_due(START_MS, 10) == []
    assert calendar.pop_due(START_MS + 1600, 10) == alarms[1:]


def test_an_alarm_moved_while_its_far_bucket_is_spread_rings_once() -> None:
    calendar = Calendar()
    alarms = [Alarm(sequence) for sequence in range(6)]
    far_ms = START_MS + 3 * NEAR_MS
    for alarm in alarms:
        calendar.add(alarm, far_ms, START_MS)
    spread_at_ms = calendar.next_ms()
    assert spread_at_ms is not None
    assert spread_at_ms <= far_ms - LEAD_MS
    assert calendar.pop_due(spread_at_ms, 2) == []
    assert calendar.is_behind(spread_at_ms), "four are left to spread"
    calendar.remove(alarms[5])
    calendar.add(alarms[5], far_ms + 1600, spread_at_ms)
    calendar.remove(alarms[4])
    run(calendar, until_ms=far_ms + NEAR_MS)
    assert [len(alarm.rang_at_ms) for alarm in alarms] == [1, 1, 1, 1, 0, 1]
    assert 0 <= lateness_ms(alarms[5], far_ms + 1600) < TICK_MS


def test_a_calendar_that_was_not_asked_for_a_year_makes_up() -> None:
    calendar = Calendar()
    alarms: list[Entry] = [Alarm(sequence) for sequence in range(300)]
    for alarm in alarms:
        calendar.add(alarm, START_MS + alarm.sequence * DAY_MS, START_MS)
    now_ms = START_MS + 365 * DAY_MS
    found: list[Entry] = []
    while calendar.is_behind(now_ms):
        slice_ = calendar.pop_due(now_ms, 7)
        assert len(slice_) <= 7
        for alarm in slice_:
            alarm.deadline_ms = None
        found += slice_
    assert sorted(alarm.sequence for alarm in found) == list(range(300))


def test_many_leases_that_come_and_go_do_not_make_the_calendar_grow() -> None:
    calendar = Calendar()
    for sequence in range(20_000):
        alarm = Alarm(sequence)
        calendar.add(alarm, START_MS + 30_000, START_MS)
        calendar.remove(alarm)
    assert len(calendar._tick_heap) == 1
    assert sum(map(len, calendar._ticks.values())) == 0


def test_an_empty_calendar_asks_for_nothing() -> None:
    calendar = Calendar()
    assert (calendar.next_ms(), calendar.is_behind(START_MS), calendar.pop_due(START_MS, 9)) == (None, False, [])


def test_what_has_become_empty_is_given_up_and_the_rest_still_comes() -> None:
    calendar = Calendar()
    alarms = [Alarm(number) for number in range(100)]
    for alarm in alarms:
        far_ms = DAY_MS if alarm.sequence % 2 else 0
        calendar.add(alarm, START_MS + far_ms + alarm.sequence * TICK_MS, START_MS)
    for alarm in alarms[:-4]:
        calendar.remove(alarm)
    calendar.shrink()
    assert len(calendar._ticks) + len(calendar._coarse) <= 4
    run(calendar, until_ms=START_MS + 2 * DAY_MS)
    assert [len(alarm.rang_at_ms) for alarm in alarms] == [0] * 96 + [1] * 4
