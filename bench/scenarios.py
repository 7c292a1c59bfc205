"""What every broker is made to do: messages end to end, a backlog, and the same for a long time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from bench import machine
from bench.links import Consumer, Publisher, Work
from bench.peers.peer import Peer

SECONDS = float(os.environ.get("SMISTA_TEST_BENCH_SECONDS", "4"))


class Result(NamedTuple):
    rate: float
    """Of messages received, and acknowledged as they came."""
    cpu_us: float
    """Of the broker, all its processes and threads, for each of them."""
    confirm: list[float]
    delivery: list[float]


class Backlog(NamedTuple):
    messages: int
    fill_rate: float
    bytes_each: float
    """What the broker's memory grew by, for each message; body and properties are part of it."""
    restart_s: float
    """From the start of its process to the first message that is delivered."""
    drain_rate: float


class Sample(NamedTuple):
    at_s: float
    rate: float
    p99_ms: float
    """Of deliveries."""
    memory_bytes: int


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 (the links count, they announce nothing)
        await asyncio.sleep(0.002)


class Load:
    """Publishers and consumers at work, from `start` to `end`."""

    def __init__(self, peer: Peer, work: Work) -> None:
        self._peer = peer
        self._work = work
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []

    @property
    def sent(self) -> int:
        return sum(one.sent for one in self.publishers)

    @property
    def received(self) -> int:
        return sum(one.received for one in self.consumers)

    async def start(self) -> None:
        await self._peer.declare(self._work)
        await self.consume()
        await self.prepare()

    async def consume(self) -> None:
        names = self._work.names
        for number in range(self._work.consumers):
            consumer = await self._peer.consumer(self._work)
            self.consumers.append(consumer)
            await consumer.consume(names[number % len(names)])

    async def prepare(self) -> None:
        work = self._work
        per_second = work.per_second / work.connections if work.per_second else None
        # With fan-out one publish is for all of the queues.
        names = work.names[:1] if work.fanout else work.names
        for number in range(work.connections):
            publisher = await self._peer.publisher(work)
            publisher.prepare(names[number % len(names) :: work.connections], per_second)
            self.publishers.append(publisher)

    async def publish(self, is_over: Callable[[], bool]) -> None:
        """Returns when all is confirmed."""
        await asyncio.gather(*(one.publish(is_over) for one in self.publishers))

    async def end(self) -> None:
        for one in self.consumers:
            one.finish()
        # RabbitMQ keeps a connection that is closed open for a while: all at once, then.
        await asyncio.gather(*(link.close() for link in (*self.consumers, *self.publishers)))


async def end_to_end(peer: Peer, work: Work, seconds: float = SECONDS) -> Result:
    """Publishers with confirms and consumers with acknowledgements."""
    load = Load(peer, work)
    await load.start()
    start, cpu_s = time.perf_counter(), machine.cpu_s(peer.pids())
    await load.publish(lambda: time.perf_counter() >= start + seconds)
    wanted = load.sent * (work.queues if work.fanout else 1)
    await until(lambda: load.received >= wanted)
    took, cpu_s = time.perf_counter() - start, machine.cpu_s(peer.pids()) - cpu_s
    await load.end()
    return Result(
        wanted / took,
        cpu_s / wanted * 1e6,
        [latency for one in load.publishers for latency in one.latencies],
        [latency for one in load.consumers for latency in one.latencies],
    )


async def beside_backlog(peer: Peer, work: Work, count: int) -> Result:
    """The same for a while, with so many messages standing in the queue."""
    await peer.declare(work)
    filling = await fill(peer, work, count)
    load = Load(peer, work)
    await load.consume()
    await load.prepare()
    start, cpu_s = time.perf_counter(), machine.cpu_s(peer.pids())
    await load.publish(lambda: time.perf_counter() >= start + SECONDS)
    took, cpu_s = time.perf_counter() - start, machine.cpu_s(peer.pids()) - cpu_s
    done = min(load.received, load.sent)
    await load.end()
    await filling.end()
    return Result(done / took, cpu_s / done * 1e6, load.publishers[0].latencies, [])


async def fill(peer: Peer, work: Work, count: int) -> Load:
    load = Load(peer, work)
    await load.prepare()
    await load.publish(lambda: load.sent >= count)
    return load


async def backlog(peer: Peer, work: Work, count: int) -> Backlog:
    """Fill a queue, restart the broker, drain the queue."""
    count = min(count, peer.backlog_max or count)
    await peer.declare(work)
    empty_bytes = machine.memory_bytes(peer.pids())
    start = time.perf_counter()
    filling = await fill(peer, work, count)
    fill_s = time.perf_counter() - start
    held = machine.memory_bytes(peer.pids()) - empty_bytes
    sent = filling.sent
    await filling.end()
    start = time.perf_counter()
    if peer.keeps:
        await asyncio.to_thread(peer.stop)
        start = time.perf_counter()
        await asyncio.to_thread(peer.start)
    load = Load(peer, work)
    await load.consume()
    await until(lambda: any(one.first_at for one in load.consumers))
    first_at = min(one.first_at for one in load.consumers if one.first_at)
    await until(lambda: load.received >= sent)
    drain_s = time.perf_counter() - first_at
    await load.end()
    return Backlog(sent, sent / fill_s, held / sent, first_at - start, sent / drain_s)


async def soak(peer: Peer, work: Work, seconds: float, every_s: float) -> list[Sample]:
    """End to end for long, with a look at it now and then."""
    load = Load(peer, work)
    await load.start()
    start = time.perf_counter()
    publishing = asyncio.ensure_future(load.publish(lambda: time.perf_counter() >= start + seconds))
    samples: list[Sample] = []
    received, at = 0, start
    while not publishing.done():
        await asyncio.wait((publishing,), timeout=every_s)
        now, count = time.perf_counter(), load.received
        latencies = sorted(latency for one in load.consumers for latency in one.latencies)
        for one in load.consumers:
            one.latencies.clear()
        for publisher in load.publishers:
            publisher.latencies.clear()
        if latencies and now - at >= every_s / 2:
            p99_ms = machine.percentile(latencies, 0.99) * 1e3
            rate = (count - received) / (now - at)
            samples.append(Sample(now - start, rate, p99_ms, machine.memory_bytes(peer.pids())))
        received, at = count, now
    await publishing
    await until(lambda: load.received >= load.sent)
    await load.end()
    return samples
