"""beanstalkd with its binlog: synced at every job, or every 50 ms as it comes.

It has no headers: ids and the rest are a head of JSON before the body. A consumer asks for many jobs in one write: the
first may be waited for, the others are only taken if they are there. Only who reserved a job may delete it, and a wait
holds up what comes after it on its connection, so the deletes go out before the next requests.
"""

from __future__ import annotations

import json
import re
from typing import ClassVar

from bench.links import Consumer, Publisher, Work
from bench.peers import installing
from bench.peers.peer import Program, output
from bench.shapes import CONTENT_ENCODING, CONTENT_TYPE, HEADERS, Encode, Ids


class BeanstalkdPublisher(Publisher):
    _answers = 0

    def encode(self, queue: str) -> Encode:
        tube = b"use %s\r\n" % queue.encode() if self.work.queues > 1 else b""
        self._answers_each = 2 if tube else 1
        if not tube:
            self.transport.write(b"use %s\r\n" % queue.encode())
            self._answers = -1

        def encode(body: bytes, ids: Ids | None) -> bytes:
            head = b""
            if ids is not None:
                types = {"content_type": CONTENT_TYPE, "content_encoding": CONTENT_ENCODING}
                head = json.dumps({**ids._asdict(), **types, **HEADERS}).encode() + b"\n"
            return b"%sput 0 0 600 %d\r\n%s%s\r\n" % (tube, len(head) + len(body), head, body)

        return encode

    def read(self) -> None:
        data, self.buffer = self.buffer, b""
        assert b"BURIED" not in data, data
        assert b"OUT_OF" not in data, data
        self._answers += data.count(b"\n")
        self.confirmed_to(max(0, self._answers) // self._answers_each)


class BeanstalkdConsumer(Consumer):
    _asked = 1

    async def consume(self, queue: str) -> None:
        self._jobs: list[bytes] = []
        self._open = 0
        self._ask(b"watch %s\r\n" % queue.encode())

    def _ask(self, before: bytes) -> None:
        self._open = self._asked
        self.transport.write(before + b"reserve\r\n" + b"reserve-with-timeout 0\r\n" * (self._asked - 1))

    def read(self) -> None:
        data, at = self.buffer, 0
        taken = body_at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            words = data[at:end].split(b" ")
            if words[0] == b"RESERVED":
                after = end + 2 + int(words[2]) + 2
                if after > len(data):
                    break
                self._jobs.append(words[1])
                taken, body_at = taken + 1, end + 2
                at = after
            else:
                assert words[0] in (b"TIMED_OUT", b"WATCHING", b"DELETED"), words
                at = end + 2
            self._open -= words[0] in (b"RESERVED", b"TIMED_OUT")
        self.buffer = data[at:]
        if taken:
            self.took(taken, data, data.index(b"x" * 8, body_at) - 16)
        if not self._open:
            # As many as came, and more if all that were asked for came: what times out costs the broker, too.
            all_came = len(self._jobs) == self._asked
            self._asked = min(self.work.prefetch, 500, self._asked * 2) if all_came else max(1, len(self._jobs))
            deletes = b"".join(b"delete %s\r\n" % job for job in self._jobs)
            self._jobs = []
            self._ask(deletes)


class Beanstalkd(Program):
    name = "beanstalkd"
    durability = "binlog as it comes: confirmed before it is synced, every 50 ms"
    sync_every_ms: ClassVar[int] = 50

    @classmethod
    def missing(cls) -> str:
        return installing.debian("beanstalkd", "beanstalkd")

    def version(self) -> str:
        found = re.search(r"\d[\d.]+", output(self.command()[0], "-v"))
        return found[0] if found else ""

    def command(self) -> list[str]:
        flags = ["-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.folder), "-f", str(self.sync_every_ms)]
        return [installing.found("beanstalkd") or "", *flags]

    async def declare(self, work: Work) -> None:
        """A tube is there when it is named."""

    async def publisher(self, work: Work) -> Publisher:
        return await BeanstalkdPublisher.connect(self.port, work)

    async def consumer(self, work: Work) -> Consumer:
        return await BeanstalkdConsumer.connect(self.port, work)


class BeanstalkdSynced(Beanstalkd):
    name = "beanstalkd, synced"
    durability = "binlog, -f 0: synced before every confirm"
    sync_every_ms = 0
