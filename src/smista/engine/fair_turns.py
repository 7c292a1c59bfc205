"""Fair turns: long work is done one slice in each turn of the loop, whoever asked for it.

    whoever has much to do ─▶ `turn` ─▶ a slice ─▶ `turn` ─▶ a slice ...
                                │ others have much to do as well
                                └▶ they wait: one of them goes on per turn of the loop, the one that has waited longest

To look through a queue of a million messages, to list all bindings or to publish to thousands of queues is cut into
slices so that everybody else has their turns in between. That is not enough where many ask for it at the same time:
100 of them would do 100 slices in one turn of the loop. So all of them together do one. Whoever is alone waits for no
more than the turn of the loop that it would give to the others anyway.

What is one step however long it is, as a publish to thousands of queues, makes up for it: nobody goes on for so many
turns.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import TypeVar

from smista.engine.slices import SLICE_S

T = TypeVar("T")


class FairTurns:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_planned = False
        self._rest = 0

    async def turn(self) -> None:
        """Return in a later turn of the loop, in which nobody else's does."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if not self._is_planned:
            self._is_planned = True
            loop.call_soon(self._next)
        await mine

    async def in_turns(self, items: Iterable[T], at_once: int) -> AsyncIterator[T]:
        """All of them, in order, `at_once` in a turn of the loop; fewer where what is done with them takes long. What
        is not a list of its own may change in between."""
        async for some in self.slices(items, at_once):
            end_s = time.perf_counter() + SLICE_S
            for item in some:
                if time.perf_counter() > end_s:
                    await self.turn()
                    end_s = time.perf_counter() + SLICE_S
                yield item

    async def slices(self, items: Iterable[T], at_once: int) -> AsyncIterator[list[T]]:
        """As `in_turns`, a list of them for each turn."""
        coming = iter(items)
        while some := list(islice(coming, at_once)):
            yield some
            if len(some) < at_once:
                break
            await self.turn()

    def rest(self, turns: int) -> None:
        """Nobody goes on for so many turns of the loop: what was just done was as long as several slices."""
        self._rest += turns

    def _next(self) -> None:
        if self._rest:
            self._rest -= 1
            asyncio.get_running_loop().call_soon(self._next)
            return
        while self._waiting:
            first = self._waiting.popleft()
            # Else it was cancelled.
            if not first.done():
                first.set_result(None)
                break
        self._is_planned = bool(self._waiting)
        if self._is_planned:
            asyncio.get_running_loop().call_soon(self._next)
