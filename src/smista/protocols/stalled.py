"""Clients that stand still: they do not read what waits for them, or do not end what they have begun to send.

To stand still is ordinary. A program whose handler takes a minute, and that has one thread, reads nothing in that
minute. What is kept for one client is bounded by its protocol, so it does no harm by itself. What has to be bounded is
all of them together, whatever they speak, and those who never go on.

    moved 1 KiB/s in a stretch of time   goes on: left alone
    less, memory is not low              left alone as long as its protocol says:
                                           AMQP: until nothing came either for two heartbeats, or for hours
                                           HTTP, WebSocket: for `body_timeout_s`
    less, memory is low                  all of them together keep a quarter of `memory_bytes_max`:
                                         whoever has most is cut off, until it is no more

A sign of life, as a heartbeat or a ping, says that a client is there. It does not make what waits for it any less, so
it does not count where memory is low: else whoever does not read, and sends a heartbeat now and then, keeps everybody
from publishing. Nor does it help that we are the reason, as over AMQP, where who publishes is not read while memory is
low: what is begun could not be ended otherwise. Those who settle messages go last. They free memory, but to settle is
no proof of reading: delivery tags can be guessed.

A quarter, and not nothing: memory is low most often because much is queued. Then slow consumers are the way out of it,
and to cut them off would give back what they are at work on, each time anew.

RabbitMQ cuts off a client when a write to its socket has not been possible for 15 or 30 s, by version, whatever its
heartbeat is. AMQP can wait here, since we stop taking messages for such a client from their queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from smista.errors import LowMemory
from smista.protocols.refusing import Refusing
from smista.service.service import Service

PROGRESS_BYTES_PER_S = 1024
"""What whoever reads or sends has to manage on average."""
STALL_S = 5.0
"""In how short a stretch that is judged where others wait, as for memory."""
SHARE_OF_MEMORY = 4
"""By which memory is divided for what those who stand still may keep when it is low."""
LOOK_S = 1.0

logger = logging.getLogger("smista.stalled")


class Peer(Protocol):
    """The other end of one connection."""

    @property
    def name(self) -> str:
        """For the log: its address, and its user where it has one."""

    @property
    def waiting_bytes(self) -> int:
        """What waits for it to be read, and what has come of what it has not ended."""

    def is_stalled(self) -> bool:
        """Whether it moved too little of that lately. Asked again and again while memory is low."""

    @property
    def has_settled(self) -> bool:
        """Any message lately."""

    def drop(self, why: str) -> None:
        """Cut it off."""


class Unseen:
    """What a server does not see of a peer, and the application that talks to it does."""

    __slots__ = ("settled_at_s", "unwritten_bytes")

    def __init__(self) -> None:
        self.unwritten_bytes: Callable[[], int] = _nothing
        """What waits for it and was not given to the server yet."""
        self.settled_at_s = float("-inf")
        """When it settled a message last, in the loop's time."""

    def forget(self) -> None:
        """The application is done. It and this hold each other."""
        self.unwritten_bytes = _nothing


def _nothing() -> int:
    return 0


class Stretch:
    """A stretch of time, and how much had been moved when it began."""

    __slots__ = ("_bytes", "_recent_bytes", "recent_since", "since")

    def __init__(self) -> None:
        self.begin(0.0, 0)

    def begin(self, now: float, count: int) -> None:
        self.since = now
        self._bytes = count
        self.begin_recent(now, count)

    def begin_recent(self, now: float, count: int) -> None:
        """What counts for `is_too_little_lately` begins anew."""
        self.recent_since = now
        self._recent_bytes = count

    def is_too_little(self, now: float, count: int) -> bool:
        """What was moved until now."""
        return count - self._bytes < PROGRESS_BYTES_PER_S * (now - self.since)

    def is_too_little_lately(self, now: float, count: int) -> bool:
        """Whether it is `STALL_S` ago that enough for so long had been moved, as far as those who ask have seen."""
        if count - self._recent_bytes >= PROGRESS_BYTES_PER_S * STALL_S:
            self.begin_recent(now, count)
        return now - self.recent_since >= STALL_S


class StalledPeers:
    """Of all protocols of a server. It lives on one loop."""

    def __init__(self) -> None:
        self._all: list[Callable[[], Iterable[Peer]]] = []
        self._service: Service | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._dropping = Refusing(logger, "clients that stand still are cut off", level=logging.INFO)

    def look_at(self, peers: Callable[[], Iterable[Peer]]) -> None:
        """At those of one more protocol."""
        self._all.append(peers)

    def begin(self, service: Service) -> None:
        """Look from now on, once a second."""
        self._service = service
        self._look_again()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._dropping.close()

    def note(self, peer: Peer, why: str) -> None:
        """It is cut off."""
        self._dropping.note(why, f"{peer.name}, {peer.waiting_bytes} bytes")

    def _look_again(self) -> None:
        assert self._service is not None
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_again)
        if isinstance(self._service.refusal, LowMemory):
            self.make_room(self._service.memory_bytes_max // SHARE_OF_MEMORY)

    def make_room(self, bytes_max: int) -> None:
        """Memory is low: cut off who has to go, so that the others who stand still keep so much together."""
        found = [
            (peer.has_settled, -peer.waiting_bytes, peer)
            for peers in self._all
            for peer in peers()
            if peer.is_stalled()
        ]
        found.sort(key=lambda each: each[:2])
        waiting_bytes = -sum(negative for _, negative, _ in found)
        for _, negative, peer in found:
            if waiting_bytes <= bytes_max:
                break
            waiting_bytes += negative
            peer.drop("memory is low, and much waits for them to go on")
