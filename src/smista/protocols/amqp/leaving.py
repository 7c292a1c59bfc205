"""What goes with connections that are gone: at once, or, where very many go in one turn of the loop, in slices."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Generic, TypeVar

from smista.errors import BrokerClosed, BrokerStopped
from smista.service.service import Service

T = TypeVar("T")


class Leaving(Generic[T]):
    """Things of one kind, of all connections together."""

    def __init__(self, service: Service, end: Callable[[T], object]) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._ended_count = 0
        """In this turn of the loop."""
        self._waiting: deque[T] = deque()
        self._ending: asyncio.Task[None] | None = None
        """Ends those, in slices."""

    def go(self, leaving: Collection[T], per_turn: int) -> None:
        """End them, no more than so many in a turn. Those that come later wait behind them."""
        if self._ending is None and self._ended_count + len(leaving) <= per_turn:
            if leaving and not self._ended_count:
                self._loop.call_soon(self._next_turn)
            self._ended_count += len(leaving)
            for one in leaving:
                self._end(one)
            return
        self._waiting += leaving
        if self._ending is None:
            self._ending = self._service.in_background(self._end_in_slices(per_turn))

    async def _end_in_slices(self, per_turn: int) -> None:
        # What goes with connections does not outlive a broker that closes or stops meanwhile.
        with contextlib.suppress(BrokerClosed, BrokerStopped):
            while self._waiting:
                async for one in self._service.fair_turns.in_turns(self._taken(), per_turn):
                    self._end(one)
        self._ending = None

    def _taken(self) -> Iterator[T]:
        # One by one, so that the memory of each is free when its turn is over.
        while self._waiting:
            yield self._waiting.popleft()

    def _next_turn(self) -> None:
        self._ended_count = 0
