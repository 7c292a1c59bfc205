"""Publishing through a topic exchange with a hundred thousand bindings."""

from __future__ import annotations

import asyncio

from bench.machine import latencies, summary
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Envelope, Publication
from smista.engine import Broker
from smista.log import MemoryLog

COUNT = 20_000


async def measure(bindings: int) -> None:
    broker = await Broker.open(MemoryLog())
    await broker.declaring.declare_exchange("events", ExchangeSettings(ExchangeKind.TOPIC))
    await broker.declaring.declare_queue("q")
    await asyncio.gather(
        *(
            broker.declaring.bind(
                Binding.to_queue("events", "q", f"orders.{number}.{'*' if number % 10 == 0 else number % 7}")
            )
            for number in range(bindings)
        )
    )
    keys = iter(f"orders.{number % bindings}.{number % 7}" for number in range(COUNT))
    repeated = Envelope(exchange="events", routing_key="orders.5.5")

    def fresh() -> None:
        envelope = Envelope(exchange="events", routing_key=next(keys))
        broker.publishing.submit_to_exchange("events", Publication(b"x" * 100, envelope)).result()

    def again() -> None:
        broker.publishing.submit_to_exchange("events", Publication(b"x" * 100, repeated)).result()

    print(f"{bindings:>8,} bindings, a new key each time:  {summary(latencies(fresh, COUNT))}")
    print(f"{bindings:>8,} bindings, the same key:         {summary(latencies(again, COUNT))}", flush=True)
    await broker.close()


def main() -> None:
    for bindings in (10, 100_000):
        asyncio.run(measure(bindings))
