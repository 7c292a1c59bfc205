"""The longest time the loop was held up, with a million messages queued, under load; and while a million expire."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time

import uvloop

from bench.machine import percentile
from smista.core.message import Envelope, Publication
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.engine import Broker, BrokerSettings
from smista.log import SqliteLog

COUNT = 1_000_000
LOAD_S = 10.0


class Heartbeat:
    """Notes how late a millisecond's sleep ends: what anybody else on the loop would have had to wait.

    Beside it, how much the process itself computed meanwhile: on a machine that is shared, most of a long wait is time
    in which another guest had the core, and `worked` is the part that is ours.
    """

    def __init__(self) -> None:
        self.late: list[float] = []
        self.worked: list[float] = []
        self._task = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            start, cpu = time.perf_counter(), time.process_time()
            await asyncio.sleep(0.001)
            late = time.perf_counter() - start - 0.001
            self.late.append(late)
            self.worked.append(min(late, time.process_time() - cpu))

    def summary(self) -> str:
        late = sorted(self.late)
        return (
            f"longest {late[-1] * 1e3:.1f} ms (longest of the broker's own {max(self.worked) * 1e3:.1f} ms), "
            f"p99 {percentile(late, 0.99) * 1e3:.1f} ms of {len(late)} beats"
        )

    async def stop(self) -> str:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.summary()


async def fill(broker: Broker, ttl_ms: int | None = None) -> None:
    envelope = Envelope(ttl_ms=ttl_ms)
    for _ in range(COUNT // 1000):
        await broker.intake.room()
        broker.publishing.submit("q", [Publication(b"x" * 100, envelope) for _ in range(1000)]).result()
        await asyncio.sleep(0)
    await broker.durable()


async def under_load() -> None:
    directory = tempfile.mkdtemp(prefix="smista-bench-")
    broker = await Broker.open(SqliteLog.open(directory), BrokerSettings(log_retention_ms=0))
    await broker.declaring.declare_queue("q", QueueSettings(max_prefetch=1000))
    await fill(broker)
    heartbeat = Heartbeat()
    done = 0
    end = time.perf_counter() + LOAD_S

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await broker.publishing.publish("q", [Publication(b"x" * 100) for _ in range(100)])
            deliveries = await broker.receiving.receive("q", 100)
            await broker.settling.acknowledge([delivery.receipt for delivery in deliveries])
            done += 100

    await asyncio.gather(*(worker() for _ in range(8)))
    print(f"{COUNT:,} queued, {done / LOAD_S:,.0f} msg/s in and out: {await heartbeat.stop()}", flush=True)
    heartbeat = Heartbeat()
    start = time.perf_counter()
    count = await broker.declaring.purge("q")
    while broker.statistics.stats("q").body_bytes:  # noqa: ASYNC110 (nobody announces the end of freeing)
        await asyncio.sleep(0.001)
    took = time.perf_counter() - start
    print(f"purge of {count:,}, memory freed in {took:.1f} s: {await heartbeat.stop()}", flush=True)
    await broker.close()
    shutil.rmtree(directory)


async def expiring() -> None:
    directory = tempfile.mkdtemp(prefix="smista-bench-")
    broker = await Broker.open(SqliteLog.open(directory), BrokerSettings(log_retention_ms=0))
    await broker.declaring.declare_queue("q", QueueSettings(dead_letter=DeadLetterMode.PARK))
    await broker.declaring.declare_queue("other")
    filling = asyncio.create_task(fill(broker, ttl_ms=1))
    await filling
    heartbeat = Heartbeat()
    start = time.perf_counter()
    waits = []
    while broker.statistics.stats("q").ready:
        before = time.perf_counter()
        await broker.publishing.publish("other", [Publication(b"x")])
        waits.append(time.perf_counter() - before)
        [delivery] = await broker.receiving.receive("other")
        before = time.perf_counter()
        await broker.settling.acknowledge([delivery.receipt])
        waits.append(time.perf_counter() - before)
    took = time.perf_counter() - start
    stats = broker.statistics.stats("q")
    print(
        f"{stats.expired_total:,} expired (the last of them {took:.1f} s after filling): {await heartbeat.stop()}; "
        f"a durable publish or ack on another queue meanwhile p50 {percentile(sorted(waits), 0.5) * 1e3:.1f}, "
        f"p99 {percentile(sorted(waits), 0.99) * 1e3:.1f}, longest {max(waits) * 1e3:.1f} ms",
        flush=True,
    )
    await broker.close()
    shutil.rmtree(directory)


def main() -> None:
    uvloop.run(under_load())
    uvloop.run(expiring())
