"""AMQP 0-9-1, the same for Smista and RabbitMQ: one channel for each connection, confirms, acks single or multiple.

Where all deliveries of one run have the same length, a consumer knows how many came from the number of bytes, and looks
only at the last of each read; else it goes from frame to frame.
"""

from __future__ import annotations

import asyncio
import struct

from bench.links import Consumer, Link, Publisher, Work
from bench.peers.peer import Peer
from bench.shapes import CONTENT_ENCODING, CONTENT_TYPE, HEADERS, Encode, Ids
from smista.protocols.amqp.wire import content, frames, methods
from smista.protocols.amqp.wire.content import BasicProperties
from smista.protocols.amqp.wire.methods import Method

EXCHANGE = "bench-fanout"
_HEAD = struct.Struct(">BHI")
_ACK = struct.Struct(">BHIHHQBB")
_ACK_BYTES = 21


class AmqpLink(Link):
    """Synchronous methods by `call`; then `fast` takes over what comes in."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._replies: asyncio.Queue[Method] = asyncio.Queue()
        self.is_fast = False

    def read(self) -> None:
        if self.is_fast:
            self.fast()
            return
        while len(self.buffer) >= 8:
            kind, _, length = _HEAD.unpack_from(self.buffer)
            if len(self.buffer) < length + 8:
                return
            payload, self.buffer = self.buffer[7 : 7 + length], self.buffer[8 + length :]
            if kind == frames.METHOD:
                method = methods.read(payload)
                if isinstance(method, (methods.ChannelClose, methods.ConnectionClose)):
                    raise AssertionError(method.reply_text)
                self._replies.put_nowait(method)

    def fast(self) -> None:
        raise AssertionError("a link that only calls")

    def send(self, channel: int, method: Method) -> None:
        self.transport.write(frames.method_frame(channel, method))

    async def call(self, channel: int, method: Method) -> Method:
        self.send(channel, method)
        return await self._replies.get()

    async def open(self) -> None:
        self.transport.write(frames.PROTOCOL_HEADER)
        await self._replies.get()
        await self.call(0, methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"))
        self.send(0, methods.ConnectionTuneOk(2047, 131_072, 0))
        await self.call(0, methods.ConnectionOpen("/"))
        await self.call(1, methods.ChannelOpen())

    async def close(self) -> None:
        self.send(0, methods.ConnectionClose(200, "", 0, 0))
        await asyncio.wait((self.closed,), timeout=5)
        self.transport.abort()


class AmqpPublisher(AmqpLink, Publisher):
    async def open(self) -> None:
        await super().open()
        await self.call(1, methods.ConfirmSelect(False))
        self.is_fast = True

    def encode(self, queue: str) -> Encode:
        exchange, key = (EXCHANGE, "") if self.work.fanout else ("", queue)
        publish = frames.method_frame(1, methods.BasicPublish(0, exchange, key, False, False))

        def encode(body: bytes, ids: Ids | None) -> bytes:
            basic = BasicProperties(delivery_mode=2 if self.work.durable else 1)
            if ids is not None:
                basic.content_type, basic.content_encoding, basic.headers = (
                    CONTENT_TYPE,
                    CONTENT_ENCODING,
                    dict(HEADERS),
                )
                basic.message_id, basic.correlation_id = ids
            head = content.write_head(len(body), content.write_properties(basic))
            return publish + frames.frame(frames.HEADER, 1, head) + frames.frame(frames.BODY, 1, body)

        return encode

    def fast(self) -> None:
        data = self.buffer
        used = len(data) - len(data) % _ACK_BYTES
        # RabbitMQ confirms some singly, and not in order; the highest tag will do.
        tags = (_ACK.unpack_from(data, place)[5] for place in range(0, used, _ACK_BYTES))
        self.buffer = data[used:]
        self.confirmed_to(max(self.confirmed, max(tags, default=0)))


class AmqpConsumer(AmqpLink, Consumer):
    """Consumes and acknowledges, in multiples or one by one."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._acked = 0
        self._ack_every = 1 if work.acks_single else max(1, min(500, work.prefetch // 4))
        self._unit = 0
        """The length of a delivery, where all are alike."""

    async def consume(self, queue: str) -> None:
        await self.call(1, methods.BasicQos(0, self.work.prefetch, False))
        self.is_fast = True
        self.send(1, methods.BasicConsume(0, queue, "c", False, False, False, True, {}))

    def fast(self) -> None:
        data = self.buffer
        shape = self.work.shape
        if shape.has_own_ids:
            count, used, last, body_at = _walk(data)
        else:
            if not self._unit:
                self._unit = _walk(data[: 4_096 + shape.size], 1)[1]
            if not self._unit:
                return
            count = len(data) // self._unit
            used = count * self._unit
            last, body_at = used - self._unit, used - 1 - shape.size
        if not count:
            return
        tag_at = last + 7 + 4 + 1 + data[last + 11]
        tag = int.from_bytes(data[tag_at : tag_at + 8], "big")
        self.took(count, data, body_at)
        assert tag == self.received, (tag, self.received)
        self.buffer = data[used:]
        if self.work.acks_single:
            pack = _ACK.pack
            acks = [pack(1, 1, 13, 60, 80, one, 0, 206) for one in range(self._acked + 1, tag + 1)]
            self._acked = tag
            self.transport.write(b"".join(acks))
        elif tag - self._acked >= self._ack_every:
            self.finish()

    def finish(self) -> None:
        if self.received > self._acked:
            self._acked = self.received
            self.send(1, methods.BasicAck(self.received, True))


def _walk(data: bytes, limit: int = 1 << 30) -> tuple[int, int, int, int]:
    """How many whole deliveries there are, where they end, where the last starts and where its body does."""
    count = position = last = body_at = 0
    end = len(data)
    unpack = _HEAD.unpack_from
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


class AmqpPeer(Peer):
    """A broker that speaks it, at `amqp_port`."""

    @property
    def amqp_port(self) -> int:
        return self.port

    async def declare(self, work: Work) -> None:
        link = await AmqpLink.connect(self.amqp_port, work)
        if work.fanout:
            await link.call(1, methods.ExchangeDeclare(0, EXCHANGE, "fanout", False, True, False, False, False, {}))
        for queue in work.names:
            await link.call(1, methods.QueueDeclare(0, queue, False, work.durable, False, False, False, {}))
            if work.fanout:
                await link.call(1, methods.QueueBind(0, queue, EXCHANGE, "", False, {}))
        await link.close()

    async def publisher(self, work: Work) -> Publisher:
        return await AmqpPublisher.connect(self.amqp_port, work)

    async def consumer(self, work: Work) -> Consumer:
        return await AmqpConsumer.connect(self.amqp_port, work)
