"""Background tasks: work that goes on although whoever asked for it may be gone, and that closing waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class BackgroundTasks:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait(self, timeout_s: float) -> None:
        """Return when all of them are done, or after so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def finish(self) -> None:
        """Return when all of them are done, well or not."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
