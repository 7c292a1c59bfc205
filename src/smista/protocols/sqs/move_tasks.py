"""Message move tasks: dead letters on their way back, at a pace, while everything else goes on.

A task moves what was in the queue when it started, one message after the other, so that it can be watched and
cancelled. Tasks are remembered in memory only: a restart ends them, and what was moved stays moved.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from smista.core.browsing import Filter
from smista.core.message import Message, State
from smista.engine import Broker
from smista.errors import BrokerError

KEPT_PER_QUEUE = 10


class MoveTask:
    def __init__(
        self, source: tuple[str, str], source_arn: str, to: str | None, to_arn: str | None, rate: int | None
    ) -> None:
        self.source = source
        """Namespace and name."""
        self.source_arn = source_arn
        self.to = to
        self.to_arn = to_arn
        self.rate = rate
        self.handle = secrets.token_urlsafe(48)
        self.status = "RUNNING"
        self.started_at_ms = 0
        self.moved = 0
        self.to_move = 0
        self.failure: str | None = None
        self._strays = 0
        """Messages that never died, so that nobody knows where they should go."""

    @property
    def is_active(self) -> bool:
        return self.status in ("RUNNING", "CANCELLING")

    async def run(self, broker: Broker) -> None:
        namespace, name = self.source
        try:
            self.moved = await broker.redrive(
                name,
                Filter(matches=self._takes),
                to=self.to,
                limit=self.to_move,
                per_second=self.rate,
                namespace=namespace,
            )
        except BrokerError as error:
            self.status, self.failure = "FAILED", f"{error.code}: {error}"
            return
        if self.status == "CANCELLING":
            self.status = "CANCELLED"
        elif self.moved < self.to_move and self._strays:
            self.status, self.failure = "FAILED", "CouldNotDetermineMessageSource"
        else:
            self.status = "COMPLETED"

    def _takes(self, message: Message) -> bool:
        """Asked for each message when its turn has come: so progress is seen, and a task can be cancelled."""
        if self.status != "RUNNING":
            return False
        if message.state in (State.READY, State.DEAD):
            if message.deaths or self.to is not None:
                self.moved += 1
            else:
                self._strays += 1
        return True


class MoveTasks:
    def __init__(self) -> None:
        self._by_source: dict[tuple[str, str], list[MoveTask]] = {}
        self._running: set[asyncio.Task[None]] = set()

    def of(self, source: tuple[str, str]) -> list[MoveTask]:
        """Newest first."""
        return self._by_source.get(source, [])

    def start(self, task: MoveTask, broker: Broker) -> None:
        namespace, name = task.source
        task.started_at_ms = broker.now_ms()
        task.to_move = broker.stats(name, namespace=namespace).ready
        self._by_source[task.source] = [task, *self.of(task.source)][:KEPT_PER_QUEUE]
        running = asyncio.get_running_loop().create_task(task.run(broker))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def find(self, handle: str, is_readable: Callable[[MoveTask], bool]) -> MoveTask | None:
        for tasks in self._by_source.values():
            for task in tasks:
                if secrets.compare_digest(task.handle.encode(), handle.encode("utf-8", "replace")) and is_readable(
                    task
                ):
                    return task
        return None

    def stop(self) -> None:
        for running in self._running:
            running.cancel()
