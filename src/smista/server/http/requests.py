"""Requests read from bytes, without I/O.

    IDLE ──first byte──▶ HEAD ──blank line──▶ BODY ──last byte──▶ IDLE, or DONE after the last request
                           └── Handshake, Refusal ──▶ DONE ◀── Refusal ──┘

    reader.receive(b"POST /q HTTP/1.1\\r\\nContent-Length: 5\\r\\n\\r\\nhel")   # [Request, b"hel"]
    reader.receive(b"lo")                                                      # [b"lo", END]

How long a request is, is what request smuggling is about: whoever stands between a client and us must never read
another length than we do. llhttp, in httptools, refuses two lengths, a length beside chunks, and what it cannot read as
either. Here is added: chunks are the only transfer coding, versions are 1.0 and 1.1, an upgrade that is ignored has its
body read, and after a request that ends the connection nothing is read.
"""

from __future__ import annotations

import enum
from typing import NoReturn
from urllib.parse import unquote

import httptools

from smista.server.http import refusals
from smista.server.http.refusals import Refusal
from smista.server.settings import ServerSettings

STAGED_PATHS = b"/v1/staged/"
"""Bodies that are sent there are kept in files, and may be longer than others."""
HEADERS_MAX = 200
"""Short headers take twenty times as much memory here as they have bytes, and all who look for one go through them."""
LENGTH_DIGITS_MAX = 20
"""Python refuses to read numbers of thousands of digits, also if they are zeros."""


class Phase(enum.Enum):
    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    DONE = enum.auto()


class End(enum.Enum):
    """The request is whole."""

    END = enum.auto()


# Named here too because a member of an enum takes longer to find than the rest of a callback takes to run.
IDLE, HEAD, BODY, DONE = Phase
END = End.END


class Request:
    """The head of a request."""

    __slots__ = ("expects_continue", "headers", "keep_alive", "method", "path", "query", "raw_path", "version")

    def __init__(self, method: str, target: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> None:
        """Raises ValueError for a target that is none."""
        self.method = method
        self.version = version
        self.headers = headers
        self.keep_alive = True
        """Whether the connection may serve more requests."""
        self.expects_continue = False
        """Whether the body comes when it was asked for."""
        self.raw_path, self.query = split(target)
        path = self.raw_path.decode("ascii")
        self.path = unquote(path) if "%" in path else path


class Handshake:
    """A request to go on as a WebSocket."""

    __slots__ = ("early", "head", "request")

    def __init__(self, request: Request, target: bytes, early: bytes) -> None:
        self.request = request
        lines = [b"GET %s HTTP/1.1" % target, *(b"%s: %s" % header for header in request.headers)]
        self.head = b"\r\n".join(lines) + b"\r\n\r\n"
        """The request as it came."""
        self.early = early
        """What came behind it."""


Event = Request | bytes | End | Handshake | Refusal
"""`bytes` are a piece of a body. Nothing comes after a handshake or a refusal."""


class Stopped(Exception):
    """Raised in a callback of the parser to stop it."""


class RequestReader:
    def __init__(self, settings: ServerSettings) -> None:
        self.phase = IDLE
        self.step = 0
        """Grows whenever a head begins and whenever one is whole."""
        self.body_bytes = 0
        """What has come of the body that is being read."""
        self._settings = settings
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._events: list[Event] = []
        self._head_bytes = 0
        """What came since the request began, or since the last piece of its body; at most a chunk less."""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._content_bytes = 0
        """Its Content-Length."""
        self._codings = b""
        self._upgrade = b""
        self._expects_continue = False
        self._handshake: Request | None = None
        self._is_staging = False
        self._is_last = False
        self._resume_with: bytes | None = None
        """A head for a new parser alone: behind it, it reads the body that the one before took for another protocol."""

    def close(self) -> None:
        """Forget the parser: it and this hold each other."""
        self._parser = None
        self.phase = DONE

    @property
    def plain_bytes(self) -> int:
        """How much of what comes next is a body for certain: not of one in chunks, which may be of a byte each."""
        return self._content_bytes - self.body_bytes if self.phase is BODY and not self._codings else 0

    def receive(self, data: bytes) -> list[Event]:
        """The events in `data`, together with what came before it."""
        events: list[Event] = []
        if self.phase is DONE:
            return events
        self._events = events
        self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if self.phase is DONE:
                pass  # it was we who stopped
            elif isinstance(error, httptools.HttpParserCallbackError):
                raise  # a fault of ours
            else:
                self._refuse(refusals.MALFORMED)
        else:
            bytes_max = self._settings.header_bytes_max
            if self._head_bytes > bytes_max and (self.phase is HEAD or self.phase is BODY):
                self._refuse(refusals.headers_too_large(bytes_max))
        return events

    def _feed(self, data: bytes) -> None:
        assert self._parser is not None
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self._handshake is not None:
                    self._events.append(Handshake(self._handshake, self._target, data))
                    self.phase = DONE
                    return
                # RFC 9110, 7.8: a server may ignore an upgrade that it does not know. What follows is HTTP still.
                if self._resume_with is not None:
                    self._parser = httptools.HttpRequestParser(self)
                    self._parser.feed_data(self._resume_with)
                    self._resume_with = None

    def _refuse(self, refusal: Refusal) -> None:
        self._events.append(refusal)
        self.phase = DONE

    def _stop(self, refusal: Refusal) -> NoReturn:
        self._refuse(refusal)
        raise Stopped

    # -- the parser's callbacks ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._resume_with is not None:
            return
        if self.phase is DONE:
            raise Stopped
        self.phase = HEAD
        self.step += 1
        self._target = self._codings = self._upgrade = b""
        self._headers = []
        self._content_bytes = 0
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        if self.phase is HEAD:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not HEAD:
            return  # a trailer, or a head for the parser alone
        if len(self._headers) == HEADERS_MAX:
            self._stop(refusals.TOO_MANY_HEADERS)
        name, value = name.lower(), value.rstrip(b" \t")
        if name in _NOTED:
            self._note(name, value)
        self._headers.append((name, value))

    def _note(self, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            if len(value) > LENGTH_DIGITS_MAX:
                self._stop(refusals.MALFORMED)
            self._content_bytes = int(value)
        elif name == b"transfer-encoding":
            self._codings += b"," + value if self._codings else value
        elif name == b"upgrade":
            self._upgrade = value.strip().lower()
        elif value.strip().lower() == b"100-continue":
            self._expects_continue = True

    def on_headers_complete(self) -> None:
        if self._resume_with is not None:
            return
        parser = self._parser
        assert parser is not None
        bytes_max = self._settings.header_bytes_max
        if self._head_bytes > bytes_max and self._read_head_bytes() > bytes_max:
            self._stop(refusals.headers_too_large(bytes_max))
        if self._codings and self._codings.strip().lower() != b"chunked":
            self._stop(refusals.UNKNOWN_CODING)
        self._is_staging = self._target.startswith(STAGED_PATHS)
        self._check_size(self._content_bytes)
        method, version = parser.get_method(), parser.get_http_version()
        if version not in _VERSIONS:
            self._stop(refusals.UNKNOWN_VERSION)
        is_handshake = parser.should_upgrade() and self._upgrade == b"websocket"
        if is_handshake:
            self._check_handshake(method, version)
        elif parser.should_upgrade():
            self._ignore_upgrade(method)
        try:
            request = Request(method.decode("ascii"), self._target, version, self._headers)
        except ValueError:
            self._stop(refusals.NO_HANDSHAKE if is_handshake else refusals.MALFORMED)
        if is_handshake:
            self._handshake = request
            return
        request.expects_continue = self._expects_continue and version == "1.1"
        request.keep_alive = version != "1.0" and parser.should_keep_alive()
        self._is_last = not request.keep_alive
        self._events.append(request)
        self.phase = BODY
        self.step += 1
        self._head_bytes = self.body_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self.body_bytes += len(body)
        self._check_size(self.body_bytes)
        self._events.append(body)

    def on_message_complete(self) -> None:
        if self._resume_with is not None or self.phase is HEAD:
            return
        self._events.append(END)
        self.phase = DONE if self._is_last else IDLE
        self._head_bytes = 0

    def _read_head_bytes(self) -> int:
        return len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _check_size(self, size: int) -> None:
        settings = self._settings
        if size > (settings.staged_bytes_max if self._is_staging else settings.request_bytes_max):
            setting = "staged_bytes_max" if self._is_staging else "request_bytes_max"
            self._stop(refusals.request_too_large(getattr(settings, setting), setting))

    # -- upgrades -----------------------------------------------------------------------------------------------------

    def _check_handshake(self, method: bytes, version: str) -> None:
        has_body = self._content_bytes or self._codings
        if method != b"GET" or version != "1.1" or has_body or not self._target.isascii():
            self._stop(refusals.NO_HANDSHAKE)

    def _ignore_upgrade(self, method: bytes) -> None:
        """The parser takes what follows for another protocol. A body has to be read as one, or it would be read as the
        next request."""
        if method == b"CONNECT":
            self._stop(refusals.MALFORMED)
        if self._codings:
            self._resume_with = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
        elif self._content_bytes:
            self._resume_with = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % self._content_bytes


_NOTED = frozenset((b"content-length", b"transfer-encoding", b"upgrade", b"expect"))
_VERSIONS = ("1.1", "1.0")


def split(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request's target. Raises ValueError for what is no target."""
    if target.startswith(b"/") and b"#" not in target:
        path, _, query = target.partition(b"?")
        return path, query
    try:
        parsed = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError as error:
        raise ValueError("not a target") from error
    return parsed.path or b"/", parsed.query or b""
