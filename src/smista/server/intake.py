"""What comes in on one connection, handed to its protocol piece by piece.

    socket ─▶ `take` ─▶ what is left of it ─▶ a piece ─▶ the protocol
                             │ its time is over, see `smista.protocols.turns`, or the protocol wants nothing now
                             ▼
                        waits; nothing is read from the socket meanwhile

The parsers of HTTP and WebSocket work off whatever they are given in one go, and one read can hold 40,000 pings. So
they are given little at a time: more where it goes fast, as bodies do, less where it does not.
"""

from __future__ import annotations

from collections.abc import Callable

from smista.protocols.turns import SLICE_S, Share, Turns
from smista.server.gathering import GatheringTransport

PIECE_MIN = 1 << 10
PIECE_MAX = 16 << 10


class Intake:
    def __init__(self, turns: Turns, transport: GatheringTransport, feed: Callable[[bytes], None]) -> None:
        self._turns = turns
        self._share = Share(turns, self._go_on)
        self._transport = transport
        self._feed = feed
        self._rest = b""
        self._piece_bytes = PIECE_MIN * 4
        transport.on_resumed = self._go_on

    def take(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
        else:
            self._rest = data
            self._go_on()

    def drop(self) -> None:
        """The protocol wants nothing more."""
        self._rest = b""

    def close(self) -> None:
        """The connection is gone. Nothing holds another any more, so that all of it is freed at once."""
        self._rest = b""
        self._transport.on_resumed = self._share.go_on = _do_nothing
        self._feed = _drop

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
        transport.hold(bool(self._rest))

    def _work(self) -> None:
        """Until all is done, the protocol wants no more, or its time is over."""
        transport, share = self._transport, self._share
        while self._rest and not transport.is_paused and not transport.is_closing():
            began_s = self._turns.now_s()
            data, self._rest = self._rest, b""
            piece_bytes = self._piece_bytes
            if len(data) > piece_bytes:
                data, self._rest = data[:piece_bytes], data[piece_bytes:]
            self._feed(data)
            took_s = self._turns.now_s() - began_s
            if took_s > SLICE_S / 2:
                self._piece_bytes = max(PIECE_MIN, piece_bytes // 2)
            elif len(data) == piece_bytes and took_s < SLICE_S / 8:
                self._piece_bytes = min(PIECE_MAX, piece_bytes * 2)
            if self._rest and share.is_over():
                return


def _do_nothing() -> None:
    pass


def _drop(data: bytes) -> None:
    pass
