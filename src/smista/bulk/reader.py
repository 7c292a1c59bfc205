"""The broker's side of bulk reading: a process of its own, started with the first request, ended with the broker.

    client ──request──▶ broker ──the client's connection──▶ process ──rows──▶ client
                                                            │ reads
                                                         the log

The connection itself is handed over, so no row passes through the broker. A process that died is started again with the
next request; a request that it had not yet begun goes to the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import logging
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator

from smista.bulk.frames import (
    HEAD,
    Begin,
    Done,
    Learn,
    Planned,
    Refused,
    Reply,
    Request,
    Taken,
    decode_reply,
    encode,
)
from smista.bulk.output import ProcessOutput
from smista.engine import Broker
from smista.errors import ArrowMissing, BulkReaderFailed, LogPositionDropped, TooManyReaders
from smista.log import LogLocation
from smista.service import properties
from smista.service.log_reading import BulkMeasures, MakePlan, Place, Plan, Read

READERS_MAX = 64
"""How many may read at once; each is a thread of the process, with a batch of its own."""
PLANS_MAX = 32
"""How many plans may be asked for at once; the process makes them one by one."""
TRIES = 2
END_S = 5.0
BUSY_S = 0.01
MEMORY = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
"""For the process. What 64 readers that stand still take is 0.95 GB with this and 1.6 without, and most of it is given
back when they have gone, instead of none; it costs no time."""

logger = logging.getLogger("smista.bulk")


class LogReader:
    """Lives on one loop."""

    def __init__(self, *, timeout_s: float = 600.0) -> None:
        """A reader that takes nothing for `timeout_s` is cut off."""
        self.measures = BulkMeasures()
        self._broker: Broker | None = None
        self._location: LogLocation | None = None
        self._timeout_s = timeout_s
        self._process: _Process | None = None
        self._starting = asyncio.Lock()
        self._ids = itertools.count(1)
        self._is_closed = False
        self._planning = 0

    def read_from(self, broker: Broker, location: LogLocation) -> None:
        """Read the log of this broker, which lies there."""
        self._broker = broker
        self._location = location

    def check(self) -> None:
        """Raise why there can be no bulk reading here."""
        missing = [name for name in ("pyarrow", "numpy") if importlib.util.find_spec(name) is None]
        if missing:
            raise ArrowMissing(
                f"Reading in bulk needs {' and '.join(missing)}, which the broker's Python lacks; run "
                "pip install 'smista[spark]' (or pip install pyarrow numpy) there."
            )

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        """A place among those who read; it is taken from here on, and free again at the end unless `read` has handed
        over the connection: then when all is read."""
        if self.measures.readers >= READERS_MAX:
            raise TooManyReaders(f"{READERS_MAX} readers are reading the log already; try again when one has ended.")
        self.measures.readers += 1
        place = Place()
        try:
            yield place
        finally:
            if not place.is_handed_over:
                self.measures.readers -= 1

    async def read(self, request: Read, connection: socket.socket, place: Place) -> None:
        """Have the rows written to `connection`, which the process has when this returns."""
        request.id = next(self._ids)
        await self._request(request, connection)
        place.is_handed_over = True

    async def plan(self, request: MakePlan) -> Plan:
        if self._planning >= PLANS_MAX:
            raise TooManyReaders(f"{PLANS_MAX} plans for reading the log are being made; try again when one is.")
        request.id = next(self._ids)
        self._planning += 1
        try:
            reply = await self._request(request, None)
        finally:
            self._planning -= 1
        if isinstance(reply, Refused):
            kind = LogPositionDropped if reply.code == LogPositionDropped.code else BulkReaderFailed
            raise kind(reply.problem)
        assert isinstance(reply, Planned)
        return reply.plan

    async def close(self) -> None:
        """End the process; whoever is reading is cut off."""
        self._is_closed = True
        if self._process is not None:
            await self._process.close()

    async def _request(self, request: Read | MakePlan, connection: socket.socket | None) -> Reply:
        for _ in range(TRIES):
            try:
                process = await self._started()
                await process.teach()
                return await process.request(request, connection)
            except _Gone:
                continue
        raise BulkReaderFailed("The process that reads the log in bulk ended twice; the broker's log says why.")

    async def _started(self) -> _Process:
        async with self._starting:
            if self._is_closed:
                raise BulkReaderFailed("The broker is stopping; ask again in a moment.")
            if self._process is None or self._process.is_gone:
                assert self._broker is not None
                self._process = await asyncio.to_thread(_Process, self._broker, self.measures)
                self._process.listen()
                self.measures.starts_total += 1
                location = pickle.dumps(self._location)
                modules = properties.reader_modules()
                await self._process.begin(Begin(location, self._broker.ids.broker, modules, self._timeout_s))
            return self._process


class _Gone(Exception):
    """The process has ended."""


class _Process:
    def __init__(self, broker: Broker, measures: BulkMeasures) -> None:
        """Takes a few milliseconds."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            # -P: what lies about where the server was started is not to be imported.
            command = [sys.executable, "-P", "-m", "smista.bulk", str(theirs.fileno())]
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **MEMORY},
            )
        ours.setblocking(False)
        self.is_gone = False
        self._is_closing = False
        self._channel = ours
        self._log = broker.log
        self._measures = measures
        self._sending = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._reading: set[int] = set()
        """The requests whose connections it has."""
        self._taught = 0
        self._listening: asyncio.Task[None] | None = None

    def listen(self) -> None:
        logger.info("reading the log in bulk", extra={"fields": {"pid": self._popen.pid}})
        self._listening = asyncio.create_task(self._listen())

    async def begin(self, begin: Begin) -> None:
        await self._send(begin, None)

    async def teach(self) -> None:
        """Send the names of queues that were made since the last time."""
        queues = self._log.queues(self._taught)
        if queues:
            self._taught = max(number for number, _, _ in queues)
            await self._send(Learn(queues), None)

    async def request(self, request: Read | MakePlan, connection: socket.socket | None) -> Reply:
        """The answer; raises `_Gone` when there will be none."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = answer
        try:
            await self._send(request, connection)
            return await answer
        finally:
            self._waiting.pop(request.id, None)

    async def _send(self, request: Request, connection: socket.socket | None) -> None:
        data = encode(request)
        async with self._sending:
            try:
                await self._send_head(HEAD.pack(len(data), connection is not None), connection)
                await asyncio.get_running_loop().sock_sendall(self._channel, data)
            except OSError:
                # Known here before its end is noticed: the next try must find another.
                self.is_gone = True
                raise _Gone from None

    async def _send_head(self, head: bytes, connection: socket.socket | None) -> None:
        """So few bytes go whole or not at all."""
        beside = [] if connection is None else [connection.fileno()]
        while True:
            if self.is_gone:
                raise _Gone
            try:
                socket.send_fds(self._channel, [head], beside)
                return
            except BlockingIOError:
                await asyncio.sleep(BUSY_S)

    # -- replies -------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        # It ends with the process.
        await loop.connect_read_pipe(lambda: ProcessOutput(self._popen.pid), self._popen.stdout)
        buffer = bytearray()
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(self._channel, 1 << 16):
                buffer += data
                while len(buffer) >= HEAD.size:
                    length, _ = HEAD.unpack_from(buffer)
                    end = HEAD.size + length
                    if len(buffer) < end:
                        break
                    self._take(decode_reply(bytes(buffer[HEAD.size : end])))
                    del buffer[:end]
        await self._ended()

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Done):
            self._reading.discard(reply.id)
            self._measures.readers -= 1
            self._measures.rows_total += reply.rows
            self._measures.bytes_total += reply.bytes
            if reply.problem:
                logger.info("a bulk reader was not read to its end: %s", reply.problem)
            return
        if isinstance(reply, Taken):
            self._reading.add(reply.id)
        answer = self._waiting.get(reply.id)
        if answer is not None and not answer.done():
            answer.set_result(reply)

    async def _ended(self) -> None:
        self.is_gone = True
        self._measures.readers -= len(self._reading)
        self._reading.clear()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_Gone())
        self._channel.close()
        code = await asyncio.to_thread(self._popen.wait)
        if not self._is_closing:
            logger.warning("the process that reads the log in bulk has ended", extra={"fields": {"exit_code": code}})

    async def close(self) -> None:
        assert self._listening is not None
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        done, _ = await asyncio.wait([self._listening], timeout=END_S)
        if not done:
            self._popen.kill()
            await self._listening
