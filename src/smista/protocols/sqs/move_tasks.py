"""Message move tasks: dead letters on their way back, at a pace, while everything else goes on.

A task moves what was in the queue when it started, one message after the other, so that it can be watched and
cancelled. The latest tasks of a queue are kept with it, in an annotation that is written when one starts and when it
ends: a task that a restart cut short goes on where it was.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import uuid
from collections.abc import Iterator

import msgspec

from smista.core.browsing import Filter
from smista.core.message import Message, State
from smista.engine import Broker
from smista.errors import BrokerError
from smista.protocols import queue_annotations
from smista.protocols.sqs.errors import KINDS, QUEUE_DOES_NOT_EXIST

KEPT_PER_QUEUE = 10
ANNOTATION = "sqs-move-tasks"
Source = tuple[str, str]
"""Namespace and name of a queue."""


class Handle(msgspec.Struct, frozen=True, rename="camel"):
    """What the handle of a task says, in JSON and base64."""

    task_id: str
    source_arn: str


def write_handle(handle: Handle) -> str:
    return base64.b64encode(msgspec.json.encode(handle)).decode()


def read_handle(text: str) -> Handle | None:
    """None where it is no handle at all."""
    try:
        return msgspec.json.decode(base64.b64decode(text.encode(), validate=True), type=Handle)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None


class MoveTask(msgspec.Struct, omit_defaults=True):
    source_arn: str
    to: str | None
    to_arn: str | None
    rate: int | None
    handle: str = ""
    status: str = "RUNNING"
    started_at_ms: int = 0
    moved: int = 0
    to_move: int = 0
    failure: str | None = None

    def __post_init__(self) -> None:
        self.handle = self.handle or write_handle(Handle(str(uuid.uuid4()), self.source_arn))

    @property
    def is_active(self) -> bool:
        return self.status in ("RUNNING", "CANCELLING")


class MoveTasks:
    def __init__(self) -> None:
        self._active: dict[Source, MoveTask] = {}
        self._running: set[asyncio.Task[None]] = set()

    def of(self, source: Source, broker: Broker) -> list[MoveTask]:
        """Newest first."""
        tasks = _kept(source, broker)
        active = self._active.get(source)
        return [active if active is not None and task.handle == active.handle else task for task in tasks]

    async def start(self, source: Source, task: MoveTask, broker: Broker) -> None:
        task.started_at_ms = broker.now_ms()
        task.to_move = broker.stats(source[1], namespace=source[0]).ready
        self._run(source, task, broker)
        await _keep(source, [task, *_kept(source, broker)][:KEPT_PER_QUEUE], broker)

    def resume(self, broker: Broker) -> None:
        """Go on with what a restart cut short; what was moved before is no longer in the queue."""
        for source, tasks in _all(broker):
            for task in tasks:
                if task.status == "RUNNING":
                    left = broker.stats(source[1], namespace=source[0]).ready
                    task.moved = max(0, task.to_move - left)
                    self._run(source, task, broker)

    def stop(self) -> None:
        for running in self._running:
            running.cancel()

    def _run(self, source: Source, task: MoveTask, broker: Broker) -> None:
        self._active[source] = task
        running = asyncio.get_running_loop().create_task(self._carry_out(source, task, broker))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _carry_out(self, source: Source, task: MoveTask, broker: Broker) -> None:
        await _move(source, task, broker)
        # Its queue may be gone by now, and what was known of it with it; or the broker has stopped.
        with contextlib.suppress(BrokerError):
            tasks = [task if kept.handle == task.handle else kept for kept in _kept(source, broker)]
            await _keep(source, tasks, broker)
        if self._active.get(source) is task:
            del self._active[source]


async def _move(source: Source, task: MoveTask, broker: Broker) -> None:
    strays = 0
    moved_before = task.moved

    def takes(message: Message) -> bool:
        """Asked for each message when its turn has come: so progress is seen, and a task can be cancelled."""
        nonlocal strays
        if task.status != "RUNNING":
            return False
        if message.state in (State.READY, State.DEAD):
            if message.deaths or task.to is not None:
                task.moved += 1
            else:
                # It never died, so nobody knows where it should go.
                strays += 1
        return True

    try:
        task.moved = moved_before + await broker.redrive(
            source[1],
            Filter(matches=takes),
            to=task.to,
            limit=task.to_move - moved_before,
            per_second=task.rate,
            namespace=source[0],
        )
    except BrokerError as error:
        # The one that did not go was counted when its turn came.
        task.moved = max(moved_before, task.moved - 1)
        kind = KINDS.get(error.code)
        is_gone = kind is QUEUE_DOES_NOT_EXIST
        task.status, task.failure = "FAILED", QUEUE_DOES_NOT_EXIST.code if is_gone else f"{error.code}: {error}"
        return
    if task.status == "CANCELLING":
        task.status = "CANCELLED"
    elif task.moved < task.to_move and strays:
        task.status, task.failure = "FAILED", "CouldNotDetermineMessageSource"
    else:
        task.status = "COMPLETED"


# -- kept with the queue ----------------------------------------------------------------------------------------------


def _kept(source: Source, broker: Broker) -> list[MoveTask]:
    settings = broker.queue_settings(source[1], namespace=source[0])
    return queue_annotations.read(settings, ANNOTATION, list[MoveTask]) or []


async def _keep(source: Source, tasks: list[MoveTask], broker: Broker) -> None:
    settings = broker.declared_settings(source[1], namespace=source[0])
    noted = {**dict(settings.annotations), ANNOTATION: msgspec.json.encode(tasks).decode()}
    changed = msgspec.structs.replace(settings, annotations=tuple(sorted(noted.items())))
    await broker.alter_queue(source[1], changed, namespace=source[0])


def _all(broker: Broker) -> Iterator[tuple[Source, list[MoveTask]]]:
    for namespace in broker.namespaces():
        for name in broker.queue_names(namespace=namespace):
            tasks = _kept((namespace, name), broker)
            if tasks:
                yield (namespace, name), tasks
