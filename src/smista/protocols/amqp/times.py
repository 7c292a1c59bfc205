"""The times of one connection: of the handshake, then of heartbeats, then of the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from smista.protocols.amqp.client import Client

CLOSE_TIMEOUT_S = 5.0
"""How long the other side has to agree to the end."""
MISSED_MAX = 4
"""So many half intervals without a sign of life, and a client is gone."""


class Times:
    __slots__ = ("_client", "_is_read", "_loop", "_missed_count", "_timer", "has_come")

    def __init__(self, client: Client, is_read: Callable[[], bool]) -> None:
        """`is_read` says whether anything that the client sends would be noticed."""
        self._client = client
        self._is_read = is_read
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.has_come = True
        """Anything at all, since the last heartbeat went out."""
        self._missed_count = 0

    def begin(self) -> None:
        """The client has to come in within its time."""
        self._arm(self._client.shared.settings.handshake_timeout_s, self._not_opened)

    def opened(self) -> None:
        """The handshake is over."""
        heartbeat_s = self._heartbeat_s
        if heartbeat_s:
            self._arm(heartbeat_s / 2, self.beat)
        else:
            self.stop()

    def end(self) -> None:
        """The broker has sent all that it has to; the client has to answer within its time."""
        self._arm(CLOSE_TIMEOUT_S, self._client.driver.abort)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, wait_s: float, done: Callable[[], None]) -> None:
        self.stop()
        self._timer = self._loop.call_later(wait_s, done)

    @property
    def _heartbeat_s(self) -> int:
        return self._client.connection.handshake.heartbeat_s

    def _not_opened(self) -> None:
        shared = self._client.shared
        timeout_s = shared.settings.handshake_timeout_s
        shared.refusing.note(f"no handshake within {timeout_s:g} s", self._client.address)
        self._client.driver.abort()

    def beat(self) -> None:
        """Twice an interval: say that we are here, and see whether the other side is."""
        client = self._client
        is_missed = self._is_read() and not self.has_come
        self._missed_count = self._missed_count + 1 if is_missed else 0
        self.has_come = False
        if self._missed_count >= MISSED_MAX:
            client.shared.closing.note(f"no heartbeat within {2 * self._heartbeat_s} s", client.address)
            client.driver.abort()
            return
        client.connection.beat()
        client.driver.flush()
        self._arm(self._heartbeat_s / 2, self.beat)
