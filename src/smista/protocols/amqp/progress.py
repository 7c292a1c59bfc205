"""How much a client takes of what waits for it: in stretches of `output_timeout_s`, as long as anything waits.

What becomes of those that take nothing: see `non_readers`.
"""

from __future__ import annotations

import asyncio
import logging

from smista.protocols.amqp import non_readers
from smista.protocols.amqp.client import Client
from smista.protocols.amqp.output import Output

logger = logging.getLogger("smista.amqp")

PROGRESS_BYTES_PER_S = 1024
"""What has to be taken on average, as over HTTP."""


class Progress:
    """The `Reader` at the other end of one connection."""

    __slots__ = (
        "_client",
        "_had_settled",
        "_loop",
        "_non_readers",
        "_output",
        "_silent_stretches",
        "_taken_before",
        "_timeout_s",
        "_timer",
        "has_come",
    )

    def __init__(self, client: Client, output: Output) -> None:
        self._client = client
        self._output = output
        self._timeout_s = client.shared.settings.output_timeout_s
        self._non_readers = client.shared.non_readers
        self._loop = asyncio.get_running_loop()
        self.has_come = False
        """Anything, since the stretch began that is not over."""
        self._silent_stretches = 0
        """In how many of them, one after the other, nothing came and hardly anything was taken."""
        self._had_settled = False
        """In the stretch before."""
        self._taken_before = 0
        """How much had been taken when it began."""
        self._timer: asyncio.TimerHandle | None = None
        """When it is over; None while nobody has to know."""

    @property
    def is_watching(self) -> bool:
        return self._timer is not None

    def watch(self) -> None:
        if self._timer is None and self.output_bytes and not self._client.connection.is_over:
            self._begin_stretch()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._silent_stretches = 0
        self._non_readers.discard(self)

    @property
    def output_bytes(self) -> int:
        return self._output.all_bytes

    @property
    def has_taken_enough(self) -> bool:
        """In the stretch that has begun last, for all of it."""
        return self._output.taken_bytes - self._taken_before >= PROGRESS_BYTES_PER_S * self._timeout_s

    @property
    def has_settled(self) -> bool:
        """Any message in this stretch or the one before."""
        return self._client.has_settled or self._had_settled

    def _begin_stretch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._taken_before = self._output.taken_bytes
        self._had_settled, self._client.has_settled = self._client.has_settled, False
        self.has_come = False
        self._timer = self._loop.call_later(self._timeout_s, self.end_stretch)

    def end_stretch(self) -> None:
        """A stretch is over: has enough been taken?"""
        if not self.output_bytes:
            self.stop()
            return
        if self.has_taken_enough:
            self._silent_stretches = 0
            self._non_readers.discard(self)
        else:
            self._silent_stretches = self._silent_stretches + 1 if self._is_silent else 0
            silent_s = self._silent_stretches * self._timeout_s
            if silent_s >= self._patience_s:
                self.cut_off(f"it neither read nor sent anything for {silent_s:g} s")
                return
            self._non_readers.add(self)
        self._begin_stretch()

    @property
    def _is_silent(self) -> bool:
        # Where we do not read, nothing can come. That counts only where its not reading is the reason.
        output = self._output
        is_waited_for = output.is_flooded or not self._client.connection.is_paused
        return output.is_transport_full and not self.has_come and is_waited_for

    @property
    def _patience_s(self) -> float:
        """How long nothing may come from it, and hardly anything be taken."""
        heartbeat_s = self._client.connection.handshake.heartbeat_s
        return 2 * heartbeat_s if heartbeat_s else non_readers.SILENCE_S_MAX

    def cut_off(self, why: str) -> None:
        client = self._client
        handshake = client.connection.handshake
        logger.info(
            "a client that does not read was cut off: %s",
            why,
            extra={"fields": {"peer": client.peer, "user": client.user, "vhost": handshake.vhost}},
        )
        client.driver.abort()
