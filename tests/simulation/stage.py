"""The stage on which a life is played: clocks, chances, threads and sizes of the engine are the simulator's.

Nothing of this is a seam of the engine's own. Its modules read `time`, `random` and `threading` as names in themselves,
so that those names can lead here while a life is played. Bounds that are sized for thousands of messages are made so
small that a life of fifty steps meets them.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import smista.core.browsing
import smista.core.claims
import smista.core.dead_letters
import smista.core.due
import smista.core.entering
import smista.core.governing
import smista.core.jobs
import smista.core.receiving
import smista.core.redriving
import smista.core.trimming
import smista.engine.broker
import smista.engine.browsing
import smista.engine.claim_rows
import smista.engine.claiming
import smista.engine.commit
import smista.engine.deadlines
import smista.engine.declaring
import smista.engine.keeper
import smista.engine.measures
import smista.engine.paging
import smista.engine.publishing
import smista.engine.redriving
import smista.engine.running
import smista.engine.settling
import smista.engine.slices
import smista.engine.staging
import smista.engine.statistics
import smista.engine.subscribing
from smista.core.queue import Queue
from smista.engine.commit import Committer
from tests.simulation.loop import SimulatedLoop

_ENGINE = (
    smista.engine.claiming,
    smista.engine.commit,
    smista.engine.deadlines,
    smista.engine.keeper,
    smista.engine.measures,
    smista.engine.paging,
    smista.engine.settling,
    smista.engine.slices,
    smista.engine.staging,
    smista.engine.statistics,
)
_SIZES: tuple[tuple[ModuleType, str, object], ...] = (
    (smista.core.receiving, "EXPIRED_AT_ONCE", 2),
    (smista.core.claims, "CLAIMANTS_KEPT", 2),
    (smista.core.claims, "ENDED_KEPT", 4),
    (smista.core.browsing, "LOOKED_AT_MAX", 2),
    (smista.core.redriving, "LOOKED_AT_ONCE", 4),
    (smista.core.redriving, "MOVED_AT_ONCE", 2),
    (smista.core.jobs, "ENDED_KEPT", 2),
    (smista.core.jobs, "RUNNING_MAX", 3),
    (smista.core.trimming, "MADE_ROOM_AT_ONCE", 3),
    (smista.core.due, "RETIRED_AT_ONCE", 2),
    (smista.core.due, "ROWS_AT_ONCE", 2),
    (smista.core.trimming, "TRIMMED_AT_ONCE", 2),
    (smista.engine.claim_rows, "READ_AT_ONCE", 2),
    (smista.engine.claiming, "TAKEN_AT_ONCE", 2),
    (smista.engine.declaring, "GOVERNED_AT_ONCE", 1),
    (smista.engine.declaring, "GOVERNED_FIRST", 1),
    (smista.engine.keeper, "DROPPED_AT_ONCE", 2),
    (smista.engine.measures, "LAG_INTERVAL_S", 1_000_000.0),
    (smista.engine.paging, "BACKLOG", 1),
    (smista.engine.paging, "BLOCKS_KEPT", 1),
    (smista.engine.browsing, "LOOKED_AT_ONCE", 2),
    (smista.engine.redriving, "LOOKED_AT_ONCE", 2),
    (smista.engine.redriving, "SLICE", 2),
    (smista.engine.publishing, "STEP_BYTES_MAX", 100),
    (smista.engine.running, "FREED_AT_ONCE", 2),
    (smista.engine.running, "SERVED_AT_ONCE", 2),
    (smista.engine.subscribing, "SETTLED_AT_ONCE", 2),
    (smista.engine.settling, "SETTLED_AT_ONCE", 2),
    (smista.engine.slices, "SLICE", 2),
    (smista.engine.deadlines, "SLICE", 3),
    (smista.engine.staging, "STEP", 2),
    (smista.engine.staging, "STEP_BYTES_MAX", 40),
)


def _number_of(queue: Queue) -> int:
    return queue.number


class StillFull(BaseException):
    """The log's thread would wait here for room on the disk."""


class Flag:
    """`threading.Event` without threads: waiting for it in vain ends the step of whoever waits."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        if not self._is_set:
            raise StillFull
        return True


class LogThread:
    """The log's thread, one job at a time, each when the simulator says so. `Committer._run` is its model."""

    def __init__(self, loop: SimulatedLoop, target: Callable[[], None], has_room: Callable[[], bool]) -> None:
        committer = getattr(target, "__self__", None)
        assert isinstance(committer, Committer)
        self._loop = loop
        self._committer = committer
        self.has_room = has_room
        self._job: Any = None
        """The block that waits for room."""
        self._retry_at_us = 0
        self.has_ended = False

    def start(self) -> None:
        pass

    def join(self) -> None:
        """Whoever joins it waits until everything is done."""
        while not self.has_ended:
            self.step()

    @property
    def can_step(self) -> bool:
        if self.has_ended:
            return False
        if self._job is not None:
            is_hasty = self.has_room() or self._committer._has_stopped.is_set()
            return is_hasty or self._retry_at_us <= self._loop.now_us
        return not self._committer._jobs.empty()

    def step(self) -> None:
        committer = self._committer
        try:
            job = self._job if self._job is not None else committer._jobs.get_nowait()
        except queue.Empty:
            raise AssertionError("the log's thread was joined and never got its end") from None
        if job is None:
            self.has_ended = True
            return
        self._job = None
        with self._loop.in_thread():
            try:
                if isinstance(job, tuple):
                    if not committer._append(*job):
                        self.has_ended = True
                else:
                    job()
                while committer._jobs.empty() and committer._log.tidy():
                    pass
            except StillFull:
                self._job = job
                self._retry_at_us = self._loop.now_us + int(smista.engine.commit.FULL_RETRY_S * 1_000_000)
            except BaseException as error:
                self.has_ended = True
                committer._post(committer._failed, error)


class Chances:
    """`random` and the clock that measures slices: both go by the step that is being played."""

    def __init__(self) -> None:
        self.source = random.Random(0)
        self._elapsed_s = 0.0

    def random(self) -> float:
        return self.source.random()

    def perf_counter(self) -> float:
        """Now and then a slice's time is over."""
        if self.source.random() < 0.3:
            self._elapsed_s += 0.004
        return self._elapsed_s

    def monotonic(self) -> float:
        return self._elapsed_s


@contextmanager
def simulated(
    loop: SimulatedLoop,
    chances: Chances,
    on_thread: Callable[[LogThread], None],
    has_room: Callable[[], bool],
    journal: type,
    recovery: type,
    governing: type,
) -> Iterator[None]:
    """While this is open the engine runs on the simulator's loop, clock and chances."""

    def make_thread(*, target: Callable[[], None], name: str, daemon: bool) -> LogThread:
        thread = LogThread(loop, target, has_room)
        on_thread(thread)
        return thread

    clock = SimpleNamespace(perf_counter=chances.perf_counter, monotonic=chances.monotonic)
    threads = SimpleNamespace(Thread=make_thread, Event=Flag)
    changes: list[tuple[ModuleType | type, str, object]] = list(_SIZES)
    # The order of a set would else depend on where things lie in memory.
    changes.append((Queue, "__hash__", _number_of))
    changes += [(smista.engine.keeper, "EngineJournal", journal), (smista.engine.broker, "Recovery", recovery)]
    changes.append((smista.core.governing, "Governing", governing))
    for engine in _ENGINE:
        for name, real, ours in (("time", time, clock), ("random", random, chances), ("threading", threading, threads)):
            if getattr(engine, name, None) is real:
                changes.append((engine, name, ours))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
