"""QUEUE_DECLARED: a queue was declared, altered, paused or resumed. The latest counts."""

from __future__ import annotations

import msgspec

from smista.core.counters import Counters
from smista.core.settings import QueueSettings
from smista.records.kinds import Kind
from smista.records.packed import codec


class QueueNamed(msgspec.Struct, frozen=True, array_like=True):
    """How declarations and deletions of queues begin: enough to know which number is which queue."""

    number: int
    namespace: str
    name: str


class QueueDeclared(QueueNamed, frozen=True, array_like=True):
    settings: QueueSettings
    """As declared; what policies make of them is not in the log."""
    created_at_ms: int
    used_at_ms: int
    is_paused: bool
    counters: Counters
    """They stand for everything before this record."""


encode, decode = codec(Kind.QUEUE_DECLARED, QueueDeclared)
_, decode_name = codec(Kind.QUEUE_DECLARED, QueueNamed)
