"""Clients on the HTTP port that only cost: subscriptions that wait, readers that do not read, requests that never end.
One that is cut off reconnects, so that their number stays the same."""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
from collections.abc import Callable
from typing import Self

import msgspec

HANDSHAKE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Protocol: smista.msgpack\r\n\r\n"
)
HALVES = (
    b"POST /v1/command HTTP/1.1\r\nContent-Type: applica",
    b"POST /v1/command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
    b"GET /v1/stream HTTP/1.1\r\nUpgrade: webso",
    b"P",
)
BINARY, PING, PONG = 2, 9, 10
SEGMENT_BYTES = 1_400

Address = tuple[str, int]


def allow_files(count: int) -> int:
    """Raise the limit of open files of this process and its children to `count`; returns the limit reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def frame(opcode: int, payload: bytes) -> bytes:
    """A WebSocket frame as clients send it, with a mask of zeros."""
    return bytes([0x80 | opcode, 0xFF]) + len(payload).to_bytes(8, "big") + bytes(4) + payload


class Subscriber(asyncio.Protocol):
    """Subscribes, then waits and answers pings; with `is_stalled` it reads nothing after subscribing."""

    def __init__(self, queue: str, *, prefetch: int, is_stalled: bool, on_lost: Callable[[], None]) -> None:
        self._subscribe = msgspec.msgpack.encode(
            {"id": 1, "command": "subscribe", "payload": {"queue": queue, "prefetch": prefetch}}
        )
        self._is_stalled = is_stalled
        self._on_lost = on_lost
        self._input = bytearray()
        self._is_open = False
        self._transport: asyncio.Transport
        self.is_ready = asyncio.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is one, over TCP
        self._transport = transport
        transport.write(HANDSHAKE)

    def data_received(self, data: bytes) -> None:
        self._input += data
        if not self._is_open:
            end = self._input.find(b"\r\n\r\n")
            if end < 0:
                return
            assert self._input.startswith(b"HTTP/1.1 101 "), bytes(self._input[:200])
            del self._input[: end + 4]
            self._is_open = True
            self._transport.write(frame(BINARY, self._subscribe))
            if self._is_stalled:
                self._transport.pause_reading()
                self.is_ready.set()
        while self._take_frame():
            pass

    def _take_frame(self) -> bool:
        data = self._input
        if len(data) < 2:
            return False
        length, start = data[1], 2
        if length >= 126:
            start = 4 if length == 126 else 10
            length = int.from_bytes(data[2:start], "big")
        if len(data) < start + length:
            return False
        if data[0] & 15 == PING:
            self._transport.write(frame(PONG, bytes(data[start : start + length])))
        else:
            self.is_ready.set()
        del data[: start + length]
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_ready.set()
        self._on_lost()


class HalfSender(asyncio.Protocol):
    """Sends the first half of a request."""

    def __init__(self, half: bytes, *, on_lost: Callable[[], None]) -> None:
        self._half = half
        self._on_lost = on_lost
        self.is_ready = asyncio.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is one, over TCP
        transport.write(self._half)
        self.is_ready.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost()


class BadClients:
    """Connected while the context is entered. Idle ones wait on queue `idle`, stalled ones are pushed messages of
    `stalled`."""

    def __init__(self, address: Address, *, idle_count: int, stalled_count: int, half_sent_count: int) -> None:
        self._address = address
        self._wanted = [self._idle] * idle_count + [self._stalled] * stalled_count + [self._half_sent] * half_sent_count
        self._transports: set[asyncio.Transport] = set()
        self._reconnecting: set[asyncio.Task[None]] = set()
        self._halves = itertools.cycle(HALVES)
        self._is_over = False
        self.cut_off = {"idle": 0, "stalled": 0, "half sent": 0}
        """How many connections of each kind the broker ended, as far as they noticed: stalled ones do not."""

    async def __aenter__(self) -> Self:
        for join in self._wanted:
            await join()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        for task in self._reconnecting:
            task.cancel()
        await asyncio.gather(*self._reconnecting, return_exceptions=True)
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0)

    async def _idle(self) -> None:
        on_lost = self._reconnects("idle", self._idle)
        await self._join(lambda: Subscriber("idle", prefetch=10, is_stalled=False, on_lost=on_lost))

    async def _stalled(self) -> None:
        on_lost = self._reconnects("stalled", self._stalled)
        await self._join(
            lambda: Subscriber("stalled", prefetch=1_000, is_stalled=True, on_lost=on_lost), receive_bytes=4_096
        )

    async def _half_sent(self) -> None:
        on_lost = self._reconnects("half sent", self._half_sent)
        await self._join(lambda: HalfSender(next(self._halves), on_lost=on_lost))

    async def _join(self, make: Callable[[], Subscriber | HalfSender], receive_bytes: int | None = None) -> None:
        loop = asyncio.get_running_loop()
        tcp = socket.socket()
        tcp.setblocking(False)
        if receive_bytes is not None:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            # Otherwise the kernel buffers 2.5 MB on the broker's side, because loopback segments are large.
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        await loop.sock_connect(tcp, self._address)
        transport, protocol = await loop.create_connection(make, sock=tcp)
        self._transports.add(transport)
        await protocol.is_ready.wait()

    def _reconnects(self, kind: str, join: Callable[[], object]) -> Callable[[], None]:
        def on_lost() -> None:
            if self._is_over:
                return
            self.cut_off[kind] += 1
            self._transports = {one for one in self._transports if not one.is_closing()}
            task = asyncio.ensure_future(self._reconnect(join))
            self._reconnecting.add(task)
            task.add_done_callback(self._reconnecting.discard)

        return on_lost

    async def _reconnect(self, join: Callable[[], object]) -> None:
        while True:
            try:
                result = join()
                assert asyncio.iscoroutine(result)
                await result
                return
            except OSError:
                await asyncio.sleep(0.1)
