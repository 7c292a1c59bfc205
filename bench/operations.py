"""Cost of single operations in process (memory log), by depth of the queue; also with a million scheduled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from bench.machine import latencies, summary
from smista.core.message import Publication
from smista.core.settings import QueueSettings
from smista.engine import Broker, BrokerSettings, Delivery
from smista.log import MemoryLog

BODY = b"x" * 100
COUNT = 20_000
DEPTHS = (0, 100_000, 1_000_000)


async def filled(depth: int, *, delay_ms: int | None = None) -> Broker:
    broker = await Broker.open(MemoryLog(), BrokerSettings(log_retention_ms=0))
    await broker.declaring.declare_queue("q", QueueSettings(max_prefetch=1000))
    for _ in range(depth // 1000):
        broker.publishing.submit("q", [Publication(BODY, delay_ms=delay_ms) for _ in range(1000)]).result()
    await broker.durable()
    return broker


async def measure(label: str, broker: Broker) -> None:
    received: list[Delivery] = []

    def publish() -> None:
        broker.publishing.submit("q", [Publication(BODY)]).result()

    def receive() -> None:
        received.extend(finished(broker.receiving.receive("q")))

    def acknowledge() -> None:
        broker.settling.acknowledge([received.pop().receipt]).result()

    for step in (publish, receive, acknowledge):
        print(f"{label:>28}  {step.__name__:<12} {summary(latencies(step, COUNT))}", flush=True)
        await broker.durable()


def finished(work: Coroutine[Any, Any, list[Delivery]]) -> list[Delivery]:
    """The result of a coroutine that never really waits, without going through the loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: list[Delivery] = end.value
        return result
    raise AssertionError("the operation waited")


def main() -> None:
    async def run() -> None:
        for depth in DEPTHS:
            broker = await filled(depth)
            await measure(f"{depth:,} ready", broker)
            await broker.close()
        broker = await filled(1_000_000, delay_ms=3_600_000)
        await measure("1,000,000 scheduled", broker)
        await broker.close()

    asyncio.run(run())
