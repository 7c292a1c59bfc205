"""A hundred thousand queues: memory, time to reopen, processor use when idle."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine

from bench.machine import resident_bytes
from smista.engine import Broker
from smista.log import SqliteLog

COUNT = 100_000
IDLE_S = 10


async def declare(directory: str) -> None:
    broker = await Broker.open(SqliteLog.open(directory))
    start = time.perf_counter()
    await asyncio.gather(*(broker.declaring.declare_queue(f"queue-{number:06d}") for number in range(COUNT)))
    print(f"{COUNT:,} queues declared durably in {time.perf_counter() - start:.1f} s", flush=True)
    await broker.close()


async def reopen(directory: str) -> None:
    before = resident_bytes()
    start = time.perf_counter()
    broker = await Broker.open(SqliteLog.open(directory))
    took = time.perf_counter() - start
    gc.collect()
    held = resident_bytes()
    cpu = time.process_time()
    await asyncio.sleep(IDLE_S)
    idle = (time.process_time() - cpu) / IDLE_S
    print(
        f"reopened in {took:.1f} s by a new process: {(held - before) / COUNT:.0f} B a queue, {held / 1e6:.0f} MB "
        f"in all; processor use when idle {idle * 100:.2f} %",
        flush=True,
    )
    await broker.close()


def in_new_process(work: Callable[[str], Coroutine[None, None, None]], directory: str) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(work, directory))
    process.start()
    process.join()


def _run(work: Callable[[str], Coroutine[None, None, None]], directory: str) -> None:
    asyncio.run(work(directory))


def main() -> None:
    directory = tempfile.mkdtemp(prefix="smista-bench-")
    try:
        in_new_process(declare, directory)
        in_new_process(reopen, directory)
    finally:
        shutil.rmtree(directory)
