"""Clients that do not read what waits for them: how long they are left alone, and who goes when memory is low.

Not to read is ordinary. A program whose handler takes a minute, and that has one thread, reads nothing in that minute;
without a prefetch its socket is full all the time. What waits for it here is bounded (see `output`), so it does no
harm by itself. What has to be bounded is all of them together, and those who never come back.

    took 1 KiB/s in a stretch of `output_timeout_s`    a reader: left alone
    took less, memory is not low                       left alone, unless it is gone:
        heartbeats agreed on                             nothing at all came, or was taken, for two intervals
        none                                             the same for `SILENCE_S_MAX`
    took less, memory is low                           all of them together keep a quarter of `memory_bytes_max`:
                                                       whoever has most waiting is cut off, until it is no more

A sign of life, as a heartbeat, says that a client is there. It does not make what waits for it any less, so it does not
count where memory is low: else whoever does not read, and sends a heartbeat now and then, keeps everybody from
publishing. Those who settle messages go last. They free memory, but to settle is no proof of reading: delivery tags can
be guessed.

A quarter, and not nothing: memory is low most often because much is queued. Then slow consumers are the way out of it,
and to cut them off would give back what they are at work on, each time anew.

RabbitMQ cuts off a client when a write to its socket has not been possible for 15 or 30 s, by version, whatever its
heartbeat is. We can wait, since we stop taking messages for it from their queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from smista.errors import LowMemory
from smista.protocols.amqp.served import Reader, ServedConnection
from smista.service.service import Service

SILENCE_S_MAX = 4 * 3600.0
"""How long a client that agreed on no heartbeats may neither read nor say anything."""
SHARE_OF_MEMORY = 4
"""By which memory is divided for what they may keep when it is low."""
LOOK_S = 1.0


class NonReaders:
    """Those of one server who took too little of what waits for them in their last stretch."""

    def __init__(self, service: Service, connections: Collection[ServedConnection]) -> None:
        """`connections` are all there are."""
        self._service = service
        self._all = connections
        self._loop = asyncio.get_running_loop()
        self._readers: set[Reader] = set()
        self._timer = self._loop.call_later(LOOK_S, self._look_again)

    def add(self, reader: Reader) -> None:
        self._readers.add(reader)

    def discard(self, reader: Reader) -> None:
        self._readers.discard(reader)

    def close(self) -> None:
        self._timer.cancel()

    def _look_again(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look_again)
        if isinstance(self._service.refusal, LowMemory):
            self.make_room()

    def make_room(self) -> None:
        """Memory is low: cut off who has to go."""
        for each in self._all:
            each.reader.watch()
        # Whoever has read since is no longer one of them, though its stretch is not over.
        waiting = [(one.has_settled, -one.output_bytes, one) for one in self._readers if not one.has_taken_enough]
        waiting.sort(key=lambda found: found[:2])
        waiting_bytes = sum(-negative for _, negative, _ in waiting)
        for _, negative, reader in waiting:
            if waiting_bytes <= self._service.memory_bytes_max // SHARE_OF_MEMORY:
                break
            waiting_bytes += negative
            reader.cut_off(f"memory is low, and {-negative} bytes wait for it")
