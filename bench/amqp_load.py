"""A load over AMQP that costs the loader next to nothing, so that what is measured is the broker.

Publishes are prebuilt chunks; confirms are read as they come. Where all deliveries of one run have the same length, a
consumer knows how many came from the number of bytes, and looks only at the last of each read; else it goes from frame
to frame. The same loader drives Smista and RabbitMQ.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque

from bench.shapes import CHUNK, Chunk, Shape
from smista.protocols.amqp.wire import frames, methods
from smista.protocols.amqp.wire.methods import Method

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
        self,
        routes: list[tuple[str, str]],
        shape: Shape,
        *,
        persistent: bool,
        window: int,
        end: float,
        per_second: float | None = None,
    ) -> None:
        """As fast as confirms come, or one by one at a steady rate."""
        count = 1 if per_second else min(CHUNK, window)
        chunks = [Chunk(shape, exchange, key, count, persistent=persistent) for exchange, key in routes]
        turn = 0
        await self.call(1, methods.ConfirmSelect(False))
        self.is_fast = True
        due = time.perf_counter()
        while time.perf_counter() < end:
            if per_second:
                due += 1 / per_second
                await asyncio.sleep(due - time.perf_counter())
            while self.sent + count - self.confirmed > window:
                self._has_room.clear()
                await self._has_room.wait()
            await self.can_write.wait()
            chunk = chunks[turn]
            turn = (turn + 1) % len(chunks)
            chunk.renew()
            now = due if per_second else time.perf_counter()
            for place in chunk.bodies_at:
                STAMP.pack_into(chunk.buffer, place, now)
            self.transport.write(bytes(chunk.buffer))
            self.sent += count
            self._times.append((self.sent, now))
            await asyncio.sleep(0)
        while self.confirmed < self.sent:
            self._has_room.clear()
            await self._has_room.wait()


_ACK = struct.Struct(">BHIHHQBB")


class ConsumeLink(Link):
    """Consumes and acknowledges, in multiples or one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.received = 0
        self.latencies: list[float] = []
        self._acked = 0
        self._ack_every = 500
        self._is_single = False
        self._shape: Shape
        self._unit = 0
        """The length of a delivery, where all are alike."""

    async def consume(self, queue: str, shape: Shape, prefetch: int, *, acks_single: bool = False) -> None:
        self._shape = shape
        self._is_single = acks_single
        self._ack_every = 1 if acks_single else max(1, min(500, prefetch // 4))
        await self.call(1, methods.BasicQos(0, prefetch, False))
        self.is_fast = True
        self.send(1, methods.BasicConsume(0, queue, "c", False, False, False, True, {}))

    def fast(self) -> None:
        data = self.buffer
        if self._shape.has_own_ids:
            count, used, last, body_at = _walk(data)
        else:
            if not self._unit:
                self._unit = _walk(data[: 4_096 + self._shape.size], 1)[1]
            if not self._unit:
                return
            count = len(data) // self._unit
            used = count * self._unit
            last, body_at = used - self._unit, used - 1 - self._shape.size
        if not count:
            return
        tag_at = last + 7 + 4 + 1 + data[last + 11]
        tag = int.from_bytes(data[tag_at : tag_at + 8], "big")
        self.received += count
        assert tag == self.received, (tag, self.received)
        self.latencies.append(time.perf_counter() - STAMP.unpack_from(data, body_at)[0])
        self.buffer = data[used:]
        if self._is_single:
            pack = _ACK.pack
            acks = [pack(1, 1, 13, 60, 80, one, 0, 206) for one in range(self._acked + 1, tag + 1)]
            self._acked = tag
            self.transport.write(b"".join(acks))
        elif tag - self._acked >= self._ack_every:
            self._acked = tag
            self.send(1, methods.BasicAck(tag, True))

    def finish(self) -> None:
        if self.received > self._acked:
            self._acked = self.received
            self.send(1, methods.BasicAck(self.received, True))


def _walk(data: bytes, limit: int = 1 << 30) -> tuple[int, int, int, int]:
    """How many whole deliveries there are, where they end, where the last starts and where its body does."""
    count = position = last = body_at = 0
    end = len(data)
    unpack = HEAD.unpack_from
    while count < limit and position + 7 <= end:
        header = position + unpack(data, position)[2] + 8
        if header + 7 > end:
            break
        body = header + unpack(data, header)[2] + 8
        if body + 7 > end:
            break
        after = body + unpack(data, body)[2] + 8
        if after > end:
            break
        count, last, body_at, position = count + 1, position, body + 7, after
    return count, position, last, body_at
