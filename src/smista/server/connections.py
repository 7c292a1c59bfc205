"""The connections that are open, and the one timer that looks after all of them.

A timer per deadline would be a timer per request. Instead each connection says when it wants to be looked at next, and
one sweep looks at those whose time has come; whether something is overdue is decided there, from the state that the
connection is in. A request that comes and goes between two sweeps costs one reading of the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Protocol

from smista.protocols.places import Places
from smista.protocols.refusing import Refusing
from smista.protocols.turns import Turns
from smista.server.logs import fields
from smista.server.refusals import Refusal, no_place, too_many_connections
from smista.server.settings import ServerSettings

PROGRESS_BYTES_PER_S = 1024
"""What a sender or reader that others wait for has to manage on average."""
STALL_S = 5.0
"""How long a reader may stand still while more than `output_bytes_max` waits for it, and a reader or sender while the
server stops."""
LINGER_S = 5.0
"""How long a connection that was ended may take to be gone."""
STOPPING_LINGER_S = 1.0
"""The same while the server stops."""
LOOK_AGAIN_S = 5.0
"""How often a connection is looked at that has no deadline: it may have been closed meanwhile and not be gone."""
TURNED_AWAY_MAX = 128
"""How many connections beyond the limit may linger until they have read why they are."""
REFUSES_CONNECTION = frozenset({"malformed_request", "too_many_connections"})
"""The codes of refusals by which somebody does not get in at all; others go for one request."""

logger = logging.getLogger(__name__)


class Watched(Protocol):
    look_at: float
    """When to look at it next, in the loop's time."""

    def look(self, now: float) -> None:
        """End what is overdue, and set `look_at` anew."""


class Connections:
    """All connections of one door, at most `connections_max` at a time. It lives on one loop."""

    def __init__(self, settings: ServerSettings, turns: Turns, places: Places | None = None) -> None:
        self.settings = settings
        self._places = places or Places()
        self._places.count(lambda: len(self._open))
        self._turned_away_max = min(TURNED_AWAY_MAX, self._places.most // 8)
        self.turns = turns
        self.refusals: Counter[str] = Counter()
        """How often something was refused, by the refusal's code."""
        self.kept_bytes = 0
        """What has come in by WebSocket and the application has not taken."""
        self._open: set[Watched] = set()
        self._turned_away: set[Watched] = set()
        shortest_s = min(settings.header_timeout_s, settings.body_timeout_s, settings.keep_alive_s)
        self._interval_s = min(1.0, shortest_s / 4)
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False
        self._refusing = Refusing(logger, protocol="http")

    @property
    def open_count(self) -> int:
        return len(self._open)

    def full(self) -> Refusal | None:
        """Why there is no room for one more; None where there is."""
        if len(self._open) >= self.settings.connections_max:
            return too_many_connections(self.settings.connections_max)
        return no_place(self._places.why_full) if self._places.is_full else None

    def join(self, connection: Watched, loop: asyncio.AbstractEventLoop) -> None:
        """Look after `connection` until it leaves."""
        self._open.add(connection)
        self._start(loop)

    def turn_away(self, connection: Watched, loop: asyncio.AbstractEventLoop) -> bool:
        """Look after a connection for which there is no room until it has gone; False when even that is too much."""
        if len(self._turned_away) >= self._turned_away_max:
            return False
        self._turned_away.add(connection)
        self._start(loop)
        return True

    def leave(self, connection: Watched) -> None:
        self._open.discard(connection)
        self._turned_away.discard(connection)
        if self._timer is not None and not self._open and not self._turned_away:
            self._timer.cancel()
            self._timer = None

    def refused(self, refusal: Refusal, client: tuple[str, int] | None) -> None:
        self.refusals[refusal.code] += 1
        if refusal.code in REFUSES_CONNECTION:
            self._refusing.note(refusal.message, "" if client is None else client[0])
        logger.debug("refused", extra=fields(code=refusal.code, client=client and f"{client[0]}:{client[1]}"))

    def close(self) -> None:
        """There will be no more of them: tell who was refused."""
        self._refusing.close()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(self._interval_s, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        assert self._timer is not None
        # When the loop was held up, what a sender sent in time may not have been read yet: that comes first.
        self._is_late = not self._is_late and now - self._timer.when() > self._interval_s
        self._timer = loop.call_later(self._interval_s, self._sweep, loop)
        if self._is_late:
            return
        # 10,000 connections with nothing due take 0.6 ms.
        due = [connection for connection in self._open if connection.look_at <= now]
        due += [connection for connection in self._turned_away if connection.look_at <= now]
        for connection in due:
            connection.look(now)


class Output:
    """Whether the reader of a connection takes what waits for it. Only asked while there is too much to write on."""

    __slots__ = ("_is_hurried", "_settings", "_since", "_transport", "_waiting_bytes", "look_at")

    def __init__(self, transport: asyncio.WriteTransport, settings: ServerSettings) -> None:
        self._transport = transport
        self._settings = settings
        self._since = 0.0
        self._waiting_bytes = 0
        self._is_hurried = False
        self.look_at = 0.0
        """When to ask `is_stalled` next."""

    @property
    def is_over(self) -> bool:
        return self._transport.get_write_buffer_size() > self._settings.output_bytes_max

    def watch(self, now: float) -> None:
        """Begin to measure: from here on the reader has to take something."""
        self._since = now
        self._waiting_bytes = self._transport.get_write_buffer_size()
        self.look_at = now + self.stretch_s

    @property
    def stretch_s(self) -> float:
        patience_s = self._settings.body_timeout_s
        return min(STALL_S, patience_s) if self.is_over or self._is_hurried else patience_s

    def hurry(self, now: float) -> None:
        """The server stops, and others wait for that: a reader that stands still has less time."""
        self._is_hurried = True
        self.watch(now)

    def is_stalled(self, now: float) -> bool:
        """Whether too little was taken in the stretch that ends now; if not, a new one begins."""
        if now < self.look_at:
            return False
        taken_bytes = self._waiting_bytes - self._transport.get_write_buffer_size()
        if taken_bytes < PROGRESS_BYTES_PER_S * (now - self._since):
            return True
        self.watch(now)
        return False


def end_writing(transport: asyncio.Transport) -> None:
    """Close a connection so that what was written arrives.

    Closing it whole while input is unread makes the kernel reset it, and the peer may lose the answer that says why.
    So only our side is closed; what still comes in has to be read and thrown away until the peer closes too.
    """
    if transport.is_closing():
        return
    if transport.can_write_eof():
        transport.write_eof()
    else:  # TLS
        transport.close()
