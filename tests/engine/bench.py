"""A broker on the test's loop, over a log that outlives it; and logs that do what a test tells them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Envelope, Publication
from smista.core.settings import QueueSettings
from smista.engine import Broker, BrokerSettings, Delivery, Published
from smista.engine.clock import Clock
from smista.errors import BrokerError
from smista.log import Log, MemoryLog, SqliteLog
from smista.log.errors import LogDamaged, LogFailed, LogFull
from tests.waiting import PATIENCE_S
from tests.waiting import until as until

SETTINGS = BrokerSettings(disk_free_bytes_min=0, watch_interval_s=0.01)
SHORT_MS = 32
"""For what may only be late: short enough to be waited for. Whatever must not be over yet takes `pass_time`."""
LONGEST_WAIT_MS = 20_000
"""The longest wait there is: for a poll that is going to be answered."""


class KeptLog(MemoryLog):
    """Goes on after it was closed and counts as no memory, as a file; a test can have it block, fail and be full."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.begun_count = 0
        self.append_count = 0
        self.is_failing = False
        self.is_full = False
        self.free = 1 << 40

    def append(self, position: int, data: bytes) -> None:
        self.begun_count += 1
        assert self.gate.wait(PATIENCE_S), "the gate was never opened"
        if self.is_failing:
            raise LogFailed("memory", why="it has to fail")
        if self.is_full:
            raise LogFull("memory")
        super().append(position, data)
        self.append_count += 1

    async def held_up(self) -> None:
        """Until a block is at the closed gate."""
        await until(lambda: self.begun_count > self.append_count)

    @property
    def memory_bytes(self) -> int:
        return 0

    def free_bytes(self) -> int | None:
        return self.free

    def close(self) -> None:
        pass

    def damage(self, position: int) -> None:
        crc, data = self._blocks[position]
        self._blocks[position] = (crc, data + b"!")


class Place(Protocol):
    def open(self) -> Log: ...


class MemoryPlace:
    def __init__(self) -> None:
        self.log = KeptLog()

    def open(self) -> Log:
        return self.log


class SqlitePlace:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self) -> Log:
        return SqliteLog.open(self.directory, reserve_bytes=0)


class Bench:
    """One broker at a time over one place. Commands go to queue "orders" unless they name another."""

    broker: Broker

    def __init__(self, place: Place, settings: BrokerSettings = SETTINGS) -> None:
        self.place = place
        self.settings = settings
        self._passed_ms = 0

    async def open(
        self, *, clock: Clock | None = None, on_damage: Callable[[LogDamaged], None] | None = None
    ) -> Broker:
        self.broker = await Broker.open(
            self.place.open(), self.settings, clock=clock or self._clock(), on_damage=on_damage
        )
        return self.broker

    def pass_time(self, ms: int) -> None:
        """Let the broker's clock go that much further than time does, also from one broker to the next."""
        self._passed_ms += ms
        self.broker._running.deadlines.look_again()

    def _clock(self) -> Clock:
        return Clock(
            wall_ms=lambda: time.time_ns() // 1_000_000 + self._passed_ms,
            since_boot_ms=lambda: time.monotonic_ns() // 1_000_000 + self._passed_ms,
        )

    async def restart(self, settings: BrokerSettings | None = None) -> Broker:
        await self.broker.close()
        self.settings = settings or self.settings
        return await self.open()

    async def declare(self, name: str = "orders", settings: QueueSettings | None = None) -> None:
        await self.broker.declaring.declare_queue(name, settings or QueueSettings())

    async def fanout(self, name: str, *queues: str) -> None:
        await self.broker.declaring.declare_exchange(name, ExchangeSettings(ExchangeKind.FANOUT))
        for queue in queues:
            await self.broker.declaring.bind(Binding.to_queue(name, queue))

    async def publish(
        self,
        *bodies: bytes,
        queue: str = "orders",
        envelope: Envelope | None = None,
        priority: int | None = None,
        delay_ms: int | None = None,
    ) -> list[Published]:
        publications = [Publication(body, envelope or Envelope(), priority, delay_ms) for body in bodies]
        return [stored(result) for result in await self.broker.publishing.publish(queue, publications)]

    async def publish_one_by_one(self, *bodies: bytes, queue: str = "orders") -> None:
        """Each in a block of its own."""
        for body in bodies:
            await self.publish(body, queue=queue)

    async def receive_one(self, queue: str = "orders", *, wait_ms: int = 0, lease_ms: int | None = None) -> Delivery:
        [delivery] = await self.broker.receiving.receive(queue, wait_ms=wait_ms, lease_ms=lease_ms)
        return delivery

    async def bodies(self, limit: int = 1000, queue: str = "orders") -> list[bytes]:
        return [delivery.body for delivery in await self.broker.receiving.receive(queue, limit)]

    async def acknowledge(self, *deliveries: Delivery) -> None:
        outcomes = await self.broker.settling.acknowledge([delivery.receipt for delivery in deliveries])
        assert outcomes == [None] * len(deliveries)

    async def reject(self, *deliveries: Delivery, error: str = "") -> None:
        results = await self.broker.settling.nack(
            [delivery.receipt for delivery in deliveries], requeue=False, error=error
        )
        assert results == [False] * len(deliveries)

    def counts(self, queue: str = "orders") -> tuple[int, int, int, int]:
        """Ready, scheduled, in flight, dead."""
        stats = self.broker.statistics.stats(queue)
        return stats.ready, stats.scheduled, stats.in_flight, stats.dead


class Consumer:
    """What a subscription was called with, in order."""

    def __init__(self) -> None:
        self.batches: list[list[Delivery]] = []
        self.endings: list[BrokerError] = []

    def deliver(self, deliveries: list[Delivery]) -> None:
        self.batches.append(deliveries)

    def ended(self, error: BrokerError) -> None:
        self.endings.append(error)

    @property
    def deliveries(self) -> list[Delivery]:
        return [delivery for batch in self.batches for delivery in batch]

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]


def stored(result: Published | BrokerError) -> Published:
    if isinstance(result, BrokerError):
        raise result
    return result


async def turns(count: int = 5) -> None:
    """Let everything run that needs no more than a few turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)
