"""A session: one caller's way in, to one namespace.

    protocol ─▶ `run(command)` ──────────────▶ may it? ─▶ `command.run(context)`
             └▶ `publish`, `receive`, ... ───▶ may it? ─▶ the engine

Whether the caller may is asked here and nowhere else. What goes through in great numbers has methods of its own, which
cost no command and no task for each message. Each of them says what permission it needs, or why none, see `rules`. A
caller that may do everything has a `Session`, which never asks; any other has a `LimitedSession`, which asks first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from smista.core.counters import QueueStats
from smista.core.exchanges import ExchangeSettings
from smista.core.message import Alike, Message
from smista.core.publishing import are_plain
from smista.core.staging import Load
from smista.engine import Delivery, Publication, Published, QueueSettings, Receipt
from smista.engine.claim_rows import ClaimedRows
from smista.engine.interface import Engine
from smista.engine.measures import BrokerMeasures, LogRange
from smista.engine.tickets import Ticket
from smista.errors import AccessDenied, BrokerError, LogInMemory, NamespaceNotFound, QueueNotFound
from smista.exchange_errors import ExchangeNotFound
from smista.service.command import Command
from smista.service.context import Context
from smista.service.held import Held
from smista.service.log_reading import BulkMeasures, LogReader
from smista.service.permission import IMPLY_MONITOR, NEEDED_TO_DECLARE, Need, Permission
from smista.service.principal import Grants, Principal
from smista.service.route import Route, RoutedQueue
from smista.service.rules import asking_first, needs, needs_nothing
from smista.service.staging.files import Stage
from smista.service.subscription import SharedCredit, Subscription, engines, pool_of

if TYPE_CHECKING:
    from smista.service.service import Service

R = TypeVar("R")
SEALED = "a receipt is sealed, and proves that its holder may"
ROUTED = "a `Route` hands out such names only to those who may publish there"
OWN = "it is about what the caller was given"
NO_SECRET = "that a name is there is no secret: AMQP tells everybody who declares it passively, with these counts"


def _refusal(caller: str, permission: Permission, namespace: str | None, name: str | None) -> str:
    if namespace is None:
        return f"{caller!r} has no permission to {permission.value} the broker as a whole; ask an administrator for it."
    if name is None:
        return (
            f"{caller!r} has no permission to {permission.value} namespace {namespace!r}; ask an administrator for it."
        )
    what = f"{name!r} in namespace {namespace!r}"
    if permission is Permission.MONITOR:
        # Any other would do too, and what is done next may need that.
        return f"{caller!r} has no permission for {what}, not even to monitor it; ask an administrator for one."
    return f"{caller!r} has no permission to {permission.value} {what}; ask an administrator for it."


def _ignore(error: BrokerError) -> None:
    """For callers that do not ask why a subscription ended."""


class Session:
    """See the module; made by `Service.session`."""

    __slots__ = ("_engine", "_grants", "namespace", "principal", "service")

    def __init__(self, service: Service, engine: Engine, principal: Principal, namespace: str) -> None:
        self.service = service
        self.principal = principal
        self.namespace = namespace
        self._engine = engine
        self._grants = principal.grants

    # -- commands -----------------------------------------------------------------------------------------------------

    @needs_nothing("it asks for what the command says that it needs")
    async def run(self, command: Command[R]) -> R:
        """Have a command done; raises `AccessDenied` where the caller may not, and whatever the command raises."""
        if self._grants is not None:
            for need in command.needs:
                for name in need.names(command):
                    self._ask(need, name)
        return await command.run(Context(self._engine, self.namespace, self.principal, self.service))

    @needs_nothing("it is what asks")
    def check(self, permission: Permission, name: str | None) -> None:
        """Raise `AccessDenied` unless the caller may do this to what has the name; None is the whole namespace."""
        if self._grants is not None:
            self._ask(Need(permission), name)

    def _ask(self, need: Need, name: str | None) -> None:
        grants = self._grants
        namespace = None if need.is_everywhere else self.namespace
        if grants is None or grants.allow(need.permission, namespace, name):
            return
        if need.permission is Permission.MONITOR and self._sees(grants, namespace, name):
            return
        raise AccessDenied(_refusal(self.principal.name, need.permission, namespace, name))

    def _sees(self, grants: Grants, namespace: str | None, name: str | None) -> bool:
        """Whether the caller may see something because of another permission: for it, or for all beside it."""
        return any(grants.allow(other, namespace, name) for other in IMPLY_MONITOR) or (
            name is not None and grants.allow(Permission.MONITOR, namespace, None)
        )

    # -- publishing ---------------------------------------------------------------------------------------------------

    @needs(Permission.WRITE.on("queue"))
    def publish(
        self, queue: str, publications: Sequence[Publication], *, batch_id: str | None = None
    ) -> Coroutine[Any, Any, list[Published | BrokerError]]:
        """Put what arrived together into a queue. When it is durable: per publication what became of it."""
        return self._engine.publishing.publish(queue, publications, batch_id=batch_id, namespace=self.namespace)

    @needs(Permission.WRITE.on("exchange"))
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
        return self._engine.publishing.publish_to_exchange(
            exchange,
            publication,
            headers=headers,
            extra_keys=extra_keys,
            batch_id=batch_id,
            namespace=self.namespace,
        )

    @needs(Need(Permission.WRITE))
    def stage(
        self, stage: Stage, chunks: AsyncIterator[bytes], bytes_max: int, held: Held
    ) -> Coroutine[Any, Any, Load]:
        """Keep rows until their batch is committed, as `Staging.stage`."""
        return self.service.staging.stage(stage, chunks, bytes_max, held)

    # What the caller routes, to submit together what goes to one queue: it asks a `Route` where each message goes.
    # Without `is_use` a queue that is deleted when nobody uses it does not live longer for it.

    @needs_nothing("the `Route` asks for each message")
    def route(self, exchange: str, key: str) -> Route:
        """Where messages of this exchange and key go."""
        check = None if self._grants is None else partial(self.check, Permission.WRITE, exchange)
        version = partial(self._engine.catalog.version, namespace=self.namespace)
        return Route(self._engine.catalog, self.namespace, exchange, key, version, check)

    @needs_nothing(ROUTED)
    def submit(
        self, queue: RoutedQueue, publications: Sequence[Publication], *, is_use: bool = True
    ) -> Ticket[list[Published | BrokerError]]:
        """Put what arrived together into a queue: per publication what became of it."""
        return self._engine.publishing.submit(queue, publications, is_use=is_use, namespace=self.namespace)

    @needs_nothing(ROUTED)
    def submit_alike(
        self, queue: RoutedQueue, alike: Alike, *, is_use: bool = True
    ) -> Ticket[list[tuple[int, BrokerError]]]:
        """The same for messages that are alike: which were refused, and why."""
        return self._engine.publishing.submit_alike(queue, alike, is_use=is_use, namespace=self.namespace)

    @needs_nothing(ROUTED)
    def submit_to_queues(
        self, queues: Sequence[RoutedQueue], publication: Publication, *, is_use: bool = True
    ) -> Ticket[list[Published | BrokerError]]:
        """Put a message into several queues, each for itself: per queue what became of it."""
        return self._engine.publishing.submit_to_queues(queues, publication, is_use=is_use, namespace=self.namespace)

    @needs_nothing(ROUTED)
    def has_queue(self, queue: RoutedQueue) -> bool:
        """Whether it is still there."""
        return self._engine.catalog.has_queue(queue, namespace=self.namespace)

    @needs_nothing(ROUTED)
    def is_plain(self, queue: RoutedQueue, like: Publication) -> bool:
        """Whether it is there and looks at none of the messages that are alike one by one."""
        try:
            return are_plain(self._engine.catalog.queue_settings(queue, namespace=self.namespace), (like,))
        except QueueNotFound:
            return False

    @needs(Permission.MONITOR.on("queue"))
    def body_limit(self, queue: str) -> tuple[int, str]:
        """The largest body that the queue takes; and, for errors, the policy that says so, if one does."""
        return self._engine.catalog.body_limit(queue, namespace=self.namespace)

    # -- receiving ----------------------------------------------------------------------------------------------------

    @needs(Permission.READ.on("queue"))
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
        return self._engine.receiving.receive(
            queue,
            limit,
            wait_ms=wait_ms,
            lease_ms=lease_ms,
            consumer=consumer,
            several_per_group=several_per_group,
            beside_active=beside_active,
            namespace=self.namespace,
        )

    @needs(Permission.READ.on("queue"))
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
        settings, number = self.queue_settings(queue), self.queue_number(queue)
        if prefetch is None:
            prefetch = settings.prefetch
        subscription = self._engine.subscribing.subscribe(
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
        return Subscription(self._engine.subscribing, subscription, prefetch, number, settings)

    @needs_nothing(OWN)
    def shared_credit(self, limit: int) -> SharedCredit:
        """What several subscriptions may hold together."""
        return SharedCredit(self._engine.subscribing, limit)

    @needs_nothing(OWN)
    def leave(
        self, subscriptions: Sequence[Subscription], receipts: Sequence[Receipt], *, is_vanished: bool
    ) -> asyncio.Future[None] | None:
        """End subscriptions that go together, and give back `receipts`, which they hold: released, or, where their
        consumers vanished, as failed deliveries. All of them are out of the line before anything goes back.

        None where that is done already; else what is to be waited for until it is. Nothing where the broker is at its
        end."""
        if self.service.is_over:
            return None
        return self._engine.subscribing.leave_all(engines(subscriptions), receipts, is_vanished=is_vanished)

    @needs(Permission.READ.on("queue"))
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
        return self._engine.claiming.read(
            queue, consumer, number, start=start, end=end, session=claim_session, namespace=self.namespace
        )

    @needs(Permission.READ.on("queue"))
    def receipt_of(self, queue: str, message_id: str) -> Coroutine[Any, Any, Receipt]:
        """The receipt of whoever holds the message now."""
        return self._engine.asking.receipt_of(queue, message_id, namespace=self.namespace)

    # -- settling: a receipt is sealed, and proves that its holder may ------------------------------------------------

    @needs_nothing(SEALED)
    def receipt(self, text: str) -> Receipt:
        """The receipt that was given out as this text; raises `InvalidReceipt`."""
        return self._engine.receipts.read(text)

    @needs_nothing(SEALED)
    def acknowledge(self, receipts: Sequence[Receipt]) -> Ticket[list[BrokerError | None]]:
        """These deliveries succeeded. When that is durable: per receipt None, or why it had no effect."""
        return self._engine.settling.acknowledge(receipts)

    @needs_nothing(SEALED)
    def nack(
        self, receipts: Sequence[Receipt], *, requeue: bool = True, delay_ms: int | None = None, error: str = ""
    ) -> Ticket[list[bool | BrokerError]]:
        """These deliveries failed. When that is durable: per receipt True if the message will be retried, False if it
        is dead, or why neither."""
        return self._engine.settling.nack(receipts, requeue=requeue, delay_ms=delay_ms, error=error)

    @needs_nothing(SEALED)
    def release(self, receipts: Sequence[Receipt]) -> Ticket[list[BrokerError | None]]:
        """Back to their places, not counted as failures. Results as of `acknowledge`."""
        return self._engine.settling.release(receipts)

    @needs_nothing(SEALED)
    def extend(self, receipts: Sequence[Receipt], lease_ms: int) -> Ticket[list[BrokerError | None]]:
        """The leases now end `lease_ms` from now. Results as of `acknowledge`."""
        return self._engine.settling.extend(receipts, lease_ms)

    @needs_nothing(SEALED)
    def can_be_settled(self, receipts: Sequence[Receipt]) -> Ticket[list[bool]]:
        """Whether settling them would change anything: they name the last deliveries of messages that are there."""
        return self._engine.receipts.can_be_settled(receipts)

    @needs_nothing(SEALED)
    def held(self, receipts: Sequence[Receipt]) -> Coroutine[Any, Any, list[Delivery]]:
        """These deliveries once more, without those that are no longer in flight."""
        return self._engine.receiving.held(receipts)

    @needs_nothing(SEALED)
    def give_back(self, receipts: Sequence[Receipt]) -> None:
        """Release what nobody is there for any more; nothing where the broker is at its end."""
        if receipts and not self.service.is_over:
            self._engine.settling.release(receipts)

    # -- queues -------------------------------------------------------------------------------------------------------

    @needs(*NEEDED_TO_DECLARE)
    def declare_queue(self, queue: str, settings: QueueSettings) -> Ticket[int]:
        """Make a queue, or see that it is there with these settings: its number."""
        return self._engine.declaring.submit_queue(queue, settings, namespace=self.namespace)

    @needs_nothing(NO_SECRET)
    def use_queue(self, queue: str) -> None:
        """Somebody has asked for it: it does not expire for now."""
        self._engine.declaring.use_queue(queue, namespace=self.namespace)

    # -- what is there ------------------------------------------------------------------------------------------------

    @needs(Permission.MONITOR.on("queue"))
    def queue_settings(self, queue: str) -> QueueSettings:
        """What a queue has; raises `QueueNotFound`."""
        return self._engine.catalog.queue_settings(queue, namespace=self.namespace)

    @needs(Permission.MONITOR.on("queue"))
    def declared_settings(self, queue: str) -> QueueSettings:
        """The same without what a policy has made of it."""
        return self._engine.catalog.declared_settings(queue, namespace=self.namespace)

    @needs_nothing(NO_SECRET)
    def queue_number(self, queue: str) -> int:
        """The queue's own: another one of its name, later, has another."""
        return self._engine.catalog.queue_number(queue, namespace=self.namespace)

    @needs_nothing(NO_SECRET)
    def has_exchange(self, exchange: str) -> bool:
        try:
            self._engine.catalog.exchange_settings(exchange, namespace=self.namespace)
        except (ExchangeNotFound, NamespaceNotFound):
            return False
        return True

    @needs(Permission.MONITOR.on("exchange"))
    def exchange_settings(self, exchange: str) -> ExchangeSettings:
        """What an exchange has; raises `ExchangeNotFound`."""
        return self._engine.catalog.exchange_settings(exchange, namespace=self.namespace)

    @needs(Permission.MONITOR.on("queue"))
    def stats(self, queue: str) -> Coroutine[Any, Any, QueueStats]:
        """Counts and totals of a queue; raises `QueueNotFound`."""
        return self._engine.asking.stats(queue, namespace=self.namespace)

    @needs_nothing(NO_SECRET)
    async def counts(self, queue: str) -> tuple[int, int]:
        """How many messages are ready, and how many consumers there are; raises `QueueNotFound`."""
        stats = await self._engine.asking.stats(queue, namespace=self.namespace)
        return stats.ready, stats.consumers

    @needs(Permission.MONITOR.on("queue"))
    def message_count(self, queue: str) -> Coroutine[Any, Any, int]:
        """How many messages a queue holds, in any state; cheaper than all its statistics."""
        return self._engine.asking.message_count(queue, namespace=self.namespace)

    @needs(Need(Permission.MONITOR))
    async def queue_page(
        self,
        *,
        prefix: str = "",
        after: str = "",
        limit: int,
        accepts: Callable[[str, QueueSettings], bool] | None = None,
    ) -> list[str]:
        """The first names of queues, as `Surveying.queue_page`; none in a namespace that is not there yet."""
        if self.namespace not in self._engine.catalog.namespaces():
            return []
        return await self._engine.surveying.queue_page(
            prefix=prefix, after=after, limit=limit, accepts=accepts, namespace=self.namespace
        )

    @needs_nothing(OWN)
    def message_id(self, message: Message) -> str:
        return self._engine.ids.message_id(message.number, message.created_at_ms)

    # -- the broker as a whole ----------------------------------------------------------------------------------------

    @needs(Permission.MONITOR.everywhere())
    def measures(self) -> BrokerMeasures:
        """All that monitoring asks for; also of a broker that has stopped or is closed."""
        return self._engine.statistics.measures()

    @needs(Permission.MONITOR.everywhere())
    def bulk_measures(self) -> BulkMeasures:
        """The same of reading the log in bulk."""
        reader = self.service.log_reader
        return BulkMeasures() if reader is None else reader.measures

    @needs(Permission.MONITOR.everywhere())
    def log_range(self) -> LogRange:
        """Which blocks of the log can be read."""
        return self._engine.log.range()

    @needs(Permission.MONITOR.everywhere())
    def log_position_at(self, at_ms: int) -> int:
        """The position of the first block written at or after that time."""
        return self._engine.log.position_at(at_ms)

    @needs(Permission.READ.everywhere())
    def log_reader(self) -> LogReader:
        """What reads the log in bulk: messages of all queues. Raises why there can be no bulk reading here."""
        reader = self.service.log_reader
        if reader is None:
            raise LogInMemory(
                "The log is in memory only, where nobody else can read it; start the server with --data, not --memory."
            )
        reader.check()
        return reader


if TYPE_CHECKING:
    LimitedSession = Session
else:
    LimitedSession = type("LimitedSession", (Session,), {"__slots__": (), **asking_first(Session, Session._ask)})
"""See the module."""
