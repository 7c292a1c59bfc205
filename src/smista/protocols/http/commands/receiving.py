"""Receiving messages and settling them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from smista.errors import BrokerError, InvalidRequest
from smista.protocols.http.commands.base import SHOWN_AT_ONCE, Call, OwnCommand, Seconds, command
from smista.protocols.http.errors import ErrorBody, error_body
from smista.protocols.http.messages import MessageView, fold, show_delivery
from smista.service.fields import Choice, Milliseconds, Name
from smista.service.values import Delivery, Receipt

READ_AT_ONCE = 2_000
"""So many receipts are read in one turn of the loop."""
Limit = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
ConsumerName = Annotated[str, msgspec.Meta(max_length=255)]


class NoMessage(msgspec.Struct):
    message_id: None = None
    message: None = None


class Messages(msgspec.Struct):
    messages: list[MessageView]


def show_received(delivery: Delivery, queue: str, call: Call, *, raw: bool = False) -> MessageView:
    view = show_delivery(delivery, queue, call.answer_format, raw=raw)
    view.receipt = delivery.receipt_text
    return view


async def show_all_received(
    deliveries: Sequence[Delivery], queue: str, call: Call, *, raw: bool = False
) -> list[MessageView]:
    """Some at a time, and of several no headers are kept unfolded: they take many times what they take as text. What
    was for somebody who goes meanwhile is released."""
    views: list[MessageView] = []
    try:
        async for delivery in call.fair_turns.in_turns(deliveries, SHOWN_AT_ONCE):
            view = show_received(delivery, queue, call, raw=raw)
            if len(deliveries) > 1:
                fold(view, delivery.envelope, call.answer_format)
            views.append(view)
    except asyncio.CancelledError:
        call.session.give_back([delivery.receipt for delivery in deliveries])
        raise
    return views


@command
class Consume(OwnCommand[MessageView | NoMessage | Messages], changes=True, at_once=False, waits="timeout"):
    """Take the next message under a lease."""

    name = "queue.consume"

    queue: Name
    timeout: Annotated[float, msgspec.Meta(ge=0, le=20)] = 0
    ack_deadline: Seconds | None = None
    prefetch: Limit | None = None
    consumer: ConsumerName = ""

    async def carry_out(self, call: Call) -> MessageView | NoMessage | Messages:
        deliveries = await call.session.receive(
            self.queue,
            self.prefetch or 1,
            wait_ms=round(self.timeout * 1000),
            lease_ms=None if self.ack_deadline is None else round(self.ack_deadline * 1000),
            consumer=self.consumer,
        )
        views = await show_all_received(deliveries, self.queue, call)
        if self.prefetch is not None:
            return Messages(views)
        return views[0] if views else NoMessage()


@command
class Receive(OwnCommand[Messages], changes=True, at_once=False, waits="wait_ms"):
    """Take up to `limit` messages under a lease, waiting for the first if there is none."""

    name = "queue.receive"

    queue: Name
    limit: Limit = 1
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=20_000)] = 0
    lease_ms: Milliseconds | None = None
    consumer: ConsumerName = ""
    raw: bool = False

    async def carry_out(self, call: Call) -> Messages:
        deliveries = await call.session.receive(
            self.queue,
            self.limit,
            wait_ms=self.wait_ms,
            lease_ms=self.lease_ms,
            consumer=self.consumer,
        )
        return Messages(await show_all_received(deliveries, self.queue, call, raw=self.raw))


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


class Settle(OwnCommand[Settled], changes=True):
    """What names deliveries: a receipt, several, or a queue and a message id, for whoever holds the message now."""

    choices = (Choice(("receipt", "receipts", "message_id")),)

    queue: Name | None = None
    message_id: str | None = None
    receipt: str | None = None
    receipts: Annotated[list[str], msgspec.Meta(max_length=10_000)] | None = None

    async def named(self, call: Call) -> list[Receipt | BrokerError]:
        self.check_choices()
        if self.message_id is not None:
            if self.queue is None:
                raise InvalidRequest("The field `queue`, which `message_id` needs, is missing; give it.")
            return [await call.session.receipt_of(self.queue, self.message_id)]
        if self.receipt is not None:
            return [call.session.receipt(self.receipt)]
        named: list[Receipt | BrokerError] = []
        async for text in call.fair_turns.in_turns(self.receipts or (), READ_AT_ONCE):
            try:
                named.append(call.session.receipt(text))
            except BrokerError as error:
                named.append(error)
        return named

    async def settled(self, call: Call, named: list[Receipt | BrokerError], outcomes: Sequence[object]) -> Settled:
        """The answer, from what came of those receipts that could be read."""
        came = iter(outcomes)
        results = [one if isinstance(one, BrokerError) else next(came) for one in named]
        errors = [one for one in results if isinstance(one, BrokerError)]
        if self.receipts is None:
            if errors:
                raise errors[0]
            return Settled(success=True, action=common_action(results))
        shown = [show_outcome(one) async for one in call.fair_turns.in_turns(results, READ_AT_ONCE)]
        return Settled(success=not errors, action=common_action(results), results=shown)


def give_back(answer: object, call: Call) -> None:
    """What was received for a client that had gone by then returns to its place, unless the broker is at its end."""
    views = answer.messages if isinstance(answer, Messages) else [answer]
    texts = [view.receipt for view in views if isinstance(view, MessageView) and isinstance(view.receipt, str)]
    call.session.give_back([call.session.receipt(text) for text in texts])


def readable(named: list[Receipt | BrokerError]) -> list[Receipt]:
    return [one for one in named if isinstance(one, Receipt)]


@command
class Acknowledge(Settle):
    """These deliveries succeeded: their messages are done."""

    name = "queue.ack"

    async def carry_out(self, call: Call) -> Settled:
        named = await self.named(call)
        return await self.settled(call, named, await call.session.acknowledge(readable(named)))


@command
class Nack(Settle):
    """These deliveries failed: retried after a back-off, or dead letters."""

    name = "queue.nack"

    requeue: bool = True
    delay_ms: Milliseconds | None = None
    error: str = ""

    async def carry_out(self, call: Call) -> Settled:
        named = await self.named(call)
        outcomes = await call.session.nack(
            readable(named), requeue=self.requeue, delay_ms=self.delay_ms, error=self.error
        )
        return await self.settled(call, named, outcomes)


@command
class Release(Settle):
    """Back to their places, not counted as failures."""

    name = "queue.release"

    async def carry_out(self, call: Call) -> Settled:
        named = await self.named(call)
        return await self.settled(call, named, await call.session.release(readable(named)))


@command
class Extend(Settle, kw_only=True):
    """The leases now end `lease_ms` from now."""

    name = "queue.extend"

    lease_ms: Milliseconds

    async def carry_out(self, call: Call) -> Settled:
        named = await self.named(call)
        return await self.settled(call, named, await call.session.extend(readable(named), self.lease_ms))
