"""Whether the reader of a connection takes what waits for it. Only asked while there is too much to write on."""

from __future__ import annotations

from smista.server.http.gathering import GatheringTransport
from smista.server.settings import ServerSettings

PROGRESS_BYTES_PER_S = 1024
"""What a sender or reader that others wait for has to manage on average."""
STALL_S = 5.0
"""How long a reader may stand still while more than `output_bytes_max` waits for it, and a reader or sender while the
server stops."""


class Output:
    __slots__ = ("_is_hurried", "_settings", "_since", "_transport", "_waiting_bytes", "check_at")

    def __init__(self, transport: GatheringTransport, settings: ServerSettings) -> None:
        self._transport = transport
        self._settings = settings
        self._since = 0.0
        self._waiting_bytes = 0
        self._is_hurried = False
        self.check_at = 0.0
        """When to ask `is_stalled` next."""

    @property
    def is_over(self) -> bool:
        return self._transport.get_write_buffer_size() > self._settings.output_bytes_max

    def watch(self, now: float) -> None:
        """Begin to measure: from here on the reader has to take something."""
        self._since = now
        self._waiting_bytes = self._transport.get_write_buffer_size()
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
        taken_bytes = self._waiting_bytes - self._transport.get_write_buffer_size()
        if taken_bytes < PROGRESS_BYTES_PER_S * (now - self._since):
            return True
        self.watch(now)
        return False
