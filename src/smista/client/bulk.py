"""`put_many`: any number of messages, cut into batches, several of them under way at a time.

Memory is bounded by the batches under way, whatever the source holds. A source that is an async iterator is read ahead
by one batch, so that a slow one still has its messages sent as they come.

    source ──▶ Batch, Batch, ... ──▶ Publisher.put (waits for room) ──▶ Tally, in order of the source
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeAlias

from smista.client.answers import Published, PutSummary
from smista.client.batch import Batch, body_size, message_size, raw_message
from smista.client.errors import another
from smista.client.publication import Publication, body_of
from smista.client.publisher import published
from smista.client.session import Pending
from smista.client.wire import BatchAnswer, Result, decode_batch_answer
from smista.core.errors import MessageTooLarge
from smista.errors import BrokerError

ERRORS_MAX = 1_000

OnProgress: TypeAlias = Callable[[int], object]
OnResult: TypeAlias = Callable[[int, Published | BrokerError], object]


class Cutter:
    """Cuts what it is fed: a batch is given out when it has `batch_count` messages or `batch_bytes`, or when the next
    message is of another kind."""

    def __init__(self, batch_count: int, batch_bytes: int) -> None:
        self._batch_count = batch_count
        self._batch_bytes = batch_bytes
        self._batch: Batch | None = None

    def feed(self, message: object) -> Batch | None:
        if type(message) is bytes:
            return self._feed_body(message, None)
        if isinstance(message, Publication):
            return self._feed_publication(message)
        return self._feed_body(*body_of(message))

    def rest(self) -> Batch | None:
        batch, self._batch = self._batch, None
        return batch

    def _feed_body(self, body: bytes, content_type: str | None) -> Batch | None:
        batch, full = self._batch, None
        if batch is None or not (batch.holds_bodies_of(content_type) and self._has_room(batch, body_size(body))):
            full, batch = batch, Batch(content_type)
            self._batch = batch
        batch.add_body(body, content_type)
        return full

    def _feed_publication(self, publication: Publication) -> Batch | None:
        message = raw_message(publication)
        batch, full = self._batch, None
        if batch is None or batch.messages is None or not self._has_room(batch, message_size(message)):
            full, batch = batch, Batch()
            self._batch = batch
        batch.add_message(message, has_own_id=publication.deduplication_id is not None)
        return full

    def _has_room(self, batch: Batch, size: int) -> bool:
        return batch.has_room(size, count_max=self._batch_count, bytes_max=self._batch_bytes)


def batches(source: Iterable[Any], batch_count: int, batch_bytes: int) -> Iterator[Batch]:
    cutter = Cutter(batch_count, batch_bytes)
    for message in source:
        if full := cutter.feed(message):
            yield full
    if rest := cutter.rest():
        yield rest


async def batches_as_they_come(source: AsyncIterable[Any], batch_count: int, batch_bytes: int) -> AsyncIterator[Batch]:
    """As `batches`, but what is there is given out when the source has nothing more just now."""
    cutter = Cutter(batch_count, batch_bytes)
    full: deque[Batch] = deque()
    has_some, is_taken = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        async for message in source:
            if batch := cutter.feed(message):
                full.append(batch)
                is_taken.clear()
                has_some.set()
                await is_taken.wait()
            has_some.set()

    reader = asyncio.create_task(read(), name="smista-put-many")
    reader.add_done_callback(lambda _: has_some.set())
    try:
        is_over = False
        while not is_over:
            await has_some.wait()
            has_some.clear()
            is_over = reader.done()  # asked first: what it has read until then is given out below
            while full:
                yield full.popleft()
                is_taken.set()
                # The reader goes first: as long as it has more, batches are full ones.
                await asyncio.sleep(0)
            if rest := cutter.rest():
                yield rest
        await reader  # raises what the source raised
    finally:
        reader.cancel()


class Tally:
    """Counts what becomes of the batches, in order."""

    def __init__(self, on_progress: OnProgress | None, on_result: OnResult | None) -> None:
        self.summary = PutSummary()
        self.is_brief = on_result is None
        self._on_progress = on_progress
        self._on_result = on_result

    def count(self, pending: Pending, batch: Batch) -> None:
        """Count an answered batch; raises what the broker refuses all of them for, this batch and any other."""
        try:
            answer = decode_batch_answer(pending.answer.result())
        except MessageTooLarge as error:
            # As a request, which says nothing of the next one.
            for _ in range(batch.count):
                self._count_outcome(another(error))
        else:
            if answer.results:
                for place, result in enumerate(answer.results):
                    self._count_one(result, is_ours=pending.is_resent and place not in batch.own_ids)
            else:
                self._count_brief(answer, is_ours=pending.is_resent)
        if self._on_progress is not None:
            self._on_progress(self.summary.count)

    def _count_brief(self, answer: BatchAnswer, *, is_ours: bool) -> None:
        start = self.summary.count
        duplicates = 0 if is_ours else answer.duplicates
        self.summary.accepted += answer.accepted - duplicates
        self.summary.duplicates += duplicates
        for refusal in answer.errors:
            self._count_refused(start + refusal.index, refusal.error())

    def count_rest(self, rest: Iterable[tuple[Pending, Batch]], error: BrokerError) -> None:
        """Count what was under way when a batch was refused with `error`, and note there how many were accepted."""
        for pending, batch in rest:
            with contextlib.suppress(BrokerError):
                self.count(pending, batch)
        error.add_note(f"{self.summary.accepted} messages before these were accepted.")

    def _count_one(self, result: Result, *, is_ours: bool) -> None:
        self._count_outcome(published(result, is_ours=is_ours) if result.error is None else result.error.error())

    def _count_outcome(self, outcome: Published | BrokerError) -> None:
        index = self.summary.count
        if isinstance(outcome, BrokerError):
            self._count_refused(index, outcome)
        else:
            self.summary.duplicates += outcome.is_duplicate
            self.summary.accepted += not outcome.is_duplicate
        if self._on_result is not None:
            self._on_result(index, outcome)

    def _count_refused(self, index: int, error: BrokerError) -> None:
        self.summary.refused += 1
        if len(self.summary.errors) < ERRORS_MAX:
            self.summary.errors.append((index, error))
