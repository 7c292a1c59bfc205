"""Mode log: what happened to messages, as often as one likes, without touching a queue."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.queues import Queues, bodies, forget_commit
from tests.spark.streams import ended


class Log:
    def __init__(self, spark: SparkSession, queues: Queues) -> None:
        self.spark = spark
        self.queues = queues

    def read(self, **options: Any) -> DataFrame:
        return self.spark.read.format("smista").options(**({"endpoint": self.queues.url} | options)).load()

    def follow(self, folder: Path, **options: Any) -> dict[int, list[bytes]]:
        """Run a stream over what is there, on a checkpoint in this folder; the bodies of its batches."""
        found: dict[int, list[bytes]] = {}

        def keep(batch: DataFrame, number: int) -> None:
            found[number] = sorted(row.body for row in batch.select("body").collect())

        named = {"endpoint": self.queues.url, "includeBody": "true", "kinds": "enqueued"}
        frame = self.spark.readStream.format("smista").options(**(named | options)).load()
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "checkpoint"))
        ended(writer.trigger(availableNow=True).start)
        return found

    @property
    def next(self) -> int:
        [shard] = self.queues.get("/v1/log/range")["shards"]
        return int(shard["next"])


def every(batches: dict[int, list[bytes]]) -> list[bytes]:
    return [body for number in sorted(batches) for body in batches[number]]


@pytest.fixture
def log(spark: SparkSession, queues: Queues) -> Log:
    return Log(spark, queues)


def test_the_log_tells_what_happened_to_each_message(log: Log) -> None:
    queue = log.queues.new()
    log.queues.client.publish(queue, b"one", headers={"colour": "red"}, priority=3)
    [delivery] = log.queues.client.receive(queue, consumer="tests")
    delivery.ack()
    rows = log.read(queue=queue, includeBody="true").orderBy("position", "index").collect()
    assert [row.kind for row in rows] == ["enqueued", "delivered", "acknowledged"]
    first = rows[0]
    assert (first.queue, first.body, first.headers, first.priority) == (queue, b"one", {"colour": "red"}, 3)
    assert first.message_id == delivery.id
    assert abs(first.at - datetime.now(UTC).replace(tzinfo=None)) < timedelta(minutes=5)
    assert rows[1].consumer == "tests"
    assert {(row.shard, row.sequence) for row in rows} == {(0, first.sequence)}


def test_reading_takes_nothing_from_the_queue(log: Log) -> None:
    queue = log.queues.new(bodies(20))
    assert log.read(queue=queue).count() == 20
    assert log.queues.counts(queue) == (20, 0)


def test_columns_and_kinds_are_what_was_asked_for(log: Log) -> None:
    queue = log.queues.new(bodies(20))
    frame = log.read(queue=queue, columns="body,kind,position", kinds="enqueued")
    assert frame.columns == ["body", "kind", "position"]
    assert sorted(row.body for row in frame.collect()) == bodies(20)
    assert "body" not in log.read(queue=queue).columns
    assert log.read(queue=queue, kinds="acknowledged,expired").count() == 0


def test_queues_are_chosen_by_pattern(log: Log) -> None:
    mine = [log.queues.new(bodies(3)), log.queues.new(bodies(4))]
    rows = log.read(queue=",".join(mine), kinds="enqueued").groupBy("queue").count().collect()
    assert {row.queue: row["count"] for row in rows} == {mine[0]: 3, mine[1]: 4}
    assert log.read(queue="orders-*", kinds="enqueued").select("queue").distinct().count() >= 2


def test_a_range_of_positions_or_of_time_is_read(log: Log) -> None:
    queue = log.queues.new(bodies(5))
    middle = log.next
    time.sleep(0.02)
    log.queues.put(queue, bodies(7, start=5))
    mine: dict[str, Any] = {"queue": queue, "kinds": "enqueued"}
    # By the broker's clock, which is not that of the machine: somewhere in the pause.
    [found] = log.read(**mine, startingOffsets=middle).selectExpr("min(unix_millis(at)) AS at").collect()
    middle_at = datetime.fromtimestamp((found.at - 10) / 1000, UTC)
    assert log.read(**mine, endingOffsets=middle).count() == 5
    assert log.read(**mine, startingOffsets=middle).count() == 7
    assert log.read(**mine, startingOffsets=json.dumps({"0": middle})).count() == 7
    assert log.read(**mine, startingTimestamp=middle_at.isoformat()).count() == 7
    assert log.read(**mine, endingTimestamp=int(middle_at.timestamp() * 1000)).count() == 5
    assert log.read(**mine, startingOffsets="latest").count() == 0
    assert log.read(**mine, startingOffsets=middle, endingOffsets=middle - 1).count() == 0


def test_a_frame_reads_the_same_however_often_it_is_computed(log: Log) -> None:
    queue = log.queues.new(bodies(5))
    frame = log.read(queue=queue)
    assert frame.count() == 5
    log.queues.put(queue, bodies(5))
    assert frame.count() == 5
    assert log.read(queue=queue).count() == 10


def test_sql_reads_the_log_without_a_line_of_python(log: Log) -> None:
    queue = log.queues.new(bodies(5))
    view = f"CREATE OR REPLACE TEMPORARY VIEW mine USING smista OPTIONS (endpoint '{log.queues.url}', queue '{queue}')"
    log.spark.sql(view)
    assert log.spark.sql("SELECT count(*) AS n FROM mine WHERE kind = 'enqueued'").collect()[0].n == 5


def test_a_stream_goes_on_where_it_was(log: Log, tmp_path: Path) -> None:
    queue = log.queues.new(bodies(100))
    assert every(log.follow(tmp_path, queue=queue)) == bodies(100)
    assert every(log.follow(tmp_path, queue=queue)) == []
    log.queues.put(queue, bodies(50, start=100))
    assert every(log.follow(tmp_path, queue=queue)) == bodies(50, start=100)


def test_a_batch_takes_no_more_rows_than_it_may(log: Log, tmp_path: Path) -> None:
    queue = log.queues.new()
    start = log.next
    for number in range(6):
        log.queues.put(queue, bodies(10, start=10 * number))
    batches = log.follow(tmp_path, queue=queue, startingOffsets=start, maxRowsPerTrigger=20)
    assert len(batches) >= 3
    assert all(len(batch) <= 20 for batch in batches.values())
    assert every(batches) == bodies(60)


def test_a_batch_is_the_same_when_it_is_repeated(log: Log, tmp_path: Path) -> None:
    """Also the first, and also one that began at the end of the log: that end has moved on since."""
    queue = log.queues.new(bodies(5))
    assert every(log.follow(tmp_path, queue=queue, startingOffsets="latest")) == []
    log.queues.put(queue, bodies(10))
    first = log.follow(tmp_path, queue=queue, startingOffsets="latest")
    [number] = [number for number, rows in first.items() if rows]
    assert first[number] == bodies(10)
    log.queues.put(queue, bodies(3))
    forget_commit(tmp_path / "checkpoint", number)
    again = log.follow(tmp_path, queue=queue, startingOffsets="latest")
    assert again[number] == first[number]
    assert again[number + 1] == bodies(3)


def test_a_first_batch_is_the_same_when_it_is_repeated(log: Log, tmp_path: Path) -> None:
    queue = log.queues.new(bodies(5))
    first = log.follow(tmp_path, queue=queue)
    log.queues.put(queue, bodies(3))
    forget_commit(tmp_path / "checkpoint", 0)
    again = log.follow(tmp_path, queue=queue)
    assert again[0] == first[0] == bodies(5)
    assert again[1] == bodies(3)


def test_a_checkpoint_of_another_query_is_refused(log: Log, tmp_path: Path) -> None:
    log.follow(tmp_path, queue=log.queues.new(bodies(5)))
    with pytest.raises(StreamingQueryException, match="Give each query a checkpointLocation of its own"):
        log.follow(tmp_path, queue=log.queues.new(bodies(5)))


def test_a_schema_that_does_not_fit_is_refused(log: Log) -> None:
    reader = log.spark.read.format("smista").option("endpoint", log.queues.url)
    with pytest.raises(PySparkException, match=r"Leave out \.schema"):
        reader.schema("position STRING").load().count()


def test_no_broker_is_told_with_its_address(log: Log) -> None:
    with pytest.raises(PySparkException, match=r"No broker answers at http://127\.0\.0\.1:1 .* Set option endpoint"):
        log.read(endpoint="127.0.0.1:1").count()


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"topic": "orders"}, "Option topic is not known for reading the log. Its options: columns, "),
        ({"consumer": "me"}, "Option consumer does not go with reading the log"),
        ({"columns": "payload"}, "Option columns names payload, which is not there. The columns are: shard, "),
        ({"mode": "consume", "queue": "orders"}, "Mode consume is for spark.readStream"),
        ({"kinds": "published"}, "published"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_by_name(log: Log, options: dict[str, str], cure: str) -> None:
    with pytest.raises((AnalysisException, PySparkException)) as caught:
        log.read(**options).count()
    assert cure in str(caught.value)
