"""Records about several messages of one queue: the list of their sequences ends each of them, and some are nothing
else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smista.records.frames import FRAME
from smista.records.kinds import Kind
from smista.records.layout import U32, U64, Field, Layout, Numbers
from smista.records.rows import Rows

_NUMBERS = Numbers(U64)
SEQUENCES = Field("sequences", _NUMBERS.type)
SEQUENCE_BYTES = _NUMBERS.size
HEAD = Layout(queue=U32, at_ms=U64, count=U32)
"""Of those records that are nothing else."""
FIELDS = (*HEAD.fields, SEQUENCES)
Encode = Callable[[int, int, Sequence[int]], bytes]
Collect = Callable[[Rows, bytes, int, int], None]

pack = _NUMBERS.pack
read = _NUMBERS.read


def framed_with(kind: Kind, head: bytes, sequences: Sequence[int]) -> bytes:
    """A whole record that ends with these."""
    data = head + pack(sequences)
    return FRAME.pack(kind, len(data)) + data


def decode(data: memoryview) -> tuple[int, int, tuple[int, ...]]:
    """(queue, at_ms, sequences) of a record that is nothing else."""
    queue, at_ms, count = HEAD.read(data)
    return queue, at_ms, read(data, HEAD.size, count)


def listing(kind: Kind, row_kind: int) -> tuple[Encode, Collect]:
    """How a record that is nothing else is written, and how its rows are collected."""

    def encode(queue: int, at_ms: int, listed: Sequence[int]) -> bytes:
        return framed_with(kind, HEAD.pack(queue, at_ms, len(listed)), listed)

    def collect(into: Rows, block: bytes, start: int, end: int) -> None:
        queue, at_ms, count = HEAD.unpack_from(block, start)
        code = into.step(row_kind, queue, count)
        if code >= 0:
            into.run(row_kind, code, at_ms, count)
            into.take_sequences(block, start + HEAD.size, end, count)

    return encode, collect
