"""Rates with the SQLite log, every confirmation after its sync."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable

import uvloop

from bench.machine import spread
from smista.core.message import Publication
from smista.core.settings import QueueSettings
from smista.engine import Broker
from smista.log import SqliteLog

RUNS = 3


async def timed(work: Callable[[Broker], Awaitable[int]]) -> tuple[float, float]:
    """Messages per second, and share of one core used."""
    directory = tempfile.mkdtemp(prefix="smista-bench-")
    try:
        broker = await Broker.open(SqliteLog.open(directory))
        await broker.declaring.declare_queue("q", QueueSettings(max_prefetch=1000))
        start, cpu = time.perf_counter(), time.process_time()
        count = await work(broker)
        took = time.perf_counter() - start
        used = (time.process_time() - cpu) / took
        await broker.close()
        return count / took, used
    finally:
        shutil.rmtree(directory)


def round_trips(workers: int, batches: int, body: bytes) -> Callable[[Broker], Awaitable[int]]:
    async def worker(broker: Broker) -> None:
        for _ in range(batches):
            await broker.publishing.publish("q", [Publication(body) for _ in range(100)])
            deliveries = await broker.receiving.receive("q", 100)
            await broker.settling.acknowledge([delivery.receipt for delivery in deliveries])

    async def work(broker: Broker) -> int:
        await asyncio.gather(*(worker(broker) for _ in range(workers)))
        return workers * batches * 100

    return work


def publishers(workers: int, each: int, body: bytes) -> Callable[[Broker], Awaitable[int]]:
    async def worker(broker: Broker) -> None:
        for _ in range(each):
            await broker.publishing.publish("q", [Publication(body)])

    async def work(broker: Broker) -> int:
        await asyncio.gather(*(worker(broker) for _ in range(workers)))
        return workers * each

    return work


async def report(label: str, work: Callable[[Broker], Awaitable[int]]) -> None:
    results = [await timed(work) for _ in range(RUNS)]
    cpu = max(used for _, used in results)
    print(f"{label:<66} {spread([rate for rate, _ in results], 'msg/s')}, {cpu:.2f} cores", flush=True)


def main() -> None:
    async def run() -> None:
        for size in (100, 1024):
            body = b"x" * size
            for workers in (1, 4, 32):
                label = f"publish + receive + acknowledge, batches of 100, {size} B, {workers} at once"
                await report(label, round_trips(workers, 3200 // workers, body))
            for workers in (1, 100, 1000):
                label = f"publish one at a time, {size} B, {workers} publishers waiting"
                await report(label, publishers(workers, 2000 if workers == 1 else 100_000 // workers, body))

    uvloop.run(run())
