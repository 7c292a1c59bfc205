"""The client for asyncio programs; the synchronous client is built on it.

    async with AsyncClient("http://127.0.0.1:9324") as client:
        await client.declare_queue("orders")
        await client.publish("orders", {"pizza": "margherita"})
        async for delivery in client.subscribe("orders"):
            async with delivery:
                print(delivery.json())

One WebSocket carries everything. The first call opens it, and it is opened again after it breaks: `session.py` explains
what happens to requests that were under way, `publisher.py` and `settling.py` how calls are batched.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from types import TracebackType
from typing import Any, Self

from smista.client.browsing import BrowsingCalls
from smista.client.exchanges import ExchangeCalls
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
"""When closing, how long the broker may be silent before the client stops waiting for it."""


class AsyncClient(QueueCalls, PolicyCalls, PublishingCalls, ReceivingCalls, BrowsingCalls, ExchangeCalls):
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
        """`address` is `http://host:port` (or `https`, `ws`, `wss`), or `host:port`; None means the
        address in the variable SMISTA_URL, or this machine's port 9324. `namespace` None means the default namespace.

        `connect_timeout_ms` limits one attempt to connect. `retry_for_ms` is how long the client tries to reconnect
        before the calls that wait fail: with `ConnectionLost` where the request was sent and may have been carried out,
        with `ConnectionFailed` where it was not sent; None means for ever. With `deduplicate` a publish that was
        unconfirmed when the connection broke is sent again and stored once: the broker remembers an id per batch for
        the queue's `dedup_window_ms`. Without it such a publish fails with `ConnectionLost`. Publishing waits while
        `unconfirmed_max` messages or `unconfirmed_bytes_max` bytes are unconfirmed.
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
        """Whether there is a connection at the moment. The client reconnects by itself."""
        return self._session.connection is not None

    @property
    def frame_bytes_max(self) -> int | None:
        """The largest request the broker takes from a client; None while there is no connection."""
        connection = self._session.connection
        return None if connection is None else connection.frame_bytes_max

    async def connect(self, *, retry_for_ms: int | None = 0) -> None:
        """Connect now, rather than with the first call; raises `ConnectionFailed`.

        0 makes one attempt, so that a wrong address is reported at once; None tries for ever.
        """
        await self._session.connect(retry_for_ms)

    async def close(self) -> None:
        """End the subscriptions, wait until what was settled is on the broker's disk, and close the connection.

        Other calls under way fail with `ClientClosed`. Closing continues if the task that waits for it is cancelled.
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
        """Thousands of subscriptions take their time, so this waits as long as the broker keeps answering."""
        settling = asyncio.ensure_future(self._settle_all())
        frame_count = -1
        try:
            while not settling.done() and frame_count != self._session.frame_count:
                frame_count = self._session.frame_count
                await asyncio.wait({settling}, timeout=_SILENCE_TIMEOUT_S)
        finally:
            settling.cancel()
            with contextlib.suppress(BrokerError, asyncio.CancelledError):
                await settling

    async def _settle_all(self) -> None:
        # All at once: with many subscriptions, one round trip after the other takes too long.
        await asyncio.gather(*(subscription.close() for subscription in list(self._subscriptions)))
        await self._session.all_taken_back()
        # Subscriptions that were garbage-collected may have left some too.
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
