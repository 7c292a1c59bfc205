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
    QueueStats,
    Settings,
)
from smista.client.calls import Calls
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
        """Make a queue, or see that it is there with these settings; returns whether it is new.

        Settings come as a `QueueSettings`, by their names, as `declare_queue("orders", max_retries=5)`, or both, in
        which case the names win; docs/queues.md has all. Raises `QueueDiffers` when the queue is there with others;
        with `if_exists="keep"` it is taken as it is, since an operator may have altered it.
        """
        return await self._declare("queue.declare", name, _said(settings, given), if_exists)

    async def create_queue(
        self,
        name: str,
        settings: QueueSettings | None = None,
        *,
        if_exists: Existing = IfExists.SAME,
        **given: Unpack[SettingsGiven],
    ) -> bool:
        """Make a queue as `declare_queue` does, with the defaults of Synap (docs/commands.md) for what is not given:
        priorities 0 to 9, 5 where a message names none, and at most 100,000 messages. Returns whether it is new."""
        return await self._declare("queue.create", name, _said(settings, given), if_exists)

    async def _declare(self, command: str, name: str, settings: dict[str, Any], if_exists: str) -> bool:
        created = await self._ask(
            command, Created, is_repeatable=True, queue=name, settings=settings, if_exists=str(if_exists)
        )
        return created.created

    async def alter_queue(self, name: str, **given: Unpack[SettingsGiven]) -> QueueSettings:
        """Change these settings of a queue, as `alter_queue("orders", max_retries=5)`, and leave the others; returns
        all of them. They hold for what happens from now on."""
        said = _said(None, given)
        answer = await self._ask("queue.alter", Settings, is_repeatable=True, queue=name, settings=said)
        return answer.settings

    async def queue_settings(self, name: str) -> QueueSettings:
        """All settings of a queue, those at their defaults too."""
        return (await self._ask("queue.settings", Settings, is_repeatable=True, queue=name)).settings

    async def explain_settings(self, name: str) -> ExplainedSettings:
        """A queue's settings and where they come from: what it was declared with, and what which policy gives."""
        return await self._ask("queue.settings", ExplainedSettings, is_repeatable=True, queue=name)

    async def delete_queue(self, name: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Delete a queue; returns how many messages went with it.

        With `if_empty` only where it holds none, else `QueueNotEmpty`; with `if_unused` only where nobody consumes from
        it, else `QueueInUse`.
        """
        answer = await self._ask("queue.delete", Deleted, queue=name, if_empty=if_empty, if_unused=if_unused)
        return answer.deleted

    async def purge(self, name: str, *, ready_only: bool = False) -> int:
        """Remove what is in a queue now, in flight and dead included, or with `ready_only` what is ready; returns how
        many messages that was."""
        return (await self._ask("queue.purge", Purged, queue=name, ready_only=ready_only)).purged

    async def pause(self, name: str) -> None:
        """Hand out nothing from a queue until it is resumed; publishing goes on."""
        await self._ask("queue.pause", Done, is_repeatable=True, queue=name)

    async def resume(self, name: str) -> None:
        """Hand out again what a paused queue holds."""
        await self._ask("queue.resume", Done, is_repeatable=True, queue=name)

    async def queues(self, *, prefix: str = "") -> list[str]:
        """The names of all queues, or of those whose names begin so, in order."""
        names: list[str] = []
        after: str | None = None
        while True:
            page = await self._ask("queue.list", QueueNames, is_repeatable=True, prefix=prefix, after=after)
            names += page.queues
            after = page.after
            if after is None:
                return names

    async def all_stats(self, *, prefix: str = "") -> list[QueueStats]:
        """The statistics of all queues, or of those whose names begin so, in order of their names."""
        found: list[QueueStats] = []
        after: str | None = None
        while True:
            page = await self._ask(
                "queue.list", QueueDetails, is_repeatable=True, prefix=prefix, after=after, details=True
            )
            found += page.queues
            after = page.after
            if after is None:
                return found

    async def stats(self, name: str) -> QueueStats:
        """How many messages a queue holds in each state, who consumes from it, and what it has counted so far."""
        return await self._ask("queue.stats", QueueStats, is_repeatable=True, queue=name)

    async def info(self) -> BrokerInfo:
        """What the broker is and holds."""
        return await self._ask("broker.info", BrokerInfo, is_repeatable=True)


def _said(settings: QueueSettings | None, given: SettingsGiven) -> dict[str, Any]:
    """All of a `QueueSettings`, those at their defaults too, and over it what was given by name."""
    return {**({} if settings is None else msgspec.structs.asdict(settings)), **given}
