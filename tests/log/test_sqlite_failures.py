"""A disk that fails while the SQLite log writes: the log ends at the first error and has lost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from smista.log import SqliteLog
from smista.log.errors import LogDamaged, LogFailed, LogFenced
from tests.faults.failing import FailingDisk, failing_disk
from tests.log.benches import block, contents, expected, fill, tidy_up


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    with failing_disk() as disk:
        yield disk


def open_on(disk: FailingDisk, directory: Path) -> SqliteLog:
    return SqliteLog.open(directory, vfs=disk.vfs, reserve_bytes=0, wal_bytes=1 << 20)


def append_until_it_fails(log: SqliteLog) -> int:
    """Append, drop and tidy as a broker does; the last position that was confirmed."""
    for position in range(log.next_position, 1_000):
        try:
            log.append(position, block(position))
        except LogFailed:
            return position - 1
        try:
            if position % 20 == 0:
                log.drop(position - 10)
                tidy_up(log)
        except LogFailed:
            return position
    raise AssertionError("the disk did not fail")


def expect_finished(log: SqliteLog) -> None:
    calls: list[Callable[[], object]] = [
        lambda: log.append(log.next_position, b"x"),
        lambda: log.read(log.first_position),
        lambda: log.scan(log.first_position),
        lambda: log.drop(log.first_position),
        log.tidy,
        log.size_bytes,
        log.free_bytes,
        log.restore_reserve,
    ]
    for call in calls:
        with pytest.raises(LogFailed):
            call()


@pytest.mark.parametrize("number", [1, 2, 3, 4, 7, 19, 20, 21, 22, 40, 41, 42, 43, 150])
@pytest.mark.parametrize("operation", ["sync", "write"])
def test_the_first_error_ends_the_log_and_loses_nothing(
    tmp_path: Path, disk: FailingDisk, operation: str, number: int
) -> None:
    log = open_on(disk, tmp_path)
    if operation == "sync":
        disk.fail_sync(number)
    else:
        disk.fail_write(number * 5)
    confirmed = append_until_it_fails(log)
    expect_finished(log)
    written = (disk.write_count, disk.sync_count)
    log.close()
    assert (disk.write_count, disk.sync_count) == written, "a failed log must not write any more"

    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    # The block that met the error may have come through: its publisher was told "unknown".
    assert log.next_position - 1 in (confirmed, confirmed + 1)
    assert contents(log) == expected(log.first_position, log.next_position)
    fill(log, 3)
    log.close()


def test_every_sync_counts(tmp_path: Path, disk: FailingDisk) -> None:
    """Appends with and without a drop are one sync each, so the tests above reach what they mean to."""
    log = open_on(disk, tmp_path)
    fill(log, 50)
    before = disk.sync_count
    fill(log, 1)
    assert disk.sync_count == before + 1
    log.drop(40)
    assert disk.sync_count == before + 1
    fill(log, 1)
    assert disk.sync_count == before + 2
    log.close()


def test_an_error_while_closing_is_told_and_everything_is_given_back(tmp_path: Path, disk: FailingDisk) -> None:
    log = open_on(disk, tmp_path)
    fill(log, 5)
    disk.fail_sync(1)
    with pytest.raises(LogFailed):
        log.close()
    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    assert contents(log) == expected(1, 6)
    log.close()


def test_a_slow_disk_only_takes_longer(tmp_path: Path, disk: FailingDisk) -> None:
    log = open_on(disk, tmp_path)
    disk.sync_delay_s = 0.02
    fill(log, 3)
    assert contents(log) == expected(1, 4)
    log.close()


def test_an_unreadable_disk_is_damage_of_the_block_and_does_not_end_the_log(tmp_path: Path, disk: FailingDisk) -> None:
    log = open_on(disk, tmp_path)
    fill(log, 100)
    log.close()
    log = open_on(disk, tmp_path)
    disk.is_read_failing = True
    with pytest.raises(LogDamaged) as damage:
        log.read(50)
    assert damage.value.position == 50
    disk.is_read_failing = False
    fill(log, 1)
    assert contents(log) == expected(1, 102)
    log.close()


def test_a_disk_that_cannot_be_read_at_the_start_is_damage(tmp_path: Path, disk: FailingDisk) -> None:
    open_on(disk, tmp_path).close()
    disk.is_read_failing = True
    with pytest.raises(LogDamaged):
        open_on(disk, tmp_path)


@pytest.mark.parametrize("number", range(1, 10))
def test_an_error_while_the_log_is_made_leaves_nothing_that_hinders_the_next_start(
    tmp_path: Path, disk: FailingDisk, number: int
) -> None:
    disk.fail_write(number)
    try:
        open_on(disk, tmp_path).close()
    except (LogFailed, LogDamaged):
        log = SqliteLog.open(tmp_path, reserve_bytes=0)
        fill(log, 3)
        log.close()


def test_a_second_writer_at_the_same_position_is_fenced_off(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    fill(log, 3)
    other = apsw.Connection(str(tmp_path / "log.db"))
    other.execute("INSERT INTO blocks VALUES(4, 0, x'00')")
    with pytest.raises(LogFenced) as fenced:
        log.append(4, b"mine")
    assert fenced.value.position == 4
    with pytest.raises(LogFenced):
        log.append(4, b"mine")
    other.close()
    log.close()


@pytest.mark.parametrize("code", [apsw.SQLITE_CORRUPT, apsw.SQLITE_NOTADB])
def test_damage_that_writing_meets_is_called_that_and_has_its_cure(
    tmp_path: Path, disk: FailingDisk, code: int
) -> None:
    log = SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=0)
    disk.fail_write(code=code)
    with pytest.raises(LogFailed, match=r"log.db is damaged .*--on-damage serve"):
        log.append(1, b"x")
    log.close()
