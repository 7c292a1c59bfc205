"""What rows look like, in Spark's words and in Arrow's.

All columns are nullable, whatever the broker says: Spark compares the schema of the first batch with the one it
planned with, nullability included, and makes columns nullable itself where it pleases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from smista.spark.errors import WrongColumns

_LONG, _INTEGER, _TEXT, _BYTES, _INSTANT = LongType(), IntegerType(), StringType(), BinaryType(), TimestampType()
_HEADERS = MapType(_TEXT, _TEXT)

LOG: Mapping[str, DataType] = {
    "shard": _INTEGER,
    "position": _LONG,
    "index": _INTEGER,
    "at": _INSTANT,
    "kind": _TEXT,
    "namespace": _TEXT,
    "queue": _TEXT,
    "sequence": _LONG,
    "message_id": _TEXT,
    "created_at": _INSTANT,
    "priority": _INTEGER,
    "ready_at": _INSTANT,
    "expires_at": _INSTANT,
    "deadline_at": _INSTANT,
    "delivery_count": _INTEGER,
    "consumer": _TEXT,
    "reason": _TEXT,
    "error": _TEXT,
    "target_queue": _TEXT,
    "target_sequence": _LONG,
    "count": _LONG,
    "exchange": _TEXT,
    "routing_key": _TEXT,
    "group": _TEXT,
    "deduplication_id": _TEXT,
    "ttl_ms": _LONG,
    "max_retries": _LONG,
    "content_type": _TEXT,
    "headers": _HEADERS,
    "properties": _BYTES,
    "body_bytes": _LONG,
    "body": _BYTES,
}
"""A row of the log: one thing that happened to one message. See docs/log-format.md."""
CLAIMED: Mapping[str, DataType] = {
    "message_id": _TEXT,
    "sequence": _LONG,
    "body": _BYTES,
    "created_at": _INSTANT,
    "delivered_at": _INSTANT,
    "delivery_count": _INTEGER,
    "priority": _INTEGER,
    "exchange": _TEXT,
    "routing_key": _TEXT,
    "group": _TEXT,
    "deduplication_id": _TEXT,
    "content_type": _TEXT,
    "headers": _HEADERS,
    "queue": _TEXT,
    "claim": _LONG,
    "row": _INTEGER,
}
"""A row of a claim: one message, held for this query."""
BODIES = ("body", "value")
_NUMBERS = (ByteType, ShortType, IntegerType, LongType)
PUBLISHED: Mapping[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "id": (StringType,),
    "priority": _NUMBERS,
    "delay_ms": _NUMBERS,
    "ttl_ms": _NUMBERS,
    "max_retries": _NUMBERS,
    "headers": (MapType,),
    "routing_key": (StringType,),
    "group": (StringType,),
    "content_type": (StringType,),
    "properties": (BinaryType,),
}
"""A row to publish; `body` and `value` are two names for one thing."""
_ARROW: Mapping[type[DataType], pa.DataType] = {
    LongType: pa.int64(),
    IntegerType: pa.int32(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    TimestampType: pa.timestamp("us", tz="UTC"),
    MapType: pa.map_(pa.string(), pa.string()),
}


def chosen(known: Mapping[str, DataType], names: Iterable[str] | None, *, has_body: bool) -> StructType:
    """The schema with these columns in this order; without names all of them, the body if asked for."""
    wanted = list(names) if names is not None else [name for name in known if name != "body" or has_body]
    unknown = [name for name in wanted if name not in known]
    if unknown or len(set(wanted)) != len(wanted):
        fault = f"names {', '.join(unknown)}, which is not there" if unknown else "names a column twice"
        raise WrongColumns(f"Option columns {fault}. The columns are: {', '.join(known)}.")
    return StructType([StructField(name, known[name]) for name in wanted])


def to_arrow(schema: StructType) -> pa.Schema:
    return pa.schema([pa.field(field.name, _ARROW[type(field.dataType)]) for field in schema.fields])


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly this schema. Copies nothing unless a type differs."""
    columns = []
    for field in schema:
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_asked(asked: StructType, known: StructType) -> None:
    """A program may give the schema itself, but there is only one that fits."""
    ours = {field.name: field.dataType for field in known.fields}
    if [(field.name, field.dataType) for field in asked.fields] == list(ours.items()):
        return
    wrong = [
        f"{field.name} {field.dataType.simpleString()}"
        for field in asked.fields
        if ours.get(field.name) != field.dataType
    ]
    raise WrongColumns(
        f"The schema that was asked for is not the one this query has ({', '.join(wrong) or 'their order differs'}). "
        f"Leave out .schema(...), choose columns by option columns, cast afterwards. It has: {known.simpleString()}."
    )


def check_published(schema: StructType) -> None:
    """Whether rows of this schema can be published."""
    known = ", ".join(f"{name} {' or '.join(kind.typeName() for kind in kinds)}" for name, kinds in PUBLISHED.items())
    unknown = [field.name for field in schema.fields if field.name not in PUBLISHED]
    if unknown:
        raise WrongColumns(
            f"There is no column {', '.join(unknown)} to publish; drop or rename it. Known are: {known}."
        )
    wrong = [field for field in schema.fields if not _fits(field)]
    if wrong:
        named = ", ".join(f"{field.name} is {field.dataType.simpleString()}" for field in wrong)
        raise WrongColumns(f"Columns to publish have the wrong type: {named}; cast them. Known are: {known}.")
    if len([field for field in schema.fields if field.name in BODIES]) != 1:
        raise WrongColumns(f"Rows to publish need one column body, or value, and not both. Known are: {known}.")


def _fits(field: StructField) -> bool:
    if isinstance(field.dataType, MapType):
        return field.name == "headers" and field.dataType.keyType == _TEXT and field.dataType.valueType == _TEXT
    return isinstance(field.dataType, PUBLISHED[field.name])
