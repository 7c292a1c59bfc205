"""OPENED: a broker started on this log. Written again when its block is reclaimed: numbers must never be given out
twice."""

from __future__ import annotations

import msgspec

from smista.records.kinds import Kind
from smista.records.packed import codec


class Anchor(msgspec.Struct, frozen=True, array_like=True):
    """How the broker's time stood to the time since boot."""

    boot_id: str
    offset_ms: int


class Opened(msgspec.Struct, frozen=True, array_like=True):
    anchor: Anchor
    run: int
    next_sequence: int
    next_queue: int
    next_exchange: int


encode, decode = codec(Kind.OPENED, Opened)
