"""One message of a running broker, named by its id: given another due time, or removed."""

from __future__ import annotations

from smista.core import settling
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.running import Running


class Messages:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state

    async def reschedule(
        self, queue: str, message_id: str, due_at_ms: int, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Give a scheduled message another due time."""
        now_ms = self._running.enter()
        source = self._state.queue(queue, namespace)
        settling.reschedule(
            self._state, source, self._running.find(source, message_id).sequence, due_at_ms, now_ms=now_ms
        )
        await self._running.done_durably()

    async def cancel(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Remove a message that has not become ready yet."""
        now_ms = self._running.enter()
        source = self._state.queue(queue, namespace)
        settling.cancel(self._state, source, self._running.find(source, message_id).sequence, now_ms=now_ms)
        await self._running.done_durably()

    async def delete(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Remove one message in whatever state it is: also one that a consumer holds, whose receipt is stale then."""
        now_ms = self._running.enter()
        source = self._state.queue(queue, namespace)
        settling.delete(self._state, source, self._running.find(source, message_id), now_ms=now_ms)
        await self._running.done_durably()
