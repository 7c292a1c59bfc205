"""What a row of the log is. One row is one thing that happened to one message (a purge: to one queue).

A row is named by (`shard`, `position`, `index`): the log, the block in it, and its place among all rows of that block,
whatever was asked for. So a filter changes which rows come, never what they are called. Only durable blocks are read,
and a block never changes: the same range gives the same rows for ever.

The log knows a message by its queue and `sequence`. A move gives it another: `target_queue` and `target_sequence` say
where its life goes on. What its publisher gave with it (headers, exchange, body ...) stands in its `enqueued` row only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smista.records.rows import KINDS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ALWAYS_THERE", "COLUMNS", "KINDS", "schema"]

COLUMNS = {
    "shard": "int32",
    "position": "int64",
    "index": "int32",
    "at": "instant",
    "kind": "string",
    "namespace": "string",
    "queue": "string",
    "sequence": "int64",
    "message_id": "string",
    "created_at": "instant",
    "priority": "int32",
    "ready_at": "instant",
    "expires_at": "instant",
    "deadline_at": "instant",
    "delivery_count": "int32",
    "consumer": "string",
    "reason": "string",
    "error": "string",
    "target_queue": "string",
    "target_sequence": "int64",
    "count": "int64",
    "exchange": "string",
    "routing_key": "string",
    "group": "string",
    "deduplication_id": "string",
    "ttl_ms": "int64",
    "max_retries": "int64",
    "content_type": "string",
    "headers": "map",
    "properties": "binary",
    "body_bytes": "int64",
    "body": "binary",
}
"""The columns in their order, with the names of their types; an instant is a timestamp in microseconds, in UTC."""
ALWAYS_THERE = ("shard", "position", "index", "at", "kind", "namespace", "queue")
"""Those that are never null."""


def schema(columns: list[str]) -> pa.Schema:
    """The Arrow schema of rows with these columns, in the order of `COLUMNS`."""
    import pyarrow as pa

    types = {
        "int64": pa.int64(),
        "int32": pa.int32(),
        "instant": pa.timestamp("us", tz="UTC"),
        "string": pa.string(),
        "map": pa.map_(pa.string(), pa.string()),
        "binary": pa.binary(),
    }
    return pa.schema(
        [
            pa.field(name, types[kind], nullable=name not in ALWAYS_THERE)
            for name, kind in COLUMNS.items()
            if name in columns
        ]
    )
