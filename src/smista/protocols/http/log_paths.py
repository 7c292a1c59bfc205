"""`/v1/log`, `/v1/log/range` and `/v1/log/plan`: the log for those who read it in bulk.

They are no commands, because rows do not go through the broker: the connection on which they were asked for is handed
over to the process that writes them, see `smista.bulk`.

Each shard has a log of its own, and a position is one of a shard. So what is asked and what is answered name the shard;
while there is only one, a request may leave it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Annotated, Any

import msgspec

from smista.bulk.columns import COLUMNS, KINDS
from smista.bulk.errors import dropped
from smista.errors import BrokerError, InvalidArgument, InvalidRequest, LogPositionDropped, MethodNotAllowed
from smista.protocols.http import access, rest
from smista.protocols.http.errors import STATUS, ErrorAnswer, error_body
from smista.protocols.http.formats import JSON, Format
from smista.protocols.web.asgi import Disconnected, Receive, Scope, Send, read_body, respond
from smista.service.arrow import CONTENT_TYPE
from smista.service.log_reading import MakePlan, Part, Read
from smista.service.session import Session
from smista.service.values import DEFAULT_NAMESPACE, SHARDS_MAX, LogRange

HAND_OVER = "smista.hand_over"
"""The server's own extension of ASGI: gives the connection away."""
DURABLE_S = 1.0
"""How long to wait for what is being written; a full disk may never take it."""
NO_LIMIT = 1 << 62
PARTITIONS_MAX = 10_000

Shard = Annotated[int, msgspec.Meta(ge=0, lt=SHARDS_MAX)]
Position = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=NO_LIMIT)]


class ReadLog(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"start": "from", "end": "to"}):
    """The rows of the blocks from `from` up to, and without, `to`, as an Arrow IPC stream."""

    shard: Shard | None = None
    """Whose log; may be left out while there is only one."""
    start: Position | None = None
    """The first that is kept, where none is given."""
    end: Position | None = None
    """The end of the log as it is now, where none is given or it lies beyond."""
    namespace: str = DEFAULT_NAMESPACE
    """A name or a pattern such as `*`."""
    queue: list[str] = []
    """Names or patterns such as `orders-*`; all queues without."""
    kind: list[str] = []
    """All kinds without."""
    bodies: bool = False
    """Whether the column `body` is filled."""
    columns: str | None = None
    """Names with commas between them; all without."""


class ShowRange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which shards there are, and which blocks of their logs can be read."""

    at_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 52)] | None = None
    """Asks for the positions of the first blocks written at or after this time."""


class PlanRead(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename={"start": "from", "end": "to"}):
    """How far to read a shard's log within limits, and in which parts."""

    shard: Shard | None = None
    start: Position | None = None
    end: Position | None = None
    max_rows: AtLeastOne = NO_LIMIT
    max_bytes: AtLeastOne = NO_LIMIT
    min_partitions: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)] = 1


class ShardRange(msgspec.Struct, omit_defaults=True):
    shard: int
    log_id: str
    """Identifies the log: a position means nothing in another one."""
    first: int
    next: int
    first_at_ms: int | None
    next_at_ms: int | None
    position: int | None = None
    """The answer to `at_ms`."""


class Ranges(msgspec.Struct):
    shards: list[ShardRange]


class Plan(msgspec.Struct, rename={"start": "from", "end": "to"}):
    shard: int
    start: int
    end: int
    rows: int = 0
    bytes: int = 0
    partitions: list[Part] = []


PATHS: dict[str, tuple[type[msgspec.Struct], Any]] = {
    "/v1/log": (ReadLog, None),
    "/v1/log/range": (ShowRange, Ranges),
    "/v1/log/plan": (PlanRead, Plan),
}
"""By path what the query is and what the answer is, if it is one of ours."""


async def answer(scope: Scope, written_in: Format, receive: Receive, send: Send, session: Session) -> None:
    """Answer a request to one of the paths; raises why it is refused."""
    if scope["method"] not in ("GET", "HEAD"):
        raise MethodNotAllowed(scope["method"], ["GET", "HEAD"])
    if await read_body(scope, receive, 0):
        raise InvalidRequest("A GET takes no body; use the query.")
    match scope["path"]:
        case "/v1/log":
            await _read(rest.named(ReadLog, {}, scope), scope, send, session)
            return
        case "/v1/log/range":
            found: object = await _ranges(rest.named(ShowRange, {}, scope), session)
        case _:
            found = await _plan(rest.named(PlanRead, {}, scope), session)
    await respond(send, 200, written_in.content_type, written_in.encode(found))


async def _ranges(query: ShowRange, session: Session) -> Ranges:
    kept = await _kept(session)
    position = None if query.at_ms is None else max(kept.first, session.log_position_at(query.at_ms))
    ids = session.service.ids
    found = ShardRange(ids.shard, ids.log_id, kept.first, kept.next, kept.first_at_ms, kept.next_at_ms, position)
    return Ranges([found])


async def _plan(query: PlanRead, session: Session) -> Plan:
    log_reader = session.log_reader()
    shard = _shard(query.shard, session)
    start, end = await _bounds(query.start, query.end, session)
    if start == end:
        return Plan(shard, start, end)
    request = MakePlan(0, start, end, query.max_rows, query.max_bytes, query.min_partitions)
    made = await log_reader.plan(request)
    return Plan(shard, made.start, made.end, made.rows, made.bytes, made.partitions)


def _shard(wanted: int | None, session: Session) -> int:
    there = session.service.ids.shard
    if wanted not in (None, there):
        raise InvalidArgument(f"There is no shard {wanted}; /v1/log/range lists those there are, which is {there}.")
    return there


async def _kept(session: Session) -> LogRange:
    """What can be read. Everything that was done before the request is in it, unless the disk takes too long."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(session.service.durable(), DURABLE_S)
    return session.log_range()


async def _bounds(start: int | None, end: int | None, session: Session) -> tuple[int, int]:
    """The range within what is kept and durable."""
    kept = await _kept(session)
    start = kept.first if start is None else start
    if start < kept.first:
        raise LogPositionDropped(dropped(start, kept.first))
    if start > kept.next:
        raise InvalidArgument(
            f"Block {start} is not written yet, the next is {kept.next}; was the position given by another broker? "
            "/v1/log/range tells which log this is."
        )
    end = kept.next if end is None else min(end, kept.next)
    if end < start:
        raise InvalidArgument(f"`to` is {end} and lies before `from`, which is {start}.")
    return start, end


# -- rows -------------------------------------------------------------------------------------------------------------


async def _read(query: ReadLog, scope: Scope, send: Send, session: Session) -> None:
    log_reader = session.log_reader()
    columns = [name.strip() for name in query.columns.split(",")] if query.columns is not None else list(COLUMNS)
    columns, kinds = _known("columns", columns, COLUMNS), _known("kind", query.kind or list(KINDS), KINDS)
    shard = _shard(query.shard, session)
    start, end = await _bounds(query.start, query.end, session)
    if scope["method"] == "HEAD":
        await respond(send, 200, CONTENT_TYPE, b"")
        return
    is_chunked = scope["http_version"] != "1.0"
    head_lines = access.head_lines(scope)
    of_whom = (query.namespace, query.queue)
    request = Read(0, shard, start, end, columns, kinds, *of_whom, query.bodies, is_chunked, head_lines)
    with log_reader.place() as place, await _connection(scope) as connection:
        try:
            await log_reader.read(request, connection, place)
        except BrokerError as error:
            # The server has given the connection away, so that it falls to us to answer.
            _answer_on(connection, error, head_lines)


def _known(field: str, names: list[str], known: Iterable[str]) -> list[str]:
    for name in names:
        if name not in known:
            raise InvalidArgument(f"`{field}` has {name!r:.100}, which is none; there are {', '.join(known)}.")
    return names


async def _connection(scope: Scope) -> socket.socket:
    hand_over: Callable[[], Awaitable[socket.socket]] = scope["extensions"].pop(HAND_OVER)["call"]
    try:
        return await hand_over()
    except ConnectionResetError:
        raise Disconnected from None


def _answer_on(connection: socket.socket, error: BrokerError, head_lines: str) -> None:
    """Answer on a connection that the server has given away. So few bytes fit what the kernel keeps for it."""
    status = HTTPStatus(STATUS[error.code])
    body = JSON.encode(ErrorAnswer(error_body(error)))
    head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    with contextlib.suppress(OSError):
        connection.send(f"{head}{head_lines}connection: close\r\n\r\n".encode("latin-1") + body)
