"""Queues: making, changing, listing, emptying, removing them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from smista.core.checks import RETRIES_MAX
from smista.core.counters import QueueStats
from smista.core.errors import InvalidSettings, QueueNotFound
from smista.core.settings import DeadLetterMode, IfExists, QueueSettings
from smista.core.wording import missing_field
from smista.engine import Broker
from smista.protocols import queue_annotations
from smista.protocols.http.commands.base import SHOWN_AT_ONCE, Command, Door, Name, Success, command
from smista.protocols.http.errors import InvalidRequest

GivenSettings = msgspec.defstruct(
    "GivenSettings",
    [(field.name, field.type | UnsetType, UNSET) for field in msgspec.structs.fields(QueueSettings)],
    forbid_unknown_fields=True,
    kw_only=True,
)
"""Some of a queue's settings: those that are given."""

AllSettings = msgspec.defstruct(
    "AllSettings", [(field.name, field.type) for field in msgspec.structs.fields(QueueSettings)], kw_only=True
)
"""All of a queue's settings, those at their default too."""


def given(settings: Any) -> dict[str, Any]:
    if settings is None:
        return {}
    return {name: value for name in settings.__struct_fields__ if (value := getattr(settings, name)) is not UNSET}


def all_settings(settings: QueueSettings) -> Any:
    return AllSettings(**msgspec.structs.asdict(settings))


def declared(broker: Broker, name: str, namespace: str) -> bool:
    try:
        broker.queue_settings(name, namespace=namespace)
    except QueueNotFound:
        return False
    return True


class DeadLetterConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    enabled: bool = True
    max_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] | None = 10_000


class PrefetchConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    default: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 10
    max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_000


class Config(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A queue's settings in the words of the Synap specification, with its defaults."""

    default_ack_deadline_secs: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 30
    default_max_retries: Annotated[int, msgspec.Meta(ge=0, le=RETRIES_MAX)] = 3
    default_priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 5
    max_queue_depth: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] | None = 100_000
    dead_letter: DeadLetterConfig = msgspec.field(default_factory=DeadLetterConfig)
    prefetch: PrefetchConfig = msgspec.field(default_factory=PrefetchConfig)

    def settings(self) -> dict[str, Any]:
        return {
            "lease_ms": round(self.default_ack_deadline_secs * 1000),
            "max_retries": self.default_max_retries,
            "max_priority": 9,
            "default_priority": self.default_priority,
            "max_depth": self.max_queue_depth,
            "dead_letter": DeadLetterMode.MOVE if self.dead_letter.enabled else DeadLetterMode.PARK,
            "dead_letter_max_depth": self.dead_letter.max_size,
            "prefetch": self.prefetch.default,
            "max_prefetch": self.prefetch.max,
        }


Existing = Literal["same", "keep"]
"""`IfExists`, as it can stand in a query."""


class Created(msgspec.Struct):
    queue: str
    created: bool
    """Whether it is new."""
    success: bool = True


async def declare(broker: Broker, name: str, settings: dict[str, Any], if_exists: Existing, namespace: str) -> Created:
    is_new = not declared(broker, name, namespace)
    present = () if is_new else broker.queue_settings(name, namespace=namespace).annotations
    if "annotations" in settings:
        settings = {**settings, "annotations": queue_annotations.given_by_others(settings["annotations"], present)}
    await broker.declare_queue(name, QueueSettings(**settings), if_exists=IfExists(if_exists), namespace=namespace)
    return Created(name, is_new)


@command
class CreateQueue(Command):
    """Make a queue with the defaults of the Synap specification."""

    name: ClassVar[str] = "queue.create"
    answer: ClassVar[Any] = Created

    queue: Name | None = None
    queue_name: Name | None = msgspec.field(default=None, name="name")
    settings: GivenSettings | None = None  # type: ignore[valid-type]  # made by defstruct, which mypy cannot follow
    config: Config | None = None
    if_exists: Existing = "same"

    async def run(self, door: Door) -> Created:
        queue = self.queue or self.queue_name
        if queue is None:
            raise InvalidRequest(missing_field("queue"))
        if self.queue is not None and self.queue_name not in (None, self.queue):
            raise InvalidRequest("`queue` and `name` differ; give one of them.")
        settings = (self.config or Config()).settings() | given(self.settings)
        return await declare(door.broker, queue, settings, self.if_exists, self.namespace)


@command
class DeclareQueue(Command):
    """Make a queue, or see that it is there: with these settings, or with whatever it has."""

    name: ClassVar[str] = "queue.declare"
    answer: ClassVar[Any] = Created

    queue: Name
    settings: GivenSettings | None = None  # type: ignore[valid-type]  # as above
    if_exists: Existing = "same"

    async def run(self, door: Door) -> Created:
        return await declare(door.broker, self.queue, given(self.settings), self.if_exists, self.namespace)


class SettingsAnswer(msgspec.Struct):
    queue: str
    settings: AllSettings  # type: ignore[valid-type]  # as above
    """What it has."""
    declared: AllSettings  # type: ignore[valid-type]  # as above
    """What it was declared with, or altered to; it has that where no policy says otherwise."""
    policy: str | None
    """The policy that holds for it ..."""
    effective_policy_definition: GivenSettings  # type: ignore[valid-type]  # as above
    """... and the settings that it has by that policy."""


def show_settings(broker: Broker, queue: str, namespace: str) -> SettingsAnswer:
    policy, given_by_policy = broker.policy_of(queue, namespace=namespace)
    return SettingsAnswer(
        queue,
        all_settings(broker.queue_settings(queue, namespace=namespace)),
        all_settings(broker.declared_settings(queue, namespace=namespace)),
        policy,
        GivenSettings(**given_by_policy),
    )


@command
class AlterQueue(Command):
    """Change some of a queue's settings."""

    name: ClassVar[str] = "queue.alter"
    answer: ClassVar[Any] = SettingsAnswer

    queue: Name
    settings: GivenSettings  # type: ignore[valid-type]  # as above

    async def run(self, door: Door) -> SettingsAnswer:
        present = door.broker.declared_settings(self.queue, namespace=self.namespace)
        changes = given(self.settings)
        if not changes:
            raise InvalidSettings("No setting is given; name those to change.")
        if "annotations" in changes:
            changes["annotations"] = queue_annotations.given_by_others(changes["annotations"], present.annotations)
        settings = msgspec.structs.replace(present, **changes)
        await door.broker.alter_queue(self.queue, settings, namespace=self.namespace)
        return show_settings(door.broker, self.queue, self.namespace)


@command
class ShowSettings(Command):
    """All settings of a queue: what it has, what was declared, and what a policy gives."""

    name: ClassVar[str] = "queue.settings"
    answer: ClassVar[Any] = SettingsAnswer

    queue: Name

    async def run(self, door: Door) -> SettingsAnswer:
        return show_settings(door.broker, self.queue, self.namespace)


class StatsAnswer(msgspec.Struct, kw_only=True):
    """One queue at one moment."""

    queue: str
    namespace: str
    depth: int
    ready: int
    scheduled: int
    in_flight: int
    dead: int
    body_bytes: int
    consumers: int
    claims: int
    claimed: int
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
    acknowledged_late_total: int
    wait_ms_average: float
    oldest_age_ms: int
    consumed_total: int
    """Synap's word for `delivered_total`, as those below are its words for others above."""
    acked_total: int
    avg_wait_time_ms: float
    oldest_message_age_secs: float
    policy: str | None
    """The operator's policy that holds for it."""


def show_stats(stats: QueueStats) -> StatsAnswer:
    return StatsAnswer(
        queue=stats.name,
        namespace=stats.namespace,
        depth=stats.depth,
        ready=stats.ready,
        scheduled=stats.scheduled,
        in_flight=stats.in_flight,
        dead=stats.dead,
        body_bytes=stats.body_bytes,
        consumers=stats.consumers,
        claims=stats.claims,
        claimed=stats.claimed,
        is_paused=stats.is_paused,
        published_total=stats.published_total,
        delivered_total=stats.delivered_total,
        acknowledged_total=stats.acknowledged_total,
        nacked_total=stats.nacked_total,
        timed_out_total=stats.timed_out_total,
        released_total=stats.released_total,
        dead_lettered_total=stats.dead_lettered_total,
        redriven_total=stats.redriven_total,
        expired_total=stats.expired_total,
        dropped_total=stats.dropped_total,
        purged_total=stats.purged_total,
        duplicates_total=stats.duplicates_total,
        rejected_total=stats.rejected_total,
        acknowledged_late_total=stats.acknowledged_late_total,
        wait_ms_average=round(stats.wait_ms_average, 3),
        oldest_age_ms=stats.oldest_age_ms,
        consumed_total=stats.delivered_total,
        acked_total=stats.acknowledged_total,
        avg_wait_time_ms=round(stats.wait_ms_average, 3),
        oldest_message_age_secs=stats.oldest_age_ms / 1000,
        policy=stats.policy,
    )


class QueueList(msgspec.Struct):
    queues: list[str | StatsAnswer]
    after: str | None
    """Where the next page starts; null when this was the last."""


@command
class ListQueues(Command):
    """Queues in the order of their names."""

    name: ClassVar[str] = "queue.list"
    answer: ClassVar[Any] = QueueList

    prefix: str = ""
    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1_000
    details: bool = False

    async def run(self, door: Door) -> QueueList:
        broker = door.broker
        if self.namespace not in broker.namespaces():
            return QueueList([], None)
        names = await broker.queue_page(
            prefix=self.prefix, after=self.after, limit=self.limit + 1, namespace=self.namespace
        )
        page = names[: self.limit]
        after = page[-1] if len(names) > self.limit else None
        if not self.details:
            return QueueList([*page], after)
        shown: list[str | StatsAnswer] = [
            show_stats(broker.stats(name, namespace=self.namespace))
            async for name in broker.lane.in_turns(page, SHOWN_AT_ONCE)
            # One may be deleted while others have their turn.
            if broker.has_queue(name, namespace=self.namespace)
        ]
        return QueueList(shown, after)


@command
class ShowStats(Command):
    """Counts and totals of a queue."""

    name: ClassVar[str] = "queue.stats"
    answer: ClassVar[Any] = StatsAnswer

    queue: Name

    async def run(self, door: Door) -> StatsAnswer:
        return show_stats(door.broker.stats(self.queue, namespace=self.namespace))


class Deleted(msgspec.Struct):
    deleted: int
    """How many messages went with it."""
    success: bool = True


@command
class DeleteQueue(Command):
    """Remove a queue and what is in it."""

    name: ClassVar[str] = "queue.delete"
    answer: ClassVar[Any] = Deleted

    queue: Name
    if_empty: bool = False
    if_unused: bool = False

    async def run(self, door: Door) -> Deleted:
        count = await door.broker.delete_queue(
            self.queue, if_empty=self.if_empty, if_unused=self.if_unused, namespace=self.namespace
        )
        return Deleted(count)


class Purged(msgspec.Struct):
    purged: int
    success: bool = True


@command
class PurgeQueue(Command):
    """Remove exactly what is in a queue now."""

    name: ClassVar[str] = "queue.purge"
    answer: ClassVar[Any] = Purged

    queue: Name
    ready_only: bool = False

    async def run(self, door: Door) -> Purged:
        return Purged(await door.broker.purge(self.queue, ready_only=self.ready_only, namespace=self.namespace))


@command
class PauseQueue(Command):
    """Hand out nothing from a queue until it is resumed; publishing goes on."""

    name: ClassVar[str] = "queue.pause"
    answer: ClassVar[Any] = Success

    queue: Name

    async def run(self, door: Door) -> Success:
        await door.broker.pause(self.queue, namespace=self.namespace)
        return Success()


@command
class ResumeQueue(Command):
    """Hand out again what a paused queue holds."""

    name: ClassVar[str] = "queue.resume"
    answer: ClassVar[Any] = Success

    queue: Name

    async def run(self, door: Door) -> Success:
        await door.broker.resume(self.queue, namespace=self.namespace)
        return Success()
