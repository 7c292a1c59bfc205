"""One WebSocket on its connection, from the handshake on, and the application that talks on it.

    handshake ──accept──▶ open ──close, by either side or for a fault──▶ closing ──▶ gone
        └── a response of HTTP ──────────────────────────────────────────────┘

- Nothing is read before the handshake is answered, nor while the application has messages that it has not taken.
- The place among the open connections that it took over from HTTP is held until the socket is gone.
- A reader that takes nothing is cut off. Pongs, which are written whether or not they are read, are bounded.
- What is wrong with a frame stands in a close frame, and that arrives.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque

from websockets.frames import CloseCode

from smista.protocols.stalled import Unseen
from smista.protocols.web.asgi import UNSEEN
from smista.server.http import refusals
from smista.server.http.connections import CHECK_AGAIN_S
from smista.server.http.context import Context, Event, Scope
from smista.server.http.gathering import GatheringTransport
from smista.server.http.open_connection import OpenConnection
from smista.server.http.requests import Handshake
from smista.server.http.responses import Headers, ResponseWriter
from smista.server.http.websocket import Closed, Pong, WebSocket

CLOSE_S = 10.0
"""How long the peer may take to answer our close frame."""

logger = logging.getLogger("smista.server")


class PeerGone(ConnectionAbortedError):
    """There is nobody to send to any more."""


class WebSocketConnection(OpenConnection):
    def __init__(
        self, context: Context, transport: GatheringTransport, client: tuple[str, int] | None, *, is_secure: bool
    ) -> None:
        super().__init__(context)
        self.attach(transport)
        self.client = client
        self._scheme = "wss" if is_secure else "ws"
        self._websocket = WebSocket(context.settings.websocket_frame_bytes_max)
        self.task: asyncio.Task[None]
        self.check_at = self.loop.time() + CHECK_AGAIN_S
        self._scope: Scope
        self._early = b""
        """What came behind the handshake."""
        self._inbox: deque[Event] = deque()
        """What has come and the application has not taken."""
        self._inbox_bytes = 0
        self._kept_bytes = 0
        """What counts of all that has come and the application has not taken."""
        self._coming_step: int | None = None
        """Of the WebSocket when what comes began, which is not whole; None while there is nothing."""
        self._unseen = Unseen()
        self._news: asyncio.Future[None] | None = None
        self._response: ResponseWriter | None = None
        """To a handshake that is not accepted."""
        self._is_open = False
        self._is_closing = False
        """Whether no more messages go either way."""
        self._is_lost = False
        self._ping_timer: asyncio.TimerHandle | None = None
        self._awaited_pong: bytes | None = None

    # -- the connection -----------------------------------------------------------------------------------------------

    def open(self, handshake: Handshake) -> None:
        """Take over the connection on which a handshake came."""
        self.transport.set_protocol(self)
        self.context.connections.join(self, self.loop)
        refusal = self._websocket.handshake(handshake.head)
        if refusal is not None:
            self.answer(refusal)
            return
        self.flow.pause_reading()
        self._early = handshake.early
        request = handshake.request
        offers = [value.decode("latin-1") for name, value in request.headers if name == b"sec-websocket-protocol"]
        self._scope = {
            "type": "websocket",
            "http_version": request.version,
            "scheme": self._scheme,
            "client": self.client,
            "path": request.path,
            "raw_path": request.raw_path,
            "query_string": request.query,
            "headers": request.headers,
            "subprotocols": [offer.strip() for line in offers for offer in line.split(",")],
            UNSEEN: self._unseen,
        }
        self._put({"type": "websocket.connect"})
        self.context.works.add(self)
        self.task = self.loop.create_task(self._run())

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._is_closing = True
        self.context.connections.leave(self)
        self._stop_pinging()
        self.intake.close()
        self._websocket.forget()
        self._put_closed(CloseCode.NO_STATUS_RCVD if self._is_open else CloseCode.ABNORMAL_CLOSURE)
        self.flow.resume_writing()
        self._keep(0)

    def take(self, data: bytes) -> None:
        if self.is_ending:
            self.intake.drop()
            return
        for event in self._websocket.receive(data):
            if isinstance(event, Closed):
                self._closed(event)
            elif isinstance(event, Pong):
                self._pong(event.payload)
            elif not self._is_closing:
                self._deliver(event)
        if self._is_gone():
            return
        if self._write_output() and self.output.is_over:
            # It pings and does not read.
            self.transport.abort()
        self._count()

    def _is_gone(self) -> bool:
        """Whether there is nobody to talk to any more."""
        return self._is_lost or self.is_ending or self.transport.is_closing()

    def plain_bytes(self) -> int:
        return self._websocket.plain_bytes

    def _write_output(self) -> bool:
        """Write what the protocol has to send; whether it has anything."""
        output = self._websocket.output()
        if output:
            self.transport.write(output)
        return bool(output)

    def _deliver(self, message: str | bytes) -> None:
        self._inbox_bytes += len(message)
        kind = "text" if type(message) is str else "bytes"
        self._put({"type": "websocket.receive", kind: message})
        self.flow.pause_reading()

    def _closed(self, event: Closed) -> None:
        """By the peer, or for a fault of the peer's."""
        self._put_closed(event.code, event.reason)
        self._is_closing = True
        self._stop_pinging()
        self._write_output()
        if event.is_failure:
            self.end()
        else:
            self.transport.close()

    def _count(self) -> None:
        """What has come in and the application has not taken takes memory, and may not be left unfinished for ever."""
        websocket = self._websocket
        kept_bytes = websocket.kept_bytes
        self._keep(kept_bytes + self._inbox_bytes)
        if not kept_bytes:
            self._coming_step = None
        elif self._coming_step != websocket.step:
            self._coming_step = websocket.step
            self._begin_stretch(0)

    def _keep(self, count: int) -> None:
        self.context.connections.kept_bytes += count - self._kept_bytes
        self._kept_bytes = count

    # -- the application ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self.context.application(self._scope, self.receive, self.send)
            if not self._is_open and self._response is None and not self._is_lost:
                logger.error("a WebSocket's handshake was not answered")
                self.answer(refusals.FAULT)
        except PeerGone:
            pass
        except Exception as error:
            self.context.faults.note(error, "a WebSocket failed")
            self.fail()
        finally:
            self.context.works.discard(self)
        if not self._is_closing and not self.is_ending:
            self.transport.close()

    def fail(self) -> None:
        if self._is_closing or self.is_ending:
            return
        if self._is_open:
            self._closed(self._websocket.fail(CloseCode.INTERNAL_ERROR, "the broker is at fault; its log says more"))
        elif self._response is None:
            self.answer(refusals.FAULT)

    def _put(self, event: Event) -> None:
        self._inbox.append(event)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _put_closed(self, code: int, reason: str = "") -> None:
        self._put({"type": "websocket.disconnect", "code": code, "reason": reason})

    async def receive(self) -> Event:
        """One at a time may ask."""
        if not self._inbox:
            self._news = self.loop.create_future()
            try:
                await self._news
            finally:
                self._news = None
        event = self._inbox.popleft()
        if not self._inbox and not self._is_lost:
            if self._is_open:
                self.flow.resume_reading()
            if self._inbox_bytes:
                self._inbox_bytes = 0
                self._count()
        return event

    async def send(self, event: Event) -> None:
        """Raises `PeerGone`."""
        if self.flow.is_write_paused:
            await self.flow.writable()
        kind = event["type"]
        if kind == "websocket.send":
            if self._is_closing:
                raise PeerGone("the WebSocket is closed")
            message = event.get("bytes")
            self._websocket.send(event["text"] if message is None else message)
            self._write_output()
        elif self._is_lost:
            raise PeerGone("the client has gone")
        elif kind == "websocket.accept":
            self._accept(event.get("subprotocol"), event.get("headers", ()))
        elif kind == "websocket.close":
            if not self._is_closing:
                self._close(event["code"], event["reason"])
        elif kind == "websocket.http.response.start":
            self._response = ResponseWriter("GET", "1.1", keep_alive=False)
            lines = self.context.standard.lines()
            self.transport.write(self._response.start(event["status"], event["headers"], lines))
        else:
            assert self._response is not None
            is_last = not event.get("more_body", False)
            self.transport.write(self._response.data(event["body"], is_last=is_last))
            if is_last:
                self.end()

    def _accept(self, subprotocol: str | None, headers: Headers) -> None:
        self._websocket.accept(subprotocol, [*self.context.standard.headers(), *headers])
        self._write_output()
        self._is_open = True
        self._plan_ping()
        if not self._inbox:
            self.flow.resume_reading()
        if self._early:
            self.intake.take(self._early)
            self._early = b""

    def _close(self, code: int, reason: str) -> None:
        self._put_closed(code, reason)
        self._is_closing = True
        self._stop_pinging()
        self._websocket.close(code, reason)
        self._write_output()
        if self.is_hurried:
            self.end()
        else:
            self.flow.resume_reading()  # for the peer's close frame
            self.check_at = self.loop.time() + CLOSE_S

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        self._is_closing = True
        super().end()
        # What has come is of no use to anybody, and the peer may take its time to be gone.
        self._websocket.forget()
        self._count()

    def shut_down(self) -> None:
        """The application has its own way to hear of it, and closes when it has finished what is under way."""
        self.is_hurried = True
        self._stop_pinging()
        self.output.hurry(self.loop.time())
        if self._is_closing:
            self.end()
        if self.flow.is_write_paused:
            self.check_at = min(self.check_at, self.output.check_at)

    def cut_off(self) -> None:
        self.transport.abort()

    def check_progress(self, now: float) -> None:
        if self.is_ending:
            self.transport.abort()
        elif self._is_closing or self.transport.is_closing():
            self.is_ending = True
            self.check_at = now + self.linger_s
            self.transport.close()
        else:
            self.check_at = now + CHECK_AGAIN_S
            self._check_message(now)

    def resume_writing(self) -> None:
        super().resume_writing()
        patience_s = self.linger_s if self.is_ending else CLOSE_S if self._is_closing else CHECK_AGAIN_S
        self.check_at = self.loop.time() + patience_s

    # -- what is not whole --------------------------------------------------------------------------------------------

    def _begin_stretch(self, count: int) -> None:
        """`count` has come before it."""
        now = self.loop.time()
        self.coming.begin(now, count)
        self.check_at = min(self.check_at, now + self.context.settings.body_timeout_s)

    def _check_message(self, now: float) -> None:
        if self._coming_step is None:
            return
        timeout_s = self.context.settings.body_timeout_s
        if now < self.coming.since + timeout_s:
            self.check_at = min(self.check_at, self.coming.since + timeout_s)
        elif self.is_coming_too_slowly(now):
            self.context.stalled.note(self, f"what they began to send hardly grew for {timeout_s:g} s")
            reason = f"what was begun hardly grew for {timeout_s:g} s; send at least 1 KiB per second"
            self._closed(self._websocket.fail(CloseCode.POLICY_VIOLATION, reason))
        else:
            self._begin_stretch(self._websocket.come_bytes)

    @property
    def coming_bytes(self) -> int | None:
        return None if self._coming_step is None or self._is_closing else self._websocket.come_bytes

    def give_up_input(self) -> None:
        reason = "memory is low, and what was begun hardly grew; send it again, at least 1 KiB per second"
        self._closed(self._websocket.fail(CloseCode.TRY_AGAIN_LATER, reason))

    @property
    def waiting_bytes(self) -> int:
        return self.output_bytes + self._unseen.unwritten_bytes() + self._kept_bytes

    @property
    def has_settled(self) -> bool:
        lately_s = 2 * self.context.settings.body_timeout_s
        return self.loop.time() - self._unseen.settled_at_s < lately_s

    # -- pings --------------------------------------------------------------------------------------------------------

    def _plan_ping(self) -> None:
        if self.context.settings.websocket_ping_s:
            self._ping_timer = self.loop.call_later(self.context.settings.websocket_ping_s, self.ping)

    def _stop_pinging(self) -> None:
        self._awaited_pong = None
        if self._ping_timer is not None:
            self._ping_timer.cancel()
            self._ping_timer = None

    def ping(self) -> None:
        """Ask whether the peer is there."""
        self._awaited_pong = secrets.token_bytes(4)
        self._websocket.ping(self._awaited_pong)
        self._write_output()
        self._ping_timer = self.loop.call_later(self.context.settings.websocket_ping_s, self.miss_pong)

    def miss_pong(self) -> None:
        """It did not answer in time."""
        if self.flow.is_read_paused:
            # Its pong may have come: it is the application that does not let us read it.
            self._stop_pinging()
            self._plan_ping()
            return
        self._put_closed(CloseCode.INTERNAL_ERROR, "no pong")
        self._is_closing = True
        self._websocket.fail(CloseCode.INTERNAL_ERROR, "keepalive ping timeout")
        self._write_output()
        self.transport.close()

    def _pong(self, payload: bytes) -> None:
        if payload == self._awaited_pong:
            self._stop_pinging()
            self._plan_ping()
