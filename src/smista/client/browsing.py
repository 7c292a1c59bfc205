"""Calls that browse messages, and those for dead letters and scheduled messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack

from smista.client.answers import Done, Purged, Redrive, Redriven, Redrives, SearchedQueues
from smista.client.calls import Calls
from smista.client.message import Message
from smista.client.pages import Page, Pages

PAGE_SIZE = 100


class Filters(TypedDict, total=False):
    """Conditions that a message must meet; those not given do not restrict."""

    priority: int | None
    group: str | None
    reason: str | None
    """Why it was last dead-lettered: a reason of docs/dead-letters.md in lower case."""
    source: str | None
    """The queue it was last dead-lettered from."""
    error_contains: str | None
    created_from_ms: int | None
    created_before_ms: int | None
    deliveries_min: int | None
    headers: dict[str, Any] | None


class BrowsingCalls(Calls):
    def browse(
        self,
        queue: str,
        *,
        state: Literal["ready", "scheduled", "in_flight", "dead"] | None = None,
        page_size: int = PAGE_SIZE,
        bodies: bool = True,
        **filters: Unpack[Filters],
    ) -> Pages[Message]:
        """The messages of a queue, in any state or in one, in the order in which they were published; changes nothing.

        An iterator that fetches `page_size` at a time; with `bodies` False without bodies. Returns those that pass all
        filters: `priority`, `group`, `reason` and `source` of their last dead-lettering, `error_contains`,
        `created_from_ms`, `created_before_ms`, `deliveries_min`, `headers`.
        """
        return self._pages("queue.browse", queue, page_size, state=state, bodies=bodies, **filters)

    async def peek(self, queue: str, limit: int = 1) -> list[Message]:
        """The messages that would be received next, up to `limit`; changes nothing."""
        return (await self._ask("queue.peek", Page, is_repeatable=True, queue=queue, limit=limit, raw=True)).messages

    async def get(self, queue: str, message_id: str) -> Message:
        """One message by its id, in any state: of the queue, or of its dead letters, in whichever queue those are.
        Raises `MessageNotFound`."""
        return await self._ask("queue.get", Message, is_repeatable=True, queue=queue, message_id=message_id, raw=True)

    def dead_letters(
        self,
        queue: str,
        *,
        kept_in: str | None = None,
        page_size: int = PAGE_SIZE,
        bodies: bool = True,
        **filters: Unpack[Filters],
    ) -> Pages[Message]:
        """The dead letters of a queue, parked or in its present dead-letter queue; of a dead-letter queue, all its
        messages.

        If the queue had another dead-letter queue before, name that in `kept_in` to see those that went there. An
        iterator with the pages and filters of `browse`.
        """
        return self._pages("dlq.list", queue, page_size, kept_in=kept_in, bodies=bodies, **filters)

    async def dead_letter_places(self, queue: str) -> list[str]:
        """The queues that `dead_letters` searches for those of a queue, the first hundred of them."""
        answer = await self._ask("dlq.list", SearchedQueues, is_repeatable=True, queue=queue, limit=1, bodies=False)
        return answer.looked_in

    async def redrive(
        self,
        queue: str,
        *,
        message_ids: Sequence[str] | None = None,
        kept_in: str | None = None,
        to: str | None = None,
        limit: int | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
        **filters: Unpack[Filters],
    ) -> int:
        """Send a queue's dead letters back to the queue they came from, or to queue `to`; returns how many.

        Those named, those that pass the filters of `browse`, or all; at most `limit`, at a pace of `per_second`.
        `kept_in` is as in `dead_letters`. A dry run only counts. With `per_second` it goes on if the client goes.
        """
        answer = await self._ask(
            "dlq.retry",
            Redriven,
            is_repeatable=dry_run,
            queue=queue,
            message_ids=message_ids,
            kept_in=kept_in,
            to=to,
            limit=limit,
            per_second=per_second,
            dry_run=dry_run,
            **filters,
        )
        return answer.redriven

    async def start_redrive(
        self,
        queue: str,
        *,
        message_ids: Sequence[str] | None = None,
        kept_in: str | None = None,
        to: str | None = None,
        limit: int | None = None,
        per_second: float | None = None,
        **filters: Unpack[Filters],
    ) -> Redrive:
        """As `redrive`, without waiting for its end: it goes on by itself, also after a restart of the broker.

        Raises `RedriveRunning` while another one is running that may send back the same messages.
        """
        return await self._ask(
            "redrive.start",
            Redrive,
            queue=queue,
            message_ids=message_ids,
            kept_in=kept_in,
            to=to,
            limit=limit,
            per_second=per_second,
            **filters,
        )

    async def redrives(self, queue: str | None = None) -> list[Redrive]:
        """The redrives of a queue, or of all queues, that are running, and the latest ten of each queue that have
        ended; the newest first."""
        return await self._all("redrive.list", Redrives, "redrives", queue=queue)

    async def cancel_redrive(self, queue: str, job: str) -> Redrive:
        """End a redrive; what it has sent back stays there."""
        return await self._ask("redrive.cancel", Redrive, queue=queue, job=job)

    async def purge_dead_letters(
        self,
        queue: str,
        *,
        message_ids: Sequence[str] | None = None,
        kept_in: str | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Delete a queue's dead letters: those named, those that pass the filters of `browse`, or all; returns how
        many. `kept_in` is as in `dead_letters`."""
        answer = await self._ask("dlq.purge", Purged, queue=queue, message_ids=message_ids, kept_in=kept_in, **filters)
        return answer.purged

    def scheduled(
        self, queue: str, *, page_size: int = PAGE_SIZE, bodies: bool = True, **filters: Unpack[Filters]
    ) -> Pages[Message]:
        """The scheduled messages of a queue, including those that wait for a retry.

        An iterator with the pages and filters of `browse`.
        """
        return self._pages("scheduled.list", queue, page_size, bodies=bodies, **filters)

    async def reschedule(
        self, queue: str, message_id: str, *, deliver_at_ms: int | None = None, delay_ms: int | None = None
    ) -> None:
        """Change when a scheduled message becomes ready: an instant, or a delay from now."""
        await self._ask(
            "scheduled.change",
            Done,
            is_repeatable=delay_ms is None,
            queue=queue,
            message_id=message_id,
            deliver_at_ms=deliver_at_ms,
            delay_ms=delay_ms,
        )

    async def delete_message(self, queue: str, message_id: str) -> None:
        """Delete one message of a queue, or of its dead letters, in any state; a consumer that holds it finds its
        receipt stale."""
        await self._ask("queue.delete_message", Done, queue=queue, message_id=message_id)

    async def cancel_scheduled(self, queue: str, message_id: str) -> None:
        """Delete a scheduled message."""
        await self._ask("scheduled.cancel", Done, queue=queue, message_id=message_id)

    def _pages(self, command: str, queue: str, page_size: int, **fields: Any) -> Pages[Message]:
        async def fetch(after: int | str | None) -> tuple[list[Message], int | str | None]:
            page = await self._ask(
                command, Page, is_repeatable=True, queue=queue, limit=page_size, after=after, raw=True, **fields
            )
            return page.messages, page.after

        return Pages(fetch)
