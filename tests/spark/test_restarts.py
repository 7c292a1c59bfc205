"""The broker is killed while queries run; they wait for it and go on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from smista import Client
from tests.server_process import ServerProcess
from tests.spark.queues import Queues, bodies
from tests.waiting import SPARK_PATIENCE_S, eventually

COUNT = 2000


@pytest.mark.parametrize("mode", ["log", "consume"])
def test_a_query_goes_on_when_its_broker_was_killed(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    found: dict[int, list[bytes]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found[number] = [row.body for row in batch.select("body").collect()]

    def every() -> list[bytes]:
        return sorted(body for rows in list(found.values()) for body in rows)

    def has_come(count: int) -> bool:
        return len(every()) >= count

    with ServerProcess(tmp_path / "data").start() as server, Client(server.url) as client:
        queues = Queues(client, server.url)
        queue = queues.new(bodies(COUNT))
        extra = {"consumer": "spark"} if mode == "consume" else {"includeBody": "true", "kinds": "enqueued"}
        options = {"endpoint": server.url, "mode": mode, "queue": queue, "maxRowsPerTrigger": "200", **extra}
        frame = spark.readStream.format("smista").options(**options).load()
        query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            for at_least in (1, COUNT // 2, COUNT):
                eventually(
                    partial(has_come, at_least),
                    every_s=0.05,
                    patience_s=SPARK_PATIENCE_S,
                    as_long_as=lambda: query.isActive,
                    show=query.exception,
                )
                if at_least < COUNT:
                    server.kill()
                    server.restart()
            if mode == "consume":
                eventually(lambda: queues.counts(queue) == (0, 0), every_s=0.1, patience_s=SPARK_PATIENCE_S)
        finally:
            query.stop()
    assert every() == bodies(COUNT)
