"""One WebSocket to the broker, from its opening to its end. Reconnecting is up to the session.

Frames are queued and written by one task, so that `send` never waits. What may be unconfirmed at a time is bounded by
the callers (see `window.py`), not here.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from smista.address import DEFAULT_PORT, shown_address
from smista.client.errors import ConnectionFailed
from smista.client.wire import SUBPROTOCOL

_CLOSE_TIMEOUT_S = 2.0
_PING_INTERVAL_S = 20.0
_WRITE_BYTES_MAX = 1 << 20
_TOO_BIG = 1009
_FRAME_BYTES_MAX = 1 << 31
"""Where the broker gives no limit. It then closes the connection, and the session guesses which frame was too long."""


class Connection:
    """See the module. Make one with `open`; `receive` until it raises `EOFError`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._outbox: deque[bytes] = deque()
        self._has_frames = asyncio.Event()
        self._is_closing = False
        self._writer = asyncio.create_task(self._write(), name="smista-writer")
        self.frame_bytes_max = _frame_bytes_max(socket)
        """The longest frame the broker takes."""
        self.is_over = False
        self.ending = ""
        """Why it is over."""

    @classmethod
    async def open(cls, url: str, *, timeout_ms: int) -> Connection:
        """Raises `ConnectionFailed` with a sentence that names the address and the cure."""
        try:
            socket = await connect(
                url,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                compression=None,
                proxy=None,
                open_timeout=timeout_ms / 1000,
                close_timeout=_CLOSE_TIMEOUT_S,
                ping_interval=_PING_INTERVAL_S,
                ping_timeout=_PING_INTERVAL_S,
                max_size=None,
                write_limit=_WRITE_BYTES_MAX,
            )
        except (OSError, TimeoutError, EOFError, InvalidHandshake, InvalidURI) as error:
            raise _failed(url, error, timeout_ms) from None
        if socket.subprotocol != SUBPROTOCOL:
            await socket.close()
            raise ConnectionFailed(
                f"What listens at {shown_address(url)} is not a Smista broker: it does not speak {SUBPROTOCOL}."
            )
        return cls(socket)

    def send(self, frame: bytes) -> None:
        self._outbox.append(frame)
        self._has_frames.set()

    async def receive(self) -> bytes:
        """The next frame; raises `EOFError` when the connection is over."""
        try:
            return await self._socket.recv(decode=False)
        except ConnectionClosed as closed:
            self.end(_reason(closed))
            raise EOFError(self.ending) from None

    @property
    def is_refusing_size(self) -> bool:
        """Whether the broker ended it because a frame was larger than it takes."""
        return self._socket.close_code == _TOO_BIG

    def end(self, why: str) -> None:
        """Abort it at once; frames still queued are not sent."""
        if not self.is_over:
            self.is_over = True
            self.ending = why.rstrip(".")  # it becomes part of a sentence
            self._writer.cancel()
            if not self._socket.transport.is_closing():
                self._socket.transport.abort()

    async def close(self) -> None:
        """Send the frames still queued, then close it in order."""
        self._is_closing = True
        self._has_frames.set()
        await asyncio.wait({self._writer}, timeout=_CLOSE_TIMEOUT_S)
        await self._socket.close()
        self.end("it was closed")

    async def _write(self) -> None:
        outbox = self._outbox
        try:
            while outbox or not self._is_closing:
                await self._has_frames.wait()
                self._has_frames.clear()
                while outbox:
                    await self._socket.send(outbox.popleft())
        except ConnectionClosed:
            pass  # `receive` meets it too, and notes why


def _frame_bytes_max(socket: ClientConnection) -> int:
    limit = "" if socket.response is None else socket.response.headers.get("Smista-Frame-Bytes-Max", "")
    return int(limit) if limit.isdecimal() else _FRAME_BYTES_MAX


def _failed(url: str, error: Exception, timeout_ms: int) -> ConnectionFailed:
    address = shown_address(url)
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        path = urlsplit(address).path
        cause = "it is still starting, has too many connections, or is not a Smista broker"
        if status == HTTPStatus.NOT_FOUND:
            cause = "it is not a Smista broker"
            if path:
                cause = f"a broker has no path {path}; leave it out, unless it leads to one behind a proxy"
        elif status == HTTPStatus.FORBIDDEN:
            cause = _sentence(error.response.body or b"") or "it is not a Smista broker, or a proxy lets nobody in"
        return ConnectionFailed(f"What listens at {address} answered {status} to the opening of a stream: {cause}.")
    if isinstance(error, InvalidMessage):
        return ConnectionFailed(
            f"What listens at {address} does not speak HTTP: give the broker's HTTP port, {DEFAULT_PORT} by default, "
            "not its AMQP port."
        )
    if isinstance(error, TimeoutError):
        problem = f"no answer within {timeout_ms} ms"
    elif isinstance(error, OSError):
        # asyncio's sentence repeats the address; errors of name resolution have numbers below 0.
        problem = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    else:
        problem = str(error) or type(error).__name__
    return ConnectionFailed(
        f"No broker can be reached at {address} ({problem}): is it running? Start it with `smista serve`."
    )


def _reason(closed: ConnectionClosed) -> str:
    received = closed.rcvd
    if received is None:
        return "the connection broke"
    return f"the broker closed the connection ({received.code}{' ' + received.reason if received.reason else ''})"


def _sentence(body: bytes | bytearray) -> str | None:
    """The broker's reason for refusing requests under this host name; None where no broker answered."""
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        return None
    return message.rstrip(".") if isinstance(message, str) else None
