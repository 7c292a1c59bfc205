"""What a comparison found, as it is kept in JSON; tables and plots are made of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from bench.machine import percentile
from bench.scenarios import Backlog, Result, Sample

SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}

T = TypeVar("T")


class Peer(msgspec.Struct):
    name: str
    version: str
    durability: str
    connections: int


class Rate(msgspec.Struct):
    """One run."""

    rate: float
    cpu_us: float
    confirm_ms: dict[str, float]
    delivery_ms: dict[str, float]


class Report(msgspec.Struct):
    machine: str
    date: str
    commit: str
    command: str
    peers: list[Peer]
    rates: dict[str, dict[str, list[Rate]]] = {}
    """By row and peer."""
    latencies: dict[str, dict[str, list[Rate]]] = {}
    backlogs: dict[str, list[Backlog]] = {}
    soaks: dict[str, list[Sample]] = {}


def rate(result: Result) -> Rate:
    return Rate(result.rate, result.cpu_us, _ms(result.confirm), _ms(result.delivery))


def _ms(latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    return {name: percentile(ordered, share) * 1e3 for name, share in SHARES.items()} if ordered else {}


class Spread(msgspec.Struct):
    """The middle of some runs, and their range."""

    middle: float
    least: float
    most: float


def spread(runs: Sequence[T], value: Callable[[T], float]) -> Spread | None:
    values = [value(run) for run in runs]
    return Spread(statistics.median(values), min(values), max(values)) if values else None


class Drift(msgspec.Struct):
    """The last fifth of a soak over its first fifth, after a tenth to warm up: 1 is none."""

    rate: float
    p99: float
    memory: float


def drift(samples: list[Sample]) -> Drift | None:
    warm = samples[len(samples) // 10 :]
    fifth = len(warm) // 5
    if not fifth:
        return None

    def over(value: Callable[[Sample], float]) -> float:
        first, last = (statistics.mean(map(value, part)) for part in (warm[:fifth], warm[-fifth:]))
        return last / first if first else 1.0

    return Drift(
        over(lambda sample: sample.rate),
        over(lambda sample: sample.p99_ms),
        over(lambda sample: sample.memory_bytes),
    )
