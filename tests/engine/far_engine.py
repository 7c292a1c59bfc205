"""An engine whose queues are elsewhere: what is submitted is done some turns later, in order, and answered later still.

So nothing that runs on it can rely on an answer that comes at once. It may lose some: then nobody knows
whether they were done, as when a connection breaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from smista.core.message import Alike, Publication, Receipt
from smista.core.settling import Outcome
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine import Broker, Delivery, Published
from smista.engine.catalog import Catalog
from smista.engine.ids import Ids
from smista.engine.interface import Engine, Publishing, Receiving, Settling
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


class FarPublishing:
    def __init__(self, near: Publishing, link: Link) -> None:
        self._near = near
        self._link = link

    def submit(
        self, queue: str, publications: Sequence[Publication], **options: Any
    ) -> Ticket[list[Published | BrokerError]]:
        return self._link.submit(lambda: self._near.submit(queue, publications, **options))

    def submit_alike(self, queue: str, alike: Alike, **options: Any) -> Ticket[list[tuple[int, BrokerError]]]:
        return self._link.submit(lambda: self._near.submit_alike(queue, alike, **options))

    def submit_to_queues(
        self, queues: Sequence[str], publication: Publication, **options: Any
    ) -> Ticket[list[Published | BrokerError]]:
        return self._link.submit(lambda: self._near.submit_to_queues(queues, publication, **options))

    def submit_to_exchange(
        self,
        exchange: str,
        publication: Publication,
        *,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        batch_id: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Ticket[list[Published]]:
        return self._link.submit(
            lambda: self._near.submit_to_exchange(
                exchange, publication, headers=headers, extra_keys=extra_keys, batch_id=batch_id, namespace=namespace
            )
        )


class FarSettling:
    def __init__(self, near: Settling, link: Link) -> None:
        self._near = near
        self._link = link

    def acknowledge(self, receipts: Sequence[Receipt]) -> Ticket[list[Outcome]]:
        return self._link.submit(lambda: self._near.acknowledge(receipts))

    def nack(self, receipts: Sequence[Receipt], **options: Any) -> Ticket[list[bool | BrokerError]]:
        return self._link.submit(lambda: self._near.nack(receipts, **options))

    def release(self, receipts: Sequence[Receipt]) -> Ticket[list[Outcome]]:
        return self._link.submit(lambda: self._near.release(receipts))

    def extend(self, receipts: Sequence[Receipt], lease_ms: int) -> Ticket[list[Outcome]]:
        return self._link.submit(lambda: self._near.extend(receipts, lease_ms))


class FarReceipts:
    def __init__(self, near: Callable[[Sequence[Receipt]], Ticket[list[bool]]], link: Link) -> None:
        self._near = near
        self._link = link

    def can_be_settled(self, receipts: Sequence[Receipt]) -> Ticket[list[bool]]:
        return self._link.submit(lambda: self._near(receipts))


class FarReceiving:
    def __init__(self, near: Receiving) -> None:
        self._near = near

    async def receive(self, queue: str, limit: int = 1, **options: Any) -> list[Delivery]:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        deliveries = await self._near.receive(queue, limit, **options)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return deliveries


class FarEngine:
    def __init__(
        self,
        broker: Broker,
        *,
        loses_request: Loses = lambda number: False,
        loses_answer: Loses = lambda number: False,
    ) -> None:
        self.link = link = Link(loses_request, loses_answer)
        self.ids: Ids = broker.ids
        self.catalog: Catalog = broker.catalog
        self.publishing: Publishing = FarPublishing(broker.publishing, link)
        self.settling: Settling = FarSettling(broker.settling, link)
        self.receiving: Receiving = FarReceiving(broker.receiving)


def near(broker: Broker) -> Engine:
    return broker


def far(broker: Broker) -> Engine:
    return FarEngine(broker)


def losing_requests(broker: Broker) -> Engine:
    return FarEngine(broker, loses_request=lambda number: number % 3 == 0)


def losing_answers(broker: Broker) -> Engine:
    return FarEngine(broker, loses_answer=lambda number: number % 3 == 0)
