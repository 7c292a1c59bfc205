"""The logs of several shards, made up: what a broker answers whoever reads them, without a broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from smista.spark import columns
from smista.spark.errors import BrokerRefused
from smista.spark.log_reader import LogStreamReader
from smista.spark.source import SmistaSource

COLUMNS = "shard,position"
BLOCK_ROWS = 10
BLOCK_BYTES = 1_000


@dataclass
class MadeLog:
    first: int = 1
    next: int = 1
    log_id: str = "a"


@dataclass
class MadeLogs:
    """Each log has blocks of ten rows, from `first` up to `next`."""

    by_shard: dict[int, MadeLog]
    place: dict[str, str] = field(default_factory=dict)
    """What names the namespace in a request: nothing."""

    def get(self, *path: str, query: dict[str, Any], patience_s: float = 0) -> dict[str, Any]:
        if path[1] == "range":
            return {"shards": [{"shard": shard, **vars(log)} for shard, log in self.by_shard.items()]}
        shard, start, end = query["shard"], query["from"], query["to"]
        log = self.by_shard[shard]
        assert log.first <= start <= end <= log.next
        rows_max, bytes_max = query.get("max_rows") or 1 << 40, query.get("max_bytes") or 1 << 40
        end = min(end, start + max(1, min(rows_max // BLOCK_ROWS, bytes_max // BLOCK_BYTES)))
        count = min(query.get("min_partitions", 1), end - start)
        bounds = [start + (end - start) * part // count for part in range(count + 1)]
        parts = [{"from": begin, "to": until} for begin, until in itertools.pairwise(bounds)]
        size = {"rows": BLOCK_ROWS * (end - start), "bytes": BLOCK_BYTES * (end - start)}
        return {"shard": shard, "from": start, "to": end, **size, "partitions": parts}

    def batches(self, *path: str, query: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        shard, schema = query["shard"], columns.to_arrow(SmistaSource({"columns": COLUMNS}).schema())
        if query["from"] < self.by_shard[shard].first:
            raise BrokerRefused("log_position_dropped", "It is gone.")
        for position in range(query["from"], query["to"]):
            rows = [[shard] * BLOCK_ROWS, [position] * BLOCK_ROWS]
            yield pa.record_batch([pa.array(each, kind.type) for each, kind in zip(rows, schema, strict=True)], schema)


def reader(logs: MadeLogs, **options: str) -> LogStreamReader:
    """A query that reads these logs."""
    source = SmistaSource({"columns": COLUMNS, **options})
    made = source.streamReader(source.schema())
    assert isinstance(made, LogStreamReader)
    made._ranges._wire = logs  # type: ignore[assignment]  # played
    return made


def blocks(query: LogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    """Shard and position of each block that a batch reads, in the order in which its tasks stand; each row once."""
    found = [
        (shard, position)
        for part in query.partitions(start, end)
        for batch in query.read(part)
        for shard, position in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
    assert found == [each for each in dict.fromkeys(found) for _ in range(BLOCK_ROWS)]
    return list(dict.fromkeys(found))
