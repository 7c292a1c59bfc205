"""A session: one caller's way in, to one namespace.

    protocol ─▶ `run(command)` ──────────────▶ may it? ─▶ `command.run(context)`
             └▶ `publish`, `receive`, ... ───▶ may it? ─▶ the broker

Whether the caller may is asked here and nowhere else. What goes through in great numbers has methods of its own, which
cost no command and no task for each message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from smista.core.counters import QueueStats
from smista.core.exchanges import ExchangeSettings
from smista.core.message import Alike, Message
from smista.core.staging import Load
from smista.engine import Broker, Delivery, Publication, Published, QueueSettings, Receipt
from smista.engine.claim_rows import ClaimedRows
from smista.engine.tickets import Ticket
from smista.errors import AccessDenied, BrokerError
from smista.service.command import Command
from smista.service.context import Context
from smista.service.held import Held
from smista.service.permission import Permission
from smista.service.principal import Principal
from smista.service.route import Route
from smista.service.staging.files import Stage
from smista.service.subscription import SharedCredit, Subscription, engines, pool_of

if TYPE_CHECKING:
    from smista.service.service import Service

R = TypeVar("R")


def _ignore(error: BrokerError) -> None:
    """For callers that do not ask why a subscription ended."""


class Session:
    """See the module; made by `Service.session`."""

    __slots__ = ("_broker", "_grants", "namespace", "principal", "service")

    def __init__(self, service: Service, broker: Broker, principal: Principal, namespace: str) -> None:
        self.service = service
        self.principal = principal
        self.namespace = namespace
        self._broker = broker
        self._grants = principal.grants

    # -- commands -----------------------------------------------------------------------------------------------------

    async def run(self, command: Command[R]) -> R:
        """Have a command done; raises `AccessDenied` where the caller may not, and whatever the command raises."""
        for need in command.needs:
            for name in need.names(command):
                self.check(need.permission, name)
        return await command.run(Context(self._broker, self.namespace, self.principal, self.service))

    def check(self, permission: Permission, name: str | None) -> None:
        """Raise `AccessDenied` unless the caller may do this to what has the name; None is the whole namespace."""
        if self._grants is None or self._grants.allow(permission, self.namespace, name):
            return
        what = f"namespace {self.namespace!r}" if name is None else f"{name!r} in namespace {self.namespace!r}"
        raise AccessDenied(
            f"{self.principal.name!r} has no permission to {permission.value} {what}; ask an administrator for it."
        )

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(
        self, queue: str, publications: Sequence[Publication], *, batch_id: str | None = None
    ) -> Coroutine[Any, Any, list[Published | BrokerError]]:
        """Put what arrived together into a queue. When it is durable: per publication what became of it."""
        if self._grants is not None:
            self.check(Permission.WRITE, queue)
        return self._broker.publishing.publish(queue, publications, batch_id=batch_id, namespace=self.namespace)

    def publish_to_exchange(
        self,
        exchange: str,
        publication: Publication,
        *,
        headers: dict[str, Any] | None = None,
        extra_keys: Sequence[str] = (),
        batch_id: str | None = None,
    ) -> Coroutine[Any, Any, list[Published]]:
        """Put a message into every queue that the exchange leads to, or into none. When it is durable: one each."""
        if self._grants is not None:
            self.check(Permission.WRITE, exchange)
        return self._broker.publishing.publish_to_exchange(
            exchange,
            publication,
            headers=headers,
            extra_keys=extra_keys,
            batch_id=batch_id,
            namespace=self.namespace,
        )

    def stage(
        self, stage: Stage, chunks: AsyncIterator[bytes], bytes_max: int, held: Held
    ) -> Coroutine[Any, Any, Load]:
        """Keep rows until their batch is committed, as `Staging.stage`."""
        self.check(Permission.WRITE, None)
        return self.service.staging.stage(stage, chunks, bytes_max, held)

    # What the caller routes, to submit together what goes to one queue: it asks a `Route` where each message goes.
    # Without `is_use` a queue that is deleted when nobody uses it does not live longer for it.

    def route(self, exchange: str, key: str) -> Route:
        """Where messages of this exchange and key go."""
        check = None if self._grants is None else partial(self.check, Permission.WRITE, exchange)
        version = partial(self._broker.catalog.version, namespace=self.namespace)
        return Route(self._broker.catalog, self.namespace, exchange, key, version, check)

    def submit(
        self, queue: str, publications: Sequence[Publication], *, is_use: bool = True
    ) -> Ticket[list[Published | BrokerError]]:
        """Put what arrived together into a queue: per publication what became of it."""
        return self._broker.publishing.submit(queue, publications, is_use=is_use, namespace=self.namespace)

    def submit_alike(self, queue: str, alike: Alike, *, is_use: bool = True) -> Ticket[list[tuple[int, BrokerError]]]:
        """The same for messages that are alike: which were refused, and why."""
        return self._broker.publishing.submit_alike(queue, alike, is_use=is_use, namespace=self.namespace)

    def submit_to_queues(
        self, queues: Sequence[str], publication: Publication, *, is_use: bool = True
    ) -> Ticket[list[Published | BrokerError]]:
        """Put a message into several queues, each for itself: per queue what became of it."""
        return self._broker.publishing.submit_to_queues(queues, publication, is_use=is_use, namespace=self.namespace)

    def body_limit(self, queue: str) -> int:
        """The largest body that the queue takes."""
        return self._broker.catalog.body_limit(queue, namespace=self.namespace)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        consumer: str = "",
        several_per_group: bool = False,
        beside_active: bool = False,
    ) -> Coroutine[Any, Any, list[Delivery]]:
        """Up to `limit` messages under a lease, as `Receiving.receive`."""
        if self._grants is not None:
            self.check(Permission.READ, queue)
        return self._broker.receiving.receive(
            queue,
            limit,
            wait_ms=wait_ms,
            lease_ms=lease_ms,
            consumer=consumer,
            several_per_group=several_per_group,
            beside_active=beside_active,
            namespace=self.namespace,
        )

    def subscribe(
        self,
        queue: str,
        deliver: Callable[[list[Delivery]], None],
        *,
        ended: Callable[[BrokerError], None] = _ignore,
        consumer: str = "",
        prefetch: int | None = None,
        priority: int = 0,
        lease_ms: int | None = None,
        shared: SharedCredit | None = None,
        is_counted: bool = True,
        channel: object = None,
    ) -> Subscription:
        """Have messages pushed to `deliver` until the subscription ends, as `Subscribing.subscribe`."""
        self.check(Permission.READ, queue)
        settings, number = self.queue_settings(queue), self.queue_number(queue)
        if prefetch is None:
            prefetch = settings.prefetch
        subscription = self._broker.subscribing.subscribe(
            queue,
            deliver,
            ended=ended,
            consumer=consumer,
            prefetch=prefetch,
            priority=priority,
            lease_ms=lease_ms,
            pool=pool_of(shared),
            is_counted=is_counted,
            channel=channel,
            namespace=self.namespace,
        )
        return Subscription(self._broker.subscribing, subscription, prefetch, number, settings)

    def shared_credit(self, limit: int) -> SharedCredit:
        """What several subscriptions may hold together."""
        return SharedCredit(self._broker.subscribing, limit)

    def leave(
        self, subscriptions: Sequence[Subscription], receipts: Sequence[Receipt], *, is_vanished: bool
    ) -> asyncio.Future[None] | None:
        """End subscriptions that go together, and give back `receipts`, which they hold: released, or, where their
        consumers vanished, as failed deliveries. All of them are out of the line before anything goes back.

        None where that is done already; else what is to be waited for until it is. Nothing where the broker is at its
        end."""
        if self.service.is_over:
            return None
        settling = self._broker.settling
        give_back = settling.vanish_now if is_vanished else settling.release_some
        return self._broker.subscribing.leave(engines(subscriptions), receipts, give_back)

    def read_claim(
        self,
        queue: str,
        consumer: str,
        number: int,
        *,
        start: int = 0,
        end: int | None = None,
        claim_session: str | None = None,
    ) -> Coroutine[Any, Any, AsyncIterator[ClaimedRows]]:
        """The rows of a claim, some at a time."""
        self.check(Permission.READ, queue)
        return self._broker.claiming.read(
            queue, consumer, number, start=start, end=end, session=claim_session, namespace=self.namespace
        )

    def receipt_of(self, queue: str, message_id: str) -> Receipt:
        """The receipt of whoever holds the message now."""
        self.check(Permission.READ, queue)
        return self._broker.receipts.of_message(queue, message_id, namespace=self.namespace)

    # -- settling: a receipt is sealed, and proves that its holder may ------------------------------------------------

    def receipt(self, text: str) -> Receipt:
        """The receipt that was given out as this text; raises `InvalidReceipt`."""
        return self._broker.receipts.read(text)

    def acknowledge(self, receipts: Sequence[Receipt]) -> Ticket[list[BrokerError | None]]:
        """These deliveries succeeded. When that is durable: per receipt None, or why it had no effect."""
        return self._broker.settling.acknowledge(receipts)

    def nack(
        self, receipts: Sequence[Receipt], *, requeue: bool = True, delay_ms: int | None = None, error: str = ""
    ) -> Ticket[list[bool | BrokerError]]:
        """These deliveries failed. When that is durable: per receipt True if the message will be retried, False if it
        is dead, or why neither."""
        return self._broker.settling.nack(receipts, requeue=requeue, delay_ms=delay_ms, error=error)

    def release(self, receipts: Sequence[Receipt]) -> Ticket[list[BrokerError | None]]:
        """Back to their places, not counted as failures. Results as of `acknowledge`."""
        return self._broker.settling.release(receipts)

    def extend(self, receipts: Sequence[Receipt], lease_ms: int) -> Ticket[list[BrokerError | None]]:
        """The leases now end `lease_ms` from now. Results as of `acknowledge`."""
        return self._broker.settling.extend(receipts, lease_ms)

    def can_be_settled(self, receipts: Sequence[Receipt]) -> Ticket[list[bool]]:
        """Whether settling them would change anything: they name the last deliveries of messages that are there."""
        return self._broker.receipts.can_be_settled(receipts)

    def held(self, receipts: Sequence[Receipt]) -> Coroutine[Any, Any, list[Delivery]]:
        """These deliveries once more, without those that are no longer in flight."""
        return self._broker.receiving.held(receipts)

    def give_back(self, receipts: Sequence[Receipt]) -> None:
        """Release what nobody is there for any more; nothing where the broker is at its end."""
        if receipts and not self.service.is_over:
            self._broker.settling.release_now(receipts)

    # -- queues -------------------------------------------------------------------------------------------------------

    def declare_queue(self, queue: str, settings: QueueSettings) -> Ticket[int]:
        """Make a queue, or see that it is there with these settings: its number."""
        self.check(Permission.CONFIGURE, queue)
        return self._broker.declaring.submit_queue(queue, settings, namespace=self.namespace)

    def use_queue(self, queue: str) -> None:
        """Somebody has asked for it: it does not expire for now."""
        self._broker.declaring.use_queue(queue, namespace=self.namespace)

    # -- what is there ------------------------------------------------------------------------------------------------

    def queue_settings(self, queue: str) -> QueueSettings:
        """What a queue has; raises `QueueNotFound`."""
        return self._broker.catalog.queue_settings(queue, namespace=self.namespace)

    def declared_settings(self, queue: str) -> QueueSettings:
        """The same without what a policy has made of it."""
        return self._broker.catalog.declared_settings(queue, namespace=self.namespace)

    def queue_number(self, queue: str) -> int:
        """The queue's own: another one of its name, later, has another."""
        return self._broker.catalog.queue_number(queue, namespace=self.namespace)

    def exchange_settings(self, exchange: str) -> ExchangeSettings:
        """What an exchange has; raises `ExchangeNotFound`."""
        return self._broker.catalog.exchange_settings(exchange, namespace=self.namespace)

    def stats(self, queue: str) -> QueueStats:
        """Counts and totals of a queue; raises `QueueNotFound`."""
        return self._broker.statistics.stats(queue, namespace=self.namespace)

    def message_count(self, queue: str) -> int:
        """How many messages a queue holds, in any state; cheaper than all its statistics."""
        return self._broker.statistics.message_count(queue, namespace=self.namespace)

    async def queue_page(
        self,
        *,
        prefix: str = "",
        after: str = "",
        limit: int,
        accepts: Callable[[str, QueueSettings], bool] | None = None,
    ) -> list[str]:
        """The first names of queues, as `Surveying.queue_page`; none in a namespace that is not there yet."""
        self.check(Permission.MONITOR, None)
        if self.namespace not in self._broker.catalog.namespaces():
            return []
        return await self._broker.surveying.queue_page(
            prefix=prefix, after=after, limit=limit, accepts=accepts, namespace=self.namespace
        )

    def has_queue(self, queue: str) -> bool:
        return self._broker.catalog.has_queue(queue, namespace=self.namespace)

    def message_id(self, message: Message) -> str:
        return self._broker.ids.message_id(message.number, message.created_at_ms)
