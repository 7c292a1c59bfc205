"""Clients that publish and consume over AMQP while their broker is killed again and again, and what they noted.

AMQP confirms publishes and does not confirm acknowledgements. But what a connection sends is done in order, so a
confirm says of every acknowledgement that went before its publish on the same connection that it is on disk, too.
Consumers publish such marks now and then. What the ledger can tell:

    lost        confirmed, and never delivered
    back        delivered after its acknowledgement was known to be on disk
    duplicate   delivered again, and nothing names the cause
    unexpected  nobody published it
    changed     not the bytes that were published

What explains a second delivery: the consumer gave the first one back, or its connection has gone, by itself or with its
broker. An acknowledgement that was sent, but not known to be on disk by then, may have been lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import aio_pika
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustConnection

from tests.crash.protocol_ledger import body_of, digest_of, name_in
from tests.protocols.amqp.peer import Basic, Channel, Closed, Peer
from tests.waiting import PATIENCE_S

EXCHANGE, QUEUES, MARKS = "fan", ("left", "right"), "marks"
BACKLOG_MAX = 2_000
Copy = tuple[str, str]
"""A message in a queue: its name, and the queue's."""


@dataclass(slots=True)
class Handed:
    connection: object
    is_returned: bool = False
    is_acknowledged: bool = False


@dataclass(slots=True)
class AmqpLedger:
    """Used by many threads."""

    violations: list[str] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    _digests: dict[str, str] = field(default_factory=dict)
    _confirmed: set[str] = field(default_factory=set)
    _last: dict[Copy, Handed] = field(default_factory=dict)
    _known: set[Copy] = field(default_factory=set)
    _over: set[object] = field(default_factory=set)
    _open: set[object] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def publishing(self, name: str, body: bytes) -> None:
        with self._lock:
            self._digests[name] = digest_of(body)

    def confirmed(self, name: str) -> None:
        with self._lock:
            self._confirmed.add(name)
            self.totals["confirmed"] += 1

    def delivered(self, queue: str, body: bytes, connection: object) -> Handed:
        with self._lock:
            self._open.add(connection)
            self.totals["delivered"] += 1
            name = name_in(body)
            copy = (name, queue)
            if name not in self._digests:
                self.violations.append(f"unexpected: {copy}")
            elif self._digests[name] != digest_of(body):
                self.violations.append(f"changed: {copy}")
            if copy in self._known:
                self.violations.append(f"back: {copy} was delivered after its acknowledgement was on disk")
            last = self._last.get(copy)
            if last is not None:
                self._note_cause(copy, last)
            handed = self._last[copy] = Handed(connection)
            return handed

    def _note_cause(self, copy: Copy, last: Handed) -> None:
        if last.is_returned:
            self.causes["given back"] += 1
        elif last.connection not in self._over:
            self.violations.append(f"duplicate: {copy}, of which {last} knows")
        elif last.is_acknowledged:
            self.causes["connection gone, its ack not known to be on disk"] += 1
        else:
            self.causes["connection gone"] += 1

    def acknowledged(self, handed: Handed) -> None:
        with self._lock:
            handed.is_acknowledged = True
            self.totals["acknowledged"] += 1

    def known_on_disk(self, copies: list[Copy]) -> None:
        with self._lock:
            self._known.update(copies)
            self.totals["acks known to be on disk"] += len(copies)

    def gone(self, connection: object) -> None:
        """Before its connection goes: what it held may be delivered again from now on."""
        with self._lock:
            self._over.add(connection)

    def killed(self) -> None:
        with self._lock:
            self._over |= self._open
            self.totals["kills"] += 1

    @property
    def backlog(self) -> int:
        with self._lock:
            return len(self._confirmed) * len(QUEUES) - len(self._last)

    def give_up_lost(self) -> None:
        """What was not delivered so far never will be: nobody waits for it before more is published."""
        with self._lock:
            self._confirmed -= {name for name, _ in self.lost()}

    def lost(self) -> set[Copy]:
        """Confirmed, and not delivered so far."""
        with self._lock:
            return {(name, queue) for name in self._confirmed for queue in QUEUES} - set(self._last)


def set_up(address: tuple[str, int]) -> None:
    with Peer(address) as peer:
        channel = peer.channel()
        channel.exchange(EXCHANGE, "fanout", durable=True)
        for queue in QUEUES:
            channel.declare(queue, durable=True)
            channel.bind(queue, EXCHANGE)
        channel.declare(MARKS, {"x-max-length": 1}, durable=True)


class RawCrew:
    """Threads with a socket each: two publishers with a window, a consumer for each queue."""

    def __init__(self, address: tuple[str, int], ledger: AmqpLedger, seed: int) -> None:
        self._address = address
        self._ledger = ledger
        self._is_stopping = False
        self.is_publishing = True
        self._random = random.Random(seed)
        self._faults: list[BaseException] = []
        self._peers: set[Peer] = set()
        works = [lambda number=number: self._publish(number) for number in range(2)]
        works += [lambda queue=queue: self._consume(queue) for queue in QUEUES]
        self._threads = [threading.Thread(target=self._again_and_again, args=(work,)) for work in works]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        for peer in list(self._peers):
            # Consumers wait for a message that nobody publishes any more.
            peer.hang_up()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert not self._faults

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Peer]:
        with Peer(self._address) as peer:
            self._peers.add(peer)
            try:
                if self._is_stopping:
                    raise Closed("it was not known yet when the others were hung up on")
                yield peer
            finally:
                self._peers.discard(peer)

    def _again_and_again(self, work: object) -> None:
        assert callable(work)
        while not self._is_stopping:
            try:
                work()
            except (OSError, Closed):
                time.sleep(0.01)
            except BaseException as fault:
                self._faults.append(fault)
                raise

    def _publish(self, number: int) -> None:
        with self._connected() as peer:
            channel = peer.channel()
            channel.confirm()
            names: dict[int, str] = {}
            tag = 0
            while not self._is_stopping:
                while self.is_publishing and len(names) < 200 and self._ledger.backlog < BACKLOG_MAX:
                    tag += 1
                    names[tag] = name = f"raw{number}-{id(peer)}-{time.monotonic_ns()}-{tag}"
                    body = body_of(name, self._random.choice((50, 200, 3_000)))
                    self._ledger.publishing(name, body)
                    channel.publish(body, "", EXCHANGE, delivery_mode=2)
                if names:
                    self._take_confirms(channel, names)
                else:
                    time.sleep(0.005)

    def _take_confirms(self, channel: Channel, names: dict[int, str]) -> None:
        answer = channel.next()
        assert isinstance(answer, Basic.Ack), answer
        tag = int(answer.delivery_tag or 0)
        for each in [each for each in names if each <= tag] if answer.multiple else [tag]:
            self._ledger.confirmed(names.pop(each))

    def _consume(self, queue: str) -> None:
        with self._connected() as peer:
            channel, ledger = peer.channel(), self._ledger
            channel.confirm()
            channel.qos(100)
            channel.consume(queue)
            unmarked: list[Copy] = []
            try:
                for count in range(1, self._random.randint(500, 5_000)):
                    if self._is_stopping:
                        return
                    message = channel.delivery()
                    handed = ledger.delivered(queue, message.body, peer)
                    if self._random.random() < 0.02:
                        handed.is_returned = True
                        channel.nack(message.tag)
                        continue
                    channel.ack(message.tag)
                    ledger.acknowledged(handed)
                    unmarked.append((name_in(message.body), queue))
                    if count % 50 == 0:
                        channel.publish(b"mark", MARKS)
                        channel.expect(Basic.Ack)
                        ledger.known_on_disk(unmarked)
                        unmarked = []
            finally:
                # Now and then it goes without a word, with all it holds.
                ledger.gone(peer)


class AioPikaCrew:
    """A robust connection, which finds its broker again by itself."""

    def __init__(self, address: tuple[str, int], ledger: AmqpLedger, seed: int) -> None:
        self._url = f"amqp://guest:guest@{address[0]}:{address[1]}"
        self._ledger = ledger
        self._random = random.Random(seed)
        self._is_stopping = threading.Event()
        self.is_publishing = True
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._unmarked: dict[object, list[Copy]] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        # What aio-pika left behind complains when it is freed; that shall not be some other test's business.
        gc.collect()

    async def _run(self) -> None:
        connection = await aio_pika.connect_robust(self._url, reconnect_interval=0.05, fail_fast=False)
        work = [asyncio.create_task(self._publish(connection, number)) for number in range(2)]
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=100)
        for name in QUEUES:
            queue = await channel.get_queue(name)
            await queue.consume(partial(self._consume, name))
        while not self._is_stopping.is_set():  # noqa: ASYNC110 (set by another thread)
            await asyncio.sleep(0.05)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        with contextlib.suppress(Exception):
            await connection.close()

    async def _publish(self, connection: AbstractRobustConnection, number: int) -> None:
        count = 0
        while True:
            with contextlib.suppress(aio_pika.exceptions.AMQPException, RuntimeError, OSError):
                channel = await connection.channel()
                exchange = await channel.get_exchange(EXCHANGE)
                while True:
                    if not self.is_publishing or self._ledger.backlog > BACKLOG_MAX:
                        await asyncio.sleep(0.01)
                        continue
                    names = [f"aio{number}-{count}-{place}" for place in range(50)]
                    count += 1
                    await asyncio.gather(*(self._publish_one(exchange, name) for name in names))
            await asyncio.sleep(0.01)

    async def _publish_one(self, exchange: aio_pika.abc.AbstractExchange, name: str) -> None:
        body = body_of(name, self._random.choice((50, 200, 3_000)))
        self._ledger.publishing(name, body)
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await exchange.publish(message, "")
        self._ledger.confirmed(name)

    async def _consume(self, queue: str, message: AbstractIncomingMessage) -> None:
        channel = message.channel
        handed = self._ledger.delivered(queue, message.body, channel)
        with contextlib.suppress(aio_pika.exceptions.AMQPException, RuntimeError, OSError):
            if self._random.random() < 0.02:
                handed.is_returned = True
                await message.nack(requeue=True)
                return
            await message.ack()
            self._ledger.acknowledged(handed)
            unmarked = self._unmarked.setdefault(channel, [])
            unmarked.append((name_in(message.body), queue))
            if len(unmarked) >= 50:
                self._unmarked[channel] = []
                # On the same channel, so after what was acknowledged there.
                await channel.basic_publish(b"mark", routing_key=MARKS)
                self._ledger.known_on_disk(unmarked)


CREWS: dict[str, type[RawCrew] | type[AioPikaCrew]] = {"raw": RawCrew, "aio-pika": AioPikaCrew}
