"""What HTTP and a WebSocket have in common on a connection: what comes in, refusals, and who stands still."""

from __future__ import annotations

import asyncio

from smista.server.http.connections import LINGER_S, STOPPING_LINGER_S
from smista.server.http.context import Context
from smista.server.http.flow import Flow
from smista.server.http.gathering import GatheringTransport
from smista.server.http.intake import Intake
from smista.server.http.output import Output
from smista.server.http.refusals import Refusal


class OpenConnection(asyncio.Protocol):
    def __init__(self, context: Context) -> None:
        self.context = context
        self.loop = asyncio.get_running_loop()
        self.transport: GatheringTransport
        self.intake: Intake
        self.flow: Flow
        self.output: Output
        self.client: tuple[str, int] | None = None
        self.is_ending = False
        """Whether what still comes is thrown away."""
        self.is_hurried = False
        """The server stops: who sends or reads may not stand still for long."""
        self.check_at = 0.0

    def attach(self, transport: GatheringTransport) -> None:
        """What comes on this transport goes to `take`, piece by piece."""
        self.transport = transport
        self.flow = Flow(transport, self.loop)
        self.output = Output(transport, self.context.settings)
        self.intake = Intake(self.context.turns, transport, self._take, self.plain_bytes)

    def data_received(self, data: bytes) -> None:
        if not self.is_ending:
            self.intake.take(data)

    def _take(self, data: bytes) -> None:
        try:
            self.take(data)
        except Exception as error:
            # Else the loop logs it, each time, and closes the connection without an answer.
            self.context.faults.note(error, "what came in could not be read")
            self.fail()

    def take(self, data: bytes) -> None:
        """A piece of what comes in."""
        raise NotImplementedError

    def plain_bytes(self) -> int:
        """How much of what comes next is known to be a body, or of a frame."""
        raise NotImplementedError

    def fail(self) -> None:
        """A fault of ours: say so, and close."""
        raise NotImplementedError

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        self.context.connections.unread.discard(self)

    def answer(self, refusal: Refusal) -> None:
        """Answer with `refusal`, now, and close."""
        self.context.connections.refused(refusal, self.client)
        self.transport.write(refusal.wire(self.context.standard.lines()))
        self.end()

    def end(self) -> None:
        """Close, and throw away what still comes."""
        self.is_ending = True
        self.check_at = self.loop.time() + self.linger_s
        self.flow.is_held = False
        self.flow.resume_reading()
        self.transport.end_writing()

    @property
    def linger_s(self) -> float:
        return STOPPING_LINGER_S if self.is_hurried else LINGER_S

    def abort(self) -> None:
        self.transport.abort()

    def check(self, now: float) -> None:
        if not self.flow.is_write_paused:
            self.check_progress(now)
            return
        if self.output.is_stalled(now):
            self.transport.abort()
        self.check_at = self.output.check_at

    def check_progress(self, now: float) -> None:
        """As `check`, where the peer takes what is written."""
        raise NotImplementedError

    @property
    def output_bytes(self) -> int:
        """What waits for its reader."""
        return self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self.context.connections.unread.add(self)
        self.output.watch(self.loop.time())
        self.check_at = min(self.check_at, self.output.check_at)
