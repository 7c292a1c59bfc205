"""Which positions of the log a query reads, and what it says when they are gone or another log's."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from smista.spark.errors import CheckpointForeign, LogPositionLost, WrongOption
from smista.spark.log_reader import LogPartition
from tests.spark.made_logs import MadeLog, MadeLogs, blocks, reader


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that finds nothing new says so at once."""
    monkeypatch.setattr("smista.spark.log_reader.IDLE_S", 0.0)


def one_log(first: int, end: int) -> MadeLogs:
    return MadeLogs({0: MadeLog(first, end)})


def of_shard_0(*positions: int) -> list[tuple[int, int]]:
    return [(0, position) for position in positions]


def test_the_first_batch_begins_where_the_query_began_also_when_it_is_repeated() -> None:
    logs = one_log(3, 8)
    query = reader(logs, startingOffsets="latest")
    start = query.initialOffset()
    first = query.latestOffset(start, ReadMaxRows(100))
    assert blocks(query, start, first) == []
    logs.by_shard[0].next = 10
    second = query.latestOffset(first, ReadMaxRows(100))
    assert blocks(query, first, second) == of_shard_0(8, 9)
    logs.by_shard[0].next = 20
    again = reader(logs, startingOffsets="latest")
    assert again.initialOffset() == start
    assert blocks(again, start, first | {"positions": {"0": 10}}) == of_shard_0(8, 9)


def test_an_offset_is_a_position_for_each_shard() -> None:
    logs = MadeLogs({0: MadeLog(1, 5), 1: MadeLog(1, 9, "b")})
    query = reader(logs)
    start = query.initialOffset()
    assert query.latestOffset(start, ReadMaxRows(1000)) == {
        "positions": {"0": 5, "1": 9},
        "logs": {"0": "a", "1": "b"},
        "queue": "*",
        "since": {"0": 1, "1": 1},
    }
    assert query.reportLatestOffset() == {"positions": {"0": 5, "1": 9}, "first": {"0": 1, "1": 1}}


def test_a_query_takes_as_much_as_it_may_unless_all_is_asked_for() -> None:
    query = reader(one_log(1, 9), maxRowsPerTrigger="30")
    first = query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    assert first["positions"] == {"0": 4}
    assert query.latestOffset(first, ReadAllAvailable())["positions"] == {"0": 9}


def test_what_a_short_backlog_leaves_is_for_the_long_one() -> None:
    logs = MadeLogs({0: MadeLog(1, 100), 1: MadeLog(1, 3), 2: MadeLog(1, 1)})
    query = reader(logs, maxRowsPerTrigger="500")
    first = query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    assert first["positions"] == {"0": 49, "1": 3, "2": 1}


def test_a_long_backlog_does_not_hold_up_other_shards() -> None:
    logs = MadeLogs({0: MadeLog(1, 1000), 1: MadeLog(1, 1000)})
    query = reader(logs, maxRowsPerTrigger="20")
    offset = query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    for _ in range(5):
        offset = query.latestOffset(offset, query.getDefaultReadLimit())
    assert offset["positions"] == {"0": 7, "1": 7}


def test_too_few_rows_of_all_shards_together_wait_for_more() -> None:
    logs = MadeLogs({0: MadeLog(1, 2), 1: MadeLog(1, 2)})
    query = reader(logs, startingOffsets="latest", minRowsPerTrigger="40")
    start = query.latestOffset(query.initialOffset(), ReadMaxRows(100))
    logs.by_shard[0].next = 4
    assert query.latestOffset(start, ReadMaxRows(100)) == start
    logs.by_shard[1].next = 4
    assert query.latestOffset(start, ReadMaxRows(100))["positions"] == {"0": 4, "1": 4}


def test_a_query_that_ends_by_itself_ends_where_the_log_ended() -> None:
    logs = one_log(1, 5)
    query = reader(logs)
    query.prepareForTriggerAvailableNow()
    logs.by_shard[0].next = 9
    logs.by_shard[1] = MadeLog(1, 4)
    end = query.latestOffset(query.initialOffset(), ReadMaxRows(100))
    assert end["positions"] == {"0": 5, "1": 1}
    assert query.latestOffset(end, ReadMaxRows(100)) is end


def test_a_shard_that_is_added_is_read_from_its_beginning() -> None:
    logs = one_log(1, 5)
    query = reader(logs, startingOffsets="latest")
    start = query.latestOffset(query.initialOffset(), ReadMaxRows(100))
    logs.by_shard[1] = MadeLog(1, 1)
    assert query.latestOffset(start, ReadMaxRows(100)) == start
    logs.by_shard[1].next = 4
    end = query.latestOffset(start, ReadMaxRows(100))
    assert end["positions"] == {"0": 5, "1": 4}
    assert blocks(query, start, end) == [(1, 1), (1, 2), (1, 3)]


def test_what_the_log_no_longer_has_is_an_error_unless_that_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    logs = one_log(1, 20)
    query = reader(logs, maxRowsPerTrigger="50")
    start = query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    logs.by_shard[0].first = 10
    lost = "of shard 0 no longer has positions 6 to 9"
    with pytest.raises(LogPositionLost, match=f"{lost}: it begins at 10.* log_retention_ms .* failOnDataLoss=false"):
        query.latestOffset(start, ReadMaxRows(100))
    with pytest.raises(LogPositionLost, match=lost):
        query.partitions(start, start | {"positions": {"0": 20}})
    with pytest.raises(LogPositionLost, match=lost):
        list(query.read(LogPartition(0, 6, 20)))
    careless = reader(logs, failOnDataLoss="false")
    end = careless.latestOffset(start, ReadMaxRows(1000))
    assert blocks(careless, start, end) == of_shard_0(*range(10, 20))
    read = {row for batch in careless.read(LogPartition(0, 6, 12)) for row in batch.column("position").to_pylist()}
    assert read == {10, 11}
    assert list(careless.read(LogPartition(0, 3, 8))) == []
    assert "positions 6 to 9 of the log of shard 0 are gone and left out" in capsys.readouterr().err


def test_a_log_that_is_gone_up_to_its_end_is_passed_over_once(capsys: pytest.CaptureFixture[str]) -> None:
    logs = MadeLogs({0: MadeLog(1, 5), 1: MadeLog(1, 5)})
    query = reader(logs, failOnDataLoss="false", startingOffsets='{"0": 5, "1": 2}', maxRowsPerTrigger="10")
    start = query.latestOffset(query.initialOffset(), ReadMaxRows(10))
    assert start["positions"] == {"0": 5, "1": 3}
    logs.by_shard[1].first = 5
    end = query.latestOffset(start, ReadMaxRows(10))
    assert end["positions"] == {"0": 5, "1": 5}
    assert blocks(query, start, end) == []
    assert query.latestOffset(end, ReadMaxRows(10)) == end
    assert "positions 3 to 4 of the log of shard 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "positions"),
    [
        ("earliest", {"0": 3, "1": 6}),
        ("latest", {"0": 9, "1": 8}),
        ('{"0": 4, "1": 7}', {"0": 4, "1": 7}),
        ('{"1": 7}', {"0": 3, "1": 7}),
    ],
)
def test_a_query_begins_at_a_place_in_each_log(option: str, positions: dict[str, int]) -> None:
    query = reader(MadeLogs({0: MadeLog(3, 9), 1: MadeLog(6, 8)}), startingOffsets=option)
    assert query.latestOffset(query.initialOffset(), ReadMaxRows(1000))["since"] == positions


def test_a_number_is_a_position_of_the_only_log() -> None:
    query = reader(one_log(1, 9), startingOffsets="4")
    assert query.latestOffset(query.initialOffset(), ReadMaxRows(1000))["since"] == {"0": 4}
    several = reader(MadeLogs({0: MadeLog(1, 9), 1: MadeLog(1, 9)}), startingOffsets="4")
    with pytest.raises(WrongOption, match="has 2 shards, and 4 could be a position in each"):
        several.latestOffset(several.initialOffset(), ReadMaxRows(1000))


def test_a_shard_that_is_not_there_is_refused() -> None:
    query = reader(one_log(1, 9), startingOffsets='{"7": 1}')
    with pytest.raises(WrongOption, match="The broker has no shard 7; it has 0"):
        query.latestOffset(query.initialOffset(), ReadMaxRows(1000))


def test_a_checkpoint_of_another_log_is_refused() -> None:
    logs = MadeLogs({0: MadeLog(1, 5), 1: MadeLog(1, 5)})
    query = reader(logs)
    end = query.latestOffset(query.initialOffset(), ReadMaxRows(100))
    for change in (lambda: setattr(logs.by_shard[1], "log_id", "b"), lambda: logs.by_shard.pop(1)):
        change()
        with pytest.raises(CheckpointForeign, match="the log of another broker"):
            reader(logs).latestOffset(end, ReadMaxRows(100))
        with pytest.raises(CheckpointForeign, match="the log of another broker"):
            reader(logs).partitions(query.initialOffset(), end)


def test_a_checkpoint_ahead_of_the_log_is_refused() -> None:
    logs = one_log(1, 50)
    query = reader(logs)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadMaxRows(100))
    logs.by_shard[0].next = 5
    with pytest.raises(CheckpointForeign, match="data is older than the checkpoint"):
        query.latestOffset(end, ReadMaxRows(100))
    with pytest.raises(CheckpointForeign, match="data is older than the checkpoint"):
        query.partitions(start, end)


@pytest.mark.parametrize(
    "offset", [{}, {"claim": 4, "queue": "x", "consumer": "y"}, {"positions": {"0": 3}, "queue": "x"}]
)
def test_an_offset_of_another_source_is_refused(offset: dict[str, Any]) -> None:
    with pytest.raises(CheckpointForeign, match="checkpointLocation of its own"):
        reader(one_log(1, 5)).latestOffset(offset, ReadMaxRows(100))
