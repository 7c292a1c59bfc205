"""`PUT /v1/staged/{job}/{batch}/{partition}/{attempt}`: a stream of Arrow, kept until its batch is committed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from smista.errors import MethodNotAllowed, RequestTooLarge
from smista.protocols.http import rest, routes
from smista.protocols.http.routes import Route
from smista.protocols.web.asgi import Disconnected, Receive, Scope, check_length, header, held_by, kind_of, unsupported
from smista.service import arrow
from smista.service.commands.staged import StageName, StageNumber
from smista.service.session import Session
from smista.service.staging.files import Stage

STAGE_PATH = "/v1/staged/{job}/{batch}/{partition}/{attempt}"


class StageRows(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Stage rows, as a stream of Arrow, to be published when their batch is committed."""

    job: StageName
    batch: StageName
    partition: StageNumber
    attempt: StageNumber


class Staged(msgspec.Struct):
    rows: int
    bytes: int
    """Of the bodies."""


def asks_to_stage(scope: Scope) -> Stage | None:
    """Under which name the request stages something, if it does."""
    path_fields = routes.match(Route("PUT", STAGE_PATH, ""), scope.get("raw_path") or scope["path"].encode())
    if path_fields is None:
        return None
    if scope["method"] != "PUT":
        raise MethodNotAllowed(scope["method"], ["PUT"])
    named = rest.named(StageRows, path_fields, scope)
    return Stage(named.job, named.batch, named.partition, named.attempt)


async def put(session: Session, name: Stage, scope: Scope, receive: Receive, bytes_max: int) -> Staged:
    content_type = header(scope, b"content-type")
    if content_type is None or kind_of(content_type) not in (arrow.CONTENT_TYPE, b"application/octet-stream"):
        raise unsupported(content_type, arrow.CONTENT_TYPE.decode())
    _check(scope, bytes_max)
    load = await session.stage(name, _chunks(receive, bytes_max), bytes_max, held_by(scope))
    return Staged(load.rows, load.body_bytes)


def _check(scope: Scope, bytes_max: int) -> None:
    try:
        check_length(scope, bytes_max)
    except RequestTooLarge:
        raise _too_large(bytes_max) from None


async def _chunks(receive: Receive, bytes_max: int) -> AsyncIterator[bytes]:
    size, has_more = 0, True
    while has_more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Disconnected
        body: bytes = event.get("body", b"")
        has_more = event.get("more_body", False)
        size += len(body)
        if size > bytes_max:
            raise _too_large(bytes_max)
        if body:
            yield body


def _too_large(bytes_max: int) -> RequestTooLarge:
    return RequestTooLarge(f"The stream is over {bytes_max} bytes; stage it in parts, or raise staged_bytes_max.")
