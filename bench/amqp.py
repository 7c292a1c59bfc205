"""Rates over AMQP beside RabbitMQ, and beside another checkout where `SMISTA_TEST_BENCH_BEFORE` names one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from bench import peers, rows
from bench.links import Work
from bench.scenarios import beside_backlog
from bench.shapes import Shape, alike, own

BACKLOG = int(os.environ.get("SMISTA_TEST_BENCH_BACKLOG", "1000000"))


def _works(make: Callable[[int], Shape]) -> Mapping[str, Work]:
    small, large = make(100), make(1024)
    return {
        **rows.common(make),
        "100 B, fan-out to 10 queues": Work(small, queues=10, fanout=True, window=500),
        "100 B, transient": Work(small, durable=False),
        "1 KB, transient": Work(large, durable=False),
    }


def _backlogs() -> Iterator[tuple[str, rows.Scenario]]:
    for make in (own, alike):
        label = f"{make(100).name}, 100 B, backlog of {BACKLOG:,}"
        yield label, partial(beside_backlog, work=Work(make(100)), count=BACKLOG)


def main() -> None:
    over_amqp = peers.over_amqp()
    rows.measure(over_amqp, rows.shaped(_works))
    rows.measure(over_amqp, _backlogs())
