"""What goes out of a connection, and how it is held back while the other side does not read.

    frames of one turn ─▶ `out` ─▶ one write ─▶ the transport's buffer ─▶ the socket
                                                 │ above 1 MiB: nothing is delivered any more
                                                 └ above `output_bytes_max`: nothing is read from it any more either

So a consumer without a limit on a long queue takes the memory of its window and no more, and so does a client that asks
and asks and never reads an answer. Both stop short of a deadlock: a client that publishes and is slow to read what is
delivered to it is still read from.

What waits is memory that nobody else has, so it does not wait for ever: see `smista.protocols.stalled`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from smista.protocols.amqp.client import Client
from smista.protocols.amqp.handler import Handler

WRITE_HIGH_BYTES = 1 << 20
OUT_BYTES_MAX = 4 << 20
"""When messages of so many bytes have been put into `out`, nobody delivers more before they have been written."""


class Output:
    __slots__ = (
        "_bytes_max",
        "_client",
        "_connection",
        "_delivered_bytes",
        "_go_on",
        "_handler",
        "_is_flush_planned",
        "_loop",
        "_transport",
        "_written_bytes",
        "is_flooded",
        "is_full",
        "is_transport_full",
    )

    def __init__(self, client: Client, handler: Handler, go_on: Callable[[], None]) -> None:
        self._client = client
        self._connection = client.connection
        self._handler = handler
        self._go_on = go_on
        self._loop = asyncio.get_running_loop()
        self._bytes_max = client.shared.settings.output_bytes_max
        self._transport: asyncio.Transport | None = None
        """None too once nothing is written any more."""
        self.is_full = False
        """The other side reads too slowly: nothing is delivered to it for now."""
        self.is_flooded = False
        """More answers wait to be read than we keep: nothing is read from it for now."""
        self.is_transport_full = False
        self._delivered_bytes = 0
        self._written_bytes = 0
        """All that was ever given to the transport."""
        self._is_flush_planned = False

    def begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=min(WRITE_HIGH_BYTES, self._bytes_max))

    def end(self) -> None:
        """Nothing more is written."""
        self._transport = None

    @property
    def waiting_bytes(self) -> int:
        """In the transport's buffer."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def all_bytes(self) -> int:
        """What waits to be taken."""
        return self._delivered_bytes + self.waiting_bytes

    @property
    def taken_bytes(self) -> int:
        """What was ever taken."""
        return self._written_bytes - self.waiting_bytes

    # -- writing ------------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._loop.call_soon(self.flush)

    def delivered(self, out_bytes: int) -> None:
        """Messages of so many bytes, more or less, were put into `out`."""
        self._delivered_bytes += out_bytes
        if self._delivered_bytes > OUT_BYTES_MAX and not self.is_full:
            self._set_full(True)
        self.flush_soon()

    def flush(self) -> None:
        self._is_flush_planned = False
        self._client.flush_acknowledged()
        data = self._connection.take_output()
        if data and self._transport is not None:
            self._written_bytes += len(data)
            self._transport.write(data)
        if self._delivered_bytes:
            self._written()
        elif self._client.windowed:
            self._open_windows()
        if self.is_transport_full and not self.is_flooded and self._connection.is_open:
            self._stop_a_flood()

    def _written(self) -> None:
        """What was delivered has gone to the socket, or never will."""
        self._delivered_bytes = 0
        if not self._connection.is_open:
            return
        self._client.written()
        if not self.is_transport_full:
            self._set_full(False)
            self._open_windows()

    def _open_windows(self) -> None:
        if not self.is_full:
            self._client.open_windows()

    # -- holding back -------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self.is_transport_full = True
        self._set_full(True)

    def resume(self) -> None:
        self.is_transport_full = False
        self._set_full(False)
        self._open_windows()
        if self.is_flooded:
            self.is_flooded = False
            # Not from here: this may be called in the middle of a write.
            self._loop.call_soon(self._go_on)

    def _set_full(self, is_full: bool) -> None:
        if is_full != self.is_full:
            self.is_full = is_full
            self._handler.hold_back(is_full)

    def _stop_a_flood(self) -> None:
        if self._transport is not None and self.waiting_bytes > self._bytes_max:
            self.is_flooded = self._connection.is_paused = True
            self._transport.pause_reading()
