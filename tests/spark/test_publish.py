"""Publishing from Spark: all rows of a batch or none, and once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.queues import Queues, bodies, forget_commit
from tests.spark.streams import ended


class Table:
    """Rows to publish, and a folder of them that grows."""

    def __init__(self, spark: SparkSession, queues: Queues, folder: Path) -> None:
        self.spark = spark
        self.queues = queues
        self.folder = folder

    def rows(self, count: int, start: int = 0) -> DataFrame:
        texts = [(body.decode(),) for body in bodies(count, start)]
        return self.spark.createDataFrame(texts, "body string").repartition(3)

    def publish(self, frame: DataFrame, **options: Any) -> None:
        named = {"endpoint": self.queues.url}
        frame.write.format("smista").options(**(named | options)).mode("append").save()

    def add(self, count: int, start: int = 0) -> None:
        self.rows(count, start).write.mode("append").json(str(self.folder / "rows"))

    def follow(self, queue: str) -> None:
        frame = self.spark.readStream.schema("body string").json(str(self.folder / "rows"))
        writer = frame.writeStream.format("smista").option("endpoint", self.queues.url).option("queue", queue)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        ended(writer.trigger(availableNow=True).start)


@pytest.fixture
def table(spark: SparkSession, queues: Queues, tmp_path: Path) -> Table:
    return Table(spark, queues, tmp_path)


def test_every_row_becomes_a_message(table: Table) -> None:
    queue = table.queues.new()
    table.publish(table.rows(100), queue=queue)
    assert sorted(table.queues.take_all(queue)) == bodies(100)


def test_columns_say_more_of_a_message(table: Table) -> None:
    queue = table.queues.new()
    rows = table.spark.createDataFrame(
        [(b"one", "id-1", 5, {"colour": "red"}, "text/plain"), (b"two", "id-1", 5, {}, "text/plain")],
        "value binary, id string, priority int, headers map<string,string>, content_type string",
    )
    table.publish(rows.coalesce(1), queue=queue)
    [delivery] = table.queues.client.receive(queue, 10)
    assert (delivery.body, delivery.priority, delivery.headers) == (b"one", 5, {"colour": "red"})
    assert delivery.content_type == "text/plain"


def test_rows_go_through_an_exchange_by_their_routing_key(table: Table) -> None:
    queue = table.queues.new()
    exchange = f"to-{queue}"
    table.queues.client.declare_exchange(exchange, "direct")
    table.queues.client.bind(exchange, queue, key="eu")
    rows = table.spark.createDataFrame([("one", "eu"), ("two", "us")], "body string, routing_key string")
    table.publish(rows, exchange=exchange)
    assert table.queues.take_all(queue) == [b"one"]


def test_a_stream_publishes_each_batch_once_also_when_it_is_repeated(table: Table) -> None:
    queue = table.queues.new()
    table.add(50)
    table.follow(queue)
    table.add(50, start=50)
    table.follow(queue)
    forget_commit(table.folder / "checkpoint", 1)
    table.follow(queue)
    assert sorted(table.queues.take_all(queue)) == bodies(100)


def test_a_job_that_has_a_name_publishes_once(table: Table) -> None:
    queue = table.queues.new()
    for _ in range(2):
        table.publish(table.rows(10), queue=queue, jobId=f"job-{queue}", batchId=0)
    assert sorted(table.queues.take_all(queue)) == bodies(10)


def test_no_rows_are_nothing_to_do(table: Table) -> None:
    queue = table.queues.new()
    table.publish(table.rows(10).where("false"), queue=queue)
    assert table.queues.take_all(queue) == []


def test_when_a_task_fails_nothing_is_published(table: Table) -> None:
    queue = table.queues.new()
    rows = table.rows(10).union(table.spark.range(1).selectExpr("raise_error('broken row') AS body"))
    with pytest.raises(PySparkException, match="broken row"):
        table.publish(rows, queue=queue)
    assert table.queues.take_all(queue) == []


@pytest.mark.parametrize(
    ("columns", "cure"),
    [
        (["body", "1 AS colour"], "There is no column colour to publish; drop or rename it. Known are: body "),
        (["1 AS body"], "body is int; cast them"),
        (["body", "body AS value"], "one column body, or value, and not both"),
        (["'x' AS id"], "need one column body"),
        (["body", "map('a', 1) AS headers"], "headers is map<string,int>; cast them"),
    ],
)
def test_rows_that_cannot_be_published_are_refused_by_name(table: Table, columns: list[str], cure: str) -> None:
    queue = table.queues.new()
    with pytest.raises(PySparkException) as caught:
        table.publish(table.rows(3).selectExpr(*columns), queue=queue)
    assert cure in str(caught.value)
    assert table.queues.take_all(queue) == []


def test_where_to_publish_has_to_be_said(table: Table) -> None:
    with pytest.raises(PySparkException, match="Publishing needs option queue or option exchange"):
        table.publish(table.rows(3))


def test_a_queue_that_is_not_there_is_named(table: Table) -> None:
    with pytest.raises(PySparkException, match="nowhere"):
        table.publish(table.rows(3), queue="nowhere")


def test_a_queue_is_not_overwritten(table: Table) -> None:
    frame = table.rows(3).write.format("smista").option("endpoint", table.queues.url).option("queue", "any")
    with pytest.raises(PySparkException, match="A queue cannot be overwritten"):
        frame.mode("overwrite").save()
