"""Rows per second between the broker and Spark on local[2], each beside a loop over the client; and what a job that
reads the log at full speed costs those who publish and consume meanwhile.

Bodies are 1 KB. The broker, the process that reads its log, Spark's JVM and its Python workers share two cores.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from bench.http import Delays, pace
from bench.machine import percentile, spread
from smista import Client
from smista.spark import session
from smista.spark.pipelines.archive import archive
from smista.spark.pipelines.run import Run
from tests.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS = 5
ROWS = int(os.environ.get("SMISTA_TEST_BENCH_ROWS", "200000"))
ARCHIVED_ROWS = 4 * ROWS
"""A run of the archive takes two seconds to begin and end, whatever there is to do."""
LOOP_ROWS = 5_000
BODY = os.urandom(512).hex().encode()
PACED_S = 5.0


class Place:
    """A broker, a Spark session, and a folder."""

    def __init__(self, server: ServerProcess, spark: SparkSession, folder: Path) -> None:
        self.server = server
        self.spark = spark
        self.folder = folder
        self._count = 0

    def new(self, what: str) -> str:
        self._count += 1
        return f"{what}-{self._count}"

    def filled(self, rows: int = ROWS) -> str:
        """A queue with so many messages."""
        queue = self.new("queue")
        with Client(self.server.url) as client:
            client.declare_queue(queue)
            client.put_many(queue, (BODY for _ in range(rows)))
        return queue

    def log(self, queue: str) -> DataFrame:
        options = {"endpoint": self.server.url, "queue": queue, "kinds": "enqueued", "includeBody": "true"}
        return self.spark.read.format("smista").options(**options, minPartitions="2").load()


@contextlib.contextmanager
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="smista-bench-"))
    keep = ("--log-retention-bytes", str(8 << 30))
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
    try:
        with ServerProcess(folder / "data", *keep).start() as server:
            spark = session("bench", master="local[2]", conf=conf)
            spark.sparkContext.setLogLevel("OFF")
            try:
                yield Place(server, spark, folder)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(folder)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def to_nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


# -- by Spark ---------------------------------------------------------------------------------------------------------


def read_log(here: Place, queue: str) -> float:
    return ROWS / seconds(lambda: to_nothing(here.log(queue)))


def consume(here: Place) -> float:
    """From the first batch of a stream to its end; that a query takes seconds to begin is not counted."""
    queue = here.filled()
    options = {"endpoint": here.server.url, "queue": queue, "mode": "consume", "consumer": "bench"}
    stream = here.spark.readStream.format("smista").options(**options, minPartitions="2").load()
    begun: list[float] = []

    def take(frame: DataFrame, number: int) -> None:
        begun.append(time.perf_counter())
        to_nothing(frame)

    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(here.folder / here.new("state")))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    took = time.perf_counter() - begun[0]
    with Client(here.server.url) as client:
        assert client.stats(queue).depth == 0, "not everything was acknowledged"
    return ROWS / took


def archived(here: Place, queue: str) -> float:
    run = Run(endpoint=here.server.url, spark=here.spark, on_progress=lambda line: None)
    folder = here.folder / here.new("archive")
    took = seconds(lambda: archive(run, to=str(folder), queue=[queue]))
    return ARCHIVED_ROWS / took


def publish(here: Place, table: Path) -> float:
    queue = here.new("published")
    with Client(here.server.url) as client:
        client.declare_queue(queue)
    options = {"endpoint": here.server.url, "queue": queue}
    rows = here.spark.read.parquet(str(table)).select("body")
    took = seconds(lambda: rows.write.format("smista").options(**options).mode("append").save())
    with Client(here.server.url) as client:
        assert client.stats(queue).ready == ROWS
    return ROWS / took


# -- by a loop --------------------------------------------------------------------------------------------------------


def loop_consume(here: Place) -> float:
    queue = here.filled(LOOP_ROWS)

    def work() -> None:
        for _ in range(LOOP_ROWS):
            [message] = client.receive(queue)
            message.ack()

    with Client(here.server.url) as client:
        return LOOP_ROWS / seconds(work)


def loop_browse(here: Place) -> float:
    """The nearest there is to reading the log: looking at what lies in a queue, a page at a time."""
    queue = here.filled(LOOP_ROWS)

    def work() -> None:
        count = sum(1 for _ in client.browse(queue))
        assert count == LOOP_ROWS

    with Client(here.server.url) as client:
        return LOOP_ROWS / seconds(work)


def loop_publish(here: Place) -> float:
    queue = here.new("looped")

    def work() -> None:
        for _ in range(LOOP_ROWS):
            client.publish(queue, body=BODY)

    with Client(here.server.url) as client:
        client.declare_queue(queue)
        return LOOP_ROWS / seconds(work)


# -- beside others ----------------------------------------------------------------------------------------------------


def beside(here: Place, queue: str) -> tuple[Delays, Delays, int]:
    """Delays at a steady pace, alone and beside a job that reads the log again and again; and how many rows it read."""
    alone = uvloop.run(pace(here.server.url, PACED_S))
    is_over = threading.Event()
    rows = 0

    def read() -> None:
        nonlocal rows
        while not is_over.is_set():
            to_nothing(here.log(queue))
            rows += ROWS

    reading = threading.Thread(target=read)
    reading.start()
    together = uvloop.run(pace(here.server.url, PACED_S))
    is_over.set()
    reading.join()
    return alone, together, rows


def main() -> None:
    with place() as here:
        queue = here.filled()
        table = here.folder / "table"
        # The first job of each kind compiles what later ones run.
        here.log(queue).write.parquet(str(table))
        _tell("log to nothing, 1 KB", lambda: read_log(here, queue), loop_browse(here))
        _tell("queue consumed and acknowledged, 1 KB", lambda: consume(here), loop_consume(here))
        _tell("table published to a queue, 1 KB", lambda: publish(here, table), loop_publish(here))
        delays = [beside(here, queue) for _ in range(RUNS)]
        for what in ("publishing", "delivering"):
            _compare(what, [(getattr(alone, what), getattr(together, what)) for alone, together, _ in delays])
        rows = sum(rows for _, _, rows in delays) / RUNS / PACED_S
        print(f"{'':<52} while Spark read {rows:,.0f} rows/s", flush=True)
    with place() as here:  # a log of its own, since a run looks at all of it
        queue = here.filled(ARCHIVED_ROWS)
        label = f"log archived as zstd Parquet, 1 KB, {ARCHIVED_ROWS:,} rows"
        _tell(label, lambda: archived(here, queue), loop_browse(here))


def _tell(label: str, measure: Callable[[], float], by_loop: float) -> None:
    measure()
    by_spark = [measure() for _ in range(RUNS)]
    print(f"{label:<52} {spread(by_spark, 'rows/s')}; row by row over the client {by_loop:,.0f}", flush=True)


def _compare(what: str, pairs: list[tuple[list[float], list[float]]]) -> None:
    alone = sorted(chain(*(one for one, _ in pairs)))
    together = sorted(chain(*(two for _, two in pairs)))
    tails = percentile(alone, 0.99), percentile(together, 0.99)
    singly = sorted(percentile(two, 0.99) / percentile(one, 0.99) for one, two in pairs)
    print(
        f"{f'p99 of {what} at 1,000 msg/s':<52} alone {tails[0] * 1e6:,.0f} us, beside a reader of the log "
        f"{tails[1] * 1e6:,.0f} us: {tails[1] / tails[0]:.2f} times (run by run {singly[0]:.2f} to {singly[-1]:.2f})",
        flush=True,
    )
