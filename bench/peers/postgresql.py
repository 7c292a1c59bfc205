"""PostgreSQL as a queue: a table, COPY to publish, DELETE of rows found with SKIP LOCKED to consume.

The protocol is written by hand, as for the others. Publishing is a COPY for each chunk, a transaction of its own, of
which several are under way on one connection; consuming is BEGIN, DELETE ... RETURNING, and COMMIT with the next of
them, so that a consumer that dies loses nothing. An empty queue is asked again after 2 ms.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.links import Consumer, Link, Publisher, Work
from bench.peers import installing
from bench.peers.peer import Program, output
from bench.shapes import CONTENT_ENCODING, CONTENT_TYPE, HEADERS, Encode, Ids

_USER = "postgres"
_COLUMNS = ("message_id", "correlation_id", "content_type", "content_encoding", *HEADERS, "body")
_POLL_S = 0.002
_NULL = struct.pack(">i", -1)
_COPY_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)


def packet(kind: bytes, payload: bytes = b"") -> bytes:
    return kind + struct.pack(">i", len(payload) + 4) + payload


def _field(raw: bytes) -> bytes:
    return struct.pack(">i", len(raw)) + raw


class PostgresLink(Link):
    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self) -> None:
        start = struct.pack(">i", 196_608) + f"user\0{_USER}\0database\0postgres\0\0".encode()
        self.transport.write(struct.pack(">i", len(start) + 4) + start)
        await self._ready

    async def run(self, statement: str) -> None:
        self._ready = asyncio.get_running_loop().create_future()
        self.transport.write(packet(b"Q", statement.encode() + b"\0"))
        await self._ready

    def read(self) -> None:
        for kind, start, end in self._messages():
            assert kind != 69, self.buffer[start:end]
            if kind == 90 and not self._ready.done():
                self._ready.set_result(None)
            else:
                self.message(kind, start, end)

    def _messages(self) -> Iterator[tuple[int, int, int]]:
        data, at = self.buffer, 0
        while len(data) - at >= 5:
            end = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
            if end > len(data):
                break
            yield data[at], at + 5, end
            at = end
        self.buffer = data[at:]

    def message(self, kind: int, start: int, end: int) -> None:
        """Of any other kind."""


class PostgresPublisher(PostgresLink, Publisher):
    chunk_max = 250

    def encode(self, queue: str) -> Encode:
        def encode(body: bytes, ids: Ids | None) -> bytes:
            row = [_NULL] * (len(_COLUMNS) - 1)
            if ids is not None:
                row = [_field(text.encode()) for text in (*ids, CONTENT_TYPE, CONTENT_ENCODING, *HEADERS.values())]
            return struct.pack(">h", len(_COLUMNS)) + b"".join(row) + _field(body)

        return encode

    def together(self, queue: str, messages: list[bytes]) -> bytes:
        copy = f'COPY "{queue}" ({", ".join(_COLUMNS)}) FROM STDIN BINARY\0'.encode()
        rows = _COPY_HEAD + b"".join(messages) + b"\xff\xff"
        self._each = len(messages)
        return packet(b"Q", copy) + packet(b"d", rows) + packet(b"c")

    def message(self, kind: int, start: int, end: int) -> None:
        if kind == 90:
            self.confirmed_to(self.confirmed + self._each)


class PostgresConsumer(PostgresLink, Consumer):
    async def consume(self, queue: str) -> None:
        count = min(500, self.work.prefetch)
        take = (
            f'DELETE FROM "{queue}" WHERE number IN (SELECT number FROM "{queue}" ORDER BY number '
            f"FOR UPDATE SKIP LOCKED LIMIT {count}) RETURNING number, body, {', '.join(_COLUMNS[:-1])}"
        )
        statements = {"b": "BEGIN", "d": take, "c": "COMMIT"}
        parsed = [packet(b"P", f"{name}\0{statement}\0\0\0".encode()) for name, statement in statements.items()]
        self._ready = asyncio.get_running_loop().create_future()
        self.transport.write(b"".join(parsed) + packet(b"S"))
        await self._ready
        self._take = _execute("b") + _execute("d") + packet(b"S")
        self._commit = _execute("c")
        self._count = 0
        self._body = b""
        self.transport.write(self._take)

    def message(self, kind: int, start: int, end: int) -> None:
        if kind == 68:
            self._count += 1
            self._body = self.buffer[start + 18 : end]
        elif kind == 90:
            count, self._count = self._count, 0
            if count:
                self.took(count, self._body, 0)
                self.transport.write(self._commit + self._take)
            else:
                asyncio.get_running_loop().call_later(_POLL_S, self._again)

    def _again(self) -> None:
        if not self.closed.done():
            self.transport.write(self._commit + self._take)


def _execute(name: str) -> bytes:
    """With its results in binary."""
    bind = f"\0{name}\0".encode() + struct.pack(">hhhh", 0, 0, 1, 1)
    return packet(b"B", bind) + packet(b"E", struct.pack(">xi", 0))


class Postgresql(Program):
    name = "postgresql"
    durability = "fsync and synchronous_commit on: synced before every commit; 4 connections, 250 rows to a COPY"
    connections = 4
    ends_on = signal.SIGINT

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # It does not run as root.
        self.user = _USER if os.geteuid() == 0 else None

    @classmethod
    def missing(cls) -> str:
        return installing.debian("postgresql", "postgres")

    def version(self) -> str:
        return output(_program("postgres"), "--version").split(" ")[2]

    def command(self) -> list[str]:
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": self.folder}
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [_program("postgres"), "-D", str(self.folder / "data"), *flags]

    def start(self) -> None:
        data = self.folder / "data"
        if not data.exists():
            initdb = [_program("initdb"), "-D", str(data), "-U", _USER, "--auth=trust", "--encoding=UTF8"]
            subprocess.run(initdb, check=True, user=self.user, cwd=self.folder, stdout=subprocess.DEVNULL)
        super().start()

    def is_ready(self) -> bool:
        """It listens before it has recovered."""
        ready = [_program("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        return subprocess.run(ready, check=False).returncode == 0

    async def declare(self, work: Work) -> None:
        link = await PostgresLink.connect(self.port, work)
        columns = ", ".join(f"{name} {'bytea' if name == 'body' else 'text'}" for name in _COLUMNS)
        for queue in work.names:
            await link.run(f'CREATE TABLE "{queue}" (number bigserial PRIMARY KEY, {columns})')
        await link.close()

    async def publisher(self, work: Work) -> Publisher:
        return await PostgresPublisher.connect(self.port, work)

    async def consumer(self, work: Work) -> Consumer:
        return await PostgresConsumer.connect(self.port, work)


def _program(name: str) -> str:
    beside = Path(installing.found("postgres") or "").resolve().parent
    return str(beside / name)
