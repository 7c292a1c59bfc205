"""Requests for commands: `POST /v1/command` and REST, from the body to the answer.

body ─▶ decoded to a command ─▶ carried out in a session ─▶ encoded ─▶ response
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from smista.errors import InvalidRequest, UnknownCommand
from smista.protocols.http import claim_rows, octets, rest, routes, staged_put
from smista.protocols.http.answering import encoded
from smista.protocols.http.bounded import byte_count, check_values, in_steps
from smista.protocols.http.commands import DECODERS, Call, HttpCommand
from smista.protocols.http.commands.batches import PublishBatch
from smista.protocols.http.commands.publishing import Publish, PublishToExchange
from smista.protocols.http.commands.receiving import Receive as ReceiveCommand
from smista.protocols.http.commands.receiving import give_back
from smista.protocols.http.formats import JSON, MESSAGE_PACK, Decoder, Format
from smista.protocols.http.negotiation import format_of, wants_octets
from smista.protocols.web.asgi import (
    Receive,
    Scope,
    Send,
    check_length,
    client_of,
    header,
    read_body,
    respond,
    text_of,
    while_connected,
)
from smista.protocols.web.sessions import Sessions
from smista.service.commands.queues import Created
from smista.service.service import Service
from smista.service.session import Session
from smista.service.values import BATCH_ID_LENGTH_MAX, DEFAULT_NAMESPACE, ID_LENGTH_MAX, FairTurns


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """What `POST /v1/command` takes."""

    command: str
    payload: msgspec.Raw = msgspec.Raw()


_REQUEST_DECODERS: dict[Format, Decoder[Request]] = {each: each.decoder(Request) for each in (JSON, MESSAGE_PACK)}
NO_PAYLOAD: dict[Format, msgspec.Raw] = {JSON: msgspec.Raw(b"{}"), MESSAGE_PACK: msgspec.Raw(b"\x80")}


class Requests:
    """Carries them out for one application."""

    def __init__(
        self, ready: Callable[[], Service], draining: asyncio.Event, *, bytes_max: int, staged_bytes_max: int
    ) -> None:
        """`ready` gives the service, or raises why there is none yet. A request is read before that, so that what is
        wrong with it is answered all the same."""
        self._draining = draining
        self._sessions = Sessions(ready, "http")
        self._bytes_max = bytes_max
        self._staged_bytes_max = staged_bytes_max

    async def command(
        self, scope: Scope, came_in: Format, written_in: Format, fair_turns: FairTurns, receive: Receive
    ) -> object:
        """What to answer to `POST /v1/command`."""
        check_length(scope, self._bytes_max)
        body = await read_body(scope, receive, self._bytes_max)
        await check_values(body, came_in, fair_turns)
        request = _REQUEST_DECODERS[came_in](body)
        decode = DECODERS[came_in].get(request.command)
        if decode is None:
            raise unknown_command(request.command)
        payload = request.payload if byte_count(request.payload) else NO_PAYLOAD[came_in]
        command = await in_steps(decode, payload, fair_turns)
        return await self._carry_out(command, scope, came_in, written_in, receive)

    async def rest(self, scope: Scope, written_in: Format, fair_turns: FairTurns, receive: Receive, send: Send) -> None:
        """Answer a request for a resource."""
        rows = claim_rows.asks_for_rows(scope)
        if rows is not None:
            await claim_rows.respond_rows(self._session(scope, rows.namespace), rows, scope, receive, send)
            return
        name = staged_put.asks_to_stage(scope)
        if name is not None:
            session = self._session(scope, DEFAULT_NAMESPACE)
            staged = await staged_put.put(session, name, scope, receive, self._staged_bytes_max)
            await respond(send, 200, written_in.content_type, written_in.encode(staged))
            return
        route, path_fields = routes.find(scope["method"], scope.get("raw_path") or scope["path"].encode())
        check_length(scope, self._bytes_max)
        body = await read_body(scope, receive, self._bytes_max)
        written = format_of(header(scope, b"content-type") or b"")
        if written is not None:
            await check_values(body, written, fair_turns)
        command, came_in = await rest.read(route, path_fields, scope, body, fair_turns)
        is_octets = isinstance(command, ReceiveCommand) and wants_octets(scope)
        if isinstance(command, ReceiveCommand) and is_octets:
            if command.limit != 1:
                raise InvalidRequest("`limit` is 1 where a message is asked for as octets; leave it out.")
            command.raw = True
        answer = await self._carry_out(command, scope, came_in, written_in, receive)
        if is_octets:
            await octets.respond_message(send, answer)
            return
        status = 201 if isinstance(answer, Created) and answer.created else route.status
        text = await encoded(answer, written_in, fair_turns)
        await respond(send, status, written_in.content_type, text)

    async def _carry_out(
        self, command: HttpCommand, scope: Scope, came_in: Format, written_in: Format, receive: Receive
    ) -> object:
        if isinstance(command, (Publish, PublishToExchange, PublishBatch)):
            _take_idempotency_key(command, scope)
        call = Call(self._session(scope, command.namespace), came_in, written_in)
        if command.is_waiting:
            return await while_connected(
                command.carry_out(call), receive, self._draining, lambda answer: give_back(answer, call)
            )
        return await command.carry_out(call)

    def _session(self, scope: Scope, namespace: str) -> Session:
        return self._sessions.get(namespace, client_of(scope))


def unknown_command(name: str) -> UnknownCommand:
    return UnknownCommand(f"There is no command {name[:100]!r}; docs/commands.md and /openapi.json list them.")


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
