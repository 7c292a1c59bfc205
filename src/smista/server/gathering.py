"""A transport that writes once per turn of the loop, and reads only if both who have a say in it want that.

uvloop and asyncio both try to send at once whatever is written, one system call each. uvicorn writes the head and the
body of an answer separately, and a WebSocket writes every message by itself, hundreds in a turn when a queue is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

GATHER_BYTES_MAX = 64 * 1024
"""More than this is not held back, so that whoever writes without end learns in time that nobody reads."""


class GatheringTransport(asyncio.Transport):
    """`transport`, whose writes go out together: when `flush` is called, at the latest in the next turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._bytes = 0
        self._is_scheduled = False
        self.is_paused = False
        """By the protocol, which wants to read nothing for now ..."""
        self._is_held = False
        """... and by whoever hands it what was read, see `intake`."""
        self.on_resumed: Callable[[], None] = lambda: None

    # -- reading ------------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self.is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self.is_paused = False
        if self._is_held:
            # Not from here: whoever resumes may be in the middle of something.
            self._loop.call_soon(self.on_resumed)
        else:
            self._transport.resume_reading()

    def hold(self, is_held: bool) -> None:
        if is_held == self._is_held:
            return
        self._is_held = is_held
        if self._transport.is_closing():
            return
        if is_held:
            self._transport.pause_reading()
        elif not self.is_paused:
            self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes > GATHER_BYTES_MAX:
            self.flush()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def flush(self) -> None:
        pieces = self._pieces
        if not pieces:
            return
        self._pieces = []
        self._bytes = 0
        if not self._transport.is_closing():
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _flush_scheduled(self) -> None:
        self._is_scheduled = False
        self.flush()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + self._bytes

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        self.flush()
        self._transport.write_eof()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._pieces.clear()
        self._bytes = 0
        self._transport.abort()

    # -- as it is -----------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()
