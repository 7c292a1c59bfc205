"""A job that runs wherever it is told to; a program of `test_clusters`.

    python -m tests.spark.cluster_job MASTER URL QUEUE FOLDER

Reads the log, consumes the queue with a task that fails at its first attempt, and publishes what it consumed to
QUEUE-copy; prints how many rows the log had.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.taskcontext import TaskContext

from smista.spark import session
from tests.spark.streams import ended


def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, and fail behind the first of them at the first attempt."""
    task = TaskContext.get()
    assert task is not None
    for batch in batches:
        yield batch
        if task.attemptNumber() == 0 and task.partitionId() == 0:
            raise RuntimeError("the first attempt fails")


def main(master: str, url: str, queue: str, folder: str) -> None:
    conf = {} if master.startswith("sc://") else {"spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false"}
    spark = session("job", master=master, conf=conf)
    log = spark.read.format("smista").option("endpoint", url).option("queue", queue).load()
    print("log", log.where("kind = 'enqueued'").count())
    options = {"endpoint": url, "mode": "consume", "queue": queue, "consumer": "spark", "minPartitions": "2"}
    frame = spark.readStream.format("smista").options(**options).load().select("body")
    if not master.startswith("sc://"):
        frame = DataFrame.mapInArrow(frame, stumble, "body binary")
    writer = frame.writeStream.format("smista").option("endpoint", url).option("queue", f"{queue}-copy")
    ended(writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
