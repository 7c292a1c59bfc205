"""The client for asyncio programs; the synchronous one stands on it.

    async with AsyncClient("http://127.0.0.1:9324") as client:
        await client.declare_queue("orders")
        await client.publish("orders", {"pizza": "margherita"})
        async for delivery in client.subscribe("orders"):
            async with delivery:
                print(delivery.json())

One WebSocket carries everything; the first call opens it, and when it breaks it is opened again: see `session.py` for
what that means for what was under way, `publisher.py` and `settling.py` for how calls travel together.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from types import TracebackType
from typing import Any, Self

from smista.client.exchanges import ExchangeCalls
from smista.client.looking import LookingCalls
from smista.client.policies import PolicyCalls
from smista.client.publisher import Publisher
from smista.client.publishing import PublishingCalls
from smista.client.queues import QueueCalls
from smista.client.receiving import ReceivingCalls
from smista.client.session import Session
from smista.client.subscription import Subscription
from smista.core.settings import check_name
from smista.errors import BrokerError

_SILENCE_TIMEOUT_S = 5.0
"""When closing, how long a broker may say nothing before it is not waited for any more."""


class AsyncClient(QueueCalls, PolicyCalls, PublishingCalls, ReceivingCalls, LookingCalls, ExchangeCalls):
    """A connection to a broker, for asyncio programs; see the module. All its calls belong to one event loop."""

    def __init__(
        self,
        address: str | None = None,
        *,
        namespace: str | None = None,
        connect_timeout_ms: int = 10_000,
        retry_for_ms: int | None = None,
        deduplicate: bool = True,
        unconfirmed_max: int = 10_000,
        unconfirmed_bytes_max: int = 32 * 1024 * 1024,
    ) -> None:
        """`address` is `http://host:port` (or `https`, `ws`, `wss`), or `host:port`; None is what the variable
        SMISTA_URL says, else this machine's port 9324. `namespace` None is the default one.

        `connect_timeout_ms` is for one attempt to connect. `retry_for_ms` is how long a connection that was lost is
        sought again before everything that waits for it fails, with `ConnectionLost` where it was sent and may have
        happened, with `ConnectionFailed` where it was not; None means for ever. With `deduplicate` a publish that was
        unconfirmed at a break is sent again, and the broker stores it once, for which it remembers an id per batch
        during the queue's `dedup_window_ms`; without, it fails with `ConnectionLost`. Beyond `unconfirmed_max` messages
        or `unconfirmed_bytes_max` bytes that the broker has not confirmed, publishing waits.
        """
        self._namespace = None if namespace is None else check_name("namespace", namespace)
        self._session = Session(address, connect_timeout_ms=connect_timeout_ms, retry_for_ms=retry_for_ms)
        self._publisher = Publisher(
            self._session,
            namespace=self._namespace,
            deduplicate=deduplicate,
            unconfirmed_max=unconfirmed_max,
            unconfirmed_bytes_max=unconfirmed_bytes_max,
        )
        self._subscriptions: weakref.WeakSet[Subscription[Any]] = weakref.WeakSet()
        self._closing: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection just now. A lost one is sought again by itself."""
        return self._session.connection is not None

    @property
    def frame_bytes_max(self) -> int | None:
        """The largest request the broker takes from a client; None while there is no connection."""
        connection = self._session.connection
        return None if connection is None else connection.frame_bytes_max

    async def connect(self, *, retry_for_ms: int | None = 0) -> None:
        """Connect now, rather than with the first call; raises `ConnectionFailed`.

        0 makes one attempt, so that a wrong address is heard of at once; None tries for ever.
        """
        await self._session.connect(retry_for_ms)

    async def close(self) -> None:
        """End the subscriptions, wait until what was settled is on the broker's disk, and close the connection.

        Other calls under way fail with `ClientClosed`. It goes on when whoever waits for it is cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="smista-closing")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            if self.is_connected:
                await self._settle_all_while_it_answers()
        finally:
            await self._session.close()

    async def _settle_all_while_it_answers(self) -> None:
        """However long it takes, as thousands of subscriptions may: as long as the broker says something."""
        settling = asyncio.ensure_future(self._settle_all())
        heard_count = -1
        try:
            while not settling.done() and heard_count != self._session.heard_count:
                heard_count = self._session.heard_count
                await asyncio.wait({settling}, timeout=_SILENCE_TIMEOUT_S)
        finally:
            settling.cancel()
            with contextlib.suppress(BrokerError, asyncio.CancelledError):
                await settling

    async def _settle_all(self) -> None:
        # All at once: one round trip after the other takes too long for many.
        await asyncio.gather(*(subscription.close() for subscription in list(self._subscriptions)))
        await self._session.all_taken_back()
        # Also of subscriptions that nobody refers to any more.
        while self._session.unsettled:
            with contextlib.suppress(BrokerError):
                await next(iter(self._session.unsettled)).settled()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
