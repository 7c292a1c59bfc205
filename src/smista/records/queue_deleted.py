"""QUEUE_DELETED: a queue went, with all its messages and bindings."""

from __future__ import annotations

from smista.records import rows
from smista.records.kinds import Kind
from smista.records.packed import codec
from smista.records.queue_declared import QueueNamed
from smista.records.rows import NONE, Rows


class QueueDeleted(QueueNamed, frozen=True, array_like=True):
    """The name is for its bindings, where its declaration stands in a part of the log that was dropped."""

    at_ms: int


encode, decode = codec(Kind.QUEUE_DELETED, QueueDeleted)


def collect(into: Rows, block: bytes, start: int, end: int) -> None:
    deleted = decode(memoryview(block)[start:end])
    code = into.step(rows.DELETED, deleted.number, 1)
    if code >= 0:
        into.run(rows.DELETED, code, deleted.at_ms, 1)
        into.take_sequence(NONE)
