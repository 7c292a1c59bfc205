"""Publishing one message, to a queue or through an exchange."""

from __future__ import annotations

from typing import Annotated

import msgspec

from smista.errors import BrokerError
from smista.protocols.http.commands.base import Call, OwnCommand, command
from smista.protocols.http.commands.message_fields import MessageFields, publication, translate
from smista.service.fields import BatchId, Name
from smista.service.values import Published

EXTRA_KEYS_MAX = 10_000


class PublishedAnswer(msgspec.Struct, omit_defaults=True):
    message_id: str
    position: int
    """Its place in the queue: 1 is next. 0 for a duplicate."""
    duplicate: bool = False
    """It was there already, under the same deduplication id."""


def show_published(published: Published) -> PublishedAnswer:
    return PublishedAnswer(published.id, published.position, published.is_duplicate)


@command
class Publish(MessageFields, OwnCommand[PublishedAnswer], kw_only=True, changes=True):
    """Publish a message to a queue; answered when it is on disk."""

    name = "queue.publish"

    queue: Name

    async def carry_out(self, call: Call) -> PublishedAnswer:
        await translate(self, call, self.queue)
        one = publication(self, call.request_format)
        call.begun()
        [result] = await call.session.publish(self.queue, [one])
        if isinstance(result, BrokerError):
            raise result
        return show_published(result)


class Routed(msgspec.Struct, omit_defaults=True):
    queue: str
    message_id: str
    position: int
    duplicate: bool = False


class RoutedAnswer(msgspec.Struct):
    routed: list[Routed]
    """One per queue it reached; none when no binding matched."""


@command
class PublishToExchange(MessageFields, OwnCommand[RoutedAnswer], kw_only=True, changes=True):
    """Publish through an exchange: stored in every queue it leads to, or in none."""

    name = "exchange.publish"

    exchange: Annotated[str, msgspec.Meta(max_length=255)]
    routing_key: Annotated[str, msgspec.Meta(max_length=255)] = ""
    extra_keys: Annotated[list[str], msgspec.Meta(max_length=EXTRA_KEYS_MAX)] = msgspec.field(default_factory=list)
    batch_id: BatchId | None = None
    """Sent again under the same one, it is not stored again. Unlike `deduplication_id` it is nothing of the message."""

    async def carry_out(self, call: Call) -> RoutedAnswer:
        await translate(self, call)
        one = publication(self, call.request_format, exchange=self.exchange, routing_key=self.routing_key)
        call.begun()
        results = await call.session.publish_to_exchange(
            self.exchange,
            one,
            headers=self.headers,
            extra_keys=self.extra_keys,
            batch_id=self.batch_id,
        )
        return RoutedAnswer([Routed(one.queue, one.id, one.position, one.is_duplicate) for one in results])
