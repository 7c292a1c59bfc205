"""The names of queues and the plans that are made, from a log that a broker is writing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smista import records
from smista.bulk import names as names_module
from smista.bulk.names import Names
from smista.bulk.plans import Planner
from smista.core.counters import Counters
from smista.core.settings import DEFAULT
from smista.log import LogView, SqliteLog
from smista.log.errors import LogError
from smista.records.queue_declared import QueueDeclared
from smista.records.queue_deleted import QueueDeleted
from tests.waiting import PATIENCE_S


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    log = SqliteLog.open(tmp_path, reserve_bytes=0)
    yield log
    log.close()


@pytest.fixture
def beside(log: SqliteLog) -> LogView:
    return log.location().open()


def block(*parts: bytes) -> bytes:
    return b"".join([records.blocks.head(1), *parts])


def acknowledged(count: int) -> bytes:
    return records.acknowledged.encode(1, 1, list(range(count)))


def declared(number: int, name: str) -> bytes:
    record = QueueDeclared(number, "/", name, DEFAULT, 0, 0, False, Counters())
    return records.queue_declared.encode(record)


def deleted(number: int, name: str) -> bytes:
    return records.queue_deleted.encode(QueueDeleted(number, "/", name, 0))


def append(log: SqliteLog, *blocks: bytes) -> None:
    for each in blocks:
        log.append(log.next_position, each)


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_name_that_the_broker_told_is_known(log: SqliteLog, beside: LogView) -> None:
    names = Names(beside)
    names.learn([(7, "/", "orders")])
    assert names.find(7, 1) == ("/", "orders")


@pytest.mark.parametrize("record", [declared, deleted])
def test_a_name_is_looked_for_in_the_blocks_behind(log: SqliteLog, beside: LogView, record: object) -> None:
    assert callable(record)
    append(log, block(), block(acknowledged(1)), block(record(7, "old"), record(8, "older")), block(acknowledged(1)))
    names = Names(beside)
    assert names.find(7, 2) == ("/", "old")
    assert names.find(8, 1) == ("/", "older")


def test_a_name_that_is_on_its_way_is_waited_for(
    log: SqliteLog, beside: LogView, monkeypatch: pytest.MonkeyPatch
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


def test_a_name_that_is_nowhere_is_an_error(log: SqliteLog, beside: LogView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "WAIT_S", 0.1)
    append(log, block(acknowledged(1)))
    with pytest.raises(LogError, match="by number 7"):
        Names(beside).find(7, 1)


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_block_is_counted_once(log: SqliteLog, beside: LogView, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, *[block(acknowledged(5))] * 200)
    planner = Planner(beside)
    first = planner.plan(1, 201, max_rows=1 << 62, max_bytes=1 << 62, min_partitions=3)
    assert (first.rows, len(first.partitions)) == (1_000, 3)

    def refuse(position: int, end: int) -> Iterator[tuple[int, bytes]]:
        raise AssertionError("it was read again")

    monkeypatch.setattr(beside, "blocks", refuse)
    assert planner.plan(1, 201, max_rows=1 << 62, max_bytes=1 << 62, min_partitions=3) == first
    assert planner.plan(50, 201, max_rows=12, max_bytes=1 << 62, min_partitions=1).rows == 10
