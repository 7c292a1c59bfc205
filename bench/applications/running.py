"""Starts a program and whoever consumes beside it, waits until all messages are done, and says what it took."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from functools import partial

from bench import machine, peers
from bench.peers.amqp import AmqpPeer
from bench.peers.peer import Peer
from bench.rows import Scenario
from bench.scenarios import Result, until
from bench.turns import by_turns, show

COUNT = int(os.environ.get("SMISTA_TEST_BENCH_TASKS", "10000"))
LIMIT_S = 60 + COUNT / 20
_PACKAGE = "bench.applications"


def main() -> None:
    over_amqp = peers.over_amqp()
    rows: dict[str, Scenario] = {
        "Celery, prefork worker with 2 processes": _celery,
        "pika, one publish at a time": partial(_program, "pika_app"),
        "aio-pika, 100 publishes at a time": partial(_program, "aio_pika_app"),
    }
    for label, scenario in rows.items():
        print(f"{label}, {COUNT:,} messages", flush=True)
        show(by_turns(over_amqp, scenario, limit_s=LIMIT_S))


async def _celery(peer: Peer) -> Result:
    done = peer.folder / "done"
    sending = f"{_PACKAGE}.celery_app"
    worker = ("-m", "celery", "-A", sending, "worker", "--concurrency", "2", "--loglevel", "ERROR")
    async with _started(peer, *worker), _started(peer, "-m", sending, "1"):
        # The first one shows that the worker is there.
        await until(lambda: done.exists() and done.stat().st_size == 1)
        start, cpu_s = time.perf_counter(), machine.cpu_s(peer.pids())
        async with _started(peer, "-m", sending, str(COUNT)):
            await until(lambda: done.stat().st_size == COUNT + 1)
        return _result(peer, start, cpu_s)


async def _program(module: str, peer: Peer) -> Result:
    program = ("-m", f"{_PACKAGE}.{module}")
    start, cpu_s = time.perf_counter(), machine.cpu_s(peer.pids())
    async with _started(peer, *program, "consume", str(COUNT)) as consumer:
        async with _started(peer, *program, "publish", str(COUNT)) as publisher:
            if await publisher.wait() or await consumer.wait():
                raise ConnectionError(f"{module} failed")
        return _result(peer, start, cpu_s)


def _result(peer: Peer, start: float, cpu_s: float) -> Result:
    took = time.perf_counter() - start
    return Result(COUNT / took, (machine.cpu_s(peer.pids()) - cpu_s) / COUNT * 1e6, [], [])


@contextlib.asynccontextmanager
async def _started(peer: Peer, *arguments: str) -> AsyncIterator[Process]:
    """Runs until the end of the block at most."""
    assert isinstance(peer, AmqpPeer)
    environment = {
        **os.environ,
        "BENCH_BROKER": f"amqp://guest:guest@127.0.0.1:{peer.amqp_port}",
        "BENCH_DONE": str(peer.folder / "done"),
    }
    program = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment, stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        yield program
    finally:
        await _end(program)


async def _end(program: Process) -> None:
    if program.returncode is not None:
        return
    family = machine.family(program.pid)
    program.terminate()
    try:
        await asyncio.wait_for(program.wait(), 30)
    except TimeoutError:
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        await program.wait()
