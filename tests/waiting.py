"""Waiting for what others bring about: for the condition itself, never for a time in which it should have come about.

A machine may be busy, and a process may stand still for seconds at any line. So a test names what it waits for and
gives up only after so long that nothing but a hang can be the reason.

    eventually(lambda: queue.depth == 3)          # in a thread: looks again and again
    await until(lambda: queue.depth == 3)         # the same on a loop
    async with patience():                        # around something that ends by itself, unless it hangs
        await poll
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 120.0
"""Longer than any wait takes on the slowest machine, and less than the limit of a whole test in pyproject.toml."""

Found = TypeVar("Found")


def eventually(look: Callable[[], Found], *, every_s: float = 0.01) -> Found:
    """What `look` finds, once it finds something."""
    gives_up_at_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < gives_up_at_s, "it never happened"
        time.sleep(every_s)
    return found


async def until(look: Callable[[], Found], *, every_s: float = 0.002) -> Found:
    """What `look` finds, once it finds something; other tasks run meanwhile."""
    gives_up_at_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < gives_up_at_s, "it never happened"
        await asyncio.sleep(every_s)
    return found


def patience() -> asyncio.Timeout:
    return asyncio.timeout(PATIENCE_S)
