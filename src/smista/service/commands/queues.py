"""Queues: making, changing, listing, emptying, removing them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from smista.core.counters import QueueStats
from smista.core.settings import IfExists, QueueSettings
from smista.engine.interface import Engine
from smista.errors import InvalidSettings, QueueNotFound
from smista.service import queue_annotations
from smista.service.command import Command
from smista.service.context import Context
from smista.service.fields import Name, Success
from smista.service.permission import NEEDED_TO_DECLARE, Permission
from smista.service.queue_settings import AllSettings, GivenSettings, all_settings, given

SHOWN_AT_ONCE = 250
"""So many queues are counted in one turn of the loop."""
Existing = Literal["same", "keep"]
"""`IfExists`, as it can be written."""


class Created(msgspec.Struct):
    queue: str
    created: bool
    """Whether it is new."""
    success: bool = True


class DeclareQueue(Command[Created], needs=NEEDED_TO_DECLARE, changes=True):
    """Make a queue, or see that it is there: with these settings, or with whatever it has."""

    name = "queue.declare"

    queue: Name
    settings: GivenSettings | None = None  # type: ignore[valid-type]  # made by defstruct, which mypy cannot follow
    if_exists: Existing = "same"

    async def run(self, context: Context) -> Created:
        broker, namespace = context.broker, context.namespace
        present = _settings_of(broker, self.queue, namespace)
        settings = given(self.settings)
        _merge_annotations(settings, present, context)
        await broker.declaring.declare_queue(
            self.queue, QueueSettings(**settings), if_exists=IfExists(self.if_exists), namespace=namespace
        )
        return Created(self.queue, present is None)


def _settings_of(broker: Engine, queue: str, namespace: str) -> QueueSettings | None:
    try:
        return broker.catalog.queue_settings(queue, namespace=namespace)
    except QueueNotFound:
        return None


def _merge_annotations(settings: dict[str, Any], present: QueueSettings | None, context: Context) -> None:
    """What other protocols keep with a queue stays with it."""
    if "annotations" in settings:
        before = () if present is None else present.annotations
        settings["annotations"] = queue_annotations.merged(settings["annotations"], before, context.principal.protocol)


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


def _show_settings(context: Context, queue: str) -> SettingsAnswer:
    broker, namespace = context.broker, context.namespace
    policy, given_by_policy = broker.catalog.policy_of(queue, namespace=namespace)
    return SettingsAnswer(
        queue,
        all_settings(broker.catalog.queue_settings(queue, namespace=namespace)),
        all_settings(broker.catalog.declared_settings(queue, namespace=namespace)),
        policy,
        GivenSettings(**given_by_policy),
    )


class AlterQueue(Command[SettingsAnswer], needs=NEEDED_TO_DECLARE, changes=True):
    """Change some of a queue's settings."""

    name = "queue.alter"

    queue: Name
    settings: GivenSettings  # type: ignore[valid-type]  # as above

    async def run(self, context: Context) -> SettingsAnswer:
        present = context.broker.catalog.declared_settings(self.queue, namespace=context.namespace)
        changes = given(self.settings)
        if not changes:
            raise InvalidSettings("No setting is given; name those to change.")
        _merge_annotations(changes, present, context)
        settings = msgspec.structs.replace(present, **changes)
        await context.broker.declaring.alter_queue(self.queue, settings, namespace=context.namespace)
        return _show_settings(context, self.queue)


class ShowSettings(Command[SettingsAnswer], needs=Permission.MONITOR.on("queue")):
    """All settings of a queue: what it has, what was declared, and what a policy gives."""

    name = "queue.settings"

    queue: Name

    async def run(self, context: Context) -> SettingsAnswer:
        return _show_settings(context, self.queue)


class ShowStats(Command[QueueStats], needs=Permission.MONITOR.on("queue")):
    """Counts and totals of a queue."""

    name = "queue.stats"

    queue: Name

    async def run(self, context: Context) -> QueueStats:
        return await context.broker.asking.stats(self.queue, namespace=context.namespace)


class QueuePage(msgspec.Struct):
    queues: list[str]
    after: str | None
    """Where the next page starts; null when this was the last."""
    stats: list[QueueStats] = []
    """With `details` those of each, but for queues that were deleted meanwhile."""


class ListQueues(Command[QueuePage], needs=Permission.MONITOR):
    """Queues in the order of their names."""

    name = "queue.list"

    prefix: str = ""
    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1_000
    details: bool = False

    async def run(self, context: Context) -> QueuePage:
        broker, namespace = context.broker, context.namespace
        if namespace not in broker.catalog.namespaces():
            return QueuePage([], None)
        names = await broker.surveying.queue_page(
            prefix=self.prefix, after=self.after, limit=self.limit + 1, namespace=namespace
        )
        page = names[: self.limit]
        after = page[-1] if len(names) > self.limit else None
        if not self.details:
            return QueuePage(page, after)
        stats = [
            await broker.asking.stats(name, namespace=namespace)
            async for name in broker.fair_turns.in_turns(page, SHOWN_AT_ONCE)
            # One may be deleted while others have their turn.
            if broker.catalog.has_queue(name, namespace=namespace)
        ]
        return QueuePage(page, after, stats)


class Deleted(msgspec.Struct):
    deleted: int
    """How many messages went with it."""
    success: bool = True


class DeleteQueue(Command[Deleted], needs=Permission.CONFIGURE.on("queue"), changes=True):
    """Remove a queue and what is in it."""

    name = "queue.delete"

    queue: Name
    if_empty: bool = False
    if_unused: bool = False
    waiting_only: bool = False
    """What is in flight or dead does not keep it."""

    async def run(self, context: Context) -> Deleted:
        count = await context.broker.declaring.delete_queue(
            self.queue,
            if_empty=self.if_empty,
            if_unused=self.if_unused,
            waiting_only=self.waiting_only,
            namespace=context.namespace,
        )
        return Deleted(count)


class Purged(msgspec.Struct):
    purged: int
    success: bool = True


class PurgeQueue(Command[Purged], needs=Permission.CONFIGURE.on("queue"), changes=True):
    """Remove exactly what is in a queue now."""

    name = "queue.purge"

    queue: Name
    ready_only: bool = False

    async def run(self, context: Context) -> Purged:
        count = await context.broker.declaring.purge(
            self.queue, ready_only=self.ready_only, namespace=context.namespace
        )
        return Purged(count)


class PauseQueue(Command[Success], needs=Permission.CONFIGURE.on("queue"), changes=True):
    """Hand out nothing from a queue until it is resumed; publishing goes on."""

    name = "queue.pause"

    queue: Name

    async def run(self, context: Context) -> Success:
        await context.broker.declaring.pause(self.queue, namespace=context.namespace)
        return Success()


class ResumeQueue(Command[Success], needs=Permission.CONFIGURE.on("queue"), changes=True):
    """Hand out again what a paused queue holds."""

    name = "queue.resume"

    queue: Name

    async def run(self, context: Context) -> Success:
        await context.broker.declaring.resume(self.queue, namespace=context.namespace)
        return Success()
