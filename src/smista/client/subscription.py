"""A standing consumer: the broker pushes up to `prefetch` unsettled messages, and the program takes them here.

    new ──(first use)──▶ subscribing ──▶ running ──(break)──▶ subscribing ...
                              │             │
                              └── refused ──┴── queue deleted, given up, closed ──▶ over

A break voids the deliveries of its connection: messages that wait here are dropped, since the broker delivers them
again. Every connection has its own settler, so that a delivery of an earlier one can never settle one of a later.

Closing has an order: first `unsubscribe`, then, when the broker has answered, the messages that were not taken are
released. Until then the broker may push more, and a message released by a consumer that is still subscribed would come
straight back. So closing is a task of its own, which goes on when its caller is cancelled, and which waits for the
answer to `subscribe` if that is outstanding.
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

    Several tasks may take from one; each delivery goes to one of them. Iterating ends only with an error:
    `QueueDeleted`, `QueueNotFound`, or `ConnectionFailed` when the client gave up reconnecting.
    """

    def __init__(self, session: Session, wanted: Subscribe, kind: type[D]) -> None:
        self._session = session
        self._wanted = wanted
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode  # type: ignore[valid-type]  # a type known only here
        self._waiting: deque[D] = deque()
        """Deliveries that have arrived and were not taken yet."""
        self._takers: deque[asyncio.Future[None]] = deque()
        self._settler: TagSettler | None = None
        self._number: int | None = None
        """The broker's number for it on the present connection."""
        self._subscribing: asyncio.Future[None] | None = None
        """Pending until the answer to the last `subscribe`, which has the number, is read."""
        self._leaving: asyncio.Task[None] | None = None
        self._unwanted: list[D] = []
        """Deliveries to be released, while it is closing."""
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
        """Deliveries that have arrived and were not taken yet."""
        return list(self._waiting)

    # -- taking -------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> D:
        while not self._waiting:
            await self._arrival()
        return self._waiting.popleft()

    async def next(self, *, timeout_ms: int | None = None) -> D | None:
        """The next delivery; None if none came within `timeout_ms`."""
        batch = self._waiting or await self._any(timeout_ms)
        return batch.popleft() if batch else None

    async def next_batch(self, limit: int | None = None, *, timeout_ms: int | None = None) -> list[D]:
        """All deliveries that are here, up to `limit`; waits for the first. Empty if none came within `timeout_ms`."""
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
        """Return when something may have arrived; raises when the subscription is over."""
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
                self._wake()  # another taker may have what this one was woken for
            raise

    def _wake(self) -> None:
        """Wake a taker per delivery; all takers when it is over."""
        count = len(self._takers) if self._end is not None else min(len(self._waiting), len(self._takers))
        while count and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1

    # -- settling -----------------------------------------------------------------------------------------------------

    def ack_up_to(self, delivery: D) -> None:
        """Acknowledge it and everything delivered before it to this subscription, without waiting."""
        settler = delivery.settler
        assert isinstance(settler, TagSettler)
        settler.ack_up_to(delivery.tag)

    async def settled(self) -> None:
        """Return when all that was settled so far is on the broker's disk; raises the first error."""
        if self._settler is not None:
            await self._settler.settled()

    async def set_prefetch(self, prefetch: int) -> None:
        """Change how many unsettled messages it may hold."""
        before, self._wanted.prefetch = self._wanted.prefetch, prefetch
        await self._answered()
        # Without a connection there is no number; the next `subscribe` asks for this prefetch.
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
        """Subscribe, if it has not yet."""
        if not self._is_running and self._end is None:
            self._is_running = True
            self._session.add_feed(self)

    async def stop(self) -> None:
        """Take no more messages and release those not taken; the others can still be settled."""
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
        """Return when no answer to `subscribe` is outstanding."""
        while self._subscribing is not None:
            await asyncio.wait({self._subscribing})

    async def close(self) -> None:
        """`stop`, then wait until what was settled is on the broker's disk."""
        await self.stop()
        if self._settler is not None:
            with contextlib.suppress(BrokerError):  # it is logged; `settled` raises it
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

    # -- called by the session ----------------------------------------------------------------------------------------

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
        for delivery in deliveries:
            delivery.settler = settler
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
