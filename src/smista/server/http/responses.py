"""Responses written as bytes, without I/O.

    HEAD ──start──▶ BODY ──the last piece──▶ DONE

How a client finds the end of a body: by its length where the application gives one; by nothing for HEAD, 204 and 304,
which have none; by chunks under HTTP/1.1; by the end of the connection under HTTP/1.0.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

Headers = Iterable[tuple[bytes, bytes]]


class Framing(enum.Enum):
    LENGTH = enum.auto()
    CHUNKS = enum.auto()
    CONNECTION = enum.auto()
    NO_BODY = enum.auto()


LENGTH, CHUNKS, CONNECTION, NO_BODY = Framing

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_WITHOUT_BODY = frozenset((204, 304))
_PLAIN = bytes([9, *range(0x20, 0x7F), *range(0x80, 0x100)])
"""All that may stand in a line of a head."""


class StandardHeaders:
    """What every answer has, the date among it."""

    def __init__(self, headers: Headers) -> None:
        self._fixed = list(headers)
        self._second = 0
        self._lines = b""

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode()), *self._fixed]

    def lines(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._lines = b"".join(b"%s: %s\r\n" % header for header in self.headers())
        return self._lines


class ResponseWriter:
    """One response. It raises RuntimeError where the application is at fault."""

    __slots__ = ("_bytes_left", "_framing", "_is_head", "_version", "is_complete", "is_started", "keep_alive", "length")

    def __init__(self, method: str, version: str, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        """Whether the connection may serve another request afterwards."""
        self.is_started = False
        self.is_complete = False
        self._is_head = method == "HEAD"
        self._version = version
        self._framing = NO_BODY
        self._bytes_left = 0
        self.length = 0
        """Of the body, where it is known from the start."""

    @property
    def shows_its_end(self) -> bool:
        """Whether a client sees that it is not whole when it ends too early with its connection."""
        return self._framing is LENGTH or self._framing is CHUNKS

    def start(self, status: int, headers: Headers, standard_lines: bytes) -> bytes:
        """The head."""
        if self.is_started:
            raise RuntimeError("the response has begun already")
        self.is_started = True
        length = None
        parts: list[bytes] = []
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and value.lower() == b"close":
                self.keep_alive = False
                continue
            parts += (name, b": ", value, b"\r\n")
        lines = b"".join(parts)
        # Nothing that came from outside may end a line and begin another.
        if lines.translate(None, _PLAIN) != b"\r\n" * (len(parts) // 4):
            raise RuntimeError("a header has a character that it cannot have")
        lines += self._frame(status, length)
        close = b"" if self.keep_alive else b"connection: close\r\n"
        return b"".join((_STATUS_LINES[status], standard_lines, lines, close, b"\r\n"))

    def _frame(self, status: int, length: int | None) -> bytes:
        """Decide how a client finds the end of the body; the line for that, where there is none yet."""
        if self._is_head or status in _WITHOUT_BODY:
            return b""
        if length is not None:
            self._framing = LENGTH
            self._bytes_left = self.length = length
            return b""
        if self._version == "1.0":
            self._framing = CONNECTION
            self.keep_alive = False
            return b""
        self._framing = CHUNKS
        return b"transfer-encoding: chunked\r\n"

    def data(self, data: bytes, *, is_last: bool) -> bytes:
        """A piece of the body."""
        if not self.is_started or self.is_complete:
            raise RuntimeError("a body comes after its head, and once")
        framing = self._framing
        if framing is LENGTH:
            self._bytes_left -= len(data)
            if self._bytes_left < 0 or (is_last and self._bytes_left):
                raise RuntimeError("the body has another length than its Content-Length says")
        elif framing is CHUNKS:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if is_last:
                data += b"0\r\n\r\n"
        elif framing is NO_BODY:
            data = b""
        self.is_complete = is_last
        return data
