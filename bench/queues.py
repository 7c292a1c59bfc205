"""A hundred thousand queues: memory, time to reopen, processor use when idle."""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
import time

from bench.machine import resident_bytes
from smista.engine import Broker
from smista.log import SqliteLog

COUNT = 100_000
IDLE_S = 10


def main() -> None:
    directory = tempfile.mkdtemp(prefix="smista-bench-")

    async def declare() -> None:
        broker = await Broker.open(SqliteLog.open(directory))
        before = resident_bytes()
        start = time.perf_counter()
        await asyncio.gather(*(broker.declare_queue(f"queue-{number:06d}") for number in range(COUNT)))
        took = time.perf_counter() - start
        gc.collect()
        print(
            f"{COUNT:,} queues declared durably in {took:.1f} s; {(resident_bytes() - before) / COUNT:.0f} B each, "
            f"{resident_bytes() / 1e6:.0f} MB in all (with the garbage of {COUNT:,} tasks)"
        )
        await broker.close()

    async def reopen() -> None:
        before = resident_bytes()
        start = time.perf_counter()
        broker = await Broker.open(SqliteLog.open(directory))
        took = time.perf_counter() - start
        cpu = time.process_time()
        await asyncio.sleep(IDLE_S)
        idle = (time.process_time() - cpu) / IDLE_S
        print(
            f"reopened in {took:.1f} s; {(resident_bytes() - before) / COUNT:.0f} B each beyond what the process had, "
            f"idle processor use {idle * 100:.2f} %"
        )
        await broker.close()

    try:
        asyncio.run(declare())
        asyncio.run(reopen())
    finally:
        shutil.rmtree(directory)
