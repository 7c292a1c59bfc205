"""Receiving, and saying what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from smista.core.errors import InvalidArgument
from smista.engine import Delivery, Receipt
from smista.errors import BrokerError
from smista.protocols.http.commands.base import (
    SHOWN_AT_ONCE,
    Choice,
    Command,
    Door,
    Milliseconds,
    Name,
    Seconds,
    Success,
    command,
)
from smista.protocols.http.dead_letter_places import place_of
from smista.protocols.http.errors import ErrorBody, InvalidRequest, error_body
from smista.protocols.http.messages import MessageView, fold, show_delivery

READ_AT_ONCE = 2_000
"""So many receipts are read in one turn of the loop."""
Limit = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
ConsumerName = Annotated[str, msgspec.Meta(max_length=255)]


class NoMessage(msgspec.Struct):
    message_id: None = None
    message: None = None


class Messages(msgspec.Struct):
    messages: list[MessageView]


def show_received(delivery: Delivery, queue: str, door: Door, *, raw: bool = False) -> MessageView:
    view = show_delivery(delivery, door.answer_format, raw=raw)
    view.queue = queue
    view.receipt = delivery.receipt_text
    return view


async def show_all_received(
    deliveries: Sequence[Delivery], queue: str, door: Door, *, raw: bool = False
) -> list[MessageView]:
    """Some at a time, and of several no headers are kept unfolded: they take many times what they take as text. What
    was for somebody who goes meanwhile is released."""
    views: list[MessageView] = []
    try:
        async for delivery in door.broker.lane.in_turns(deliveries, SHOWN_AT_ONCE):
            view = show_received(delivery, queue, door, raw=raw)
            if len(deliveries) > 1:
                fold(view, delivery.envelope, door.answer_format)
            views.append(view)
    except asyncio.CancelledError:
        if door.broker.failure is None and not door.broker.is_closed:
            door.broker.release_now([delivery.receipt for delivery in deliveries])
        raise
    return views


@command
class Consume(Command):
    """Take the next message under a lease."""

    name: ClassVar[str] = "queue.consume"
    answer: ClassVar[Any] = (MessageView, NoMessage, Messages)

    queue: Name
    timeout: Annotated[float, msgspec.Meta(ge=0, le=20)] = 0
    ack_deadline: Seconds | None = None
    prefetch: Limit | None = None
    consumer: ConsumerName = ""

    async def run(self, door: Door) -> MessageView | NoMessage | Messages:
        if self.prefetch is not None:
            most = door.broker.queue_settings(self.queue, namespace=self.namespace).max_prefetch
            if self.prefetch > most:
                raise InvalidArgument(f"prefetch is {self.prefetch}; queue {self.queue!r} allows 1 to {most}.")
        deliveries = await door.broker.receive(
            self.queue,
            self.prefetch or 1,
            wait_ms=round(self.timeout * 1000),
            lease_ms=None if self.ack_deadline is None else round(self.ack_deadline * 1000),
            consumer=self.consumer,
            namespace=self.namespace,
        )
        views = await show_all_received(deliveries, self.queue, door)
        if self.prefetch is not None:
            return Messages(views)
        return views[0] if views else NoMessage()


@command
class Receive(Command):
    """Take up to `limit` messages under a lease, waiting for the first if there is none."""

    name: ClassVar[str] = "queue.receive"
    answer: ClassVar[Any] = Messages

    queue: Name
    limit: Limit = 1
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=20_000)] = 0
    lease_ms: Milliseconds | None = None
    consumer: ConsumerName = ""
    raw: bool = False

    async def run(self, door: Door) -> Messages:
        deliveries = await door.broker.receive(
            self.queue,
            self.limit,
            wait_ms=self.wait_ms,
            lease_ms=self.lease_ms,
            consumer=self.consumer,
            namespace=self.namespace,
        )
        return Messages(await show_all_received(deliveries, self.queue, door, raw=self.raw))


Action = Literal["requeued", "dead_lettered"]
"""What a nack leads to."""


class Result(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What came of one delivery of several."""

    action: Action | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET


class Settled(msgspec.Struct, omit_defaults=True, kw_only=True):
    success: bool
    action: Action | UnsetType = UNSET
    """Of a nack, where it is the same for all."""
    results: list[Result | None] | UnsetType = UNSET
    """Per receipt why it had no effect, or null; of a nack the action instead of null."""


def common_action(outcomes: Sequence[object]) -> Action | UnsetType:
    """What nacks have led to, where all led to the same."""
    if outcomes and outcomes.count(True) == len(outcomes):
        return "requeued"
    if outcomes and outcomes.count(False) == len(outcomes):
        return "dead_lettered"
    return UNSET


def show_outcome(outcome: object) -> Result | None:
    if isinstance(outcome, BrokerError):
        return Result(error=error_body(outcome))
    return None if outcome is None else Result(action=common_action([outcome]))


class Settle(Command):
    """What names deliveries: a receipt, several, or a queue and a message id, for whoever holds the message now."""

    choices: ClassVar[tuple[Choice, ...]] = (Choice(("receipt", "receipts", "message_id")),)

    queue: Name | None = None
    message_id: str | None = None
    receipt: str | None = None
    receipts: Annotated[list[str], msgspec.Meta(max_length=10_000)] | None = None

    async def named(self, door: Door) -> list[Receipt | BrokerError]:
        self.check_choices()
        if self.message_id is not None:
            if self.queue is None:
                raise InvalidRequest("The field `queue`, which `message_id` needs, is missing; give it.")
            return [door.broker.receipt_for(self.queue, self.message_id, namespace=self.namespace)]
        if self.receipt is not None:
            return [door.broker.receipt(self.receipt)]
        named: list[Receipt | BrokerError] = []
        async for text in door.broker.lane.in_turns(self.receipts or (), READ_AT_ONCE):
            try:
                named.append(door.broker.receipt(text))
            except BrokerError as error:
                named.append(error)
        return named

    async def settled(self, door: Door, named: list[Receipt | BrokerError], outcomes: Sequence[object]) -> Settled:
        """The answer, from what came of those receipts that could be read."""
        came = iter(outcomes)
        results = [one if isinstance(one, BrokerError) else next(came) for one in named]
        errors = [one for one in results if isinstance(one, BrokerError)]
        if self.receipts is None:
            if errors:
                raise errors[0]
            return Settled(success=True, action=common_action(results))
        shown = [show_outcome(one) async for one in door.broker.lane.in_turns(results, READ_AT_ONCE)]
        return Settled(success=not errors, action=common_action(results), results=shown)


def readable(named: list[Receipt | BrokerError]) -> list[Receipt]:
    return [one for one in named if isinstance(one, Receipt)]


@command
class Acknowledge(Settle):
    """These deliveries succeeded: their messages are done."""

    name: ClassVar[str] = "queue.ack"
    answer: ClassVar[Any] = Settled

    async def run(self, door: Door) -> Settled:
        named = await self.named(door)
        return await self.settled(door, named, await door.broker.acknowledge(readable(named)))


@command
class Nack(Settle):
    """These deliveries failed: retried after a back-off, or dead letters."""

    name: ClassVar[str] = "queue.nack"
    answer: ClassVar[Any] = Settled

    requeue: bool = True
    delay_ms: Milliseconds | None = None
    error: str = ""

    async def run(self, door: Door) -> Settled:
        named = await self.named(door)
        outcomes = await door.broker.nack(
            readable(named), requeue=self.requeue, delay_ms=self.delay_ms, error=self.error
        )
        return await self.settled(door, named, outcomes)


@command
class Release(Settle):
    """Back to their places, not counted as failures."""

    name: ClassVar[str] = "queue.release"
    answer: ClassVar[Any] = Settled

    async def run(self, door: Door) -> Settled:
        named = await self.named(door)
        return await self.settled(door, named, await door.broker.release(readable(named)))


@command
class Extend(Settle, kw_only=True):
    """The leases now end `lease_ms` from now."""

    name: ClassVar[str] = "queue.extend"
    answer: ClassVar[Any] = Settled

    lease_ms: Milliseconds

    async def run(self, door: Door) -> Settled:
        named = await self.named(door)
        return await self.settled(door, named, await door.broker.extend(readable(named), self.lease_ms))


@command
class DeleteMessage(Command):
    """Remove one message of a queue, or of its dead letters, by its id, in whatever state it is; whoever holds it finds
    its receipt to be stale."""

    name: ClassVar[str] = "queue.delete_message"
    answer: ClassVar[Any] = Success

    queue: Name
    message_id: str

    async def run(self, door: Door) -> Success:
        place = await place_of(door.broker, self.queue, self.message_id, self.namespace)
        await door.broker.delete_message(place, self.message_id, namespace=self.namespace)
        return Success()
