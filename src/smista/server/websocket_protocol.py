"""uvicorn's WebSocket protocol, with the limits that it lacks.

- The place among the open connections that it took over from HTTP is held until the socket is gone.
- A reader that takes nothing is cut off: uvicorn would wait for ever, also when closing, because a close waits until
  all is written. Pongs, which are written whether or not they are read, are bounded.
- A handshake that websockets cannot read is answered, in our shape; uvicorn would leave the connection hanging.
- What is wrong with a frame is told in a close frame that arrives.
- Frames are not compressed, and not logged either: at level debug websockets would log what is in them.

It writes on the gathering transport that HTTP hands over, so that many sends make one system call.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Response
from websockets.server import ServerProtocol
from websockets.typing import StatusLike

from smista.protocols.http.access import SECURITY_HEADERS
from smista.server.connections import LINGER_S, LOOK_AGAIN_S, Connections, Output, end_writing
from smista.server.gathering import GatheringTransport
from smista.server.intake import Intake
from smista.server.refusals import NO_HANDSHAKE, Refusal

FRAGMENTS_MAX = 10_000
"""Empty fragments count nothing against the size of a message, and each takes memory."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    shared: ClassVar[Connections]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        settings = self.shared.settings
        self.conn.parser.close()
        self.conn = Handshake(max_size=settings.websocket_frame_bytes_max, logger=logging.getLogger("uvicorn.error"))
        self.conn.debug = False
        self.ping_interval = self.ping_timeout = settings.websocket_ping_s or None
        self.look_at = 0.0
        self.output: Output
        self.is_ending = False
        self._fragments_bytes = self._queued_bytes = self._kept_bytes = 0
        """Of the message that is not whole, apart from the frame that is not; of those that the application has not
        taken yet; and what counts of all."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(self.transport, GatheringTransport)
        self.output = Output(self.transport, self.shared.settings)
        self._intake = Intake(self.shared.turns, self.transport, self._take)
        self.look_at = self.loop.time() + LOOK_AGAIN_S
        self.shared.join(self, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.leave(self)
        self._intake.close()
        super().connection_lost(exc)
        self._keep(0)
        # It and its protocol hold each other: without the garbage collector they would stay for ever.
        self.conn.parser.close()

    def data_received(self, data: bytes) -> None:
        if not self.is_ending:
            self._intake.take(data)

    def _take(self, data: bytes) -> None:
        if self.is_ending:
            self._intake.drop()
            return
        super().data_received(data)
        self._count()
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.shared.refused(NO_HANDSHAKE, self.client)
            self.transport.write(NO_HANDSHAKE.wire(self.default_headers))
            self._end()

    def _count(self) -> None:
        """What has come in and the application has not taken takes memory."""
        self._keep(len(self.conn.reader.buffer) + self._fragments_bytes + self._queued_bytes)

    def _keep(self, count: int) -> None:
        self.shared.kept_bytes += count - self._kept_bytes
        self._kept_bytes = count

    async def receive(self) -> Any:
        message = await super().receive()
        if self._queued_bytes and self.queue.empty():
            self._queued_bytes = 0
            if self._kept_bytes:
                self._count()
        return message

    def look(self, now: float) -> None:
        if not self.writable.is_set():
            if self.output.is_stalled(now):
                self.transport.abort()
            self.look_at = self.output.look_at
        elif self.is_ending:
            self.transport.abort()
        elif self.transport.is_closing():
            self.is_ending = True
            self.look_at = now + LINGER_S
        else:
            self.look_at = now + LOOK_AGAIN_S

    def pause_writing(self) -> None:
        super().pause_writing()
        self.output.watch(self.loop.time())
        self.look_at = min(self.look_at, self.output.look_at)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.look_at = self.loop.time() + (LINGER_S if self.is_ending else LOOK_AGAIN_S)

    def shutdown(self) -> None:
        self.output.hurry(self.loop.time())
        if not self.writable.is_set():
            self.look_at = min(self.look_at, self.output.look_at)
        super().shutdown()

    def cut_off(self) -> None:
        """The server waits no longer."""
        self.transport.abort()

    def handle_ping(self) -> None:
        # One chunk holds many pings; after an abort there is nobody to answer the rest to.
        if not self.transport.is_closing():
            super().handle_ping()
            if self.output.is_over:
                self.transport.abort()

    def handle_cont(self, event: Frame) -> None:
        if self.is_ending:
            return
        if len(self.frames) >= FRAGMENTS_MAX:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {FRAGMENTS_MAX} fragments")
            self.handle_parser_exception()
            return
        self._fragments_bytes += len(event.data)
        super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        self._fragments_bytes = len(event.data)
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._fragments_bytes = len(event.data)
        super().handle_bytes(event)

    def send_receive_event_to_app(self) -> None:
        if not self.close_sent:
            self._queued_bytes += self._fragments_bytes
        self._fragments_bytes = 0
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.fail(CloseCode.INVALID_DATA, "text that is not UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.http.response.start":
            # uvicorn gives them only to a WebSocket that was accepted.
            message["headers"] = [*self.default_headers, *message["headers"]]
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            # Refused, and answered: uvicorn would take it for an application that forgot to.
            self.handshake_complete = True

    def handle_parser_exception(self) -> None:
        assert self.conn.close_sent is not None
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self._end()

    def keepalive_timeout(self) -> None:
        if self.read_paused:
            # Its pong may have come: it is the application that does not let us read it.
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()

    def _end(self) -> None:
        """Close, and throw away what still comes."""
        self.is_ending = True
        self.look_at = self.loop.time() + LINGER_S
        # Without this timer uvicorn closes the connection whole as soon as the application returns.
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        end_writing(self.transport)


class Handshake(ServerProtocol):
    """The protocol of websockets, which refuses in our shape."""

    def reject(self, status: StatusLike, text: str) -> Response:
        code = "internal_error" if status == HTTPStatus.INTERNAL_SERVER_ERROR else NO_HANDSHAKE.code
        refusal = Refusal(HTTPStatus(status), code, text.strip() or "The WebSocket was refused.")
        response = super().reject(status, refusal.body.decode())
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        response.headers.update((name.decode(), value.decode()) for name, value in SECURITY_HEADERS)
        return response
