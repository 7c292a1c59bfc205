"""How much a client takes of what waits for it: in stretches of `output_timeout_s`, as long as anything waits. And
whether it goes on with what it has begun to send, a message or a transaction: that is asked only while memory is low.
Then who has published is not read, so that it cannot go on; what has come of it keeps memory low all the same.

What becomes of those that take nothing: see `smista.protocols.stalled`.
"""

from __future__ import annotations

import asyncio

from smista.protocols.amqp.client import Client
from smista.protocols.amqp.output import Output
from smista.protocols.stalled import PROGRESS_BYTES_PER_S, Stretch

SILENCE_S_MAX = 4 * 3600.0
"""How long a client that agreed on no heartbeats may neither read nor say anything."""


class Progress:
    """The `Peer` at the other end of one connection."""

    __slots__ = (
        "_client",
        "_coming",
        "_had_settled",
        "_has_failed",
        "_loop",
        "_output",
        "_silent_stretches",
        "_taken_before",
        "_timeout_s",
        "_timer",
        "come_bytes",
        "has_come",
    )

    def __init__(self, client: Client, output: Output) -> None:
        self._client = client
        self._output = output
        self._timeout_s = client.shared.settings.output_timeout_s
        self._loop = asyncio.get_running_loop()
        self.has_come = False
        """Anything, since the stretch began that is not over."""
        self.come_bytes = 0
        """In all."""
        self._coming: Stretch | None = None
        """Of what has come and is not whole; None where there was nothing when somebody asked last."""
        self._silent_stretches = 0
        """In how many of them, one after the other, nothing came and hardly anything was taken."""
        self._has_failed = False
        """To take enough, in the stretch before ..."""
        self._had_settled = False
        """... and whether it settled any message in that one."""
        self._taken_before = 0
        """How much had been taken when it began."""
        self._timer: asyncio.TimerHandle | None = None
        """When it is over; None while nobody has to know."""

    def watch(self) -> None:
        if self._timer is None and self._output.all_bytes and not self._client.connection.is_over:
            self._begin_stretch()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._silent_stretches = 0
        self._has_failed = False

    @property
    def waiting_bytes(self) -> int:
        return self._output.all_bytes + self._client.kept_bytes

    @property
    def has_taken_enough(self) -> bool:
        """In the stretch that has begun last, for all of it."""
        return self._output.taken_bytes - self._taken_before >= PROGRESS_BYTES_PER_S * self._timeout_s

    def is_stalled(self) -> bool:
        self.watch()
        # Whoever has read since goes on, though its stretch is not over.
        return self._has_stopped_sending() or (self._has_failed and not self.has_taken_enough)

    def _has_stopped_sending(self) -> bool:
        """What it has not ended."""
        now = self._loop.time()
        if not self._client.kept_bytes:
            self._coming = None
        elif self._coming is None:
            self._coming = Stretch()
            self._coming.begin(now, self.come_bytes)
        else:
            return self._coming.is_too_little_lately(now, self.come_bytes)
        return False

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
        if not self._output.all_bytes:
            self.stop()
            return
        if self.has_taken_enough:
            self._silent_stretches = 0
            self._has_failed = False
        else:
            self._silent_stretches = self._silent_stretches + 1 if self._is_silent else 0
            silent_s = self._silent_stretches * self._timeout_s
            if silent_s >= self._patience_s:
                self.drop(f"they neither read nor sent anything for {silent_s:g} s")
                return
            self._has_failed = True
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
        return 2 * heartbeat_s if heartbeat_s else SILENCE_S_MAX

    @property
    def name(self) -> str:
        client = self._client
        return f"{client.peer}, user {client.user}, vhost {client.connection.handshake.vhost}"

    def drop(self, why: str) -> None:
        self._client.shared.stalled.note(self, why)
        self._client.driver.abort()
