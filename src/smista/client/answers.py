"""The broker's answers as structures. Fields that a newer broker adds are ignored."""

from __future__ import annotations

from typing import Any

import msgspec

from smista.core.counters import QueueStats
from smista.core.settings import QueueSettings
from smista.errors import BrokerError


class Published(msgspec.Struct, frozen=True):
    """A message that is on the broker's disk."""

    id: str
    position: int
    """Its place in the queue: 1 is next. 0 for a duplicate."""
    is_duplicate: bool = False
    """A message with the same deduplication id was stored before; `id` names that one."""


class Routed(msgspec.Struct, frozen=True):
    """One queue that a message reached through an exchange."""

    queue: str
    id: str = msgspec.field(name="message_id")
    position: int
    is_duplicate: bool = msgspec.field(default=False, name="duplicate")


class PutSummary(msgspec.Struct):
    """The outcome of `put_many`."""

    accepted: int = 0
    duplicates: int = 0
    """Not stored, because their deduplication ids had been."""
    refused: int = 0
    errors: list[tuple[int, BrokerError]] = []
    """The first thousand errors, each with the message's index in the input."""

    @property
    def count(self) -> int:
        return self.accepted + self.duplicates + self.refused


class ExplainedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's settings, and where they come from."""

    settings: QueueSettings
    """What it has."""
    declared: QueueSettings
    """What it was declared with or altered to; in force where no policy overrides it."""
    policy: str | None = None
    """The policy that applies to it ..."""
    effective_policy_definition: dict[str, Any] = {}
    """... and the settings that it has by that policy."""


class Policy(msgspec.Struct, frozen=True):
    """Settings for all queues of a name pattern."""

    name: str = msgspec.field(name="policy")
    pattern: str
    priority: int
    settings: dict[str, Any]


class LogSpace(msgspec.Struct, frozen=True, kw_only=True):
    """How large the broker's log is, and why it is not smaller."""

    bytes: int = 0
    needed_bytes: int = 0
    """What of it is still needed: messages in any state, claims, commits, declarations, remembered ids ..."""
    spare_bytes: int = 0
    """... and how much else the log may hold before space is reclaimed."""
    kept_for: str = ""
    """Why its oldest block is kept: `last_block`, `need`, `retention`, `damage`, or `reclaiming`; see
    docs/durability.md."""
    oldest_at_ms: int | None = None
    """When that block was written."""
    retention_ms: int = 0
    """Younger blocks are kept for readers of the log ..."""
    retention_bytes: int = 0
    """... while it is not larger than this; both 0 while the disk is nearly full."""


class ConnectionRoom(msgspec.Struct, frozen=True, kw_only=True):
    """How many connections the broker has, and how many it allows."""

    open: int = 0
    connections_max: int | None = None
    """For HTTP and for AMQP each; None for any number."""
    possible: int | None = None
    """For both together: as many as the limit of open files allows."""


class BrokerInfo(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    namespaces: list[str]
    queues: int
    messages: int
    log_bytes: int
    now_ms: int
    refusal: str | None = None
    """Why publishes are refused at the moment; None while they are accepted."""
    log: LogSpace = LogSpace()
    connections: ConnectionRoom = ConnectionRoom()


class Exchange(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="exchange")
    kind: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: str | None = None


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    exchange: str
    queue: str | None = None
    to_exchange: str | None = None
    key: str = ""
    arguments: dict[str, Any] = {}


class RouteStep(msgspec.Struct, frozen=True):
    """One step of a route: where this exchange sends the message, and by which binding."""

    exchange: str
    via: str
    destination_kind: str
    destination: str
    key: str = ""
    arguments: dict[str, Any] = {}
    is_missing: bool = False


class Route(msgspec.Struct, frozen=True):
    """Where a message would go."""

    queues: list[str]
    is_unroutable: bool
    steps: list[RouteStep]


# The answers that carry them, one per command.


class Created(msgspec.Struct):
    created: bool


class PolicySet(msgspec.Struct):
    queues: int


class Policies(msgspec.Struct):
    policies: list[Policy]


class Settings(msgspec.Struct):
    settings: QueueSettings


class QueueNames(msgspec.Struct):
    queues: list[str]
    after: str | None = None


class QueueDetails(msgspec.Struct):
    queues: list[QueueStats]
    after: str | None = None


class Deleted(msgspec.Struct):
    deleted: int


class Purged(msgspec.Struct):
    purged: int


class Redriven(msgspec.Struct):
    redriven: int


class Redrive(msgspec.Struct, frozen=True):
    """A redrive that goes on by itself."""

    job: str
    """Its id."""
    queue: str
    """The queue that it belongs to: the first of those that it searches."""
    state: str
    """`running`, `completed`, `cancelled` or `failed`."""
    expected: int
    """How many there were when it started, at most: the filters may leave fewer."""
    redriven: int
    skipped: int
    """Left alone, since they never were dead letters, and no queue was named for them."""
    started_at_ms: int
    ended_at_ms: int | None = None
    to: str | None = None
    limit: int | None = None
    per_second: float | None = None
    code: str | None = None
    """Of the error it failed with."""
    error: str | None = None


class Redrives(msgspec.Struct):
    redrives: list[Redrive]
    after: int | None = None


class SearchedQueues(msgspec.Struct):
    looked_in: list[str] = []


class RoutedList(msgspec.Struct):
    routed: list[Routed]


class Exchanges(msgspec.Struct):
    exchanges: list[Exchange]
    after: str | None = None


class Bindings(msgspec.Struct):
    bindings: list[Binding]
    after: int | None = None


class Nacked(msgspec.Struct):
    action: str = ""


class Done(msgspec.Struct):
    success: bool = True
