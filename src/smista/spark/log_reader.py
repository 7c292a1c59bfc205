"""Mode `log`: what happened to messages, read from the broker's log. Nothing is taken from any queue.

An offset is a position in the log of each shard; a batch is the blocks from one offset up to the next, for ever the
same rows. So there is nothing to acknowledge, any number of queries may read, and a batch that is read again after a
crash is the same batch. What may be lost is the past: the broker keeps its log for a while only, and a query that comes
too late fails, unless it has `failOnDataLoss=false`.

    {"positions": {"0": 340}, "logs": {"0": "2d779cf32b93a0d9"}, "queue": "orders", "since": {"0": 1}}

`logs` are the ids of those logs; `since`, in the first offset of a query only, is where it began.
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
from smista.spark.positions import (
    EARLIEST,
    LATEST,
    Logs,
    Place,
    Positions,
    Range,
    Taken,
    apportioned,
    between,
    logs_of,
    place_in,
    taken_of,
)
from smista.spark.wire import PATIENCE_S, PLANNING_PATIENCE_S, Wire

Offset = dict[str, Any]
IDLE_S = 1.0
"""How long a trigger that finds nothing new goes on looking before it returns; Spark asks again at once."""
_LOOK_S = 0.1
_ALL = "*"


@dataclass
class LogPartition(InputPartition):
    shard: int
    start: int
    end: int


class LogRanges:
    """Which blocks there are and how to read them: what reading at once and streaming have in common."""

    def __init__(self, reading: LogReading, schema: StructType) -> None:
        self._reading = reading
        self._schema = columns.to_arrow(schema)
        self._wire = Wire(reading.server)

    def now(self, *, at_ms: int | None = None, patience_s: float = PATIENCE_S) -> Logs:
        """The shards' logs; with an instant also the first `position` since in each."""
        return logs_of(self._wire.get("log", "range", query={"at_ms": at_ms}, patience_s=patience_s))

    def bound(self, place: Place, at_ms: int | None, *, default: str) -> Positions:
        """The positions that an option means."""
        logs = self.now(at_ms=at_ms, patience_s=PLANNING_PATIENCE_S)
        if at_ms is not None:
            return {shard: log.position for shard, log in logs.items() if log.position is not None}
        return place_in(logs, place, default=default)

    def plan(self, blocks: Range, **limits: int | None) -> dict[str, Any]:
        query = {"shard": blocks.shard, "from": blocks.start, "to": blocks.end, **limits}
        answer: dict[str, Any] = self._wire.get("log", "plan", query=query)
        return answer

    def split(self, start: Positions, end: Positions, logs: Logs) -> list[LogPartition]:
        """The blocks of a batch, in parts for tasks; up to `end`, or to where the logs end."""
        ranges = self.available(start, end, logs)
        count = self._reading.partition_count or os.cpu_count() or 1
        return [
            LogPartition(blocks.shard, part["from"], part["to"])
            for blocks, parts in zip(ranges, apportioned(count, ranges), strict=True)
            for part in self.plan(blocks, min_partitions=parts)["partitions"]
        ]

    def available(self, start: Positions, end: Positions, logs: Logs) -> list[Range]:
        """What lies between two places and can be read; raises `LogPositionLost` where that leaves something out."""
        ends = {shard: min(position, logs[shard].next) for shard, position in end.items()}
        begins = {each.shard: self.begin(each, logs[each.shard].first) for each in between(start, ends)}
        return between(begins, {shard: ends[shard] for shard in begins})

    def begin(self, blocks: Range, first: int) -> int:
        """Where reading of blocks can begin in a log that begins at `first`."""
        if blocks.start >= first:
            return blocks.start
        lost = f"positions {blocks.start} to {first - 1}"
        if self._reading.is_loss_an_error:
            raise LogPositionLost(
                f"The log of shard {blocks.shard} no longer has {lost}: it begins at {first}. Run the query more "
                "often, or have the broker keep more (its settings log_retention_ms and log_retention_bytes). To go on "
                "without them, set option failOnDataLoss=false."
            )
        print(f"smista: {lost} of the log of shard {blocks.shard} are gone and left out", file=sys.stderr)
        return first

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            return  # Spark makes one up where there are none
        blocks, has_rows = Range(partition.shard, partition.start, partition.end), False
        while blocks.start < blocks.end:
            try:
                for batch in self._rows(blocks):
                    has_rows = True
                    yield batch
            except BrokerRefused as refusal:
                # Dropped since it was planned. Behind rows that have been passed on nothing can be left out: the task
                # has to fail, and the next attempt begins anew.
                if refusal.code != "log_position_dropped" or has_rows:
                    raise
                blocks = blocks._replace(start=self.begin(blocks, self.now()[blocks.shard].first))
            else:
                return

    def _rows(self, blocks: Range) -> Iterator[pa.RecordBatch]:
        reading = self._reading
        query = {
            "shard": blocks.shard,
            "from": blocks.start,
            "to": blocks.end,
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
        start = self._ranges.bound(reading.start, reading.start_at_ms, default=EARLIEST)
        end = self._ranges.bound(reading.end, reading.end_at_ms, default=LATEST)
        return self._ranges.split(start, end, self._ranges.now())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._ranges.read(partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, reading: LogReading, schema: StructType) -> None:
        self._reading = reading
        self._ranges = LogRanges(reading, schema)
        self._until: Positions | None = None
        """Where a query that ends by itself ends."""
        self._short_since: float | None = None
        """Since when there have been some rows, but too few for a batch."""
        self._seen: Logs = {}

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name, as below
        """Before everything, and always the same. Spark does not keep it but asks again when it repeats the first
        batch, and by then `latest` would be another position; so where the query began stands in its first offset."""
        return {"positions": {}, "queue": self._queues}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._reading.limits.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = {shard: log.next for shard, log in self._ranges.now().items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        reached = self._positions(start)
        if not reached:
            return self._first_end(limit)
        gives_up_at = time.monotonic() + IDLE_S
        while True:
            end = self._next_end(reached, self._looked_at(start), limit)
            if end != reached:
                return self._offset(end)
            if self._until is not None or time.monotonic() >= gives_up_at:
                return start
            time.sleep(_LOOK_S)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        seen = self._seen
        if not seen:
            return None
        ends, firsts = ({shard: getattr(log, name) for shard, log in seen.items()} for name in ("next", "first"))
        return {"positions": _written(ends), "first": _written(firsts)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        begin, until = self._positions(start), self._positions(end)
        return self._ranges.split(begin or _read(end["since"]), until, self._looked_at(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._ranges.read(partition)

    def commit(self, end: Offset) -> None:
        """The broker need not know: who reads a log takes nothing."""

    # -- positions ----------------------------------------------------------------------------------------------------

    def _first_end(self, limit: ReadLimit) -> Offset:
        reading = self._reading
        since = self._ranges.bound(reading.start, reading.start_at_ms, default=EARLIEST)
        logs = self._looked_at({"positions": _written(since)})
        return self._offset(self._next_end(since, logs, limit)) | {"since": _written(since)}

    def _next_end(self, reached: Positions, logs: Logs, limit: ReadLimit) -> Positions:
        """Where the next batch ends; `reached` itself while there is none."""
        ends = {shard: log.next for shard, log in logs.items()} if self._until is None else self._until
        new = {each.shard: each.end for each in between(reached, ends)}
        ranges = self._ranges.available(reached, new, logs)
        if isinstance(limit, ReadAllAvailable) or not ranges:
            return {**reached, **new}
        limits = self._reading.limits
        taken = taken_of(ranges, limits.max_rows, limits.max_bytes, self._take)
        if self._is_too_short(sum(one.rows for one in taken)):
            return reached
        return {**reached, **new, **{one.shard: one.end for one in taken}}

    def _take(self, blocks: Range, rows_max: int, bytes_max: int | None) -> Taken:
        plan = self._ranges.plan(blocks, max_rows=rows_max, max_bytes=bytes_max)
        return Taken(blocks.shard, plan["to"], plan["rows"], plan["bytes"])

    def _is_too_short(self, rows: int) -> bool:
        limits = self._reading.limits
        now = time.monotonic()
        since = self._short_since if self._short_since is not None else now
        is_late = (now - since) * 1000 >= limits.delay_ms
        is_too_short = rows < limits.min_rows and self._until is None and not is_late
        self._short_since = since if is_too_short else None
        return is_too_short

    def _offset(self, positions: Positions) -> Offset:
        logs = {str(shard): self._seen[shard].log_id for shard in sorted(positions)}
        return {"positions": _written(positions), "logs": logs, "queue": self._queues}

    @property
    def _queues(self) -> str:
        return ",".join(self._reading.queues) or _ALL

    def _positions(self, offset: Offset) -> Positions:
        if "positions" not in offset or offset.get("queue") != self._queues:
            raise CheckpointForeign(
                f"The checkpoint is of a query that reads {describe(offset)}, this one reads the log of queue "
                f"{self._queues}. Give each query a checkpointLocation of its own."
            )
        return _read(offset["positions"])

    def _looked_at(self, offset: Offset) -> Logs:
        """The broker's logs; raises `CheckpointForeign` where they are not those that an offset is of."""
        logs = self._seen = self._ranges.now()
        there = {str(shard): log.log_id for shard, log in logs.items()}
        if any(there.get(shard) != log_id for shard, log_id in offset.get("logs", {}).items()):
            raise CheckpointForeign(
                "The checkpoint is of a query that reads the log of another broker, or of one whose data was there "
                "before. Set option endpoint to that one, or begin with a new checkpointLocation."
            )
        for shard, position in _read(offset["positions"]).items():
            if position > logs[shard].next:
                raise CheckpointForeign(
                    f"The query is at position {position} of shard {shard}, but the broker's log of it ends at "
                    f"{logs[shard].next}: the broker's data is older than the checkpoint, or startingOffsets lies "
                    "beyond. Begin with a new checkpointLocation."
                )
        return logs


def describe(offset: Offset) -> str:
    """What an offset in a checkpoint belongs to, for people."""
    if "claim" in offset:
        return f"queue {offset.get('queue')} as consumer {offset.get('consumer')}"
    if "positions" in offset:
        return f"the log of queue {offset.get('queue')}"
    return "from another source"


def _written(positions: Positions) -> dict[str, int]:
    """As JSON has it, always in the same order: Spark compares offsets by their text."""
    return {str(shard): positions[shard] for shard in sorted(positions)}


def _read(positions: dict[str, int]) -> Positions:
    return {int(shard): position for shard, position in positions.items()}
