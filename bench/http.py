"""Rates and delays over HTTP and the stream, of a real server on disk with its clients in another process.

Both share the machine. Confirmed messages are durable. Delays are counted from when a message was due to be sent, so
that a pause counts for all messages that it held up.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import multiprocessing.synchronize
import struct
import time
from collections.abc import AsyncIterator, Iterator
from itertools import chain

import msgspec
import uvloop

from bench.bad_clients import Address, BadClients, allow_files
from bench.machine import percentile, spread, stolen_s
from bench.serving import serving
from smista import AsyncClient

RUNS = 3
COUNT = 200_000
BODY = b"x" * 100
POSTS = 20_000
CONNECTIONS = 32
PER_SECOND = 1_000
PACED_S = 5.0
PACED_RUNS = 7
BAD_CLIENTS = {"idle_count": 1_000, "stalled_count": 100, "half_sent_count": 200}

_stamp = struct.Struct("<d")


# -- rates ------------------------------------------------------------------------------------------------------------


async def put_and_consume(url: str) -> tuple[float, float]:
    """Messages per second by `put_many`, and by a subscription that acknowledges them."""
    async with AsyncClient(url) as client:
        await client.declare_queue("q")
        start = time.perf_counter()
        summary = await client.put_many("q", (BODY for _ in range(COUNT)))
        put_s = time.perf_counter() - start
        assert summary.accepted == COUNT
        start = time.perf_counter()
        taken = 0
        async with client.subscribe("q", prefetch=1_000) as subscription:
            while taken < COUNT:
                batch = await subscription.next_batch()
                taken += len(batch)
                subscription.ack_up_to(batch[-1])
            await subscription.settled()
        consume_s = time.perf_counter() - start
        assert (await client.stats("q")).depth == 0
        return COUNT / put_s, COUNT / consume_s


class Poster(asyncio.Protocol):
    """Sends the same request again after each answer, as long as any are left."""

    left = 0

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport
        self._answer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is one, over TCP
        self._transport = transport
        self._next()

    def _next(self) -> None:
        if Poster.left:
            Poster.left -= 1
            self._transport.write(self._request)
        else:
            self.done.set_result(None)
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self._answer.endswith(b"}"):
            assert self._answer.startswith(b"HTTP/1.1 200"), self._answer
            self._answer = b""
            self._next()


async def post(address: Address) -> float:
    """Single publishes per second by `POST /v1/command`."""
    body = msgspec.json.encode({"command": "queue.publish", "payload": {"queue": "q", "message": "x" * 100}})
    request = (
        b"POST /v1/command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    Poster.left = POSTS
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    posters = [(await loop.create_connection(lambda: Poster(request), *address))[1] for _ in range(CONNECTIONS)]
    await asyncio.gather(*(poster.done for poster in posters))
    return POSTS / (time.perf_counter() - start)


# -- delays -----------------------------------------------------------------------------------------------------------


class Delays:
    """Seconds, sorted."""

    def __init__(self, publishing: list[float], delivering: list[float]) -> None:
        self.publishing = sorted(publishing)
        self.delivering = sorted(delivering)


async def pace(url: str, seconds: float = PACED_S) -> Delays:
    """Publish one by one at a steady rate, and consume on another connection."""
    count = int(PER_SECOND * seconds)
    publishing: list[float] = []
    delivering: list[float] = []
    async with AsyncClient(url) as publisher, AsyncClient(url) as consumer:
        await publisher.declare_queue("paced")

        async def publish(due: float) -> None:
            await publisher.publish("paced", body=_stamp.pack(due) + BODY[_stamp.size :])
            publishing.append(time.perf_counter() - due)

        async def consume() -> None:
            async with consumer.subscribe("paced", prefetch=1_000) as subscription:
                while len(delivering) < count:
                    for delivery in await subscription.next_batch():
                        delivering.append(time.perf_counter() - _stamp.unpack_from(delivery.body)[0])
                        delivery.ack_soon()
                await subscription.settled()

        consuming = asyncio.create_task(consume())
        async with asyncio.TaskGroup() as group:
            async for due in _ticks(count):
                group.create_task(publish(due))
        await consuming
    return Delays(publishing, delivering)


async def _ticks(count: int) -> AsyncIterator[float]:
    start = time.perf_counter()
    for number in range(count):
        due = start + number / PER_SECOND
        while (early := due - time.perf_counter()) > 0:  # noqa: ASYNC110 (time is what it waits for)
            await asyncio.sleep(early)
        yield due


def summary(label: str, runs: list[list[float]]) -> str:
    medians = spread([percentile(run, 0.5) for run in runs], "us", 1e6)
    tails = spread([percentile(run, 0.99) for run in runs], "us", 1e6)
    return f"{label:<66} p50 {medians}, p99 {tails}"


# -- beside bad clients -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def bad_clients(address: Address) -> Iterator[None]:
    """Bad clients, in a process of their own."""
    spawn = multiprocessing.get_context("spawn")
    are_connected, may_go = spawn.Event(), spawn.Event()
    process = spawn.Process(target=_stay, args=(address, are_connected, may_go))
    process.start()
    while not are_connected.wait(0.1):
        assert process.is_alive(), "the clients could not connect"
    try:
        yield
    finally:
        may_go.set()
        process.join()


def _stay(
    address: Address, are_connected: multiprocessing.synchronize.Event, may_go: multiprocessing.synchronize.Event
) -> None:
    async def stay() -> None:
        async with BadClients(address, **BAD_CLIENTS):
            are_connected.set()
            await asyncio.to_thread(may_go.wait)

    uvloop.run(stay())


async def prepare(url: str) -> None:
    async with AsyncClient(url) as client:
        await client.declare_queue("idle")
        await client.declare_queue("stalled", max_retries=None)
        await client.put_many("stalled", (b"x" * 1_000 for _ in range(100_000)))


def beside_bad_clients() -> None:
    """Alone and beside bad clients by turns. Time taken by other virtual machines shows as stolen time; it affects both
    alike, so the p99 of all runs together are compared."""
    alone, together = [], []
    for _ in range(PACED_RUNS):
        with serving() as server:
            uvloop.run(prepare(server.url))
            before_s = stolen_s()
            alone.append(uvloop.run(pace(server.url)))
            between_s = stolen_s()
            with bad_clients(server.address):
                connected_s = stolen_s()
                together.append(uvloop.run(pace(server.url)))
        pair = ", ".join(
            f"{what} {percentile(getattr(alone[-1], what), 0.99) * 1e3:.1f} and "
            f"{percentile(getattr(together[-1], what), 0.99) * 1e3:.1f} ms"
            for what in ("publishing", "delivering")
        )
        stolen = f"{(between_s - before_s) * 1e3:.0f} and {(stolen_s() - connected_s) * 1e3:.0f} ms"
        print(f"  p99 alone and beside bad clients: {pair}; stolen {stolen}", flush=True)
    others = (
        f"{BAD_CLIENTS['idle_count']:,} idle, {BAD_CLIENTS['stalled_count']} stalled, "
        f"{BAD_CLIENTS['half_sent_count']} half sent"
    )
    for what in ("publishing", "delivering"):
        before: list[list[float]] = [getattr(delays, what) for delays in alone]
        after: list[list[float]] = [getattr(delays, what) for delays in together]
        print(summary(f"{what} at {PER_SECOND:,} msg/s, alone", before), flush=True)
        print(summary(f"{what} at {PER_SECOND:,} msg/s, beside {others}", after), flush=True)
        ratio = percentile(sorted(chain(*after)), 0.99) / percentile(sorted(chain(*before)), 0.99)
        print(f"{'':<66} p99 of all runs together {ratio:.2f} times", flush=True)


def main() -> None:
    allow_files(8_192)
    put, consumed, posted = [], [], []
    for _ in range(RUNS):
        with serving() as server:
            rates = uvloop.run(put_and_consume(server.url))
            put.append(rates[0])
            consumed.append(rates[1])
            posted.append(uvloop.run(post(server.address)))
    print(f"{'put_many over WebSocket, 100 B':<66} {spread(put, 'msg/s')}", flush=True)
    print(f"{'subscription, consumed and acknowledged, 100 B':<66} {spread(consumed, 'msg/s')}", flush=True)
    label = f"POST /v1/command, one publish of 100 B each, {CONNECTIONS} connections"
    print(f"{label:<66} {spread(posted, 'msg/s')}", flush=True)
    beside_bad_clients()
