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
    """As much of a delivery as is needed to settle it."""

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

        With `wait_ms`, at most 20,000, an empty queue is waited on; an empty list when nothing came. What is received
        is this program's until its lease ends, whatever happens to the connection. When the call is cancelled it has
        taken nothing: what came in that moment is released.
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
        """What came for somebody who is not there any more."""
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

        `prefetch` (the queue's) is how many may be here unsettled at a time. Without `lease_ms` they are this program's
        as long as the connection lives. Among several consumers those of higher `priority` are served first.
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
        """This delivery succeeded. `receipt` is a delivery's, as text that may have come from elsewhere."""
        await self._ask("queue.ack", Done, receipt=receipt)

    async def nack(self, receipt: str, *, requeue: bool = True, delay_ms: int | None = None, error: str = "") -> str:
        """This delivery failed: it is tried again after the queue's back-off, or after `delay_ms`, while it has retries
        left; else, or with `requeue` False, it is a dead letter. Returns which: `requeued` or `dead_lettered`."""
        answer = await self._ask("queue.nack", Nacked, receipt=receipt, requeue=requeue, delay_ms=delay_ms, error=error)
        return answer.action

    async def release(self, receipt: str) -> None:
        """Give a delivery back to its place, not counted as a failure."""
        await self._ask("queue.release", Done, receipt=receipt)

    async def extend(self, receipt: str, lease_ms: int) -> None:
        """Hold a delivery for longer: its lease now ends `lease_ms` from now."""
        await self._ask("queue.extend", Done, receipt=receipt, lease_ms=lease_ms)

    # -- by message id ------------------------------------------------------------------------------------------------

    async def receive_message(self, queue: str, max_messages: int = 1, wait_time_seconds: float = 0) -> list[Delivery]:
        """Up to `max_messages` under lease, waiting so long for the first: `receive` by another name."""
        return await self.receive(queue, max_messages, wait_ms=round(wait_time_seconds * 1000))

    async def acknowledge_message(self, queue: str, message_id: str) -> None:
        """Acknowledge for whoever holds the message now."""
        await self._ask("queue.ack", Done, queue=queue, message_id=message_id)

    async def nack_message(
        self, queue: str, message_id: str, requeue: bool = True, *, delay_ms: int | None = None, error: str = ""
    ) -> str:
        """Nack for whoever holds the message now; returns `requeued` or `dead_lettered`."""
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
        """Release for whoever holds the message now."""
        await self._ask("queue.release", Done, queue=queue, message_id=message_id)

    async def extend_message(self, queue: str, message_id: str, lease_ms: int) -> None:
        """Extend the lease of whoever holds the message now."""
        await self._ask("queue.extend", Done, queue=queue, message_id=message_id, lease_ms=lease_ms)
