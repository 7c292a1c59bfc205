"""COMMITTED: a staged batch, its intent or how far it has been published. The latest counts.

Rows that it counts as done entered in the same block.
"""

from __future__ import annotations

import msgspec

from smista.core.staging import Part
from smista.records.kinds import Kind
from smista.records.packed import codec


class Committed(msgspec.Struct, frozen=True, array_like=True):
    job: str
    batch: str
    namespace: str
    queue: str | None
    exchange: str | None
    parts: tuple[Part, ...]
    """Empty when all is done."""
    rows: int
    at_ms: int
    done: int
    duplicates: int
    unrouted: int


encode, decode = codec(Kind.COMMITTED, Committed)
