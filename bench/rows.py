"""The rows that are measured over AMQP, the stream and SQS: each for messages with ids and headers of their own, which
is what programs send, and for messages that are all alike."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bench.links import Work
from bench.peers.peer import Peer
from bench.scenarios import Result, end_to_end
from bench.shapes import Shape, alike, own
from bench.turns import by_turns, show

Scenario = Callable[[Peer], Coroutine[Any, Any, Result]]


def common(make: Callable[[int], Shape]) -> dict[str, Work]:
    small, large = make(100), make(1024)
    return {
        "100 B": Work(small),
        "1 KB": Work(large),
        "100 B, single acks": Work(small, acks_single=True),
        "1 KB, single acks": Work(large, acks_single=True),
        "100 B, 10 connections": Work(small, connections=10, prefetch=500),
        "100 B, 50 connections": Work(small, connections=50, prefetch=200),
        "100 B, 100 queues": Work(small, queues=100, prefetch=200),
        "100 B, 50 connections, 100 queues": Work(small, connections=50, queues=100, prefetch=200),
        "100 B, 1 message in flight": Work(small, window=1, prefetch=1),
        "100 B, 1,000 a second": Work(small, per_second=1_000),
    }


def shaped(works: Callable[[Callable[[int], Shape]], Mapping[str, Work]]) -> Iterator[tuple[str, Scenario]]:
    for make in (own, alike):
        for label, work in works(make).items():
            yield f"{make(100).name}, {label}", partial(end_to_end, work=work)


def measure(peers: Sequence[type[Peer]], rows: Iterator[tuple[str, Scenario]]) -> None:
    """`SMISTA_TEST_BENCH_SCENARIOS` is a pattern for the rows to be measured."""
    chosen = os.environ.get("SMISTA_TEST_BENCH_SCENARIOS", "")
    for label, scenario in rows:
        if re.search(chosen, label):
            print(label, flush=True)
            show(by_turns(peers, scenario))
