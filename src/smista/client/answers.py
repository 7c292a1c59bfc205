"""What the broker answers, as structures. Fields that a newer broker adds are passed over."""

from __future__ import annotations

from typing import Any

import msgspec

from smista.core.settings import QueueSettings
from smista.errors import BrokerError


class Published(msgspec.Struct, frozen=True):
    """A message that is on the broker's disk."""

    id: str
    position: int
    """Its place in the queue: 1 is next. 0 for a duplicate."""
    is_duplicate: bool = False
    """It was there already, under the same deduplication id; `id` is the first one's."""


class Routed(msgspec.Struct, frozen=True):
    """One queue that a message reached through an exchange."""

    queue: str
    id: str = msgspec.field(name="message_id")
    position: int
    is_duplicate: bool = msgspec.field(default=False, name="duplicate")


class PutSummary(msgspec.Struct):
    """What became of many."""

    accepted: int = 0
    duplicates: int = 0
    """Not stored, because their deduplication ids had been."""
    refused: int = 0
    errors: list[tuple[int, BrokerError]] = []
    """Why, by the message's place in what was put: the first thousand."""

    @property
    def count(self) -> int:
        return self.accepted + self.duplicates + self.refused


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """One queue at one moment; docs/queues.md explains each."""

    queue: str
    namespace: str
    depth: int
    """Ready, scheduled and in flight together."""
    ready: int
    scheduled: int
    in_flight: int
    dead: int
    body_bytes: int
    consumers: int
    is_paused: bool
    published_total: int
    delivered_total: int
    acknowledged_total: int
    nacked_total: int
    timed_out_total: int
    released_total: int
    dead_lettered_total: int
    redriven_total: int
    expired_total: int
    dropped_total: int
    purged_total: int
    duplicates_total: int
    rejected_total: int
    wait_ms_average: float
    """From ready to first delivery."""
    oldest_age_ms: int
    """Age of the oldest ready message, 0 when there is none."""
    consumed_total: int
    """As `delivered_total`, in Synap's word; so are the next three for others above."""
    acked_total: int
    avg_wait_time_ms: float
    oldest_message_age_secs: float
    claims: int = 0
    """Open ones ..."""
    claimed: int = 0
    """... and how many messages they hold."""
    acknowledged_late_total: int = 0
    """Rows of claims that had expired when they were acknowledged."""
    policy: str | None = None
    """The operator's policy that holds for it."""


class ExplainedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's settings, and where they come from."""

    settings: QueueSettings
    """What it has."""
    declared: QueueSettings
    """What it was declared with, or altered to; it has that where no policy says otherwise."""
    policy: str | None = None
    """The policy that holds for it ..."""
    effective_policy_definition: dict[str, Any] = {}
    """... and the settings that it has by that policy."""


class Policy(msgspec.Struct, frozen=True):
    """Settings for all queues of a name pattern."""

    name: str = msgspec.field(name="policy")
    pattern: str
    priority: int
    settings: dict[str, Any]


class LogSpace(msgspec.Struct, frozen=True, kw_only=True):
    """How much the broker's log holds, and why it is not less."""

    bytes: int = 0
    needed_bytes: int = 0
    """What of it is still needed: messages in any state, claims, commits, declarations, remembered ids ..."""
    spare_bytes: int = 0
    """... and how much may lie beside that before the log is reclaimed."""
    kept_for: str = ""
    """Why its oldest block is there: `last_block`, `need`, `retention`, `damage`, or `reclaiming`; see
    docs/durability.md."""
    oldest_at_ms: int | None = None
    """When that was written."""
    retention_ms: int = 0
    """Younger blocks are kept for readers of the log ..."""
    retention_bytes: int = 0
    """... while it is not larger than this; both 0 while the disk is nearly full."""


class ConnectionRoom(msgspec.Struct, frozen=True, kw_only=True):
    """How many connections the broker has, and may have."""

    open: int = 0
    connections_max: int | None = None
    """For HTTP and for AMQP each; None for any number."""
    possible: int | None = None
    """For both together: what the limit of open files leaves for them."""


class BrokerInfo(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    namespaces: list[str]
    queues: int
    messages: int
    log_bytes: int
    now_ms: int
    refusal: str | None = None
    """Why publishes are refused just now, if they are."""
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
    """This exchange sends the message there, because of this."""

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


# The answers around them, one per command that has any.


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


class LookedIn(msgspec.Struct):
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
