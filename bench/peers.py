"""The brokers that a benchmark drives by turns: this checkout, another one, and RabbitMQ.

`SMISTA_TEST_BENCH_BEFORE` names another checkout of Smista, with an environment of its own (`make environment`), to
compare this one with. Both are driven by the loader of this one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from bench import rabbitmq
from bench.serving import serving

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Running(NamedTuple):
    port: int
    pids: list[int]

    def cpu_s(self) -> float:
        """What its processes have used of all cores so far, with all their threads."""
        return sum(map(_cpu_s, self.pids))


class Peer(NamedTuple):
    name: str
    running: Callable[[], AbstractContextManager[Running]]


def smistas() -> list[tuple[str, str]]:
    """Name and Python of each checkout."""
    found = [("smista", sys.executable)]
    before = os.environ.get("SMISTA_TEST_BENCH_BEFORE")
    return [*found, ("before", str(Path(before) / ".venv" / "bin" / "python"))] if before else found


def over_amqp() -> list[Peer]:
    peers = [Peer(name, lambda python=python: _smista(python)) for name, python in smistas()]  # type: ignore[misc]
    if os.environ.get("SMISTA_TEST_BENCH_ALONE"):
        return peers
    if rabbitmq.install():
        return [*peers, Peer("rabbitmq", _rabbitmq)]
    print("RabbitMQ is not installed and cannot be; measuring without it", flush=True)
    return peers


@contextlib.contextmanager
def _smista(python: str) -> Iterator[Running]:
    with serving(python) as server:
        yield Running(server.amqp_port, [server.pid])


@contextlib.contextmanager
def _rabbitmq() -> Iterator[Running]:
    with rabbitmq.running() as (port, session):
        yield Running(port, _of_session(session))


def _of_session(session: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _stat(pid)[3:4] == [str(session)]]


def _stat(pid: int) -> Sequence[str]:
    """What follows the command's name in /proc: state, parent, group, session ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S if fields else 0.0
