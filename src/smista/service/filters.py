"""Fields by which commands name some of a queue's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from smista.core.message import Message
from smista.engine import Page, Reason, Wanted
from smista.engine.interface import Engine
from smista.service.fields import After, Milliseconds, PageSize
from smista.service.plain_values import check_named

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


class Found(NamedTuple):
    """A message, and the queue that it is in."""

    queue: str
    message: Message


class MessagePage(NamedTuple):
    messages: Sequence[Found]
    after: int | None = None
    """Where the next page starts; None when this was the last."""


class Filtered(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
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

    def wanted(self, **more: Any) -> Wanted:
        check_named("headers", self.headers or {})
        fields = {
            "priority": self.priority,
            "group": self.group,
            "reason": None if self.reason is None else Reason[self.reason.upper()],
            "source": self.source,
            "error_contains": self.error_contains,
            "created_from_ms": self.created_from_ms,
            "created_before_ms": self.created_before_ms,
            "deliveries_min": self.deliveries_min,
            "headers": self.headers,
        }
        return Wanted(**(fields | more))


class Paged(Filtered, kw_only=True):
    """What a page of messages is asked for with."""

    after: After = 0
    limit: PageSize = 100
    bodies: bool = True

    async def browse(self, broker: Engine, queue: str, wanted: Wanted, namespace: str) -> Page:
        page = await broker.browsing.browse(
            queue, wanted, after=self.after, limit=self.limit, with_bodies=False, namespace=namespace
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
        return await broker.browsing.browse(queue, wanted, after=self.after, limit=limit, namespace=namespace)
