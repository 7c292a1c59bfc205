"""Slices: how much is done in one turn of the loop, and long work cut up accordingly.

The rest of the loop has its turns in between. Where several do long work at the same time, see `fair_turns` too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

SLICE = 100
SLICE_S = 0.003
"""After so long everybody else has a turn, however little was done."""
BREATH_S = 0.001
"""A pause between slices. The log's thread needs the interpreter to itself now and then, or nothing becomes durable
meanwhile: with no pause a publish beside a million expiries waited 1.2 s, now some 20 ms."""
STEP_BYTES_MAX = 32 << 20
"""How many bytes of bodies enter in one step, and so in one block, unless one body alone is larger. The log takes
blocks of up to 512 MiB."""

T = TypeVar("T")


async def in_slices(items: Sequence[T], work: Callable[[Sequence[T]], int]) -> None:
    """Do something with all of them, in order, and let the loop go round in between. `work` returns with how many of
    those it was given it is done; the others come again, after a pause."""
    end_s = time.perf_counter() + SLICE_S
    start = 0
    while start < len(items):
        if time.perf_counter() > end_s:
            await asyncio.sleep(BREATH_S)
            end_s = time.perf_counter() + SLICE_S
        some = items[start : start + SLICE]
        done = work(some)
        assert done > 0, "work on a slice has to get on, or it never ends"
        start += done
        if done < len(some):
            end_s = 0.0
