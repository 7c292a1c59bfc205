"""One request on its way: who calls, for which queue, and what an action needs to answer it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from smista.core.rate import RateLimit
from smista.core.settings import QueueSettings
from smista.engine import Broker
from smista.protocols import queue_annotations
from smista.protocols.http.asgi import Receive, while_connected
from smista.protocols.sqs.addresses import Address, namespace_of, read_url, region_of_host, write_arn
from smista.protocols.sqs.attempts import Attempts
from smista.protocols.sqs.errors import ACCESS_DENIED, KMS, REQUEST_THROTTLED, SqsError, missing, no_such_queue
from smista.protocols.sqs.limits import Limits, SqsSettings
from smista.protocols.sqs.move_tasks import MoveTasks

T = TypeVar("T")

KMS_ALIAS = "alias/smista/"
ACCOUNTS_MAX = 10_000
"""An unsigned request may name any account; so many are counted apart."""


class Memory:
    """What the door itself remembers between requests; a restart forgets all but the move tasks."""

    def __init__(self) -> None:
        self.deleted_at_ms: dict[tuple[str, str], int] = {}
        self.purged_at_ms: dict[tuple[str, str], int] = {}
        self.attempts = Attempts()
        self.move_tasks = MoveTasks()
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
    namespace: str
    account: str
    region: str
    settings: QueueSettings

    def arn(self, name: str | None = None) -> str:
        """Its own, or that of another queue beside it."""
        return write_arn(self.region, self.account, name or self.name)

    def kept(self, name: str) -> str | None:
        """What an annotation of the queue says."""
        return queue_annotations.find(self.settings, name)


class Call:
    __slots__ = (
        "account",
        "base_url",
        "broker",
        "limits",
        "memory",
        "path",
        "receive",
        "region",
        "settings",
        "trace_header",
    )

    def __init__(
        self,
        *,
        broker: Broker,
        settings: SqsSettings,
        limits: Limits,
        memory: Memory,
        account: str,
        region: str,
        base_url: str,
        path: Address | None,
        receive: Receive,
        trace_header: str | None = None,
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.limits = limits
        self.memory = memory
        self.account = account
        self.region = region
        self.base_url = base_url
        self.path = path
        self.receive = receive
        self.trace_header = trace_header
        """Of the request; what is sent with it has it too, unless it has one of its own."""

    # -- queues -------------------------------------------------------------------------------------------------------

    def target(self, queue_url: str | None) -> Target:
        """The queue that the request names; a URL among its parameters beats the one it was sent to."""
        if queue_url:
            address = read_url(queue_url)
        elif self.path is not None:
            address = self.path
        else:
            raise missing("QueueUrl")
        return self.find(address.name, address.account, address.region)

    def find(self, name: str, account: str | None = None, region: str | None = None) -> Target:
        """A queue by its name, the caller's unless said otherwise; raises `QueueNotFound`."""
        account, region = account or self.account, region or self.region
        namespace = self.namespace(account, region)
        return Target(name, namespace, account, region, self.broker.queue_settings(name, namespace=namespace))

    def declared(self, target: Target) -> QueueSettings:
        """What a queue has apart from policies: what is to be changed, where something is."""
        return self.broker.declared_settings(target.name, namespace=target.namespace)

    def namespace(self, account: str, region: str) -> str:
        if self.settings.access_keys:
            if account != self.account:
                raise SqsError(ACCESS_DENIED, f"Access to the resource of account {account} is denied.")
            if region != self.region:
                # A signature is for one region; what another one has does not exist there.
                raise no_such_queue()
        return namespace_of(account, region, self.settings)

    def url(self, name: str, account: str, region: str) -> str:
        """The one URL of a queue: in the configured region it needs no region, unless the host is named for another."""
        is_short = region == self.settings.region and not self.settings.region_urls
        if is_short and region_of_host(self.base_url.partition("://")[2]) in (None, region):
            return f"{self.base_url}/{account}/{name}"
        return f"{self.base_url}/queue/{region}/{account}/{name}"

    def check_key(self, target: Target) -> None:
        """There is no KMS here, so keys only have names; some of them stand for what KMS could answer."""
        key = target.kept("sqs.KmsMasterKeyId")
        if key is not None and key.startswith(KMS_ALIAS):
            kind = KMS.get(key.removeprefix(KMS_ALIAS))
            if kind is not None:
                raise SqsError(kind, f"The key {key} stands for this answer of KMS.")

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def wait(self, work: Awaitable[T], take_back: Callable[[T], None]) -> T:
        """Wait for what may take long, and give up when the client goes or we stop."""
        return await while_connected(work, self.receive, self.memory.draining, take_back)
