"""The stream of Smista: a WebSocket with MessagePack. Requests are made beforehand, under a mask of zeros."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator

import msgspec

from bench.links import Consumer, Link, Publisher, Work
from bench.shapes import CONTENT_ENCODING, CONTENT_TYPE, HEADERS, Encode, Ids

_encode = msgspec.msgpack.encode


class Outcome(msgspec.Struct, frozen=True):
    """Of a request, as far as it says so."""

    accepted: int = 0


class Answer(msgspec.Struct):
    """Whatever the broker sends: an answer, or messages that are pushed."""

    id: int | None = None
    result: Outcome = Outcome()
    error: msgspec.Raw | None = None
    messages: list[msgspec.Raw] = []


class Delivery(msgspec.Struct):
    tag: int


_answer = msgspec.msgpack.Decoder(Answer)
_delivery = msgspec.msgpack.Decoder(Delivery)


class StreamLink(Link):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._is_upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.requests = 0

    async def open(self) -> None:
        self.transport.write(
            b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Protocol: smista.msgpack\r\n\r\n"
        )
        await self._is_upgraded

    def read(self) -> None:
        if not self._is_upgraded.done():
            head, end, rest = self.buffer.partition(b"\r\n\r\n")
            if not end:
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            self.buffer = rest
            self._is_upgraded.set_result(None)
        for payload in self._frames():
            answer = _answer.decode(payload)
            assert answer.error is None, payload
            self.answered(answer)

    def _frames(self) -> Iterator[bytes]:
        data, at = self.buffer, 0
        while len(data) - at >= 2:
            opcode, length, head = data[at] & 15, data[at + 1], 2
            if length == 126:
                head, length = 4, int.from_bytes(data[at + 2 : at + 4], "big")
            elif length == 127:
                head, length = 10, int.from_bytes(data[at + 2 : at + 10], "big")
            if len(data) - at < head + length:
                break
            if opcode == 2:
                yield data[at + head : at + head + length]
            elif opcode == 9:
                self.transport.write(frame(data[at + head : at + head + length], opcode=10))
            at += head + length
        self.buffer = data[at:]

    def answered(self, answer: Answer) -> None:
        raise NotImplementedError

    def ask(self, command: str, payload: dict[str, object]) -> None:
        self.transport.write(frame(_encode({"id": 0, "command": command, "payload": payload})))


class StreamPublisher(StreamLink, Publisher):
    """One batch for each chunk; its request has the number of messages for an id."""

    def encode(self, queue: str) -> Encode:
        def encode(body: bytes, ids: Ids | None) -> bytes:
            if ids is None:
                return _encode(body)
            message = {
                "body": body,
                "correlation_id": ids.correlation_id,
                "content_type": CONTENT_TYPE,
                "content_encoding": CONTENT_ENCODING,
                # The broker gives the message its id; that of the publisher is one of its headers.
                "headers": {**HEADERS, "message_id": ids.message_id},
            }
            return _encode(message)

        return encode

    def together(self, queue: str, messages: list[bytes]) -> bytes:
        field = "messages" if self.work.shape.has_own_ids else "bodies"
        payload = {"queue": queue, field: list(map(msgspec.Raw, messages)), "brief": True}
        return frame(_encode({"id": len(messages), "command": "queue.publish_batch", "payload": payload}))

    def answered(self, answer: Answer) -> None:
        assert answer.result.accepted == answer.id, answer
        self.confirmed_to(self.confirmed + answer.result.accepted)


class StreamConsumer(StreamLink, Consumer):
    _acked = 0

    async def consume(self, queue: str) -> None:
        self.ask("subscribe", {"queue": queue, "prefetch": self.work.prefetch, "raw": True})

    def answered(self, answer: Answer) -> None:
        if not answer.messages:
            return
        last = bytes(answer.messages[-1])
        self._tag = _delivery.decode(last).tag
        self.took(len(answer.messages), last, last.index(b"x" * 8) - 16)
        if self.work.acks_single:
            tags = list(range(self._acked + 1, self._tag + 1))
            requests = [{"command": "ack", "payload": {"tags": [tag]}} for tag in tags]
            self._acked = self._tag
            self.transport.write(frame(_encode(requests)))
        elif self._tag - self._acked >= max(1, min(500, self.work.prefetch // 4)):
            self.finish()

    def finish(self) -> None:
        if self.received and self._tag > self._acked:
            self._acked = self._tag
            self.transport.write(frame(_encode({"command": "ack", "payload": {"up_to": self._tag}})))


def frame(payload: bytes, opcode: int = 2) -> bytes:
    length = len(payload)
    if length < 126:
        head = struct.pack(">BB", 128 | opcode, 128 | length)
    elif length < 1 << 16:
        head = struct.pack(">BBH", 128 | opcode, 128 | 126, length)
    else:
        head = struct.pack(">BBQ", 128 | opcode, 128 | 127, length)
    return head + bytes(4) + payload
