"""Rows to Arrow: what a decoder has collected becomes one record batch, column by column.

Nothing here is done per row in Python. A column of few different texts is taken from them by their codes; numbers are
spread with numpy over the rows that have them; bodies are put together in one piece and cut by offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from smista.bulk import columns
from smista.bulk.decoder import RUN, SEQUENCES, Decoder
from smista.bulk.entries import ENTRY_TYPE
from smista.engine.id_column import Numbers, id_characters
from smista.engine.ids import ID_LENGTH
from smista.records import rows as schema
from smista.records.rows import KINDS, NONE, REASONS

ROWS = 8192
"""A batch has about as many rows."""
BODY_BYTES = 8 << 20
"""Or about as many bytes of bodies."""

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Builder:
    """Makes batches of what decoders with the same columns have collected."""

    def __init__(self, wanted: frozenset[str], *, broker: int, shard: int) -> None:
        """`broker` is the number by which message ids tell this broker from others; the log is that of `shard`."""
        self.schema = columns.schema(list(wanted))
        self._broker = broker
        self._shard = shard

    def build(self, rows: Decoder) -> list[pa.RecordBatch]:
        """What was collected, in batches of at most `ROWS`."""
        if not rows.row_count:
            return []
        table = _Table(rows, self._broker, self._shard)
        arrays = [table.column(field.name, field.type) for field in self.schema]
        whole = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return [whole.slice(start, ROWS) for start in range(0, len(whole), ROWS)]


class _Table:
    def __init__(self, rows: Decoder, broker: int, shard: int) -> None:
        self._rows = rows
        self._broker = broker
        self._runs = np.frombuffer(b"".join(rows.runs), RUN)
        self._counts = self._runs["count"]
        self._row_count = rows.row_count
        self._entries = np.frombuffer(b"".join(rows.entries), ENTRY_TYPE)
        self._is_entry: Flags = self._spread("kind") == schema.ENQUEUED
        self._made: dict[str, Callable[[], pa.Array]] = {
            "shard": lambda: pa.array(np.full(self._row_count, shard, np.int32)),
            "index": self._index,
            "at": lambda: _instants(self._spread("at_ms")),
            "kind": lambda: _texts(KINDS, self._spread("kind")),
            "namespace": lambda: _texts([place[0] for place in rows.places], self._spread("queue")),
            "queue": lambda: _texts([place[1] for place in rows.places], self._spread("queue")),
            "sequence": lambda: _numbers(self._sequences(), pa.int64()),
            "message_id": self._message_id,
            "created_at": lambda: _instants(self._over_entries(self._created_at())),
            "priority": lambda: _numbers(self._over_entries(self._entries["priority"]), pa.int32()),
            "ready_at": self._ready_at,
            "expires_at": lambda: _instants(self._over_entries(self._own(rows.expires_at))),
            "deadline_at": lambda: _instants(self._spread("deadline_ms")),
            "delivery_count": lambda: _numbers(self._spread("delivery_count"), pa.int32()),
            "consumer": lambda: _texts(rows.consumers, self._spread("consumer")),
            "reason": lambda: _texts(REASONS, self._spread("reason")),
            "error": lambda: _texts(rows.errors, self._spread("error")),
            "target_queue": lambda: _texts([place[1] for place in rows.places], self._spread("target_queue")),
            "target_sequence": lambda: _numbers(self._spread("target_sequence"), pa.int64()),
            "count": lambda: _numbers(self._spread("purged"), pa.int64()),
            "body_bytes": lambda: _numbers(self._over_entries(self._entries["body_bytes"]), pa.int64()),
            "body": self._body,
        }

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        if name == "position":
            return pa.array(self._spread("position"))
        make = self._made.get(name)
        return self._given(name, kind) if make is None else make()

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _spread(self, field: str) -> Numbers:
        """A field of the runs, for each of their rows."""
        return np.repeat(self._runs[field], self._counts)

    def _index(self) -> pa.Array:
        starts = np.cumsum(self._counts) - self._counts
        within = np.arange(self._row_count) - np.repeat(starts, self._counts)
        return pa.array((self._spread("index") + within).astype(np.int32))

    def _sequences(self) -> Numbers:
        sequences = np.empty(self._row_count, np.int64)
        sequences[self._is_entry] = self._entries["sequence"]
        sequences[~self._is_entry] = np.frombuffer(b"".join(self._rows.sequences), SEQUENCES)
        return sequences

    # -- entries ------------------------------------------------------------------------------------------------------

    def _over_entries(self, values: np.ndarray[Any, Any], others: Numbers | None = None) -> Numbers:
        """Values of the entries, for all rows; where there is no entry, what `others` has."""
        spread = np.full(self._row_count, NONE, np.int64) if others is None else others
        spread[self._is_entry] = values
        return spread

    def _own(self, given: tuple[list[int], list[int]], others: Numbers | None = None) -> Numbers:
        """For each entry what was given for it, else what `others` has."""
        values = np.full(len(self._entries), NONE, np.int64) if others is None else others
        if given[0]:
            values[given[0]] = given[1]
        return values

    def _entered_at(self) -> Numbers:
        return self._spread("at_ms")[self._is_entry]

    def _created_at(self) -> Numbers:
        return self._own(self._rows.created_at, self._entered_at())

    def _ready_at(self) -> pa.Array:
        ready_at = self._own(self._rows.ready_at, self._entered_at())
        return _instants(self._over_entries(ready_at, self._spread("ready_at_ms")))

    def _message_id(self) -> pa.Array:
        numbers = self._own(self._rows.numbers, self._entries["sequence"].astype(np.int64))
        ids = id_characters(self._broker, numbers, self._created_at())
        lengths = np.where(self._is_entry, ID_LENGTH, 0)
        return _pieces(pa.string(), lengths, self._is_entry, pa.py_buffer(ids))

    def _body(self) -> pa.Array:
        if not self._rows.wanted.bodies:
            return pa.nulls(self._row_count, pa.binary())
        lengths = self._over_entries(self._entries["body_bytes"], np.zeros(self._row_count, np.int64))
        return _pieces(pa.binary(), lengths, self._is_entry, pa.py_buffer(b"".join(self._rows.bodies)))

    def _given(self, name: str, kind: pa.DataType) -> pa.Array:
        """A column of the envelope."""
        rows = self._rows
        codes = self._over_entries(np.array(rows.envelope_codes, np.int64), self._spread("envelope"))
        return _texts([getattr(given, name) for given in rows.envelopes], codes, kind)


# -- arrays -----------------------------------------------------------------------------------------------------------


def _numbers(values: Numbers, kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind, mask=values < 0)


def _instants(values_ms: Numbers) -> pa.Array:
    is_there = values_ms >= 0
    return pa.Array.from_buffers(
        pa.timestamp("us", tz="UTC"), len(values_ms), [_bits(is_there), pa.py_buffer(values_ms * 1000)]
    )


def _texts(texts: Sequence[Any], codes: Numbers, kind: pa.DataType | None = None) -> pa.Array:
    """Each code's text; null where the code is NONE."""
    kind = kind or pa.string()
    if not len(texts):
        return pa.nulls(len(codes), kind)
    return pa.array(texts, kind).take(pa.array(codes, mask=codes < 0))


def _pieces(kind: pa.DataType, lengths: Numbers, is_there: Flags, data: pa.Buffer) -> pa.Array:
    """`data` cut into pieces of these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(kind, len(lengths), [_bits(is_there), pa.py_buffer(offsets), data])


def _bits(is_there: Flags) -> pa.Buffer | None:
    """The bitmap that says which values are not null; None when all are."""
    return None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))
