"""Giving memory back to the system after much of it was freed.

Three things hold on to it:

- Tables and the calendar keep the room of entries that are gone. They are made anew.
- Small things live in pieces of a mebibyte, which the interpreter gives back by itself once they are empty. So nothing
  that stays may be made with each batch of messages, see `kept_blocks`; what the calendar held is in the way too. So
  are the few that the interpreter keeps to use them again; a server sees to these, see `server/collecting.py`.
- What is larger than half a kibibyte, so bodies and the tables themselves, comes from the C library, which keeps what
  was freed for the next one who asks. `malloc_trim` has it give back every page on which nothing is left.

Whoever asks for memory while it is being given back waits, and gets it from the system anew. So all this is done when
much was freed, and not again for a while: a queue that fills and empties all the time keeps its memory.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable

from smista.core.state import BrokerState

FREED_BYTES = 32 << 20
"""So much must have been freed for it to be worth it ..."""
LAST_BYTES = 8 << 20
"""... or so much, and no more than that is left ..."""
AGAIN_S = 5.0
"""... and so long ago must the last time be."""
SHRUNK_AT_ONCE = 500
"""So many queues are looked at in one turn of the loop."""


def _find_trim() -> Callable[[], object] | None:
    """The C library's own, where there is one: the GNU one has it."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    trim.argtypes = (ctypes.c_size_t,)
    return lambda: trim(0)


_trim = _find_trim()


class MemoryReturn:
    """By how much is held, now and then, it finds when memory should be given back."""

    def __init__(self, state: BrokerState, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock_s = clock_s
        self._top_bytes = 0
        """The most that was held since the last time."""
        self._last_s = clock_s() - AGAIN_S

    def is_due(self, held_bytes: int) -> bool:
        self._top_bytes = max(self._top_bytes, held_bytes)
        now_s = self._clock_s()
        freed_bytes = self._top_bytes - held_bytes
        is_much = freed_bytes >= FREED_BYTES or (freed_bytes >= LAST_BYTES and held_bytes <= LAST_BYTES)
        if not is_much or now_s - self._last_s < AGAIN_S:
            return False
        self._top_bytes = held_bytes
        self._last_s = now_s
        return True

    async def give_back(self) -> None:
        self._state.calendar.shrink()
        for place, queue in enumerate(list(self._state.queues.values()), 1):
            queue.shrink()
            if place % SHRUNK_AT_ONCE == 0:
                await asyncio.sleep(0)
        if _trim is not None:
            await asyncio.to_thread(_trim)
