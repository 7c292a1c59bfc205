"""Which directories the SQLite log takes, and which it leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from smista.log import SqliteLog, shared_index, sqlite_writer
from smista.log.errors import LogDamaged, LogError, LogFailed, LogForeign, LogLocked, LogNewer
from smista.log.sqlite_file import refuse_unsafe_sqlite
from tests.log.benches import contents, expected, fill


def listing(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def execute(directory: Path, statement: str) -> None:
    connection = apsw.Connection(str(directory / "log.db"))
    connection.execute(statement)
    connection.close()


def make(directory: Path, count: int = 0) -> None:
    log = SqliteLog.open(directory, reserve_bytes=0)
    fill(log, count)
    log.close()


def test_a_log_is_made_in_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    make(tmp_path / "a" / "b", count=3)
    log = SqliteLog.open(str(tmp_path / "a" / "b"))
    assert contents(log) == expected(1, 4)
    log.close()


def test_a_clean_stop_leaves_no_write_ahead_log(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path)
    fill(log, 100)
    log.close()
    assert sorted(os.listdir(tmp_path)) == ["lock", "log.db", "mark", "reserve"]


def test_two_logs_have_different_identities(tmp_path: Path) -> None:
    logs = [SqliteLog.open(tmp_path / name, reserve_bytes=0) for name in "ab"]
    assert logs[0].identity != logs[1].identity
    for log in logs:
        log.close()


def test_what_mkfs_leaves_in_a_new_file_system_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    make(tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "log.db"])
@pytest.mark.parametrize("content", [b"SQLite format 3\0" + bytes(200), b"Dear diary, " * 99])
def test_a_directory_with_something_else_is_refused_and_not_touched(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    before = listing(tmp_path)
    with pytest.raises(LogForeign):
        SqliteLog.open(tmp_path)
    assert listing(tmp_path) == before


def test_the_database_of_another_program_is_refused_and_not_touched(tmp_path: Path) -> None:
    execute(tmp_path, "CREATE TABLE blocks(position INTEGER PRIMARY KEY, crc, data)")
    before = listing(tmp_path)
    with pytest.raises(LogForeign):
        SqliteLog.open(tmp_path)
    assert listing(tmp_path) == before


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x")
    with pytest.raises(LogForeign):
        SqliteLog.open(tmp_path / "data")


def test_a_directory_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(LogFailed):
        SqliteLog.open(tmp_path / "file" / "data")


def test_a_newer_format_is_refused_and_not_touched(tmp_path: Path) -> None:
    make(tmp_path, count=3)
    execute(tmp_path, "PRAGMA user_version = 2")
    before = listing(tmp_path)
    with pytest.raises(LogNewer, match="format 2"):
        SqliteLog.open(tmp_path)
    assert listing(tmp_path) == before | {"lock": listing(tmp_path)["lock"]}


@pytest.mark.parametrize("name", ["log.db-wal", "mark", "reserve"])
def test_a_log_that_has_lost_its_main_file_is_damaged_not_new(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(LogDamaged):
        SqliteLog.open(tmp_path)


def test_an_empty_main_file_is_damaged_not_new(tmp_path: Path) -> None:
    make(tmp_path, count=3)
    (tmp_path / "log.db").write_bytes(b"")
    with pytest.raises(LogDamaged):
        SqliteLog.open(tmp_path)


@pytest.mark.parametrize("left", [["lock"], ["lock", "log.db.new", "log.db.new-journal"]])
def test_what_a_broker_killed_while_making_the_log_has_left_is_cleared_away(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        (tmp_path / name).write_bytes(b"half" * 2_000)
    make(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["lock", "log.db", "mark"]


def test_the_main_file_alone_is_a_whole_log(tmp_path: Path) -> None:
    make(tmp_path / "a", count=9)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "log.db").write_bytes((tmp_path / "a" / "log.db").read_bytes())
    log = SqliteLog.open(tmp_path / "b")
    assert contents(log) == expected(1, 10)
    log.close()


def test_the_mark_of_another_log_is_not_believed(tmp_path: Path) -> None:
    make(tmp_path / "a", count=9)
    make(tmp_path / "b", count=3)
    (tmp_path / "b" / "mark").write_bytes((tmp_path / "a" / "mark").read_bytes())
    log = SqliteLog.open(tmp_path / "b", reserve_bytes=0)
    assert contents(log) == expected(1, 4)
    log.close()


def test_a_directory_is_open_once_in_a_process(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path)
    with pytest.raises(LogLocked) as second:
        SqliteLog.open(tmp_path)
    assert second.value.pid == os.getpid()
    fill(log, 3)
    log.close()
    SqliteLog.open(tmp_path).close()


OPEN_AND_APPEND = """
import sys
from smista.log import SqliteLog, shared_index, sqlite_writer
from tests.log.benches import block
log = SqliteLog.open(sys.argv[1], reserve_bytes=0, wal_bytes=1 << 20)
print("open", flush=True)
while sys.argv[2] == "append":
    position = log.next_position
    log.append(position, block(position))
    print(position, flush=True)
    log.drop(max(1, position - 300))
    log.tidy()
sys.stdin.read()
"""


@pytest.fixture
def broker(tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    def start(task: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", OPEN_AND_APPEND, str(tmp_path / "data"), task],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        return process

    return start


def test_a_directory_is_open_in_one_process(tmp_path: Path, broker: Callable[[str], subprocess.Popen[str]]) -> None:
    with broker("wait") as process:
        with pytest.raises(LogLocked, match=f"process {process.pid};"):
            SqliteLog.open(tmp_path / "data")
        process.kill()
    SqliteLog.open(tmp_path / "data", reserve_bytes=0).close()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 40, 200, 450, 700])
def test_a_killed_process_has_lost_nothing_it_confirmed(
    tmp_path: Path, broker: Callable[[str], subprocess.Popen[str]], count: int
) -> None:
    with broker("append") as process:
        assert process.stdout is not None
        confirmed = [int(process.stdout.readline()) for _ in range(count)]
        process.send_signal(signal.SIGKILL)
        confirmed += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    log = SqliteLog.open(tmp_path / "data", reserve_bytes=0)
    assert log.next_position - 1 in (confirmed[-1], confirmed[-1] + 1)
    assert log.first_position <= max(1, confirmed[-1] - 299)
    assert contents(log) == expected(log.first_position, log.next_position)
    log.close()


@pytest.mark.parametrize("version", ["3.7.0", "3.40.1", "3.44.5", "3.50.6", "3.51.0", "3.51.2"])
def test_a_sqlite_that_can_lose_a_transaction_is_refused(version: str) -> None:
    with pytest.raises(LogError, match=version):
        refuse_unsafe_sqlite(version)


@pytest.mark.parametrize("version", ["3.44.6", "3.50.7", "3.51.3", "3.52.0", "3.54.1", "4.0.0"])
def test_a_sqlite_with_that_fault_repaired_is_taken(version: str) -> None:
    refuse_unsafe_sqlite(version)


def test_opening_does_not_read_every_block(tmp_path: Path) -> None:
    make(tmp_path)
    connection = apsw.Connection(str(tmp_path / "log.db"))
    plan = "".join(str(row) for row in connection.execute(f"EXPLAIN QUERY PLAN {sqlite_writer._ENDS}"))
    connection.close()
    assert plan.count("SEARCH blocks") == 2
    assert "SCAN blocks" not in plan


BESIDE = """
import sys
from pathlib import Path
from smista.log.sqlite_reader import BlockReader
reader = BlockReader(Path(sys.argv[1]) / "log.db", vfs=None)
print(reader.ends(), len(reader.read_chunk(1, 100)))
reader.close()
"""


def test_an_index_that_is_made_beforehand_serves_all_who_open_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk with small blocks. A process beside the broker must find SQLite's locks in their places."""
    monkeypatch.setattr(shared_index, "_PAGE_BYTES", 1 << 30)
    for run in range(3):
        log = SqliteLog.open(tmp_path, reserve_bytes=0)
        fill(log, 20)
        count = 20 * (run + 1)
        index = tmp_path / "log.db-shm"
        assert index.stat().st_blocks * 512 >= 32 << 10
        for _ in range(2):
            beside = subprocess.run(
                [sys.executable, "-c", BESIDE, str(tmp_path)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (beside.stderr, beside.stdout) == ("", f"(1, {count + 1}) {count}\n")
        assert contents(log) == expected(1, count + 1)
        log.close()
        index.write_bytes(os.urandom(40_000))  # whatever a crash may leave
    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    assert contents(log) == expected(1, 61)
    log.close()
