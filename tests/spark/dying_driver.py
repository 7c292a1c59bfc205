"""A driver that kills itself, JVM and all, in one moment of a micro-batch; a program of `test_crashes`.

    python -m tests.spark.dying_driver URL QUEUE FOLDER MOMENT

It consumes the queue into one Parquet folder per batch id, on a checkpoint in FOLDER, and ends by itself. The moments
are those of `MOMENTS`; `never` lives to the end. What is to die is written to FOLDER/pids, for the processes that Spark
starts for the reader.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from smista.spark import session
from smista.spark.claim_reader import ClaimStreamReader
from smista.spark.source import SmistaSource
from tests.spark.streams import ended

MOMENTS = ("after the claim", "after the offset log", "while reading", "after the sink", "after the commit log")
MOMENT, FOLDER = "SMISTA_TEST_MOMENT", "SMISTA_TEST_FOLDER"


def die(moment: str) -> None:
    if os.environ[MOMENT] != moment:
        return
    pids = (Path(os.environ[FOLDER]) / "pids").read_text().split()
    for pid in [*map(int, pids), os.getpid()]:
        os.kill(pid, signal.SIGKILL)


class DyingReader(ClaimStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if start["claim"]:
            die("after the commit log")
        end = super().latestOffset(start, limit)
        die("after the claim")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        die("after the offset log")
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch.slice(0, 10)
            die("while reading")
            yield batch.slice(10)


class DyingSource(SmistaSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return DyingReader(self._given.consuming(), schema)


def main(url: str, queue: str, folder: str, moment: str) -> None:
    os.environ[MOMENT], os.environ[FOLDER] = moment, folder
    spark = session(
        "dying", master="local[2]", conf={"spark.sql.shuffle.partitions": "1", "spark.smista.niceness": "0"}
    )
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    (Path(folder) / "pids").write_text(f"{gateway.proc.pid} {os.getpid()}")
    # By the name it has elsewhere: classes of the program itself would be pickled as a whole.
    from tests.spark.dying_driver import DyingSource as Registered

    spark.dataSource.register(Registered)
    options = {"mode": "consume", "queue": queue, "consumer": "spark", "endpoint": url, "maxRowsPerTrigger": "300"}

    def keep(batch: DataFrame, number: int) -> None:
        batch.select("body").write.mode("overwrite").parquet(f"{folder}/rows/batch={number}")
        die("after the sink")

    writer = spark.readStream.format("dying").options(**options).load().writeStream.foreachBatch(keep)
    ended(writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
