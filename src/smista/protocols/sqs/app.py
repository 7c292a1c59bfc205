"""SQS as an ASGI application, on the HTTP port that it shares with the protocol of `protocols/http`.

`claims` decides whether a request is for SQS; `HttpApp` asks it first. A request is JSON if it has an `X-Amz-Target`,
else it is Query.
"""

from __future__ import annotations

import logging
import random

from smista.errors import BrokerError, RequestError
from smista.protocols.faults import Faults
from smista.protocols.refusing import Refusing
from smista.protocols.sqs import json_protocol, query_protocol, signature
from smista.protocols.sqs.actions.base import Action
from smista.protocols.sqs.addresses import read_path
from smista.protocols.sqs.call import Call, Memory
from smista.protocols.sqs.errors import (
    INCOMPLETE_SIGNATURE,
    INTERNAL_FAILURE,
    INVALID_ADDRESS,
    INVALID_CLIENT_TOKEN,
    INVALID_SECURITY,
    MALFORMED_INPUT,
    MISSING_TOKEN,
    REQUEST_TOO_LARGE,
    SERVICE_UNAVAILABLE,
    SIGNATURE_DOES_NOT_MATCH,
    UNSUPPORTED_MEDIA_TYPE,
    UNSUPPORTED_OPERATION,
    SqsError,
    from_broker,
)
from smista.protocols.sqs.limits import RELAXED, STRICT, SqsSettings
from smista.protocols.sqs.message_attributes import trace_header_of
from smista.protocols.web.asgi import (
    Disconnected,
    Receive,
    Scope,
    Send,
    check_length,
    client_of,
    kind_of,
    read_body,
    unsupported,
)
from smista.protocols.web.sessions import Sessions
from smista.service.service import Service

logger = logging.getLogger("smista.sqs")

_FORM = b"application/x-www-form-urlencoded"
_NOT_OURS = ("/v1/", "/healthz", "/readyz", "/metrics", "/openapi.json")
UNAUTHENTICATED = (
    INVALID_SECURITY,
    MISSING_TOKEN,
    INCOMPLETE_SIGNATURE,
    INVALID_CLIENT_TOKEN,
    SIGNATURE_DOES_NOT_MATCH,
)
"""The answers to requests without a valid signature."""
_UNKNOWN_OPERATION = b"<UnknownOperationException/>\n"


class Request:
    """The parts of a request's head that matter here, found in one pass."""

    __slots__ = ("content_type", "host", "path", "query", "target", "trace", "wants_json")

    def __init__(self, scope: Scope) -> None:
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.target = self.content_type = self.host = self.trace = b""
        self.wants_json = False
        """Of a Query request: whether it is answered in JSON rather than in XML."""
        for name, value in scope["headers"]:
            if name == b"x-amz-target":
                self.target = value
            elif name == b"content-type":
                self.content_type = value
            elif name == b"host":
                self.host = value
            elif name == b"x-amzn-trace-id":
                self.trace = value
            elif name == b"accept":
                self.wants_json = b"application/json" in value.lower()


class SqsApp:
    """An ASGI application. Until it has a service it answers 503."""

    def __init__(self, settings: SqsSettings) -> None:
        self.service: Service | None = None
        self._settings = settings
        self._limits = RELAXED if settings.relaxed else STRICT
        self._memory = Memory(Sessions(self._ready, "sqs"))
        self._refusing = Refusing(logger, "requests are refused", protocol="sqs")
        self._faults = Faults(logger)

    @staticmethod
    def claims(scope: Scope) -> bool:
        """Whether a request on the shared port is for SQS."""
        path: str = scope["path"]
        method = scope["method"]
        if path != "/":
            if path.startswith(_NOT_OURS):
                return False
            if method == "GET":
                return read_path(path) is not None
        if method == "GET":
            return _has_action(scope["query_string"])
        if method != "POST":
            return False
        is_place = path == "/" or path.removesuffix("/").count("/") == 2 or read_path(path) is not None
        for key, value in scope["headers"]:
            if key == b"x-amz-target":
                return is_place or value.startswith(json_protocol.TARGET_PREFIX)
            if is_place and (
                (key == b"content-type" and value.lower().startswith((_FORM, b"application/x-amz-json")))
                or (key == b"authorization" and value.startswith(b"AWS4-"))
            ):
                return True
        return is_place and _has_action(scope["query_string"])

    def kept_bytes(self) -> int:
        """What is remembered of receives that may be repeated."""
        return self._memory.attempts.held_bytes()

    def drain(self) -> None:
        """Take no new work: long polls end empty."""
        self._memory.draining.set()

    def close(self) -> None:
        """There will be no more requests: log those that were refused."""
        self._refusing.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        request_id = _request_id()
        try:
            await self._answer(request, request_id, scope, receive, send)
        except Disconnected:
            return
        except SqsError as error:
            if error.kind in UNAUTHENTICATED:
                self._refusing.note(error.kind.code, client_of(scope))
            await _refuse(request, request_id, error, send)
        except BrokerError as error:
            await _refuse(request, request_id, from_broker(error), send)
        except Exception as error:
            # Ours, not the client's: it is answered in the usual shape, and the log says where.
            self._faults.note(error, "a request failed", path=request.path)
            fault = SqsError(INTERNAL_FAILURE, "The broker is at fault; its log says more. Nothing was confirmed.")
            await _refuse(request, request_id, fault, send)

    async def refuse(self, scope: Scope, error: BrokerError, send: Send) -> None:
        """Refuse a request before it is read."""
        await _refuse(Request(scope), _request_id(), from_broker(error), send)

    def _ready(self) -> Service:
        if self.service is None:
            raise SqsError(SERVICE_UNAVAILABLE, "The broker is still reading its log; try again in a moment.")
        return self.service

    async def _answer(self, request: Request, request_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._ready()
        body = await self._read_body(request, scope, receive)
        settings = self._settings
        if request.target:
            if body and kind_of(request.content_type) not in json_protocol.CONTENT_TYPES:
                raise _unsupported(request, json_protocol.CONTENT_TYPE.decode())
        elif body:
            if kind_of(request.content_type) != _FORM:
                raise _unsupported(request, f"{_FORM.decode()}, or JSON with an X-Amz-Target")
        elif scope["method"] == "GET" and "Action" not in query_protocol.parameters(request.query, b""):
            await _respond(send, 404, request_id, query_protocol.CONTENT_TYPE, _UNKNOWN_OPERATION)
            return
        # Before the body is decoded: a request that is not authenticated costs no more than a hash.
        if settings.access_keys:
            caller = signature.verified(scope, body, settings, service.now_ms())
        elif _is_local(scope):
            caller = signature.unverified(scope, settings)
        else:
            raise SqsError(
                INVALID_SECURITY,
                "This broker has no access keys and serves only its own machine; configure sqs_access_keys.",
            )
        if settings.requests_per_second is not None:
            self._memory.throttle(caller.account, settings.requests_per_second, service.now_ms())
        path = read_path(request.path)
        if path is None and request.path != "/":
            raise SqsError(INVALID_ADDRESS, f"The address {request.path[:200]} is not valid for this endpoint.")
        action: Action
        if request.target:
            action = json_protocol.read(request.target, body, self._limits)
        else:
            given = await query_protocol.parameters_in_steps(request.query, body, service.fair_turns.turn)
            action = query_protocol.read(given, is_at_queue=path is not None)
        name = type(action).__name__
        if scope["method"] == "GET" and not settings.access_keys and not action.is_reading:
            # Any page can make a browser send a GET, by an image or a link, and old browsers do not send its origin.
            raise SqsError(
                MISSING_TOKEN,
                f"{name} by GET has to be signed with a key that this broker knows; send it by POST, or configure "
                "sqs_access_keys.",
            )
        if name in settings.actions_off:
            raise SqsError(UNSUPPORTED_OPERATION, f"This broker does not offer {name}: sqs_actions_off names it.")
        host = request.host.decode("latin-1") or "localhost"
        call = Call(
            service=service,
            settings=settings,
            limits=self._limits,
            memory=self._memory,
            caller=caller,
            address=client_of(scope),
            base_url=f"{scope.get('scheme', 'http')}://{host}",
            path=path,
            receive=receive,
            trace_header=trace_header_of(request.trace),
        )
        answer = await action.run(call)
        if request.target:
            parts = await json_protocol.write(answer, service.fair_turns.turn)
            await _respond(send, 200, request_id, json_protocol.CONTENT_TYPE, *parts)
        else:
            content_type, parts = await query_protocol.write(
                name, answer, request_id, service.fair_turns.turn, in_json=request.wants_json
            )
            await _respond(send, 200, request_id, content_type, *parts)

    async def _read_body(self, request: Request, scope: Scope, receive: Receive) -> bytes:
        bytes_max = min(self._settings.request_bytes_max, self._limits.request_bytes_max(is_form=not request.target))
        try:
            check_length(scope, bytes_max)
            return await read_body(scope, receive, bytes_max)
        except RequestError as error:
            kind = REQUEST_TOO_LARGE if error.code == "request_too_large" else MALFORMED_INPUT
            raise SqsError(kind, str(error)) from None


def _unsupported(request: Request, cure: str) -> SqsError:
    return SqsError(UNSUPPORTED_MEDIA_TYPE, str(unsupported(request.content_type or None, cure)))


def _has_action(query: bytes) -> bool:
    return query.startswith(b"Action=") or b"&Action=" in query


def _is_local(scope: Scope) -> bool:
    client = scope.get("client")
    return client is None or client[0].startswith("127.") or client[0] in ("::1", "::ffff:127.0.0.1", "")


def _request_id() -> str:
    text = f"{random.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


async def _refuse(request: Request, request_id: str, error: SqsError, send: Send) -> None:
    if request.target:
        body, more = json_protocol.write_error(error)
        await _respond(send, error.kind.status, request_id, json_protocol.CONTENT_TYPE, body, more=more)
    else:
        content_type, body = query_protocol.write_error(error, request_id, in_json=request.wants_json)
        await _respond(send, error.kind.status, request_id, content_type, body)


async def _respond(
    send: Send,
    status: int,
    request_id: str,
    content_type: bytes,
    *parts: bytes,
    more: tuple[tuple[bytes, bytes], ...] = (),
) -> None:
    headers = [
        (b"x-amzn-requestid", request_id.encode()),
        (b"content-type", content_type),
        (b"content-length", b"%d" % sum(map(len, parts))),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": parts[-1]})
