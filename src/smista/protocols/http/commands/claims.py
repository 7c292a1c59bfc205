"""Claims: batches that a consumer holds under a number. Their rows are read as Arrow, see `claim_rows`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from smista.engine.claiming import CLAIM_LEASE_MS, CLAIM_ROWS_MAX, ClaimView
from smista.protocols.http.commands.base import Command, Door, Name, command

Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Session = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Lease = Annotated[int, msgspec.Meta(ge=1, le=1 << 52)]


class Made(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The claim; or only the number that was given as `after`, where there is nothing to claim."""

    number: int
    rows: int = msgspec.field()
    bytes: int | UnsetType = UNSET
    expires_at_ms: int | UnsetType = UNSET


@command
class MakeClaim(Command, kw_only=True):
    """Claim the next messages after those of claim `after`, all up to which is acknowledged. Safe to repeat."""

    name: ClassVar[str] = "claim.make"
    answer: ClassVar[Any] = Made

    queue: Name
    consumer: Name
    session: Session
    after: Number
    max_rows: Annotated[int, msgspec.Meta(ge=1, le=CLAIM_ROWS_MAX)]
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] | None = None
    lease_ms: Lease = CLAIM_LEASE_MS
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=20_000)] = 0

    async def run(self, door: Door) -> Made:
        claim = await door.broker.claim(
            self.queue,
            self.consumer,
            session=self.session,
            after=self.after,
            max_rows=self.max_rows,
            max_bytes=self.max_bytes,
            lease_ms=self.lease_ms,
            wait_ms=self.wait_ms,
            namespace=self.namespace,
        )
        if claim is None:
            return Made(number=self.after, rows=0)
        return Made(number=claim.number, rows=claim.rows, bytes=claim.body_bytes, expires_at_ms=claim.expires_at_ms)


class ClaimAnswer(msgspec.Struct):
    number: int
    after: int
    """What was given as `after` when it was made: a batch that goes from there to `number` is this claim."""
    rows: int
    bytes: int
    made_at_ms: int
    expires_at_ms: int


def show_claim(claim: ClaimView) -> ClaimAnswer:
    return ClaimAnswer(claim.number, claim.after, claim.rows, claim.body_bytes, claim.made_at_ms, claim.expires_at_ms)


class ConsumerAnswer(msgspec.Struct):
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
    claims: list[ClaimAnswer]


class ConsumerList(msgspec.Struct):
    consumers: list[ConsumerAnswer]


@command
class ListClaims(Command, kw_only=True):
    """Who claims from a queue, and what is claimed."""

    name: ClassVar[str] = "claim.list"
    answer: ClassVar[Any] = ConsumerList

    queue: Name
    consumer: Name | None = None

    async def run(self, door: Door) -> ConsumerList:
        found = door.broker.claims(self.queue, self.consumer, namespace=self.namespace)
        return ConsumerList(
            [
                ConsumerAnswer(
                    one.consumer,
                    one.session,
                    one.seen_at_ms,
                    one.acknowledged,
                    one.last,
                    one.acknowledged_late,
                    [show_claim(claim) for claim in one.claims],
                )
                for one in found
            ]
        )


class AcknowledgedClaims(msgspec.Struct):
    acknowledged: int
    """Messages that are done now."""
    late: int
    """Messages that it was too late for: they had gone back to the queue, or were gone."""


@command
class AcknowledgeClaims(Command, kw_only=True):
    """Everything up to claim `up_to` is done with. Safe to repeat."""

    name: ClassVar[str] = "claim.acknowledge"
    answer: ClassVar[Any] = AcknowledgedClaims

    queue: Name
    consumer: Name
    session: Session
    up_to: Number

    async def run(self, door: Door) -> AcknowledgedClaims:
        acknowledged, late = await door.broker.acknowledge_claims(
            self.queue, self.consumer, self.up_to, session=self.session, namespace=self.namespace
        )
        return AcknowledgedClaims(acknowledged, late)


class Renewed(msgspec.Struct):
    claims: list[ClaimAnswer]


@command
class RenewClaims(Command, kw_only=True):
    """The session is there, and all its open claims now end `lease_ms` from now."""

    name: ClassVar[str] = "claim.heartbeat"
    answer: ClassVar[Any] = Renewed

    queue: Name
    consumer: Name
    session: Session
    lease_ms: Lease = CLAIM_LEASE_MS

    async def run(self, door: Door) -> Renewed:
        claims = await door.broker.renew_claims(
            self.queue, self.consumer, self.lease_ms, session=self.session, namespace=self.namespace
        )
        return Renewed([show_claim(claim) for claim in claims])


class ReleasedClaims(msgspec.Struct):
    released: int
    """Messages that are back in their places."""


@command
class ReleaseClaims(Command, kw_only=True):
    """Give back all claims above `after`, not counted as failures, and the consumer's name."""

    name: ClassVar[str] = "claim.release"
    answer: ClassVar[Any] = ReleasedClaims

    queue: Name
    consumer: Name
    session: Session
    after: Number = 0

    async def run(self, door: Door) -> ReleasedClaims:
        released = await door.broker.release_claims(
            self.queue, self.consumer, session=self.session, after=self.after, namespace=self.namespace
        )
        return ReleasedClaims(released)
