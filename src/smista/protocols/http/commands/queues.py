"""Queues as the Synap specification has them: made with its defaults, and their statistics with its words too."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from smista.errors import InvalidRequest
from smista.protocols.http.commands.base import SHOWN_AT_ONCE, Call, OwnCommand, command
from smista.service.commands import queues
from smista.service.commands.queues import Created, DeclareQueue, Existing
from smista.service.fields import Name
from smista.service.queue_settings import GivenSettings, given
from smista.service.values import RETRIES_MAX, DeadLetterMode, QueueStats
from smista.wording import missing_field


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


@command
class CreateQueue(OwnCommand[Created], changes=True):
    """Make a queue with the defaults of the Synap specification."""

    name = "queue.create"

    queue: Name | None = None
    queue_name: Name | None = msgspec.field(default=None, name="name")
    settings: GivenSettings | None = None  # type: ignore[valid-type]  # made by defstruct, which mypy cannot follow
    config: Config | None = None
    if_exists: Existing = "same"

    async def carry_out(self, call: Call) -> Created:
        queue = self.queue or self.queue_name
        if queue is None:
            raise InvalidRequest(missing_field("queue"))
        if self.queue is not None and self.queue_name not in (None, self.queue):
            raise InvalidRequest("`queue` and `name` differ; give one of them.")
        settings = (self.config or Config()).settings() | given(self.settings)
        return await call.session.run(DeclareQueue(queue, GivenSettings(**settings), self.if_exists))


StatsAnswer = msgspec.defstruct(
    "StatsAnswer",
    [
        *((field.name, field.type) for field in msgspec.structs.fields(QueueStats)),
        ("consumed_total", int),
        ("acked_total", int),
        ("avg_wait_time_ms", float),
        ("oldest_message_age_secs", float),
    ],
    kw_only=True,
    namespace={"__doc__": "One queue at one moment."},
)
"""What the broker counts, and what some of that is called in the Synap specification."""


def show_stats(stats: QueueStats) -> Any:
    shown = msgspec.structs.asdict(stats)
    wait_ms = shown["wait_ms_average"] = round(stats.wait_ms_average, 3)
    return StatsAnswer(
        **shown,
        consumed_total=stats.delivered_total,
        acked_total=stats.acknowledged_total,
        avg_wait_time_ms=wait_ms,
        oldest_message_age_secs=stats.oldest_age_ms / 1000,
    )


@command
class ShowStats(queues.ShowStats):
    """Counts and totals of a queue."""

    answer = (StatsAnswer,)

    async def carry_out(self, call: Call) -> object:
        return show_stats(await call.session.run(self))


class QueueList(msgspec.Struct):
    queues: list[str | StatsAnswer]  # type: ignore[valid-type]  # made by defstruct, which mypy cannot follow
    after: str | None
    """Where the next page starts; null when this was the last."""


@command
class ListQueues(queues.ListQueues):
    """Queues in the order of their names."""

    answer = (QueueList,)

    async def carry_out(self, call: Call) -> QueueList:
        page = await call.session.run(self)
        if not self.details:
            return QueueList(list(page.queues), page.after)
        shown = [show_stats(stats) async for stats in call.fair_turns.in_turns(page.stats, SHOWN_AT_ONCE)]
        return QueueList(shown, page.after)
