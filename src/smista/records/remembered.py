"""REMEMBERED: a queue learnt a deduplication id."""

from __future__ import annotations

import msgspec

from smista.records.kinds import Kind
from smista.records.packed import codec


class Remembered(msgspec.Struct, frozen=True, array_like=True):
    queue: int
    key: str
    number: int
    """Of the message that was published under it."""
    created_at_ms: int
    expires_at_ms: int


encode, decode = codec(Kind.REMEMBERED, Remembered)
