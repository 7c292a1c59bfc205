"""Claims: a batch of a queue's messages that one named consumer holds, frozen under a number.

A claim is in essence an ordered list of deliveries: who made them, under which number, and until when. Its messages are
in flight like any others, but without a deadline of their own: the claim has one for all of them, so that renewing
50,000 rows is one record and one entry of the calendar. Rules:

- A consumer's numbers count from 1 in each queue and are never used twice. `acknowledged` is the highest number up to
  which everything is done with, `last` the highest one given out.
- Claiming says `after`: all up to there is done with, and the first open claim above it is the answer. Only where there
  is none is a new one made. So whoever did not get the answer asks again and gets the same.
- While it is open a claim reads the same, however often. A row that somebody took from under it (a purge, a settlement
  by message id, a dead letter) makes reading it an error, never a shorter batch.
- A claim ends once: acknowledged, expired or released. What follows for its rows is worked off in slices, so it is
  *closing* for a while; its number is over from the start. A restart goes on with that.

        claim ──▶ OPEN ──┬─ acknowledge ──▶ ACKNOWLEDGED   rows are gone as they are worked off
                         ├─ time is up ───▶ EXPIRED        rows fail as after any lease: retried, or dead letters
                         └─ release ──────▶ RELEASED       rows are back in their places, not counted as failures

- A queue remembers `CLAIMANTS_KEPT` consumers. For one more it forgets the one that holds nothing and was not seen for
  the longest time; whoever comes back under that name begins at 1 again.
- A session owns the consumer's name while it has been seen within `session_ms`; another one is refused until then, and
  afterwards takes over the name with its claims. Releasing gives up the name as well.

What is durable: the rows of a claim in CLAIMED records, and all else of a consumer, its claims without their rows, in a
CLAIMANT record whenever that changes. A claim that was being made when the broker was killed has the rows it had got.
Sessions are not seen in the log, so after a restart the last one counts as just seen.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from smista.core.message import FOREVER_MS, Message, Reason, Receipt
from smista.core.queue import Queue
from smista.core.receiving import receive
from smista.core.retry import spread
from smista.core.settling import acknowledge, fail, find_held, release
from smista.core.state import BrokerState
from smista.errors import ClaimBroken, ClaimExpired, ClaimNotFound, ConsumerInUse

CLAIMANTS_KEPT = 1_000
ENDED_KEPT = 1_000
"""How many claims that expired or were released a consumer remembers."""
_ENTRIES = 1 << 60
"""As entries of the calendar claims lie far below queues and polls."""


class ClaimState(enum.IntEnum):
    """The numbers stand in the log: never reuse one."""

    OPEN = 0
    ACKNOWLEDGED = 1
    EXPIRED = 2
    RELEASED = 3


class Rows(msgspec.Struct):
    """Rows of a claim that were delivered together."""

    first: int
    """The place of the first of them in the claim."""
    run: int
    sequences: array[int]
    deliveries: array[int]
    """The count of each delivery: with queue, sequence and run that makes its receipt."""
    body_bytes: int
    position: int = 0
    """The log block that holds this."""

    def receipts(self, queue: int, start: int, end: int) -> Iterator[Receipt]:
        for sequence, delivery in zip(self.sequences[start:end], self.deliveries[start:end], strict=True):
            yield Receipt(queue, sequence, delivery, self.run)


class Claim:
    """One numbered batch: an entry of the calendar while it is open, and until it is worked off."""

    __slots__ = (
        "after",
        "claimant",
        "deadline_ms",
        "expires_at_ms",
        "late_count",
        "made_at_ms",
        "noted_count",
        "number",
        "rows",
        "sequence",
        "settled_count",
        "state",
        "worked_off",
    )

    def __init__(self, claimant: Claimant, number: int, after: int, made_at_ms: int, expires_at_ms: int) -> None:
        self.claimant = claimant
        self.number = number
        self.after = after
        self.made_at_ms = made_at_ms
        self.expires_at_ms = expires_at_ms
        self.state = ClaimState.OPEN
        self.rows: list[Rows] = []
        self.noted_count = 0
        """How many rows it had when it was last noted: what is missing then was lost with a part of the log."""
        self.worked_off = 0
        self.settled_count = 0
        self.late_count = 0
        """Rows that were not in our hands any more when it ended."""
        self.sequence = -_ENTRIES - (claimant.queue << 64) - (claimant.serial << 32) - number
        self.deadline_ms: int | None = None

    @property
    def row_count(self) -> int:
        known = self.rows[-1].first + len(self.rows[-1].sequences) if self.rows else 0
        return max(known, self.noted_count)

    @property
    def body_bytes(self) -> int:
        return sum(rows.body_bytes for rows in self.rows)

    def receipts(self, start: int, end: int) -> Iterator[Receipt]:
        """Those of the rows from `start` to `end`; those of a part that the log has lost are left out."""
        for rows in self.rows:
            if rows.first < end and start < rows.first + len(rows.sequences):
                yield from rows.receipts(self.claimant.queue, max(0, start - rows.first), end - rows.first)


class Claimant:
    """A consumer's name in one queue, and all it has claimed."""

    __slots__ = (
        "acknowledged",
        "claims",
        "consumer",
        "ended",
        "last",
        "late_count",
        "position",
        "queue",
        "seen_at_ms",
        "serial",
        "session",
    )

    def __init__(self, queue: int, consumer: str, serial: int) -> None:
        self.queue = queue
        self.consumer = consumer
        self.serial = serial
        """Tells it from the queue's others, in the calendar."""
        self.session = ""
        self.seen_at_ms = 0
        self.acknowledged = 0
        self.last = 0
        self.claims: dict[int, Claim] = {}
        """Open and closing ones, by number."""
        self.ended: dict[int, tuple[ClaimState, int]] = {}
        """Of the numbers above `acknowledged` that expired or were released: how, and how many rows they had."""
        self.late_count = 0
        """Rows whose acknowledgement came too late to count."""
        self.position = 0
        """The log block that holds all this."""

    @property
    def open_claims(self) -> list[Claim]:
        return [claim for claim in self.claims.values() if claim.state is ClaimState.OPEN]


# -- who may ----------------------------------------------------------------------------------------------------------


def claimants(state: BrokerState, queue: Queue) -> list[Claimant]:
    return list(state.claimants.get(queue.number, {}).values())


def find_claimant(state: BrokerState, queue: Queue, consumer: str) -> Claimant:
    claimant = state.claimants.get(queue.number, {}).get(consumer)
    if claimant is None:
        raise ClaimNotFound(f"Consumer {consumer!r} has never claimed anything of queue {queue.name!r}.")
    return claimant


def seize(
    state: BrokerState, queue: Queue, consumer: str, session: str, *, session_ms: int, is_new: bool = False, now_ms: int
) -> Claimant:
    """The consumer, owned by this session from now on, or raise `ConsumerInUse`. With `is_new` it may be a new one."""
    by_name = state.claimants.setdefault(queue.number, {}) if is_new else state.claimants.get(queue.number, {})
    claimant = by_name.get(consumer)
    if claimant is None:
        if not is_new:
            return find_claimant(state, queue, consumer)
        _forget_one(state, queue, by_name)
        claimant = by_name[consumer] = Claimant(queue.number, consumer, next_serial(by_name))
    if claimant.session != session:
        if claimant.session and now_ms - claimant.seen_at_ms < session_ms:
            raise ConsumerInUse(
                f"Consumer {consumer!r} of queue {queue.name!r} is in use by session {claimant.session!r}, last seen "
                f"{now_ms - claimant.seen_at_ms} ms ago (at {claimant.seen_at_ms}); stop that one, wait until it has "
                f"not been seen for {session_ms} ms, or claim under another consumer's name."
            )
        claimant.session = session
        state.journal.claimant_changed(queue, claimant)
    claimant.seen_at_ms = queue.used_at_ms = now_ms
    return claimant


def next_serial(by_name: Mapping[str, Claimant]) -> int:
    return 1 + max((claimant.serial for claimant in by_name.values()), default=-1)


def _forget_one(state: BrokerState, queue: Queue, by_name: dict[str, Claimant]) -> None:
    """Make room for one more consumer."""
    if len(by_name) < CLAIMANTS_KEPT:
        return
    idle = [claimant for claimant in by_name.values() if not claimant.claims]
    if not idle:
        raise ConsumerInUse(
            f"{len(by_name)} consumers hold claims of queue {queue.name!r}, which is as many as it remembers; let some "
            "acknowledge or release theirs, or claim under one of their names."
        )
    forgotten = min(idle, key=lambda claimant: claimant.seen_at_ms)
    del by_name[forgotten.consumer]
    state.journal.claimant_forgotten(queue, forgotten)


def look_up(queue: Queue, claimant: Claimant, number: int) -> Claim:
    """The open claim of this number, or raise why there is none."""
    claim = claimant.claims.get(number)
    if claim is not None and claim.state is ClaimState.OPEN:
        return claim
    what = f"Claim {number} of consumer {claimant.consumer!r} on queue {queue.name!r}"
    if claimant.ended.get(number, (None,))[0] is ClaimState.EXPIRED:
        raise ClaimExpired(
            f"{what} has expired: its messages went back to the queue and will be delivered again. Claim anew, with "
            "a longer lease_ms or heartbeats that come in time."
        )
    if number in claimant.ended:
        raise ClaimNotFound(f"{what} was released: its messages went back to the queue.")
    if 0 < number <= claimant.acknowledged:
        raise ClaimNotFound(f"{what} has been acknowledged, and its messages are gone.")
    raise ClaimNotFound(
        f"{what} was never made: the last one was {claimant.last}. Does the number come from another queue or broker?"
    )


def check_after(queue: Queue, claimant: Claimant, after: int) -> None:
    if after > claimant.last:
        look_up(queue, claimant, after)
    if after < claimant.acknowledged:
        raise ClaimNotFound(
            f"`after` is {after}, but consumer {claimant.consumer!r} has acknowledged queue {queue.name!r} up to claim "
            f"{claimant.acknowledged}: those messages are gone. Go on after {claimant.acknowledged}, or claim under "
            "another consumer's name."
        )


# -- making -----------------------------------------------------------------------------------------------------------


def claim_after(claimant: Claimant, after: int) -> Claim | None:
    """What claiming with this `after` answers, where it has been made already."""
    return min(
        (claim for claim in claimant.open_claims if claim.number > after), key=lambda claim: claim.number, default=None
    )


def open_claim(
    state: BrokerState, queue: Queue, claimant: Claimant, after: int, *, lease_ms: int, now_ms: int
) -> Claim:
    """A claim without rows; the caller adds some in the same step."""
    claim = Claim(claimant, claimant.last + 1, after, now_ms, now_ms + lease_ms)
    claimant.last = claim.number
    claimant.claims[claim.number] = claim
    state.calendar.add(claim, claim.expires_at_ms, now_ms)
    state.journal.claimant_changed(queue, claimant)
    return claim


def take(state: BrokerState, queue: Queue, consumer: str, limit: int, *, now_ms: int) -> list[Message]:
    """Messages for a claim: in flight until the claim says otherwise."""
    return receive(
        state,
        queue,
        limit,
        lease_ms=FOREVER_MS,
        consumer=consumer,
        several_per_group=queue.settings.ordered,
        now_ms=now_ms,
    )


def add_rows(state: BrokerState, queue: Queue, claim: Claim, messages: Sequence[Message]) -> None:
    """Messages that were just taken are the claim's next rows."""
    sequences, deliveries, run = array("Q"), array("I"), state.run
    for message in messages:
        assert message.deliveries is not None
        run = message.deliveries.run
        sequences.append(message.sequence)
        deliveries.append(message.deliveries.count)
    rows = Rows(claim.row_count, run, sequences, deliveries, sum([message.body_bytes for message in messages]))
    claim.rows.append(rows)
    state.journal.claimed(queue, claim, rows)


def finish_claim(state: BrokerState, queue: Queue, claim: Claim) -> None:
    """It gets no more rows: note how many it has."""
    state.journal.claimant_changed(queue, claim.claimant)


# -- reading ----------------------------------------------------------------------------------------------------------


def messages_of(queue: Queue, claim: Claim, start: int, end: int) -> list[Message]:
    """The messages of the rows from `start` to `end`, or raise `ClaimBroken`."""
    found = []
    in_flight = queue.in_flight
    for receipt in claim.receipts(start, end):
        message = in_flight.get(receipt.sequence)
        deliveries = None if message is None else message.deliveries
        if message is not None and deliveries is not None and deliveries.is_named_by(receipt):
            found.append(message)
    expected = min(end, claim.row_count) - start
    if len(found) != expected:
        raise ClaimBroken(
            f"{expected - len(found)} of the rows {start} to {start + expected} of claim {claim.number} of consumer "
            f"{claim.claimant.consumer!r} are gone from queue {queue.name!r}: purged, settled by message id, or set "
            "aside. Release the claim and claim anew; what is left comes again."
        )
    return found


# -- ending -----------------------------------------------------------------------------------------------------------


def renew(state: BrokerState, queue: Queue, claimant: Claimant, lease_ms: int, *, now_ms: int) -> list[Claim]:
    """All open claims now end `lease_ms` from now."""
    claims = claimant.open_claims
    for claim in claims:
        claim.expires_at_ms = now_ms + lease_ms
        state.calendar.remove(claim)
        state.calendar.add(claim, claim.expires_at_ms, now_ms)
    if claims:
        state.journal.claimant_changed(queue, claimant)
    return claims


def acknowledge_up_to(state: BrokerState, queue: Queue, claimant: Claimant, number: int) -> tuple[list[Claim], int]:
    """Everything up to this number is done with. Returns the claims to be worked off, and how many rows it is too late
    for."""
    if number <= claimant.acknowledged:
        return [], 0
    closed = [claim for claim in claimant.open_claims if claim.number <= number]
    late = sum(rows for ended, (how, rows) in claimant.ended.items() if ended <= number and how is ClaimState.EXPIRED)
    claimant.acknowledged = number
    claimant.late_count += late
    for ended in [ended for ended in claimant.ended if ended <= number]:
        del claimant.ended[ended]
    _close(state, queue, claimant, closed, ClaimState.ACKNOWLEDGED)
    return closed, late


def count_late(state: BrokerState, queue: Queue, claimant: Claimant, number: int) -> None:
    """Somebody tried to acknowledge what had expired."""
    how, rows = claimant.ended.get(number, (None, 0))
    if how is ClaimState.EXPIRED and rows:
        claimant.late_count += rows
        # Counted once, however often it is tried.
        claimant.ended[number] = (how, 0)
        state.journal.claimant_changed(queue, claimant)


def release_after(state: BrokerState, queue: Queue, claimant: Claimant, after: int) -> list[Claim]:
    """Claims above `after` go back, and the name is free. Returns those to be worked off."""
    closed = [claim for claim in claimant.open_claims if claim.number > after]
    claimant.session = ""
    _close(state, queue, claimant, closed, ClaimState.RELEASED)
    return closed


def expire_claim(state: BrokerState, queue: Queue, claim: Claim) -> None:
    _close(state, queue, claim.claimant, [claim], ClaimState.EXPIRED)


def work_off(state: BrokerState, queue: Queue, claim: Claim, limit: int, *, chance: float = 0.0, now_ms: int) -> bool:
    """Settle the next rows of a claim that has ended, as it ended; True while there are more."""
    if claim.state is not ClaimState.ACKNOWLEDGED and queue.settings.dead_letter_exchange is not None:
        # Each may become a dead letter, and that in very many queues.
        limit = 1
    start, end = claim.worked_off, claim.worked_off + limit
    receipts = list(claim.receipts(start, end))
    late = min(end, claim.row_count) - start - len(receipts)
    if claim.state is ClaimState.ACKNOWLEDGED:
        outcomes = acknowledge(state, receipts, now_ms=now_ms)
        late += sum(outcome is not None for outcome in outcomes)
    else:
        for receipt in receipts:
            late += not _give_back(state, claim, receipt, chance, now_ms)
            state.journal.between()
    claim.worked_off = min(end, claim.row_count)
    claim.late_count += late
    claim.settled_count += claim.worked_off - start - late
    if claim.worked_off < claim.row_count:
        return True
    claimant = claim.claimant
    claimant.claims.pop(claim.number, None)
    state.calendar.remove(claim)
    state.journal.claimant_changed(queue, claimant)
    return False


def _give_back(state: BrokerState, claim: Claim, receipt: Receipt, chance: float, now_ms: int) -> bool:
    held = find_held(state, receipt)
    if held is None:
        return False
    queue, message = held
    if claim.state is ClaimState.RELEASED:
        release(state, receipt, now_ms=now_ms)
    else:
        fail(state, queue, message, Reason.TIMED_OUT, chance=spread(chance, message.sequence), now_ms=now_ms)
    return True


def _close(state: BrokerState, queue: Queue, claimant: Claimant, claims: list[Claim], how: ClaimState) -> None:
    for claim in claims:
        state.calendar.remove(claim)
        claim.state = how
        if how is not ClaimState.ACKNOWLEDGED:
            claimant.ended[claim.number] = (how, claim.row_count)
            while len(claimant.ended) > ENDED_KEPT:
                del claimant.ended[min(claimant.ended)]
    state.journal.claimant_changed(queue, claimant)


# -- queues, restarts -------------------------------------------------------------------------------------------------


def held_by_claims(state: BrokerState, queue: Queue) -> set[int]:
    """The sequences that claims hold, open or closing."""
    return {
        sequence
        for claimant in claimants(state, queue)
        for claim in claimant.claims.values()
        for rows in claim.rows
        for sequence in rows.sequences
    }


def attach_claims(state: BrokerState, now_ms: int) -> None:
    """After a replay: give every claim its place in the calendar, and sessions time to be seen again."""
    for number in [number for number in state.claimants if number not in state.queues]:
        del state.claimants[number]
    for by_name in state.claimants.values():
        for claimant in by_name.values():
            claimant.seen_at_ms = now_ms
            for claim in claimant.claims.values():
                is_open = claim.state is ClaimState.OPEN
                state.calendar.add(claim, claim.expires_at_ms if is_open else now_ms, now_ms)
