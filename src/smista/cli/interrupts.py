"""Commands that run an event loop, and Ctrl-C.

The first signal cancels the command, which cleans up: it restores the screen, and removes a queue or broker of its own.
The second one ends the process at once. `asyncio.run` would raise it as a KeyboardInterrupt inside whatever the loop is
doing; that can lose a callback, for which the loop then waits for ever.

The mode of a terminal must be restored even then, so the first signal itself does it; see `restored_by`.
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
_restoring: list[Callable[[], None]] = []


def run(
    main: Coroutine[Any, Any, Result], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> Result:
    """Run `main`; raises `typer.Abort` if a signal cancelled it."""
    is_interrupted = False
    # Signals that are ignored, as under `nohup`, stay ignored.
    before = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}

    async def until_signalled() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel(_number: int, _frame: object) -> None:
            nonlocal is_interrupted
            is_interrupted = True
            for restore in reversed(_restoring):
                restore()
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
def restored_by(restore: Callable[[], None]) -> Iterator[None]:
    """Have the first signal that comes in here call `restore` at once, between any two steps of the program. So it may
    not use anything that can be in the middle of a change, such as the buffer of a stream."""
    _restoring.append(restore)
    try:
        yield
    finally:
        _restoring.remove(restore)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """For something that blocks the loop, such as a question at a terminal: Ctrl-C raises KeyboardInterrupt there."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
