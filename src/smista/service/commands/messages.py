"""Messages of a queue: browsing them without taking them, and removing one."""

from __future__ import annotations

from typing import Literal

from smista.engine import State
from smista.service.command import Command
from smista.service.context import Context
from smista.service.dead_letter_places import place_of
from smista.service.fields import Name, PageSize, Success
from smista.service.filters import Found, MessagePage, Paged
from smista.service.permission import Permission


class PeekMessages(Command[MessagePage], needs=Permission.READ.on("queue")):
    """The messages that would be received next."""

    name = "queue.peek"

    queue: Name
    limit: PageSize = 1

    async def run(self, context: Context) -> MessagePage:
        messages = await context.broker.browsing.peek(self.queue, self.limit, namespace=context.namespace)
        return MessagePage([Found(self.queue, message) for message in messages])


class BrowseMessages(Paged, Command[MessagePage], kw_only=True, needs=Permission.READ.on("queue")):
    """A page of messages, in any state or one."""

    name = "queue.browse"

    queue: Name
    state: Literal["ready", "scheduled", "in_flight", "dead"] | None = None

    async def run(self, context: Context) -> MessagePage:
        wanted = self.wanted(state=None if self.state is None else State[self.state.upper()])
        page = await self.browse(context.broker, self.queue, wanted, context.namespace)
        return MessagePage([Found(self.queue, message) for message in page.messages], page.after)


class GetMessage(Command[Found], needs=Permission.READ.on("queue")):
    """One message by its id, in whatever state it is: of the queue, or of its dead letters."""

    name = "queue.get"

    queue: Name
    message_id: str

    async def run(self, context: Context) -> Found:
        broker, namespace = context.broker, context.namespace
        place = await place_of(broker, self.queue, self.message_id, namespace)
        return Found(place, await broker.browsing.get(place, self.message_id, namespace=namespace))


class DeleteMessage(Command[Success], needs=Permission.CONFIGURE.on("queue"), changes=True):
    """Remove one message of a queue, or of its dead letters, by its id, in whatever state it is; whoever holds it finds
    its receipt to be stale."""

    name = "queue.delete_message"

    queue: Name
    message_id: str

    async def run(self, context: Context) -> Success:
        broker, namespace = context.broker, context.namespace
        place = await place_of(broker, self.queue, self.message_id, namespace)
        await broker.messages.delete(place, self.message_id, namespace=namespace)
        return Success()
