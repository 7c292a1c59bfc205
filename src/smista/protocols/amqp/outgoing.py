"""What goes out of a connection, and how it is held back while the other side does not read.

    frames of one turn ─▶ `out` ─▶ one write ─▶ the transport's buffer ─▶ the socket
                                                 │ above 1 MiB: nothing is delivered any more
                                                 └ above `output_bytes_max`: nothing is read from it any more either

So a consumer without a limit on a long queue takes the memory of its window and no more, and so does a client that asks
and asks and never reads an answer. Both stop short of a deadlock: a client that publishes and is slow to read what is
delivered to it is still read from.

What waits is memory that nobody else has, so it does not wait for ever: see `non_readers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from smista.engine import Receipt
from smista.protocols.amqp import frames
from smista.protocols.amqp.methods import Method

if TYPE_CHECKING:
    from smista.protocols.amqp.channel import Channel
    from smista.protocols.amqp.consuming import Consumer
    from smista.protocols.amqp.door import AmqpDoor

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
        self._silent_stretches = 0
        """In how many of them, one after the other, nothing came and hardly anything was taken."""
        self._has_settled = self._had_settled = False
        """In this stretch, and in the one before."""
        self._written_bytes = 0
        self._taken_bytes = 0
        """Of those, when it began."""
        self._stall_timer: asyncio.TimerHandle | None = None
        """When it is over; None while nobody has to know."""

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
        self.watch_output()

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

    def watch_output(self) -> None:
        """Look from now on how much of what waits is taken, as long as anything waits."""
        if self._stall_timer is None and not self._is_over and self.output_bytes:
            self._begin_stretch()

    def _begin_stretch(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._taken_bytes = self._written_bytes - self._transport.get_write_buffer_size()
        self._had_settled, self._has_settled = self._has_settled, False
        self._has_come = False
        self._stall_timer = self._loop.call_later(self.door.settings.output_timeout_s, self._look_at_output)

    def _stop_watching_output(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._silent_stretches = 0
        self.door.non_readers.discard(self)

    @property
    def has_taken_enough(self) -> bool:
        """Of what waits, in the stretch that has begun last, for all of it."""
        taken_bytes = self._written_bytes - self._transport.get_write_buffer_size() - self._taken_bytes
        return taken_bytes >= PROGRESS_BYTES_PER_S * self.door.settings.output_timeout_s

    @property
    def has_settled(self) -> bool:
        """Any message lately."""
        return self._has_settled or self._had_settled

    @property
    def _patience_s(self) -> float:
        """How long nothing may come from it, and hardly anything be taken."""
        raise NotImplementedError

    def _look_at_output(self) -> None:
        """A stretch is over: has enough been taken?"""
        timeout_s = self.door.settings.output_timeout_s
        if not self.output_bytes:
            self._stop_watching_output()
            return
        if self.has_taken_enough:
            self._silent_stretches = 0
            self.door.non_readers.discard(self)
        else:
            # Where we do not read, nothing can come. That counts only where its not reading is the reason.
            is_silent = self._is_transport_full and not self._has_come and (self.is_flooded or not self._is_held)
            self._silent_stretches = self._silent_stretches + 1 if is_silent else 0
            if self._silent_stretches * timeout_s >= self._patience_s:
                self.cut_off(f"it neither read nor said anything for {self._silent_stretches * timeout_s:g} s")
                return
            self.door.non_readers.add(self)
        self._begin_stretch()

    def cut_off(self, why: str) -> None:
        raise NotImplementedError

    def settled(self) -> None:
        """Messages that were delivered here have been settled."""
        self._has_settled = True

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
        self._has_settled = True
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
