"""A load that costs the loader next to nothing, so that what is measured is the broker.

A protocol adds to these two what its bytes look like (`bench/peers`); windows, pace, latencies and counts are here, the
same for every broker. Publishes are chunks made beforehand, confirms are counted as they come, and a consumer looks
into one message of each read.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Self, cast

from bench.shapes import CHUNK, Chunk, Encode, Shape, age_s, encoded

WRITES_PER_S = 1_000
"""How often a publisher writes at a steady rate, at most: the loader has no time for more."""


class Work(NamedTuple):
    """What publishers and consumers do."""

    shape: Shape
    durable: bool = True
    window: int = 5_000
    """How many messages may be unconfirmed, all publishers together."""
    prefetch: int = 2_000
    queues: int = 1
    connections: int = 1
    """Of publishers; there are as many consumers, or one for each queue if that is more."""
    fanout: bool = False
    acks_single: bool = False
    per_second: float | None = None
    """A steady rate, all publishers together; None: as fast as confirms come."""

    @property
    def names(self) -> list[str]:
        return [f"bench-{number}" for number in range(self.queues)]

    @property
    def consumers(self) -> int:
        return max(self.queues, self.connections)


class Link(asyncio.Protocol, ABC):
    """A connection. `read` takes what it understands from `buffer`."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.buffer = b""
        self.transport: asyncio.Transport
        self.can_write = asyncio.Event()
        self.can_write.set()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, port: int, work: Work) -> Self:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(work), "127.0.0.1", port)
        await link.open()
        return link

    async def open(self) -> None:
        """What the protocol wants before anything else."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        self.read()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    @abstractmethod
    def read(self) -> None: ...

    async def close(self) -> None:
        self.transport.close()
        await asyncio.wait((self.closed,), timeout=5)
        self.transport.abort()


class Publisher(Link):
    """Publishes chunks; `confirmed_to` is to be called with how many are confirmed."""

    chunk_max = CHUNK
    window_max = 1 << 30
    """How many messages it can have unconfirmed."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.sent = 0
        self.confirmed = 0
        self.latencies: list[float] = []
        self._times: deque[tuple[int, float]] = deque()
        self._has_room = asyncio.Event()

    @abstractmethod
    def encode(self, queue: str) -> Encode:
        """How a message to a queue is written."""

    def together(self, queue: str, messages: list[bytes]) -> bytes:
        """What is written to publish these to a queue."""
        return b"".join(messages)

    def confirmed_to(self, count: int) -> None:
        self.confirmed = count
        now = time.perf_counter()
        while self._times and self._times[0][0] <= count:
            self.latencies.append(now - self._times.popleft()[1])
        self._has_room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._has_room.set()

    def prepare(self, queues: list[str], per_second: float | None) -> None:
        """To publish to these by turns, as fast as confirms come, or at a steady rate."""
        self._per_second = per_second
        self._window = min(self.window_max, max(1, self.work.window // self.work.connections))
        # Singly, or as many as come due between two writes where there are a thousand writes a second.
        due_together = max(1, round(per_second / WRITES_PER_S)) if per_second else self._window
        self._count = count = min(self.chunk_max, self._window, due_together)
        shape = self.work.shape
        self._chunks = deque(
            Chunk(count, self.together(queue, encoded(shape, count, self.encode(queue)))) for queue in queues
        )

    async def publish(self, is_over: Callable[[], bool]) -> None:
        """Returns when all is confirmed."""
        per_second, count, chunks = self._per_second, self._count, self._chunks
        due = time.perf_counter()
        while not is_over():
            if per_second:
                due += count / per_second
                await asyncio.sleep(due - time.perf_counter())
            await self._room(self._window - count)
            await self.can_write.wait()
            # What was late is counted from when it was due, so that a pause counts for all that it held up.
            now = due if per_second else time.perf_counter()
            self._times.append((self.sent + count, now))
            self.sent += count
            self.write(chunks[0].renewed(now))
            chunks.rotate(-1)
            await asyncio.sleep(0)
        await self._room(0)

    async def _room(self, unconfirmed_max: int) -> None:
        while self.sent - self.confirmed > unconfirmed_max:
            if self.closed.done():
                raise ConnectionError("the broker closed a publisher's connection")
            self._has_room.clear()
            await self._has_room.wait()


class Consumer(Link):
    """Consumes and acknowledges; `took` is to be called with what came."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.received = 0
        self.latencies: list[float] = []
        self.first_at: float | None = None

    @abstractmethod
    async def consume(self, queue: str) -> None: ...

    def took(self, count: int, data: bytes, body_at: int) -> None:
        """So many messages; the body of one of them begins there."""
        now = time.perf_counter()
        self.first_at = self.first_at or now
        self.received += count
        self.latencies.append(age_s(data, body_at, now))

    def finish(self) -> None:
        """Acknowledge what is not acknowledged yet."""
