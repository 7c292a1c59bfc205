"""What HTTP and a WebSocket have in common on a connection: what comes in, refusals, and who stands still."""

from __future__ import annotations

import asyncio

from smista.protocols.stalled import Stretch
from smista.server.http.connections import LINGER_S, STOPPING_LINGER_S
from smista.server.http.context import Context
from smista.server.http.flow import Flow
from smista.server.http.gathering import GatheringTransport
from smista.server.http.intake import Intake
from smista.server.http.output import Output
from smista.server.http.refusals import Refusal

NOT_READ = "they read less than 1 KiB per second"
"""Why most of them are cut off."""


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
        self.coming = Stretch()
        """Of what the peer is sending and has not ended."""

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
            self.drop(NOT_READ)
        self.check_at = self.output.check_at

    def check_progress(self, now: float) -> None:
        """As `check`, where the peer takes what is written."""
        raise NotImplementedError

    # -- who stands still ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return "somebody" if self.client is None else f"{self.client[0]}:{self.client[1]}"

    @property
    def has_settled(self) -> bool:
        return False

    @property
    def waiting_bytes(self) -> int:
        return self.output_bytes

    def is_stalled(self) -> bool:
        now = self.loop.time()
        if self.flow.is_write_paused and self.output.is_stalled_lately(now):
            return True
        count = self.coming_bytes
        if count is None or self.is_ending:
            return False
        if self.was_held_up_since(self.coming.recent_since):
            self.coming.begin_recent(now, count)
        return self.coming.is_too_little_lately(now, count)

    @property
    def coming_bytes(self) -> int | None:
        """How much has come of what the peer sends and has not ended; None where it has."""
        raise NotImplementedError

    def was_held_up_since(self, instant: float) -> bool:
        """Whether the peer could not go on with that at any time since then, for a reason that is ours."""
        return self.flow.was_paused_since(instant)

    def is_coming_too_slowly(self, now: float) -> bool:
        count = self.coming_bytes
        if count is None or self.was_held_up_since(self.coming.since):
            return False
        return self.coming.is_too_little(now, count)

    def drop(self, why: str) -> None:
        self.context.stalled.note(self, why)
        if self.flow.is_write_paused:
            self.transport.abort()
        else:
            self.give_up_input()

    def give_up_input(self) -> None:
        """Memory is low: refuse what the peer has not ended."""
        raise NotImplementedError

    # -- writing ------------------------------------------------------------------------------------------------------

    @property
    def output_bytes(self) -> int:
        """What waits for its reader."""
        return self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self.context.connections.unread.add(self)
        self.output.watch(self.loop.time())
        self.check_at = min(self.check_at, self.output.check_at)
