"""An engine whose queues are elsewhere: what is submitted is done some turns later, in order, and answered later still.

So nothing that runs on it can rely on an answer that comes at once. It may lose some: then nobody knows
whether they were done, as when a connection breaks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from smista.core.message import Receipt
from smista.engine import Broker, Delivery, Subscription, interface
from smista.engine.interface import Engine
from smista.engine.tickets import PendingTicket, Ticket
from smista.errors import BrokerError, OutcomeUnknown

T = TypeVar("T")
TURNS = 3
"""A submission travels for so long, and so does its answer."""
Loses = Callable[[int], bool]


class Link:
    def __init__(self, loses_request: Loses, loses_answer: Loses) -> None:
        self._loses_request = loses_request
        self._loses_answer = loses_answer
        self._count = 0

    def submit(self, submit: Callable[[], Ticket[T]]) -> Ticket[T]:
        """Do it later. A lost request is never done; a lost answer was."""
        ticket: PendingTicket[T] = PendingTicket()
        self._count += 1
        number = self._count

        def arrived() -> None:
            if self._loses_request(number):
                _later(ticket.fail, OutcomeUnknown("the request was lost"))
            else:
                submit().when_done(answered)

        def answered(done: Ticket[T]) -> None:
            if self._loses_answer(number):
                _later(ticket.fail, OutcomeUnknown("the answer was lost"))
            elif done.error is not None:
                _later(ticket.fail, done.error)
            else:
                _later(ticket.answer, done.result())

        _later(arrived)
        return ticket


def _later(call: Callable[..., object], *arguments: object, turns: int = TURNS) -> None:
    loop = asyncio.get_running_loop()
    if turns:
        loop.call_soon(lambda: _later(call, *arguments, turns=turns - 1))
    else:
        call(*arguments)


async def _travel() -> None:
    arrived = asyncio.get_running_loop().create_future()
    _later(arrived.set_result, None)
    await arrived


class FarPart:
    """A part of an engine, elsewhere. What comes when, its protocol in the interface says: a ticket and a coroutine are
    done turns later and answered later still, and what nobody waits for is done turns later."""

    def __init__(self, protocol: type, near: Any, link: Link) -> None:
        self._protocol = protocol
        self._near = near
        self._link = link

    def __getattr__(self, name: str) -> Any:
        method, near, link = getattr(self._protocol, name), getattr(self._near, name), self._link
        match how_it_answers(method):
            case "ticket":
                return lambda *given, **options: link.submit(lambda: near(*given, **options))
            case "coroutine":
                return partial(_asked, near)
            case "not at all":
                return lambda *given, **options: _later(lambda: near(*given, **options))
        return near


async def _asked(near: Callable[..., Coroutine[Any, Any, T]], *given: Any, **options: Any) -> T:
    await _travel()
    try:
        return await near(*given, **options)
    finally:
        await _travel()


def how_it_answers(method: Callable[..., Any]) -> str:
    """A method of the interface: by a ticket, a coroutine, not at all, or at once."""
    returns = str(inspect.signature(method).return_annotation)
    if inspect.iscoroutinefunction(method):
        return "coroutine"
    return "ticket" if returns.startswith("Ticket[") else "not at all" if returns in ("None", "object") else "at once"


class FarSubscribing(FarPart):
    """Whoever subscribes has a name for the subscription at once; what it is delivered comes later."""

    def subscribe(
        self,
        queue: str,
        deliver: Callable[[list[Delivery]], None],
        *,
        ended: Callable[[BrokerError], None] = lambda error: None,
        **options: Any,
    ) -> Subscription:
        found: Subscription = self._near.subscribe(
            queue, partial(_later, deliver), ended=partial(_later, ended), **options
        )
        return found

    def leave_all(
        self, subscriptions: Sequence[Subscription], receipts: Sequence[Receipt], *, is_vanished: bool
    ) -> asyncio.Future[None]:
        async def leave() -> None:
            await _travel()
            rest = self._near.leave_all(subscriptions, receipts, is_vanished=is_vanished)
            if rest is not None:
                await rest
            await _travel()

        return asyncio.ensure_future(leave())


class FarEngine:
    def __init__(
        self,
        broker: Broker,
        *,
        loses_request: Loses = lambda number: False,
        loses_answer: Loses = lambda number: False,
    ) -> None:
        self._broker = broker
        self.link = link = Link(loses_request, loses_answer)
        self.ids = broker.ids
        self.catalog = broker.catalog
        self.surveying = broker.surveying
        self.intake = broker.intake
        self.log = broker.log
        self.statistics = broker.statistics
        self.staging = broker.staging
        self.background = broker.background
        self.fair_turns = broker.fair_turns
        self.now_ms = broker.now_ms
        self.read_routing_with = broker.read_routing_with
        self.durable = broker.durable
        self.publishing: interface.Publishing = FarPart(interface.Publishing, broker.publishing, link)
        self.settling: interface.Settling = FarPart(interface.Settling, broker.settling, link)
        self.receipts: interface.Receipts = FarPart(interface.Receipts, broker.receipts, link)
        self.receiving: interface.Receiving = FarPart(interface.Receiving, broker.receiving, link)
        self.subscribing: interface.Subscribing = FarSubscribing(interface.Subscribing, broker.subscribing, link)
        self.declaring: interface.Declaring = FarPart(interface.Declaring, broker.declaring, link)
        self.browsing: interface.Browsing = FarPart(interface.Browsing, broker.browsing, link)
        self.messages: interface.Messages = FarPart(interface.Messages, broker.messages, link)
        self.redriving: interface.Redriving = FarPart(interface.Redriving, broker.redriving, link)
        self.jobs: interface.Jobs = FarPart(interface.Jobs, broker.jobs, link)
        self.claiming: interface.Claiming = FarPart(interface.Claiming, broker.claiming, link)
        self.asking: interface.Asking = FarPart(interface.Asking, broker.asking, link)

    @property
    def failure(self) -> BaseException | None:
        return self._broker.failure

    @property
    def is_closed(self) -> bool:
        return self._broker.is_closed


def near(broker: Broker) -> Engine:
    return broker


def far(broker: Broker) -> Engine:
    return FarEngine(broker)


def losing_requests(broker: Broker) -> Engine:
    return FarEngine(broker, loses_request=lambda number: number % 3 == 0)


def losing_answers(broker: Broker) -> Engine:
    return FarEngine(broker, loses_answer=lambda number: number % 3 == 0)
