"""Publishes to queues: the messages published to one queue in one turn of the loop are sent as one batch.

A batch has an id, made of a random part per client and a number, and the broker stores a batch once per id. So a batch
that was unanswered when its connection broke is simply sent again. Without `deduplicate` there is no id, and such a
batch fails with `ConnectionLost`: its publisher must decide.

The number of unconfirmed messages and bytes is bounded: beyond that publishing waits.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets

from smista.client.answers import Published
from smista.client.batch import Batch, body_size, message_size, raw_message
from smista.client.errors import another
from smista.client.publication import Publication
from smista.client.session import Pending, Session
from smista.client.window import Window
from smista.client.wire import PublishBatch, Result, decode_batch_answer
from smista.errors import BrokerError


class _Turn(Batch):
    """The messages published to one queue in this turn of the loop, and their outcome."""

    __slots__ = ("done", "is_resent")

    def __init__(self, content_type: str | None) -> None:
        super().__init__(content_type)
        self.done: asyncio.Future[list[Result] | BrokerError] = asyncio.get_running_loop().create_future()
        self.is_resent = False

    def answered(self, pending: Pending) -> None:
        error = pending.answer.exception()
        if error is None:
            self.is_resent = pending.is_resent
            self.done.set_result(decode_batch_answer(pending.answer.result()).results)
        else:
            assert isinstance(error, BrokerError)
            self.failed(error)

    def failed(self, error: BrokerError) -> None:
        # As a result: each publisher that waits raises a copy of its own.
        self.done.set_result(error)


class Publisher:
    def __init__(
        self,
        session: Session,
        *,
        namespace: str | None,
        deduplicate: bool,
        unconfirmed_max: int,
        unconfirmed_bytes_max: int,
    ) -> None:
        self._session = session
        self._namespace = namespace
        self._deduplicate = deduplicate
        self._window = Window(unconfirmed_max, unconfirmed_bytes_max)
        self._open: dict[str, _Turn] = {}
        self._client_id = secrets.token_urlsafe(9)
        self._numbers = itertools.count(1)

    def new_id(self) -> str | None:
        """An id by which the broker recognises a batch or message sent twice; None without `deduplicate`."""
        return f"{self._client_id}-{next(self._numbers)}" if self._deduplicate else None

    async def publish(self, queue: str, body: bytes, content_type: str | None) -> Published:
        """Publish a body without other properties."""
        size = body_size(body)
        await self._window.enter(1, size)
        try:
            batch = self._batch(queue, size, content_type)
            return await _published(batch, batch.add_body(body, content_type))
        finally:
            self._window.leave(1, size)

    async def publish_message(self, queue: str, publication: Publication) -> Published:
        message = raw_message(publication)
        size = message_size(message)
        await self._window.enter(1, size)
        try:
            batch = self._batch(queue, size, None)
            place = batch.add_message(message, has_own_id=publication.deduplication_id is not None)
            return await _published(batch, place)
        finally:
            self._window.leave(1, size)

    async def put(self, queue: str, batch: Batch, *, brief: bool) -> Pending:
        """Send a whole batch when there is room for it."""
        count, size = batch.count, batch.size
        await self._window.enter(count, size)
        try:
            pending = self._request(batch.payload(queue, brief=brief))
        except BaseException:
            self._window.leave(count, size)
            raise
        pending.answer.add_done_callback(lambda _: self._window.leave(count, size))
        return pending

    def _request(self, payload: PublishBatch) -> Pending:
        payload.batch_id = self.new_id()
        # A batch may hold messages of several tasks; a mistake in one must not fail the others.
        payload.partial = True if payload.messages is not None else None
        payload.namespace = self._namespace
        return self._session.request("queue.publish_batch", payload, is_repeatable=payload.batch_id is not None)

    def _batch(self, queue: str, size: int, content_type: str | None) -> _Turn:
        """The batch of this turn that a message of this size goes into."""
        batch = self._open.get(queue)
        if batch is not None and not batch.has_room(size):
            self._send(queue)
            batch = None
        if batch is None:
            self._session.check_open()
            if not self._open:
                asyncio.get_running_loop().call_soon(self._flush)
            batch = self._open[queue] = _Turn(content_type)
        return batch

    def _flush(self) -> None:
        for queue in list(self._open):
            self._send(queue)

    def _send(self, queue: str) -> None:
        batch = self._open.pop(queue)
        try:
            pending = self._request(batch.payload(queue))
        except BrokerError as error:
            batch.failed(error)
        else:
            pending.answer.add_done_callback(lambda _: batch.answered(pending))


async def _published(batch: _Turn, place: int) -> Published:
    # Shared by the whole batch: a publisher that is cancelled must not cancel the others.
    results = await asyncio.shield(batch.done)
    if isinstance(results, BrokerError):
        raise another(results)
    return published(results[place], is_ours=batch.is_resent and place not in batch.own_ids)


def published(result: Result, *, is_ours: bool) -> Published:
    """A result as an answer to the publisher. With `is_ours` a duplicate is one of our own, sent before the connection
    broke, and is not reported as such."""
    if result.error is not None:
        raise result.error.error()
    return Published(result.message_id, result.position, result.duplicate and not is_ours)
