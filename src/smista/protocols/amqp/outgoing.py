"""What goes out of a connection, and how it is held back while the other side does not read.

    frames of one turn ─▶ `out` ─▶ one write ─▶ the transport's buffer ─▶ the socket
                                                 │ above 1 MiB: nothing is delivered any more
                                                 │ above `output_bytes_max`: nothing is read from it any more either
                                                 └ either of them, and hardly anything is taken for long: it is cut off

So a consumer without a limit on a long queue takes the memory of its window and no more, and so does a client that asks
and asks and never reads an answer. Both stop short of a deadlock: a client that publishes and is slow to read what is
delivered to it is still read from.

What waits is memory that nobody else has, so it does not wait for ever: whoever takes too little of it in a stretch of
`output_timeout_s` is cut off, as from RabbitMQ after 15 s. A slow consumer is not, as long as anything comes from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from smista.engine import Receipt
from smista.protocols.amqp import frames
from smista.protocols.amqp.methods import Method

if TYPE_CHECKING:
    from smista.protocols.amqp.channel import Channel
    from smista.protocols.amqp.consuming import Consumer
    from smista.protocols.amqp.door import AmqpDoor

logger = logging.getLogger("smista.amqp")

WRITE_HIGH_BYTES = 1 << 20
PROGRESS_BYTES_PER_S = 1024
"""What has to be taken on average, as over HTTP."""
OUT_BYTES_MAX = 4 << 20
"""When messages of so many bytes have been put into `out`, nobody delivers more before they have been written."""


class Outgoing:
    def __init__(self, door: AmqpDoor) -> None:
        self.door = door
        self.channels: dict[int, Channel] = {}
        self.out: list[bytes] = []
        """What goes out with the next write."""
        self.is_full = False
        """The other side reads too slowly: nothing is delivered to it for now."""
        self.is_flooded = False
        """More answers wait to be read than we keep: nothing is read from it for now."""
        self.wide_consumers: set[Consumer] = set()
        """Those whose credit is opened bit by bit, as what was delivered to them goes out."""
        self.cancelled: list[Consumer] | None = None
        """While an answer is being made: those whose queue has gone. They hear of it after the answer, as from
        RabbitMQ: a client that deletes the queue it consumes from waits for that first."""
        self.work = 0
        """How much has been done since somebody looked at the clock."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._acknowledged: list[Receipt] = []
        self._handed_over: list[Receipt] = []
        self._undelivered: list[Receipt] = []
        self._out_bytes = 0
        self._is_flush_planned = False
        self._is_transport_full = False
        self._is_held = False
        """For whatever reason, no frame is looked at."""
        self._is_closing = False
        self._is_over = False
        self._has_come = False
        """Anything, since the stretch began in which something has to be taken."""
        self._written_bytes = 0
        self._taken_bytes = 0
        """Of those, when it began."""
        self._stall_timer: asyncio.TimerHandle | None = None
        """When it is over; None while there is room for more."""

    def limit_output(self) -> None:
        high = min(WRITE_HIGH_BYTES, self.door.settings.output_bytes_max)
        self._transport.set_write_buffer_limits(high=high)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _send(self, method: Method) -> None:
        self.out.append(frames.method_frame(0, method))

    def flush_soon(self) -> None:
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._loop.call_soon(self.flush)

    def delivered(self, out_bytes: int) -> None:
        """Messages of so many bytes, more or less, were put into `out`."""
        self._out_bytes += out_bytes
        if self._out_bytes > OUT_BYTES_MAX and not self.is_full:
            self._set_full(True)
        self.flush_soon()

    def flush(self) -> None:
        self._is_flush_planned = False
        self.flush_acknowledged()
        if self.out:
            out, self.out = self.out, []
            # After our connection.close nothing may follow.
            if not self._is_closing and not self._is_over:
                data = b"".join(out)
                self._written_bytes += len(data)
                self._transport.write(data)
        if self._out_bytes:
            self._has_delivered()
        elif self.wide_consumers:
            self._open_windows()
        if self._is_transport_full and not self.is_flooded and not self._is_closing and not self._is_over:
            self._look_at_flood()

    # -- holding back -------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._is_transport_full = True
        self._set_full(True)
        if self._stall_timer is None and not self._is_over:
            self._watch_output()

    def resume_writing(self) -> None:
        self._is_transport_full = False
        self._stop_watching_output()
        self._set_full(False)
        self._open_windows()
        if self.is_flooded:
            self.is_flooded = False
            # Not from here: this may be called in the middle of a write.
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Read on, if there is nothing else to wait for."""
        raise NotImplementedError

    def _has_delivered(self) -> None:
        """What was delivered has gone to the socket, or never will."""
        self._out_bytes = 0
        handed_over, self._handed_over = self._handed_over, []
        if self._is_over or self._is_closing:
            return
        if handed_over and self._is_broker_well:
            self.door.broker.acknowledge_now(handed_over)
        if not self._is_transport_full:
            self._set_full(False)
            self._open_windows()

    def _open_windows(self) -> None:
        if not self.is_full and self._is_broker_well:
            for consumer in self.wide_consumers:
                consumer.open_window()

    def _look_at_flood(self) -> None:
        if self._transport.get_write_buffer_size() > self.door.settings.output_bytes_max:
            self.is_flooded = self._is_held = True
            self._transport.pause_reading()

    @property
    def output_bytes(self) -> int:
        """What waits to be taken."""
        return self._out_bytes + (0 if self._is_over else self._transport.get_write_buffer_size())

    def _watch_output(self) -> None:
        self._stop_watching_output()
        self._taken_bytes = self._written_bytes - self._transport.get_write_buffer_size()
        self._has_come = False
        self._stall_timer = self._loop.call_later(self.door.settings.output_timeout_s, self._look_at_output)

    def _stop_watching_output(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _look_at_output(self) -> None:
        """A stretch is over: has enough been taken? Where nothing is read, nothing can come."""
        taken_bytes = self._written_bytes - self._transport.get_write_buffer_size() - self._taken_bytes
        is_silent = not self._has_come and not self._is_held
        timeout_s = self.door.settings.output_timeout_s
        if taken_bytes < PROGRESS_BYTES_PER_S * timeout_s and (self.is_flooded or is_silent):
            logger.info("a client that did not read for %g s was cut off", timeout_s)
            self.abort()
            return
        self._watch_output()

    def abort(self) -> None:
        """Cut it off, whatever is still on its way."""
        raise NotImplementedError

    def _set_full(self, is_full: bool) -> None:
        if is_full != self.is_full:
            self.is_full = is_full
            if self._is_broker_well:
                for channel in self.channels.values():
                    channel.hold_back(is_full)

    # -- acknowledging ------------------------------------------------------------------------------------------------

    def acknowledge(self, receipts: Iterable[Receipt]) -> None:
        """With what else is acknowledged in this read."""
        self._acknowledged += receipts

    def acknowledge_soon(self, receipts: list[Receipt]) -> None:
        """What was delivered to somebody who will not acknowledge it, once it is on its way out."""
        self._handed_over += receipts

    def take_unwritten(self) -> list[Receipt]:
        """What was to be acknowledged once it was written, where it may never be; and what could not be written."""
        unwritten = self._handed_over + self._undelivered
        self._handed_over, self._undelivered = [], []
        return unwritten

    def delivery_failed(self, receipts: list[Receipt]) -> None:
        """By a fault of ours they were not delivered: they go back with the connection, which has to end."""
        self._undelivered += receipts
        self._loop.call_soon(self._fail)

    def _fail(self) -> None:
        raise NotImplementedError

    def flush_acknowledged(self) -> None:
        if self._acknowledged:
            receipts, self._acknowledged = self._acknowledged, []
            if self._is_broker_well:
                self.door.broker.acknowledge_now(receipts)

    @property
    def _is_broker_well(self) -> bool:
        return self.door.broker.failure is None and not self.door.broker.is_closed
