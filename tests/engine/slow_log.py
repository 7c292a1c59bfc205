"""A log whose reads wait until a test lets them go on."""

from __future__ import annotations

import threading

from smista.log import Log
from tests.engine.bench import KeptLog
from tests.waiting import PATIENCE_S, until


class SlowLog(KeptLog):
    def __init__(self) -> None:
        super().__init__()
        self._may_read = threading.Event()
        self._may_read.set()
        self._reading_count = 0

    def hold_reads(self) -> None:
        self._may_read.clear()

    def let_read(self) -> None:
        self._may_read.set()

    async def reading(self) -> None:
        """Until somebody waits for a block."""
        await until(lambda: self._reading_count > 0)

    def read(self, position: int) -> bytes:
        if not self._may_read.is_set():
            self._reading_count += 1
            assert self._may_read.wait(PATIENCE_S), "nobody let it read"
            self._reading_count -= 1
        return super().read(position)


class SlowPlace:
    def __init__(self) -> None:
        self.log = SlowLog()

    def open(self) -> Log:
        return self.log
