"""Calls that receive and settle."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, TypeVar

import msgspec

from smista.client.answers import Done, Nacked
from smista.client.calls import Calls, decoder
from smista.client.message import Delivered, Delivery
from smista.client.settling import RELEASE, ReceiptSettler
from smista.client.subscription import Subscription
from smista.client.wire import Receive, Subscribe

D = TypeVar("D", bound=Delivered)


class _Received(msgspec.Struct):
    messages: msgspec.Raw


class _Named(msgspec.Struct):
    """The part of a delivery that is needed to settle it."""

    receipt: str


def _received(answer: msgspec.Raw) -> msgspec.Raw:
    received: _Received = decoder(_Received)(answer)
    return received.messages


class ReceivingCalls(Calls):
    _receipts: ReceiptSettler | None = None
    _subscriptions: weakref.WeakSet[Subscription[Any]]

    async def receive(
        self, queue: str, limit: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None, consumer: str = ""
    ) -> list[Delivery]:
        """Up to `limit` messages under lease (the queue's, or `lease_ms`).

        If the queue is empty this waits up to `wait_ms` (at most 20,000); returns an empty list if nothing came. A
        message is held until its lease ends, whatever happens to the connection. A call that is cancelled takes
        nothing: messages that arrive at that moment are released.
        """
        return await self.receive_as(Delivery, queue, limit, wait_ms=wait_ms, lease_ms=lease_ms, consumer=consumer)

    async def receive_as(
        self, kind: type[D], queue: str, limit: int, *, wait_ms: int, lease_ms: int | None, consumer: str
    ) -> list[D]:
        wanted = Receive(queue, limit, wait_ms, lease_ms, consumer, raw=True, namespace=self._namespace)
        pending = self._session.request("queue.receive", wanted, is_repeatable=True)
        try:
            answer = await pending.answer
        except asyncio.CancelledError:
            self._session.take_back(pending, self._release_received)
            raise
        deliveries: list[D] = decoder(list[kind])(_received(answer))  # type: ignore[valid-type]  # a type known only here
        settler = self._settler_of_receipts()
        for delivery in deliveries:
            delivery.settler = settler
            delivery.queue = queue
        return deliveries

    def _release_received(self, answer: msgspec.Raw) -> None:
        """Release what arrived for a call that was cancelled."""
        settler = self._settler_of_receipts()
        for delivery in decoder(list[_Named])(_received(answer)):
            settler.settle_soon(RELEASE, delivery.receipt)

    def _settler_of_receipts(self) -> ReceiptSettler:
        settler = self._receipts = self._receipts or ReceiptSettler(self._session)
        return settler

    def subscribe(
        self,
        queue: str,
        *,
        prefetch: int | None = None,
        lease_ms: int | None = None,
        priority: int = 0,
        consumer: str = "",
    ) -> Subscription[Delivery]:
        """Have the messages of a queue pushed: an async iterator of deliveries.

            async with client.subscribe("orders", prefetch=100) as orders:
                async for delivery in orders:
                    async with delivery:
                        handle(delivery.json())

        `prefetch` (default: the queue's) limits how many unsettled messages may be here at a time. Without `lease_ms`
        they are held as long as the connection lives. Consumers of higher `priority` are served first.
        """
        return self.subscribe_as(
            Delivery, queue, prefetch=prefetch, lease_ms=lease_ms, priority=priority, consumer=consumer
        )

    def subscribe_as(
        self, kind: type[D], queue: str, *, prefetch: int | None, lease_ms: int | None, priority: int, consumer: str
    ) -> Subscription[D]:
        wanted = Subscribe(queue, prefetch, lease_ms, priority, consumer, raw=True, namespace=self._namespace)
        subscription = Subscription(self._session, wanted, kind)
        self._subscriptions.add(subscription)
        return subscription

    # -- by receipt ---------------------------------------------------------------------------------------------------

    async def ack(self, receipt: str) -> None:
        """Acknowledge a delivery by its receipt, which another program may have received."""
        await self._ask("queue.ack", Done, receipt=receipt)

    async def nack(self, receipt: str, *, requeue: bool = True, delay_ms: int | None = None, error: str = "") -> str:
        """A delivery failed. The message is retried after the queue's back-off, or after `delay_ms`, while it has
        retries left; else, or with `requeue` False, it becomes a dead letter. Returns `requeued` or `dead_lettered`."""
        answer = await self._ask("queue.nack", Nacked, receipt=receipt, requeue=requeue, delay_ms=delay_ms, error=error)
        return answer.action

    async def release(self, receipt: str) -> None:
        """Return the message to its place in the queue; not counted as a failure."""
        await self._ask("queue.release", Done, receipt=receipt)

    async def extend(self, receipt: str, lease_ms: int) -> None:
        """Have the lease of a delivery end `lease_ms` from now."""
        await self._ask("queue.extend", Done, receipt=receipt, lease_ms=lease_ms)

    # -- by message id ------------------------------------------------------------------------------------------------

    async def receive_message(self, queue: str, max_messages: int = 1, wait_time_seconds: float = 0) -> list[Delivery]:
        """Receive up to `max_messages`, waiting up to `wait_time_seconds`: `receive` by another name."""
        return await self.receive(queue, max_messages, wait_ms=round(wait_time_seconds * 1000))

    async def acknowledge_message(self, queue: str, message_id: str) -> None:
        """Acknowledge the present delivery of a message, whoever holds it."""
        await self._ask("queue.ack", Done, queue=queue, message_id=message_id)

    async def nack_message(
        self, queue: str, message_id: str, requeue: bool = True, *, delay_ms: int | None = None, error: str = ""
    ) -> str:
        """Nack the present delivery of a message, whoever holds it; returns `requeued` or `dead_lettered`."""
        answer = await self._ask(
            "queue.nack",
            Nacked,
            queue=queue,
            message_id=message_id,
            requeue=requeue,
            delay_ms=delay_ms,
            error=error,
        )
        return answer.action

    async def release_message(self, queue: str, message_id: str) -> None:
        """Release the present delivery of a message, whoever holds it."""
        await self._ask("queue.release", Done, queue=queue, message_id=message_id)

    async def extend_message(self, queue: str, message_id: str, lease_ms: int) -> None:
        """Extend the lease of the present delivery of a message, whoever holds it."""
        await self._ask("queue.extend", Done, queue=queue, message_id=message_id, lease_ms=lease_ms)
