"""One connection as its server and the other connections know it."""

from __future__ import annotations

from typing import Protocol


class Reader(Protocol):
    """Who should read what waits for it: see `progress`."""

    @property
    def output_bytes(self) -> int:
        """What has left the broker and waits to be taken."""

    @property
    def has_taken_enough(self) -> bool:
        """Of that, lately."""

    @property
    def has_settled(self) -> bool:
        """Any message lately."""

    def watch(self) -> None:
        """Measure from now on how much of what waits is taken, as long as anything waits."""

    def cut_off(self, why: str) -> None:
        """It does not read, and has to go."""


class ServedConnection(Protocol):
    @property
    def reader(self) -> Reader: ...

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
