"""Rot in the files of the SQLite log: a flipped bit or a lost end is named, and no wrong block is ever handed
out."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from smista.log import SqliteLog, sqlite_reader
from smista.log.errors import LogDamaged, LogError
from tests.faults.damage import flip_bit, truncate
from tests.log.benches import block, fill, tidy_up

Files = dict[str, bytes]
FIRST, COUNT = 30, 400


class Wrong(AssertionError):
    """The log handed out something that was never stored."""


def take(directory: Path) -> Files:
    return {name: (directory / name).read_bytes() for name in ("log.db", "mark", "log.db-wal")}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    """The files of one log, first with everything in the write-ahead log, then half, then all in log.db."""
    directory = tmp_path_factory.mktemp("store")
    log = SqliteLog.open(directory, reserve_bytes=0)
    fill(log, COUNT // 2)
    log.drop(FIRST)
    fill(log, 20)
    first_half = take(directory)
    log._writer.checkpoint()
    fill(log, COUNT // 2 - 20)
    halves = take(directory)
    tidy_up(log)
    log._writer.checkpoint()
    fill(log, 1)  # so that the write-ahead log starts over
    log.close()
    whole = {name: (directory / name).read_bytes() for name in ("log.db", "mark")}
    return {"in the write-ahead log": first_half, "in halves": halves, "in log.db": whole}


def put(files: Files, directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def inspect(directory: Path, end: int) -> str:
    """Open, read everything, write a little. "sound", or the code of the error; `Wrong` if anything is not as
    stored."""
    try:
        log = SqliteLog.open(directory, reserve_bytes=0)
    except LogError as error:
        return error.code
    try:
        damages: list[LogDamaged] = []
        found = dict(log.scan(log.first_position, on_damage=damages.append))
        for position, data in found.items():
            if data != block(position):
                raise Wrong(f"block {position}")
        if not damages and (log.first_position, log.next_position, len(found)) != (FIRST, end, end - FIRST):
            raise Wrong(f"blocks {log.first_position} to {log.next_position}")
        fill(log, 3)
        for position in range(end, log.next_position):
            if log.read(position) != block(position):
                raise Wrong(f"block {position}, appended after the damage")
        return damages[0].code if damages else "sound"
    except LogError as error:
        return error.code
    finally:
        try:
            log.close()
        except LogError:
            assert log._failure is not None


def flips(files: Files, directory: Path, *, count: int, seed: int, name: str, end: int) -> Counter[str]:
    """Flip one bit at a time, the first hundred bytes of the file more often: they are its header."""
    source = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for number in range(count):
        put(files, directory)
        offset = source.randrange(100 if number % 5 == 0 else len(files[name]))
        bit = source.randrange(8)
        flip_bit(directory / name, offset, bit)
        try:
            outcomes[inspect(directory, end)] += 1
        except Exception as error:
            raise AssertionError(f"bit {bit} of byte {offset} of {name}: {error!r}") from error
    return outcomes


def end_of(state: str) -> int:
    return {"in the write-ahead log": COUNT // 2 + 21, "in halves": COUNT + 1, "in log.db": COUNT + 2}[state]


STATES = ["in the write-ahead log", "in halves", "in log.db"]
PLACES = [(state, "log.db") for state in STATES] + [(state, "log.db-wal") for state in STATES[:2]]


@pytest.mark.parametrize(("state", "name"), PLACES)
def test_a_flipped_bit_never_yields_a_wrong_block(
    stores: dict[str, Files], tmp_path: Path, state: str, name: str
) -> None:
    outcomes = flips(stores[state], tmp_path / "d", count=60, seed=1, name=name, end=end_of(state))
    assert outcomes.keys() <= {"sound", "log_damaged", "log_foreign", "log_newer", "log_failed"}, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize(("state", "name"), PLACES)
def test_no_flipped_bit_of_many_yields_a_wrong_block(
    stores: dict[str, Files], tmp_path: Path, state: str, name: str, seed: int
) -> None:
    outcomes = flips(stores[state], tmp_path / "d", count=300, seed=seed, name=name, end=end_of(state))
    assert outcomes.keys() <= {"sound", "log_damaged", "log_foreign", "log_newer", "log_failed"}, outcomes


def test_a_flipped_bit_in_a_block_is_found(stores: dict[str, Files], tmp_path: Path) -> None:
    files = stores["in log.db"]
    directory = put(files, tmp_path / "d")
    flip_bit(directory / "log.db", files["log.db"].index(b"block 77;"))
    log = SqliteLog.open(directory, reserve_bytes=0)
    damages: list[LogDamaged] = []
    found = [position for position, _ in log.scan(FIRST, on_damage=damages.append)]
    assert [damage.position for damage in damages] == [77]
    assert len(found) == COUNT + 1 - FIRST
    log.close()


@pytest.mark.parametrize("name", ["mark", "lock"])
def test_a_flipped_bit_beside_the_blocks_does_no_harm(stores: dict[str, Files], tmp_path: Path, name: str) -> None:
    files = {**stores["in halves"], "lock": b"123                \n"}
    outcomes: Counter[str] = Counter()
    for offset in range(len(files[name])):
        put(files, tmp_path / "d")
        flip_bit(tmp_path / "d" / name, offset, offset % 8)
        outcomes[inspect(tmp_path / "d", end_of("in halves"))] += 1
    assert outcomes.keys() == {"sound"}


@pytest.mark.parametrize(("state", "name"), PLACES)
def test_a_truncated_file_is_named_or_does_no_harm(
    stores: dict[str, Files], tmp_path: Path, state: str, name: str
) -> None:
    source = random.Random(1)
    size_bytes = len(stores[state][name])
    sizes = [0, 1, 31, 32, 99, 100, size_bytes - 1] + [source.randrange(size_bytes) for _ in range(50)]
    outcomes: Counter[str] = Counter()
    for size in sizes:
        directory = put(stores[state], tmp_path / "d")
        truncate(directory / name, size)
        outcomes[inspect(directory, end_of(state))] += 1
    # It may have been of no use: pages that are newer in the write-ahead log, or what is left of an older
    # one.
    assert outcomes.keys() <= {"sound", "log_damaged", "log_foreign"}
    assert outcomes["log_damaged"] >= 1


def test_a_shorter_log_is_folded_from_its_first_block(tmp_path: Path) -> None:
    """What was appended again, so that nothing older was needed, may have been in the blocks that are lost."""
    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    fill(log, 30)
    log.drop(5)
    log.fold_from(25)
    tidy_up(log)
    log.close()
    (tmp_path / "mark").unlink()
    connection = apsw.Connection(str(tmp_path / "log.db"))
    connection.execute("DELETE FROM blocks WHERE position >= 20")
    connection.close()
    for _ in range(2):
        with closing(SqliteLog.open(tmp_path, reserve_bytes=0)) as log:
            assert (log.first_position, log.fold_position) == (5, 5)
            # Also when it has grown beyond where the fold began.
            fill(log, 20)
            tidy_up(log)


def test_a_write_ahead_log_cut_short_without_a_mark_is_a_shorter_log(stores: dict[str, Files], tmp_path: Path) -> None:
    """As a power cut leaves it: everything up to the cut is there and nothing that is not whole."""
    store = stores["in the write-ahead log"]
    files = {name: content for name, content in store.items() if name != "mark"}
    size_bytes = len(files["log.db-wal"])
    ends = []
    for size in range(size_bytes - 300_000, size_bytes, 5_237):
        directory = put(files, tmp_path / "d")
        truncate(directory / "log.db-wal", size)
        log = SqliteLog.open(directory, reserve_bytes=0)
        ends.append(log.next_position)
        assert dict(log.scan(FIRST)) == {position: block(position) for position in range(FIRST, ends[-1])}
        fill(log, 2)
        log.close()
    assert ends == sorted(ends)
    assert len(set(ends)) > 5


def test_a_log_that_may_lack_its_end_goes_on_behind_what_is_lost(stores: dict[str, Files], tmp_path: Path) -> None:
    files = stores["in the write-ahead log"]
    directory = put(files, tmp_path / "d")
    truncate(directory / "log.db-wal", len(files["log.db-wal"]) - 100_000)
    with pytest.raises(LogDamaged, match="missing from its end") as refusal:
        SqliteLog.open(directory, reserve_bytes=0)
    lost = refusal.value.position
    assert lost is not None
    end = end_of("in the write-ahead log")
    log = SqliteLog.open(directory, reserve_bytes=0, may_lack_end=True)
    assert log.next_position == end
    for _ in range(2):
        damages: list[LogDamaged] = []
        found = dict(log.scan(FIRST, on_damage=damages.append))
        assert {position: found[position] for position in range(FIRST, lost)} == {
            position: block(position) for position in range(FIRST, lost)
        }
        assert [damage.position for damage in damages] == list(range(lost, end))
        log.append(log.next_position, b"after")
        log.close()
        log = SqliteLog.open(directory, reserve_bytes=0)
    assert log.read(end) == b"after"
    log.close()


def test_damage_that_stops_the_start_is_left_as_it_was_found(stores: dict[str, Files], tmp_path: Path) -> None:
    files = stores["in halves"]
    directory = put(files, tmp_path / "d")
    flip_bit(directory / "log.db-wal", len(files["log.db-wal"]) // 5)
    before = (directory / "log.db-wal").read_bytes(), (directory / "log.db").read_bytes()
    with pytest.raises(LogDamaged):
        SqliteLog.open(directory, reserve_bytes=0)
    assert ((directory / "log.db-wal").read_bytes(), (directory / "log.db").read_bytes()) == before


def test_sabotage_a_log_that_does_not_check_is_found_out(
    stores: dict[str, Files], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_reader, "_is_sound", lambda position, row: True)
    with pytest.raises(AssertionError, match="Wrong"):
        flips(stores["in log.db"], tmp_path / "d", count=60, seed=1, name="log.db", end=end_of("in log.db"))


def test_sabotage_a_log_without_a_mark_does_not_see_a_rotten_end(stores: dict[str, Files], tmp_path: Path) -> None:
    files = {name: content for name, content in stores["in halves"].items() if name != "mark"}
    with pytest.raises(AssertionError, match="Wrong"):
        flips(files, tmp_path / "d", count=60, seed=1, name="log.db-wal", end=end_of("in halves"))
