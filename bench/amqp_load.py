"""A load over AMQP that costs the loader next to nothing, so that what is measured is the broker.

Publishes are prebuilt chunks; confirms are read as they come. All deliveries of one run have the same length, so a
consumer knows how many came from the number of bytes, and looks only at the last of each read. The same loader drives
Smista and RabbitMQ.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque

from smista.protocols.amqp import content, frames, methods
from smista.protocols.amqp.content import BasicProperties
from smista.protocols.amqp.methods import Method

CHUNK = 50
STAMP = struct.Struct(">d")
HEAD = struct.Struct(">BHI")


class Link(asyncio.Protocol):
    """A connection with one channel. Synchronous methods by `call`; then `fast` takes over what comes in."""

    def __init__(self) -> None:
        self.buffer = b""
        self._replies: asyncio.Queue[Method] = asyncio.Queue()
        self.transport: asyncio.Transport
        self.is_fast = False
        self.can_write = asyncio.Event()
        self.can_write.set()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a transport for a stream, which asyncio does not say

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.is_fast:
            self.fast()
            return
        while len(self.buffer) >= 8:
            kind, _, length = HEAD.unpack_from(self.buffer)
            if len(self.buffer) < length + 8:
                return
            payload, self.buffer = self.buffer[7 : 7 + length], self.buffer[8 + length :]
            if kind == frames.METHOD:
                method = methods.read(payload)
                if isinstance(method, (methods.ChannelClose, methods.ConnectionClose)):
                    raise AssertionError(method.reply_text)
                self._replies.put_nowait(method)

    def fast(self) -> None:
        raise NotImplementedError

    def send(self, channel: int, method: Method) -> None:
        self.transport.write(frames.method_frame(channel, method))

    async def call(self, channel: int, method: Method) -> Method:
        self.send(channel, method)
        return await self._replies.get()

    async def open(self) -> None:
        self.transport.write(frames.PROTOCOL_HEADER)
        await self._replies.get()
        start = methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")
        await self.call(0, start)
        self.send(0, methods.ConnectionTuneOk(2047, 131_072, 0))
        await self.call(0, methods.ConnectionOpen("/"))
        await self.call(1, methods.ChannelOpen())

    async def close(self) -> None:
        self.transport.write(frames.method_frame(0, methods.ConnectionClose(200, "", 0, 0)))
        await asyncio.wait((self.closed,), timeout=5)
        self.transport.abort()


async def connect(kind: type[Link], port: int) -> Link:
    _, link = await asyncio.get_running_loop().create_connection(kind, "127.0.0.1", port)
    await link.open()
    return link


class PublishLink(Link):
    """Publishes chunks, never more than `window` messages unconfirmed (0: without confirms)."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.confirmed = 0
        self.latencies: list[float] = []
        self._times: deque[tuple[int, float]] = deque()
        self._has_room = asyncio.Event()

    def fast(self) -> None:
        data = self.buffer
        position = 0
        while len(data) - position >= 21:
            # basic.ack: 7 head, 4 method, 8 tag, 1 flag, 1 end. RabbitMQ sends some singly; the highest tag will do.
            tag = int.from_bytes(data[position + 11 : position + 19], "big")
            self.confirmed = max(self.confirmed, tag)
            position += 21
        self.buffer = data[position:]
        now = time.perf_counter()
        while self._times and self._times[0][0] <= self.confirmed:
            self.latencies.append(now - self._times.popleft()[1])
        self._has_room.set()

    async def publish(
        self, routes: list[tuple[str, str]], size: int, *, persistent: bool, window: int, end: float
    ) -> None:
        units = [_unit(exchange, key, size, persistent=persistent) for exchange, key in routes]
        chunk = min(CHUNK, window)
        buffers = [bytearray(unit * chunk) for unit, _ in units]
        turn = 0
        await self.call(1, methods.ConfirmSelect(False))
        self.is_fast = True
        while time.perf_counter() < end:
            while self.sent + chunk - self.confirmed > window:
                self._has_room.clear()
                await self._has_room.wait()
            await self.can_write.wait()
            buffer, (unit, offset) = buffers[turn], units[turn]
            turn = (turn + 1) % len(units)
            now = time.perf_counter()
            for start in range(offset, len(buffer), len(unit)):
                STAMP.pack_into(buffer, start, now)
            self.transport.write(bytes(buffer))
            self.sent += chunk
            self._times.append((self.sent, now))
            await asyncio.sleep(0)
        while self.confirmed < self.sent:
            self._has_room.clear()
            await self._has_room.wait()


def _unit(exchange: str, key: str, size: int, *, persistent: bool) -> tuple[bytes, int]:
    """One whole publish, and where in it the body starts."""
    method = frames.method_frame(1, methods.BasicPublish(0, exchange, key, False, False))
    raw = content.write_properties(BasicProperties(delivery_mode=2 if persistent else 1))
    head = frames.frame(frames.HEADER, 1, content.write_head(size, raw))
    return method + head + frames.frame(frames.BODY, 1, b"x" * size), len(method) + len(head) + 7


class ConsumeLink(Link):
    """Consumes and acknowledges in multiples."""

    def __init__(self) -> None:
        super().__init__()
        self.received = 0
        self.latencies: list[float] = []
        self._unit = 0
        self._tag_at = 0
        self._acked = 0
        self.ack_every = 500
        self.size = 0

    async def consume(self, queue: str, size: int, prefetch: int) -> None:
        self.size = size
        self.ack_every = max(1, min(500, prefetch // 4))
        await self.call(1, methods.BasicQos(0, prefetch, False))
        self.is_fast = True
        self.send(1, methods.BasicConsume(0, queue, "c", False, False, False, True, {}))

    def fast(self) -> None:
        data = self.buffer
        if not self._unit and not self._measure(data):
            return
        count = len(data) // self._unit
        if not count:
            return
        used = count * self._unit
        last = used - self._unit
        tag = int.from_bytes(data[last + self._tag_at : last + self._tag_at + 8], "big")
        self.received += count
        assert tag == self.received, (tag, self.received)
        self.latencies.append(time.perf_counter() - STAMP.unpack_from(data, used - 1 - self.size)[0])
        self.buffer = data[used:]
        if tag - self._acked >= self.ack_every:
            self._acked = tag
            self.send(1, methods.BasicAck(tag, True))

    def _measure(self, data: bytes) -> bool:
        """The length of a delivery, from the first one."""
        position = 0
        for _ in range(3):
            if len(data) < position + 8:
                return False
            position += HEAD.unpack_from(data, position)[2] + 8
        if len(data) < position:
            return False
        self._unit = position
        self._tag_at = 7 + 4 + 1 + data[11]
        return True

    def finish(self) -> None:
        if self.received > self._acked:
            self._acked = self.received
            self.send(1, methods.BasicAck(self.received, True))
