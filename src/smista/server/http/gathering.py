"""A transport that writes once per turn of the loop, and reads only if both want it who decide on it.

uvloop and asyncio both try to send at once whatever is written, one system call each. The head and the body of an
answer are written separately, and a WebSocket writes every message by itself, hundreds in a turn when a queue is full.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

GATHER_BYTES_MAX = 64 * 1024
"""More than this is not held back, so that whoever writes without end learns in time that nobody reads."""


class GatheringTransport:
    """`transport`, whose writes go out together: when `flush` is called, at the latest in the next turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._is_scheduled = False
        self.is_paused = False
        """By the protocol, which wants to read nothing for now ..."""
        self._is_held = False
        """... and by whoever hands it what was read, see `intake`."""
        self.is_listening = False
        """Whether it is read on while it is paused, so that its end is seen: some of what comes is kept meanwhile."""
        self.on_resumed: Callable[[], None] = lambda: None

    # -- reading ------------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self.is_paused = True
        self.is_listening = False
        self._transport.pause_reading()

    def listen(self) -> None:
        """While it is paused: see `is_listening`."""
        if not self.is_paused or self.is_listening:
            return
        self.is_listening = True
        if self._is_held:
            self._loop.call_soon(self.on_resumed)
        else:
            self._transport.resume_reading()

    def resume_reading(self) -> None:
        has_listened, self.is_listening = self.is_listening, False
        self.is_paused = False
        if self._is_held or has_listened:
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
        elif not self.is_paused or self.is_listening:
            self._transport.resume_reading()

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes > GATHER_BYTES_MAX:
            self.flush()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def send(self, data: bytes) -> None:
        """Write now, together with what has waited."""
        self._pieces.append(data)
        self.flush()

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

    def end_writing(self) -> None:
        """Close so that what was written arrives.

        Closing it whole while input is unread makes the kernel reset it, and the peer may lose the answer that says
        why. So only our side is closed; what still comes in has to be read and thrown away until the peer closes too.
        """
        if self._transport.is_closing():
            return
        self.flush()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:  # TLS
            self._transport.close()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._pieces.clear()
        self._bytes = 0
        self._transport.abort()

    def reset(self) -> None:
        """Abort so that the peer sees it, also one that takes the end of a connection for the end of an answer."""
        linger = struct.pack("ii", True, 0)
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.abort()

    # -- as it is -----------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str) -> Any:
        return self._transport.get_extra_info(name)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)
