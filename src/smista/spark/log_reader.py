"""Mode `log`: what happened to messages, read from the broker's log. Nothing is taken from any queue.

An offset is a position of the log; a batch is the blocks from one offset up to the next, for ever the same rows. So
there is nothing to acknowledge, any number of queries may read, and a batch that is read again after a crash is the
same batch. What may be lost is the past: the broker keeps its log for a while only, and a query that comes too late is
told so, unless it said `failOnDataLoss=false`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from smista.spark import columns
from smista.spark.errors import BrokerRefused, CheckpointForeign, LogPositionLost
from smista.spark.options import LogReading
from smista.spark.wire import PATIENCE_S, PLANNING_PATIENCE_S, Wire

Offset = dict[str, Any]
IDLE_S = 1.0
"""How long a trigger that finds nothing new looks again before it says so; Spark asks again at once."""
_LOOK_S = 0.1
_ALL = "*"
_BEFORE = -1


@dataclass
class LogPartition(InputPartition):
    start: int
    end: int


class LogRanges:
    """Which blocks there are and how to read them: what reading at once and streaming have in common."""

    def __init__(self, reading: LogReading, schema: StructType) -> None:
        self._reading = reading
        self._schema = columns.to_arrow(schema)
        self._wire = Wire(reading.server)

    def now(self, *, at_ms: int | None = None, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The log's `first` position and its `next`, and its id; with an instant also the first `position` since."""
        answer: dict[str, Any] = self._wire.get("log", "range", query={"at_ms": at_ms}, patience_s=patience_s)
        return answer

    def bound(self, offset: str | int, at_ms: int | None) -> int:
        """The position that an option means."""
        log = self.now(at_ms=at_ms, patience_s=PLANNING_PATIENCE_S)
        if isinstance(offset, int) and at_ms is None:
            return offset
        return int(log["position"] if at_ms is not None else log["first"] if offset == "earliest" else log["next"])

    def plan(self, start: int, end: int, **limits: int | None) -> dict[str, Any]:
        answer: dict[str, Any] = self._wire.get("log", "plan", query={"from": start, "to": end, **limits})
        return answer

    def split(self, start: int, end: int) -> list[LogPartition]:
        """The blocks of a batch, in parts for tasks; up to `end`, or to where the log ends."""
        log = self.now()
        start, end = self.available(start, log["first"]), min(end, log["next"])
        if start >= end:
            return []
        count = self._reading.partition_count or os.cpu_count() or 1
        return [
            LogPartition(part["from"], part["to"]) for part in self.plan(start, end, min_partitions=count)["partitions"]
        ]

    def available(self, position: int, first: int) -> int:
        """Where reading from `position` can begin; raises `LogPositionLost` where that leaves something out."""
        if position >= first:
            return position
        if self._reading.is_loss_an_error:
            raise LogPositionLost(
                f"The log no longer has positions {position} to {first - 1}: it begins at {first}. Run the query more "
                "often, or have the broker keep more (its settings log_retention_ms and log_retention_bytes). To go on "
                "without them, set option failOnDataLoss=false."
            )
        print(f"smista: positions {position} to {first - 1} of the log are gone and left out", file=sys.stderr)
        return first

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            return  # Spark makes one up where there are none
        start, has_rows = partition.start, False
        while start < partition.end:
            try:
                for batch in self._rows(start, partition.end):
                    has_rows = True
                    yield batch
            except BrokerRefused as refusal:
                # Dropped since it was planned. Behind rows that have been passed on nothing can be left out: the task
                # has to fail, and the next attempt begins anew.
                if refusal.code != "log_position_dropped" or has_rows:
                    raise
                start = self.available(start, self.now()["first"])
            else:
                return

    def _rows(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        reading = self._reading
        query = {
            "from": start,
            "to": end,
            "queue": reading.queues or None,
            "kind": reading.kinds or None,
            "bodies": "true" if "body" in self._schema.names else "false",
            "columns": ",".join(self._schema.names),
            **self._wire.place,
        }
        for batch in self._wire.batches("log", query=query):
            yield columns.fit(batch, self._schema)


class LogReader(DataSourceReader):
    def __init__(self, reading: LogReading, schema: StructType) -> None:
        self._reading = reading
        self._ranges = LogRanges(reading, schema)

    def partitions(self) -> list[LogPartition]:
        """Called once for a DataFrame, however often that is computed: what it reads is settled here."""
        reading = self._reading
        start = self._ranges.bound(reading.start, reading.start_at_ms)
        end = self._ranges.bound(reading.end, reading.end_at_ms)
        return self._ranges.split(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._ranges.read(partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, reading: LogReading, schema: StructType) -> None:
        self._reading = reading
        self._ranges = LogRanges(reading, schema)
        self._until: int | None = None
        """Where a query that ends by itself ends."""
        self._short_since: float | None = None
        """Since when there have been some rows, but too few for a batch."""
        self._seen: dict[str, Any] = {}

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name, as below
        """Before everything, and always the same. Spark does not keep it but asks again when it repeats the first
        batch, and by then `latest` would be another position; so where the query began stands in its first offset."""
        return {"position": _BEFORE, "queue": self._queues}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._reading.limits.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._ranges.now()["next"]

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        position = self._position(start)
        self._check_log(start)
        if position == _BEFORE:
            return self._first_end(limit)
        gives_up_at = time.monotonic() + IDLE_S
        while True:
            end = self._next_end(position, limit)
            if end > position:
                return self._offset(end)
            if self._until is not None or time.monotonic() >= gives_up_at:
                return start
            time.sleep(_LOOK_S)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return {"position": self._seen["next"], "first": self._seen["first"]} if self._seen else None

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        begin = self._position(start)
        self._check_log(end)
        return self._ranges.split(end["since"] if begin == _BEFORE else begin, self._position(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._ranges.read(partition)

    def commit(self, end: Offset) -> None:
        """There is nothing to say to the broker: who reads a log takes nothing."""

    # -- positions ----------------------------------------------------------------------------------------------------

    def _first_end(self, limit: ReadLimit) -> Offset:
        reading = self._reading
        since = self._ranges.bound(reading.start, reading.start_at_ms)
        return self._offset(self._next_end(since, limit)) | {"since": since}

    def _next_end(self, position: int, limit: ReadLimit) -> int:
        """Where the next batch ends; `position` itself while there is none."""
        self._seen = self._ranges.now()
        if position > self._seen["next"]:
            raise CheckpointForeign(
                f"The query is at position {position}, but the broker's log ends at {self._seen['next']}: the broker's "
                "data is older than the checkpoint, or startingOffsets lies beyond. Begin with a new "
                "checkpointLocation."
            )
        end: int = self._seen["next"] if self._until is None else min(self._until, self._seen["next"])
        if position >= end:
            return position
        begin = self._ranges.available(position, self._seen["first"])
        if begin >= end or isinstance(limit, ReadAllAvailable):
            return end
        limits = self._reading.limits
        plan = self._ranges.plan(begin, end, max_rows=limits.max_rows, max_bytes=limits.max_bytes)
        return position if self._is_too_short(plan["rows"]) else int(plan["to"])

    def _is_too_short(self, rows: int) -> bool:
        limits = self._reading.limits
        now = time.monotonic()
        since = self._short_since if self._short_since is not None else now
        is_late = (now - since) * 1000 >= limits.delay_ms
        is_too_short = rows < limits.min_rows and self._until is None and not is_late
        self._short_since = since if is_too_short else None
        return is_too_short

    def _offset(self, position: int) -> Offset:
        return {"position": position, "queue": self._queues, "log": self._seen["log_id"]}

    @property
    def _queues(self) -> str:
        return ",".join(self._reading.queues) or _ALL

    def _position(self, offset: Offset) -> int:
        ours = {"position": offset.get("position", 0), "queue": self._queues}
        if any(offset.get(name) != value for name, value in ours.items()):
            raise CheckpointForeign(
                f"The checkpoint is of a query that reads {describe(offset)}, this one reads {describe(ours)}. Give "
                "each query a checkpointLocation of its own."
            )
        return int(ours["position"])

    def _check_log(self, offset: Offset) -> None:
        """A position means nothing in another log."""
        if not self._seen:
            self._seen = self._ranges.now()
        if offset.get("log", self._seen["log_id"]) != self._seen["log_id"]:
            raise CheckpointForeign(
                "The checkpoint is of a query that reads the log of another broker, or of one whose data was there "
                "before. Set option endpoint to that one, or begin with a new checkpointLocation."
            )


def describe(offset: Offset) -> str:
    """What an offset in a checkpoint belongs to, for people."""
    if "claim" in offset:
        return f"queue {offset.get('queue')} as consumer {offset.get('consumer')}"
    if "position" in offset:
        return f"the log of queue {offset.get('queue')}"
    return "from another source"
