"""Looking at messages, changing scheduled ones, and moving or removing what a filter finds, on a running broker.

What is found in one turn of the loop is looked up again in the next: it may have left its queue, or gone with it.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator

from smista.core import browsing, dead_letters, receiving, settling
from smista.core.browsing import ANY, Filter
from smista.core.errors import InvalidArgument, MessageNotFound, QueueDeleted, QueueFull, QueueNotFound
from smista.core.message import Message, Reason, State
from smista.core.queue import Queue
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.consumers import RECEIVED_BYTES_MAX
from smista.engine.publishing import PublishingBroker
from smista.engine.running import SLICE

LOOKED_AT_ONCE = 1000
"""How many messages of a queue are looked at before the rest of the loop has its turn; or a tenth as many changed."""
LOOKED_AT_FIRST = 100
"""And how many are looked at or changed before that is first done: very many may begin in the same turn. What is no
more than this is done in the step in which it is asked for."""
PAGE_SLICES = 200
PAGE_LOOKED_AT = 20_000
"""In how many turns, and at how many messages, is looked for one page, which may then be short."""


class LookingBroker(PublishingBroker):
    # -- looking ------------------------------------------------------------------------------------------------------

    async def browse(
        self,
        queue: str,
        wanted: Filter = ANY,
        *,
        after: int = 0,
        limit: int = 100,
        with_bodies: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> browsing.Page:
        """A page of messages in any state, nothing changed. Pass the page's `after` on for the next one."""
        self._enter_within_limits()
        source = self._state.queue(queue, namespace)
        page = browsing.browse(source, wanted, after=after, limit=limit, looked_at_max=LOOKED_AT_FIRST)
        found, looked_at = page.messages, page.looked_at
        for _ in range(PAGE_SLICES):
            if page.after is None or len(found) == limit or looked_at >= PAGE_LOOKED_AT:
                break
            await self.lane.turn()
            page = browsing.browse(source, wanted, after=page.after, limit=limit - len(found))
            found += page.messages
            looked_at += page.looked_at
        return browsing.Page(await self._copies(found, with_bodies=with_bodies), page.after)

    async def peek(self, queue: str, limit: int = 1, *, namespace: str = DEFAULT_NAMESPACE) -> list[Message]:
        """The messages that would be received next, nothing changed. Where bodies are large, fewer."""
        self._enter_within_limits()
        source = self._state.queue(queue, namespace)
        return await self._copies(receiving.peek(source, limit, bytes_max=RECEIVED_BYTES_MAX))

    async def get(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Message:
        """One message by its id, in whatever state it is."""
        self._enter()
        source = self._state.queue(queue, namespace)
        messages = await self._copies([browsing.get(source, self._sequence(source, message_id))])
        if not messages:
            raise _not_found(source, message_id)
        return messages[0]

    def holds(self, queue: str, message_id: str, wanted: Filter = ANY, *, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """Whether a message is in the queue, and accepted by a filter."""
        try:
            message = self._find(self._state.queue(queue, namespace), message_id)
        except MessageNotFound:
            return False
        return wanted.accepts(message)

    # -- dead letters -------------------------------------------------------------------------------------------------

    async def redrive(
        self,
        queue: str,
        wanted: Filter = ANY,
        *,
        to: str | None = None,
        limit: int | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int:
        """Send dead letters back to where they came from, or to queue `to`; returns how many.

        What is in the queue when this starts, narrowed by `wanted` and `limit`; what is in flight is left alone, and
        so is what never died, unless `to` says where it shall go. A dry run only counts. `QueueFull` when a target
        takes no more, `QueueNotFound` when one is not there (any more); what was moved until then stays moved, and the
        error says how many that were.
        """
        self._enter()
        if per_second is not None and per_second <= 0:
            raise InvalidArgument(f"per_second is {per_second!r}; give a number above 0, or None for no limit.")
        source = self._state.queue(queue, namespace)
        target = None if to is None else self._state.queue(to, namespace)
        moved = 0
        async for message in self._matching(source, wanted):
            if limit is not None and moved >= limit:
                break
            if message.state not in (State.READY, State.DEAD) or not (message.deaths or target):
                continue
            if not dry_run:
                _check_there(target, moved)
                now_ms = self._enter()
                try:
                    is_moved = dead_letters.redrive(self._state, source, message, to=target, now_ms=now_ms) is not None
                except (QueueFull, QueueNotFound) as error:
                    raise type(error)(f"{error} {moved} messages had been moved.") from None
                self._after()
                if not is_moved:
                    continue
                if per_second is not None:
                    await asyncio.sleep(1 / per_second)
            moved += 1
        _check_there(source, moved)
        await self._keeper.durable()
        return moved

    async def discard(self, queue: str, wanted: Filter, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Remove what a filter accepts and nobody holds; returns how many messages that was."""
        self._enter()
        source = self._state.queue(queue, namespace)
        count = 0
        async for message in self._matching(source, wanted):
            if message.state is not State.IN_FLIGHT:
                dead_letters.discard(self._state, source, message, Reason.CANCELLED, now_ms=self._enter())
                self._after()
                count += 1
        await self._done_durably()
        return count

    async def _matching(self, queue: Queue, wanted: Filter) -> AsyncIterator[Message]:
        """What is in the queue now and is accepted by a filter when its turn comes, the rest of the loop in between.
        What has left the queue by then, or has gone with it, does not come."""
        after, cut = 0, self._state.next_sequence
        work, to_change = LOOKED_AT_ONCE - LOOKED_AT_FIRST, 0
        while sequences := browsing.sequences_after(queue, after, LOOKED_AT_ONCE):
            for after in sequences:
                if after >= cut:
                    return
                message = queue.find(after)
                work += 1 if message is None else wanted.effort(message)
                if message is not None and wanted.accepts(message):
                    work += to_change
                    yield message
                if work >= LOOKED_AT_ONCE:
                    work, to_change = 0, LOOKED_AT_ONCE // SLICE
                    await self.lane.turn()

    # -- scheduled ----------------------------------------------------------------------------------------------------

    async def reschedule(
        self, queue: str, message_id: str, due_at_ms: int, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Give a scheduled message another due time."""
        now_ms = self._enter()
        source = self._state.queue(queue, namespace)
        settling.reschedule(self._state, source, self._sequence(source, message_id), due_at_ms, now_ms=now_ms)
        await self._done_durably()

    async def cancel_scheduled(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Remove a message that has not become ready yet."""
        now_ms = self._enter()
        source = self._state.queue(queue, namespace)
        settling.cancel(self._state, source, self._sequence(source, message_id), now_ms=now_ms)
        await self._done_durably()

    # -- one message --------------------------------------------------------------------------------------------------

    async def delete_message(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Remove one message in whatever state it is: also one that a consumer holds, whose receipt is stale then."""
        now_ms = self._enter()
        source = self._state.queue(queue, namespace)
        settling.delete(self._state, source, self._find(source, message_id), now_ms=now_ms)
        await self._done_durably()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _sequence(self, queue: Queue, message_id: str) -> int:
        """Where the message with this id stands in the queue."""
        return self._find(queue, message_id).sequence

    def _find(self, queue: Queue, message_id: str) -> Message:
        """The message with this id: it stands in the queue under its number, unless it has moved.

        The time in the id tells it from a message that a crash made us forget and whose number was used again.
        """
        number, created_at_ms = self.ids.parse(message_id)
        moved = self._keeper.recorder.moved_messages.get(number)
        message = queue.find(number if moved is None else moved.sequence)
        if message is None or message.created_at_ms != created_at_ms:
            raise _not_found(queue, message_id)
        return message

    async def _copies(self, messages: list[Message], *, with_bodies: bool = True) -> list[Message]:
        """Copies that stay as they are, for somebody to look at; without bodies they have those that are in memory.
        What has left its queue meanwhile is left out."""
        copies: list[Message] = []
        async for some in self.lane.slices(messages, LOOKED_AT_ONCE):
            some = [message for message in some if self._is_in_its_queue(message)]
            if with_bodies and not self._keeper.are_at_hand(some):
                await self._keeper.fetch(some)
                some = [message for message in some if self._is_in_its_queue(message)]
            copies += [copy.copy(message) for message in some]
            self._keeper.handed_over(some)
        return copies


def _not_found(queue: Queue, message_id: str) -> MessageNotFound:
    return MessageNotFound(f"Queue {queue.name!r} has no message {message_id}; it may have been settled or moved.")


def _check_there(queue: Queue | None, moved: int) -> None:
    """Look at a queue again that was found before others had their turn."""
    if queue is not None and queue.is_deleted:
        raise QueueDeleted(f"Queue {queue.name!r} was deleted after {moved} messages had been moved.")
