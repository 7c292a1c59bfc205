"""JOB_ADVANCED: how far a job is. The move that it counts stands in the same block."""

from __future__ import annotations

from typing import NamedTuple

from smista.records.frames import framed
from smista.records.kinds import Kind
from smista.records.layout import U32, U64, Layout

HEAD = Layout(queue=U32, sequence=U64, place=U32, after=U64, moved=U64, strays=U64)
FIELDS = HEAD.fields


class JobAdvanced(NamedTuple):
    queue: int
    """The one that the job belongs to."""
    sequence: int
    """Of the job."""
    place: int
    after: int
    moved: int
    strays: int


def encode(advanced: JobAdvanced) -> bytes:
    return framed(Kind.JOB_ADVANCED, HEAD.pack(*advanced))


def decode(data: memoryview) -> JobAdvanced:
    return JobAdvanced(*HEAD.read(data))
