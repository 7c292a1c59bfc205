"""The clients of the tests of protocols, at work until they are cancelled, whatever happens to the broker.

Three crews, each of publishers and consumers that note what they ask for and hear:

    http      commands over HTTP, written by hand: a connection is opened anew when it has broken
    stream    the stream, written by hand: likewise
    client    `AsyncClient`, which does all that by itself

By hand, a publish without an answer is either left unknown, or sent again under the same id until it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from smista import AsyncClient
from smista.client import Delivery
from smista.client.errors import ConnectionLost
from smista.errors import BrokerError, StaleReceipt
from tests.crash.protocol_ledger import Found, Handed, ProtocolLedger, body_of

QUEUE = "work"
LEASE_MS = 1_500
"""Short, so that what a consumer leaves lying is soon back."""
BACKLOG = 300
TRY_AGAIN_S = 0.02

Address = tuple[str, int]

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class Lost(Exception):
    """The connection broke: nobody knows what became of what was asked."""


class Refused(Exception):
    """The broker says no: nothing happened."""


class Caller(Protocol):
    async def call(self, command: str, **payload: Any) -> Any:
        """What the command answers; raises `Lost` or `Refused`."""


# -- connections by hand ----------------------------------------------------------------------------------------------


class HttpCaller:
    """Commands over one connection, opened anew when it has broken."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, command: str, **payload: Any) -> Any:
        reader, writer = self._streams or await self._connect()
        body = _encode({"command": command, "payload": payload})
        try:
            writer.write(
                b"POST /v1/command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            answer = _decode(await reader.readexactly(int(length.split(b":")[1])))
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise Lost(repr(error)) from None
        if head.startswith(b"HTTP/1.1 200 "):
            return answer
        raise Refused(answer["error"]["code"])

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            try:
                self._streams = await asyncio.open_connection(*self._address)
                return self._streams
            except OSError:
                await asyncio.sleep(TRY_AGAIN_S)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class StreamCaller:
    """Requests over one WebSocket, many at a time, opened anew when it has broken. What is pushed goes to `pushed`."""

    def __init__(self, address: Address, *, on_lost: Callable[[object], None] = lambda connection: None) -> None:
        self._url = f"ws://{address[0]}:{address[1]}/v1/stream"
        self._on_lost = on_lost
        self._opening = asyncio.Lock()
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reader: asyncio.Task[None] | None = None
        self.connection: ClientConnection | None = None
        self.pushed: asyncio.Queue[tuple[object, dict[str, Any]] | None] = asyncio.Queue()
        """Each message with its connection; None when that has gone."""

    async def call(self, command: str, **payload: Any) -> Any:
        connection = await self.connected()
        request_id = next(self._ids)
        answer = self._answers[request_id] = asyncio.get_running_loop().create_future()
        try:
            await connection.send(_encode({"id": request_id, "command": command, "payload": payload}))
            said = await answer
        except ConnectionClosed:
            self._lost(connection)  # whoever asks again at once must not find it still there: nothing is awaited then
            raise Lost("while sending") from None
        finally:
            self._answers.pop(request_id, None)
        if "error" in said:
            raise Refused(said["error"]["code"])
        return said["result"]

    async def connected(self) -> ClientConnection:
        async with self._opening:
            while self.connection is None:
                try:
                    self.connection = await connect(
                        self._url, subprotocols=[Subprotocol("smista.msgpack")], compression=None, max_size=None
                    )
                except (OSError, InvalidHandshake, EOFError):
                    await asyncio.sleep(TRY_AGAIN_S)
                else:
                    self._reader = asyncio.create_task(self._read(self.connection))
            return self.connection

    async def _read(self, connection: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                frame = _decode(await connection.recv(decode=False))
                if "subscription" in frame:
                    for message in frame["messages"]:
                        self.pushed.put_nowait((connection, message))
                elif (answer := self._answers.get(frame["id"])) is not None:
                    answer.set_result(frame)
        self._lost(connection)

    def _lost(self, connection: ClientConnection) -> None:
        if connection is not self.connection:
            return
        self.connection = None
        self._on_lost(connection)
        self.pushed.put_nowait(None)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Lost("the connection is gone"))

    def drop(self) -> None:
        """End the connection without a word."""
        if self.connection is not None:
            connection = self.connection
            self._lost(connection)
            connection.transport.abort()

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self.connection is not None:
            await self.connection.close()


# -- crews ------------------------------------------------------------------------------------------------------------


class Crew:
    """Publishers and consumers of one kind. `is_publishing` can be taken from them; `progress` tells that all of them
    got something confirmed."""

    def __init__(self, address: Address, ledger: ProtocolLedger, seed: int) -> None:
        self.address = address
        self.ledger = ledger
        self.draw = random.Random(seed)
        self.is_publishing = True
        self._numbers = itertools.count(1)
        self._did: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def roles(self) -> list[Callable[[Callable[[], None]], Awaitable[None]]]:
        """What its members do, until they are cancelled; each tells when it got something confirmed."""
        raise NotImplementedError

    def start(self) -> None:
        for role in self.roles():
            did = self._did[role.__name__] = asyncio.Event()
            self._tasks.append(asyncio.ensure_future(role(did.set)))

    async def progress(self) -> None:
        """Return when every member has got something confirmed since this was called; raises what one failed with."""
        for did in self._did.values():
            did.clear()
        waiting: asyncio.Future[Any] = asyncio.gather(*(did.wait() for did in self._did.values()))
        everything: list[asyncio.Future[Any]] = [waiting, *self._tasks]
        await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            [failed] = [task for task in self._tasks if task.done()][:1]
            await failed
            raise AssertionError("a member of the crew has left")

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def stop_quietly(self) -> None:
        """`stop`, where nobody is there to say goodbye to."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- what all of them do ------------------------------------------------------------------------------------------

    async def room(self) -> None:
        """Wait until another publish is wanted."""
        while not self.is_publishing or self.ledger.backlog > BACKLOG:  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.01)

    def write(self, count: int) -> dict[str, bytes]:
        """The bodies of so many new messages, by name, about to be published."""
        written = {}
        for _ in range(count):
            name = f"m{next(self._numbers)}"
            written[name] = body_of(name, self.draw.choice((20, 100, 700)))
            self.ledger.publishing(name, written[name])
        return written

    def confirm(self, names: Iterable[str], results: Iterable[dict[str, Any]]) -> None:
        for name, result in zip(names, results, strict=True):
            self.ledger.confirmed(name, result["message_id"])

    async def publish_one(self, caller: Caller, *, again: bool) -> bool:
        """Whether it was confirmed."""
        [(name, body)] = self.write(1).items()
        while True:
            try:
                result = await caller.call("queue.publish", queue=QUEUE, body=body, deduplication_id=name)
                self.confirm([name], [result])
                return True
            except Refused:
                # It is stopping or not ready yet, and has not stored it now; an attempt before may have been stored.
                if not again:
                    self.ledger.refused(name)
                    return False
            except Lost:
                if not again:
                    return False

    async def publish_batch(self, caller: Caller, *, again: bool) -> bool:
        written = self.write(self.draw.randint(2, 20))
        batch_id = next(iter(written))
        while True:
            try:
                answer = await caller.call(
                    "queue.publish_batch", queue=QUEUE, bodies=list(written.values()), batch_id=batch_id
                )
                self.confirm(written, answer["results"])
                return True
            except Refused:
                if not again:
                    for name in written:
                        self.ledger.refused(name)
                    return False
            except Lost:
                if not again:
                    return False

    def hear(self, message: dict[str, Any], connection: object) -> Handed | None:
        return self.ledger.delivered(
            message["body"],
            message["message_id"],
            at_ms=message["delivered_at_ms"],
            until_ms=message.get("lease_until_ms"),
            connection=connection,
        )

    async def acknowledge(self, handed: list[Handed], ask: Callable[[], Awaitable[dict[str, Any]]]) -> bool:
        """Whether all of it was confirmed."""
        for one in handed:
            self.ledger.asking(one)
        try:
            answer = await ask()
        except Lost:
            for _ in handed:
                self.ledger.ack_unanswered()
            return False
        except Refused:
            for one in handed:
                self.ledger.ack_refused(one)
            return False
        results = answer.get("results") or [None] * len(handed)
        for one, failure in zip(handed, results, strict=True):
            if failure is None:
                self.ledger.acknowledged(one)
            else:
                self.ledger.ack_refused(one)
        return bool(answer["success"])


class HttpCrew(Crew):
    def roles(self) -> list[Callable[[Callable[[], None]], Awaitable[None]]]:
        return [self.publisher, self.batch_publisher, self.consumer, self.fickle_consumer]

    async def publisher(self, did: Callable[[], None]) -> None:
        with contextlib.closing(HttpCaller(self.address)) as caller:
            while True:
                await self.room()
                if await self.publish_one(caller, again=self.draw.random() < 0.5):
                    did()

    async def batch_publisher(self, did: Callable[[], None]) -> None:
        with contextlib.closing(HttpCaller(self.address)) as caller:
            while True:
                await self.room()
                if await self.publish_batch(caller, again=self.draw.random() < 0.5):
                    did()

    async def consumer(self, did: Callable[[], None]) -> None:
        with contextlib.closing(HttpCaller(self.address)) as caller:
            while True:
                messages = await self._receive(caller)
                handed = [one for message in messages if (one := self.hear(message, None)) is not None]
                receipts = [message["receipt"] for message in messages]
                if handed and await self.acknowledge(handed, lambda: caller.call("queue.ack", receipts=receipts)):  # noqa: B023 (called at once)
                    did()

    async def fickle_consumer(self, did: Callable[[], None]) -> None:
        """Acknowledges some, gives some back, and lets the lease of some run out."""
        with contextlib.closing(HttpCaller(self.address)) as caller:
            while True:
                messages = await self._receive(caller)
                # All are noted as they come: by the time one is settled, the next may have been delivered again.
                for message, handed in [(message, self.hear(message, None)) for message in messages]:
                    receipt = message["receipt"]
                    if handed is None:
                        continue
                    match self.draw.randrange(10):
                        case 0:
                            self.ledger.gave_back(handed, "nacked")
                            await _settle(caller, "queue.nack", receipt=receipt, delay_ms=0, error="planted")
                        case 1:
                            self.ledger.gave_back(handed, "released")
                            await _settle(caller, "queue.release", receipt=receipt)
                        case 2:
                            pass
                        case _:
                            ask = _asker(caller, "queue.ack", receipts=[receipt])
                            if await self.acknowledge([handed], ask):
                                did()

    async def _receive(self, caller: Caller) -> list[dict[str, Any]]:
        try:
            answer = await caller.call(
                "queue.receive", queue=QUEUE, limit=self.draw.randint(1, 10), wait_ms=100, lease_ms=LEASE_MS, raw=True
            )
        except (Lost, Refused):
            return []
        messages: list[dict[str, Any]] = answer["messages"]
        return messages


class StreamCrew(Crew):
    def roles(self) -> list[Callable[[Callable[[], None]], Awaitable[None]]]:
        return [self.publisher, self.batch_publisher, self.consumer, self.fickle_consumer]

    async def publisher(self, did: Callable[[], None]) -> None:
        """Many at a time on one connection, none of them sent again."""
        async with _closing(StreamCaller(self.address)) as caller:
            while True:
                await self.room()
                if any(await asyncio.gather(*(self.publish_one(caller, again=False) for _ in range(10)))):
                    did()

    async def batch_publisher(self, did: Callable[[], None]) -> None:
        async with _closing(StreamCaller(self.address)) as caller:
            while True:
                await self.room()
                if await self.publish_batch(caller, again=True):
                    did()

    async def consumer(self, did: Callable[[], None]) -> None:
        await self._consume(did, is_fickle=False)

    async def fickle_consumer(self, did: Callable[[], None]) -> None:
        """Also drops its connection now and then, with messages in its hands."""
        await self._consume(did, is_fickle=True)

    async def _consume(self, did: Callable[[], None], *, is_fickle: bool) -> None:
        async with _closing(StreamCaller(self.address, on_lost=self.ledger.dropped)) as caller:
            while True:
                with contextlib.suppress(Lost, Refused):
                    await caller.call("subscribe", queue=QUEUE, prefetch=20, raw=True)
                while (pushed := await caller.pushed.get()) is not None:
                    connection, message = pushed
                    if connection is not caller.connection:
                        continue  # it is on its way to somebody else by now
                    handed = self.hear(message, connection)
                    if handed is None:
                        continue
                    if is_fickle and self.draw.random() < 0.01:
                        caller.drop()
                    elif is_fickle and self.draw.random() < 0.1:
                        self.ledger.gave_back(handed, "nacked")
                        await _settle(caller, "nack", tags=[message["tag"]], delay_ms=0)
                    elif await self.acknowledge([handed], _asker(caller, "ack", tags=[message["tag"]])):
                        did()


class ClientCrew(Crew):
    def roles(self) -> list[Callable[[Callable[[], None]], Awaitable[None]]]:
        return [self.publisher, self.bulk_publisher, self.consumer, self.subscriber]

    async def publisher(self, did: Callable[[], None]) -> None:
        async with AsyncClient(self.url) as client:
            while True:
                await self.room()
                written = self.write(self.draw.randint(1, 20))
                results = await asyncio.gather(*(client.publish(QUEUE, body=body) for body in written.values()))
                for name, result in zip(written, results, strict=True):
                    assert not result.is_duplicate, f"{name} was published once"
                    self.ledger.confirmed(name, result.id)
                did()

    async def bulk_publisher(self, did: Callable[[], None]) -> None:
        async with AsyncClient(self.url) as client:
            while True:
                await self.room()
                written = self.write(50)
                names = list(written)

                def on_result(place: int, result: Any) -> None:
                    assert not isinstance(result, BrokerError), result
                    assert not result.is_duplicate, f"{names[place]} was published once"  # noqa: B023 (called in time)
                    self.ledger.confirmed(names[place], result.id)  # noqa: B023

                summary = await client.put_many(QUEUE, written.values(), batch_count=10, on_result=on_result)
                assert (summary.accepted, summary.refused, summary.duplicates) == (50, 0, 0)
                did()

    async def consumer(self, did: Callable[[], None]) -> None:
        async with AsyncClient(self.url) as client:
            while True:
                deliveries = await client.receive(QUEUE, 10, wait_ms=100, lease_ms=LEASE_MS)
                for delivery, handed in [(delivery, self._hear(delivery, None)) for delivery in deliveries]:
                    if await self._acknowledge(delivery, handed):
                        did()

    async def subscriber(self, did: Callable[[], None]) -> None:
        async with AsyncClient(self.url) as client:
            async for delivery in client.subscribe(QUEUE, prefetch=20):
                if await self._acknowledge(delivery, self._hear(delivery, client)):
                    did()

    def _hear(self, delivery: Delivery, connection: object) -> Handed | None:
        return self.ledger.delivered(
            delivery.body,
            delivery.id,
            at_ms=delivery.delivered_at_ms,
            until_ms=delivery.lease_until_ms,
            connection=connection,
        )

    async def _acknowledge(self, delivery: Delivery, handed: Handed | None) -> bool:
        if handed is None:
            return False
        self.ledger.asking(handed)
        try:
            await delivery.ack()
        except ConnectionLost:
            self.ledger.ack_unanswered()
            return False
        except StaleReceipt:
            self.ledger.ack_refused(handed)
            return False
        self.ledger.acknowledged(handed)
        return True


CREWS: dict[str, type[Crew]] = {"http": HttpCrew, "stream": StreamCrew, "client": ClientCrew}


async def contents(caller: HttpCaller) -> list[Found]:
    """All that is in the broker."""
    found: list[Found] = []
    after: int | None = 0
    while after is not None:
        page = await caller.call("queue.browse", queue=QUEUE, after=after, limit=1_000, raw=True)
        found += [Found(message["message_id"], message["body"]) for message in page["messages"]]
        after = page["after"]
    return found


@contextlib.asynccontextmanager
async def _closing(caller: StreamCaller) -> Any:
    try:
        yield caller
    finally:
        await caller.close()


async def _settle(caller: Caller, command: str, **payload: Any) -> None:
    with contextlib.suppress(Lost, Refused):
        await caller.call(command, **payload)


def _asker(caller: Caller, command: str, **payload: Any) -> Callable[[], Awaitable[Any]]:
    return lambda: caller.call(command, **payload)
