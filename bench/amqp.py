"""Rates over AMQP beside RabbitMQ, and beside another checkout where one is named (see `peers`).

The same loader, the same machine, one run, by turns. Each row is measured with messages that are all alike and with
messages that have ids and headers of their own (see `shapes`); the second is what programs send.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import uvloop

from bench.amqp_load import ConsumeLink, Link, PublishLink, connect
from bench.machine import percentile
from bench.peers import Peer, Running, over_amqp
from bench.shapes import Shape, alike, own
from smista.protocols.amqp.wire import methods

SECONDS = float(os.environ.get("SMISTA_TEST_BENCH_SECONDS", "4"))
RUNS = int(os.environ.get("SMISTA_TEST_BENCH_RUNS", "3"))
"""Of each broker, by turns; the median one is printed, since a single run may meet a slow disk."""
LIMIT_S = 180 + 10 * SECONDS
"""How long a broker may take for a scenario; filling RabbitMQ with the backlog takes a minute."""
BACKLOG = int(os.environ.get("SMISTA_TEST_BENCH_BACKLOG", "1000000"))


class Result(NamedTuple):
    rate: float
    cpu_us: float
    """Of the broker, for each message received."""
    confirm: list[float]
    delivery: list[float]


Scenario = Callable[[Running], Coroutine[Any, Any, Result]]


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


async def connect_all(kind: type[Any], port: int, count: int) -> list[Any]:
    return [await connect(kind, port) for _ in range(count)]


def end_to_end(
    shape: Shape,
    *,
    durable: bool = True,
    window: int = 5_000,
    prefetch: int = 2_000,
    queues: int = 1,
    connections: int = 1,
    fanout: bool = False,
    acks_single: bool = False,
    per_second: float | None = None,
) -> Scenario:
    """Publishers with confirms and consumers with acknowledgements; the rate is that of messages received."""

    async def run(broker: Running) -> Result:
        port = broker.port
        names = [f"bench-{number}" for number in range(queues)]
        await declare(port, names, durable=durable, exchange="bench-fanout" if fanout else None)
        consumers: list[ConsumeLink] = await connect_all(ConsumeLink, port, max(queues, connections))
        for number, consumer in enumerate(consumers):
            await consumer.consume(names[number % queues], shape, prefetch, acks_single=acks_single)
        publishers: list[PublishLink] = await connect_all(PublishLink, port, connections)
        routes = [("bench-fanout", "")] if fanout else [("", name) for name in names]
        start, cpu_s = time.perf_counter(), broker.cpu_s()
        tasks = [
            one.publish(
                routes if connections == 1 else [routes[number % len(routes)]],
                shape,
                persistent=durable,
                window=max(1, window // connections),
                end=start + SECONDS,
                per_second=per_second,
            )
            for number, one in enumerate(publishers)
        ]
        await asyncio.gather(*tasks)
        wanted = sum(one.sent for one in publishers) * (queues if fanout else 1)
        await until(lambda: sum(one.received for one in consumers) >= wanted)
        took, cpu_s = time.perf_counter() - start, broker.cpu_s() - cpu_s
        for one in consumers:
            one.finish()
        result = Result(
            wanted / took,
            cpu_s / wanted * 1e6,
            [latency for one in publishers for latency in one.latencies],
            [latency for one in consumers for latency in one.latencies],
        )
        # RabbitMQ keeps a connection that is closed open for a while: all at once, then.
        await asyncio.gather(*(link.close() for link in (*consumers, *publishers)))
        await delete(port, names)
        return result

    return run


def backlog(shape: Shape, count: int) -> Scenario:
    """Publish a backlog, then measure as above with it standing in the queue."""

    async def run(broker: Running) -> Result:
        port = broker.port
        await declare(port, ["bench-0"], durable=True)
        filler: PublishLink = (await connect_all(PublishLink, port, 1))[0]
        filling = asyncio.ensure_future(
            filler.publish([("", "bench-0")], shape, persistent=True, window=5_000, end=time.perf_counter() + 600)
        )
        await until(lambda: filler.sent >= count)
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        await until(lambda: filler.confirmed >= filler.sent)

        consumer: ConsumeLink = (await connect_all(ConsumeLink, port, 1))[0]
        publisher: PublishLink = (await connect_all(PublishLink, port, 1))[0]
        await consumer.consume("bench-0", shape, 2_000)
        start, cpu_s = time.perf_counter(), broker.cpu_s()
        await publisher.publish([("", "bench-0")], shape, persistent=True, window=5_000, end=start + SECONDS)
        took, cpu_s = time.perf_counter() - start, broker.cpu_s() - cpu_s
        count_done = min(consumer.received, publisher.sent)
        result = Result(count_done / took, cpu_s / count_done * 1e6, publisher.latencies, [])
        await asyncio.gather(*(link.close() for link in (filler, consumer, publisher)))
        await delete(port, ["bench-0"])
        return result

    return run


def _scenarios() -> list[tuple[str, Scenario]]:
    found: list[tuple[str, Scenario]] = []
    for make in (own, alike):
        small, large = make(100), make(1024)
        rows = {
            "100 B": end_to_end(small),
            "1 KB": end_to_end(large),
            "100 B, single acks": end_to_end(small, acks_single=True),
            "100 B, 10 connections": end_to_end(small, connections=10, queues=10, prefetch=500),
            "100 B, 50 connections": end_to_end(small, connections=50, queues=50, prefetch=200),
            "100 B, 10 queues": end_to_end(small, queues=10),
            "100 B, 100 queues": end_to_end(small, queues=100, prefetch=200),
            "100 B, 1 message in flight": end_to_end(small, window=1, prefetch=1),
            "100 B, 1,000 a second": end_to_end(small, per_second=1_000),
            "100 B, fan-out to 10 queues": end_to_end(small, queues=10, fanout=True, window=500),
            "100 B, transient": end_to_end(small, durable=False),
            "1 KB, transient": end_to_end(large, durable=False),
            f"100 B, backlog of {BACKLOG:,}": backlog(small, BACKLOG),
        }
        found += [(f"{small.name}, {label}", scenario) for label, scenario in rows.items()]
    return found


def main() -> None:
    peers = over_amqp()
    chosen = os.environ.get("SMISTA_TEST_BENCH_SCENARIOS", "")
    for label, scenario in _scenarios():
        if re.search(chosen, label):
            print(label, flush=True)
            measure(peers, scenario, 1 if "backlog" in label else RUNS)


def measure(peers: list[Peer], scenario: Scenario, runs: int) -> None:
    results: dict[str, list[Result]] = {peer.name: [] for peer in peers}
    for _ in range(runs):
        for peer in peers:
            with peer.running() as broker:
                results[peer.name] += uvloop.run(_within(LIMIT_S, scenario(broker)))
    ours = results[peers[0].name]
    for name, theirs in results.items():
        if not theirs:
            print(f"  {name:<9} did not finish within {LIMIT_S:.0f} s", flush=True)
            continue
        times = f"; {_middle(ours).rate / _middle(theirs).rate:.2f} times" if theirs is not ours and ours else ""
        print(f"  {name:<9} {summary(theirs)}{times}", flush=True)


async def _within(limit_s: float, work: Coroutine[Any, Any, Result]) -> list[Result]:
    try:
        return [await asyncio.wait_for(work, limit_s)]
    except TimeoutError:
        return []


def _middle(results: list[Result]) -> Result:
    return sorted(results, key=lambda result: result.rate)[len(results) // 2]


def summary(results: list[Result]) -> str:
    middle = _middle(results)
    rates = sorted(result.rate for result in results)
    cpu_us = sorted(result.cpu_us for result in results)[len(results) // 2]
    return (
        f"{middle.rate:>9,.0f} msg/s ({rates[0]:,.0f} to {rates[-1]:,.0f}, {len(rates)} runs), "
        f"{cpu_us:.1f} us of CPU each; confirm {_percentiles(middle.confirm)}; delivery {_percentiles(middle.delivery)}"
    )


def _percentiles(latencies: list[float]) -> str:
    ordered = sorted(latencies)
    if not ordered:
        return "-"
    return f"p50 {percentile(ordered, 0.5) * 1e3:.1f}, p99 {percentile(ordered, 0.99) * 1e3:.1f} ms"
