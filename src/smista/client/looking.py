"""Calls that look at messages, and those for dead letters and the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack

from smista.client.answers import Done, LookedIn, Purged, Redriven
from smista.client.calls import Calls
from smista.client.message import Message
from smista.client.pages import Page, Pages

PAGE_SIZE = 100


class Filters(TypedDict, total=False):
    """What the messages wanted must be like; what is not given is left open."""

    priority: int | None
    group: str | None
    reason: str | None
    """Why it last died: a reason of docs/dead-letters.md in small letters."""
    source: str | None
    """The queue it last died in."""
    error_contains: str | None
    created_from_ms: int | None
    created_before_ms: int | None
    deliveries_min: int | None
    headers: dict[str, Any] | None


class LookingCalls(Calls):
    def browse(
        self,
        queue: str,
        *,
        state: Literal["ready", "scheduled", "in_flight", "dead"] | None = None,
        page_size: int = PAGE_SIZE,
        bodies: bool = True,
        **filters: Unpack[Filters],
    ) -> Pages[Message]:
        """The messages of a queue, in any state or one, in the order in which they came in; nothing is changed.

        An iterator that fetches `page_size` at a time, with `bodies` False without bodies. Only those that all filters
        leave: `priority`, `group`, `reason` and `source` of their last death, `error_contains`, `created_from_ms`,
        `created_before_ms`, `deliveries_min`, `headers`.
        """
        return self._pages("queue.browse", queue, page_size, state=state, bodies=bodies, **filters)

    async def peek(self, queue: str, limit: int = 1) -> list[Message]:
        """The messages that would be received next, up to `limit`; nothing is changed."""
        return (await self._ask("queue.peek", Page, is_repeatable=True, queue=queue, limit=limit, raw=True)).messages

    async def get(self, queue: str, message_id: str) -> Message:
        """One message by its id, in whatever state it is: of the queue, or of its dead letters, wherever those are.
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
        """The messages that died in a queue, where they go now or parked; of a dead-letter queue, all that is in it.

        Those that went to another queue, before another target was named, are found where `kept_in` names it. An
        iterator; pages and filters are those of `browse`.
        """
        return self._pages("dlq.list", queue, page_size, kept_in=kept_in, bodies=bodies, **filters)

    async def dead_letter_places(self, queue: str) -> list[str]:
        """The queues in which `dead_letters` looks for those of a queue, the first hundred of them."""
        answer = await self._ask("dlq.list", LookedIn, is_repeatable=True, queue=queue, limit=1, bodies=False)
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
        """Send a queue's dead letters back to where they died, or to queue `to`; returns how many.

        Those named, those that the filters of `browse` leave, or all; at most `limit`, at a pace of `per_second`.
        `kept_in` is that of `dead_letters`. A dry run only counts.
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

    async def purge_dead_letters(
        self,
        queue: str,
        *,
        message_ids: Sequence[str] | None = None,
        kept_in: str | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Throw away a queue's dead letters: those named, those that the filters of `browse` leave, or all; returns how
        many. `kept_in` is that of `dead_letters`."""
        answer = await self._ask("dlq.purge", Purged, queue=queue, message_ids=message_ids, kept_in=kept_in, **filters)
        return answer.purged

    def scheduled(
        self, queue: str, *, page_size: int = PAGE_SIZE, bodies: bool = True, **filters: Unpack[Filters]
    ) -> Pages[Message]:
        """The messages of a queue whose time has not come, those that wait for a retry among them.

        An iterator; pages and filters are those of `browse`.
        """
        return self._pages("scheduled.list", queue, page_size, bodies=bodies, **filters)

    async def reschedule(
        self, queue: str, message_id: str, *, deliver_at_ms: int | None = None, delay_ms: int | None = None
    ) -> None:
        """Give a scheduled message another time: an instant, or so long from now."""
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
        """Remove one message of a queue, or of its dead letters, in whatever state it is; who holds it finds its
        receipt to be stale."""
        await self._ask("queue.delete_message", Done, queue=queue, message_id=message_id)

    async def cancel_scheduled(self, queue: str, message_id: str) -> None:
        """Remove a message whose time has not come."""
        await self._ask("scheduled.cancel", Done, queue=queue, message_id=message_id)

    def _pages(self, command: str, queue: str, page_size: int, **fields: Any) -> Pages[Message]:
        async def fetch(after: int | str | None) -> tuple[list[Message], int | str | None]:
            page = await self._ask(
                command, Page, is_repeatable=True, queue=queue, limit=page_size, after=after, raw=True, **fields
            )
            return page.messages, page.after

        return Pages(fetch)
