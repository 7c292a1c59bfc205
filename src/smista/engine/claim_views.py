"""What is shown of claims and of the consumers that hold them."""

from __future__ import annotations

import msgspec

from smista.core.claims import Claim, Claimant


class ClaimView(msgspec.Struct, frozen=True, rename={"body_bytes": "bytes"}):
    """One open claim."""

    number: int
    after: int
    """What was given as `after` when it was made: a batch that goes from there to `number` is this claim."""
    rows: int
    body_bytes: int
    made_at_ms: int
    expires_at_ms: int


class ClaimantView(msgspec.Struct, frozen=True):
    """A consumer that claims, and its open claims."""

    consumer: str
    session: str
    """Empty when the name is free."""
    seen_at_ms: int
    acknowledged: int
    """All up to this claim is done with."""
    last: int
    """The last claim that was made."""
    acknowledged_late: int
    """Rows of claims that had expired when they were acknowledged."""
    claims: list[ClaimView]


def claim_view(claim: Claim) -> ClaimView:
    return ClaimView(
        claim.number, claim.after, claim.row_count, claim.body_bytes, claim.made_at_ms, claim.expires_at_ms
    )


def claimant_view(claimant: Claimant) -> ClaimantView:
    return ClaimantView(
        claimant.consumer,
        claimant.session,
        claimant.seen_at_ms,
        claimant.acknowledged,
        claimant.last,
        claimant.late_count,
        [claim_view(claim) for claim in claimant.open_claims],
    )
