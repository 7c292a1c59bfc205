"""One message of an ENQUEUED or FANNED_OUT record, and the times that may stand beside it."""

from __future__ import annotations

from typing import NamedTuple

from smista.records.layout import INSTANT, U64, Field

HAS_READY_AT = 1
HAS_EXPIRES_AT = 2
TIMES = (
    Field("ready_at_ms", f"{U64} with flag {HAS_READY_AT}"),
    Field("expires_at_ms", f"{U64} with flag {HAS_EXPIRES_AT}"),
)
TIME_BYTES = INSTANT.size


class Entry(NamedTuple):
    queue: int
    sequence: int
    priority: int
    ready_at_ms: int
    expires_at_ms: int | None
    envelope: bytes
    """But for its properties."""
    properties: bytes
    body: bytes


def pack_times(flags: int, ready_at_ms: int, expires_at_ms: int | None) -> bytes:
    """Those that the flags name."""
    times = INSTANT.pack(ready_at_ms) if flags & HAS_READY_AT else b""
    return times + INSTANT.pack(expires_at_ms) if flags & HAS_EXPIRES_AT else times


def read_times(data: bytes | memoryview, flags: int, offset: int, at_ms: int) -> tuple[int, int | None, int]:
    """When the message is ready and when it expires, and where what follows begins."""
    ready_at_ms, expires_at_ms = at_ms, None
    if flags & HAS_READY_AT:
        (ready_at_ms,) = INSTANT.unpack_from(data, offset)
        offset += TIME_BYTES
    if flags & HAS_EXPIRES_AT:
        (expires_at_ms,) = INSTANT.unpack_from(data, offset)
        offset += TIME_BYTES
    return ready_at_ms, expires_at_ms, offset
