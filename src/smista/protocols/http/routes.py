"""REST: paths and methods for the same commands.

A route says which command a path stands for, which of its fields are in the path, and what the request's body is: the
rest of the fields, the queue's settings, or nothing. What is not in path or body may stand in the query.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import unquote_to_bytes

import msgspec

from smista.errors import InvalidRequest, MethodNotAllowed, PathNotFound

BodyKind = Literal["none", "fields", "settings"]


class Route(msgspec.Struct, frozen=True):
    method: str
    path: str
    command: str
    body: BodyKind = "none"
    status: int = 200

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.removeprefix("/v1/").split("/"))

    @property
    def path_fields(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.parts if part.startswith("{"))


_QUEUE = "/v1/queues/{queue}"
_MESSAGE = "/v1/queues/{queue}/messages/{message_id}"
_EXCHANGE = "/v1/exchanges/{exchange}"
_CLAIMS = "/v1/queues/{queue}/claims"

ROUTES = (
    Route("GET", "/v1/info", "broker.info"),
    Route("GET", "/v1/queues", "queue.list"),
    Route("PUT", _QUEUE, "queue.declare", "settings"),
    Route("PATCH", _QUEUE, "queue.alter", "settings"),
    Route("GET", _QUEUE, "queue.stats"),
    Route("DELETE", _QUEUE, "queue.delete"),
    Route("GET", f"{_QUEUE}/settings", "queue.settings"),
    Route("POST", f"{_QUEUE}/purge", "queue.purge", "fields"),
    Route("POST", f"{_QUEUE}/pause", "queue.pause", "fields"),
    Route("POST", f"{_QUEUE}/resume", "queue.resume", "fields"),
    Route("POST", f"{_QUEUE}/messages", "queue.publish", "fields", 201),
    Route("POST", f"{_QUEUE}/batches", "queue.publish_batch", "fields"),
    Route("GET", f"{_QUEUE}/messages", "queue.browse"),
    Route("GET", _MESSAGE, "queue.get"),
    Route("DELETE", _MESSAGE, "queue.delete_message"),
    Route("POST", f"{_MESSAGE}/ack", "queue.ack", "fields"),
    Route("POST", f"{_MESSAGE}/nack", "queue.nack", "fields"),
    Route("POST", f"{_MESSAGE}/release", "queue.release", "fields"),
    Route("POST", f"{_MESSAGE}/extend", "queue.extend", "fields"),
    Route("GET", f"{_QUEUE}/next", "queue.peek"),
    Route("POST", f"{_QUEUE}/receive", "queue.receive", "fields"),
    Route("POST", "/v1/ack", "queue.ack", "fields"),
    Route("POST", "/v1/nack", "queue.nack", "fields"),
    Route("POST", "/v1/release", "queue.release", "fields"),
    Route("POST", "/v1/extend", "queue.extend", "fields"),
    Route("GET", f"{_QUEUE}/dead-letters", "dlq.list"),
    Route("DELETE", f"{_QUEUE}/dead-letters", "dlq.purge"),
    Route("POST", f"{_QUEUE}/dead-letters/redrive", "dlq.retry", "fields"),
    Route("POST", f"{_QUEUE}/redrives", "redrive.start", "fields"),
    Route("GET", f"{_QUEUE}/redrives", "redrive.list"),
    Route("DELETE", f"{_QUEUE}/redrives/{{job}}", "redrive.cancel"),
    Route("GET", "/v1/redrives", "redrive.list"),
    Route("GET", f"{_QUEUE}/scheduled", "scheduled.list"),
    Route("PATCH", f"{_QUEUE}/scheduled/{{message_id}}", "scheduled.change", "fields"),
    Route("DELETE", f"{_QUEUE}/scheduled/{{message_id}}", "scheduled.cancel"),
    Route("POST", _CLAIMS, "claim.make", "fields"),
    Route("GET", _CLAIMS, "claim.list"),
    Route("GET", f"{_CLAIMS}/{{consumer}}", "claim.list"),
    Route("POST", f"{_CLAIMS}/{{consumer}}/acknowledge", "claim.acknowledge", "fields"),
    Route("POST", f"{_CLAIMS}/{{consumer}}/heartbeat", "claim.heartbeat", "fields"),
    Route("POST", f"{_CLAIMS}/{{consumer}}/release", "claim.release", "fields"),
    Route("POST", "/v1/staged/{job}/{batch}/commit", "staged.commit", "fields"),
    Route("DELETE", "/v1/staged/{job}/{batch}", "staged.discard"),
    Route("GET", "/v1/policies", "policy.list"),
    Route("PUT", "/v1/policies/{policy}", "policy.set", "fields"),
    Route("DELETE", "/v1/policies/{policy}", "policy.delete"),
    Route("GET", "/v1/exchanges", "exchange.list"),
    Route("PUT", _EXCHANGE, "exchange.declare", "fields"),
    Route("DELETE", _EXCHANGE, "exchange.delete"),
    Route("GET", f"{_EXCHANGE}/bindings", "exchange.bindings"),
    Route("POST", f"{_EXCHANGE}/bindings", "exchange.bind", "fields"),
    Route("DELETE", f"{_EXCHANGE}/bindings", "exchange.unbind"),
    Route("POST", f"{_EXCHANGE}/messages", "exchange.publish", "fields", 201),
    Route("POST", f"{_EXCHANGE}/route", "exchange.route", "fields"),
    Route("GET", f"{_EXCHANGE}/route", "exchange.route"),
    Route("GET", "/v1/bindings", "exchange.bindings"),
)


def match(route: Route, raw_path: bytes) -> dict[str, str] | None:
    """What a path says, if it is this route's."""
    return _match(route.parts, [_text(part) for part in raw_path.removeprefix(b"/v1/").split(b"/")])


def find(method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
    """The route for a path, and what the path says; raises what is wrong with it."""
    # Taken apart before it is decoded: a slash that is written as %2F belongs to a name.
    parts = [_text(part) for part in raw_path.removeprefix(b"/v1/").split(b"/")]
    others: set[str] = set()
    for route in ROUTES:
        fields = _match(route.parts, parts)
        if fields is None:
            continue
        if route.method == method or (route.method == "GET" and method == "HEAD"):
            return route, fields
        others.add(route.method)
    if others:
        raise MethodNotAllowed(method, others)
    raise PathNotFound(f"There is nothing at {'/v1/' + '/'.join(parts)!r:.200}; see /openapi.json.")


def _text(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{part.decode('latin-1')!r:.100} in the path is not UTF-8, percent-encoded.") from None


def _match(template: tuple[str, ...], parts: list[str]) -> dict[str, str] | None:
    if len(template) != len(parts):
        return None
    fields: dict[str, str] = {}
    for expected, part in zip(template, parts, strict=True):
        if expected.startswith("{"):
            fields[expected[1:-1]] = part
        elif expected != part:
            return None
    return fields
