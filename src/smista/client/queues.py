"""Calls about queues as a whole, and about the broker."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Unpack

import msgspec

from smista.client.answers import (
    BrokerInfo,
    Created,
    Deleted,
    Done,
    ExplainedSettings,
    Purged,
    QueueDetails,
    QueueNames,
    Settings,
)
from smista.client.calls import Calls
from smista.core.counters import QueueStats
from smista.core.settings import (
    Backoff,
    DeadLetterMode,
    DeduplicationScope,
    IfExists,
    Overflow,
    PriorityPolicy,
    QueueSettings,
)

Existing = IfExists | Literal["same", "keep"]


class SettingsGiven(TypedDict, total=False):
    """Some settings of a queue, by the names of `QueueSettings`; their meaning and defaults are in docs/queues.md."""

    lease_ms: int
    max_retries: int | None
    retry_backoff: Backoff | Literal["none", "linear", "exponential"]
    retry_base_ms: int
    retry_cap_ms: int
    retry_jitter: float
    backoff_on_timeout: bool
    dead_letter: DeadLetterMode | Literal["move", "move-or-drop", "park", "drop"]
    dead_letter_queue: str | None
    dead_letter_exchange: str | None
    dead_letter_routing_key: str | None
    dead_letter_max_depth: int | None
    own_dead_letters: bool
    max_depth: int | None
    max_bytes: int | None
    body_bytes_max: int | None
    limit_ready_only: bool
    overflow: Overflow | Literal["reject", "drop-oldest", "dead-letter-oldest", "dead-letter-newest"]
    message_ttl_ms: int | None
    retention_ms: int | None
    delay_ms: int
    durable: bool
    prefetch: int
    max_prefetch: int
    dedup_window_ms: int
    dedup_by_body: bool
    dedup_scope: DeduplicationScope | Literal["queue", "group"]
    rate_limit: float | None
    ordered: bool
    group_turns: bool
    fair: bool
    max_priority: int
    default_priority: int
    clamp_priority: bool
    priority_policy: PriorityPolicy | Literal["strict", "weighted"]
    single_active_consumer: bool
    expires_ms: int | None
    annotations: tuple[tuple[str, str], ...]


class QueueCalls(Calls):
    async def declare_queue(
        self,
        name: str,
        settings: QueueSettings | None = None,
        *,
        if_exists: Existing = IfExists.SAME,
        **given: Unpack[SettingsGiven],
    ) -> bool:
        """Make a queue if there is none of this name; returns whether it is new.

        Settings are given by name, as `declare_queue("orders", max_retries=5)`, as a `QueueSettings`, or both, in which
        case names win; see docs/queues.md. Raises `QueueDiffers` if the queue exists with other settings; with
        `if_exists="keep"` it is left as it is, since an operator may have altered it.
        """
        return await self._declare("queue.declare", name, _merged(settings, given), if_exists)

    async def create_queue(
        self,
        name: str,
        settings: QueueSettings | None = None,
        *,
        if_exists: Existing = IfExists.SAME,
        **given: Unpack[SettingsGiven],
    ) -> bool:
        """Make a queue as `declare_queue` does, with the defaults of `queue.create` (docs/commands.md): priorities 0 to
        9, 5 by default, and at most 100,000 messages. Returns whether it is new."""
        return await self._declare("queue.create", name, _merged(settings, given), if_exists)

    async def _declare(self, command: str, name: str, settings: dict[str, Any], if_exists: str) -> bool:
        created = await self._ask(
            command, Created, is_repeatable=True, queue=name, settings=settings, if_exists=str(if_exists)
        )
        return created.created

    async def alter_queue(self, name: str, **given: Unpack[SettingsGiven]) -> QueueSettings:
        """Change some settings of a queue, as `alter_queue("orders", max_retries=5)`; returns all of them. They apply
        from now on."""
        answer = await self._ask("queue.alter", Settings, is_repeatable=True, queue=name, settings=dict(given))
        return answer.settings

    async def queue_settings(self, name: str) -> QueueSettings:
        """All settings of a queue, including defaults."""
        return (await self._ask("queue.settings", Settings, is_repeatable=True, queue=name)).settings

    async def explain_settings(self, name: str) -> ExplainedSettings:
        """A queue's settings and their origin: what it was declared with, and which policy overrides what."""
        return await self._ask("queue.settings", ExplainedSettings, is_repeatable=True, queue=name)

    async def delete_queue(
        self, name: str, *, if_empty: bool = False, if_unused: bool = False, waiting_only: bool = False
    ) -> int:
        """Delete a queue; returns how many messages went with it.

        With `if_empty` only if it holds none, else raises `QueueNotEmpty`, where `waiting_only` leaves those out of
        account that are in flight or dead; with `if_unused` only if it has no consumers, else raises `QueueInUse`.
        """
        answer = await self._ask(
            "queue.delete", Deleted, queue=name, if_empty=if_empty, if_unused=if_unused, waiting_only=waiting_only
        )
        return answer.deleted

    async def purge(self, name: str, *, ready_only: bool = False) -> int:
        """Delete all messages of a queue, in flight and dead ones too, or with `ready_only` the ready ones; returns how
        many."""
        return (await self._ask("queue.purge", Purged, queue=name, ready_only=ready_only)).purged

    async def pause(self, name: str) -> None:
        """Deliver nothing from a queue until it is resumed; publishing goes on."""
        await self._ask("queue.pause", Done, is_repeatable=True, queue=name)

    async def resume(self, name: str) -> None:
        """Deliver again from a paused queue."""
        await self._ask("queue.resume", Done, is_repeatable=True, queue=name)

    async def queues(self, *, prefix: str = "") -> list[str]:
        """The names of all queues, or of those that start with `prefix`, in order."""
        return await self._all("queue.list", QueueNames, "queues", prefix=prefix)

    async def all_stats(self, *, prefix: str = "") -> list[QueueStats]:
        """The statistics of all queues, or of those whose names start with `prefix`, in order of their names."""
        return await self._all("queue.list", QueueDetails, "queues", prefix=prefix, details=True)

    async def stats(self, name: str) -> QueueStats:
        """How many messages a queue holds in each state, how many consumers it has, and its counters."""
        return await self._ask("queue.stats", QueueStats, is_repeatable=True, queue=name)

    async def info(self) -> BrokerInfo:
        """The broker's version, contents and limits."""
        return await self._ask("broker.info", BrokerInfo, is_repeatable=True)


def _merged(settings: QueueSettings | None, given: SettingsGiven) -> dict[str, Any]:
    """All of a `QueueSettings`, including defaults, overridden by what was given by name."""
    return {**({} if settings is None else msgspec.structs.asdict(settings)), **given}
