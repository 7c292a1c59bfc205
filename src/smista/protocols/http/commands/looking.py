"""Looking at messages without touching them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from smista.core.message import Message
from smista.engine import Broker, Filter, Page, Reason, State
from smista.protocols import properties
from smista.protocols.http.commands.base import (
    SHOWN_AT_ONCE,
    After,
    Command,
    Door,
    Milliseconds,
    Name,
    PageSize,
    command,
)
from smista.protocols.http.dead_letter_places import place_of
from smista.protocols.http.messages import MessageView, fold, show_message

PAGE_BYTES_MAX = 16 << 20
"""Of bodies and headers on one page: large ones make it shorter."""
ReasonName = Literal[
    "nacked",
    "timed_out",
    "released",
    "vanished",
    "max_retries",
    "rejected",
    "expired",
    "overflow",
    "redriven",
    "retired",
    "cancelled",
    "damaged",
]


class MessagePage(msgspec.Struct):
    messages: list[MessageView]
    after: int | None = None
    """Where the next page starts; null when this was the last."""


class Filtered(Command):
    """What the messages wanted must be like; what is absent is left open."""

    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    group: str | None = None
    reason: ReasonName | None = None
    source: str | None = None
    error_contains: str | None = None
    created_from_ms: Milliseconds | None = None
    created_before_ms: Milliseconds | None = None
    deliveries_min: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] | None = None
    headers: dict[str, Any] | None = None

    def filter(self, **more: Any) -> Filter:
        fields: dict[str, Any] = {
            "priority": self.priority,
            "group": self.group,
            "reason": None if self.reason is None else Reason[self.reason.upper()],
            "source": self.source,
            "error_contains": self.error_contains,
            "created_from_ms": self.created_from_ms,
            "created_before_ms": self.created_before_ms,
            "deliveries_min": self.deliveries_min,
            "matches": None if self.headers is None else self._has_headers,
        }
        return Filter(**(fields | more))

    def _has_headers(self, message: Message) -> bool:
        said = properties.read(message.envelope.properties).headers
        return all(said.get(name) == value for name, value in (self.headers or {}).items())


class Paged(Filtered, kw_only=True):
    """What a page of messages is asked for with."""

    after: After = 0
    limit: PageSize = 100
    bodies: bool = True
    raw: bool = False

    async def browse(self, broker: Broker, queue: str, wanted: Filter) -> Page:
        page = await broker.browse(
            queue, wanted, after=self.after, limit=self.limit, with_bodies=False, namespace=self.namespace
        )
        size, count = 0, 0
        for message in page.messages:
            size += len(message.envelope.properties) + (message.body_bytes if self.bodies else 0)
            if count and size > PAGE_BYTES_MAX:
                break
            count += 1
        if not self.bodies and count < len(page.messages):
            page = Page(page.messages[:count], page.messages[count - 1].sequence)
        if not self.bodies or not page.messages:
            return page
        limit = self.limit if count == len(page.messages) else count
        return await broker.browse(queue, wanted, after=self.after, limit=limit, namespace=self.namespace)


def show(door: Door, message: Message, queue: str, *, raw: bool, bodies: bool = True) -> MessageView:
    message_id = door.broker.ids.message_id(message.number, message.created_at_ms)
    return show_message(message, message_id, queue, door.answer_format, raw=raw, with_body=bodies)


async def show_all(
    door: Door, found: Sequence[tuple[str, Message]], *, raw: bool, bodies: bool = True
) -> list[MessageView]:
    """Messages with the queues they are in, shown some at a time: ten thousand take a tenth of a second."""
    views: list[MessageView] = []
    async for queue, message in door.broker.lane.in_turns(found, SHOWN_AT_ONCE):
        view = show(door, message, queue, raw=raw, bodies=bodies)
        fold(view, message.envelope, door.answer_format)
        views.append(view)
    return views


@command
class Peek(Command):
    """The messages that would be received next."""

    name: ClassVar[str] = "queue.peek"
    answer: ClassVar[Any] = MessagePage

    queue: Name
    limit: PageSize = 1
    raw: bool = False

    async def run(self, door: Door) -> MessagePage:
        messages = await door.broker.peek(self.queue, self.limit, namespace=self.namespace)
        return MessagePage(await show_all(door, [(self.queue, message) for message in messages], raw=self.raw))


@command
class Browse(Paged, kw_only=True):
    """A page of messages, in any state or one."""

    name: ClassVar[str] = "queue.browse"
    answer: ClassVar[Any] = MessagePage

    queue: Name
    state: Literal["ready", "scheduled", "in_flight", "dead"] | None = None

    async def run(self, door: Door) -> MessagePage:
        wanted = self.filter(state=None if self.state is None else State[self.state.upper()])
        page = await self.browse(door.broker, self.queue, wanted)
        found = [(self.queue, message) for message in page.messages]
        return MessagePage(await show_all(door, found, raw=self.raw, bodies=self.bodies), page.after)


@command
class Get(Command):
    """One message by its id, in whatever state it is: of the queue, or of its dead letters."""

    name: ClassVar[str] = "queue.get"
    answer: ClassVar[Any] = MessageView

    queue: Name
    message_id: str
    raw: bool = False

    async def run(self, door: Door) -> MessageView:
        place = await place_of(door.broker, self.queue, self.message_id, self.namespace)
        message = await door.broker.get(place, self.message_id, namespace=self.namespace)
        return show(door, message, place, raw=self.raw)
