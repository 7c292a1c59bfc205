"""CLAIMED: rows of a claim. Its number, and the rest of what is known of it, is in a CLAIMANT.

With queue and run the sequences and delivery counts are the receipts of the rows. A DELIVERED without a deadline stands
before it; messages that are in no claim's rows when the log ends are given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from smista.records import sequences, texts
from smista.records.frames import framed
from smista.records.kinds import Kind
from smista.records.layout import U16, U32, U64, Field, Layout, Numbers
from smista.records.sequences import SEQUENCE_BYTES, SEQUENCES

_DELIVERIES = Numbers(U32)
HEAD = Layout(queue=U32, number=U64, first=U32, run=U32, body_bytes=U64, consumer_bytes=U16, count=U32)
FIELDS = (*HEAD.fields, Field("consumer", texts.TEXT), SEQUENCES, Field("deliveries", _DELIVERIES.type))


class Claimed(NamedTuple):
    queue: int
    consumer: str
    number: int
    """Of the claim."""
    first: int
    """The place of the first of these rows in the claim."""
    run: int
    body_bytes: int
    sequences: Sequence[int]
    deliveries: Sequence[int]


def encode(rows: Claimed) -> bytes:
    consumer = rows.consumer.encode()
    count = len(rows.sequences)
    head = HEAD.pack(rows.queue, rows.number, rows.first, rows.run, rows.body_bytes, len(consumer), count)
    numbers = sequences.pack(rows.sequences) + _DELIVERIES.pack(rows.deliveries)
    return framed(Kind.CLAIMED, head + consumer + numbers)


def decode(data: memoryview) -> Claimed:
    queue, number, first, run, body_bytes, consumer_bytes, count = HEAD.read(data)
    offset = HEAD.size + consumer_bytes
    deliveries = _DELIVERIES.read(data, offset + SEQUENCE_BYTES * count, count)
    consumer = texts.read(data, HEAD.size, offset)
    return Claimed(queue, consumer, number, first, run, body_bytes, sequences.read(data, offset, count), deliveries)
