"""The connections that are open, and the one timer that looks after all of them.

A timer per deadline would be a timer per request. Instead each connection says when it is to be checked next, and
one sweep checks those whose time has come; whether something is overdue is decided there, from the state that the
connection is in. A request that comes and goes between two sweeps costs one reading of the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Protocol

from smista.protocols.places import Places
from smista.protocols.refusing import Refusing
from smista.protocols.stalled import Peer
from smista.server.http.refusals import Refusal, no_place, too_many_connections
from smista.server.logs import fields
from smista.server.settings import ServerSettings

LINGER_S = 5.0
"""How long a connection that was ended may take to be gone."""
STOPPING_LINGER_S = 1.0
"""The same while the server stops."""
CHECK_AGAIN_S = 5.0
"""How often a connection is checked that has no deadline: it may have been closed meanwhile and not be gone."""
TURNED_AWAY_MAX = 128
"""How many connections beyond the limit may linger until they have read why they are."""
REFUSES_CONNECTION = frozenset({"malformed_request", "too_many_connections"})
"""The codes of refusals by which somebody does not get in at all; others go for one request."""

logger = logging.getLogger(__name__)


class Reader(Protocol):
    @property
    def output_bytes(self) -> int:
        """What waits for its reader: what was written, and the answer of which that is a piece."""


class Connection(Reader, Peer, Protocol):
    check_at: float
    """When to check it next, in the loop's time."""

    def check(self, now: float) -> None:
        """End what is overdue, and set `check_at` anew."""

    def shut_down(self) -> None:
        """The server stops: end what is idle, and let finish what is not."""

    def cut_off(self) -> None:
        """The server waits no longer."""

    def abort(self) -> None:
        """Be gone."""


class Connections:
    """All connections of one listener, at most `connections_max` at a time. It lives on one loop."""

    def __init__(self, settings: ServerSettings, places: Places) -> None:
        self._settings = settings
        self._places = places
        self._places.count(lambda: len(self._open))
        self._turned_away_max = min(TURNED_AWAY_MAX, self._places.most // 8)
        self.refusals: Counter[str] = Counter()
        """How often something was refused, by the refusal's code."""
        self.kept_bytes = 0
        """What has come in by WebSocket and the application has not taken."""
        self.unread: set[Reader] = set()
        """Those for whom so much waits that nothing more is written. The others have 64 KiB waiting at most."""
        self._open: set[Connection] = set()
        self._turned_away: set[Connection] = set()
        shortest_s = min(settings.header_timeout_s, settings.body_timeout_s, settings.keep_alive_s)
        self._interval_s = min(1.0, shortest_s / 4)
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False
        self._refusing = Refusing(logger, protocol="http")

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def output_bytes(self) -> int:
        """What waits for those who do not read."""
        return sum(connection.output_bytes for connection in self.unread)

    def all(self) -> list[Connection]:
        """Those that are open, and those that linger."""
        return [*self._open, *self._turned_away]

    def full(self) -> Refusal | None:
        """Why there is no room for one more; None where there is."""
        if len(self._open) >= self._settings.connections_max:
            return too_many_connections(self._settings.connections_max)
        return no_place(self._places.why_full) if self._places.is_full else None

    def join(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Look after `connection` until it leaves."""
        self._open.add(connection)
        self._start(loop)

    def turn_away(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> bool:
        """Look after a connection for which there is no room until it has gone; False when even that is too much."""
        if len(self._turned_away) >= self._turned_away_max:
            return False
        self._turned_away.add(connection)
        self._start(loop)
        return True

    def leave(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._turned_away.discard(connection)
        self.unread.discard(connection)
        if self._timer is not None and not self._open and not self._turned_away:
            self._timer.cancel()
            self._timer = None

    def refused(self, refusal: Refusal, client: tuple[str, int] | None) -> None:
        self.refusals[refusal.code] += 1
        if refusal.code in REFUSES_CONNECTION:
            self._refusing.note(refusal.message, "" if client is None else client[0])
        logger.debug("refused", extra=fields(code=refusal.code, client=client and f"{client[0]}:{client[1]}"))

    def close(self) -> None:
        """There will be no more of them: log who was refused."""
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
        due = [connection for connection in self._open if connection.check_at <= now]
        due += [connection for connection in self._turned_away if connection.check_at <= now]
        for connection in due:
            connection.check(now)
