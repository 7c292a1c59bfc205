"""A block: a head, and records up to its end.

    block = version u8 | written_at_ms u64 | record ...

What is read is never trusted: a length that does not fit, a kind that is not known and a version above our own are
errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from smista.log.errors import LogNewer
from smista.records import frames
from smista.records.errors import RecordError
from smista.records.kinds import Kind
from smista.records.layout import U8, U64, Layout

VERSION = 1
HEAD = Layout(version=U8, written_at_ms=U64)
_KINDS = {kind.value: kind for kind in Kind}


class Record(NamedTuple):
    kind: Kind
    data: memoryview


def head(written_at_ms: int) -> bytes:
    """The beginning of a block; its records follow."""
    return HEAD.pack(VERSION, written_at_ms)


def written_at_ms(block: bytes) -> int:
    """When the block was sealed. Its first `HEAD.size` bytes are enough."""
    if len(block) < HEAD.size:
        raise RecordError(f"A block of {len(block)} bytes is too short to be one.")
    version, at_ms = HEAD.unpack_from(block)
    if version == 0:
        raise RecordError("A block has record version 0, which there never was.")
    if version > VERSION:
        raise LogNewer("a block of the log", found=version, known=VERSION)
    return at_ms


def walk(block: bytes) -> Iterator[tuple[int, int, int]]:
    """The number of the kind, the start and the end of each record, in order, also of kinds that are not known here."""
    written_at_ms(block)  # its version is checked
    return frames.walk(block, HEAD.size)


def records(block: bytes) -> Iterator[Record]:
    """The records of a block, in order."""
    view = memoryview(block)
    for number, start, end in walk(block):
        kind = _KINDS.get(number)
        if kind is None:
            raise RecordError(f"Record kind {number} at byte {start} is not known to this program.")
        yield Record(kind, view[start:end])
