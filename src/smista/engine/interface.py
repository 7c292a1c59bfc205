"""What a protocol may ask of an engine, wherever its queues are.

Two halves. The catalog (queues, exchanges, bindings, policies, by a version) is a copy in this process, and answers at
once. What belongs to one queue is submitted, in this process or in another one, and answered later:

- by a `Ticket` where many things are submitted together and nobody waits for each (publishing, settling);
- by a coroutine where somebody waits for it anyway (receiving, browsing);
- by calls to whoever subscribed.

So nothing here may be relied on before it was answered. `Broker` is the engine whose queues are all in this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from smista.core.message import Alike, Publication, Receipt
from smista.core.settling import Outcome
from smista.core.state import DEFAULT_NAMESPACE
from smista.engine.catalog import Catalog
from smista.engine.delivery import Delivery, Published
from smista.engine.ids import Ids
from smista.engine.tickets import Ticket
from smista.errors import BrokerError


class Publishing(Protocol):
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

    def submit_to_exchange(
        self,
        exchange: str,
        publication: Publication,
        *,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        batch_id: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> Ticket[list[Published]]: ...


class Settling(Protocol):
    def acknowledge(self, receipts: Sequence[Receipt]) -> Ticket[list[Outcome]]: ...

    def nack(
        self, receipts: Sequence[Receipt], *, requeue: bool = True, delay_ms: int | None = None, error: str = ""
    ) -> Ticket[list[bool | BrokerError]]: ...

    def release(self, receipts: Sequence[Receipt]) -> Ticket[list[Outcome]]: ...

    def extend(self, receipts: Sequence[Receipt], lease_ms: int) -> Ticket[list[Outcome]]: ...


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


class Engine(Protocol):
    @property
    def ids(self) -> Ids: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def publishing(self) -> Publishing: ...

    @property
    def settling(self) -> Settling: ...

    @property
    def receiving(self) -> Receiving: ...
