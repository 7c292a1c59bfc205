"""What every log promises, whatever it keeps its blocks in."""

from __future__ import annotations

import pytest

from smista.log import Log
from smista.log.errors import LogClosed, LogDamaged, LogDropped
from tests.log.benches import Bench, block, contents, expected, fill, tidy_up


def test_a_new_log_is_empty_and_starts_at_one(bench: Bench) -> None:
    assert (bench.log.first_position, bench.log.next_position) == (1, 1)
    assert contents(bench.log) == {}


def test_blocks_come_back_as_they_were_appended(bench: Bench) -> None:
    fill(bench.log, 300)
    assert contents(bench.log) == expected(1, 301)
    assert [bench.log.read(position) for position in (1, 150, 300)] == [block(1), block(150), block(300)]
    assert contents(bench.reopen()) == expected(1, 301)


@pytest.mark.parametrize("size_bytes", [0, 1, 8_191, 8_192, 100_000, 3_000_000])
def test_a_block_may_have_any_size(bench: Bench, size_bytes: int) -> None:
    data = bytes(range(256)) * (size_bytes // 256 + 1)
    bench.log.append(1, data[:size_bytes])
    bench.log.append(2, b"after")
    assert bench.reopen().read(1) == data[:size_bytes]
    assert bench.log.read(2) == b"after"


def test_blocks_that_are_in_memory_are_counted_as_such(bench: Bench) -> None:
    fill(bench.log, 10)
    assert bench.log.memory_bytes in (0, sum(map(len, contents(bench.log).values())))
    assert bool(bench.log.memory_bytes) == (bench.log.location() is None)
    bench.log.drop(11)
    assert bench.log.memory_bytes == 0


def test_the_identity_is_32_bytes_that_stay(bench: Bench) -> None:
    identity = bench.log.identity
    assert len(identity) == 32
    fill(bench.log, 3)
    assert bench.reopen().identity == identity


def test_a_position_can_be_appended_only_when_it_is_next(bench: Bench) -> None:
    fill(bench.log, 3)
    for position in (0, 3, 5):
        with pytest.raises(AssertionError):
            bench.log.append(position, b"x")
    assert contents(bench.log) == expected(1, 4)


def test_a_scan_starts_where_it_is_told_to(bench: Bench) -> None:
    fill(bench.log, 10)
    assert dict(bench.log.scan(7)) == expected(7, 11)
    assert list(bench.log.scan(11)) == []
    with pytest.raises(AssertionError):
        bench.log.scan(12)


def test_a_scan_ends_where_the_log_ended_when_it_began(bench: Bench) -> None:
    fill(bench.log, 5)
    scan = bench.log.scan(1)
    fill(bench.log, 5)
    assert dict(scan) == expected(1, 6)


def test_a_block_that_was_never_written_cannot_be_read(bench: Bench) -> None:
    fill(bench.log, 3)
    with pytest.raises(AssertionError):
        bench.log.read(4)


def test_dropped_blocks_are_gone_and_the_rest_stay(bench: Bench) -> None:
    fill(bench.log, 600)
    bench.log.drop(400)
    assert (bench.log.first_position, bench.log.next_position) == (400, 601)
    assert contents(bench.log) == expected(400, 601)
    with pytest.raises(LogDropped) as read:
        bench.log.read(399)
    assert (read.value.position, read.value.first_position) == (399, 400)
    with pytest.raises(LogDropped):
        bench.log.scan(399)
    assert contents(bench.reopen()) == expected(400, 601)
    assert bench.log.first_position == 400


def test_dropping_again_below_the_first_block_changes_nothing(bench: Bench) -> None:
    fill(bench.log, 10)
    bench.log.drop(5)
    bench.log.drop(3)
    assert bench.log.first_position == 5


def test_more_than_there_is_cannot_be_dropped(bench: Bench) -> None:
    fill(bench.log, 10)
    with pytest.raises(AssertionError):
        bench.log.drop(12)


def test_positions_do_not_go_back_when_every_block_is_dropped(bench: Bench) -> None:
    fill(bench.log, 40)
    bench.log.drop(41)
    assert (bench.log.first_position, bench.log.next_position) == (41, 41)
    bench.reopen()
    assert (bench.log.first_position, bench.log.next_position) == (41, 41)
    tidy_up(bench.log)
    bench.reopen()
    assert (bench.log.first_position, bench.log.next_position) == (41, 41)
    fill(bench.log, 2)
    assert contents(bench.reopen()) == expected(41, 43)


def test_a_scan_that_is_overtaken_by_a_drop_says_so(bench: Bench) -> None:
    fill(bench.log, 600)
    scan = bench.log.scan(1)
    assert next(scan) == (1, block(1))
    bench.log.drop(601)
    tidy_up(bench.log)
    with pytest.raises(LogDropped):
        list(scan)


def test_tidying_comes_to_an_end_and_loses_nothing(bench: Bench) -> None:
    fill(bench.log, 700)
    bench.log.drop(650)
    tidy_up(bench.log)
    assert not bench.log.tidy()
    assert contents(bench.log) == expected(650, 701)


def test_a_fold_begins_where_it_was_told_to_and_what_is_before_it_can_be_read(bench: Bench) -> None:
    assert bench.log.fold_position == 1
    fill(bench.log, 20)
    bench.log.fold_from(15)
    assert (bench.log.first_position, bench.log.fold_position) == (1, 15)
    bench.log.fold_from(9)
    assert bench.log.fold_position == 15, "it never goes back"
    bench.reopen()
    assert (bench.log.first_position, bench.log.fold_position) == (1, 15)
    assert contents(bench.log) == expected(1, 21)


def test_what_was_dropped_is_not_folded(bench: Bench) -> None:
    fill(bench.log, 20)
    bench.log.fold_from(5)
    bench.log.drop(12)
    assert (bench.log.first_position, bench.log.fold_position) == (12, 12)
    bench.reopen()
    assert (bench.log.first_position, bench.log.fold_position) == (12, 12)


def test_a_fold_cannot_begin_behind_the_end(bench: Bench) -> None:
    fill(bench.log, 10)
    bench.log.fold_from(11)
    with pytest.raises(AssertionError):
        bench.log.fold_from(12)


def test_what_was_left_out_once_is_left_out_until_it_is_dropped(bench: Bench) -> None:
    assert (bench.log.left_out, bench.log.left_out_times) == (frozenset(), 0)
    fill(bench.log, 20)
    bench.log.fold_from(15)
    bench.log.leave_out(frozenset({3, 7}), fold_position=2)
    for _ in range(2):
        assert (bench.log.left_out, bench.log.left_out_times, bench.log.fold_position) == (frozenset({3, 7}), 1, 2)
        bench.reopen()
    assert contents(bench.log) == expected(1, 21), "they can still be read"
    bench.log.leave_out(frozenset({3, 7, 12}), fold_position=9)
    bench.log.drop(5)
    assert (bench.log.left_out, bench.log.left_out_times, bench.log.fold_position) == (frozenset({7, 12}), 2, 9)
    bench.reopen()
    assert (bench.log.left_out, bench.log.left_out_times, bench.log.fold_position) == (frozenset({7, 12}), 2, 9)
    tidy_up(bench.log)
    assert contents(bench.log) == expected(5, 21)


def test_very_many_blocks_can_be_left_out(bench: Bench) -> None:
    positions = frozenset(range(1, 20_000, 3))
    bench.log.leave_out(positions, fold_position=1)
    assert bench.reopen().left_out == positions


def test_heads_are_the_sizes_and_beginnings_of_blocks(bench: Bench) -> None:
    fill(bench.log, 600)
    bench.log.drop(20)
    bench.lose(30)
    found = {position: (size, head) for position, size, head in bench.log.heads(25, 500, 9)}
    assert found == {at: (len(data), data[:9]) for at, data in expected(25, 500).items() if at != 30}
    assert list(bench.log.heads(25, 25, 9)) == []


def test_a_damaged_block_is_reported_and_not_served(bench: Bench) -> None:
    fill(bench.log, 20)
    bench.damage(7)
    with pytest.raises(LogDamaged) as read:
        bench.log.read(7)
    assert read.value.position == 7
    scan = bench.log.scan(5)
    assert [next(scan), next(scan)] == [(5, block(5)), (6, block(6))]
    with pytest.raises(LogDamaged):
        next(scan)


def test_a_missing_block_is_reported(bench: Bench) -> None:
    fill(bench.log, 20)
    bench.lose(7)
    with pytest.raises(LogDamaged) as read:
        bench.log.read(7)
    assert (read.value.position, read.value.what) == (7, "it is missing")


def test_a_scan_that_is_told_how_to_report_damage_goes_on_behind_it(bench: Bench) -> None:
    fill(bench.log, 600)
    for position in (1, 299, 300, 599):
        bench.damage(position)
    bench.lose(400)
    reports: list[LogDamaged] = []
    found = dict(bench.log.scan(1, on_damage=reports.append))
    assert [report.position for report in reports] == [1, 299, 300, 400, 599]
    assert found == {p: data for p, data in expected(1, 601).items() if p not in (1, 299, 300, 400, 599)}


def test_a_scan_goes_on_with_what_it_is_given_for_a_damaged_block(bench: Bench) -> None:
    fill(bench.log, 20)
    bench.damage(7)
    bench.lose(8)
    found = dict(bench.log.scan(5, on_damage=lambda damage: b"instead" if damage.position == 7 else None))
    assert found == {p: data for p, data in expected(5, 21).items() if p != 8} | {7: b"instead"}


def test_damage_does_not_stop_appending(bench: Bench) -> None:
    fill(bench.log, 20)
    bench.damage(7)
    fill(bench.log, 5)
    bench.log.drop(8)
    assert contents(bench.log) == expected(8, 26)


def test_the_size_grows_with_the_blocks(bench: Bench) -> None:
    before = bench.log.size_bytes()
    bench.log.append(1, bytes(1_000_000))
    assert bench.log.size_bytes() >= before + 1_000_000


def test_a_log_with_space_has_its_reserve(bench: Bench) -> None:
    assert not bench.log.is_reserve_spent
    assert bench.log.restore_reserve()
    free_bytes = bench.log.free_bytes()
    assert free_bytes is None or free_bytes > 0


def test_a_closed_log_refuses_everything_but_closing(bench: Bench) -> None:
    log: Log = bench.log
    fill(log, 3)
    scan = log.scan(1)
    log.close()
    log.close()
    for call in (
        lambda: log.append(4, b"x"),
        lambda: log.read(1),
        lambda: log.scan(1),
        lambda: log.drop(2),
        lambda: log.fold_from(2),
        lambda: log.leave_out(frozenset({2}), fold_position=1),
        lambda: list(log.heads(1, 3, 9)),
        lambda: next(scan),
        log.tidy,
        log.size_bytes,
        log.free_bytes,
        log.restore_reserve,
    ):
        with pytest.raises(LogClosed):
            call()
