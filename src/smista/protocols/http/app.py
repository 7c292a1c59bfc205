"""The native door as an ASGI application: health, metrics, commands, REST, the stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import UNSET

from smista.core.checks import BATCH_ID_LENGTH_MAX, ID_LENGTH_MAX
from smista.engine import Broker
from smista.engine.lane import Lane
from smista.errors import BrokerClosed, BrokerError, reason
from smista.protocols.bulk.reader import LogReader
from smista.protocols.faults import Faults
from smista.protocols.http import claim_rows, log_paths, metrics, octets, openapi, page, rest, routes, staged_put
from smista.protocols.http.access import READABLE_BY, Access, is_preflight, readable, respond_preflight
from smista.protocols.http.answering import encoded
from smista.protocols.http.asgi import (
    HELD,
    Disconnected,
    Receive,
    Scope,
    Send,
    answer_format,
    check_length,
    format_of,
    header,
    read_body,
    request_format,
    respond,
    text_of,
    wants_octets,
    while_connected,
)
from smista.protocols.http.bounded import byte_count, check_values, in_steps
from smista.protocols.http.commands import DECODERS, Door
from smista.protocols.http.commands.base import Runnable
from smista.protocols.http.commands.claims import MakeClaim
from smista.protocols.http.commands.dead_letters import RedriveDeadLetters
from smista.protocols.http.commands.publishing import (
    Publish,
    PublishBatch,
    PublishToExchange,
)
from smista.protocols.http.commands.queues import Created
from smista.protocols.http.commands.receiving import Consume, Messages
from smista.protocols.http.commands.receiving import Receive as ReceiveCommand
from smista.protocols.http.errors import (
    STATUS,
    ErrorAnswer,
    ErrorBody,
    HostNotAllowed,
    InvalidRequest,
    MethodNotAllowed,
    OriginNotAllowed,
    PathNotFound,
    UnknownCommand,
    UpgradeRequired,
    error_body,
)
from smista.protocols.http.formats import JSON, MESSAGE_PACK, Decoder, Format
from smista.protocols.http.held import Held, HeldBytes
from smista.protocols.http.messages import MessageView
from smista.protocols.http.staging import Staging
from smista.protocols.http.stream import Stream
from smista.protocols.places import Places

logger = logging.getLogger("smista.http")

_INTERNAL_ERROR = JSON.encode(
    ErrorAnswer(ErrorBody("internal_error", "The broker is at fault; its log says more. Nothing was confirmed."))
)
_TEXT = b"text/plain; charset=utf-8"
_HTML = b"text/html; charset=utf-8"


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/command` takes."""

    command: str
    payload: msgspec.Raw = msgspec.Raw()


_REQUEST_DECODERS: dict[Format, Decoder[Request]] = {each: each.decoder(Request) for each in (JSON, MESSAGE_PACK)}
_EMPTY: dict[Format, msgspec.Raw] = {JSON: msgspec.Raw(b"{}"), MESSAGE_PACK: msgspec.Raw(b"\x80")}


class Neighbour(Protocol):
    """A door that shares the port: it is given what it claims."""

    def claims(self, scope: Scope) -> bool: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def refuse(self, scope: Scope, error: BrokerError, send: Send) -> None: ...


FRAME_BYTES_MAX_HEADER = b"smista-frame-bytes-max"
"""Of the answer that opens a stream: a longer frame would break it, with all that is under way on it."""


class HttpDoor:
    """An ASGI application. Until it has a broker it answers 503 to all but `/healthz`."""

    def __init__(
        self,
        *,
        request_bytes_max: int = 16 << 20,
        output_bytes_max: int = 16 << 20,
        websocket_frame_bytes_max: int = 16 << 20,
        log_reader: LogReader | None = None,
        staged_folder: Path | None = None,
        staged_bytes_max: int = 1 << 30,
        staged_expires_ms: int = 3_600_000,
        staged_total_bytes_max: int = 8 << 30,
        disk_free_bytes_min: int = 0,
        access: Access | None = None,
        places: Places | None = None,
    ) -> None:
        """`log_reader` reads the broker's log in bulk; without, it is as with a log in memory. Without `access` only
        names of loopback and addresses are served, and no page but our own."""
        self._access = access or Access()
        self._places = places or Places()
        self.log_reader = log_reader or LogReader(None)
        self._metrics = metrics.SharedPage()
        self.staging = Staging(
            self._ready,
            staged_folder,
            expires_ms=staged_expires_ms,
            total_bytes_max=staged_total_bytes_max,
            disk_free_bytes_min=disk_free_bytes_min,
        )
        self._staged_bytes_max = staged_bytes_max
        self.broker: Broker | None = None
        self._draining = asyncio.Event()
        self._request_bytes_max = request_bytes_max
        self._output_bytes_max = output_bytes_max
        self._accepted_headers = [(FRAME_BYTES_MAX_HEADER, str(websocket_frame_bytes_max).encode())]
        self._streams: set[Stream] = set()
        self._held = HeldBytes()
        self._faults = Faults(logger)
        self.sqs: Neighbour | None = None
        """Another door on the same port, asked first."""

    def kept_bytes(self) -> int:
        """What has come in and is not the broker's yet."""
        return self._held.count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        try:
            try:
                origin = self._access.check(scope)
            except (HostNotAllowed, OriginNotAllowed) as error:
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
            # The server has told the client, and ends this task; that is no fault that somebody should hear of.
            if not self._draining.is_set():
                raise
        except Exception as error:
            if kind != "http":
                raise
            # Ours, not the client's: it is told so in the usual shape, and we are told where.
            self._faults.note(error, "a request failed", path=scope["path"])
            await respond(send, 500, JSON.content_type, _INTERNAL_ERROR)

    async def _refuse(self, scope: Scope, error: BrokerError, receive: Receive, send: Send) -> None:
        """Say no before anything else was looked at, in the words of whoever was asked."""
        if scope["type"] == "websocket":
            await receive()
            await _refuse_websocket(send, error)
        elif self.sqs is not None and self.sqs.claims(scope):
            await self.sqs.refuse(scope, error, send)
        else:
            await respond(send, STATUS[error.code], JSON.content_type, JSON.encode(ErrorAnswer(error_body(error))))

    def drain(self) -> None:
        """Take no new work: long polls end, streams are told to go, and get their deliveries taken back."""
        self._draining.set()
        if self.sqs is not None:
            self.sqs.drain()
        for stream in list(self._streams):
            stream.close(1001, "the broker is stopping")

    def close(self) -> None:
        """Nobody asks any more: tell who was refused."""
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
                check_length(scope, self._request_bytes_max)
                body = await read_body(scope, receive, self._request_bytes_max)
                await check_values(body, came_in, self._lane())
                answer = await self._command(scope, came_in, written_in, body, receive)
                text = await encoded(answer, written_in, self._lane())
                await respond(send, 200, written_in.content_type, text)
            elif path in log_paths.PATHS:
                await log_paths.answer(scope, written_in, receive, send, self._ready(), self.log_reader)
            elif path.startswith("/v1/") and path not in _OTHER_PATHS:
                written_in = answer_format(scope, _request_format_or_json(scope))
                await self._rest(scope, written_in, receive, send)
            else:
                await self._other(scope, send)
        except BrokerError as error:
            body = written_in.encode(ErrorAnswer(error_body(error)))
            await respond(send, STATUS[error.code], written_in.content_type, body, _more_headers(error))

    async def _command(
        self, scope: Scope, came_in: Format, written_in: Format, body: bytes, receive: Receive
    ) -> object:
        request = _REQUEST_DECODERS[came_in](body)
        decode = DECODERS[came_in].get(request.command)
        if decode is None:
            raise unknown_command(request.command)
        payload = request.payload if byte_count(request.payload) else _EMPTY[came_in]
        command = await in_steps(decode, payload, self._lane())
        return await self._run(
            command, scope, Door(self._ready(), self.staging, came_in, written_in, self._places), receive
        )

    async def _run(self, command: Runnable, scope: Scope, door: Door, receive: Receive) -> object:
        if isinstance(command, (Publish, PublishToExchange, PublishBatch)):
            _take_idempotency_key(command, scope)
        elif (isinstance(command, Consume) and command.timeout) or (
            isinstance(command, ReceiveCommand) and command.wait_ms
        ):
            return await while_connected(
                command.run(door), receive, self._draining, lambda answer: _give_back(door.broker, answer)
            )
        elif isinstance(command, MakeClaim) and command.wait_ms:
            # A claim that was made for nobody stays: whoever asks again gets it.
            return await while_connected(command.run(door), receive, self._draining)
        elif isinstance(command, RedriveDeadLetters) and command.per_second is not None:
            return await while_connected(command.run(door), receive, self._draining)
        return await command.run(door)

    async def _rest(self, scope: Scope, written_in: Format, receive: Receive, send: Send) -> None:
        rows = claim_rows.asks_for_rows(scope)
        if rows is not None:
            await claim_rows.respond_rows(self._ready(), rows, scope, receive, send)
            return
        name = staged_put.asks_to_stage(scope)
        if name is not None:
            staged = await staged_put.put(self.staging, name, scope, receive, self._staged_bytes_max)
            await respond(send, 200, written_in.content_type, written_in.encode(staged))
            return
        route, path_fields = routes.find(scope["method"], scope.get("raw_path") or scope["path"].encode())
        check_length(scope, self._request_bytes_max)
        body = await read_body(scope, receive, self._request_bytes_max)
        written = format_of(header(scope, b"content-type") or b"")
        if written is not None:
            await check_values(body, written, self._lane())
        command, came_in = await rest.read(route, path_fields, scope, body, self._lane())
        is_octets = isinstance(command, ReceiveCommand) and wants_octets(scope)
        if isinstance(command, ReceiveCommand) and is_octets:
            if command.limit != 1:
                raise InvalidRequest("`limit` is 1 where a message is asked for as octets; leave it out.")
            command.raw = True
        answer = await self._run(
            command, scope, Door(self._ready(), self.staging, came_in, written_in, self._places), receive
        )
        if is_octets:
            await octets.respond_message(send, answer)
            return
        status = 201 if isinstance(answer, Created) and answer.created else route.status
        await respond(send, status, written_in.content_type, await encoded(answer, written_in, self._lane()))

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
                    await _respond_metrics(send, await self._metrics.parts(self._ready(), self.log_reader.measures))
            case "/openapi.json":
                await respond(send, 200, JSON.content_type, _openapi())
            case _:
                await respond(send, 200, _HTML, page.PAGE)

    def _not_ready(self) -> str | None:
        if self.broker is None:
            return "recovering"
        if self.broker.failure is not None:
            return f"the log failed: {reason(self.broker.failure)}"
        if self.broker.is_log_full:
            return "the disk is full and a block waits for room; free some space"
        return "stopping" if self._draining.is_set() else None

    def _lane(self) -> Lane:
        """The broker's; while there is none, what is wrong with a request is told all the same."""
        return Lane() if self.broker is None else self.broker.lane

    def _ready(self) -> Broker:
        if self.broker is None:
            raise BrokerClosed("The broker is still reading its log; try again in a moment.")
        return self.broker

    # -- the stream ---------------------------------------------------------------------------------------------------

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        event = await receive()
        assert event["type"] == "websocket.connect"
        try:
            broker, chosen = self._ready(), self._choose_subprotocol(scope)
        except BrokerError as error:
            await _refuse_websocket(send, error)
            return
        await send({"type": "websocket.accept", "subprotocol": chosen, "headers": self._accepted_headers})
        held = Held(self._held)
        stream = Stream(
            broker,
            self.staging,
            STREAM_FORMATS[chosen or "smista.json"],
            receive,
            send,
            peer=_peer(scope),
            output_bytes_max=self._output_bytes_max,
            held=held,
            places=self._places,
        )
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
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


def unknown_command(name: str) -> UnknownCommand:
    return UnknownCommand(f"There is no command {name[:100]!r}; docs/commands.md and /openapi.json list them.")


@lru_cache(maxsize=1)
def _openapi() -> bytes:
    return openapi.document()


def _request_format_or_json(scope: Scope) -> Format:
    content_type = header(scope, b"content-type")
    return (None if content_type is None else format_of(content_type)) or JSON


def _give_back(broker: Broker, answer: object) -> None:
    """What was received for a client that had gone by then returns to its place, unless the broker is at its end."""
    views = answer.messages if isinstance(answer, Messages) else [answer]
    receipts = [view.receipt for view in views if isinstance(view, MessageView) and view.receipt is not UNSET]
    with contextlib.suppress(BrokerError):
        broker.release_now([broker.receipt(text) for text in receipts])


async def _respond_metrics(send: Send, parts: list[bytes]) -> None:
    headers = [(b"content-type", metrics.CONTENT_TYPE.encode()), (b"content-length", b"%d" % sum(map(len, parts)))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _refuse_websocket(send: Send, error: BrokerError) -> None:
    """Answer a handshake as any other request, so that the client can tell what to do about it."""
    body = JSON.encode(ErrorAnswer(error_body(error)))
    headers = [(b"content-type", JSON.content_type), (b"content-length", b"%d" % len(body)), *_more_headers(error)]
    await send({"type": "websocket.http.response.start", "status": STATUS[error.code], "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


def _take_idempotency_key(command: Publish | PublishToExchange | PublishBatch, scope: Scope) -> None:
    """The header stands for the field that makes a publish safe to repeat; the field itself wins."""
    key = header(scope, b"idempotency-key")
    if key is None:
        return
    text = text_of(key).strip().strip('"').strip()
    longest = BATCH_ID_LENGTH_MAX if isinstance(command, PublishBatch) else ID_LENGTH_MAX
    if not 1 <= len(text) <= longest:
        raise InvalidRequest(f"Idempotency-Key must have 1 to {longest} characters.")
    if isinstance(command, PublishBatch):
        command.batch_id = command.batch_id or text
    else:
        command.deduplication_id = command.deduplication_id or text


def _more_headers(error: BrokerError) -> tuple[tuple[bytes, bytes], ...]:
    if isinstance(error, MethodNotAllowed):
        return ((b"allow", error.allowed.encode()),)
    if isinstance(error, UpgradeRequired):
        return ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))
    return ((b"retry-after", b"1"),) if STATUS[error.code] in (429, 503, 507) else ()


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""
