"""Power cuts on the SQLite log: whatever a cut leaves, every confirmed block is there.

One run of a workload is recorded; then the power is cut at hundreds of its moments. `loss` is the checker.
That it can fail is shown by the sabotaged runs at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from smista.log import SqliteLog, sqlite_file
from smista.log.errors import LogDamaged, LogError
from tests.faults.powercut import Cut, Trace, recording
from tests.log.benches import block, tidy_up


def run(directory: Path, *, is_lying: bool = False, observes_mark: bool = True) -> Trace:
    """What a broker does: open, append, fold from further on, drop, tidy, stop and start again. Marks are (what is
    confirmed, what may be dropped, from where on may be folded)."""
    with recording(directory, is_lying=is_lying) as trace:
        dropped = folded = 1
        for _ in range(3):
            log = SqliteLog.open(directory, vfs=trace.vfs, reserve_bytes=0, wal_bytes=1 << 20, slack_bytes=0)
            trace.mark((log.next_position - 1, dropped, folded))
            for position in range(log.next_position, log.next_position + 60):
                log.append(position, block(position))
                trace.mark((position, dropped, folded))
                if observes_mark:
                    trace.observe(directory / "mark")
                if position % 7 == 0:
                    folded = position - 5
                    trace.mark((position, dropped, folded))
                    log.fold_from(folded)
                if position % 25 == 0:
                    dropped = position - 20
                    trace.mark((position, dropped, folded))
                    log.drop(dropped)
                if position % 40 == 0:
                    tidy_up(log)
            log.close()
            trace.mark((log.next_position - 1, dropped, folded))
    return trace


def loss(cut: Cut, directory: Path) -> str | None:
    """What is wrong with the log after the cut; None when all is well."""
    confirmed, dropped, folded = cut.marks[-1] if cut.marks else (0, 1, 1)
    try:
        log = SqliteLog.open(cut.write(directory), reserve_bytes=0)
    except LogError as error:
        return f"{cut}: {error}"
    try:
        return _loss(log, confirmed, dropped, folded, cut)
    except LogError as error:
        return f"{cut}: {error}"
    finally:
        log.close()


def _loss(log: SqliteLog, confirmed: int, dropped: int, folded: int, cut: Cut) -> str | None:
    if log.first_position > dropped:
        return f"{cut}: blocks below {log.first_position} are gone and only those below {dropped} were dropped"
    if log.fold_position > folded:
        return f"{cut}: folds from {log.fold_position}, and blocks from {folded} on are needed"
    if log.next_position <= confirmed:
        return f"{cut}: ends at {log.next_position} and {confirmed} was confirmed"
    if log.next_position > confirmed + 2:
        return f"{cut}: ends at {log.next_position} and only {confirmed} was confirmed"
    expected = log.first_position
    for position, data in log.scan(log.first_position):
        if position != expected or data != block(position):
            return f"{cut}: block {position} is not what was stored"
        expected += 1
    return None if expected == log.next_position else f"{cut}: the scan ended at {expected}"


def losses(trace: Trace, directory: Path, *, count: int, seed: int, start: int = 0) -> Iterator[str]:
    return filter(None, (loss(cut, directory) for cut in trace.cuts(count, seed=seed, start=start)))


def test_no_power_cut_loses_a_confirmed_block(tmp_path: Path) -> None:
    trace = run(tmp_path / "run")
    assert list(losses(trace, tmp_path / "cut", count=250, seed=1)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_no_power_cut_of_many_loses_a_confirmed_block(tmp_path: Path, seed: int) -> None:
    trace = run(tmp_path / "run")
    assert list(losses(trace, tmp_path / "cut", count=500, seed=seed)) == []


def test_a_power_cut_while_the_log_is_made_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    with recording(tmp_path / "run") as trace:
        SqliteLog.open(tmp_path / "run", vfs=trace.vfs, reserve_bytes=0).close()
    for point in range(len(trace.operations) + 1):
        for seed in range(4):
            assert loss(trace.cut(point, seed=seed), tmp_path / "cut") is None


def test_a_log_survives_cut_after_cut(tmp_path: Path) -> None:
    """What a cut has left is gone on with, and the power cut again."""
    directory = tmp_path / "0"
    for generation in range(1, 31):
        with recording(directory) as trace:
            log = SqliteLog.open(directory, vfs=trace.vfs, reserve_bytes=0, wal_bytes=1 << 20)
            trace.mark((log.next_position - 1, 1, 1))
            for position in range(log.next_position, log.next_position + 5):
                log.append(position, block(position))
                trace.mark((position, 1, 1))
            log.close()
        [cut] = trace.cuts(1, seed=generation)
        if cut.marks:
            directory = tmp_path / str(generation)
            assert loss(cut, directory) is None


def test_no_power_cut_undoes_what_was_left_out(tmp_path: Path) -> None:
    with recording(tmp_path / "run") as trace:
        log = SqliteLog.open(tmp_path / "run", vfs=trace.vfs, reserve_bytes=0)
        for position in range(1, 21):
            log.append(position, block(position))
        log.fold_from(15)
        for times in range(1, 11):
            log.leave_out(frozenset(range(1, times + 1)), fold_position=20 - times)
            trace.mark(times)
        log.close()
    for cut in trace.cuts(100, seed=1):
        if cut.marks:
            with closing(SqliteLog.open(cut.write(tmp_path / "cut"), reserve_bytes=0)) as found:
                times = found.left_out_times
                assert times >= cut.marks[-1], cut
                assert (len(found.left_out), found.fold_position) == (times, 20 - times), cut


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_sabotage_a_log_that_does_not_sync_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: str
) -> None:
    monkeypatch.setattr(sqlite_file, "SYNCHRONOUS", synchronous)
    trace = run(tmp_path / "run", observes_mark=False)
    assert any(losses(trace, tmp_path / "cut", count=50, seed=1))


def test_sabotage_a_disk_that_lies_about_syncs_is_found_out(tmp_path: Path) -> None:
    trace = run(tmp_path / "run", is_lying=True, observes_mark=False)
    assert any(losses(trace, tmp_path / "cut", count=50, seed=1))


def test_a_lost_end_is_named_by_the_log_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is written after the sync; without that sync a cut can leave it ahead of the blocks."""
    monkeypatch.setattr(sqlite_file, "SYNCHRONOUS", "NORMAL")
    trace = run(tmp_path / "run")
    found = list(losses(trace, tmp_path / "cut", count=200, seed=1))
    assert any("were confirmed and are missing from its end" in report for report in found)


def test_a_cut_can_be_made_again_from_its_point_and_seed(tmp_path: Path) -> None:
    trace = run(tmp_path / "run")
    first = [(cut.point, cut.seed, cut.contents) for cut in trace.cuts(20, seed=3)]
    for point, seed, contents in reversed(first):
        assert trace.cut(point, seed=seed).contents == contents


def test_the_mark_never_raises_a_false_alarm(tmp_path: Path) -> None:
    """With the mark always as new as it can be, which is the hardest for it."""
    trace = run(tmp_path / "run")
    for cut in trace.cuts(100, seed=7):
        marks = [o.data for o in trace.operations[: cut.point] if (o.path, o.kind) == ("mark", "write")]
        if marks and "log.db" in cut.contents:
            cut.contents["mark"] = marks[-1]
        assert loss(cut, tmp_path / "cut") is None


def test_a_write_ahead_log_that_was_removed_is_noticed(tmp_path: Path) -> None:
    with recording(tmp_path / "run") as trace:
        log = SqliteLog.open(tmp_path / "run", vfs=trace.vfs, reserve_bytes=0)
        for position in range(1, 10):
            log.append(position, block(position))
        trace.observe(tmp_path / "run" / "mark")
        stopped = len(trace.operations)
        log.close()
    cut = trace.cut(stopped, seed=0)
    cut.contents["mark"] = (tmp_path / "run" / "mark").read_bytes()
    del cut.contents["log.db-wal"]
    with pytest.raises(LogDamaged, match="blocks 1 to 9 were confirmed"):
        SqliteLog.open(cut.write(tmp_path / "cut"), reserve_bytes=0)
    (tmp_path / "cut" / "mark").unlink()
    SqliteLog.open(tmp_path / "cut", reserve_bytes=0).close()
