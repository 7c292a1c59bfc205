"""Settles deliveries (acknowledge, nack, release) and extends their leases.

What is settled in one turn of the loop is sent as one request, with one future for all of it. Pushed deliveries are
named by tags, which are void once their connection is gone: the broker has requeued those messages by then, so settling
one raises `StaleReceipt`, and nothing is sent. Received deliveries are named by receipts, which outlive connections. A
request by receipts that was unanswered when a connection broke is sent again; if a receipt is stale then, it is unknown
whether the first request made it so.

`settle` waits for the broker and raises its errors. `settle_soon` does not wait, so it keeps up with any rate of
messages; its errors are logged, since the message will be delivered again and there is nothing else to do.
`settle_from_thread` does the same from another thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from typing import NamedTuple, TypeAlias

from smista.client.connection import Connection
from smista.client.errors import ConnectionLost, another
from smista.client.portal import call_on, check_process
from smista.client.session import Pending, Session
from smista.client.wire import Settle, SettleAnswer, decode_settle_answer
from smista.errors import BrokerError, StaleReceipt

logger = logging.getLogger("smista.client")
Name: TypeAlias = int | str
Failures: TypeAlias = dict[int, BrokerError]
"""The settlements that had no effect, by place in the batch."""


class Settling(NamedTuple):
    """How to settle a delivery."""

    command: str
    requeue: bool = True
    delay_ms: int | None = None
    error: str = ""
    lease_ms: int | None = None


ACK = Settling("ack")
RELEASE = Settling("release")


NAMES_MAX = 5_000
"""Names in one request; the broker takes 10,000."""


class _Batch:
    __slots__ = ("answer", "done", "names", "places", "waited_for")

    def __init__(self, done: asyncio.Future[Failures]) -> None:
        self.names: list[Name] = []
        self.done = done
        self.answer = SettleAnswer(success=False)
        """The broker's answer, once it has arrived."""
        self.waited_for: set[int] = set()
        """Places that a caller waits for, who gets the error."""
        self.places: dict[Name, int] = {}
        """Places by name, of extensions: two for one delivery in one turn are sent as one."""

    def add(self, name: Name, *, may_repeat: bool) -> int:
        """Returns its place."""
        place = len(self.names)
        if may_repeat and (first := self.places.setdefault(name, place)) != place:
            return first
        self.names.append(name)
        return place


class Settler:
    """See the module. There is one per subscription and connection, and one for all received deliveries."""

    def __init__(self, session: Session) -> None:
        self.loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._session = session
        self._open: dict[Settling, _Batch] = {}
        """What is sent at the end of this turn."""
        self._unanswered: set[asyncio.Future[Failures]] = set()
        self._from_threads: deque[tuple[Settling, Name]] = deque()
        self._is_woken = False
        self._first_error: BrokerError | None = None

    @property
    def is_void(self) -> bool:
        """Whether the broker has requeued the deliveries that this settles."""
        return False

    def check_process(self) -> None:
        """Raise `ClientClosed` in a forked child, where the loop does not run."""
        check_process(self._process)

    async def settle(self, how: Settling, name: Name) -> str:
        """Return when it is durable; of a nack, returns its outcome. Raises the broker's error."""
        batch, place = self._add(how, name)
        batch.waited_for.add(place)
        # Shared by the whole batch: a caller that is cancelled must not cancel the others.
        failures = await asyncio.shield(batch.done)
        if place in failures:
            raise another(failures[place])
        return batch.answer.action_at(place)

    def settle_soon(self, how: Settling, name: Name) -> None:
        self._add(how, name)

    def settle_from_thread(self, how: Settling, name: Name) -> None:
        self.check_process()
        self._from_threads.append((how, name))
        # Append, then check the flag; the loop clears the flag, then empties the deque. So nothing is left behind.
        if not self._is_woken:
            self._is_woken = True
            call_on(self.loop, self._take_from_threads)

    async def settled(self) -> None:
        """Return when all that was settled so far is durable; raises the first error that was not raised elsewhere."""
        self.flush()
        while self._unanswered:
            await asyncio.wait(self._unanswered)
        error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    def flush(self) -> None:
        """Send what was settled in this turn."""
        self._take_from_threads()
        self._send_open()

    def _send_open(self) -> None:
        batches, self._open = self._open, {}
        # Extensions first: a delivery extended and then acknowledged in one turn must arrive in that order.
        for how in sorted(batches, key=lambda how: how.command != "extend"):
            self._send(how, batches[how])

    def _add(self, how: Settling, name: Name) -> tuple[_Batch, int]:
        batch = self._open.get(how)
        if batch is not None and len(batch.names) >= NAMES_MAX:
            # All of them, so that what was extended in this turn is extended before it is settled.
            self._send_open()
            batch = None
        if batch is None:
            if not self._open:
                self.loop.call_soon(self.flush)
            batch = self._open[how] = self._new_batch()
        return batch, batch.add(name, may_repeat=how.lease_ms is not None)

    def _new_batch(self) -> _Batch:
        batch = _Batch(self.loop.create_future())
        batch.done.add_done_callback(lambda _: self._answered(batch))
        self._unanswered.add(batch.done)
        self._session.unsettled.add(self)
        return batch

    def _take_from_threads(self) -> None:
        self._is_woken = False
        arrived = self._from_threads
        while arrived:
            self._add(*arrived.popleft())

    def _send(self, how: Settling, batch: _Batch) -> None:
        try:
            pending = self._request(how, batch.names)
        except BrokerError as error:
            batch.done.set_result(dict.fromkeys(range(len(batch.names)), error))
            return
        pending.answer.add_done_callback(lambda _: batch.done.set_result(_failures(pending, batch)))

    def _answered(self, batch: _Batch) -> None:
        self._unanswered.discard(batch.done)
        if not self._unanswered:
            self._session.unsettled.discard(self)
        failures = batch.done.result()
        if failures:
            unraised = [error for place, error in failures.items() if place not in batch.waited_for]
            if unraised:
                self._first_error = self._first_error or unraised[0]
                logger.warning("%d deliveries could not be settled: %s", len(unraised), unraised[0])

    def _request(self, how: Settling, names: list[Name]) -> Pending:
        raise NotImplementedError


_UP_TO = Settling("ack up to")


class TagSettler(Settler):
    """Settles the deliveries of one connection to one subscription."""

    def __init__(self, session: Session, connection: Connection, queue: str) -> None:
        super().__init__(session)
        self._connection = connection
        self._queue = queue

    @property
    def is_void(self) -> bool:
        return self._session.connection is not self._connection

    def ack_up_to(self, tag: int) -> None:
        """Acknowledge it and everything delivered before it, soon."""
        self.flush()
        batch = self._new_batch()
        batch.names.append(tag)
        self._send(_UP_TO, batch)

    def _request(self, how: Settling, names: list[Name]) -> Pending:
        if self.is_void:
            raise StaleReceipt(
                f"The connection that delivered this from queue {self._queue!r} is gone, and the broker has requeued "
                "the message: it will be delivered again."
            )
        if how is _UP_TO:
            return self._session.request("ack", Settle(up_to=names[0]), is_repeatable=False)
        return self._session.request(how.command, _payload(how, tags=names), is_repeatable=False)


class ReceiptSettler(Settler):
    """Settles received deliveries, by receipts."""

    def _request(self, how: Settling, names: list[Name]) -> Pending:
        return self._session.request(f"queue.{how.command}", _payload(how, receipts=names), is_repeatable=True)


def _payload(how: Settling, *, tags: list[Name] | None = None, receipts: list[Name] | None = None) -> Settle:
    return Settle(
        tags=tags,
        receipts=receipts,
        requeue=how.requeue,
        delay_ms=how.delay_ms,
        error=how.error,
        lease_ms=how.lease_ms,
    )


def _failures(pending: Pending, batch: _Batch) -> Failures:
    """Decode the answer to a batch; returns the errors in it."""
    error = pending.answer.exception()
    if error is not None:
        assert isinstance(error, BrokerError)
        return dict.fromkeys(range(len(batch.names)), error)
    batch.answer = decode_settle_answer(pending.answer.result())
    results = enumerate(batch.answer.results)
    failures = {place: result.error.error() for place, result in results if result and result.error}
    if pending.is_resent:
        failures = {place: _in_doubt(error) for place, error in failures.items()}
    return failures


def _in_doubt(error: BrokerError) -> BrokerError:
    if not isinstance(error, StaleReceipt):
        return error
    return ConnectionLost(
        f"The connection was lost, so this was sent twice; the first time may have counted. ({error})"
    )
