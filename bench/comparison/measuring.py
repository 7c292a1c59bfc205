"""Makes the measurements of a comparison."""

from __future__ import annotations

import datetime
import statistics
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from bench import peers, scenarios
from bench.comparison import report
from bench.comparison.report import Report
from bench.links import Work
from bench.machine import describe
from bench.peers.peer import Peer, output
from bench.shapes import Shape, alike, own
from bench.turns import by_turns, summary

SECTIONS = ("rates", "latencies", "backlogs", "soaks")
PACES = (1_000, 10_000)
SUSTAINABLE = 0.8
"""A pace beyond this share of its peak measures only how a queue grows."""
_PACED_PUBLISHERS = 10
"""A steady pace takes turns of the loader's loop; with more publishers each of them has longer for its own."""


class Options(NamedTuple):
    runs: int
    seconds: float
    backlog: int
    soak_s: float
    sections: Sequence[str]


def measure(options: Options, command: str) -> Report:
    found = peers.every()
    described = Report(
        describe(),
        datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        output("git", "rev-parse", "--short", "HEAD"),
        command,
        [report.Peer(kind.name, _version(kind), kind.durability, kind.connections) for kind in found],
    )
    # The peaks that the other sections need come from the rates.
    _rates(described, found, options)
    if "latencies" in options.sections:
        _latencies(described, found, options)
    if "backlogs" in options.sections:
        _backlogs(described, found, options)
    if "soaks" in options.sections:
        _soaks(described, found, options)
    return described


def _version(kind: type[Peer]) -> str:
    with kind.running() as peer:
        return peer.version()


def _each(peer: Peer, shape: Shape) -> Work:
    """With as many connections as are best for that peer."""
    return Work(shape, connections=peer.connections)


def _rates(found: Report, kinds: Sequence[type[Peer]], options: Options) -> None:
    shapes = [make(size) for make in (own, alike) for size in (100, 1024)]
    for shape in shapes if "rates" in options.sections else shapes[:1]:
        label = f"{shape.name}, {shape.size} B"

        def work(peer: Peer, shape: Shape = shape) -> Coroutine[Any, Any, scenarios.Result]:
            return scenarios.end_to_end(peer, _each(peer, shape), options.seconds)

        found.rates[label] = _measured(label, kinds, work, options)


def _latencies(found: Report, kinds: Sequence[type[Peer]], options: Options) -> None:
    for pace in (*PACES, None):
        label = f"{pace:,} a second" if pace else "half of the peak"

        def work(peer: Peer, pace: int | None = pace) -> Coroutine[Any, Any, scenarios.Result]:
            return scenarios.end_to_end(peer, _paced(peer, pace or peak(found, peer.name) / 2), options.seconds)

        able = [
            kind for kind in kinds if peak(found, kind.name) * SUSTAINABLE >= (pace or 0) and peak(found, kind.name)
        ]
        found.latencies[label] = _measured(label, able, work, options)


def _paced(peer: Peer, per_second: float) -> Work:
    return Work(own(100), connections=max(peer.connections, _PACED_PUBLISHERS), per_second=per_second)


def peak(found: Report, name: str) -> float:
    runs = next(iter(found.rates.values())).get(name, [])
    return statistics.median(run.rate for run in runs) if runs else 0.0


def _measured(
    label: str,
    kinds: Sequence[type[Peer]],
    work: Callable[[Peer], Coroutine[Any, Any, scenarios.Result]],
    options: Options,
) -> dict[str, list[report.Rate]]:
    _tell(label)
    results = by_turns(kinds, work, runs=options.runs)
    for name, runs in results.items():
        _tell(f"  {name:<20} {summary(runs) if runs else '-'}")
    return {name: [report.rate(run) for run in runs] for name, runs in results.items()}


def _backlogs(found: Report, kinds: Sequence[type[Peer]], options: Options) -> None:
    _tell(f"a backlog of {options.backlog:,}")
    limit_s = 300 + options.backlog / 500

    def work(peer: Peer) -> Coroutine[Any, Any, scenarios.Backlog]:
        return scenarios.backlog(peer, _each(peer, own(100)), options.backlog)

    found.backlogs = by_turns(kinds, work, runs=options.runs, limit_s=limit_s)
    for name, runs in found.backlogs.items():
        _tell(f"  {name:<20} {runs}")


def _soaks(found: Report, kinds: Sequence[type[Peer]], options: Options) -> None:
    _tell(f"{options.soak_s:,.0f} s at half of the peak")

    def work(peer: Peer) -> Coroutine[Any, Any, list[scenarios.Sample]]:
        work = _paced(peer, min(peak(found, peer.name) / 2, 10_000))
        return scenarios.soak(peer, work, options.soak_s, max(1.0, options.soak_s / 60))

    able = [kind for kind in kinds if peak(found, kind.name)]
    soaks = by_turns(able, work, runs=1, limit_s=options.soak_s * 2 + 120)
    found.soaks = {name: runs[0] for name, runs in soaks.items() if runs}
    for name, samples in found.soaks.items():
        _tell(f"  {name:<20} {len(samples)} samples, {report.drift(samples)}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
