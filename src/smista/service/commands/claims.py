"""Claims: batches that a consumer holds under a number. Their rows are read as Arrow, see `claim_rows`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from smista.engine.claim_views import ClaimantView, ClaimView
from smista.engine.claiming import CLAIM_LEASE_MS, CLAIM_ROWS_MAX
from smista.service.command import Command
from smista.service.context import Context
from smista.service.fields import Name
from smista.service.permission import Permission

Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
ClaimSession = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Lease = Annotated[int, msgspec.Meta(ge=1, le=1 << 52)]


class Made(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The claim; or only the number that was given as `after`, where there is nothing to claim."""

    number: int
    rows: int = msgspec.field()
    bytes: int | UnsetType = UNSET
    expires_at_ms: int | UnsetType = UNSET


class MakeClaim(Command[Made], needs=Permission.READ.on("queue"), changes=True, at_once=False, waits="wait_ms"):
    """Claim the next messages after those of claim `after`, all up to which is acknowledged. Safe to repeat."""

    name = "claim.make"

    queue: Name
    consumer: Name
    session: ClaimSession
    after: Number
    max_rows: Annotated[int, msgspec.Meta(ge=1, le=CLAIM_ROWS_MAX)]
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] | None = None
    lease_ms: Lease = CLAIM_LEASE_MS
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=20_000)] = 0

    async def run(self, context: Context) -> Made:
        claim = await context.broker.claiming.claim(
            self.queue,
            self.consumer,
            session=self.session,
            after=self.after,
            max_rows=self.max_rows,
            max_bytes=self.max_bytes,
            lease_ms=self.lease_ms,
            wait_ms=self.wait_ms,
            namespace=context.namespace,
        )
        if claim is None:
            return Made(number=self.after, rows=0)
        return Made(number=claim.number, rows=claim.rows, bytes=claim.body_bytes, expires_at_ms=claim.expires_at_ms)


class ConsumerList(msgspec.Struct):
    consumers: list[ClaimantView]


class ListClaims(Command[ConsumerList], needs=Permission.MONITOR.on("queue")):
    """Who claims from a queue, and what is claimed."""

    name = "claim.list"

    queue: Name
    consumer: Name | None = None

    async def run(self, context: Context) -> ConsumerList:
        found = await context.broker.asking.claimants(self.queue, self.consumer, namespace=context.namespace)
        return ConsumerList(found)


class AcknowledgedClaims(msgspec.Struct):
    acknowledged: int
    """Messages that are done now."""
    late: int
    """Messages that it was too late for: they had gone back to the queue, or were gone."""


class AcknowledgeClaims(Command[AcknowledgedClaims], needs=Permission.READ.on("queue"), changes=True, at_once=False):
    """Acknowledge everything up to claim `up_to`. Safe to repeat."""

    name = "claim.acknowledge"

    queue: Name
    consumer: Name
    session: ClaimSession
    up_to: Number

    async def run(self, context: Context) -> AcknowledgedClaims:
        acknowledged, late = await context.broker.claiming.acknowledge(
            self.queue, self.consumer, self.up_to, session=self.session, namespace=context.namespace
        )
        return AcknowledgedClaims(acknowledged, late)


class Renewed(msgspec.Struct):
    claims: list[ClaimView]


class RenewClaims(Command[Renewed], needs=Permission.READ.on("queue"), changes=True):
    """Keep the session, and have all its open claims end `lease_ms` from now."""

    name = "claim.heartbeat"

    queue: Name
    consumer: Name
    session: ClaimSession
    lease_ms: Lease = CLAIM_LEASE_MS

    async def run(self, context: Context) -> Renewed:
        claims = await context.broker.claiming.renew(
            self.queue, self.consumer, self.lease_ms, session=self.session, namespace=context.namespace
        )
        return Renewed(claims)


class ReleasedClaims(msgspec.Struct):
    released: int
    """Messages that are back in their places."""


class ReleaseClaims(Command[ReleasedClaims], needs=Permission.READ.on("queue"), changes=True, at_once=False):
    """Give back all claims above `after`, not counted as failures, and the consumer's name."""

    name = "claim.release"

    queue: Name
    consumer: Name
    session: ClaimSession
    after: Number = 0

    async def run(self, context: Context) -> ReleasedClaims:
        released = await context.broker.claiming.release(
            self.queue, self.consumer, session=self.session, after=self.after, namespace=context.namespace
        )
        return ReleasedClaims(released)
