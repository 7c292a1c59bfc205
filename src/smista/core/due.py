"""What happens when a deadline comes: schedules end, leases and claims run out, messages expire, jobs go on, queues are
looked after.

Done in slices: the caller says how many entries of the calendar at most, so that a million messages expiring in one
instant never hold up anybody else for long. A queue whose retention is over, or a claim, is one entry that stands for
up to some hundred messages; it comes again for the rest. Where messages become dead letters in very many queues, what
is left of a slice waits for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from smista.core import redriving
from smista.core.calendar import Entry
from smista.core.claims import Claim, ClaimState, expire_claim, work_off
from smista.core.dead_letters import expire, is_much
from smista.core.declaring import delete_queue, schedule_check
from smista.core.jobs import Job
from smista.core.message import Message, Reason, State
from smista.core.queue import Queue
from smista.core.retry import spread
from smista.core.settling import fail
from smista.core.state import BrokerState

RETIRED_AT_ONCE = 500
ROWS_AT_ONCE = 250


def run_due(state: BrokerState, *, now_ms: int, limit: int = 500, chance: float = 0.0) -> list[Entry]:
    """Do what is due, up to `limit` entries. Returns due entries that are not of the core (the engine's own)."""
    foreign: list[Entry] = []
    due = state.calendar.pop_due(now_ms, limit)
    # What becomes ready is one record per queue, so it comes first: nothing else may happen to it before that is noted.
    since = state.work
    others = _become_ready(state, due, now_ms)
    done = 0
    try:
        for entry in others:
            state.journal.between()
            if is_much(state, since):
                break
            done += 1
            if type(entry) is Message:
                # An earlier one in this slice may have settled it.
                if entry.deadline_ms is not None and entry.deadline_ms <= now_ms:
                    _message_due(state, entry, now_ms, chance)
            elif type(entry) is Queue:
                _queue_due(state, entry, now_ms)
            elif type(entry) is Claim:
                _claim_due(state, entry, now_ms, chance)
            elif type(entry) is Job:
                redriving.go_on(state, entry, now_ms=now_ms)
            else:
                foreign.append(entry)
    except BaseException:
        # The others' time must not be forgotten with the one that failed; nobody else gets these now.
        _put_back(state, foreign, now_ms)
        raise
    finally:
        _put_back(state, others[done:], now_ms)
    return foreign


def _put_back(state: BrokerState, entries: Sequence[Entry], now_ms: int) -> None:
    for entry in entries:
        if entry.deadline_ms is not None:
            state.calendar.add(entry, entry.deadline_ms, now_ms)


def _become_ready(state: BrokerState, due: Sequence[Entry], now_ms: int) -> list[Entry]:
    """The scheduled messages among what is due; returns the rest of it."""
    readied: dict[Queue, list[Message]] = {}
    others: list[Entry] = []
    for entry in due:
        queue = state.queues.get(entry.queue) if type(entry) is Message else None
        if queue is not None and type(entry) is Message and queue.scheduled.get(entry.sequence) is entry:
            queue.become_ready(entry, now_ms)
            readied.setdefault(queue, []).append(entry)
        else:
            others.append(entry)
    for queue, messages in readied.items():
        state.journal.became_ready(queue, messages, now_ms)
        for message in messages:
            state.entered(queue, message, now_ms)
    return others


def _message_due(state: BrokerState, message: Message, now_ms: int, chance: float) -> None:
    queue = state.queues.get(message.queue)
    # A purge empties the tables at once and leaves deadlines behind.
    if queue is None or queue.find(message.sequence) is not message:
        message.deadline_ms = None
        return
    match message.state:
        case State.IN_FLIGHT:
            message.deadline_ms = None
            fail(state, queue, message, Reason.TIMED_OUT, chance=spread(chance, message.sequence), now_ms=now_ms)
        case State.READY:
            expire(state, queue, message, now_ms=now_ms)


def _queue_due(state: BrokerState, queue: Queue, now_ms: int) -> None:
    queue.deadline_ms = None
    if queue.is_deleted:
        return
    expires_ms = queue.settings.expires_ms
    if expires_ms is not None:
        if queue.is_watched:
            queue.used_at_ms = now_ms
        if queue.used_at_ms + expires_ms <= now_ms:
            delete_queue(state, queue, now_ms=now_ms)
            return
    has_more = _retire(state, queue, now_ms)
    schedule_check(queue, now_ms)
    if queue.rate is not None and queue.is_watched:
        state.woken[queue] = None
    if has_more:
        queue.calendar.remove(queue)
        queue.calendar.add(queue, now_ms, now_ms)


def _claim_due(state: BrokerState, claim: Claim, now_ms: int, chance: float) -> None:
    """A claim's time is up, or it ended before and there is more to be worked off."""
    claim.deadline_ms = None
    queue = state.queues.get(claim.claimant.queue)
    if queue is None or claim.claimant.claims.get(claim.number) is not claim:
        return
    if claim.state is ClaimState.OPEN:
        expire_claim(state, queue, claim)
    if work_off(state, queue, claim, ROWS_AT_ONCE, chance=chance, now_ms=now_ms):
        state.calendar.add(claim, now_ms, now_ms)


def _retire(state: BrokerState, queue: Queue, now_ms: int) -> bool:
    """Let go of ready and dead messages older than the queue's retention; True if there may be more."""
    retention_ms = queue.settings.retention_ms
    if retention_ms is None:
        return False
    old: list[Message] = []
    for table in (queue.ready, queue.dead):
        for message in table.values():
            since_ms = message.deaths[-1].at_ms if message.state is State.DEAD else message.ready_at_ms
            if since_ms + retention_ms > now_ms or len(old) >= RETIRED_AT_ONCE:
                break
            old.append(message)
    since = state.work
    for message in old:
        if is_much(state, since):
            return True
        expire(state, queue, message, now_ms=now_ms)
    return len(old) >= RETIRED_AT_ONCE
