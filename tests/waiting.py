"""Waiting for what others bring about: for the condition itself, never for a time in which it should have come about.

A machine may be busy, and a process may stand still for seconds at any line. So a test names what it waits for and
gives up only after so long that nothing but a hang can be the reason.

    eventually(lambda: queue.depth == 3)          # in a thread: looks again and again
    await until(lambda: queue.depth == 3)         # the same on a loop
    async with patience():                        # around something that ends by itself, unless it hangs
        await poll

Where real time has to pass in a process of its own, and something has to be done before it has, no time is long enough
for every machine and few are short enough for a test. There, all is tried again with more of it:

    for attempt in with_more_time(0.1, 2, 30):
        with attempt as lease_s:
            ...                                   # an assertion that fails ends the attempt; in the last one, the test
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

PATIENCE_S = 120.0
"""Longer than any wait takes on the slowest machine, and less than the limit of a whole test in pyproject.toml."""

SPARK_PATIENCE_S = 600
"""The same for what starts Java or runs a query."""

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


class Attempt:
    def __init__(self, amount: float, *, errors: tuple[type[BaseException], ...]) -> None:
        self._amount = amount
        self._errors = errors
        self.has_failed = False

    def __enter__(self) -> float:
        return self._amount

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.has_failed = isinstance(error, self._errors)
        return self.has_failed


def with_more_time(*amounts: float, errors: tuple[type[Exception], ...] = (AssertionError,)) -> Iterator[Attempt]:
    """One attempt for each amount of time, until one succeeds; what fails in the last is raised."""
    for amount in amounts[:-1]:
        attempt = Attempt(amount, errors=errors)
        yield attempt
        if not attempt.has_failed:
            return
    yield Attempt(amounts[-1], errors=())
