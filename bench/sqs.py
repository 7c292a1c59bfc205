"""Rates over SQS beside moto's server: requests as boto3 writes them, ten messages in each.

A connection has one request under way, and so at most ten messages: `connections` is what makes the difference here,
and "1 message in flight" and "1,000 a second" send them singly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench import peers, rows
from bench.links import Work
from bench.shapes import Shape


def _works(make: Callable[[int], Shape]) -> Mapping[str, Work]:
    small = make(100)
    return {
        **rows.common(make),
        "100 B, 32 connections": Work(small, connections=32),
        "1 KB, 32 connections": Work(make(1024), connections=32),
        "100 B, 32 connections, single messages": Work(small, connections=32, window=32),
        "100 B, 1,000 a second": Work(small, connections=10, per_second=1_000),
    }


def main() -> None:
    rows.measure(peers.over_sqs(), rows.shaped(_works))
