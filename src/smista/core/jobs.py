"""Jobs: what goes on by itself once it was started, whoever asked for it, also after a restart. There is one kind: dead
letters are sent back, at a pace or as fast as it goes.

    start ──▶ RUNNING ──▶ COMPLETED
                 ├──────▶ CANCELLED     what was moved until then stays moved
                 └──────▶ FAILED        a target is full, or a queue is gone

- A job moves what was there when it started: what has a lower sequence than its own.
- What it is to do, its `Plan`, is noted when it starts. After each move it is noted how far that brought it, in the
  block of that move. So a restart goes on behind the last move that is on disk, and the count is exact.
- No two that run may want the same message: a dead-letter queue is emptied by one job, or by one for each of the
  queues it serves, under whichever name. See `in_the_way`.
- It belongs to the first of the queues that it searches, and goes with that one. Of its jobs that have ended a queue
  remembers the latest `ENDED_KEPT`.
- While it runs it is an entry of the calendar. Each time it is due some messages are moved, see `redriving`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from smista.core.browsing import Wanted
from smista.core.message import State
from smista.core.queue import Queue
from smista.core.rate import RateLimit
from smista.core.state import BrokerState
from smista.errors import BrokerError, InvalidArgument, QueueDeleted, RedriveEnded, RedriveRunning

ENDED_KEPT = 10
RUNNING_MAX = 100
"""So many of a queue may run at the same time."""


class JobState(enum.IntEnum):
    RUNNING = 0
    COMPLETED = 1
    CANCELLED = 2
    FAILED = 3


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A queue that is searched, and for what."""

    queue: int
    wanted: Wanted
    """All but the headers and messages, which are the plan's."""


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """What a job is to do."""

    places: Annotated[tuple[Place, ...], msgspec.Meta(min_length=1)]
    to: str | None
    """The queue that all of them go to; None: each goes to where it came from."""
    target: int | None
    """The number of that queue."""
    limit: int | None
    per_second: float | None
    expected: int
    """How many there were when it started, at most: some may be unlike what is wanted."""
    headers: dict[str, Any] | None = None
    """What is `Wanted` of these, in each place ..."""
    messages: tuple[tuple[int, int], ...] | None = None
    """... and of these: once, since they may be large."""


class Job(msgspec.Struct, kw_only=True, eq=False):
    sequence: int
    """Drawn from those of messages, so that it names the job and says which messages were there before."""
    plan: Plan
    created_at_ms: int
    state: JobState = JobState.RUNNING
    place: int = 0
    """Which of its places it is searching ..."""
    after: int = 0
    """... and the sequence up to which it has."""
    moved: int = 0
    strays: int = 0
    """Messages that it left alone, since they never died, and so came from nowhere."""
    ended_at_ms: int = 0
    code: str = ""
    """Of the error it failed with ..."""
    error: str = ""
    """... and what that says."""
    position: int = 0
    """The log block that holds all this."""

    # What is made anew by each run of the broker.
    deadline_ms: int | None = None
    queues: list[Queue | None] = msgspec.field(default_factory=list)
    """Those of its places; None for what is gone."""
    wanted: list[Wanted] = msgspec.field(default_factory=list)
    """What is looked for in each."""
    ahead: list[int] = msgspec.field(default_factory=list)
    """The next sequences to look at, last one first."""
    target: Queue | None = None
    rate: RateLimit | None = None
    failure: BrokerError | None = None
    on_end: Callable[[BrokerError | None], None] | None = None
    """Called when it has ended; or, with an error, when the broker has."""

    @property
    def queue(self) -> int:
        """The number of the queue that it belongs to."""
        return self.plan.places[0].queue


def in_the_way(state: BrokerState, places: Sequence[tuple[Queue, Wanted]]) -> tuple[Job, Queue] | None:
    """A running job that may want a message that is wanted of these queues, and the queue where it does."""
    for queue, wanted in places:
        for job, other in state.searched.get(queue.number, ()):
            if not wanted.excludes(other):
                return job, queue
    return None


def start(
    state: BrokerState,
    places: Sequence[tuple[Queue, Wanted]],
    *,
    to: Queue | None = None,
    limit: int | None = None,
    per_second: float | None = None,
    now_ms: int,
) -> Job:
    """Start to send back what is in these queues now, where nothing is in the way; `RedriveRunning` where the first has
    so many jobs already."""
    assert in_the_way(state, places) is None
    if per_second is not None and not per_second > 0:
        raise InvalidArgument(f"per_second is {per_second!r}; give a number above 0, or None for no limit.")
    queue = places[0][0]
    running = sum(job.state is JobState.RUNNING for job in state.jobs.get(queue.number, {}).values())
    if running >= RUNNING_MAX:
        raise RedriveRunning(
            f"{running} redrives of queue {queue.name!r} are running already; wait until one has ended, or cancel it."
        )
    headers, messages = places[0][1].headers, places[0][1].messages
    if any(wanted.headers != headers or wanted.messages != messages for _, wanted in places):
        raise InvalidArgument("All places of a redrive are searched for the same headers and the same messages.")
    plan = Plan(
        places=tuple(
            Place(source.number, msgspec.structs.replace(wanted, headers=None, messages=None))
            for source, wanted in places
        ),
        to=None if to is None else to.name,
        target=None if to is None else to.number,
        limit=limit,
        per_second=per_second,
        expected=_expected(places, limit),
        headers=headers,
        messages=None if messages is None else tuple(sorted(messages)),
    )
    job = Job(sequence=state.next_sequence, plan=plan, created_at_ms=now_ms)
    apply_job(state, job)
    _attach(state, job, now_ms)
    state.journal.job_noted(queue, job)
    return job


def cancel(state: BrokerState, job: Job, *, now_ms: int) -> None:
    if job.state is not JobState.RUNNING:
        raise RedriveEnded(f"The redrive has ended already: it is {job.state.name.lower()}. Nothing is left to cancel.")
    end(state, job, JobState.CANCELLED, now_ms=now_ms)


def end(state: BrokerState, job: Job, how: JobState, *, failure: BrokerError | None = None, now_ms: int) -> None:
    state.calendar.remove(job)
    for number in {place.queue for place in job.plan.places}:
        others = [entry for entry in state.searched.pop(number) if entry[0] is not job]
        if others:
            state.searched[number] = others
    job.state, job.ended_at_ms = how, now_ms
    if failure is not None:
        job.failure, job.code, job.error = failure, failure.code, str(failure)
    # They may be large, and nobody asks for them any more.
    job.plan = msgspec.structs.replace(job.plan, headers=None, messages=None)
    job.queues, job.wanted, job.ahead = [], [], []
    job.target = job.rate = None
    apply_job(state, job)
    state.journal.job_noted(state.queues[job.queue], job)


def queue_going(state: BrokerState, queue: Queue, *, now_ms: int) -> None:
    """A queue is about to be deleted: so much for its jobs."""
    for job in list(state.jobs.get(queue.number, {}).values()):
        if job.state is JobState.RUNNING:
            end(state, job, JobState.FAILED, failure=deleted(queue.name, job.moved), now_ms=now_ms)


def resume(state: BrokerState, now_ms: int) -> None:
    """Go on with the jobs that the end of an earlier run has cut short. Before anything is declared: what is gone is
    known by number, and a queue that is not durable leaves its own to others."""
    for job in [job for of_queue in state.jobs.values() for job in of_queue.values()]:
        if job.state is JobState.RUNNING:
            _attach(state, job, now_ms)
            if job.plan.to is not None and job.target is None:
                end(state, job, JobState.FAILED, failure=deleted(job.plan.to, job.moved), now_ms=now_ms)


def deleted(queue: str, moved: int) -> QueueDeleted:
    return QueueDeleted(f"Queue {queue!r} was deleted after {moved} messages had been moved.")


def _expected(places: Sequence[tuple[Queue, Wanted]], limit: int | None) -> int:
    count = sum(
        len(queue.dead) if wanted.state is State.DEAD else len(queue.ready) + len(queue.dead)
        for queue, wanted in places
    )
    return count if limit is None else min(count, limit)


def _attach(state: BrokerState, job: Job, now_ms: int) -> None:
    """Make what a running job needs beside what is in the log."""
    plan = job.plan
    job.queues = [state.queues.get(place.queue) for place in plan.places]
    messages = None if plan.messages is None else frozenset(plan.messages)
    job.wanted = [
        msgspec.structs.replace(place.wanted, headers=plan.headers, messages=messages) for place in plan.places
    ]
    for place, wanted in zip(plan.places, job.wanted, strict=True):
        state.searched.setdefault(place.queue, []).append((job, wanted))
    job.target = None if plan.target is None else state.queues.get(plan.target)
    if plan.per_second is not None:
        job.rate = RateLimit(plan.per_second, now_ms)
        # The first may go at once, and no more with it.
        job.rate.take(job.rate.available(now_ms) - 1)
    state.calendar.add(job, now_ms, now_ms)


# -- transitions, shared with recovery ------------------------------------------------------------------------------


def apply_job(state: BrokerState, job: Job) -> None:
    """A job has started or ended, or was found so in the log."""
    state.next_sequence = max(state.next_sequence, job.sequence + 1)
    of_queue = state.jobs.setdefault(job.queue, {})
    of_queue[job.sequence] = job
    ended = [one for one in of_queue.values() if one.state is not JobState.RUNNING]
    ended.sort(key=lambda one: (one.ended_at_ms, one.sequence))
    for oldest in ended[:-ENDED_KEPT]:
        del of_queue[oldest.sequence]


def apply_advanced(job: Job, place: int, after: int, moved: int, strays: int) -> None:
    job.place, job.after, job.moved, job.strays = place, after, moved, strays
