"""Claims on a running broker: the rules are in `core/claims`, here is what takes time.

A claim of 50,000 rows is made, checked and settled in slices, the rest of the loop in between. All that changes
one consumer's claims happens one after the other, under its lock, so that an impatient client's second request finds
what its first one made. Only a heartbeat does not wait: it must come through while a claim waits for messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from weakref import WeakValueDictionary

from smista.core import claims
from smista.core.claims import Claim, Claimant, ClaimState
from smista.core.message import FOREVER_MS, Receipt
from smista.core.queue import Queue
from smista.core.receiving import peek
from smista.core.settings import check_name, check_text
from smista.core.settling import find_held
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.claim_rows import ClaimedRows, ClaimRows
from smista.engine.claim_views import ClaimantView, ClaimView, claim_view, claimant_view
from smista.engine.receiving import WAIT_MS_MAX, Receiving
from smista.engine.running import Running
from smista.errors import ClaimExpired, InvalidArgument, QueueDeleted

CLAIM_ROWS_MAX = 1_000_000
CLAIM_LEASE_MS = 600_000
TAKEN_AT_ONCE = 500


class Claiming:
    def __init__(self, running: Running, receiving: Receiving) -> None:
        self._running = running
        self._receiving = receiving
        self._state = running.state
        self._rows = ClaimRows(running)
        self._locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()

    # -- making -------------------------------------------------------------------------------------------------------

    async def claim(
        self,
        queue: str,
        consumer: str,
        *,
        session: str,
        after: int,
        max_rows: int,
        max_bytes: int | None = None,
        lease_ms: int = CLAIM_LEASE_MS,
        wait_ms: int = 0,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> ClaimView | None:
        """The consumer's next claim after number `after`, all up to which is acknowledged; None when there is nothing.

        The same one again for whoever asks again. It has up to `max_rows`, and no more than `max_bytes` of bodies
        unless its first one alone is larger. `wait_ms`: how long to wait for the first row.
        """
        self._running.enter()
        _check_claim(consumer, session, after, max_rows, max_bytes, lease_ms, wait_ms)
        source = self._state.queue(queue, namespace)
        self._running.consumers.check_poll(source)
        async with self._one_at_a_time(source, consumer):
            claim = await self._claim_at_hand(source, consumer, session, after)
            if claim is None:
                claim = await self._make_claim(source, consumer, after, [], max_rows, max_bytes, lease_ms)
        if claim is None and wait_ms:
            claim = await self._wait_and_claim(source, consumer, session, after, max_rows, max_bytes, lease_ms, wait_ms)
        await self._running.done_durably()
        return None if claim is None else claim_view(claim)

    async def _claim_at_hand(self, queue: Queue, consumer: str, session: str, after: int) -> Claim | None:
        claimant = self._seize(queue, consumer, session, is_new=True)
        claims.check_after(queue, claimant, after)
        closed, _ = claims.acknowledge_up_to(self._state, queue, claimant, after)
        await self._work_off(queue, closed)
        return claims.claim_after(claimant, after)

    async def _wait_and_claim(
        self,
        queue: Queue,
        consumer: str,
        session: str,
        after: int,
        max_rows: int,
        max_bytes: int | None,
        lease_ms: int,
        wait_ms: int,
    ) -> Claim | None:
        deliveries = await self._receiving.poll(queue, 1, wait_ms, FOREVER_MS, consumer, self._running.enter(), False)
        receipts = [delivery.receipt for delivery in deliveries]
        try:
            async with self._one_at_a_time(queue, consumer):
                claim = await self._claim_at_hand(queue, consumer, session, after)
                if claim is None and receipts:
                    claim = await self._make_claim(queue, consumer, after, receipts, max_rows, max_bytes, lease_ms)
            return claim
        finally:
            # Whatever did not become a row of the claim.
            self._running.give_back(receipts)

    async def _make_claim(
        self,
        queue: Queue,
        consumer: str,
        after: int,
        receipts: list[Receipt],
        max_rows: int,
        max_bytes: int | None,
        lease_ms: int,
    ) -> Claim | None:
        """A new claim, from what is held under `receipts` on, which is emptied when it is the claim's; None when there
        is nothing to claim."""
        claim: Claim | None = None
        while True:
            now_ms = self._running.enter()
            _check_there(queue)
            if claim is not None and claim.state is not ClaimState.OPEN:
                # It ended while it was being made: what it has got goes back with it, and it gets no more.
                return claim
            # Without what was purged since it was handed over.
            messages = [found[1] for receipt in receipts if (found := find_held(self._state, receipt)) is not None]
            taken = claim.row_count if claim is not None else len(messages)
            claimed_bytes = sum(message.body_bytes for message in messages)
            if claim is not None:
                claimed_bytes += claim.body_bytes
            bytes_left = None if max_bytes is None else max_bytes - claimed_bytes
            limit = _room(queue, min(TAKEN_AT_ONCE, max_rows - taken), bytes_left, is_first=not taken)
            if limit:
                messages = messages + claims.take(self._state, queue, consumer, limit, now_ms=now_ms)
            if not messages:
                if claim is not None:
                    claims.finish_claim(self._state, queue, claim)
                return claim
            if claim is None:
                claimant = claims.find_claimant(self._state, queue, consumer)
                claim = claims.open_claim(self._state, queue, claimant, after, lease_ms=lease_ms, now_ms=now_ms)
            claims.add_rows(self._state, queue, claim, messages)
            receipts.clear()
            self._running.after()
            await asyncio.sleep(0)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read(
        self,
        queue: str,
        consumer: str,
        number: int,
        *,
        start: int = 0,
        end: int | None = None,
        session: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> AsyncIterator[ClaimedRows]:
        """The rows from `start` to `end` of an open claim, some at a time, as often as they are asked for.

        Raises at once where any of them is gone; when that happens later, while they are being read, the iterator does.
        """
        self._running.enter()
        source = self._state.queue(queue, namespace)
        if session is not None:
            check_text("session", session)
            claimant = self._seize(source, consumer, session)
            self._running.after()
        else:
            claimant = claims.find_claimant(self._state, source, consumer)
        return await self._rows.read(source, claims.look_up(source, claimant, number), start, end)

    # -- ending -------------------------------------------------------------------------------------------------------

    async def acknowledge(
        self, queue: str, consumer: str, up_to: int, *, session: str, namespace: str = DEFAULT_NAMESPACE
    ) -> tuple[int, int]:
        """All claims up to this number are done with. Returns how many rows that was, and for how many it was too late.

        Doing so again does nothing. Raises `ClaimExpired` where claim `up_to` itself has expired.
        """
        self._running.enter()
        check_text("session", session)
        source = self._state.queue(queue, namespace)
        async with self._one_at_a_time(source, consumer):
            claimant = self._seize(source, consumer, session)
            if up_to > claimant.acknowledged:
                try:
                    claims.look_up(source, claimant, up_to)
                except ClaimExpired:
                    claims.count_late(self._state, source, claimant, up_to)
                    await self._running.done_durably()
                    raise
            closed, late = claims.acknowledge_up_to(self._state, source, claimant, up_to)
            await self._work_off(source, closed)
        await self._running.done_durably()
        return sum(claim.settled_count for claim in closed), late + sum(claim.late_count for claim in closed)

    async def renew(
        self, queue: str, consumer: str, lease_ms: int, *, session: str, namespace: str = DEFAULT_NAMESPACE
    ) -> list[ClaimView]:
        """A heartbeat: the session is there, and all its open claims now end `lease_ms` from now. Returns them."""
        now_ms = self._running.enter()
        check_text("session", session)
        _check_number("lease_ms", lease_ms, 1, FOREVER_MS)
        source = self._state.queue(queue, namespace)
        claimant = self._seize(source, consumer, session, is_new=True)
        renewed = claims.renew(self._state, source, claimant, lease_ms, now_ms=now_ms)
        await self._running.done_durably()
        return [claim_view(claim) for claim in renewed]

    async def release(
        self,
        queue: str,
        consumer: str,
        *,
        session: str,
        after: int = 0,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int:
        """Give back the claims above number `after`, not counted as failures, and the consumer's name. Returns how many
        rows that was."""
        self._running.enter()
        check_text("session", session)
        source = self._state.queue(queue, namespace)
        async with self._one_at_a_time(source, consumer):
            claimant = self._seize(source, consumer, session)
            closed = claims.release_after(self._state, source, claimant, after)
            await self._work_off(source, closed)
        await self._running.done_durably()
        return sum(claim.settled_count for claim in closed)

    def claimants(
        self, queue: str, consumer: str | None = None, *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[ClaimantView]:
        """Who claims from this queue, and what; only one consumer where it is named, or `ClaimNotFound`."""
        self._running.enter()
        source = self._state.queue(queue, namespace)
        if consumer is not None:
            return [claimant_view(claims.find_claimant(self._state, source, consumer))]
        return [claimant_view(claimant) for claimant in claims.claimants(self._state, source)]

    # -- inside -------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, queue: Queue, consumer: str) -> AsyncIterator[None]:
        """Wait until nobody else changes this consumer's claims. The queue may be gone by then."""
        async with self._locks.setdefault((queue.number, consumer), asyncio.Lock()):
            self._running.enter()
            _check_there(queue)
            yield

    def _seize(self, queue: Queue, consumer: str, session: str, *, is_new: bool = False) -> Claimant:
        return claims.seize(
            self._state,
            queue,
            consumer,
            session,
            session_ms=self._running.settings.claim_session_ms,
            is_new=is_new,
            now_ms=self._running.enter(),
        )

    async def _work_off(self, queue: Queue, closed: Sequence[Claim]) -> None:
        """Settle all rows of claims that have ended. Whatever ends this early, the calendar goes on with it."""
        self._running.after()
        try:
            for claim in closed:
                while not queue.is_deleted and claims.work_off(
                    self._state, queue, claim, TAKEN_AT_ONCE, chance=random.random(), now_ms=self._running.enter()
                ):
                    self._running.after()
                    await asyncio.sleep(0)
        finally:
            for claim in closed:
                if claim.claimant.claims.get(claim.number) is claim and not queue.is_deleted:
                    now_ms = self._running.clock.now_ms()
                    self._state.calendar.add(claim, now_ms, now_ms)


def _check_there(queue: Queue) -> None:
    if queue.is_deleted:
        raise QueueDeleted(f"Queue {queue.name!r} was deleted while it was being claimed from.")


def _room(queue: Queue, limit: int, bytes_left: int | None, *, is_first: bool) -> int:
    """How many of the next messages a claim has room for; its first one always has."""
    if bytes_left is None or limit <= 0:
        return max(0, limit)
    count = 0
    for message in peek(queue, limit):
        bytes_left -= message.body_bytes
        if bytes_left < 0 and not (is_first and not count):
            break
        count += 1
    return count


def _check_claim(
    consumer: str, session: str, after: int, max_rows: int, max_bytes: int | None, lease_ms: int, wait_ms: int
) -> None:
    check_name("consumer", consumer)
    check_text("session", session)
    if not session:
        raise InvalidArgument("session is empty; make up a name for this run of the consumer.")
    _check_number("after", after, 0, 1 << 62)
    _check_number("max_rows", max_rows, 1, CLAIM_ROWS_MAX)
    if max_bytes is not None:
        _check_number("max_bytes", max_bytes, 1, 1 << 62)
    _check_number("lease_ms", lease_ms, 1, FOREVER_MS)
    _check_number("wait_ms", wait_ms, 0, WAIT_MS_MAX)


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{name} is {value!r}; give a whole number from {least} to {most}.")
