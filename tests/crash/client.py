"""A client that notes everything in the ledger: each intent before it asks, each outcome when it hears it."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from smista.core.browsing import Wanted
from smista.core.exchanges import Binding, ExchangeSettings
from smista.core.exchanges.exchange import ExchangeKind
from smista.core.message import Envelope, Publication, Receipt
from smista.core.settings import QueueSettings
from smista.engine import Broker, Delivery, Published
from smista.errors import BrokerError, OutcomeUnknown
from tests.crash.ledger import (
    Delivered,
    Ledger,
    Opened,
    Outcome,
    Publish,
    ReceiptFields,
    Settle,
    Sweep,
    body_of,
    contents,
    digest_of,
    name_in,
)

EXCHANGE = "news"
LEASE_MS = 30 * 60_000
"""No lease runs out during a run; all are over an hour later."""
PLAIN = QueueSettings(lease_ms=LEASE_MS, max_retries=None)
FRAGILE = QueueSettings(lease_ms=LEASE_MS, max_retries=0)
ORDERED = QueueSettings(lease_ms=LEASE_MS, max_retries=None, ordered=True)
QUEUES = {
    "work": PLAIN,
    "fragile": FRAGILE,
    "line": ORDERED,
    "later": PLAIN,
    "scrap": PLAIN,
    "a": FRAGILE,
    "b": PLAIN,
    "c": PLAIN,
}
FANNED = ("a", "b", "c")


class Client:
    """All clients of one ledger have sessions of their own, later ones higher."""

    def __init__(self, broker: Broker, ledger: Ledger, session: int = 1) -> None:
        self.broker = broker
        self.ledger = ledger
        self._session = session
        self._name = f"{session}."
        self._numbers = itertools.count(1)

    async def set_up(self) -> None:
        for queue, settings in QUEUES.items():
            await self.broker.declaring.declare_queue(queue, settings)
        await self.broker.declaring.declare_exchange(EXCHANGE, ExchangeSettings(ExchangeKind.FANOUT))
        for queue in FANNED:
            await self.broker.declaring.bind(Binding.to_queue(EXCHANGE, queue))

    async def note_recovered(self) -> None:
        self.ledger.note(Opened())
        self.ledger.note(await contents(self.broker))

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(
        self,
        queue: str,
        count: int = 1,
        *,
        body_bytes: int = 100,
        delay_ms: int = 0,
        ttl_ms: int | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
    ) -> list[str]:
        """Publish in one batch. Returns the results."""
        envelope = Envelope(group=group, deduplication_id=deduplication_id, ttl_ms=ttl_ms)
        intents: list[Publish] = []
        publications: list[Publication] = []
        for _ in range(count):
            number = next(self._numbers)
            name = f"{self._name}{number}"
            body = body_of(name, body_bytes)
            intents.append(
                Publish(
                    id=name,
                    queues=(queue,),
                    digest=digest_of(body),
                    group=group,
                    place=self._session * 1_000_000 + number,
                    due_at_ms=self.broker.now_ms() + delay_ms if delay_ms else 0,
                    may_expire=ttl_ms is not None,
                    deduplication_id=deduplication_id,
                )
            )
            publications.append(Publication(body, envelope, delay_ms=delay_ms or None))
            self.ledger.note(intents[-1])
        try:
            results = [
                "refused" if isinstance(one, BrokerError) else "duplicate" if one.is_duplicate else "confirmed"
                for one in await self.broker.publishing.publish(queue, publications)
            ]
        except BrokerError as error:
            results = [_result_of(error)] * count
        for intent, result in zip(intents, results, strict=True):
            self.ledger.note(Outcome(intent.id, result))
        return results

    async def fan_out(self, *, body_bytes: int = 100) -> str:
        name = f"{self._name}{next(self._numbers)}"
        body = body_of(name, body_bytes)
        self.ledger.note(Publish(id=name, queues=FANNED, digest=digest_of(body)))
        try:
            placed: Sequence[Published] = await self.broker.publishing.publish_to_exchange(EXCHANGE, Publication(body))
            result = "confirmed" if len(placed) == len(FANNED) else "partial"
        except BrokerError as error:
            result = _result_of(error)
        self.ledger.note(Outcome(name, result))
        return result

    # -- consuming ----------------------------------------------------------------------------------------------------

    async def receive(self, queue: str, limit: int = 1, *, wait_ms: int = 0) -> list[Delivery]:
        deliveries = await self.broker.receiving.receive(queue, limit, wait_ms=wait_ms)
        for delivery in deliveries:
            self.ledger.note(
                Delivered(
                    message=name_in(delivery.body),
                    queue=queue,
                    digest=digest_of(delivery.body),
                    receipt=fields_of(delivery.receipt),
                    at_ms=delivery.delivered_at_ms,
                    until_ms=delivery.lease_until_ms,
                )
            )
        return deliveries

    async def acknowledge(self, queue: str, deliveries: Sequence[Delivery], *, is_stale: bool = False) -> list[str]:
        async def ask(receipts: list[Receipt]) -> list[str]:
            return ["refused" if one else "confirmed" for one in await self.broker.settling.acknowledge(receipts)]

        return await self._settle("acknowledge", queue, deliveries, ask, is_stale=is_stale)

    async def bury(self, queue: str, deliveries: Sequence[Delivery]) -> list[str]:
        """Nack for good: to the dead-letter queue."""

        async def ask(receipts: list[Receipt]) -> list[str]:
            is_fragile = QUEUES[queue].max_retries == 0
            results = await self.broker.settling.nack(receipts, requeue=is_fragile, error="a planted failure")
            return ["confirmed" if one is False else "refused" for one in results]

        return await self._settle("bury", queue, deliveries, ask)

    async def retry(self, queue: str, deliveries: Sequence[Delivery], *, delay_ms: int = 0) -> list[str]:
        async def ask(receipts: list[Receipt]) -> list[str]:
            results = await self.broker.settling.nack(receipts, delay_ms=delay_ms, error="once more")
            return ["confirmed" if one is True else "refused" for one in results]

        return await self._settle("retry", queue, deliveries, ask)

    async def release(self, queue: str, deliveries: Sequence[Delivery]) -> list[str]:
        async def ask(receipts: list[Receipt]) -> list[str]:
            return ["refused" if one else "confirmed" for one in await self.broker.settling.release(receipts)]

        return await self._settle("release", queue, deliveries, ask)

    async def _settle(
        self,
        action: str,
        queue: str,
        deliveries: Sequence[Delivery],
        ask: Callable[[list[Receipt]], Awaitable[list[str]]],
        *,
        is_stale: bool = False,
    ) -> list[str]:
        ids = [f"{self._name}{next(self._numbers)}" for _ in deliveries]
        for id_, delivery in zip(ids, deliveries, strict=True):
            self.ledger.note(
                Settle(
                    id=id_,
                    action=action,
                    message=name_in(delivery.body),
                    queue=queue,
                    receipt=fields_of(delivery.receipt),
                    is_stale=is_stale,
                )
            )
        try:
            results = await ask([delivery.receipt for delivery in deliveries])
        except BrokerError as error:
            results = [_result_of(error)] * len(deliveries)
        for id_, result in zip(ids, results, strict=True):
            self.ledger.note(Outcome(id_, result))
        return results

    # -- whole queues -------------------------------------------------------------------------------------------------

    async def redrive(self, queue: str, *, by_job: bool = False) -> str:
        return await self._sweep("redrive", queue, by_job=by_job)

    async def purge(self, queue: str) -> str:
        return await self._sweep("purge", queue)

    async def delete(self, queue: str) -> str:
        return await self._sweep("delete", queue)

    async def _sweep(self, action: str, queue: str, *, by_job: bool = False) -> str:
        id_ = f"{self._name}{next(self._numbers)}"
        self.ledger.note(Sweep(id=id_, action=action, queue=queue))
        try:
            if action == "purge":
                await self.broker.declaring.purge(queue)
            elif action == "delete":
                await self.broker.declaring.delete_queue(queue)
            elif by_job:
                await self.broker.jobs.run([(f"{queue}_dlq", Wanted())])
            else:
                await self.broker.redriving.redrive(f"{queue}_dlq")
            result = "confirmed"
        except BrokerError as error:
            result = _result_of(error)
        self.ledger.note(Outcome(id_, result))
        return result

    async def drain(self) -> None:
        """Receive and acknowledge everything; what is leased or scheduled is waited for."""
        while waiting := [
            queue for queue in self.broker.catalog.queue_names() if self.broker.statistics.stats(queue).depth
        ]:
            for queue in waiting:
                deliveries = await self.receive(queue, 100, wait_ms=20)
                await self.acknowledge(queue, deliveries)


def fields_of(receipt: Receipt) -> ReceiptFields:
    fields: ReceiptFields = msgspec.structs.astuple(receipt)
    return fields


def _result_of(error: BrokerError) -> str:
    return "unknown" if isinstance(error, OutcomeUnknown) else "refused"
