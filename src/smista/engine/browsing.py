"""Browsing a running broker: messages shown in any state, nothing changed.

What is found in one turn of the loop is looked up again in the next: it may have left its queue, or gone with it.
"""

from __future__ import annotations

import copy

from smista.core import browsing, receiving
from smista.core.browsing import ANY, Wanted
from smista.core.message import Message
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.poll import RECEIVED_BYTES_MAX
from smista.engine.running import Running, message_not_found
from smista.errors import MessageNotFound

LOOKED_AT_ONCE = 1000
"""How many messages of a queue are looked at before the rest of the loop has its turn; or a tenth as many changed."""
LOOKED_AT_FIRST = 100
"""And how many are looked at or changed before that is first done: very many may begin in the same turn. What is no
more than this is done in the step in which it is asked for."""
PAGE_SLICES = 200
PAGE_LOOKED_AT = 20_000
"""In how many turns, and at how many messages, is looked for one page, which may then be short."""


class Browsing:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state
        self._keeper = running.keeper

    async def browse(
        self,
        queue: str,
        wanted: Wanted = ANY,
        *,
        after: int = 0,
        limit: int = 100,
        with_bodies: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> browsing.Page:
        """A page of messages in any state, nothing changed. Pass the page's `after` on for the next one."""
        self._running.enter_within_limits()
        source = self._state.queue(queue, namespace)
        read = self._state.read_routing
        page = browsing.browse(source, wanted, read, after=after, limit=limit, looked_at_max=LOOKED_AT_FIRST)
        found, looked_at = page.messages, page.looked_at
        for _ in range(PAGE_SLICES):
            if page.after is None or len(found) == limit or looked_at >= PAGE_LOOKED_AT:
                break
            await self._running.fair_turns.turn()
            page = browsing.browse(source, wanted, read, after=page.after, limit=limit - len(found))
            found += page.messages
            looked_at += page.looked_at
        return browsing.Page(await self._copies(found, with_bodies=with_bodies), page.after)

    async def peek(self, queue: str, limit: int = 1, *, namespace: str = DEFAULT_NAMESPACE) -> list[Message]:
        """The messages that would be received next, nothing changed. Where bodies are large, fewer."""
        self._running.enter_within_limits()
        source = self._state.queue(queue, namespace)
        return await self._copies(receiving.peek(source, limit, bytes_max=RECEIVED_BYTES_MAX))

    async def get(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Message:
        """One message by its id, in whatever state it is."""
        self._running.enter()
        source = self._state.queue(queue, namespace)
        messages = await self._copies([browsing.get(source, self._running.find(source, message_id).sequence)])
        if not messages:
            raise message_not_found(source, message_id)
        return messages[0]

    def holds(self, queue: str, message_id: str, wanted: Wanted = ANY, *, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """Whether a message is in the queue, and accepted by a filter."""
        try:
            message = self._running.find(self._state.queue(queue, namespace), message_id)
        except MessageNotFound:
            return False
        return wanted.accepts(message, self._state.read_routing)

    async def _copies(self, messages: list[Message], *, with_bodies: bool = True) -> list[Message]:
        """Copies that stay as they are, for somebody to look at; without bodies they have those that are in memory.
        What has left its queue meanwhile is left out."""
        copies: list[Message] = []
        async for some in self._running.fair_turns.slices(messages, LOOKED_AT_ONCE):
            some = [message for message in some if self._running.is_in_its_queue(message)]
            if with_bodies and not self._keeper.are_at_hand(some):
                await self._keeper.fetch(some)
                some = [message for message in some if self._running.is_in_its_queue(message)]
            copies += [copy.copy(message) for message in some]
            self._keeper.handed_over(some)
        return copies
