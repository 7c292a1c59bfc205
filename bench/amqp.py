"""Rates over AMQP beside RabbitMQ: the same loader, the same machine, one run."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from bench import rabbitmq
from bench.amqp_load import ConsumeLink, Link, PublishLink, connect
from bench.machine import percentile
from bench.serving import serving
from smista.protocols.amqp import methods

SECONDS = float(os.environ.get("SMISTA_TEST_BENCH_SECONDS", "4"))
RUNS = int(os.environ.get("SMISTA_TEST_BENCH_RUNS", "3"))
"""Of each broker, by turns; the middle one is told. A single one may meet a disk that is slow just then."""
LIMIT_S = 180 + 10 * SECONDS
"""How long RabbitMQ may take for a scenario; filling it with the backlog takes it a minute."""
BACKLOG = int(os.environ.get("SMISTA_TEST_BENCH_BACKLOG", "1000000"))


class Result:
    def __init__(self, rate: float, confirm: list[float], delivery: list[float]) -> None:
        self.rate = rate
        self.confirm = confirm
        self.delivery = delivery

    def told(self) -> str:
        return f"{self.rate:>10,.0f} msg/s; confirm {_told(self.confirm)}; delivery {_told(self.delivery)}"


def _told(latencies: list[float]) -> str:
    ordered = sorted(latencies)
    if not ordered:
        return "-"
    return f"p50 {percentile(ordered, 0.5) * 1e3:.1f}, p99 {percentile(ordered, 0.99) * 1e3:.1f} ms"


Scenario = Callable[[int], Coroutine[Any, Any, Result]]


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 (the links count, they announce nothing)
        await asyncio.sleep(0.002)


async def declare(port: int, queues: list[str], *, durable: bool, exchange: str | None = None) -> None:
    link = await connect(Link, port)
    if exchange:
        await link.call(1, methods.ExchangeDeclare(0, exchange, "fanout", False, True, False, False, False, {}))
    for queue in queues:
        await link.call(1, methods.QueueDeclare(0, queue, False, durable, False, False, False, {}))
        if exchange:
            await link.call(1, methods.QueueBind(0, queue, exchange, "", False, {}))
    await link.close()


async def delete(port: int, queues: list[str]) -> None:
    link = await connect(Link, port)
    for queue in queues:
        await link.call(1, methods.QueueDelete(0, queue, False, False, False))
    await link.close()


def end_to_end(
    size: int,
    *,
    durable: bool = True,
    window: int = 5_000,
    prefetch: int = 2_000,
    queues: int = 1,
    connections: int = 1,
    fanout: bool = False,
) -> Scenario:
    """Publishers with confirms and consumers with multiple acks; the rate is that of messages received."""

    async def run(port: int) -> Result:
        names = [f"bench-{number}" for number in range(queues)]
        await declare(port, names, durable=durable, exchange="bench-fanout" if fanout else None)
        consumers: list[ConsumeLink] = []
        for number in range(max(queues, connections)):
            consumer = await connect(ConsumeLink, port)
            assert isinstance(consumer, ConsumeLink)
            await consumer.consume(names[number % queues], size, prefetch)
            consumers.append(consumer)
        publishers: list[PublishLink] = []
        for _ in range(connections):
            publisher = await connect(PublishLink, port)
            assert isinstance(publisher, PublishLink)
            publishers.append(publisher)
        routes = [("bench-fanout", "")] if fanout else [("", name) for name in names]
        start = time.perf_counter()
        share = max(1, window // connections)
        tasks = [
            one.publish(
                routes if connections == 1 else [routes[number % len(routes)]],
                size,
                persistent=durable,
                window=share,
                end=start + SECONDS,
            )
            for number, one in enumerate(publishers)
        ]
        await asyncio.gather(*tasks)
        wanted = sum(one.sent for one in publishers) * (queues if fanout else 1)
        await until(lambda: sum(one.received for one in consumers) >= wanted)
        took = time.perf_counter() - start
        for one in consumers:
            one.finish()
        result = Result(
            wanted / took,
            [latency for one in publishers for latency in one.latencies],
            [latency for one in consumers for latency in one.latencies],
        )
        # RabbitMQ keeps a connection that is closed open for a while: all at once, then.
        await asyncio.gather(*(link.close() for link in (*consumers, *publishers)))
        await delete(port, names)
        return result

    return run


def backlog(size: int, count: int) -> Scenario:
    """Publish a backlog, then measure as above with it standing in the queue."""

    async def run(port: int) -> Result:
        await declare(port, ["bench-0"], durable=True)
        filler = await connect(PublishLink, port)
        assert isinstance(filler, PublishLink)

        async def fill() -> None:
            task = asyncio.ensure_future(
                filler.publish([("", "bench-0")], size, persistent=True, window=5_000, end=time.perf_counter() + 600)
            )
            await until(lambda: filler.sent >= count)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: filler.confirmed >= filler.sent)

        await fill()
        consumer = await connect(ConsumeLink, port)
        publisher = await connect(PublishLink, port)
        assert isinstance(consumer, ConsumeLink)
        assert isinstance(publisher, PublishLink)
        await consumer.consume("bench-0", size, 2_000)
        start = time.perf_counter()
        await publisher.publish([("", "bench-0")], size, persistent=True, window=5_000, end=start + SECONDS)
        took = time.perf_counter() - start
        rate = min(consumer.received, publisher.sent) / took
        result = Result(rate, publisher.latencies, [])
        await asyncio.gather(*(link.close() for link in (filler, consumer, publisher)))
        await delete(port, ["bench-0"])
        return result

    return run


SCENARIOS: list[tuple[str, Scenario]] = [
    ("durable, 100 B, window 5,000, prefetch 2,000", end_to_end(100)),
    ("durable, 1 KB", end_to_end(1024)),
    ("transient, 100 B", end_to_end(100, durable=False)),
    ("transient, 1 KB", end_to_end(1024, durable=False)),
    ("durable, 100 B, 1 message in flight", end_to_end(100, window=1, prefetch=1)),
    ("durable, 100 B, 10 queues", end_to_end(100, queues=10)),
    ("durable, 100 B, 50 connections", end_to_end(100, connections=50, queues=50, prefetch=200)),
    ("durable, 100 B, fan-out to 10 queues", end_to_end(100, queues=10, fanout=True, window=500)),
    (f"durable, 100 B, backlog of {BACKLOG:,}", backlog(100, BACKLOG)),
]


def main() -> None:
    has_rabbitmq = rabbitmq.install()
    if not has_rabbitmq:
        print("RabbitMQ is not here and cannot be installed; Smista alone", flush=True)
    chosen = os.environ.get("SMISTA_TEST_BENCH_SCENARIOS", "")
    for label, scenario in SCENARIOS:
        if chosen and not re.search(chosen, label):
            continue
        ours, theirs = [], []
        for _ in range(1 if "backlog" in label else RUNS):
            with serving() as server:
                ours.append(uvloop.run(scenario(server.amqp_port)))
            if has_rabbitmq:
                with rabbitmq.running() as port:
                    theirs += uvloop.run(_within(LIMIT_S, scenario(port)))
        print(f"{label}\n  smista    {_middle(ours).told()}; {_range(ours)}", flush=True)
        if theirs:
            times = _middle(ours).rate / _middle(theirs).rate
            print(f"  rabbitmq  {_middle(theirs).told()}; {_range(theirs)}\n  {times:.1f} times", flush=True)
        elif has_rabbitmq:
            print(f"  rabbitmq  did not come to the end within {LIMIT_S:.0f} s", flush=True)


async def _within(limit_s: float, work: Coroutine[Any, Any, Result]) -> list[Result]:
    try:
        return [await asyncio.wait_for(work, limit_s)]
    except TimeoutError:
        return []


def _middle(results: list[Result]) -> Result:
    return sorted(results, key=lambda result: result.rate)[len(results) // 2]


def _range(results: list[Result]) -> str:
    rates = sorted(result.rate for result in results)
    return f"{rates[0]:,.0f} to {rates[-1]:,.0f} in {len(rates)} runs"
