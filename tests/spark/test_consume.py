"""Mode consume: what was processed is acknowledged, what was not comes again, and nothing is in between."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.queues import Queues, bodies, forget_commit
from tests.spark.streams import ended
from tests.waiting import eventually

Batch = Callable[[DataFrame, int], None]


class Consumer:
    """A query that consumes one queue; started as often as one likes on the same checkpoint."""

    def __init__(self, spark: SparkSession, queues: Queues, queue: str, folder: Path) -> None:
        self.spark = spark
        self.queues = queues
        self.queue = queue
        self.checkpoint = folder / "checkpoint"
        self.rows: dict[int, list[bytes]] = {}
        """The bodies of each batch, by its id, as an idempotent sink keeps them."""

    def keep(self, batch: DataFrame, number: int) -> None:
        self.rows[number] = [row.body for row in batch.select("body").collect()]

    def start(self, sink: Batch | None = None, *, ends: bool = True, **options: Any) -> StreamingQuery:
        named = {"mode": "consume", "queue": self.queue, "consumer": "spark", "endpoint": self.queues.url}
        frame = self.spark.readStream.format("smista").options(**(named | options)).load()
        writer = frame.writeStream.foreachBatch(sink or self.keep).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**({"availableNow": True} if ends else {"processingTime": "0 seconds"})).start()

    def run(self, sink: Batch | None = None, **options: Any) -> StreamingQuery:
        return ended(lambda: self.start(sink, **options))

    @property
    def all_rows(self) -> list[bytes]:
        return sorted(body for batch in self.rows.values() for body in batch)


@pytest.fixture
def consumer(spark: SparkSession, queues: Queues, tmp_path: Path) -> Consumer:
    return Consumer(spark, queues, queues.new(bodies(500)), tmp_path)


def refuse(batch: DataFrame, number: int) -> None:
    raise RuntimeError("the sink is down")


def test_a_query_that_ends_by_itself_leaves_nothing_in_flight(consumer: Consumer) -> None:
    query = consumer.run(maxRowsPerTrigger=200)
    assert [len(consumer.rows[number]) for number in sorted(consumer.rows)] == [200, 200, 100]
    assert consumer.all_rows == bodies(500)
    assert consumer.queues.counts(consumer.queue) == (0, 0)
    assert query.lastProgress is not None
    assert json.loads(query.lastProgress["sources"][0]["latestOffset"])["ready"] == 0


def test_the_last_batch_before_a_pause_is_acknowledged_while_the_query_waits(consumer: Consumer) -> None:
    query = consumer.start(ends=False)
    try:
        eventually(lambda: consumer.queues.counts(consumer.queue) == (0, 0))
        consumer.queues.put(consumer.queue, bodies(10, start=500))
        eventually(lambda: len(consumer.all_rows) == 510)
        eventually(lambda: consumer.queues.counts(consumer.queue) == (0, 0))
    finally:
        query.stop()
    assert consumer.all_rows == bodies(510)


def test_rows_are_the_same_however_often_a_batch_is_read(consumer: Consumer) -> None:
    seen: list[tuple[int, list[bytes]]] = []

    def twice(batch: DataFrame, number: int) -> None:
        rows = batch.select("body", "message_id")
        seen.append((rows.count(), [row.body for row in rows.collect()]))

    consumer.run(twice, maxRowsPerTrigger=300)
    assert [count for count, _ in seen] == [300, 200]
    assert sorted(body for _, found in seen for body in found) == bodies(500)


def test_a_batch_whose_sink_failed_comes_again_as_it_was(consumer: Consumer) -> None:
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        consumer.run(refuse, maxRowsPerTrigger=300)
    assert consumer.queues.counts(consumer.queue) == (200, 300)
    consumer.run(maxRowsPerTrigger=100)
    assert len(consumer.rows[0]) == 300
    assert consumer.all_rows == bodies(500)
    assert consumer.queues.counts(consumer.queue) == (0, 0)


def test_what_was_claimed_by_a_driver_that_died_before_it_noted_that_is_read(consumer: Consumer) -> None:
    claims = f"/v1/queues/{consumer.queue}/claims"
    made = consumer.queues.post(claims, consumer="spark", session="dead", after=0, max_rows=1000)
    assert made["rows"] == 500
    consumer.queues.post(f"{claims}/spark/release", session="dead", after=made["number"])
    consumer.run()
    assert consumer.all_rows == bodies(500)
    assert consumer.queues.counts(consumer.queue) == (0, 0)


def test_a_claim_that_ran_out_is_an_error_and_its_messages_come_again(consumer: Consumer) -> None:
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        consumer.run(refuse, leaseMs=1000)
    eventually(lambda: consumer.queues.counts(consumer.queue) == (500, 0))
    with pytest.raises(StreamingQueryException, match=r"Claim 1 of consumer 'spark' .* Raise leaseMs"):
        consumer.run()
    assert consumer.rows == {}
    consumer.run(failOnDataLoss="false")
    assert consumer.all_rows == bodies(500)
    assert consumer.queues.counts(consumer.queue) == (0, 0)


def test_a_second_query_of_the_same_consumer_is_refused(consumer: Consumer, tmp_path: Path) -> None:
    first = consumer.start(ends=False)
    try:
        eventually(lambda: consumer.queues.counts(consumer.queue) == (0, 0))
        other = Consumer(consumer.spark, consumer.queues, consumer.queue, tmp_path / "other")
        consumer.queues.put(consumer.queue, bodies(10, start=500))
        with pytest.raises(StreamingQueryException, match=r"Consumer 'spark' of queue .* is in use by session"):
            other.run()
        assert other.rows == {}
        eventually(lambda: len(consumer.all_rows) == 510)
        assert first.isActive
    finally:
        first.stop()


def test_a_batch_waits_for_enough_rows_but_not_for_ever(consumer: Consumer) -> None:
    came_at_s: list[float] = []

    def keep(batch: DataFrame, number: int) -> None:
        looked_at_s = time.monotonic()
        consumer.keep(batch, number)
        # Spark may have a batch without rows first.
        if consumer.all_rows:
            came_at_s.append(looked_at_s)

    started_s = time.monotonic()
    query = consumer.start(keep, ends=False, minRowsPerTrigger=600, maxRowsPerTrigger=1000, maxTriggerDelay="8s")
    try:
        eventually(lambda: came_at_s and len(consumer.all_rows) == 500)
        assert came_at_s[0] - started_s >= 4
    finally:
        query.stop()


def test_batches_without_rows_pass(consumer: Consumer) -> None:
    """A query with state has a last batch of no rows, to let go of what is over."""
    named = {"mode": "consume", "queue": consumer.queue, "consumer": "windows", "endpoint": consumer.queues.url}
    frame = consumer.spark.readStream.format("smista").options(**named).load()
    counted = frame.withWatermark("created_at", "0 seconds").groupBy("created_at").count()
    found: list[int] = []

    def keep(batch: DataFrame, number: int) -> None:
        found.append(sum(row["count"] for row in batch.collect()))

    writer = counted.writeStream.foreachBatch(keep).option("checkpointLocation", str(consumer.checkpoint))
    ended(writer.outputMode("append").trigger(availableNow=True).start)
    assert len(found) == 2
    assert consumer.queues.counts(consumer.queue) == (0, 0)


def test_a_checkpoint_of_another_queue_is_refused(consumer: Consumer) -> None:
    consumer.run()
    consumer.queue = consumer.queues.new(bodies(5))
    with pytest.raises(StreamingQueryException, match="Give each query a checkpointLocation of its own"):
        consumer.run()
    assert consumer.queues.counts(consumer.queue) == (5, 0)


def test_a_queue_that_is_not_there_is_named(consumer: Consumer) -> None:
    consumer.queue = "nowhere"
    with pytest.raises(StreamingQueryException, match="nowhere"):
        consumer.run()


def test_what_was_acknowledged_is_not_read_again_as_nothing(consumer: Consumer) -> None:
    """The entry of the commit log is gone, the messages too: that is an error, not an empty batch."""
    consumer.run()
    forget_commit(consumer.checkpoint, 0)
    with pytest.raises(StreamingQueryException, match=r"Claim 1 of consumer 'spark' .* is over"):
        consumer.run()
