"""What comes in on one connection, handed to its protocol piece by piece.

    socket ─▶ `take` ─▶ what is left of it ─▶ a piece ─▶ the protocol
                             │ its time is over, see `smista.protocols.turns`, or the protocol wants nothing now
                             ▼
                        waits; nothing is read from the socket meanwhile

The parsers of HTTP and WebSocket work off whatever they are given in one go, and one read can hold 40,000 pings. So
they are given little at a time; more only of what they know to be plain bytes of a body or a frame.
"""

from __future__ import annotations

from collections.abc import Callable

from smista.protocols.turns import Share, Turns
from smista.server.http.gathering import GatheringTransport

PIECE_MIN = 1 << 10
PIECE_MAX = 16 << 10
LISTENED_BYTES_MAX = 64 << 10
"""Of what comes while the protocol wants nothing, and the end of it has to be seen."""


class Intake:
    def __init__(
        self,
        turns: Turns,
        transport: GatheringTransport,
        feed: Callable[[bytes], None],
        plain_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`plain_bytes` says of how much that comes next nothing has to be read but that it is there."""
        self._share = Share(turns, self._go_on)
        self._transport = transport
        self._feed = feed
        self._plain_bytes = plain_bytes
        self._rest = b""
        self._at = 0
        """How much of it has been handed over."""
        transport.on_resumed = self._go_on

    def take(self, data: bytes) -> None:
        if self._rest:
            self._rest = self.rest + data
            self._at = 0
            self._hold()
        else:
            self._rest = data
            self._go_on()

    @property
    def rest(self) -> bytes:
        """What has come and waits."""
        return self._rest[self._at :]

    def drop(self) -> None:
        """The protocol wants nothing more."""
        self._rest = b""
        self._at = 0

    def close(self) -> None:
        """The connection is gone. Nothing holds another any more, so that all of it is freed at once."""
        self.drop()
        self._transport.on_resumed = self._share.go_on = _do_nothing
        self._feed = _drop
        self._plain_bytes = _nothing

    def _go_on(self) -> None:
        transport = self._transport
        if not self._rest or transport.is_paused:
            pass
        elif not self._share.begin():
            transport.hold(True)
            return
        else:
            self._work()
            if self._share.end():
                transport.hold(True)
                return
        self._hold()

    def _hold(self) -> None:
        """Read on only when all has been handed over, or to see the end of it."""
        transport = self._transport
        transport.hold(len(self._rest) - self._at > (LISTENED_BYTES_MAX if transport.is_listening else 0))

    def _work(self) -> None:
        """Until all is done, the protocol wants no more, or its time is over."""
        transport, share = self._transport, self._share
        while self._rest and not transport.is_paused and not transport.is_closing():
            end = self._at + max(PIECE_MIN, min(PIECE_MAX, self._plain_bytes()))
            data = self._rest[self._at : end]
            if end < len(self._rest):
                self._at = end
            else:
                self.drop()
            self._feed(data)
            if self._rest and share.is_over():
                return


def _do_nothing() -> None:
    pass


def _drop(data: bytes) -> None:
    pass


def _nothing() -> int:
    return 0
