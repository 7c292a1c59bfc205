"""Batches of rows that are unfolded just now: each is in memory as a whole, and counts in `memory_bytes_max`.

On the wire they may have been a thousandth of that. Threads come and go here, also one that is given up.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Iterator

from smista.service import arrow


class Unfolded:
    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._readers = 0
        self.bytes = 0

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While streams are read. When nobody else does, Arrow gives back what it keeps for the next one."""
        with self._changing:
            self._readers += 1
        try:
            yield
        except BaseException as error:
            # Its frames would keep the batch for as long as anybody has the error.
            traceback.clear_frames(error.__traceback__)
            raise
        finally:
            with self._changing:
                self._readers -= 1
                is_last = not self._readers
            if is_last:
                arrow.load().default_memory_pool().release_unused()

    @contextlib.contextmanager
    def batch(self, size: int) -> Iterator[None]:
        """While a batch of that size is there."""
        with self._changing:
            self.bytes += size
        try:
            yield
        finally:
            with self._changing:
                self.bytes -= size
