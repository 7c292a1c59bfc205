"""Browsing: the messages that the service finds, as HTTP shows them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from smista.protocols.http.commands.base import SHOWN_AT_ONCE, Call, command
from smista.protocols.http.messages import MessageView, fold, show_message
from smista.service.commands import dead_letters, messages, scheduled
from smista.service.filters import Found


class MessagePage(msgspec.Struct):
    messages: list[MessageView]
    after: int | None = None
    """Where the next page starts; null when this was the last."""


def show(call: Call, found: Found, *, raw: bool, bodies: bool = True) -> MessageView:
    message_id = call.session.message_id(found.message)
    return show_message(found.message, message_id, found.queue, call.answer_format, raw=raw, with_body=bodies)


async def show_all(call: Call, found: Sequence[Found], *, raw: bool, bodies: bool = True) -> list[MessageView]:
    """Messages with the queues they are in, shown some at a time: ten thousand take a tenth of a second."""
    views: list[MessageView] = []
    async for one in call.fair_turns.in_turns(found, SHOWN_AT_ONCE):
        view = show(call, one, raw=raw, bodies=bodies)
        fold(view, one.message.envelope, call.answer_format)
        views.append(view)
    return views


@command
class Peek(messages.PeekMessages):
    """The messages that would be received next."""

    answer = (MessagePage,)

    raw: bool = False

    async def carry_out(self, call: Call) -> MessagePage:
        page = await call.session.run(self)
        return MessagePage(await show_all(call, page.messages, raw=self.raw))


@command
class Browse(messages.BrowseMessages, kw_only=True):
    """A page of messages, in any state or one."""

    answer = (MessagePage,)

    raw: bool = False

    async def carry_out(self, call: Call) -> MessagePage:
        page = await call.session.run(self)
        return MessagePage(await show_all(call, page.messages, raw=self.raw, bodies=self.bodies), page.after)


@command
class Get(messages.GetMessage):
    """One message by its id, in whatever state it is: of the queue, or of its dead letters."""

    answer = (MessageView,)

    raw: bool = False

    async def carry_out(self, call: Call) -> MessageView:
        return show(call, await call.session.run(self), raw=self.raw)


@command
class ListScheduled(scheduled.ListScheduled, kw_only=True):
    """A page of a queue's scheduled messages, in the order in which they came in."""

    answer = (MessagePage,)

    raw: bool = False

    async def carry_out(self, call: Call) -> MessagePage:
        page = await call.session.run(self)
        return MessagePage(await show_all(call, page.messages, raw=self.raw, bodies=self.bodies), page.after)


class DeadLetterPage(msgspec.Struct):
    queue: str
    """The dead-letter queue; the queue itself where its dead letters are parked."""
    messages: list[MessageView]
    after: int | None = None
    looked_in: list[str] = []
    """The queues that were searched, the first hundred of them."""


@command
class ListDeadLetters(dead_letters.ListDeadLetters, kw_only=True):
    """A page of a queue's dead letters."""

    answer = (DeadLetterPage,)

    raw: bool = False

    async def carry_out(self, call: Call) -> DeadLetterPage:
        page = await call.session.run(self)
        shown = await show_all(call, page.messages, raw=self.raw, bodies=self.bodies)
        return DeadLetterPage(page.queue, shown, page.after, list(page.searched))
