"""What the service may ask of an engine, wherever its queues are.

Two halves. What belongs to this process answers at once: the catalog (queues, exchanges, bindings, policies, by a
version), which is a copy; names and seals; memory, time and the log; what is staged on its disk. What belongs to one
queue is submitted, in this process or in another one, and answered later:

- by a `Ticket` where many things are submitted together and nobody waits for each (publishing, settling);
- by a coroutine where somebody waits for it anyway (receiving, browsing, asking);
- by calls to whoever subscribed;
- not at all where nobody relies on it: a queue is used, a subscription has more credit, what is held goes back.

So nothing of it may be relied on before it was answered. `Broker` is the engine whose queues are all in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Unpack

from smista.core.browsing import ANY, Page, Wanted
from smista.core.counters import QueueStats
from smista.core.exchanges import Binding, ExchangeSettings
from smista.core.message import Alike, Message, Publication, Receipt
from smista.core.settings import IfExists, QueueSettings
from smista.core.settling import Outcome
from smista.core.state import DEFAULT_NAMESPACE, ReadRouting
from smista.engine.background import BackgroundTasks
from smista.engine.catalog import Catalog
from smista.engine.claim_rows import ClaimedRows
from smista.engine.claim_views import ClaimantView, ClaimView
from smista.engine.claiming import CLAIM_LEASE_MS
from smista.engine.delivery import Delivery, Published
from smista.engine.fair_turns import FairTurns
from smista.engine.ids import Ids
from smista.engine.intake import Intake
from smista.engine.jobs import How, JobView
from smista.engine.log_state import LogState
from smista.engine.staging import Staging
from smista.engine.statistics import Statistics
from smista.engine.subscription import CreditPool, Subscription
from smista.engine.surveying import Surveying
from smista.engine.tickets import Ticket
from smista.errors import BrokerError


class Publishing(Protocol):
    async def publish(
        self,
        queue: str,
        publications: Sequence[Publication],
        *,
        batch_id: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published | BrokerError]: ...

    async def publish_to_exchange(
        self,
        exchange: str,
        publication: Publication,
        *,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        batch_id: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Published]: ...

    def submit(
        self,
        queue: str,
        publications: Sequence[Publication],
        *,
        batch_id: str | None = None,
        is_use: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Ticket[list[Published | BrokerError]]: ...

    def submit_alike(
        self, queue: str, alike: Alike, *, is_use: bool = True, namespace: str = DEFAULT_NAMESPACE
    ) -> Ticket[list[tuple[int, BrokerError]]]: ...

    def submit_to_queues(
        self,
        queues: Sequence[str],
        publication: Publication,
        *,
        is_use: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Ticket[list[Published | BrokerError]]: ...


class Settling(Protocol):
    def acknowledge(self, receipts: Sequence[Receipt]) -> Ticket[list[Outcome]]: ...

    def nack(
        self, receipts: Sequence[Receipt], *, requeue: bool = True, delay_ms: int | None = None, error: str = ""
    ) -> Ticket[list[bool | BrokerError]]: ...

    def release(self, receipts: Sequence[Receipt]) -> Ticket[list[Outcome]]: ...

    def extend(self, receipts: Sequence[Receipt], lease_ms: int) -> Ticket[list[Outcome]]: ...


class Receipts(Protocol):
    def read(self, text: str) -> Receipt:
        """In this process: whoever has the key reads the seal."""
        ...

    def can_be_settled(self, receipts: Sequence[Receipt]) -> Ticket[list[bool]]: ...


class Receiving(Protocol):
    async def receive(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        consumer: str = "",
        several_per_group: bool = False,
        beside_active: bool = False,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[Delivery]: ...

    async def held(self, receipts: Iterable[Receipt]) -> list[Delivery]: ...


class Subscribing(Protocol):
    """A subscription and a pool are made at once, in this process, which keeps account of what has reached it. Only the
    engine looks inside: where the queue is elsewhere it has kinds of its own, see decision 046. What is wrong by the
    catalog (no such queue, a prefetch out of its range) is raised at once; what the queue has against it comes by
    `ended`."""

    def subscribe(
        self,
        queue: str,
        deliver: Callable[[list[Delivery]], None],
        *,
        ended: Callable[[BrokerError], None] = ...,
        consumer: str = "",
        prefetch: int | None = None,
        priority: int = 0,
        lease_ms: int | None = None,
        pool: CreditPool | None = None,
        is_counted: bool = True,
        channel: object = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Subscription: ...

    def pool(self, limit: int) -> CreditPool: ...

    def set_prefetch(self, subscription: Subscription, prefetch: int) -> None: ...

    def widen(self, subscription: Subscription, more: int, most: int) -> None: ...

    def hold_back(self, subscription: Subscription, is_held_back: bool) -> None: ...

    def begin_pool(self, pool: CreditPool, members: Iterable[Subscription], receipts: Iterable[Receipt]) -> None: ...

    def let_go_in_pool(self, pool: CreditPool, receipts: Iterable[Receipt]) -> None: ...

    def set_pool_limit(self, pool: CreditPool, limit: int) -> None: ...

    def cancel(self, subscription: Subscription, *, keeps_held: bool = False) -> None: ...

    def leave_all(
        self, subscriptions: Sequence[Subscription], receipts: Sequence[Receipt], *, is_vanished: bool
    ) -> asyncio.Future[None] | None: ...


class Declaring(Protocol):
    async def declare_queue(
        self,
        name: str,
        settings: QueueSettings = ...,
        *,
        if_exists: IfExists = IfExists.SAME,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None: ...

    def submit_queue(
        self, name: str, settings: QueueSettings, *, namespace: str = DEFAULT_NAMESPACE
    ) -> Ticket[int]: ...

    async def alter_queue(
        self, name: str, settings: QueueSettings, *, namespace: str = DEFAULT_NAMESPACE
    ) -> QueueSettings: ...

    async def delete_queue(
        self,
        name: str,
        *,
        if_empty: bool = False,
        if_unused: bool = False,
        waiting_only: bool = False,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int: ...

    def delete_queue_now(self, number: int, *, if_no_subscriptions: bool = False) -> object: ...

    def use_queue(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None: ...

    async def purge(self, name: str, *, ready_only: bool = False, namespace: str = DEFAULT_NAMESPACE) -> int: ...

    async def pause(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None: ...

    async def resume(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None: ...

    async def set_policy(
        self,
        name: str,
        pattern: str,
        settings: Mapping[str, Any],
        *,
        priority: int = 0,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int: ...

    async def delete_policy(self, name: str, *, namespace: str = DEFAULT_NAMESPACE) -> None: ...

    async def declare_exchange(
        self, name: str, settings: ExchangeSettings, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None: ...

    async def delete_exchange(
        self, name: str, *, if_unused: bool = False, namespace: str = DEFAULT_NAMESPACE
    ) -> None: ...

    async def bind(self, binding: Binding, *, namespace: str = DEFAULT_NAMESPACE) -> None: ...

    async def unbind(self, binding: Binding, *, namespace: str = DEFAULT_NAMESPACE) -> None: ...


class Browsing(Protocol):
    async def browse(
        self,
        queue: str,
        wanted: Wanted = ANY,
        *,
        after: int = 0,
        limit: int = 100,
        with_bodies: bool = True,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Page: ...

    async def peek(self, queue: str, limit: int = 1, *, namespace: str = DEFAULT_NAMESPACE) -> list[Message]: ...

    async def get(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Message: ...


class Messages(Protocol):
    async def reschedule(
        self, queue: str, message_id: str, due_at_ms: int, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None: ...

    async def cancel(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> None: ...

    async def delete(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> None: ...


class Redriving(Protocol):
    async def redrive(
        self,
        queue: str,
        wanted: Wanted = ANY,
        *,
        to: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int: ...

    async def discard(self, queue: str, wanted: Wanted, *, namespace: str = DEFAULT_NAMESPACE) -> int: ...


class Jobs(Protocol):
    async def start(self, places: Sequence[tuple[str, Wanted]], **how: Unpack[How]) -> JobView: ...

    async def run(self, places: Sequence[tuple[str, Wanted]], **how: Unpack[How]) -> JobView: ...

    async def page(
        self, queue: str | None = None, *, after: int = 0, limit: int, namespace: str = DEFAULT_NAMESPACE
    ) -> tuple[list[JobView], int | None]: ...

    async def cancel(self, queue: str, job_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> JobView: ...


class Claiming(Protocol):
    async def claim(
        self,
        queue: str,
        consumer: str,
        *,
        session: str,
        after: int,
        max_rows: int,
        max_bytes: int | None = None,
        lease_ms: int = CLAIM_LEASE_MS,
        wait_ms: int = 0,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> ClaimView | None: ...

    async def read(
        self,
        queue: str,
        consumer: str,
        number: int,
        *,
        start: int = 0,
        end: int | None = None,
        session: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> AsyncIterator[ClaimedRows]: ...

    async def acknowledge(
        self, queue: str, consumer: str, up_to: int, *, session: str, namespace: str = DEFAULT_NAMESPACE
    ) -> tuple[int, int]: ...

    async def renew(
        self, queue: str, consumer: str, lease_ms: int, *, session: str, namespace: str = DEFAULT_NAMESPACE
    ) -> list[ClaimView]: ...

    async def release(
        self, queue: str, consumer: str, *, session: str, after: int = 0, namespace: str = DEFAULT_NAMESPACE
    ) -> int: ...


class Asking(Protocol):
    async def stats(self, queue: str, *, namespace: str = DEFAULT_NAMESPACE) -> QueueStats: ...

    async def message_count(self, queue: str, *, namespace: str = DEFAULT_NAMESPACE) -> int: ...

    async def receipt_of(self, queue: str, message_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> Receipt: ...

    async def holds(
        self, queue: str, message_id: str, wanted: Wanted = ANY, *, namespace: str = DEFAULT_NAMESPACE
    ) -> bool: ...

    async def claimants(
        self, queue: str, consumer: str | None = None, *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[ClaimantView]: ...


class Engine(Protocol):
    # -- of this process -----------------------------------------------------------------------------------------------

    @property
    def ids(self) -> Ids: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def surveying(self) -> Surveying: ...

    @property
    def intake(self) -> Intake: ...

    @property
    def log(self) -> LogState: ...

    @property
    def statistics(self) -> Statistics: ...

    @property
    def staging(self) -> Staging: ...

    @property
    def background(self) -> BackgroundTasks: ...

    @property
    def fair_turns(self) -> FairTurns: ...

    @property
    def failure(self) -> BaseException | None: ...

    @property
    def is_closed(self) -> bool: ...

    def now_ms(self) -> int: ...

    def read_routing_with(self, read: ReadRouting) -> None: ...

    async def durable(self) -> None: ...

    # -- of one queue, which may be elsewhere --------------------------------------------------------------------------

    @property
    def publishing(self) -> Publishing: ...

    @property
    def settling(self) -> Settling: ...

    @property
    def receipts(self) -> Receipts: ...

    @property
    def receiving(self) -> Receiving: ...

    @property
    def subscribing(self) -> Subscribing: ...

    @property
    def declaring(self) -> Declaring: ...

    @property
    def browsing(self) -> Browsing: ...

    @property
    def messages(self) -> Messages: ...

    @property
    def redriving(self) -> Redriving: ...

    @property
    def jobs(self) -> Jobs: ...

    @property
    def claiming(self) -> Claiming: ...

    @property
    def asking(self) -> Asking: ...
