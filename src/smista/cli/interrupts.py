"""Commands that run an event loop, and Ctrl-C.

The first signal cancels the command, which takes itself apart in order: the screen is given back, a queue or a broker
of its own is removed. The second one ends the process where it is. `asyncio.run` would raise it as a KeyboardInterrupt
inside whatever the loop is doing; a callback may get lost with that, and the loop waits for it for ever.

What must not be left behind even then, a terminal in a mode of its own, is put right by the first signal itself; see
`tidied_by`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import typer

Result = TypeVar("Result")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_tidying: list[Callable[[], None]] = []


def run(
    main: Coroutine[Any, Any, Result], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> Result:
    """What `main` returns; `typer.Abort` if a signal cancelled it."""
    is_interrupted = False
    # What is ignored, as below `nohup`, stays so.
    before = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}

    async def until_signalled() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel(_number: int, _frame: object) -> None:
            nonlocal is_interrupted
            is_interrupted = True
            for tidy in reversed(_tidying):
                tidy()
            for number in before:
                signal.signal(number, signal.SIG_DFL)
            loop.call_soon_threadsafe(task.cancel)

        for number in before:
            signal.signal(number, cancel)
        return await main

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(until_signalled())
    except asyncio.CancelledError:
        if is_interrupted:
            raise typer.Abort from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def tidied_by(tidy: Callable[[], None]) -> Iterator[None]:
    """Have `tidy` called by the first signal that comes in here, at once: between any two steps of what is being done,
    so it may not use what is in the middle of one, such as a stream's buffer."""
    _tidying.append(tidy)
    try:
        yield
    finally:
        _tidying.remove(tidy)


@contextlib.contextmanager
def heard_at_once() -> Iterator[None]:
    """For what holds up the loop, as a question to somebody at a terminal does: Ctrl-C is a KeyboardInterrupt there."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
