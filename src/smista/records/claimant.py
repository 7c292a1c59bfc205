"""CLAIMANT: a consumer that claims, all of it but the rows of its claims, after a change. The latest counts."""

from __future__ import annotations

import msgspec

from smista.core.claims import ClaimState
from smista.records.kinds import Kind
from smista.records.packed import codec


class ClaimFields(msgspec.Struct, frozen=True, array_like=True):
    number: int
    after: int
    state: ClaimState
    made_at_ms: int
    expires_at_ms: int
    rows: int = 0
    """How many it had by then."""


class Claimant(msgspec.Struct, frozen=True, array_like=True):
    queue: int
    consumer: str
    session: str
    acknowledged: int
    last: int
    late_count: int
    claims: list[ClaimFields]
    """Open ones, and others that are being worked off."""
    ended: list[tuple[int, ClaimState, int]]
    """Number, how, rows."""
    is_forgotten: bool = False
    """It had to make room for another one."""


encode, decode = codec(Kind.CLAIMANT, Claimant)
