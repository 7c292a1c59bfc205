"""Whether we read from a connection and may write to it."""

from __future__ import annotations

import asyncio

from smista.server.http.gathering import GatheringTransport


class Flow:
    __slots__ = ("_is_writable", "_loop", "_resumed_at", "_transport", "is_held", "is_read_paused")

    def __init__(self, transport: GatheringTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._resumed_at = float("-inf")
        self._is_writable: asyncio.Future[None] | None = None
        """Waited for while nothing more should be written."""
        self.is_read_paused = False
        self.is_held = False
        """While requests wait for their turn nothing more is read, whoever asks."""

    def pause_reading(self) -> None:
        if not self.is_read_paused:
            self.is_read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_read_paused and not self.is_held:
            self.is_read_paused = False
            self._transport.resume_reading()
            self._resumed_at = self._loop.time()

    def was_paused_since(self, instant: float) -> bool:
        """Whether it was at any time since then we who did not read."""
        return self.is_read_paused or self._resumed_at >= instant

    @property
    def is_write_paused(self) -> bool:
        return self._is_writable is not None

    def pause_writing(self) -> None:
        if self._is_writable is None:
            self._is_writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._is_writable is not None:
            self._is_writable.set_result(None)
            self._is_writable = None

    async def writable(self) -> None:
        """Wait until more may be written, or there is nobody to write to any more."""
        while self._is_writable is not None:
            # Others may wait for the same.
            await asyncio.shield(self._is_writable)
