"""`put_many`: any number of messages, cut into batches, several of them under way at a time.

Memory is bounded by the batches under way, however large the source is. An async iterator is read ahead by one batch,
so the messages of a slow one are still sent as they come. A message that cannot be sent does not stop the others, and
when the source fails what it gave before is still put.

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
from smista.errors import BrokerError, MessageTooLarge

ERRORS_MAX = 1_000

OnProgress: TypeAlias = Callable[[int], object]
OnResult: TypeAlias = Callable[[int, Published | BrokerError], object]


class Cutter:
    """Cuts messages into batches: one is full at `batch_count` messages or `batch_bytes`, or when the next message is
    of another kind. For a message that cannot be sent the batch notes why."""

    def __init__(self, batch_count: int, batch_bytes: int) -> None:
        self._batch_count = batch_count
        self._batch_bytes = batch_bytes
        self._batch: Batch | None = None

    def feed(self, message: object) -> Batch | None:
        try:
            if type(message) is bytes:
                return self._feed_body(message, None)
            if isinstance(message, Publication):
                return self._feed_publication(message)
            return self._feed_body(*body_of(message))
        except BrokerError as error:
            return self._refuse(error)

    def rest(self) -> Batch | None:
        batch, self._batch = self._batch, None
        return batch

    def _feed_body(self, body: bytes, content_type: str | None) -> Batch | None:
        batch, full = self._batch, None
        if batch is None or not (batch.takes_bodies_of(content_type) and self._has_room(batch, body_size(body))):
            full, batch = batch, Batch(content_type)
            self._batch = batch
        batch.add_body(body, content_type)
        return full

    def _feed_publication(self, publication: Publication) -> Batch | None:
        message = raw_message(publication)
        batch, full = self._batch, None
        if batch is None or not (batch.takes_messages() and self._has_room(batch, message_size(message))):
            full, batch = batch, Batch()
            self._batch = batch
        batch.add_message(message, has_own_id=publication.deduplication_id is not None)
        return full

    def _refuse(self, error: BrokerError) -> Batch | None:
        batch, full = self._batch, None
        if batch is None or not self._has_room(batch, 0):
            full, batch = batch, Batch()
            self._batch = batch
        batch.refuse(error)
        return full

    def _has_room(self, batch: Batch, size: int) -> bool:
        return batch.has_room(size, count_max=self._batch_count, bytes_max=self._batch_bytes)


class Batches:
    """The batches of a source. When the source fails they end, and `failure` is what it raised."""

    def __init__(self, source: Iterable[Any], batch_count: int, batch_bytes: int) -> None:
        self._source = source
        self._cutter = Cutter(batch_count, batch_bytes)
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[Batch]:
        messages = iter(self._source)
        is_over = False
        while not is_over:
            batch = None
            try:
                for message in messages:
                    if batch := self._cutter.feed(message):
                        break
                else:
                    is_over = True
            except Exception as error:
                self.failure = error
                is_over = True
            # Outside the `try`, so that errors of whoever consumes the batches are not taken for the source's.
            if batch is None:
                batch = self._cutter.rest()
            if batch is not None:
                yield batch


class BatchesAsTheyCome:
    """As `Batches`, for an async source; a batch that is not full goes out while the source has nothing more."""

    def __init__(self, source: AsyncIterable[Any], batch_count: int, batch_bytes: int) -> None:
        self._source = source
        self._cutter = Cutter(batch_count, batch_bytes)
        self._full: deque[Batch] = deque()
        self._has_some, self._is_taken = asyncio.Event(), asyncio.Event()
        self.failure: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[Batch]:
        reader = asyncio.create_task(self._read(), name="smista-put-many")
        reader.add_done_callback(lambda _: self._has_some.set())
        try:
            is_over = False
            while not is_over:
                await self._has_some.wait()
                self._has_some.clear()
                is_over = reader.done()  # checked first: what it has read by now is given out below
                while self._full:
                    yield self._full.popleft()
                    self._is_taken.set()
                    # The reader goes first: as long as it has more, batches are full ones.
                    await asyncio.sleep(0)
                if rest := self._cutter.rest():
                    yield rest
            await reader
        finally:
            reader.cancel()

    async def _read(self) -> None:
        try:
            async for message in self._source:
                if batch := self._cutter.feed(message):
                    self._full.append(batch)
                    self._is_taken.clear()
                    self._has_some.set()
                    await self._is_taken.wait()
                self._has_some.set()
        except Exception as error:
            self.failure = error


class Tally:
    """Counts the outcomes of the batches, in order."""

    def __init__(self, on_progress: OnProgress | None, on_result: OnResult | None) -> None:
        self.summary = PutSummary()
        self.is_brief = on_result is None
        self._on_progress = on_progress
        self._on_result = on_result

    def count(self, pending: Pending, batch: Batch) -> None:
        """Count an answered batch; raises an error that concerns every batch, such as that there is no such queue."""
        try:
            answer = decode_batch_answer(pending.answer.result())
        except MessageTooLarge as error:
            # This request was too large; the next one may not be.
            self._count_each([another(error) for _ in range(batch.count)], batch)
        else:
            if answer.results:
                self._count_each(_outcomes(answer.results, pending, batch), batch)
            else:
                self._count_brief(answer, batch, is_ours=pending.is_resent)
        if self._on_progress is not None:
            self._on_progress(self.summary.count)

    def _count_each(self, outcomes: Iterable[Published | BrokerError], batch: Batch) -> None:
        """Count the messages that were sent and those that were not, in the order of the source."""
        sent = iter(outcomes)
        for place in range(batch.total):
            self._count_outcome(batch.refused.get(place) or next(sent))

    def _count_brief(self, answer: BatchAnswer, batch: Batch, *, is_ours: bool) -> None:
        if self._on_result is not None:
            # Nothing was sent, so there are no results.
            self._count_each((), batch)
            return
        start = self.summary.count
        duplicates = 0 if is_ours else answer.duplicates
        self.summary.accepted += answer.accepted - duplicates
        self.summary.duplicates += duplicates
        refused = {batch.place_of(refusal.index): refusal.error() for refusal in answer.errors} | batch.refused
        for place in sorted(refused):
            self._count_refused(start + place, refused[place])

    def count_rest(self, rest: Iterable[tuple[Pending, Batch]], error: BrokerError) -> None:
        """Count what was under way when a batch failed with `error`, and add a note of how many were accepted."""
        for pending, batch in rest:
            with contextlib.suppress(BrokerError):
                self.count(pending, batch)
        error.add_note(f"{self._accepted('these')} accepted.")

    def check_source(self, failure: Exception | None) -> None:
        """Raise the error of the source, after all it gave before is counted."""
        if failure is not None:
            refused = f", {self.summary.refused} refused" if self.summary.refused else ""
            if self.summary.count:
                failure.add_note(f"{self._accepted('that')} accepted{refused}.")
            raise failure

    def _accepted(self, what: str) -> str:
        accepted = self.summary.accepted
        return f"1 message before {what} was" if accepted == 1 else f"{accepted} messages before {what} were"

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


def _outcomes(results: Iterable[Result], pending: Pending, batch: Batch) -> Iterator[Published | BrokerError]:
    for place, result in enumerate(results):
        is_ours = pending.is_resent and place not in batch.own_ids
        yield published(result, is_ours=is_ours) if result.error is None else result.error.error()
