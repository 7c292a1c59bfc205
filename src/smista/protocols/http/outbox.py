"""What waits to be written to one WebSocket, and how much of it.

Two sorts are counted apart, because different things have to stop while there is too much: answers, of which there are
no more when no more requests are read, and pushed messages, of which there are no more when subscriptions get no more
credit. If pushed messages kept us from reading, a client that sends before it reads would wait for us, and we for it.

Nothing is cut off here. A reader that stands still is the server's business, which sees the socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from smista.protocols.web.asgi import Send

FLOW_BYTES = 1 << 20
"""Of either sort: more than this waiting is too much. The socket has its own buffer below, so a reader that keeps up
never waits for us."""


class Outbox:
    def __init__(self, send: Send, *, is_text: bool, bytes_max: int, on_room: Callable[[], None]) -> None:
        """`on_room` is called when what was too much is no more."""
        self._send = send
        self._is_text = is_text
        self._flow_bytes = min(FLOW_BYTES, bytes_max)
        self._on_room = on_room
        self._frames: deque[tuple[bytes, bool]] = deque()
        self._has_work = asyncio.Event()
        self._answer_bytes = 0
        self._pushed_bytes = 0
        self._closing: tuple[int, str] | None = None
        self.has_many_answers = False
        self.has_many_pushed = False

    @property
    def waiting_bytes(self) -> int:
        return self._answer_bytes + self._pushed_bytes

    def put(self, frame: bytes, *, is_pushed: bool = False) -> None:
        self._frames.append((frame, is_pushed))
        if is_pushed:
            self._pushed_bytes += len(frame)
            self.has_many_pushed = self._pushed_bytes > self._flow_bytes
        else:
            self._answer_bytes += len(frame)
            self.has_many_answers = self._answer_bytes > self._flow_bytes
        self._has_work.set()

    def close(self, code: int, reason: str) -> None:
        """Close the WebSocket when all that waits now has been written."""
        self._closing = (code, reason)
        self._has_work.set()

    def end(self) -> None:
        """There is nobody to write to. Whoever gave `on_room` has this, and they are a cycle: the garbage
        collector would find what waits late."""
        self._frames.clear()
        self._on_room = _do_nothing

    async def write(self) -> None:
        """Write until closed. Raises an `OSError` when the peer is gone."""
        frames = self._frames
        while True:
            while frames:
                frame, is_pushed = frames.popleft()
                await self._send(
                    {"type": "websocket.send", "text": frame.decode()}
                    if self._is_text
                    else {"type": "websocket.send", "bytes": frame}
                )
                self._written(len(frame), is_pushed=is_pushed)
            if self._closing is not None:
                code, reason = self._closing
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
                return
            self._has_work.clear()
            await self._has_work.wait()

    def _written(self, size: int, *, is_pushed: bool) -> None:
        had_many = self.has_many_pushed, self.has_many_answers
        if is_pushed:
            self._pushed_bytes -= size
            self.has_many_pushed = self._pushed_bytes > self._flow_bytes
        else:
            self._answer_bytes -= size
            self.has_many_answers = self._answer_bytes > self._flow_bytes
        if had_many != (self.has_many_pushed, self.has_many_answers):
            self._on_room()


def _do_nothing() -> None:
    pass
