"""Publishing: rows are staged at the broker by tasks, and published together by the driver.

A task sends what it has as Arrow streams, kept by the broker under (job, batch, partition, attempt). When all tasks
are done the driver names those that count, and the broker publishes exactly their rows under (job, batch), all or
nothing; asked again, it publishes nothing again. What is staged but not published, as that of a task that was tried
twice, is thrown away.

For a stream the job is the query's id, which is kept in its checkpoint, and the batch the micro-batch's: so a batch
that Spark repeats after a crash is published once. A single write is a job of its own, unless it is given `jobId` and
`batchId`.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext

from smista.spark.errors import SparkError
from smista.spark.options import Publishing
from smista.spark.wire import Wire

PART_BYTES = 64 << 20
"""How much a task gathers before it sends it; gathered, so that it can be sent again, and in memory."""
COMMIT_PATIENCE_S = 900.0
"""A commit is answered when all rows are durable, and asking again is waiting on."""


@dataclass
class Staged(WriterCommitMessage):
    job: str
    batch: int
    partition: int
    attempts: list[int]
    """One for each stream, in their order; none where there were no rows."""


class Publisher:
    """What both writers have in common."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing
        self._wire = Wire(publishing.server)

    def stage(self, batches: Iterator[pa.RecordBatch], job: str, batch: int, partition: int) -> Staged:
        staged = Staged(job, batch, partition, [])
        gathered: list[pa.RecordBatch] = []
        size = 0
        for rows in batches:
            gathered.append(rows)
            size += rows.nbytes
            if size >= PART_BYTES:
                self._send(gathered, staged)
                gathered, size = [], 0
        self._send(gathered, staged)
        return staged

    def _send(self, batches: list[pa.RecordBatch], staged: Staged) -> None:
        if not any(batch.num_rows for batch in batches):
            return
        file = io.BytesIO()
        with pa.ipc.new_stream(file, batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        # Of its own, and not the number of Spark's attempt: those begin again at 0 when a driver is restarted.
        attempt = uuid.uuid4().int >> 66
        key = (staged.job, str(staged.batch), str(staged.partition), str(attempt))
        self._wire.put_arrow("staged", *key, file=file)
        staged.attempts.append(attempt)

    def publish(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = sorted(_those_with_rows(messages), key=lambda task: task.partition)
        if not staged:
            return
        publishing = self._publishing
        target = {"queue": publishing.queue} if publishing.queue is not None else {"exchange": publishing.exchange}
        parts = [[task.partition, attempt] for task in staged for attempt in task.attempts]
        content = {**target, **self._wire.place, "parts": parts}
        self._wire.post("staged", *_key(staged), "commit", content=content, patience_s=COMMIT_PATIENCE_S)

    def discard(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = _those_with_rows(messages)
        if staged:
            self._wire.delete("staged", *_key(staged))


def _those_with_rows(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged) and message.attempts]


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
