"""Messages whose time has not come: seeing, moving, cancelling them."""

from __future__ import annotations

from smista.engine import FOREVER_MS, State
from smista.service.command import Command
from smista.service.context import Context
from smista.service.fields import Choice, Milliseconds, Name, Success
from smista.service.filters import Found, MessagePage, Paged
from smista.service.permission import Permission


class ListScheduled(Paged, Command[MessagePage], kw_only=True, needs=Permission.READ.on("queue")):
    """A page of a queue's scheduled messages, in the order in which they came in."""

    name = "scheduled.list"

    queue: Name

    async def run(self, context: Context) -> MessagePage:
        page = await self.browse(context.broker, self.queue, self.wanted(state=State.SCHEDULED), context.namespace)
        return MessagePage([Found(self.queue, message) for message in page.messages], page.after)


class ChangeScheduled(Command[Success], needs=Permission.CONFIGURE.on("queue"), changes=True):
    """Give a scheduled message another due time."""

    name = "scheduled.change"
    choices = (Choice(("deliver_at_ms", "delay_ms")),)

    queue: Name
    message_id: str
    deliver_at_ms: Milliseconds | None = None
    delay_ms: Milliseconds | None = None

    async def run(self, context: Context) -> Success:
        self.check_choices()
        due_at_ms = self.deliver_at_ms
        if due_at_ms is None:
            due_at_ms = min(context.broker.now_ms() + (self.delay_ms or 0), FOREVER_MS)
        await context.broker.messages.reschedule(self.queue, self.message_id, due_at_ms, namespace=context.namespace)
        return Success()


class CancelScheduled(Command[Success], needs=Permission.CONFIGURE.on("queue"), changes=True):
    """Remove a message that has not become ready yet."""

    name = "scheduled.cancel"

    queue: Name
    message_id: str

    async def run(self, context: Context) -> Success:
        await context.broker.messages.cancel(self.queue, self.message_id, namespace=context.namespace)
        return Success()
