"""One connection as its server and the other connections know it."""

from __future__ import annotations

from typing import Protocol

from smista.protocols.stalled import Peer


class ServedConnection(Protocol):
    @property
    def peer(self) -> Peer: ...

    @property
    def kept_bytes(self) -> int:
        """What has come in and is not the broker's yet."""

    def stop_reading(self) -> None:
        """The broker is stopping: nothing more is taken, what was taken is still answered."""

    async def until_answered(self) -> None:
        """Returns when what was taken is on disk and confirmed, or cannot be."""

    def force_close(self) -> None:
        """The broker is stopping: say so, and wait for the other side to agree."""

    def abort(self) -> None:
        """End it, whatever is still on its way."""
