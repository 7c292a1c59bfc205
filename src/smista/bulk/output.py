"""What the process that reads the log writes by itself, a traceback most likely: into the broker's log, as one line.

It has a pipe of its own for that, so whatever writes there, libraries that are not Python's too, the broker's standard
error has nothing else in it.
"""

from __future__ import annotations

import asyncio
import logging

PAUSE_S = 0.2
"""After which what was written until then is taken for whole: a traceback comes in many writes."""
OUTPUT_BYTES_MAX = 64 << 10

logger = logging.getLogger("smista.bulk")


class ProcessOutput(asyncio.Protocol):
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._written = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._written += data
        self._wait_no_more()
        if len(self._written) >= OUTPUT_BYTES_MAX:
            self._log()
        else:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._log)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        self._log()

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _log(self) -> None:
        text = self._written.decode(errors="backslashreplace").strip()
        self._written.clear()
        if text:
            fields = {"pid": self._pid, "text": text}
            logger.error("the process that reads the log in bulk wrote something", extra={"fields": fields})
