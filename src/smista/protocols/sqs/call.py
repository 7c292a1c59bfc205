"""A request: its caller, its queue, and what else an action needs to answer it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import msgspec

from smista.protocols.sqs.addresses import Address, namespace_of, read_url, region_of_host, write_arn
from smista.protocols.sqs.attempts import Attempts
from smista.protocols.sqs.errors import ACCESS_DENIED, KMS, REQUEST_THROTTLED, SqsError, missing, no_such_queue
from smista.protocols.sqs.limits import Limits, SqsSettings
from smista.protocols.sqs.signature import Caller
from smista.protocols.web.asgi import Receive, while_connected
from smista.protocols.web.sessions import Sessions
from smista.service import queue_annotations
from smista.service.commands.queues import AlterQueue
from smista.service.queue_settings import GivenSettings
from smista.service.service import Service
from smista.service.session import Session
from smista.service.values import QueueSettings, RateLimit

T = TypeVar("T")

KMS_ALIAS = "alias/smista/"
ACCOUNTS_MAX = 10_000
"""An unsigned request may name any account; so many are counted separately."""


class Memory:
    """What is remembered between requests; a restart forgets it."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.deleted_at_ms: dict[tuple[str, str], int] = {}
        self.purged_at_ms: dict[tuple[str, str], int] = {}
        self.attempts = Attempts()
        self.draining = asyncio.Event()
        self._rates: dict[str, RateLimit] = {}

    def throttle(self, account: str, per_second: int, now_ms: int) -> None:
        """Count a request of this account; raises where it has made more than it may."""
        rate = self._rates.get(account)
        if rate is None:
            if len(self._rates) >= ACCOUNTS_MAX:
                self._rates.clear()
            rate = self._rates[account] = RateLimit(per_second, now_ms)
        if not rate.available(now_ms):
            raise SqsError(
                REQUEST_THROTTLED, f"Account {account} may make {per_second} requests a second; slow down, and retry."
            )
        rate.take(1)


class Target(NamedTuple):
    """The queue that a request is about."""

    name: str
    account: str
    region: str
    settings: QueueSettings
    session: Session
    """The caller's, for the namespace of the queue."""

    @property
    def namespace(self) -> str:
        return self.session.namespace

    def arn(self, name: str | None = None) -> str:
        """Of this queue, or of another one of the same account and region."""
        return write_arn(self.region, self.account, name or self.name)

    def annotation(self, name: str) -> str | None:
        """The value of an annotation of the queue."""
        return queue_annotations.find(self.settings, name)

    def declared(self) -> QueueSettings:
        """Its settings without those of policies; a change starts from these."""
        return self.session.declared_settings(self.name)

    async def alter(self, settings: QueueSettings) -> None:
        # Only what is otherwise: to name where dead letters go, even as before, takes a permission of its own.
        present = msgspec.structs.asdict(self.declared())
        asked = msgspec.structs.asdict(settings)
        changes = {name: value for name, value in asked.items() if value != present[name]}
        if not changes:
            changes = {"annotations": settings.annotations}
        await self.session.run(AlterQueue(self.name, GivenSettings(**changes)))


class Call:
    __slots__ = (
        "account",
        "address",
        "base_url",
        "limits",
        "memory",
        "name",
        "path",
        "receive",
        "region",
        "service",
        "settings",
        "trace_header",
    )

    def __init__(
        self,
        *,
        service: Service,
        settings: SqsSettings,
        limits: Limits,
        memory: Memory,
        caller: Caller,
        address: str,
        base_url: str,
        path: Address | None,
        receive: Receive,
        trace_header: str | None = None,
    ) -> None:
        self.service = service
        self.settings = settings
        self.limits = limits
        self.memory = memory
        self.account, self.region, self.name = caller
        self.address = address
        self.base_url = base_url
        self.path = path
        self.receive = receive
        self.trace_header = trace_header
        """Of the request, and of each of its messages that has no header of its own."""

    # -- queues -------------------------------------------------------------------------------------------------------

    def target(self, queue_url: str | None) -> Target:
        """The queue that the request names; a URL among its parameters wins over the one it was sent to."""
        if queue_url:
            address = read_url(queue_url)
        elif self.path is not None:
            address = self.path
        else:
            raise missing("QueueUrl")
        return self.find(address.name, address.account, address.region)

    def find(self, name: str, account: str | None = None, region: str | None = None) -> Target:
        """A queue by its name, the caller's unless another account or region is given; raises `QueueNotFound`."""
        account, region = account or self.account, region or self.region
        session = self.session_of(account, region)
        return Target(name, account, region, session.queue_settings(name), session)

    @property
    def session(self) -> Session:
        """For the account and the region of the caller."""
        return self.session_of(self.account, self.region)

    def session_of(self, account: str, region: str) -> Session:
        """For another account or region; raises where the caller may not use them."""
        if self.settings.access_keys:
            if account != self.account:
                raise SqsError(ACCESS_DENIED, f"Access to the resource of account {account} is denied.")
            if region != self.region:
                # A signature is for one region; queues of other regions do not exist there.
                raise no_such_queue()
        return self.memory.sessions.get(namespace_of(account, region, self.settings), self.address, self.name)

    def url(self, name: str, account: str, region: str) -> str:
        """The one URL of a queue: in the configured region it needs no region, unless the host is named for another."""
        is_short = region == self.settings.region and not self.settings.region_urls
        if is_short and region_of_host(self.base_url.partition("://")[2]) in (None, region):
            return f"{self.base_url}/{account}/{name}"
        return f"{self.base_url}/queue/{region}/{account}/{name}"

    def check_key(self, target: Target) -> None:
        """There is no KMS here; some names of keys stand for an error of KMS, and raise it."""
        key = target.annotation("sqs.KmsMasterKeyId")
        if key is not None and key.startswith(KMS_ALIAS):
            kind = KMS.get(key.removeprefix(KMS_ALIAS))
            if kind is not None:
                raise SqsError(kind, f"The key {key} stands for this answer of KMS.")

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def wait(self, work: Awaitable[T], take_back: Callable[[T], None]) -> T:
        """Wait for what may take long, until the client disconnects or the broker stops."""
        return await while_connected(work, self.receive, self.memory.draining, take_back)
