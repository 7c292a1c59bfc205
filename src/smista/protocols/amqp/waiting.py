"""What a connection has to wait for before its next frame is looked at: one thing at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from smista.protocols.amqp.client import Client, Later


class Waiting:
    __slots__ = ("_client", "_done", "_is_only_waiting", "_loop", "_task")

    def __init__(self, client: Client, done: Callable[[BaseException | None], None]) -> None:
        """`done` is called each time: with None, or with why it failed."""
        self._client = client
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._is_only_waiting = False
        """Nothing is lost if the task is cancelled."""

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    @property
    def may_begin(self) -> bool:
        """Whether something else may take the place of what is waited for."""
        return self._task is None or self._is_only_waiting

    def begin(self, work: Later, *, is_only_waiting: bool) -> None:
        """It begins when nothing is under way any more."""
        if self._task is not None:
            # For room in the log, since what came before this in the same read: it is looked at again afterwards.
            assert self._is_only_waiting
            self._task.remove_done_callback(self._ended)
            self._task.cancel()
        self._is_only_waiting = is_only_waiting
        self._task = self._loop.create_task(self._once_done(work) if self._client.has_under_way else work)
        # Of what was cancelled before it began nothing may be left.
        self._task.add_done_callback(lambda _: work.close())
        self._task.add_done_callback(self._ended)

    async def _once_done(self, work: Later) -> None:
        await self._client.until_done()
        await work

    def stop(self) -> None:
        # Work goes on to its end: what it took or made would else belong to nobody.
        if self._task is not None and self._is_only_waiting:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._task = None
        self._done(None if task.cancelled() else task.exception())
