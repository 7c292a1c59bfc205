"""The steps of a job that sends dead letters back: each moves some, or finds that the job is at its end.

What was found in one step may have left its queue, or gone with it, before the next: so each message is looked up when
its turn has come.
"""

from __future__ import annotations

from smista.core import dead_letters, jobs
from smista.core.browsing import sequences_after
from smista.core.jobs import Job, JobState
from smista.core.message import Message, State
from smista.core.queue import Queue
from smista.core.state import BrokerState
from smista.errors import BrokerError, QueueFull, QueueNotFound

MOVED_AT_ONCE = 250
LOOKED_AT_ONCE = 1_000


def go_on(state: BrokerState, job: Job, *, now_ms: int) -> None:
    """A job is due: move the next messages. If it is not at its end then, it is due again."""
    job.deadline_ms = None
    if job.state is not JobState.RUNNING:
        return
    rate = job.rate
    allowed = MOVED_AT_ONCE if rate is None else rate.available(now_ms)
    try:
        is_done = allowed > 0 and _move_some(state, job, min(allowed, MOVED_AT_ONCE), now_ms)
    except (QueueFull, QueueNotFound) as error:
        failure = type(error)(f"{error} {job.moved} messages had been moved.")
        jobs.end(state, job, JobState.FAILED, failure=failure, now_ms=now_ms)
    except BrokerError as error:
        jobs.end(state, job, JobState.FAILED, failure=error, now_ms=now_ms)
    else:
        if is_done:
            jobs.end(state, job, JobState.COMPLETED, now_ms=now_ms)
        else:
            state.calendar.add(job, now_ms if rate is None else max(now_ms, rate.next_at_ms()), now_ms)


def _move_some(state: BrokerState, job: Job, allowed: int, now_ms: int) -> bool:
    """Move up to so many; True where nothing is left to be done."""
    owner = state.queues[job.queue]
    if job.plan.limit is not None:
        allowed = min(allowed, job.plan.limit - job.moved)
        if allowed <= 0:
            return True
    looked_at, is_noted = 0, True
    while allowed > 0 and looked_at < LOOKED_AT_ONCE:
        found = _next(job)
        if found is None:
            return True
        queue, message = found
        is_noted = False
        looked_at += 1 if message is None else job.wanted[job.place].effort(message)
        if message is None or not _is_wanted(state, job, message):
            continue
        if job.plan.to is None and not message.deaths:
            job.strays += 1
        elif _move(state, job, queue, message, now_ms):
            job.moved += 1
            allowed -= 1
            if job.rate is not None:
                job.rate.take(1)
            state.journal.job_advanced(owner, job)
            is_noted = True
            state.journal.between()
    if not is_noted:
        state.journal.job_advanced(owner, job)
    state.looked_at += looked_at
    return False


def _next(job: Job) -> tuple[Queue, Message | None] | None:
    """The next message to look at, or None in its place where it has gone; None where there is no more."""
    while job.place < len(job.queues):
        queue = job.queues[job.place]
        if queue is not None and not queue.is_deleted:
            if not job.ahead:
                coming = sequences_after(queue, job.after, LOOKED_AT_ONCE)
                job.ahead = [sequence for sequence in reversed(coming) if sequence < job.sequence]
            if job.ahead:
                job.after = job.ahead.pop()
                return queue, queue.find(job.after)
        elif queue is not None and job.after:
            raise jobs.deleted(queue.name, job.moved)
        job.place, job.after, job.ahead = job.place + 1, 0, []
    return None


def _is_wanted(state: BrokerState, job: Job, message: Message) -> bool:
    return message.state in (State.READY, State.DEAD) and job.wanted[job.place].accepts(message, state.read_routing)


def _move(state: BrokerState, job: Job, queue: Queue, message: Message, now_ms: int) -> bool:
    target = job.target
    if target is not None and target.is_deleted:
        raise jobs.deleted(target.name, job.moved)
    return dead_letters.redrive(state, queue, message, to=target, now_ms=now_ms) is not None
