"""Redis Streams with the append-only file synced before every answer; one group of consumers for each queue.

What is acknowledged is also deleted, as a queue does it: a stream would otherwise keep it. Entries are asked for as
they are taken; the next request travels with the acknowledgement.
"""

from __future__ import annotations

import re

from bench.links import Consumer, Publisher, Work
from bench.peers import installing
from bench.peers.peer import Program, output
from bench.shapes import CONTENT_ENCODING, CONTENT_TYPE, HEADERS, Encode, Ids

_HEAD = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*(\d+)\r\n")
_ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*\d+\r\n")
_LAST_BODY = re.compile(rb"\$4\r\nbody\r\n\$(\d+)\r\n")


def command(*words: bytes | str) -> bytes:
    raw = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in raw)


class RedisPublisher(Publisher):
    _lines = 0

    def encode(self, queue: str) -> Encode:
        def encode(body: bytes, ids: Ids | None) -> bytes:
            fields: list[bytes | str] = []
            if ids is not None:
                fields += ["message_id", ids.message_id, "correlation_id", ids.correlation_id]
                fields += ["content_type", CONTENT_TYPE, "content_encoding", CONTENT_ENCODING]
                fields += [word for pair in HEADERS.items() for word in pair]
            return command("XADD", queue, "*", *fields, "body", body)

        return encode

    def read(self) -> None:
        # $15, and the id that the entry was given
        data, self.buffer = self.buffer, b""
        assert b"-ERR" not in data, data
        self._lines += data.count(b"\n")
        self.confirmed_to(self._lines // 2)


class RedisConsumer(Consumer):
    async def consume(self, queue: str) -> None:
        self._queue = queue
        self._ask = command(
            *("XREADGROUP", "GROUP", "g", f"c{id(self)}", "COUNT", str(min(500, self.work.prefetch))),
            *("BLOCK", "0", "STREAMS", queue, ">"),
        )
        self.transport.write(self._ask)

    def read(self) -> None:
        data = self.buffer
        found = _HEAD.search(data)
        if found is None:
            return
        ids = _ENTRY.findall(data, found.end())
        if len(ids) < int(found[1]):
            return
        place = data.rfind(b"$4\r\nbody\r\n")
        last = _LAST_BODY.match(data, place)
        if last is None or data.rfind(ids[-1]) > place or len(data) < last.end() + int(last[1]) + 2:
            return
        self.buffer = b""
        self.took(len(ids), data, last.end())
        if self.work.acks_single:
            done = b"".join(command("XACK", self._queue, "g", one) + command("XDEL", self._queue, one) for one in ids)
        else:
            done = command("XACK", self._queue, "g", *ids) + command("XDEL", self._queue, *ids)
        self.transport.write(done + self._ask)


class Redis(Program):
    name = "redis"
    durability = "streams, appendfsync always: synced before every answer"

    @classmethod
    def missing(cls) -> str:
        return installing.debian("redis-server", "redis-server")

    def version(self) -> str:
        found = re.search(r"v=(\S+)", output(installing.found("redis-server") or "", "--version"))
        return found[1] if found else ""

    def command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "daemonize": "no",
        }
        flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
        return [installing.found("redis-server") or "", *flags]

    def is_ready(self) -> bool:
        """It listens before it has loaded its file."""
        return self._ask("PING") == "PONG"

    def _ask(self, *words: str) -> str:
        return output("redis-cli", "-p", str(self.port), *words)

    async def declare(self, work: Work) -> None:
        for queue in work.names:
            assert self._ask("XGROUP", "CREATE", queue, "g", "$", "MKSTREAM") == "OK"

    async def publisher(self, work: Work) -> Publisher:
        return await RedisPublisher.connect(self.port, work)

    async def consumer(self, work: Work) -> Consumer:
        return await RedisConsumer.connect(self.port, work)
