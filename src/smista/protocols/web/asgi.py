"""The little of ASGI that we use: types, reading a request, writing an answer.

Raw ASGI rather than a framework, because the hot path is a single POST: a raw handler served 19.6K
requests a second where Starlette's Request and Response served 7.2K.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from smista.errors import BrokerClosed, InvalidRequest, RequestTooLarge, UnsupportedMediaType
from smista.service.held import Held, HeldBytes

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

T = TypeVar("T")
HELD = "smista.held"
"""Where a scope has what its request holds ..."""
UNSEEN = "smista.unseen"
"""... and that of a WebSocket what its server does not see, see `smista.protocols.stalled`."""

PIECE_BYTES = 1 << 20
"""So much of an answer is given to a connection at a time: the next piece when it has taken that."""
LENGTH_DIGITS_MAX = 20


class Disconnected(Exception):
    """The client has gone; there is nobody to answer."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The last value of a header; names are lower case."""
    found = None
    for key, value in scope["headers"]:
        if key == name:
            found = value
    return found


def client_of(scope: Scope) -> str:
    """The address of who asks; empty where nobody knows."""
    client = scope.get("client")
    return client[0] if client else ""


def text_of(value: bytes) -> str:
    """A header's value as text. HTTP leaves open how it is written: what is no UTF-8 was Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def kind_of(content_type: bytes) -> bytes:
    """A content type without its parameters."""
    return content_type.partition(b";")[0].strip().lower()


def unsupported(
    content_type: bytes | None, cure: str = "application/json or application/msgpack"
) -> UnsupportedMediaType:
    if content_type is None:
        return UnsupportedMediaType(f"The body has no Content-Type; send {cure} with it.")
    return UnsupportedMediaType(f"Content-Type {text_of(content_type)[:100]!r} is not known here; send {cure}.")


async def read_body(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    event = await receive()
    if event["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = event.get("body", b"")
    held = held_by(scope)
    held.add(len(body))
    if not event.get("more_body", False):
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        return body
    parts = [body]
    size = len(body)
    while event.get("more_body", False):
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Disconnected
        body = event.get("body", b"")
        held.add(len(body))
        size += len(body)
        if size > bytes_max:
            raise _too_large(bytes_max)
        parts.append(body)
    return b"".join(parts)


def held_by(scope: Scope) -> Held:
    """What the request holds, as the application counts it."""
    held: Held | None = scope.get(HELD)
    return Held(HeldBytes()) if held is None else held


def check_length(scope: Scope, bytes_max: int) -> None:
    """Refuse what is too long before it has been sent."""
    length = header(scope, b"content-length")
    if length is not None:
        if not length.isdigit():
            raise InvalidRequest("Content-Length is not a number.")
        # Python refuses to read numbers of thousands of digits.
        if len(length) > LENGTH_DIGITS_MAX or int(length) > bytes_max:
            raise _too_large(bytes_max)


def _too_large(bytes_max: int) -> RequestTooLarge:
    return RequestTooLarge(f"The request is over {bytes_max} bytes; send less at a time, or raise request_bytes_max.")


async def while_connected(
    work: Awaitable[T], receive: Receive, draining: asyncio.Event, take_back: Callable[[T], None] = lambda result: None
) -> T:
    """Wait for work that may take long, and give it up when the client goes: else a message would be handed to nobody.
    Also when we are stopping. `take_back` gets a result that came just too late. Only after the body was read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(receive())
    stopping = asyncio.ensure_future(draining.wait())
    try:
        await asyncio.wait((task, gone, stopping), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            if task.done() and task.exception() is None:
                take_back(task.result())
            raise Disconnected
        if task.done():
            return task.result()
        raise BrokerClosed("The broker is stopping; ask again in a moment.")
    finally:
        for each in (task, gone, stopping):
            each.cancel()
        await asyncio.gather(task, gone, stopping, return_exceptions=True)


async def respond(
    send: Send,
    status: int,
    content_type: bytes,
    body: bytes,
    more: tuple[tuple[bytes, bytes], ...] = (),
) -> None:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if len(body) > PIECE_BYTES:
        for start in range(0, len(body), PIECE_BYTES):
            await send({"type": "http.response.body", "body": body[start : start + PIECE_BYTES], "more_body": True})
        body = b""
    await send({"type": "http.response.body", "body": body})
