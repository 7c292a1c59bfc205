"""A log as another process reads it, beside the one that writes it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from smista.log import LogView, MemoryLog, SqliteLog
from smista.log.errors import LogDamaged, LogDropped
from tests.log.benches import block, expected, fill, tidy_up


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    yield log
    log.close()


@pytest.fixture
def view(log: SqliteLog) -> Iterator[LogView]:
    location = pickle.loads(pickle.dumps(log.location()))
    view: LogView = location.open()
    yield view
    view.close()


def test_a_log_in_memory_is_nowhere_for_others() -> None:
    assert MemoryLog().location() is None


def test_what_is_appended_is_seen_at_once(log: SqliteLog, view: LogView) -> None:
    assert view.next_position() == 1
    for position in range(1, 10):
        fill(log, 1)
        assert view.next_position() == log.next_position
        assert list(view.blocks(position, position + 1)) == [(position, block(position))]


def test_blocks_come_in_order_however_many_they_are(log: SqliteLog, view: LogView) -> None:
    fill(log, 600)
    assert dict(view.blocks(1, 601)) == expected(1, 601)
    assert dict(view.blocks(300, 302)) == expected(300, 302)
    assert list(view.blocks(5, 5)) == []


def test_what_was_dropped_says_where_the_log_begins(log: SqliteLog, view: LogView) -> None:
    fill(log, 100)
    reading = view.blocks(1, 101)
    assert next(reading)[0] == 1
    log.drop(60)
    tidy_up(log)
    with pytest.raises(LogDropped) as dropped:
        list(view.blocks(1, 101))
    assert (dropped.value.position, dropped.value.first_position) == (1, 60)
    assert dict(view.blocks(60, 101)) == expected(60, 101)
    log.drop(101)
    tidy_up(log)
    assert view.next_position() == 101


def test_a_damaged_block_is_not_handed_out(log: SqliteLog, view: LogView, tmp_path: Path) -> None:
    fill(log, 3)
    connection = apsw.Connection(str(tmp_path / "log.db"))
    connection.execute("UPDATE blocks SET data = ? WHERE position = 2", (b"another",))
    connection.close()
    reading = view.blocks(1, 4)
    assert next(reading)[0] == 1
    with pytest.raises(LogDamaged) as damage:
        next(reading)
    assert damage.value.position == 2
