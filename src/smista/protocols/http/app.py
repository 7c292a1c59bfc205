"""HTTP as an ASGI application: health, metrics, commands, REST, the stream."""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from typing import Protocol

from smista.errors import (
    BrokerClosed,
    BrokerError,
    HostNotAllowed,
    InvalidRequest,
    MethodNotAllowed,
    OriginNotAllowed,
    PathNotFound,
    UpgradeRequired,
    reason,
)
from smista.protocols.faults import Faults
from smista.protocols.http import log_paths, metrics, openapi, page
from smista.protocols.http.access import READABLE_BY, Access, is_preflight, readable, respond_preflight
from smista.protocols.http.answering import encoded
from smista.protocols.http.errors import INTERNAL_ERROR, STATUS, ErrorAnswer, error_body
from smista.protocols.http.formats import JSON, MESSAGE_PACK, Format
from smista.protocols.http.negotiation import answer_format, format_of, request_format
from smista.protocols.http.requests import Requests
from smista.protocols.http.stream import Stream
from smista.protocols.stalled import Unseen
from smista.protocols.web.asgi import HELD, UNSEEN, Disconnected, Receive, Scope, Send, header, respond
from smista.service.held import Held, HeldBytes
from smista.service.principal import anyone
from smista.service.service import Service
from smista.service.session import Session
from smista.service.values import FairTurns

logger = logging.getLogger("smista.http")

_TEXT = b"text/plain; charset=utf-8"
_HTML = b"text/html; charset=utf-8"


class Mounted(Protocol):
    """A protocol that shares the port: it is given what it claims."""

    def claims(self, scope: Scope) -> bool: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def refuse(self, scope: Scope, error: BrokerError, send: Send) -> None: ...


FRAME_BYTES_MAX_HEADER = b"smista-frame-bytes-max"
"""Of the answer that opens a stream: a longer frame would break it, with all that is under way on it."""


class HttpApp:
    """An ASGI application. Until it has a service it answers 503 to all but `/healthz`."""

    def __init__(
        self,
        *,
        request_bytes_max: int = 16 << 20,
        output_bytes_max: int = 16 << 20,
        websocket_frame_bytes_max: int = 16 << 20,
        staged_bytes_max: int = 1 << 30,
        access: Access | None = None,
    ) -> None:
        """Without `access` only names of loopback and addresses are served, and no page but our own."""
        self.service: Service | None = None
        self.sqs: Mounted | None = None
        """Another protocol on the same port, asked first."""
        self._access = access or Access()
        self._metrics = metrics.SharedPage()
        self._draining = asyncio.Event()
        self._requests = Requests(
            self._ready, self._draining, bytes_max=request_bytes_max, staged_bytes_max=staged_bytes_max
        )
        self._output_bytes_max = output_bytes_max
        self._accepted_headers = [(FRAME_BYTES_MAX_HEADER, str(websocket_frame_bytes_max).encode())]
        self._streams: set[Stream] = set()
        self._held = HeldBytes()
        self._faults = Faults(logger)

    def kept_bytes(self) -> int:
        """What has come in and is not the broker's yet."""
        return self._held.count

    def output_bytes(self) -> int:
        """What streams have to write; what was written is the server's to count."""
        return sum(stream.output_bytes for stream in self._streams)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        try:
            try:
                origin = self._access.check(scope)
            except (HostNotAllowed, OriginNotAllowed, InvalidRequest) as error:
                await self._refuse(scope, error, receive, send)
                return
            if origin is not None:
                if is_preflight(scope):
                    await respond_preflight(scope, origin, send)
                    return
                scope[READABLE_BY] = origin
                send = readable(send, origin)
            if kind == "http":
                held = scope[HELD] = Held(self._held)
                try:
                    if self.sqs is not None and self.sqs.claims(scope):
                        await self.sqs(scope, receive, send)
                    else:
                        await self._http(scope, receive, send)
                finally:
                    held.release()
            elif kind == "websocket":
                await self._websocket(scope, receive, send)
            else:
                raise RuntimeError(f"this application does not speak ASGI's {kind}")
        except Disconnected:
            return
        except asyncio.CancelledError:
            # The server has answered the client, and ends this task; that is no fault.
            if not self._draining.is_set():
                raise
        except Exception as error:
            if kind != "http":
                raise
            # Ours, not the client's: it is answered in the usual shape, and the log says where.
            self._faults.note(error, "a request failed", path=scope["path"])
            await respond(send, 500, JSON.content_type, JSON.encode(ErrorAnswer(INTERNAL_ERROR)))

    async def _refuse(self, scope: Scope, error: BrokerError, receive: Receive, send: Send) -> None:
        """Refuse a request before anything else of it is read, as the protocol does that it is for."""
        if scope["type"] == "websocket":
            await receive()
            await _refuse_websocket(send, error)
        elif self.sqs is not None and self.sqs.claims(scope):
            await self.sqs.refuse(scope, error, send)
        else:
            await respond(send, STATUS[error.code], JSON.content_type, JSON.encode(ErrorAnswer(error_body(error))))

    def drain(self) -> None:
        """Take no new work: long polls end, streams close, and what they hold goes back."""
        self._draining.set()
        if self.sqs is not None:
            self.sqs.drain()
        for stream in list(self._streams):
            stream.close(1001, "the broker is stopping")

    def close(self) -> None:
        """There will be no more requests: log those that were refused."""
        self._access.refusing.close()
        if self.sqs is not None:
            self.sqs.close()

    # -- http ---------------------------------------------------------------------------------------------------------

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        written_in: Format = JSON
        try:
            written_in = answer_format(scope, JSON)
            path = scope["path"]
            if path == "/v1/command" and scope["method"] == "POST":
                came_in = request_format(scope)
                written_in = answer_format(scope, came_in)
                fair_turns = self._fair_turns()
                answer = await self._requests.command(scope, came_in, written_in, fair_turns, receive)
                text = await encoded(answer, written_in, fair_turns)
                await respond(send, 200, written_in.content_type, text)
            elif path in log_paths.PATHS:
                await log_paths.answer(scope, written_in, receive, send, self._session(scope))
            elif path.startswith("/v1/") and path not in _OTHER_PATHS:
                written_in = answer_format(scope, _request_format_or_json(scope))
                await self._requests.rest(scope, written_in, self._fair_turns(), receive, send)
            else:
                await self._other(scope, send)
        except BrokerError as error:
            body = written_in.encode(ErrorAnswer(error_body(error)))
            await respond(send, STATUS[error.code], written_in.content_type, body, _more_headers(error))

    async def _other(self, scope: Scope, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path not in _OTHER_PATHS:
            raise PathNotFound(f"There is nothing at {path!r}; see /openapi.json.")
        if path == "/v1/command":
            raise MethodNotAllowed(method, ["POST"])
        if method not in ("GET", "HEAD"):
            raise MethodNotAllowed(method, ["GET", "HEAD"])
        match path:
            case "/v1/stream":
                raise UpgradeRequired("The stream is a WebSocket; ask for an upgrade, or send commands by POST.")
            case "/healthz":
                await respond(send, 200, _TEXT, b"ok\n")
            case "/readyz":
                reason = self._not_ready()
                status = 200 if reason is None else 503
                await respond(send, status, _TEXT, b"ready\n" if reason is None else f"not ready: {reason}\n".encode())
            case "/metrics":
                with self._metrics.reading():
                    await _respond_metrics(send, await self._metrics.parts(self._session(scope)))
            case "/openapi.json":
                await respond(send, 200, JSON.content_type, _openapi())
            case _:
                await respond(send, 200, _HTML, page.PAGE)

    def _not_ready(self) -> str | None:
        if self.service is None:
            return "recovering"
        if self.service.failure is not None:
            return f"the log failed: {reason(self.service.failure)}"
        if self.service.is_log_full:
            return "the disk is full and a block waits for room; free some space"
        return "stopping" if self._draining.is_set() else None

    def _fair_turns(self) -> FairTurns:
        """The broker's; while there is none, what is wrong with a request is answered all the same."""
        return FairTurns() if self.service is None else self.service.fair_turns

    def _ready(self) -> Service:
        if self.service is None:
            raise BrokerClosed("The broker is still reading its log; try again in a moment.")
        return self.service

    def _session(self, scope: Scope) -> Session:
        """For what is about the broker as a whole."""
        return self._ready().session(anyone("http", _peer(scope)))

    # -- the stream ---------------------------------------------------------------------------------------------------

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        event = await receive()
        assert event["type"] == "websocket.connect"
        try:
            service, chosen = self._ready(), self._choose_subprotocol(scope)
        except BrokerError as error:
            await _refuse_websocket(send, error)
            return
        await send({"type": "websocket.accept", "subprotocol": chosen, "headers": self._accepted_headers})
        held = Held(self._held)
        unseen: Unseen = scope.get(UNSEEN) or Unseen()
        stream = Stream(
            service,
            anyone("http", _peer(scope)),
            STREAM_FORMATS[chosen or "smista.json"],
            receive,
            send,
            output_bytes_max=self._output_bytes_max,
            held=held,
            unseen=unseen,
        )
        unseen.unwritten_bytes = lambda: stream.output_bytes
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
            unseen.forget()
            held.release()

    def _choose_subprotocol(self, scope: Scope) -> str | None:
        """The one of ours that the client named first; None where it named none. Raises why there is no stream."""
        if self._draining.is_set():
            raise BrokerClosed("The broker is stopping; ask again in a moment.")
        if scope["path"] != "/v1/stream":
            raise PathNotFound(f"There is no WebSocket at {scope['path']!r:.200}; /v1/stream is one.")
        offered = scope.get("subprotocols") or []
        chosen = next((name for name in offered if name in STREAM_FORMATS), None)
        if offered and chosen is None:
            raise InvalidRequest(f"None of these subprotocols is spoken here; offer {' or '.join(STREAM_FORMATS)}.")
        return chosen


STREAM_FORMATS: dict[str, Format] = {"smista.json": JSON, "smista.msgpack": MESSAGE_PACK}
_OTHER_PATHS = frozenset(("/", "/v1/command", "/v1/stream", "/healthz", "/readyz", "/metrics", "/openapi.json"))


@lru_cache(maxsize=1)
def _openapi() -> bytes:
    return openapi.document()


def _request_format_or_json(scope: Scope) -> Format:
    content_type = header(scope, b"content-type")
    return (None if content_type is None else format_of(content_type)) or JSON


async def _respond_metrics(send: Send, parts: list[bytes]) -> None:
    headers = [(b"content-type", metrics.CONTENT_TYPE.encode()), (b"content-length", b"%d" % sum(map(len, parts)))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _refuse_websocket(send: Send, error: BrokerError) -> None:
    """Answer a handshake as any other request, so that the client sees what to do about it."""
    body = JSON.encode(ErrorAnswer(error_body(error)))
    headers = [(b"content-type", JSON.content_type), (b"content-length", b"%d" % len(body)), *_more_headers(error)]
    await send({"type": "websocket.http.response.start", "status": STATUS[error.code], "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


def _more_headers(error: BrokerError) -> tuple[tuple[bytes, bytes], ...]:
    if isinstance(error, MethodNotAllowed):
        return ((b"allow", error.allowed.encode()),)
    if isinstance(error, UpgradeRequired):
        return ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))
    return ((b"retry-after", b"1"),) if STATUS[error.code] in (429, 503, 507) else ()


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""
