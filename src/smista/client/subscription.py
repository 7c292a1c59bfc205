"""A standing receiver: the broker pushes, up to `prefetch` unsettled messages at a time, and we hand out.

    new ──(first use)──▶ subscribing ──▶ running ──(break)──▶ subscribing ...
                              │             │
                              └── refused ──┴── queue deleted, given up, closed ──▶ over

A break voids what was delivered: what still waits here is dropped, since it comes again from the broker. Every
connection has its own settler, so that a delivery of an earlier one can never settle one of a later.

Leaving has an order: the broker is told first, and what was not handed out is given back when it has answered. Until
then it may push, and what is given back to somebody who is still in the line comes straight back. So leaving is a task
of its own, which goes on when whoever asked for it is cancelled, and which waits for the answer to `subscribe` where
that has not come yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from types import TracebackType
from typing import Generic, Self, TypeVar

import msgspec

from smista.client.connection import Connection
from smista.client.errors import ClientClosed, ConnectionLost, another
from smista.client.message import Delivered
from smista.client.session import GOING_AWAY, Session
from smista.client.settling import RELEASE, TagSettler
from smista.client.wire import Frame, Subscribe, decode_subscribed
from smista.errors import BrokerError

D = TypeVar("D", bound=Delivered)


class Subscription(Generic[D]):
    """See the module. An async iterator of deliveries, and an async context manager that closes it.

    Several tasks may take from one; each delivery goes to one of them. Iterating ends by an error only: `QueueDeleted`,
    `QueueNotFound` when the queue is not there (any more), `ConnectionFailed` when the broker was sought for too long.
    """

    def __init__(self, session: Session, wanted: Subscribe, kind: type[D]) -> None:
        self._session = session
        self._wanted = wanted
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode  # type: ignore[valid-type]  # a type known only here
        self._waiting: deque[D] = deque()
        """What has come and was not handed out yet."""
        self._takers: deque[asyncio.Future[None]] = deque()
        self._settler: TagSettler | None = None
        self._number: int | None = None
        """What the broker calls it on the present connection."""
        self._subscribing: asyncio.Future[None] | None = None
        """Until the answer to the last `subscribe`, which tells the number, has been taken."""
        self._leaving: asyncio.Task[None] | None = None
        self._unwanted: list[D] = []
        """What had come, or comes, while it is leaving."""
        self._is_running = False
        self._end: BrokerError | None = None

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._wanted.queue

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or the broker ended it."""
        return self._end is not None

    def waiting(self) -> list[D]:
        """What has come and was not handed out yet."""
        return list(self._waiting)

    # -- taking -------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> D:
        while not self._waiting:
            await self._arrival()
        return self._waiting.popleft()

    async def next(self, *, timeout_ms: int | None = None) -> D | None:
        """The next delivery; None when there was none for so long."""
        batch = self._waiting or await self._any(timeout_ms)
        return batch.popleft() if batch else None

    async def next_batch(self, limit: int | None = None, *, timeout_ms: int | None = None) -> list[D]:
        """All that is here, up to `limit`, waiting for the first; an empty list when there was none for so long."""
        waiting = self._waiting or await self._any(timeout_ms)
        if limit is None or len(waiting) <= limit:
            batch = list(waiting)
            waiting.clear()
            return batch
        return [waiting.popleft() for _ in range(limit)]

    async def _any(self, timeout_ms: int | None) -> deque[D]:
        if timeout_ms is None:
            while not self._waiting:
                await self._arrival()
        else:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    while not self._waiting:
                        await self._arrival()
            except TimeoutError:
                pass
        return self._waiting

    async def _arrival(self) -> None:
        """Return when something may have come; raises when nothing will any more."""
        self.start()
        if self._end is not None:
            raise another(self._end)
        taker = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        try:
            await taker
        except asyncio.CancelledError:
            if taker in self._takers:
                self._takers.remove(taker)
            else:
                self._wake()  # what it was woken for is somebody else's now
            raise

    def _wake(self) -> None:
        """Wake as many as there is something for; all of them when it is over."""
        count = len(self._takers) if self._end is not None else min(len(self._waiting), len(self._takers))
        while count and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1

    # -- settling -----------------------------------------------------------------------------------------------------

    def ack_up_to(self, delivery: D) -> None:
        """Acknowledge it and everything delivered before it to this subscription; not waited for."""
        settler = delivery.settler
        assert isinstance(settler, TagSettler)
        settler.ack_up_to(delivery.tag)

    async def settled(self) -> None:
        """Return when all that was settled so far is on the broker's disk; raises the first that had no effect."""
        if self._settler is not None:
            await self._settler.settled()

    async def set_prefetch(self, prefetch: int) -> None:
        """How many unsettled messages it may hold from now on."""
        before, self._wanted.prefetch = self._wanted.prefetch, prefetch
        await self._answered()
        # None where there is no connection: the next one is asked for so many.
        if self._number is not None:
            payload = {"subscription": self._number, "prefetch": prefetch}
            try:
                await asyncio.shield(self._session.request("credit", payload, is_repeatable=False).answer)
            except ConnectionLost:
                return  # the same
            except BrokerError:
                self._wanted.prefetch = before
                raise

    # -- its life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Subscribe, unless that was done."""
        if not self._is_running and self._end is None:
            self._is_running = True
            self._session.add_feed(self)

    async def stop(self) -> None:
        """Take no more, and give back what was not handed out; what was can still be settled."""
        if self._leaving is None:
            if self._end is None:
                self._finish(ClientClosed(f"The subscription to queue {self.queue!r} was closed."))
            self._unwanted.extend(self._waiting)
            self._waiting.clear()
            self._leaving = asyncio.create_task(self._leave(), name="smista-leaving")
        await asyncio.shield(self._leaving)

    async def _leave(self) -> None:
        await self._answered()
        number, self._number = self._number, None
        if number is not None:
            with contextlib.suppress(BrokerError):  # the connection is gone, and the subscription with it
                await self._session.request("unsubscribe", {"subscription": number}, is_repeatable=False).answer
            self._session.forget_number(self, number)
        for delivery in self._unwanted:
            assert delivery.settler is not None
            if not delivery.is_void:
                delivery.settler.settle_soon(RELEASE, delivery.tag)
        self._unwanted.clear()

    async def _answered(self) -> None:
        """Return when the broker has said what it calls us, if it was asked."""
        while self._subscribing is not None:
            await asyncio.wait({self._subscribing})

    async def close(self) -> None:
        """`stop`, then wait until what was settled is on the broker's disk."""
        await self.stop()
        if self._settler is not None:
            with contextlib.suppress(BrokerError):  # logged; whoever wants to know asks `settled` before
                await self._settler.settled()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _finish(self, error: BrokerError) -> None:
        self._end = error
        self._session.remove_feed(self)
        self._wake()

    # -- what the session tells ---------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self._settler = TagSettler(self._session, connection, self.queue)
        pending = self._session.request("subscribe", self._wanted, is_repeatable=False)
        subscribing = self._subscribing = asyncio.get_running_loop().create_future()

        def subscribed(answer: asyncio.Future[msgspec.Raw]) -> None:
            self._subscribed(connection, answer)
            subscribing.set_result(None)
            if self._subscribing is subscribing:
                self._subscribing = None

        pending.answer.add_done_callback(subscribed)

    def _subscribed(self, connection: Connection, answer: asyncio.Future[msgspec.Raw]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            if connection is not self._session.connection:
                return  # the next one brings the next attempt
            self._number = decode_subscribed(answer.result()).subscription
            self._session.name_feed(self, self._number)
        elif connection.is_over:
            pass  # the next connection brings the next attempt
        elif isinstance(error, BrokerError) and error.code in GOING_AWAY:
            connection.end(f"the broker is going away: {error}")
        elif self._end is None:
            assert isinstance(error, BrokerError)
            self._finish(error)

    def pushed(self, frame: Frame) -> None:
        settler = self._settler
        if frame.ended is not None:
            self._ended(frame)
            return
        deliveries: list[D] = self._decode(frame.messages)
        queue = self.queue
        for delivery in deliveries:
            delivery.settler = settler
            delivery.queue = queue
        if self._leaving is not None:
            self._unwanted.extend(deliveries)
            return
        self._waiting.extend(deliveries)
        if self._takers:
            self._wake()

    def _ended(self, frame: Frame) -> None:
        assert frame.ended is not None
        assert frame.subscription is not None
        self._session.forget_number(self, frame.subscription)
        self._number = None
        if frame.ended.code in GOING_AWAY:
            self._session.drop(f"the broker is going away: {frame.ended.message}")
        elif self._end is None:
            self._finish(frame.ended.error())

    def broken(self) -> None:
        self._waiting.clear()
        self._number = None

    def failed(self, error: BrokerError) -> None:
        if self._end is None:
            self._end = error
            self._wake()
