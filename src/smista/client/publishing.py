"""Calls that publish."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Iterable, Sequence
from typing import Any, Unpack

from msgspec import UNSET

from smista.client.answers import Published, PutSummary, Routed, RoutedList
from smista.client.batch import BATCH_BYTES, BATCH_COUNT, Batch
from smista.client.bulk import Batches, BatchesAsTheyCome, OnProgress, OnResult, Tally
from smista.client.calls import Calls
from smista.client.publication import Properties, Publication, body_of
from smista.client.publisher import Publisher
from smista.client.session import Pending
from smista.core.settings import check_text
from smista.errors import BrokerError


class PublishingCalls(Calls):
    _publisher: Publisher

    async def publish(
        self, queue: str, message: Any = UNSET, *, body: bytes | None = None, **properties: Unpack[Properties]
    ) -> Published:
        """Publish a message to a queue; returns when it is on the broker's disk.

        `message` is any JSON-able value, stored as JSON, or bytes, stored as they are; bytes may also be given as
        `body`. Properties are `priority`, `delay_ms`, `deliver_at_ms`, `ttl_ms`, `group`, `deduplication_id`,
        `max_retries`, `headers`, `content_type` and the others in docs/commands.md. Messages published to one queue in
        the same turn of the event loop, or at the same time by several threads, are sent together. A message that was
        unconfirmed when the connection broke is sent again and stored once; see the client's `deduplicate`.
        """
        check_text("queue", queue)
        if properties:
            given = UNSET if body is None else body
            return await self._publisher.publish_message(queue, Publication(message, given, **properties))
        return await self._publisher.publish(queue, *body_of(message, body))

    async def put_many(
        self,
        queue: str,
        messages: Iterable[Any] | AsyncIterable[Any],
        *,
        batch_count: int = BATCH_COUNT,
        batch_bytes: int = BATCH_BYTES,
        on_progress: OnProgress | None = None,
        on_result: OnResult | None = None,
    ) -> PutSummary:
        """Publish any number of messages, in batches, several of them under way at a time; in order.

        Each is bytes, a JSON-able value, or a `Publication` with properties of its own. `on_progress` is called with
        the number of messages done so far, `on_result` with the index and outcome of each message. A message that is
        refused, by the broker or because it cannot be sent, does not stop the others; it is in the summary's `errors`.
        An error that concerns all of them (`QueueNotFound`, `LowDisk`, ...) is raised, and so is what `messages`
        raises, after the messages before it are put; a note of the error says how many were accepted.
        """
        check_text("queue", queue)
        tally = Tally(on_progress, on_result)
        under_way: deque[tuple[Pending, Batch]] = deque()

        async def put(batch: Batch) -> None:
            under_way.append((await self._publisher.put(queue, batch, brief=tally.is_brief), batch))
            await asyncio.sleep(0)  # else nothing would be sent before the window is full
            while under_way and under_way[0][0].answer.done():
                tally.count(*under_way.popleft())

        try:
            source: Batches | BatchesAsTheyCome
            if isinstance(messages, AsyncIterable):
                source = BatchesAsTheyCome(messages, batch_count, batch_bytes)
                async for batch in source:
                    await put(batch)
            else:
                source = Batches(messages, batch_count, batch_bytes)
                for batch in source:
                    await put(batch)
            while under_way:
                await asyncio.wait({under_way[0][0].answer})
                tally.count(*under_way.popleft())
        except BrokerError as error:
            if under_way:
                await asyncio.wait({pending.answer for pending, _ in under_way})
            tally.count_rest(under_way, error)
            raise
        tally.check_source(source.failure)
        return tally.summary

    async def put_batch(self, queue: str, batch: Batch, *, brief: bool) -> Pending:
        """Send one batch of a `put_many` that runs in another thread; returns when it is answered."""
        pending = await self._publisher.put(queue, batch, brief=brief)
        await asyncio.wait({pending.answer})
        return pending

    async def publish_to_exchange(
        self,
        exchange: str,
        routing_key: str,
        message: Any = UNSET,
        *,
        body: bytes | None = None,
        extra_keys: Sequence[str] = (),
        **properties: Unpack[Properties],
    ) -> list[Routed]:
        """Publish through an exchange; returns the queues it reached, none when no binding matched.

        It is stored in all of them or in none. `extra_keys` are further routing keys. Message and properties are as for
        `publish`.
        """
        publication = Publication(message, UNSET if body is None else body, **properties)
        batch_id = self._publisher.new_id()
        fields = {
            name: value for name in publication.__struct_fields__ if (value := getattr(publication, name)) is not UNSET
        }
        answer = await self._ask(
            "exchange.publish",
            RoutedList,
            is_repeatable=batch_id is not None or publication.deduplication_id is not None,
            batch_id=batch_id,
            exchange=exchange,
            routing_key=routing_key,
            extra_keys=extra_keys,
            **fields,
        )
        return answer.routed

    async def send_message(self, queue: str, body: bytes, priority: int | None = None, delay_seconds: float = 0) -> str:
        """Publish bytes to a queue, ready after `delay_seconds`: `publish` by another name. Returns its id."""
        delay_ms = round(delay_seconds * 1000) or None
        return (await self.publish(queue, body=body, priority=priority, delay_ms=delay_ms)).id
