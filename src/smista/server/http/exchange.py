"""A request and its answer, as the application sees them: ASGI's scope, receive and send."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from smista.server.http import refusals
from smista.server.http.context import Event, Scope
from smista.server.http.requests import Request
from smista.server.http.responses import ResponseWriter

if TYPE_CHECKING:
    from smista.server.http.connection import HttpConnection

AHEAD_BYTES = 64 * 1024
"""More of a body than this is not read before the application asks for it."""
PIECE_BYTES = 64
"""What a piece of a body takes beside its bytes."""

logger = logging.getLogger("smista.server")


class Exchange:
    __slots__ = (
        "_body",
        "_body_bytes",
        "_connection",
        "_has_news",
        "_head",
        "_is_whole",
        "_news",
        "is_disconnected",
        "response",
        "scope",
        "task",
        "waits_for_continue",
    )

    def __init__(self, connection: HttpConnection, request: Request) -> None:
        self._connection = connection
        self.scope: Scope = {
            "type": "http",
            "http_version": request.version,
            "scheme": connection.scheme,
            "client": connection.client,
            "method": request.method,
            "path": request.path,
            "raw_path": request.raw_path,
            "query_string": request.query,
            "headers": request.headers,
        }
        self.response = ResponseWriter(request.method, request.version, keep_alive=request.keep_alive)
        self.task: asyncio.Task[None]
        self.waits_for_continue = request.expects_continue
        """Whether the client sends the body only after 100 Continue."""
        self.is_disconnected = False
        """Whether there is nobody any more, as far as the application knows."""
        self._body: list[bytes] = []
        """What has come and the application has not taken."""
        self._body_bytes = 0
        self._is_whole = False
        self._has_news = False
        """Whether something has come since the application asked last, if only the end."""
        self._news: asyncio.Future[None] | None = None
        self._head = b""
        """Of the answer: it is written together with the first piece of the body."""

    def start(self) -> None:
        context = self._connection.context
        context.works.add(self)
        self.task = self._connection.loop.create_task(self._run())

    async def _run(self) -> None:
        context = self._connection.context
        try:
            await context.application(self.scope, self.receive, self.send)
            self._end_unanswered()
        except Exception as error:
            context.faults.note(error, "a request failed")
            self._fail()
        finally:
            context.works.discard(self)

    def _end_unanswered(self) -> None:
        if not self.is_disconnected and not self.response.is_complete:
            logger.error("a request was not answered")
            self._fail()

    def _fail(self) -> None:
        if self.is_disconnected or self.response.is_complete:
            return
        connection = self._connection
        self.disconnect()
        if self._head or not self.response.is_started:
            connection.answer(refusals.FAULT)
        elif self.response.shows_its_end:
            connection.transport.close()
        else:
            connection.transport.reset()

    @property
    def waits_for_news(self) -> bool:
        return self._news is not None

    # -- what the connection does -------------------------------------------------------------------------------------

    def add(self, body: bytes) -> bool:
        """A piece of the body has come; whether that is enough until the application asks."""
        if self.response.is_complete or self.is_disconnected:
            return False
        self._body.append(body)
        self._body_bytes += len(body) + PIECE_BYTES
        self._notify()
        return self._body_bytes > AHEAD_BYTES

    def end(self) -> None:
        """The body is whole."""
        if not self.response.is_complete:
            self._is_whole = True
            self._notify()

    def disconnect(self) -> None:
        """For the application it is as if the client had gone."""
        self.is_disconnected = True
        self.waits_for_continue = False
        self._body.clear()
        self._notify()

    def _notify(self) -> None:
        self._has_news = True
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # -- what the application does ------------------------------------------------------------------------------------

    async def receive(self) -> Event:
        """One at a time may ask."""
        connection = self._connection
        if self.waits_for_continue and not connection.transport.is_closing():
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waits_for_continue = False
        if not self._is_over:
            connection.flow.resume_reading()
            if not self._has_news:
                self._news = connection.loop.create_future()
                connection.listen()
                try:
                    await self._news
                finally:
                    self._news = None
        self._has_news = False
        if self._is_over:
            return {"type": "http.disconnect"}
        pieces = self._body
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._body = []
        self._body_bytes = 0
        return {"type": "http.request", "body": body, "more_body": not self._is_whole}

    @property
    def _is_over(self) -> bool:
        return self.is_disconnected or self.response.is_complete

    async def send(self, event: Event) -> None:
        connection = self._connection
        is_body = event["type"] == "http.response.body"
        # The head is held back anyway, and says how much there is that waits.
        if is_body and connection.flow.is_write_paused and not self.is_disconnected:
            await connection.flow.writable()
        if self.is_disconnected:
            return
        response = self.response
        if is_body:
            is_last = not event.get("more_body", False)
            data = self._head + response.data(event["body"], is_last=is_last)
            self._head = b""
            if is_last:
                connection.transport.send(data)
                self._notify()
                connection.answered(self)
            elif data:
                connection.transport.write(data)
        else:
            self._head = response.start(event["status"], event["headers"], connection.context.standard.lines())
            self.waits_for_continue = False
