"""Time to reopen a log with a million messages."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time

from smista.core.message import Publication
from smista.core.settings import QueueSettings
from smista.engine import Broker
from smista.log import SqliteLog

COUNT = 1_000_000


def main() -> None:
    directory = tempfile.mkdtemp(prefix="smista-bench-")

    async def fill() -> None:
        broker = await Broker.open(SqliteLog.open(directory))
        await broker.declaring.declare_queue("q", QueueSettings(max_prefetch=1000))
        for _ in range(COUNT // 1000):
            await broker.intake.room()
            broker.publishing.submit("q", [Publication(b"x" * 100) for _ in range(1000)]).result()
        for _ in range(100):
            await broker.receiving.receive("q", 1000)
        await broker.close()

    async def reopen() -> None:
        start = time.perf_counter()
        broker = await Broker.open(SqliteLog.open(directory))
        took = time.perf_counter() - start
        stats = broker.statistics.stats("q")
        print(
            f"{COUNT:,} messages of 100 B recovered in {took:.2f} s: "
            f"{stats.ready:,} ready, {stats.in_flight:,} in flight"
        )
        await broker.close()

    try:
        asyncio.run(fill())
        for _ in range(3):
            asyncio.run(reopen())
    finally:
        shutil.rmtree(directory)
