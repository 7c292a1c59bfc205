"""DELIVERED: messages of a queue were handed to a consumer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from smista.records import rows, sequences, texts
from smista.records.kinds import Kind
from smista.records.layout import U8, U32, U64, Field, Layout
from smista.records.rows import NONE, Rows
from smista.records.sequences import SEQUENCES

HEAD = Layout(
    queue=U32, at_ms=U64, deadline_ms=U64, run=U32, first_count=U32, wait_ms=U64, consumer_bytes=U8, count=U32
)
FIELDS = (*HEAD.fields, Field("consumer", texts.TEXT), SEQUENCES)
CONSUMER_BYTES_MAX = 255
"""A longer name is cut."""


class Delivered(NamedTuple):
    queue: int
    at_ms: int
    deadline_ms: int | None
    run: int
    """Of the broker, see `Receipt`."""
    first_count: int
    """How many of the messages were handed out for the first time ..."""
    wait_ms: int
    """... and how long they had been ready, taken together."""
    consumer: str
    sequences: Sequence[int]


def encode(
    queue: int,
    at_ms: int,
    deadline_ms: int | None,
    run: int,
    first_count: int,
    wait_ms: int,
    consumer: str,
    delivered: Sequence[int],
) -> bytes:
    """The fields of a `Delivered`: one of those for every record would cost more than the rest of this."""
    name = consumer.encode("utf-8", "replace")[:CONSUMER_BYTES_MAX]
    head = HEAD.pack(queue, at_ms, deadline_ms or 0, run, first_count, wait_ms, len(name), len(delivered))
    return sequences.framed_with(Kind.DELIVERED, head + name, delivered)


def decode(data: memoryview) -> Delivered:
    queue, at_ms, deadline_ms, run, first_count, wait_ms, consumer_bytes, count = HEAD.read(data)
    offset = HEAD.size + consumer_bytes
    handed_out = sequences.read(data, offset, count)
    consumer = texts.read(data, HEAD.size, offset)
    return Delivered(queue, at_ms, deadline_ms or None, run, first_count, wait_ms, consumer, handed_out)


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    queue, at_ms, deadline_ms, _, first_count, _, consumer_bytes, count = HEAD.unpack_from(block, start)
    code = into.step(rows.DELIVERED, queue, count)
    if code < 0:
        return
    consumer_at = start + HEAD.size
    sequences_at = consumer_at + consumer_bytes
    into.detailed_run(
        rows.DELIVERED,
        code,
        at_ms,
        count,
        deadline_ms=deadline_ms or NONE,
        consumer=into.consumer_code(block[consumer_at:sequences_at]),
        delivery_count=1 if first_count == count else NONE,
    )
    into.take_sequences(block, sequences_at, end, count)
