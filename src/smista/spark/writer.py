"""Publishing: rows are staged at the broker by tasks, and published together by the driver.

A task sends what it has as one Arrow stream, kept by the broker under (job, batch, partition, attempt). When all tasks
are done the driver names those that count, and the broker publishes exactly their rows under (job, batch), all or
nothing; asked again, it publishes nothing again. What is staged but not published, as that of a task that was tried
twice, is thrown away.

For a stream the job is the query's id, which is kept in its checkpoint, and the batch the micro-batch's: so a batch
that Spark repeats after a crash is published once. A single write is a job of its own, unless it is given `jobId` and
`batchId`.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext

from smista.spark.errors import SparkError
from smista.spark.options import Publishing
from smista.spark.wire import Wire

MEMORY_BYTES = 32 << 20
"""What a task gathers in memory before it goes to a file; sent only when complete, so that it can be sent again."""


@dataclass
class Staged(WriterCommitMessage):
    job: str
    batch: int
    partition: int
    attempt: str
    rows: int


class Publisher:
    """What both writers have in common."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing
        self._wire = Wire(publishing.server)

    def stage(self, batches: Iterator[pa.RecordBatch], job: str, batch: int, partition: int) -> Staged:
        # Of its own, and not the number of Spark's attempt: those begin again at 0 when a driver is restarted.
        staged = Staged(job, batch, partition, uuid.uuid4().hex, 0)
        with tempfile.SpooledTemporaryFile(MEMORY_BYTES) as file:
            writer: pa.RecordBatchStreamWriter | None = None
            for part in batches:
                if not part.num_rows:
                    continue
                writer = writer or pa.ipc.new_stream(file, part.schema)
                writer.write_batch(part)
                staged.rows += part.num_rows
            if writer is not None:
                writer.close()
                key = (job, str(batch), str(partition), staged.attempt)
                self._wire.put_arrow("staged", *key, file=file)
        return staged

    def publish(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, Staged) and message.rows]
        if not staged:
            return
        publishing = self._publishing
        place = {"queue": publishing.queue, "exchange": publishing.exchange, "namespace": publishing.server.namespace}
        content = {name: value for name, value in place.items() if value is not None}
        parts = [[part.partition, part.attempt] for part in sorted(staged, key=lambda part: part.partition)]
        self._wire.post("staged", *_key(staged), "commit", content={**content, "parts": parts})

    def discard(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if staged:
            self._wire.delete("staged", *_key(staged))


def _key(staged: list[Staged]) -> tuple[str, str]:
    keys = {(part.job, str(part.batch)) for part in staged}
    assert len(keys) == 1, keys
    return keys.pop()


class SmistaWriter(DataSourceArrowWriter):
    def __init__(self, publishing: Publishing) -> None:
        self._publisher = Publisher(publishing)
        self._job = publishing.job or uuid.uuid4().hex
        self._batch = publishing.batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._publisher.stage(iterator, self._job, self._batch, _task().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publisher.publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publisher.discard(messages)


class SmistaStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, publishing: Publishing) -> None:
        self._publisher = Publisher(publishing)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise SparkError("Spark does not say which query and batch this is; PySpark 4.2 or newer does.")
        return self._publisher.stage(iterator, query, int(batch), task.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        self._publisher.publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._publisher.discard(messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task
