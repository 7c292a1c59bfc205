"""What the clients of the crash tests do: a little of everything, drawn at random from a seed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import msgspec

from smista.engine import Broker, BrokerSettings
from smista.engine.clock import Clock
from smista.errors import BrokerError
from tests.crash.client import PLAIN, Client

HOUR_MS = 3_600_000
CONSUMED = ("work", "work", "fragile", "line", "later", "a", "b", "c")

SMALL = BrokerSettings(
    resident_bytes_max=4_000,
    log_retention_ms=0,
    log_retention_bytes=0,
    log_slack_bytes=1_000,
    block_bytes_max=20_000,
    disk_free_bytes_min=0,
)
"""So small that bodies are paged out and blocks reclaimed all the time."""
KEEPING = msgspec.structs.replace(SMALL, log_retention_ms=3_600_000, log_retention_bytes=1 << 30)
"""So too, but for readers of the log all blocks are kept."""


ROOMY = BrokerSettings(disk_free_bytes_min=0)


def clock_ahead(ms: int) -> Clock:
    """A clock for a broker that is opened that much later."""
    return MovedClock(ms)


class MovedClock(Clock):
    """As much ahead as it is told."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self._ahead_ms = ahead_ms
        super().__init__(since_boot_ms=self._moved_ms)

    def move(self, broker: Broker, ms: int) -> None:
        """Under a broker that runs: whatever is due by then happens from now on, and not before."""
        self._ahead_ms += ms
        broker._running.deadlines.look_again()

    def _moved_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + self._ahead_ms


class Clients:
    """A publisher, two consumers and an operator, at work at the same time."""

    def __init__(self, client: Client, *, seed: int, backlog: int = 40) -> None:
        self._client = client
        self._broker: Broker = client.broker
        self._random = random.Random(seed)
        self._seed = seed
        self._backlog = backlog

    async def work(self, steps: int) -> None:
        """What one of them fails with is raised: at once, unless the broker has stopped, which each of them hears."""
        steps_of = (self._publish, self._publish, self._consume, self._consume)
        tasks = [asyncio.ensure_future(self._repeat(step, steps)) for step in steps_of]
        tasks.append(asyncio.ensure_future(self._repeat(self._operate, steps // 2)))
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failures = [error for task in done if (error := task.exception()) is not None]
        if failures and isinstance(failures[0], BrokerError):
            await asyncio.gather(*others, return_exceptions=True)
        if failures:
            raise failures[0]

    async def _repeat(self, step: Callable[[int], Awaitable[None]], steps: int) -> None:
        for number in range(steps):
            await step(number)

    async def _publish(self, number: int) -> None:
        client, draw = self._client, self._random
        queue = draw.choice(("work", "fragile", "later", "line", "fan"))
        if queue == "fan":
            if self._broker.statistics.stats("a").depth < self._backlog:
                await client.fan_out(body_bytes=draw.choice((50, 300, 2_000)))
        elif self._broker.statistics.stats(queue).depth >= self._backlog:
            await asyncio.sleep(0)
        elif queue == "later":
            await client.publish(
                queue, delay_ms=draw.choice((0, HOUR_MS // 2)), ttl_ms=draw.choice((None, HOUR_MS // 3, HOUR_MS * 3))
            )
        elif queue == "line":
            await client.publish(queue, 2, group=draw.choice("xyz"))
        elif draw.random() < 0.2:
            id_ = f"{self._seed}/{draw.randrange(6)}"
            await client.publish(queue, deduplication_id=id_)
        else:
            await client.publish(queue, draw.randint(1, 5), body_bytes=draw.choice((20, 100, 700)))

    async def _consume(self, number: int) -> None:
        client, draw = self._client, self._random
        queue = draw.choice(CONSUMED)
        deliveries = await client.receive(queue, draw.randint(1, 4))
        if not deliveries:
            await asyncio.sleep(0)
            return
        match draw.randrange(10):
            case 0 if queue not in ("fragile", "a"):
                await client.retry(queue, deliveries, delay_ms=0)
                await client.acknowledge(queue, deliveries, is_stale=True)
            case 1:
                await client.release(queue, deliveries)
                await client.acknowledge(queue, deliveries, is_stale=True)
            case 2 | 3 if queue in ("fragile", "a", "work"):
                await client.bury(queue, deliveries)
            case 4 if draw.random() < 0.3:
                pass  # A consumer that vanishes: its leases stay.
            case _:
                await client.acknowledge(queue, deliveries)

    async def _operate(self, number: int) -> None:
        client, draw = self._client, self._random
        match draw.randrange(6):
            case 0:
                await client.publish("scrap", draw.randint(1, 3))
            case 1:
                await client.purge("scrap")
            case 2:
                queue = f"temporary-{self._seed}-{number}"
                await self._broker.declaring.declare_queue(queue, PLAIN)
                await client.publish(queue, 2)
                if draw.random() < 0.7:
                    await client.delete(queue)
            case _:
                await client.redrive(draw.choice(("fragile", "a", "work")))
