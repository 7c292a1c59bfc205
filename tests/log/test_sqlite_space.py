"""Space: full disks, the reserve, and giving back what is no longer needed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from smista.log import SqliteLog
from smista.log.errors import LogFull
from tests.faults.failing import FailingDisk, failing_disk
from tests.log.benches import contents, expected, fill, tidy_up

MIB = 1 << 20


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    with failing_disk() as disk:
        yield disk


def fill_up(log: SqliteLog, data: bytes) -> int:
    """Append until the disk is full; the first position that was refused."""
    while True:
        try:
            log.append(log.next_position, data)
        except LogFull:
            return log.next_position


def test_a_full_disk_spends_the_reserve_and_then_refuses(tmp_path: Path, disk: FailingDisk) -> None:
    log = SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=2 * MIB, wal_bytes=MIB)
    disk.capacity_bytes = 8 * MIB
    data = os.urandom(100_000)
    while not log.is_reserve_spent:
        log.append(log.next_position, data)
    assert (tmp_path / "reserve").stat().st_size == 1 * MIB
    with_reserve = log.next_position
    refused = fill_up(log, data)
    assert refused > with_reserve + 5, "the reserve is there to be used"

    assert [found for _, found in log.scan(1)] == [data] * (refused - 1)
    with pytest.raises(LogFull):
        log.append(refused, data)
    disk.capacity_bytes = 16 * MIB
    log.append(refused, b"there is space again")
    assert log.restore_reserve()
    assert not log.is_reserve_spent
    assert (tmp_path / "reserve").stat().st_size == 2 * MIB
    log.close()

    log = SqliteLog.open(tmp_path)
    assert log.next_position == refused + 1
    assert log.read(refused) == b"there is space again"
    log.close()


def test_many_small_blocks_fit_into_the_reserve(tmp_path: Path, disk: FailingDisk) -> None:
    """Acknowledgements go on long after publishing has stopped."""
    log = SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=4 * MIB, wal_bytes=2 * MIB)
    disk.capacity_bytes = 12 * MIB
    while not log.is_reserve_spent:
        log.append(log.next_position, os.urandom(100_000))
    spent_at = (tmp_path / "reserve").stat().st_size
    for _ in range(1_500):
        log.append(log.next_position, b"acknowledged")
    assert (tmp_path / "reserve").stat().st_size == spent_at, "the second half is for drops"
    log.close()


@pytest.mark.parametrize("tidies", [True, False])
def test_a_log_full_to_the_brim_can_still_be_emptied(tmp_path: Path, disk: FailingDisk, tidies: bool) -> None:
    log = SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=2 * MIB, wal_bytes=MIB)
    disk.capacity_bytes = 10 * MIB
    data = os.urandom(100_000)
    full_at = fill_up(log, data)
    log.drop(full_at)
    if tidies:
        tidy_up(log)
    for _ in range(2 * full_at):
        log.append(log.next_position, data)
        log.drop(log.next_position)
    log.close()


@pytest.mark.parametrize("number", range(1, 8))
def test_one_refused_write_is_made_good_without_the_reserve(tmp_path: Path, disk: FailingDisk, number: int) -> None:
    log = SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=MIB)
    fill(log, 30)
    log.drop(10)
    disk.fail_write(number, code=apsw.SQLITE_FULL)
    fill(log, 30)
    assert not log.is_reserve_spent
    assert contents(log) == expected(10, 61)
    log.close()


def test_a_refused_block_leaves_nothing_behind(tmp_path: Path, disk: FailingDisk) -> None:
    log = SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=0, wal_bytes=MIB)
    fill(log, 30)
    disk.capacity_bytes = 0
    for _ in range(5):
        with pytest.raises(LogFull):
            log.append(31, os.urandom(300_000))
    assert not log.tidy()
    assert contents(log) == expected(1, 31)
    disk.capacity_bytes = None
    fill(log, 1)
    log.close()
    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    assert contents(log) == expected(1, 32)
    log.close()


def test_what_is_left_out_on_a_full_disk_is_not_left_out(tmp_path: Path, disk: FailingDisk) -> None:
    log = SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=0)
    fill(log, 30)
    log.fold_from(20)
    disk.capacity_bytes = 0
    with pytest.raises(LogFull):
        log.leave_out(frozenset({3}), fold_position=1)
    disk.capacity_bytes = None
    fill(log, 1)
    assert (log.left_out, log.left_out_times, log.fold_position) == (frozenset(), 0, 20)
    log.close()
    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    assert (log.left_out, log.left_out_times, log.fold_position) == (frozenset(), 0, 20)
    log.close()


def test_closing_on_a_full_disk_keeps_everything(tmp_path: Path, disk: FailingDisk) -> None:
    log = SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=0)
    fill(log, 200)
    disk.capacity_bytes = 0
    log.close()
    assert (tmp_path / "log.db-wal").stat().st_size > 0
    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    assert contents(log) == expected(1, 201)
    log.close()


def test_a_reserve_that_does_not_fit_counts_as_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        log = SqliteLog.open(tmp_path, reserve_bytes=MIB)
        assert log.is_reserve_spent
        assert not log.restore_reserve()
        assert not (tmp_path / "reserve").exists()
        fill(log, 3)
    assert log.restore_reserve()
    assert not log.is_reserve_spent
    log.close()


def test_the_reserve_follows_its_setting(tmp_path: Path) -> None:
    for reserve_bytes in (MIB, 2 * MIB, MIB // 2):
        SqliteLog.open(tmp_path, reserve_bytes=reserve_bytes).close()
        file = (tmp_path / "reserve").stat()
        assert file.st_size == reserve_bytes
        assert file.st_blocks * 512 >= reserve_bytes, "it must take real space"
    SqliteLog.open(tmp_path, reserve_bytes=0).close()
    assert not (tmp_path / "reserve").exists()


def test_the_write_ahead_log_stays_within_its_bound(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path, reserve_bytes=0, wal_bytes=MIB)
    for _ in range(100):
        log.append(log.next_position, bytes(100_000))
        assert (tmp_path / "log.db-wal").stat().st_size <= MIB
    log.close()


def test_a_scan_that_stands_still_does_not_hold_the_write_ahead_log(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path, reserve_bytes=0, wal_bytes=MIB)
    fill(log, 300)
    scan = log.scan(1)
    next(scan)
    for _ in range(50):
        log.append(log.next_position, bytes(100_000))
    assert (tmp_path / "log.db-wal").stat().st_size <= MIB
    assert dict(scan) == expected(2, 301)
    log.close()


def test_tidying_moves_the_write_ahead_log_so_that_appending_need_not(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path, reserve_bytes=0, wal_bytes=2 * MIB)
    before = (tmp_path / "log.db").stat().st_size
    for _ in range(15):
        log.append(log.next_position, bytes(100_000))
    assert (tmp_path / "log.db").stat().st_size == before
    tidy_up(log)
    assert (tmp_path / "log.db").stat().st_size > MIB
    log.close()


def test_space_that_is_free_for_good_goes_back_to_the_file_system(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path, reserve_bytes=0, wal_bytes=MIB, slack_bytes=MIB)
    for _ in range(200):
        log.append(log.next_position, bytes(100_000))
    log.drop(195)
    tidy_up(log)
    assert log.size_bytes() < 5 * MIB
    assert [position for position, _ in log.scan(195)] == list(range(195, 201))
    log.close()


def test_space_is_used_again_when_blocks_come_and_go(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path, reserve_bytes=0, wal_bytes=MIB)
    for _ in range(400):
        log.append(log.next_position, bytes(100_000))
        log.drop(max(1, log.next_position - 10))
    assert log.size_bytes() < 6 * MIB
    log.close()


def test_a_large_drop_is_carried_out_in_slices(tmp_path: Path, disk: FailingDisk) -> None:
    log = SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=0)
    fill(log, 1_000)
    log.drop(1_001)
    before = disk.sync_count
    assert tidy_up(log) >= 4
    assert disk.sync_count - before <= 6
    log.close()


def fill_and_spend(log: SqliteLog) -> None:
    """Append until the disk is full and the reserve is spent."""
    while not log.is_reserve_spent:
        log.append(log.next_position, os.urandom(100_000))


def test_what_is_free_inside_the_log_is_told(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path, reserve_bytes=0, wal_bytes=MIB)
    for _ in range(100):
        log.append(log.next_position, bytes(100_000))
    assert log.reusable_bytes() <= MIB, "only the write-ahead log"
    log.drop(101)
    tidy_up(log)
    size_bytes = (tmp_path / "log.db").stat().st_size
    free_bytes = log.reusable_bytes()
    assert 9 * MIB < free_bytes <= size_bytes + MIB
    for _ in range(50):
        log.append(log.next_position, bytes(100_000))
    tidy_up(log)
    assert (tmp_path / "log.db").stat().st_size == size_bytes, "it did not have to grow"
    assert log.reusable_bytes() < free_bytes - 4 * MIB
    log.close()
    log = SqliteLog.open(tmp_path, reserve_bytes=0, wal_bytes=MIB)
    assert log.reusable_bytes() > 3 * MIB
    log.close()


def test_a_log_gives_its_free_space_back_when_the_reserve_needs_it(
    tmp_path: Path, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps up to `slack_bytes` for new blocks: more than a small disk has to spare."""
    capacity_bytes = 16 * MIB
    log = SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=8 * MIB, wal_bytes=MIB)
    disk.capacity_bytes = capacity_bytes

    def free_bytes(self: SqliteLog) -> int:
        return max(0, capacity_bytes - sum(entry.stat().st_size for entry in tmp_path.iterdir()))

    monkeypatch.setattr(SqliteLog, "_disk_free_bytes", free_bytes)
    fill_and_spend(log)
    for _ in range(3):
        assert not log.restore_reserve(), "nothing was dropped"
        tidy_up(log)
    log.drop(log.next_position)
    for _ in range(5):
        tidy_up(log)
        if log.restore_reserve():
            break
    assert not log.is_reserve_spent
    assert log.size_bytes() < 5 * MIB
    fill_and_spend(log)
    log.close()


def test_free_space_that_would_not_make_up_for_the_reserve_is_kept(
    tmp_path: Path, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would take it, and acknowledgements live on it."""
    log = SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=8 * MIB, wal_bytes=MIB)
    disk.capacity_bytes = 14 * MIB
    monkeypatch.setattr(SqliteLog, "_disk_free_bytes", lambda self: 0)
    fill_and_spend(log)
    log.drop(10)
    tidy_up(log)
    assert not log.restore_reserve()
    tidy_up(log)
    assert log.reusable_bytes() > MIB // 2
    log.close()


ON_A_SMALL_DISK = """
import os, sys
from smista.log import SqliteLog
from smista.log.errors import LogFull
MIB = 1 << 20

def full(log, data):
    try:
        while True:
            log.append(log.next_position, data)
    except LogFull:
        return log.next_position

directory = sys.argv[1]
settings = dict(reserve_bytes=4 * MIB, wal_bytes=2 * MIB)
log = SqliteLog.open(directory, **settings)
data = os.urandom(50_000)
while not log.is_reserve_spent:
    log.append(log.next_position, data)
published = log.next_position
for _ in range(2_000):
    log.append(log.next_position, b"acknowledged")
print("acknowledged on a full disk", log.next_position - published)
print("then full at", full(log, data) > 0, "free", log.free_bytes())
with open(directory + "/filler", "wb", buffering=0) as filler:   # take the very last byte
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
position = log.next_position
log.close()
log = SqliteLog.open(directory, **settings)
assert log.next_position == position, (log.next_position, position)
assert log.read(1) == data and log.read(published) == b"acknowledged"
log.drop(position)
while log.tidy():
    pass
log.append(position, data)
assert log.is_reserve_spent and not log.restore_reserve()
os.path.exists(directory + "/filler") and os.remove(directory + "/filler")
for _ in range(500):
    log.append(log.next_position, data)
    log.drop(log.next_position)
print("size", log.size_bytes(), "free", log.free_bytes())
log.close()
print("done")
"""


NEARLY_FULL = """
import os, sys
from smista.log import SqliteLog

directory = sys.argv[1]
settings = dict(reserve_bytes=4 << 20, wal_bytes=2 << 20)
log = SqliteLog.open(directory, **settings)
for _ in range(20):
    log.append(log.next_position, os.urandom(10_000))
log.close()
for left_bytes in range(0, 65_536, 4_096):
    with open(directory + "/filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(1024))
        except OSError:
            pass
        os.truncate(filler.fileno(), filler.tell() - left_bytes)
        os.fsync(filler.fileno())
    log = SqliteLog.open(directory, **settings)
    assert len(list(log.scan(1))) == log.next_position - 1
    log.append(log.next_position, b"acknowledged")
    log.close()
    os.remove(directory + "/filler")
    SqliteLog.open(directory, **settings).close()  # sets the reserve aside again
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_really_full_disk_is_survived(tmp_path: Path, kind: str) -> None:
    run_on_a_small_disk(ON_A_SMALL_DISK, kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tmpfs", "ext4", "ext4 -b 1024"])
def test_a_log_opens_however_little_is_left_on_the_disk(tmp_path: Path, kind: str) -> None:
    """Blocks of the disk that are smaller than a page of memory leave holes in what SQLite maps, which are filled, or
    end the process, when they are first touched."""
    run_on_a_small_disk(NEARLY_FULL, kind, tmp_path)


def run_on_a_small_disk(program: str, kind: str, path: Path) -> None:
    """In a mount namespace of its own, so nothing stays mounted."""
    if kind == "tmpfs":
        mount = f"mount -t tmpfs -o size=16m none {path}"
    else:
        image = path.parent / "disk.img"
        mount = f"truncate -s 24M {image} && mkfs.{kind} -q {image} && mount -o loop {image} {path}"
    unshare = ["unshare", "--mount", "sh", "-e", "-c"]
    if subprocess.run([*unshare, mount], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"cannot mount {kind} here")
    run = f'{mount}; "{sys.executable}" -X dev -c "$0" {path}/data'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([*unshare, run, program], env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
    assert result.stdout.endswith("done\n")
