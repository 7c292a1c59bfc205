"""The log and its names, read beside the broker that writes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from smista.core.counters import Counters
from smista.core.settings import DEFAULT
from smista.engine.recorder import QueueDeletedRecord, QueueRecord
from smista.log import SqliteLog, records
from smista.log.errors import LogDamaged, LogDropped, LogError
from smista.log.records import Kind
from smista.protocols.bulk import names as names_module
from smista.protocols.bulk.log_file import LogFile
from smista.protocols.bulk.names import Names
from smista.protocols.bulk.plans import Planner
from tests.waiting import PATIENCE_S


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    yield log
    log.close()


@pytest.fixture
def beside(log: SqliteLog, tmp_path: Path) -> LogFile:
    return LogFile(tmp_path)


def block(*parts: bytes) -> bytes:
    return b"".join([records.block_header(1), *parts])


def acknowledged(count: int) -> bytes:
    return records.acknowledged(1, 1, list(range(count)))


def declared(number: int, name: str) -> bytes:
    record = QueueRecord(number, "/", name, DEFAULT, 0, 0, False, Counters())
    return records.packed(Kind.QUEUE_DECLARED, record)


def deleted(number: int, name: str) -> bytes:
    return records.packed(Kind.QUEUE_DELETED, QueueDeletedRecord(number, "/", name, 0))


def append(log: SqliteLog, *blocks: bytes) -> None:
    for each in blocks:
        log.append(log.next_position, each)


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_what_is_appended_is_seen_at_once(log: SqliteLog, beside: LogFile) -> None:
    assert beside.end() == 1
    for number in range(1, 10):
        append(log, block(acknowledged(number)))
        assert beside.end() == log.next_position
        assert list(beside.blocks(number, number + 1)) == [(number, block(acknowledged(number)))]


def test_blocks_come_in_order_however_many_they_are(log: SqliteLog, beside: LogFile) -> None:
    blocks = [block(acknowledged(number % 7)) for number in range(600)]
    append(log, *blocks)
    assert list(beside.blocks(1, 601)) == list(enumerate(blocks, 1))
    assert list(beside.blocks(300, 302)) == [(300, blocks[299]), (301, blocks[300])]
    assert list(beside.blocks(5, 5)) == []


def test_what_was_dropped_says_where_the_log_begins(log: SqliteLog, beside: LogFile) -> None:
    append(log, *[block()] * 100)
    reading = beside.blocks(1, 101)
    assert next(reading)[0] == 1
    log.drop(60)
    while log.tidy():
        pass
    with pytest.raises(LogDropped) as dropped:
        list(beside.blocks(1, 101))
    assert (dropped.value.position, dropped.value.first_position) == (1, 60)
    assert [position for position, _ in beside.blocks(60, 101)] == list(range(60, 101))
    log.drop(101)
    while log.tidy():
        pass
    assert beside.end() == 101


def test_a_damaged_block_is_not_handed_out(log: SqliteLog, beside: LogFile, tmp_path: Path) -> None:
    append(log, *[block(acknowledged(3))] * 3)
    connection = apsw.Connection(str(tmp_path / "log.db"))
    connection.execute("UPDATE blocks SET data = ? WHERE position = 2", (block(acknowledged(4)),))
    connection.close()
    reading = beside.blocks(1, 4)
    assert next(reading)[0] == 1
    with pytest.raises(LogDamaged) as damage:
        next(reading)
    assert damage.value.position == 2


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_name_that_the_broker_told_is_known(log: SqliteLog, beside: LogFile) -> None:
    names = Names(beside)
    names.learn([(7, "/", "orders")])
    assert names.find(7, 1) == ("/", "orders")


@pytest.mark.parametrize("record", [declared, deleted])
def test_a_name_is_looked_for_in_the_blocks_behind(log: SqliteLog, beside: LogFile, record: object) -> None:
    assert callable(record)
    append(log, block(), block(acknowledged(1)), block(record(7, "old"), record(8, "older")), block(acknowledged(1)))
    names = Names(beside)
    assert names.find(7, 2) == ("/", "old")
    assert names.find(8, 1) == ("/", "older")


def test_a_name_that_is_on_its_way_is_waited_for(
    log: SqliteLog, beside: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_module, "WAIT_S", PATIENCE_S)
    append(log, block(acknowledged(1)))
    names = Names(beside)
    found: list[tuple[str, str]] = []
    looking = threading.Thread(target=lambda: found.append(names.find(7, 1)))
    looking.start()
    time.sleep(0.1)
    append(log, block(deleted(7, "late")))
    looking.join()
    assert found == [("/", "late")]


def test_a_name_that_is_nowhere_is_an_error(log: SqliteLog, beside: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "WAIT_S", 0.1)
    append(log, block(acknowledged(1)))
    with pytest.raises(LogError, match="by number 7"):
        Names(beside).find(7, 1)


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_block_is_counted_once(log: SqliteLog, beside: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, *[block(acknowledged(5))] * 200)
    planner = Planner(beside)
    first = planner.plan(1, 201, max_rows=1 << 62, max_bytes=1 << 62, min_partitions=3)
    assert (first.rows, len(first.partitions)) == (1_000, 3)

    def refuse(position: int, end: int) -> Iterator[tuple[int, bytes]]:
        raise AssertionError("it was read again")

    monkeypatch.setattr(beside, "blocks", refuse)
    assert planner.plan(1, 201, max_rows=1 << 62, max_bytes=1 << 62, min_partitions=3) == first
    assert planner.plan(50, 201, max_rows=12, max_bytes=1 << 62, min_partitions=1).rows == 10
