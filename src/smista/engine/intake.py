"""Intake: whether more may come in just now, and what counts against it."""

from __future__ import annotations

from collections.abc import Callable

from smista.engine.running import Running
from smista.errors import BrokerError


class Intake:
    def __init__(self, running: Running) -> None:
        self._keeper = running.keeper

    @property
    def refusal(self) -> BrokerError | None:
        """Why publishes are refused just now; None while they are taken."""
        return self._keeper.pressure.refusal

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be written that publishers should be held back."""
        return self._keeper.is_behind

    async def room(self) -> None:
        """Wait until the log has caught up far enough to take more."""
        await self._keeper.room()

    @property
    def memory_bytes_max(self) -> int:
        return self._keeper.pressure.memory_bytes_max

    def count_in_memory(self, held_bytes: Callable[[], int], *, is_going_out: bool = False) -> None:
        """What a protocol holds that has not become messages, or that its clients have not read yet, counts in
        `memory_bytes_max` too."""
        (self._keeper.going_out if is_going_out else self._keeper.held_elsewhere).append(held_bytes)
