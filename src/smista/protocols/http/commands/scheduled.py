"""Messages whose time has not come: seeing, moving, cancelling them."""

from __future__ import annotations

from typing import Any, ClassVar

from smista.engine import FOREVER_MS, State
from smista.protocols.http.commands.base import Choice, Command, Door, Milliseconds, Name, Success, command
from smista.protocols.http.commands.looking import MessagePage, Paged, show_all


@command
class ListScheduled(Paged, kw_only=True):
    """A page of a queue's scheduled messages, in the order in which they came in."""

    name: ClassVar[str] = "scheduled.list"
    answer: ClassVar[Any] = MessagePage

    queue: Name

    async def run(self, door: Door) -> MessagePage:
        page = await self.browse(door.broker, self.queue, self.filter(state=State.SCHEDULED))
        found = [(self.queue, message) for message in page.messages]
        return MessagePage(await show_all(door, found, raw=self.raw, bodies=self.bodies), page.after)


@command
class ChangeScheduled(Command):
    """Give a scheduled message another due time."""

    name: ClassVar[str] = "scheduled.change"
    answer: ClassVar[Any] = Success
    choices: ClassVar[tuple[Choice, ...]] = (Choice(("deliver_at_ms", "delay_ms")),)

    queue: Name
    message_id: str
    deliver_at_ms: Milliseconds | None = None
    delay_ms: Milliseconds | None = None

    async def run(self, door: Door) -> Success:
        self.check_choices()
        due_at_ms = self.deliver_at_ms
        if due_at_ms is None:
            due_at_ms = min(door.broker.now_ms() + (self.delay_ms or 0), FOREVER_MS)
        await door.broker.reschedule(self.queue, self.message_id, due_at_ms, namespace=self.namespace)
        return Success()


@command
class CancelScheduled(Command):
    """Remove a message that has not become ready yet."""

    name: ClassVar[str] = "scheduled.cancel"
    answer: ClassVar[Any] = Success

    queue: Name
    message_id: str

    async def run(self, door: Door) -> Success:
        await door.broker.cancel_scheduled(self.queue, self.message_id, namespace=self.namespace)
        return Success()
