"""uvicorn's HTTP protocol, with the limits that it lacks.

    connect ──> IDLE ──first byte──> HEAD ──blank line──> BODY ──last byte──> IDLE
                 └ header_timeout_s ───┘                   └ body_timeout_s    └ keep_alive_s after the answer
    anything refused ──> ENDING ──peer closes, or LINGER_S──> gone

The phase is that of the request being read. Its answer, and those of earlier requests of a pipeline, may be under way
in any phase. A refusal waits for those, so that it cannot be taken for, or land in the middle of, another answer.

Nothing here is done per request that can be done per chunk, or in the sweep (see `connections.py`).
"""

from __future__ import annotations

import asyncio
import enum
import os
import socket
from typing import Any, ClassVar, NoReturn

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from smista.protocols.places import Places
from smista.protocols.turns import Turns
from smista.server import refusals
from smista.server.connections import (
    LINGER_S,
    LOOK_AGAIN_S,
    PROGRESS_BYTES_PER_S,
    STOPPING_LINGER_S,
    Connections,
    Output,
    end_writing,
)
from smista.server.gathering import GatheringTransport
from smista.server.intake import Intake
from smista.server.refusals import Refusal
from smista.server.settings import ServerSettings
from smista.server.websocket_protocol import WebSocketProtocol

HANDED_OVER = "/v1/log"
"""The path whose requests are answered by another process, see `smista.protocols.bulk`."""
HAND_OVER = "smista.hand_over"
"""Under which name its application finds `hand_over` among the extensions of the scope."""
UNSENT_S = 0.005
"""How often to look whether earlier answers have been sent."""


def make_protocol(
    settings: ServerSettings, turns: Turns | None = None, places: Places | None = None
) -> type[HttpProtocol]:
    """The class for `uvicorn.Config(http=...)`. WebSockets it takes on by itself, unless `ws="none"`; what uvicorn
    is told about timeouts, pings and sizes is not looked at."""
    connections = Connections(settings, turns or Turns(), places)

    class LimitedWebSocketProtocol(WebSocketProtocol):
        shared = connections

    class LimitedHttpProtocol(HttpProtocol):
        shared = connections
        websocket = LimitedWebSocketProtocol

    return LimitedHttpProtocol


class Phase(enum.Enum):
    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    ENDING = enum.auto()


# Named here too because a member of an enum takes longer to find than the rest of a callback takes to run.
IDLE, HEAD, BODY, ENDING = Phase


class Refused(Exception):
    """Raised in a callback of the parser to stop it; the refusal is with the protocol."""


class HttpProtocol(HttpToolsProtocol):
    shared: ClassVar[Connections]
    websocket: ClassVar[type[WebSocketProtocol]]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        if self.ws_protocol_class is not None:
            self.ws_protocol_class = self.websocket
        self.settings = self.shared.settings
        self.gathering: GatheringTransport
        self.intake: Intake
        self.flow: Flow
        self.output: Output
        self.look_at = 0.0
        self.phase = IDLE
        self.is_timed = True
        """Whether `look_at` knows of the present phase."""
        self.head_bytes = 0
        """What came since the request began, or since the last piece of its body; at most a chunk less."""
        self.content_bytes = 0
        """The length that the request says its body has."""
        self.body_bytes = 0
        self.is_staging = False
        """Whether the body is a stream to be staged, which may be longer than others."""
        self.window_bytes = 0
        """How long the body was when the present stretch of `body_timeout_s` began."""
        self.running: RequestResponseCycle | None = None
        """The request being answered; `cycle` is the one read last."""
        self.refusal: Refusal | None = None
        """To be answered when the requests before it have been."""
        self.is_hurried = False
        """The server stops: who sends or reads may not stand still for long."""

    # -- the connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        transport = self.gathering = GatheringTransport(transport, self.loop)
        super().connection_made(transport)
        self.flow = Flow(transport, self.loop)
        self.intake = Intake(self.shared.turns, transport, self._take)
        self.output = Output(transport, self.settings)
        self.look_at = self.loop.time() + self.settings.header_timeout_s
        refusal = self.shared.full()
        if refusal is None:
            self.shared.join(self, self.loop)
            return
        may_linger = self.shared.turn_away(self, self.loop)
        self._answer(refusal)
        if not may_linger:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.leave(self)
        self.intake.close()
        # uvicorn tells only the request that was read last.
        if self.running is not None and not self.running.response_complete:
            self.running.disconnected = True
            self.running.message_event.set()
        super().connection_lost(exc)
        self.running = None
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        if self.phase is not ENDING:
            self.intake.take(data)

    def _take(self, data: bytes) -> None:
        if self.phase is ENDING:
            self.intake.drop()
            return
        self.head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self.refusal or refusals.MALFORMED)
            return
        if self.phase is HEAD or self.phase is BODY:
            if self.head_bytes > self.settings.header_bytes_max:
                self._refuse(refusals.headers_too_large(self.settings.header_bytes_max))
            elif not self.is_timed:
                self._set_look_at()

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    return
                # RFC 9110, 7.8: a server may ignore an upgrade that it does not know. What follows is HTTP still.
                data = data[upgrade.args[0] :]

    def handle_websocket_upgrade(self) -> None:
        self.shared.leave(self)  # the WebSocket joins in its place
        self.phase = ENDING
        self.intake.close()
        super().handle_websocket_upgrade()
        # It holds our callbacks: without the garbage collector the two would keep each other for ever.
        self.parser = None  # type: ignore[assignment]  # as uvicorn does when the connection is lost

    def shutdown(self) -> None:
        now = self.loop.time()
        self.is_hurried = True
        self.output.hurry(now)
        if self.phase is ENDING and self.refusal is None:
            self.transport.close()
        else:
            super().shutdown()
        if self.transport.is_closing() and not self.flow.write_paused:
            self.look_at = now
        else:
            self._set_look_at()

    def cut_off(self) -> None:
        """The server waits no longer. Who has got no answer yet is told so; half an answer must not look whole."""
        if self.phase is ENDING and self.refusal is None:
            return  # it has been answered, and may read that
        cycle = self.running
        if cycle is None or cycle.response_complete:
            self.transport.close()
        elif cycle.response_started:
            cycle.disconnected = True
            self.transport.abort()
        else:
            is_whole = cycle is not self.cycle or self.phase is not BODY
            # For the application it is as if the client had gone.
            cycle.disconnected = True
            cycle.waiting_for_100_continue = False
            cycle.message_event.set()
            self.pipeline.clear()
            self._answer(refusals.CUT_OFF if is_whole else refusals.STOPPING)

    # -- the parser's callbacks ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.phase = HEAD
        self.is_timed = False
        self.content_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not HEAD:
            return  # a trailer; uvicorn would put it among the headers of a request that is being answered
        name = name.lower()
        if name == b"content-length":
            self.content_bytes = int(value)
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        settings = self.settings
        if self.head_bytes > settings.header_bytes_max and self._read_head_bytes() > settings.header_bytes_max:
            self._stop(refusals.headers_too_large(settings.header_bytes_max))
        self.is_staging = self.url.startswith(b"/v1/staged/")
        self._check_size(self.content_bytes)
        if self.parser.should_upgrade() and self._should_upgrade():
            self._check_upgrade()
        super().on_headers_complete()
        self.phase = BODY
        self.is_timed = False
        self.head_bytes = self.body_bytes = 0
        if self.pipeline:
            self.flow.is_held = True

    def on_body(self, body: bytes) -> None:
        self.head_bytes = 0
        self.body_bytes += len(body)
        self._check_size(self.body_bytes)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.phase = IDLE
        self.head_bytes = 0

    def _check_size(self, size: int) -> None:
        settings = self.settings
        if size > (settings.staged_bytes_max if self.is_staging else settings.request_bytes_max):
            setting = "staged_bytes_max" if self.is_staging else "request_bytes_max"
            self._stop(refusals.request_too_large(getattr(settings, setting), setting))

    def _stop(self, refusal: Refusal) -> NoReturn:
        self.refusal = refusal
        raise Refused

    def _read_head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _check_upgrade(self) -> None:
        if self.is_answering:
            self._stop(refusals.UPGRADE_TOO_EARLY)
        if self.parser.get_method() != b"GET" or not self.url.isascii():
            self._stop(refusals.NO_HANDSHAKE)

    # -- answering ----------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.running = cycle
        if cycle.scope["path"] == HANDED_OVER:
            cycle.scope["extensions"] = {HAND_OVER: {"call": self.hand_over}}
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self.gathering.flush()
        if self.transport.is_closing():
            self.look_at = self.loop.time()
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.refusal is not None:
            self._answer(self.refusal)
            return
        if not self.pipeline:
            self.flow.is_held = False
            self.flow.resume_reading()
        self._set_look_at()

    async def hand_over(self) -> socket.socket:
        """The connection of the request being answered, for somebody else to answer on; here it is over with this.

        What the client sent behind the request is lost, so the answer has to say that the connection will be closed.
        """
        cycle = self.running
        if cycle is None:
            raise ConnectionResetError("the client has gone")
        self.flow.is_held = True
        self.flow.pause_reading()
        self.gathering.flush()
        while self.transport.get_write_buffer_size() and not cycle.disconnected:  # noqa: ASYNC110  # nothing tells when
            await asyncio.sleep(UNSENT_S)
        if cycle.disconnected or self.transport.is_closing():
            raise ConnectionResetError("the client has gone")
        connection = socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno()))
        # For the application it is as if the client had gone. Closing our descriptor leaves the connection open, since
        # there is another one.
        cycle.disconnected = True
        self.pipeline.clear()
        self.transport.abort()
        return connection

    @property
    def is_answering(self) -> bool:
        return self.running is not None and not self.running.response_complete

    def _refuse(self, refusal: Refusal) -> None:
        """Answer the request being read with `refusal`, after those before it, and close."""
        refused = self.cycle if self.phase is BODY else None
        self.phase = ENDING
        self.refusal = refusal
        if refused is None:
            if not self.is_answering:
                self._answer(refusal)
        elif refused is not self.running:
            self.pipeline.popleft()  # the newest
        elif not refused.response_started:
            # For the application it is as if the client had gone.
            refused.disconnected = True
            refused.waiting_for_100_continue = False
            refused.message_event.set()
            self._answer(refusal)
        elif refused.response_complete:
            self.shared.refused(refusal, self.client)
            self._end()
        else:
            # In the middle of its answer: it must not look complete.
            self.shared.refused(refusal, self.client)
            self.transport.abort()

    def _answer(self, refusal: Refusal) -> None:
        self.shared.refused(refusal, self.client)
        self.transport.write(refusal.wire(self.server_state.default_headers))
        self._end()

    def _end(self) -> None:
        """Close, and throw away what still comes."""
        self.phase = ENDING
        self.refusal = None
        self.look_at = self.loop.time() + self._linger_s
        self.flow.is_held = False
        self.flow.resume_reading()
        end_writing(self.transport)

    # -- deadlines ----------------------------------------------------------------------------------------------------

    @property
    def _stretch_s(self) -> float:
        """In which a body has to grow."""
        return self.output.stretch_s if self.is_hurried else self.settings.body_timeout_s

    @property
    def _linger_s(self) -> float:
        return STOPPING_LINGER_S if self.is_hurried else LINGER_S

    def _set_look_at(self) -> None:
        """Begin the deadline of the present state."""
        now = self.loop.time()
        self.is_timed = True
        if self.flow.write_paused:
            self.look_at = self.output.look_at
        elif self.phase is HEAD:
            self.look_at = now + self.settings.header_timeout_s
        elif self.phase is BODY:
            self.look_at = now + self._stretch_s
            self.window_bytes = self.body_bytes
        elif self.is_answering:
            self.look_at = now + LOOK_AGAIN_S
        else:
            self.look_at = now + self.settings.keep_alive_s

    def look(self, now: float) -> None:
        if self.flow.write_paused:
            if self.output.is_stalled(now):
                self.transport.abort()
            self.look_at = self.output.look_at
        elif self.phase is ENDING and self.refusal is None:
            self.transport.abort()
        elif self.transport.is_closing():
            self.phase = ENDING
            self.refusal = None
            self.look_at = now + self._linger_s
        elif self.phase is HEAD or self.running is None:
            self._look_at_head(now)
        elif self.phase is BODY:
            self._look_at_body(now)
        elif self.is_answering:
            self.look_at = now + LOOK_AGAIN_S
        else:
            self.transport.close()
            self.look_at = now

    def _look_at_head(self, now: float) -> None:
        timeout_s = self.settings.header_timeout_s
        if self.flow.was_paused_since(now - timeout_s):
            self._set_look_at()
        else:
            self._refuse(refusals.header_too_slow(timeout_s))

    def _look_at_body(self, now: float) -> None:
        stretch_s = self._stretch_s
        is_our_delay = self.flow.was_paused_since(now - stretch_s) or self.cycle.waiting_for_100_continue
        if is_our_delay or self.body_bytes - self.window_bytes >= PROGRESS_BYTES_PER_S * stretch_s:
            self._set_look_at()
        else:
            self._refuse(refusals.STOPPING if self.is_hurried else refusals.body_too_slow(stretch_s))

    def pause_writing(self) -> None:
        super().pause_writing()
        self.output.watch(self.loop.time())
        self.look_at = min(self.look_at, self.output.look_at)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.phase is ENDING:
            self.look_at = self.loop.time() + self._linger_s
        else:
            self._set_look_at()


class Flow(FlowControl):
    """Whether we read and may write. While requests wait in the pipeline nothing more is read, whoever asks."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(transport)
        self.is_held = False
        self._resumed_at = float("-inf")
        self._loop = loop

    def resume_reading(self) -> None:
        if self.read_paused and not self.is_held:
            super().resume_reading()
            self._resumed_at = self._loop.time()

    def was_paused_since(self, instant: float) -> bool:
        """Whether it was at any time since then we who did not read."""
        return self.read_paused or self._resumed_at >= instant
