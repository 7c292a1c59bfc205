"""Bounds how many messages and bytes may be unconfirmed at a time. Senders beyond that wait, first come, first
served."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple


class _Turn(NamedTuple):
    granted: asyncio.Future[None]
    message_count: int
    size: int


class Window:
    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._waiting: deque[_Turn] = deque()

    async def enter(self, count: int, size: int) -> None:
        """Wait for room. Something larger than the whole window is let in when the window is empty."""
        if not self._waiting and self._has_room(count, size):
            self._take(count, size)
            return
        turn = _Turn(asyncio.get_running_loop().create_future(), count, size)
        self._waiting.append(turn)
        try:
            await turn.granted
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
                self._grant()
            elif not turn.granted.cancelled():
                self.leave(count, size)
            raise

    def leave(self, count: int, size: int) -> None:
        self._count -= count
        self._bytes -= size
        self._grant()

    def _has_room(self, count: int, size: int) -> bool:
        if not self._count:
            return True
        return self._count + count <= self._count_max and self._bytes + size <= self._bytes_max

    def _take(self, count: int, size: int) -> None:
        self._count += count
        self._bytes += size

    def _grant(self) -> None:
        while self._waiting and self._has_room(self._waiting[0].message_count, self._waiting[0].size):
            turn = self._waiting.popleft()
            if not turn.granted.cancelled():
                self._take(turn.message_count, turn.size)
                turn.granted.set_result(None)
