"""Waiting for what others bring about: for the condition itself, never for a time in which it should have come about.

A machine may be busy, and a process may stand still for seconds at any line. So a test names what it waits for and
gives up only after so long that nothing but a hang can be the reason.

    eventually(lambda: queue.depth == 3)          # in a thread: looks again and again
    await until(lambda: queue.depth == 3)         # the same on a loop
    await answers(lambda: client.stats(name), lambda stats: stats.depth == 3)    # where one has to ask for it
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
import inspect
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import TypeVar

PATIENCE_S = 120.0
"""Longer than any wait takes on the slowest machine, and less than the limit of a whole test in pyproject.toml."""

SPARK_PATIENCE_S = 600
"""The same for what starts Java or runs a query."""

EVERY_S = 0.002
TURNS = 1_000

Found = TypeVar("Found")


class _Wait:
    """One wait: its end, and what to say when nothing has come of it by then."""

    def __init__(
        self,
        look: Callable[..., object],
        patience_s: float,
        show: Callable[[], object] | None = None,
    ) -> None:
        self._look = look
        self._show = show
        self._gives_up_at_s = time.monotonic() + patience_s

    def check(self, found: object, *, can_happen: object = True) -> None:
        if can_happen and time.monotonic() < self._gives_up_at_s:
            return
        trouble = "it never happened" if can_happen else "it cannot happen any more"
        shown = "" if self._show is None else f"\n{self._show()}"
        raise AssertionError(f"{trouble}: {_source(self._look)}; the last time: {found!r:.500}{shown}")


def _source(look: Callable[..., object]) -> str:
    """What a function looks at: its lines if it has no name of its own."""
    name = getattr(look, "__qualname__", repr(look))
    if not name.endswith("<lambda>"):
        return str(name)
    try:
        lines, number = inspect.getsourcelines(look)
    except OSError:
        return str(name)
    return f"{' '.join(line.strip() for line in lines)} (line {number} of {inspect.getsourcefile(look)})"


def eventually(
    look: Callable[[], Found],
    *,
    every_s: float = 0.01,
    patience_s: float = PATIENCE_S,
    as_long_as: Callable[[], object] | None = None,
    show: Callable[[], object] | None = None,
) -> Found:
    """What `look` finds, once it finds something; `as_long_as` says whether it still can. `show` gives what helps to
    understand why it does not."""
    wait = _Wait(look, patience_s, show)
    while True:
        can_happen = as_long_as is None or as_long_as()  # asked first: what happened before its end is found
        if found := look():
            return found
        wait.check(found, can_happen=can_happen)
        time.sleep(every_s)


async def until(look: Callable[[], Found]) -> Found:
    """What `look` finds, once it finds something; other tasks run meanwhile. It looks in every turn of the loop at
    first: what is there for a turn only is seen."""
    wait = _Wait(look, PATIENCE_S)
    turns = itertools.count()
    while not (found := look()):
        wait.check(found)
        await asyncio.sleep(0 if next(turns) < TURNS else EVERY_S)
    return found


async def answers(ask: Callable[[], Awaitable[Found]], is_so: Callable[[Found], object]) -> Found:
    """What is answered, once it is so."""
    wait = _Wait(is_so, PATIENCE_S)
    while True:
        async with patience():
            answer = await ask()
        if is_so(answer):
            return answer
        wait.check(answer)
        await asyncio.sleep(EVERY_S)


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
