"""Jobs on a running broker: started, listed, cancelled, waited for. What they do is done by the calendar, see
`core/jobs` and `core/redriving`; so opening a broker goes on with them, and closing it stops them where they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypedDict, Unpack

import msgspec

from smista.core import jobs
from smista.core.browsing import Wanted
from smista.core.jobs import Job, JobState
from smista.core.queue import Queue
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.running import Running
from smista.errors import BrokerError, RedriveNotFound, RedriveRunning

QUEUES_AT_ONCE = 20
"""With at most 110 jobs each."""
SHOWN_AT_ONCE = 500


def _keep_last(jobs_found: list[Job], count: int) -> None:
    """So many of those that were started last, the last of them first."""
    jobs_found.sort(key=lambda job: job.sequence, reverse=True)
    del jobs_found[count:]


class JobView(msgspec.Struct, frozen=True):
    """A job at one moment."""

    id: str
    queue: str
    """The one that it belongs to."""
    to: str | None
    limit: int | None
    per_second: float | None
    expected: int
    """How many there were to move when it started, at most."""
    moved: int
    strays: int
    """Messages that it left alone, since they never were dead letters."""
    state: JobState
    started_at_ms: int
    ended_at_ms: int | None
    code: str | None
    """Of the error it failed with."""
    error: str | None


class Bounds(TypedDict, total=False):
    limit: int | None
    per_second: float | None


class How(Bounds, total=False):
    to: str | None
    namespace: str


class Jobs:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state
        jobs.resume(self._state, running.clock.now_ms())

    async def start(self, places: Sequence[tuple[str, Wanted]], **how: Unpack[How]) -> JobView:
        """Start to send dead letters back to where they came from, or to queue `to`.

        What is in these queues now, one after the other: what is wanted of each (all of the same headers and messages),
        as far as `limit`. The job belongs to the first queue; those of the others that are not there are left out.
        `RedriveRunning` where another job may want one of these messages, or the first queue has too many jobs.
        """
        job = self._start(places, **how)
        await self._running.done_durably()
        return self._view(job, places[0][0])

    async def run(self, places: Sequence[tuple[str, Wanted]], **how: Unpack[How]) -> JobView:
        """As `start`; returns when it has ended, or raises why it failed. Whoever waits may go; the job goes on."""
        job = self._start(places, **how)
        ended: asyncio.Future[None] = self._running.loop.create_future()

        def on_end(error: BrokerError | None) -> None:
            if not ended.done():
                if error is None:
                    ended.set_result(None)
                else:
                    ended.set_exception(error)

        job.on_end = on_end
        try:
            self._running.after()
            await ended
        finally:
            job.on_end = None
        await self._running.keeper.durable()
        if job.failure is not None:
            raise job.failure
        return self._view(job, places[0][0])

    def of_queue(self, queue: str, *, namespace: str = DEFAULT_NAMESPACE) -> list[JobView]:
        """Those that run and the latest that have ended, the one that was started last first."""
        self._running.enter()
        of_queue = self._state.jobs.get(self._state.queue(queue, namespace).number, {})
        return [self._view(of_queue[sequence], queue) for sequence in sorted(of_queue, reverse=True)]

    async def page(
        self, queue: str | None = None, *, after: int = 0, limit: int, namespace: str = DEFAULT_NAMESPACE
    ) -> tuple[list[JobView], int | None]:
        """So many of those of a queue, or of all queues of a namespace, the one that was started last first; and where
        the next page starts, None when this was the last."""
        self._running.enter()
        jobs_of = self._state.jobs
        numbers = list(jobs_of) if queue is None else [self._state.queue(queue, namespace).number]
        found: list[Job] = []
        async for some in self._running.fair_turns.slices(numbers, QUEUES_AT_ONCE):
            there = (job for number in some for job in jobs_of.get(number, {}).values())
            found += (job for job in there if self._is_of(job, namespace) and not 0 < after <= job.sequence)
            if len(found) > 2 * limit:
                _keep_last(found, limit + 1)
        _keep_last(found, limit + 1)
        page = found[:limit]
        queues, shown = self._state.queues, list[JobView]()
        async for few in self._running.fair_turns.slices(page, SHOWN_AT_ONCE):
            # Its queue may have been deleted while others had their turn.
            shown += [self._view(job, queues[job.queue].name) for job in few if self._is_of(job, namespace)]
        return shown, page[-1].sequence if len(found) > limit else None

    async def cancel(self, queue: str, job_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> JobView:
        """End a job; what it has moved stays moved."""
        now_ms = self._running.enter()
        source = self._state.queue(queue, namespace)
        for job in self._state.jobs.get(source.number, {}).values():
            if self._id(job) == job_id:
                jobs.cancel(self._state, job, now_ms=now_ms)
                await self._running.done_durably()
                return self._view(job, queue)
        raise RedriveNotFound(f"Queue {queue!r} has no redrive {job_id!r:.100}; list them to see which there are.")

    def _start(
        self,
        places: Sequence[tuple[str, Wanted]],
        *,
        to: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        **how: Unpack[Bounds],
    ) -> Job:
        now_ms = self._running.enter()
        (name, wanted), *others = places
        sources: list[tuple[Queue, Wanted]] = [(self._state.queue(name, namespace), wanted)]
        there = self._state.namespace(namespace).queues
        sources += [(there[name], wanted) for name, wanted in others if name in there]
        target = None if to is None else self._state.queue(to, namespace)
        if (found := jobs.in_the_way(self._state, sources)) is not None:
            other, queue = found
            owner = self._state.queues[other.queue].name
            raise RedriveRunning(
                f"Redrive {self._id(other)} of queue {owner!r} is running, and sends back messages of queue "
                f"{queue.name!r} too: wait until it has ended, or cancel it.",
                queue=owner,
            )
        return jobs.start(self._state, sources, to=target, now_ms=now_ms, **how)

    def _is_of(self, job: Job, namespace: str) -> bool:
        owner = self._state.queues.get(job.queue)
        return owner is not None and owner.namespace == namespace

    def _id(self, job: Job) -> str:
        return self._running.ids.message_id(job.sequence, job.created_at_ms)

    def _view(self, job: Job, queue: str) -> JobView:
        """`queue` is the one that it belongs to, which may have been deleted while this waited for the disk."""
        return JobView(
            id=self._id(job),
            queue=queue,
            to=job.plan.to,
            limit=job.plan.limit,
            per_second=job.plan.per_second,
            expected=job.plan.expected,
            moved=job.moved,
            strays=job.strays,
            state=job.state,
            started_at_ms=job.created_at_ms,
            ended_at_ms=job.ended_at_ms or None,
            code=job.code or None,
            error=job.error or None,
        )
