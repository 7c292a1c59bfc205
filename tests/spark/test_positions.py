"""Which positions of the log a query reads, and what it says when they are gone or another log's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from smista.spark import columns
from smista.spark.errors import BrokerRefused, CheckpointForeign, LogPositionLost
from smista.spark.log_reader import LogPartition, LogStreamReader
from smista.spark.source import SmistaSource

BLOCK_ROWS = 10


class Broker:
    """Has a log of blocks of ten rows each, from `first` up to `next`."""

    place: dict[str, str] = {}  # noqa: RUF012  # never changed

    def __init__(self, first: int, end: int) -> None:
        self.range = {"log_id": "a", "first": first, "next": end}
        self.schema = columns.to_arrow(SmistaSource({"columns": "position"}).schema())

    def get(self, *path: str, query: dict[str, Any], patience_s: float = 0) -> dict[str, Any]:
        if path[1] == "range":
            return self.range
        start, end = query["from"], query["to"]
        end = min(end, start + max(1, query.get("max_rows", 1 << 40) // BLOCK_ROWS))
        parts = [{"from": start, "to": end}]
        return {"from": start, "to": end, "rows": BLOCK_ROWS * (end - start), "partitions": parts}

    def batches(self, *path: str, query: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        if query["from"] < self.range["first"]:
            raise BrokerRefused("log_position_dropped", "It is gone.")
        for position in range(query["from"], query["to"]):
            yield pa.record_batch([pa.array([position] * BLOCK_ROWS)], schema=self.schema)


def reader(broker: Broker, **options: str) -> LogStreamReader:
    source = SmistaSource({"columns": "position", **options})
    made = source.streamReader(source.schema())
    assert isinstance(made, LogStreamReader)
    made._ranges._wire = broker  # type: ignore[assignment]  # played
    return made


def rows(query: LogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    partitions = query.partitions(start, end)
    found = {row for part in partitions for batch in query.read(part) for row in batch.column(0).to_pylist()}
    return sorted(found)


def test_the_first_batch_begins_where_the_query_began_also_when_it_is_repeated() -> None:
    broker = Broker(3, 8)
    query = reader(broker, startingOffsets="latest")
    start = query.initialOffset()
    first = query.latestOffset(start, ReadMaxRows(100))
    assert rows(query, start, first) == []
    broker.range["next"] = 10
    second = query.latestOffset(first, ReadMaxRows(100))
    assert rows(query, first, second) == [8, 9]
    broker.range["next"] = 20
    again = reader(broker, startingOffsets="latest")
    assert again.initialOffset() == start
    assert rows(again, start, first | {"position": 10}) == [8, 9]


def test_a_query_takes_as_much_as_it_may_unless_all_is_asked_for() -> None:
    query = reader(Broker(1, 9), maxRowsPerTrigger="30")
    first = query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    assert first["position"] == 4
    assert query.latestOffset(first, ReadAllAvailable())["position"] == 9


def test_a_query_that_ends_by_itself_ends_where_the_log_ended() -> None:
    broker = Broker(1, 5)
    query = reader(broker)
    query.prepareForTriggerAvailableNow()
    broker.range["next"] = 9
    end = query.latestOffset(query.initialOffset(), ReadMaxRows(100))
    assert end["position"] == 5
    assert query.latestOffset(end, ReadMaxRows(100)) is end


def test_what_the_log_no_longer_has_is_an_error_unless_that_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    broker = Broker(1, 20)
    query = reader(broker, maxRowsPerTrigger="50")
    start = query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    broker.range["first"] = 10
    sentence = "no longer has positions 6 to 9: it begins at 10.* log_retention_ms .* set option failOnDataLoss=false"
    with pytest.raises(LogPositionLost, match=sentence):
        query.latestOffset(start, ReadMaxRows(100))
    with pytest.raises(LogPositionLost, match="no longer has positions 6 to 9"):
        query.partitions(start, start | {"position": 20})
    with pytest.raises(LogPositionLost, match="no longer has positions 6 to 9"):
        list(query.read(LogPartition(6, 20)))
    careless = reader(broker, failOnDataLoss="false")
    end = careless.latestOffset(start, ReadMaxRows(1000))
    assert rows(careless, start, end) == list(range(10, 20))
    assert {row for batch in careless.read(LogPartition(6, 12)) for row in batch.column(0).to_pylist()} == {10, 11}
    assert list(careless.read(LogPartition(3, 8))) == []
    assert "positions 6 to 9 of the log are gone and left out" in capsys.readouterr().err


def test_a_checkpoint_of_another_log_is_refused() -> None:
    broker = Broker(1, 5)
    query = reader(broker)
    end = query.latestOffset(query.initialOffset(), ReadMaxRows(100))
    broker.range["log_id"] = "b"
    with pytest.raises(CheckpointForeign, match="the log of another broker"):
        reader(broker).latestOffset(end, ReadMaxRows(100))
    with pytest.raises(CheckpointForeign, match="the log of another broker"):
        reader(broker).partitions(query.initialOffset(), end)


def test_a_checkpoint_ahead_of_the_log_is_refused() -> None:
    broker = Broker(1, 50)
    query = reader(broker)
    end = query.latestOffset(query.initialOffset(), ReadMaxRows(100))
    broker.range["next"] = 5
    with pytest.raises(CheckpointForeign, match="data is older than the checkpoint"):
        query.latestOffset(end, ReadMaxRows(100))


@pytest.mark.parametrize("offset", [{}, {"claim": 4, "queue": "x", "consumer": "y"}, {"position": 3, "queue": "x"}])
def test_an_offset_of_another_source_is_refused(offset: dict[str, Any]) -> None:
    with pytest.raises(CheckpointForeign, match="checkpointLocation of its own"):
        reader(Broker(1, 5)).latestOffset(offset, ReadMaxRows(100))
