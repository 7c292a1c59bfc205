"""JOB: a job, all of it, when it starts and when it has ended. The latest counts, with the JOB_ADVANCED behind it."""

from __future__ import annotations

import msgspec

from smista.core.jobs import JobState, Plan
from smista.records.kinds import Kind
from smista.records.packed import codec


class Job(msgspec.Struct, frozen=True, array_like=True):
    sequence: int
    """Messages with a lower one were there when it started."""
    plan: Plan
    created_at_ms: int
    state: JobState
    place: int
    """Which of the plan's places it is searching ..."""
    after: int
    """... and the sequence up to which it has."""
    moved: int
    strays: int
    """Left alone, since they never were dead letters."""
    ended_at_ms: int
    code: str
    error: str


encode, decode = codec(Kind.JOB, Job)
