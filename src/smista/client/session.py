"""Keeps a program connected to its broker: sends requests, returns answers, and reconnects.

    idle ──(a request, a subscription)──▶ connecting ──▶ connected ──(break)──▶ connecting ──▶ ...
      ▲                                       │                                     │
      └──── given up: every call fails ◀──────┴──── nothing needs a connection ◀────┘

When a connection breaks, requests that were sent and not answered are treated by kind. One that may be repeated (it
only reads, or the broker recognises it, as a batch by its id) is sent again, the same bytes under the same number,
before anything newer. Any other fails with `ConnectionLost`, since it may or may not have been carried out. Requests
that were not sent wait. A broker that announces that it is going away counts as a break. When the client gives the
broker up, every request that was sent fails with `ConnectionLost`, also those that could be repeated; the others fail
with the reason.

A caller may be cancelled. If the answer would deliver something to it (`receive`), the broker is asked to cancel the
request, and what it delivers nevertheless is released: see `take_back`.

The first connection is tried once, so that a wrong address is reported at once. After that the client reconnects for up
to `retry_for_ms`, with a back-off that is reset by the first answer on a new connection.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from smista.address import shown_address, stream_url
from smista.client.backoff import Backoff
from smista.client.connection import Connection
from smista.client.errors import ClientClosed, ConnectionFailed, ConnectionLost, another
from smista.client.wire import ErrorBody, Frame, Request, decode_frame, encode
from smista.errors import BrokerError, InvalidArgument, MessageTooLarge

T = TypeVar("T")
logger = logging.getLogger("smista.client")

GOING_AWAY = frozenset({"broker_closed", "broker_stopped", "outcome_unknown"})
"""Codes of a broker that will confirm nothing any more: reconnect and ask again."""


class Feed(Protocol):
    """A subscription, as the session sees it."""

    def opened(self, connection: Connection) -> None:
        """There is a new connection: subscribe on it."""

    def pushed(self, frame: Frame) -> None: ...

    def broken(self) -> None:
        """The connection is gone, and its deliveries are void."""

    def failed(self, error: BrokerError) -> None:
        """The session gives up: there will be no other connection."""


class Settles(Protocol):
    """A settler, as the session sees it."""

    async def settled(self) -> None: ...


class Pending:
    """A request that has no answer yet."""

    __slots__ = ("answer", "frame", "is_repeatable", "is_resent", "is_sent", "late", "number")

    def __init__(self, number: int, frame: bytes, answer: asyncio.Future[msgspec.Raw], *, is_repeatable: bool) -> None:
        self.number = number
        self.frame = frame
        self.answer = answer
        self.is_repeatable = is_repeatable
        self.is_sent = False
        self.is_resent = False
        self.late: msgspec.Raw | None = None
        """The answer, if it came after the caller was cancelled."""

    def fail(self, error: BrokerError) -> None:
        """Answer it with an error. If nobody waits for it, as when one of many requests has failed and the rest is
        given up, asyncio must not log the error as never retrieved."""
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # so that it counts as retrieved


class Session:
    def __init__(self, address: str | None, *, connect_timeout_ms: int, retry_for_ms: int | None) -> None:
        self._url = stream_url(address)
        self._connect_timeout_ms = connect_timeout_ms
        self._retry_for_ms = retry_for_ms
        self._request_ids = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._feeds: dict[Feed, None] = {}
        self._by_number: dict[int, Feed] = {}
        """The subscriptions of the present connection."""
        self._early: dict[int, list[Frame]] = {}
        """Frames pushed to a subscription before the answer that gives its number."""
        self._connection: Connection | None = None
        self._runner: asyncio.Task[None] | None = None
        self._connecting: list[asyncio.Future[None]] = []
        self._taken_back: set[asyncio.Future[msgspec.Raw]] = set()
        """Answers that nobody waits for, and that may deliver messages."""
        self.unsettled: set[Settles] = set()
        """Settlers whose requests are unanswered; their subscriptions may be gone."""
        self.frame_count = 0
        """Frames received so far, which shows whether the broker still answers."""
        self._backoff = Backoff()
        self._down_since_s: float | None = None
        self._has_connected = False
        self._is_closed = False

    @property
    def connection(self) -> Connection | None:
        connection = self._connection
        return None if connection is None or connection.is_over else connection

    # -- for callers --------------------------------------------------------------------------------------------------

    async def connect(self, retry_for_ms: int | None) -> None:
        """Return when there is a connection; raises `ConnectionFailed` after `retry_for_ms` without one."""
        self.check_open()
        if self.connection is None:
            connected = asyncio.get_running_loop().create_future()
            self._connecting.append(connected)
            self._start(retry_for_ms)
            await connected

    def request(self, command: str, payload: object, *, is_repeatable: bool) -> Pending:
        """Send a request, now or when there is a connection; raises `InvalidArgument` for what cannot be encoded."""
        self.check_open()
        request_id = next(self._request_ids)
        try:
            frame = encode(Request(request_id, command, payload))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgument(f"What was given to {command} cannot be sent: {error}.") from None
        pending = Pending(request_id, frame, asyncio.get_running_loop().create_future(), is_repeatable=is_repeatable)
        self._pending[request_id] = pending
        if (connection := self.connection) is not None:
            self._send(connection, pending)
        else:
            self._start(self._retry_for_ms if self._has_connected else 0)
        return pending

    def _send(self, connection: Connection, pending: Pending) -> None:
        size = len(pending.frame)
        if size > connection.frame_bytes_max:
            # If it were sent, the broker would close the connection, with all other requests and deliveries on it.
            limit = connection.frame_bytes_max
            self._fail(pending.number, _too_large(size, f"takes {limit} (its websocket_frame_bytes_max)"))
        else:
            pending.is_sent = True
            connection.send(pending.frame)

    async def call(
        self, command: str, payload: object, decode: Callable[[msgspec.Raw], T], *, is_repeatable: bool
    ) -> T:
        return decode(await self.request(command, payload, is_repeatable=is_repeatable).answer)

    def take_back(self, pending: Pending, give_back: Callable[[msgspec.Raw], None]) -> None:
        """The caller of this request was cancelled: have the broker cancel the request, and pass an answer that comes
        nevertheless to `give_back`."""
        if pending.answer.cancelled():
            is_answered = self._pending.get(pending.number) is not pending
            if is_answered or not pending.is_sent:
                self._pending.pop(pending.number, None)
                if pending.late is not None:
                    give_back(pending.late)
                return
            # A break ends it; it must not be sent again.
            pending.is_repeatable = False
            pending.answer = asyncio.get_running_loop().create_future()
            if not self._is_closed:
                self.request("cancel", {"request": pending.number}, is_repeatable=False)
        self._taken_back.add(pending.answer)
        pending.answer.add_done_callback(lambda answer: self._came_back(answer, give_back))

    def _came_back(self, answer: asyncio.Future[msgspec.Raw], give_back: Callable[[msgspec.Raw], None]) -> None:
        self._taken_back.discard(answer)
        if not answer.cancelled() and answer.exception() is None:
            give_back(answer.result())

    async def all_taken_back(self) -> None:
        while self._taken_back:
            await asyncio.wait(self._taken_back)

    def add_feed(self, feed: Feed) -> None:
        self.check_open()
        self._feeds[feed] = None
        if (connection := self.connection) is not None:
            feed.opened(connection)
        else:
            self._start(self._retry_for_ms if self._has_connected else 0)

    def name_feed(self, feed: Feed, number: int) -> None:
        """The broker calls this subscription `number` on the present connection."""
        self._by_number[number] = feed
        for frame in self._early.pop(number, ()):
            feed.pushed(frame)

    def remove_feed(self, feed: Feed) -> None:
        """It takes no more messages and is not opened again after a break."""
        self._feeds.pop(feed, None)

    def forget_number(self, feed: Feed, number: int) -> None:
        """The broker pushes nothing more under this number."""
        if self._by_number.get(number) is feed:
            del self._by_number[number]

    def drop(self, why: str) -> None:
        """Give up the present connection and reconnect."""
        if self._connection is not None:
            self._connection.end(why)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._give_up(ClientClosed("The client was closed."))
        runner, connection = self._runner, self._connection
        if connection is not None:
            await connection.close()
        if runner is not None:
            runner.cancel()
            await asyncio.wait({runner})

    def check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("The client was closed; make a new one.")

    # -- connecting ---------------------------------------------------------------------------------------------------

    def _start(self, retry_for_ms: int | None) -> None:
        if self._runner is None:
            self._runner = asyncio.create_task(self._run(retry_for_ms), name="smista-session")

    async def _run(self, retry_for_ms: int | None) -> None:
        try:
            while self._pending or self._feeds or self._connecting:
                connection = await self._open(retry_for_ms)
                retry_for_ms = self._retry_for_ms
                self._attach(connection)
                await self._read(connection)
                self._detach(connection)
        except ConnectionFailed as failure:
            self._give_up(failure)
        except Exception as fault:
            # A bug of ours, but no caller may be left waiting because of it.
            self._give_up(ConnectionLost(f"The client failed: {fault!r}."))
            raise
        finally:
            self._runner = None
            self._down_since_s = None
            self._backoff.reset()

    async def _open(self, retry_for_ms: int | None) -> Connection:
        """A connection, or `ConnectionFailed` when there was none for `retry_for_ms` since the last good one."""
        failure: ConnectionFailed | None = None
        while True:
            if self._down_since_s is not None:
                wait_s = self._backoff.next_s()
                down_s = time.monotonic() - self._down_since_s + wait_s
                if retry_for_ms is not None and down_s > retry_for_ms / 1000:
                    raise failure or ConnectionFailed(
                        f"Connections to {shown_address(self._url)} keep breaking before an answer."
                    )
                await asyncio.sleep(wait_s)
            try:
                return await Connection.open(self._url, timeout_ms=self._connect_timeout_ms)
            except ConnectionFailed as problem:
                if failure is None and retry_for_ms != 0:
                    logger.warning("%s Trying again.", problem)
                failure = problem
                self._down_since_s = self._down_since_s or time.monotonic()

    def _attach(self, connection: Connection) -> None:
        if self._has_connected:
            logger.info("Connected to %s again.", shown_address(self._url))
        self._connection = connection
        self._has_connected = True
        self._forget_abandoned()
        for pending in list(self._pending.values()):
            pending.is_resent = pending.is_resent or pending.is_sent
            self._send(connection, pending)
        for feed in list(self._feeds):
            feed.opened(connection)
        for connected in self._connecting:
            if not connected.done():
                connected.set_result(None)
        self._connecting.clear()

    def _detach(self, connection: Connection) -> None:
        if self._is_closed:
            return
        logger.warning("Lost the connection to %s: %s.", shown_address(self._url), connection.ending)
        self._connection = None
        self._by_number.clear()
        self._early.clear()
        if self._down_since_s is None:
            self._down_since_s = time.monotonic()
        self._forget_abandoned()
        if connection.is_refusing_size and self._pending:
            # One frame was too large for the broker, so at least the largest; it must not be sent again.
            request_id = max(self._pending, key=lambda request_id: len(self._pending[request_id].frame))
            size = len(self._pending[request_id].frame)
            self._fail(request_id, _too_large(size, "takes less"))
        for request_id, pending in list(self._pending.items()):
            if not pending.is_repeatable and pending.is_sent:
                self._fail(request_id, _lost(connection))
        for feed in list(self._feeds):
            feed.broken()

    def _give_up(self, error: BrokerError) -> None:
        """Fail everything: what was sent may have been carried out nevertheless, the rest was not."""
        for request_id, pending in list(self._pending.items()):
            self._fail(request_id, _in_doubt(error) if pending.is_sent else another(error))
        for feed in list(self._feeds):
            feed.failed(another(error))
        self._feeds.clear()
        for connected in self._connecting:
            if not connected.done():
                connected.set_exception(another(error))
        self._connecting.clear()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _read(self, connection: Connection) -> None:
        try:
            while True:
                data = await connection.receive()
                try:
                    frame = decode_frame(data)
                except msgspec.DecodeError as error:
                    connection.end(f"it carried a frame that cannot be read: {error}")
                    continue
                self._take(connection, frame)
        except EOFError:
            return

    def _take(self, connection: Connection, frame: Frame) -> None:
        self.frame_count += 1
        if frame.subscription is not None:
            feed = self._by_number.get(frame.subscription)
            if feed is not None:
                feed.pushed(frame)
            else:
                self._early.setdefault(frame.subscription, []).append(frame)
        elif frame.id is None:
            self._refused_unread(frame.error)
        elif (pending := self._pending.get(frame.id)) is not None:
            error = frame.error
            if error is not None and error.code in GOING_AWAY and pending.is_repeatable:
                connection.end(f"the broker is going away: {error.message}")
                return
            del self._pending[frame.id]
            if pending.answer.done():
                # The caller was cancelled, and may give it back.
                pending.late = None if error is not None else frame.result
                return
            if error is not None:
                pending.fail(error.error())
            else:
                pending.answer.set_result(frame.result)
        self._down_since_s = None
        self._backoff.reset()

    def _refused_unread(self, error: ErrorBody | None) -> None:
        """The broker could not read a request, not even its number, so it may have been any of them."""
        assert error is not None
        for request_id, pending in list(self._pending.items()):
            if pending.is_sent:
                self._fail(request_id, error.error())

    def _fail(self, request_id: int, error: BrokerError) -> None:
        self._pending.pop(request_id).fail(error)

    def _forget_abandoned(self) -> None:
        for request_id, pending in list(self._pending.items()):
            if pending.answer.done():
                del self._pending[request_id]


def retrieve_error(answer: asyncio.Future[Any]) -> None:
    """A callback for an answer that nobody waits for: asyncio logs errors that were never retrieved."""
    if not answer.cancelled():
        answer.exception()


def _lost(connection: Connection) -> ConnectionLost:
    return ConnectionLost(
        f"This was under way when the connection was lost ({connection.ending}): it may or may not have happened."
    )


def _in_doubt(error: BrokerError) -> BrokerError:
    """The error of a request that was sent and has no answer because of `error`."""
    if isinstance(error, ClientClosed):
        return ClientClosed("The client was closed while this was under way: it may or may not have happened.")
    return ConnectionLost(
        f"This was under way when the connection was lost: it may or may not have happened. Since then: {error}"
    )


def _too_large(size: int, takes: str) -> MessageTooLarge:
    return MessageTooLarge(
        f"This is a request of {size} bytes, and the broker {takes}: send less at a time, or have it take more by "
        "`smista serve --websocket-frame-bytes-max`."
    )
