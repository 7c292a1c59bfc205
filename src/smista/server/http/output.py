"""Whether the reader of a connection takes what waits for it. Only asked while there is too much to write on.

What becomes of those that do not: see `smista.protocols.stalled`.
"""

from __future__ import annotations

from smista.protocols.stalled import STALL_S, Stretch
from smista.server.http.gathering import GatheringTransport
from smista.server.settings import ServerSettings


class Output:
    __slots__ = ("_is_hurried", "_settings", "_stretch", "_transport", "check_at")

    def __init__(self, transport: GatheringTransport, settings: ServerSettings) -> None:
        self._transport = transport
        self._settings = settings
        self._stretch = Stretch()
        self._is_hurried = False
        self.check_at = 0.0
        """When to ask `is_stalled` next."""

    @property
    def is_over(self) -> bool:
        return self._transport.get_write_buffer_size() > self._settings.output_bytes_max

    def watch(self, now: float) -> None:
        """Begin to measure: from here on the reader has to take something."""
        self._stretch.begin(now, self._moved_bytes)
        self.check_at = now + self.stretch_s

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
        if now < self.check_at:
            return False
        if self._stretch.is_too_little(now, self._moved_bytes):
            return True
        self.watch(now)
        return False

    def is_stalled_lately(self, now: float) -> bool:
        return self._stretch.is_too_little_lately(now, self._moved_bytes)

    @property
    def _moved_bytes(self) -> int:
        # Nothing is written meanwhile, so what waits only gets less.
        return -self._transport.get_write_buffer_size()
