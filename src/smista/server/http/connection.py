"""One connection of HTTP/1.1: requests in, answers out, and what either side may take for it.

    connect ──> IDLE ──first byte──> HEAD ──blank line──> BODY ──last byte──> IDLE
                 └ header_timeout_s ───┘                   └ body_timeout_s    └ keep_alive_s after the answer
    anything refused ──> ending ──peer closes, or LINGER_S──> gone

The phase is that of the request being read. Its answer, and those of earlier requests of a pipeline, may be under way
in any phase. A refusal waits for those, so that it cannot be taken for, or land in the middle of, another answer.

Nothing here is done per request that can be done per chunk, or in the sweep (see `connections.py`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque

from smista.protocols.web.asgi import HELD
from smista.server.http import refusals
from smista.server.http.connections import CHECK_AGAIN_S
from smista.server.http.context import Context
from smista.server.http.exchange import Exchange
from smista.server.http.gathering import GatheringTransport
from smista.server.http.open_connection import OpenConnection
from smista.server.http.refusals import Refusal
from smista.server.http.requests import BODY, END, HEAD, Event, Handshake, Request, RequestReader
from smista.server.http.websocket_connection import WebSocketConnection

HANDED_OVER = "/v1/log"
"""The path whose requests are answered by another process, see `smista.bulk`."""
HAND_OVER = "smista.hand_over"
"""Under which name its application finds `hand_over` among the extensions of the scope."""
UNSENT_S = 0.005
"""How often to look whether earlier answers have been sent."""


class HttpConnection(OpenConnection):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.scheme = "http"
        self.reader = RequestReader(context.settings)
        self.running: Exchange | None = None
        """The request being answered, or answered last."""
        self.reading: Exchange | None = None
        """The request whose body is not whole."""
        self.pipeline: deque[Exchange] = deque()
        """Those that wait for their turn to be answered."""
        self.refusal: Refusal | None = None
        """To be answered when the requests before it have been."""
        self._timed_step = 0
        """Of the reader: the one whose deadline `check_at` is."""

    # -- the connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is one, over TCP
        context = self.context
        self.attach(GatheringTransport(transport, self.loop))
        peer = transport.get_extra_info("peername")
        self.client = (str(peer[0]), int(peer[1])) if peer else None
        if transport.get_extra_info("sslcontext"):
            self.scheme = "https"
        self.check_at = self.loop.time() + context.settings.header_timeout_s
        refusal = context.connections.full()
        if refusal is None:
            context.connections.join(self, self.loop)
            if context.is_stopping:
                self.shut_down()
            return
        may_linger = context.connections.turn_away(self, self.loop)
        self.answer(refusal)
        if not may_linger:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.context.connections.leave(self)
        self.intake.close()
        self.reader.close()
        for exchange in (self.running, self.reading):
            if exchange is not None and not exchange.response.is_complete:
                exchange.disconnect()
        self.flow.resume_writing()
        self.running = self.reading = None
        self.pipeline.clear()

    def take(self, data: bytes) -> None:
        for event in self.reader.receive(data):
            if self.is_ending:
                break
            self._handle(event)
        if self.is_ending:
            self.intake.drop()
        elif self.reader.step != self._timed_step and (self.reader.phase is HEAD or self.reader.phase is BODY):
            self._set_check_at()

    def plain_bytes(self) -> int:
        return self.reader.plain_bytes

    def fail(self) -> None:
        if not self.is_ending:
            self._refuse(refusals.FAULT)

    def _handle(self, event: Event) -> None:
        if type(event) is Request:
            self._begin(Exchange(self, event))
        elif type(event) is bytes:
            assert self.reading is not None
            if self.reading.add(event):
                self.flow.pause_reading()
        elif event is END:
            assert self.reading is not None
            self.reading.end()
            self.reading = None
        elif type(event) is Handshake:
            self._upgrade(event)
        else:
            assert type(event) is Refusal
            self._refuse(event)

    def _begin(self, exchange: Exchange) -> None:
        self.reading = exchange
        if self.is_answering:
            self.flow.pause_reading()
            self.flow.is_held = True
            self.pipeline.append(exchange)
            self.listen()
        else:
            self._start(exchange)

    def listen(self) -> None:
        """Whoever waits, as a long poll, has to hear that its client has gone, also if that has sent more before."""
        if self.flow.is_held and self.running is not None and self.running.waits_for_news:
            self.transport.listen()

    def _upgrade(self, handshake: Handshake) -> None:
        if self.is_answering:
            self._refuse(refusals.UPGRADE_TOO_EARLY)
            return
        handshake.early += self.intake.rest
        self.context.connections.leave(self)  # the WebSocket joins in its place
        self.is_ending = True
        self.intake.close()
        self.reader.close()
        self.running = None
        WebSocketConnection(self.context, self.transport, self.client, is_secure=self.scheme == "https").open(handshake)

    # -- stopping -----------------------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        now = self.loop.time()
        self.is_hurried = True
        self.output.hurry(now)
        last = self.reading or (self.pipeline[-1] if self.pipeline else self.running)
        if (self.is_ending and self.refusal is None) or last is None or last.response.is_complete:
            self.transport.close()
        else:
            last.response.keep_alive = False
        if self.transport.is_closing() and not self.flow.is_write_paused:
            self.check_at = now
        else:
            self._set_check_at()

    def cut_off(self) -> None:
        """Who has got no answer yet gets a refusal; half an answer must not look whole."""
        if self.is_ending and self.refusal is None:
            return  # it has been answered, and may read that
        running = self.running
        if running is None or running.response.is_complete:
            self.transport.close()
        elif running.response.is_started:
            running.disconnect()
            self.transport.reset()
        else:
            is_whole = running is not self.reading
            running.disconnect()
            self.pipeline.clear()
            self.answer(refusals.CUT_OFF if is_whole else refusals.STOPPING)

    # -- answering ----------------------------------------------------------------------------------------------------

    @property
    def is_answering(self) -> bool:
        return self.running is not None and not self.running.response.is_complete

    @property
    def output_bytes(self) -> int:
        answer_bytes = self.running.response.length if self.running is not None and self.is_answering else 0
        return super().output_bytes + answer_bytes

    def _start(self, exchange: Exchange) -> None:
        self.running = exchange
        if exchange.scope["path"] == HANDED_OVER:
            exchange.scope["extensions"] = {HAND_OVER: {"call": self.hand_over}}
        exchange.start()

    def answered(self, exchange: Exchange) -> None:
        """The answer of the one that is running is whole."""
        if not exchange.response.keep_alive or self.transport.is_closing():
            self._close()
            return
        if self.pipeline:
            self._start(self.pipeline.popleft())
        elif self.refusal is not None:
            self.answer(self.refusal)
            return
        if not self.pipeline:
            self.flow.is_held = False
            self.flow.resume_reading()
        self._set_check_at()

    def _close(self) -> None:
        """There will be no other answer on this connection."""
        if self.reading is None:
            self.transport.close()
            self.check_at = self.loop.time()
        else:
            # It still sends: closed whole, the connection would be reset, and the answer perhaps not read.
            self.end()

    async def hand_over(self) -> socket.socket:
        """The connection of the request being answered, for somebody else to answer on; here it is over with this.

        What the client sent behind the request is lost, so the answer has to say that the connection will be closed.
        """
        exchange = self.running
        if exchange is None:
            raise ConnectionResetError("the client has gone")
        self.flow.is_held = True
        self.flow.pause_reading()
        self.transport.pause_reading()
        self.transport.flush()
        while self.transport.get_write_buffer_size() and not exchange.is_disconnected:  # noqa: ASYNC110 (no event for it)
            await asyncio.sleep(UNSENT_S)
        if exchange.is_disconnected or self.transport.is_closing():
            raise ConnectionResetError("the client has gone")
        connection = socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno()))
        # Closing our descriptor leaves the connection open, since there is another one.
        exchange.disconnect()
        self.pipeline.clear()
        self.transport.abort()
        return connection

    def _refuse(self, refusal: Refusal) -> None:
        """Answer the request being read with `refusal`, after those before it, and close."""
        refused = self.reading
        self.reading = None
        self.refusal = refusal
        self.is_ending = True
        if refused is None:
            if not self.is_answering:
                self.answer(refusal)
        elif refused is not self.running:
            self.pipeline.pop()  # the newest
        elif not refused.response.is_started:
            refused.disconnect()
            self.answer(refusal)
        else:
            self.context.connections.refused(refusal, self.client)
            if refused.response.is_complete:
                self.end()
            else:
                # In the middle of its answer: it must not look complete.
                self.transport.reset()

    def end(self) -> None:
        self.refusal = None
        super().end()

    # -- deadlines ----------------------------------------------------------------------------------------------------

    @property
    def _stretch_s(self) -> float:
        """In which a body has to grow."""
        return self.output.stretch_s if self.is_hurried else self.context.settings.body_timeout_s

    def _set_check_at(self) -> None:
        """Begin the deadline of the present state."""
        now = self.loop.time()
        settings, reader = self.context.settings, self.reader
        self._timed_step = reader.step
        if self.flow.is_write_paused:
            self.check_at = self.output.check_at
        elif reader.phase is HEAD:
            self.check_at = now + settings.header_timeout_s
        elif self.reading is not None:
            self.check_at = now + self._stretch_s
            self.coming.begin(now, reader.body_bytes)
        elif self.is_answering:
            self.check_at = now + CHECK_AGAIN_S
        else:
            self.check_at = now + settings.keep_alive_s

    def check_progress(self, now: float) -> None:
        if self.is_ending and self.refusal is None:
            self.transport.abort()
        elif self.transport.is_closing():
            self.is_ending = True
            self.refusal = None
            self.check_at = now + self.linger_s
        elif self.reader.phase is HEAD or self.running is None:
            self._check_head(now)
        elif self.reading is not None:
            self._check_body(now)
        elif self.is_answering:
            self.check_at = now + CHECK_AGAIN_S
        else:
            self.transport.close()
            self.check_at = now

    def _check_head(self, now: float) -> None:
        timeout_s = self.context.settings.header_timeout_s
        if self.flow.was_paused_since(now - timeout_s):
            self._set_check_at()
        else:
            self._refuse(refusals.header_too_slow(timeout_s))

    def _check_body(self, now: float) -> None:
        if self.is_coming_too_slowly(now):
            self._refuse(refusals.STOPPING if self.is_hurried else refusals.body_too_slow(self._stretch_s))
        else:
            self._set_check_at()

    @property
    def coming_bytes(self) -> int | None:
        return None if self.reading is None else self.reader.body_bytes

    def was_held_up_since(self, instant: float) -> bool:
        waits = self.reading is not None and self.reading.waits_for_continue
        return waits or super().was_held_up_since(instant)

    def give_up_input(self) -> None:
        self._refuse(refusals.BODY_GIVEN_UP)

    @property
    def waiting_bytes(self) -> int:
        held = None if self.reading is None else self.reading.scope.get(HELD)
        return self.output_bytes + (0 if held is None else held.count)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.is_ending:
            self.check_at = self.loop.time() + self.linger_s
        else:
            self._set_check_at()
