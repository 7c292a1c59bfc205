"""Runs coroutines on an event loop in another thread and waits for them.

The synchronous client has one loop in one daemon thread. It ends with `close`, or with the interpreter.

The loop is given a function that makes the coroutine, not a coroutine: a thread can be interrupted between any two
calls, and a coroutine that was made but not handed over would never be awaited.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from smista.client.errors import ClientClosed

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]
"""Called on the loop."""
_JOIN_TIMEOUT_S = 5.0
_SIGNALS_S = 0.5
"""How long a thread waits before it looks whether a signal came."""


def acquire(lock: threading.Lock | threading.RLock, timeout_s: float | None = None) -> bool:
    """Acquire a lock; False if it took longer than `timeout_s`.

    A thread that waits for a lock without end may never see a Ctrl-C: one that comes just before it begins to wait, or
    that the system gives to another thread, does not wake it. So it wakes by itself from time to time.
    """
    deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not lock.acquire(timeout=max(0.0, min(_SIGNALS_S, deadline_s - time.monotonic()))):
        if time.monotonic() >= deadline_s:
            return False
    return True


class Call(Generic[T]):
    """A coroutine that a loop runs and a thread waits for.

    Not a `concurrent.futures.Future`: a thread that is interrupted (Ctrl-C, a signal handler that raises) at the wrong
    moment leaves it locked, and then the loop waits for ever. Here both share a single lock, which only the loop
    releases.
    """

    __slots__ = ("_done", "_error", "_is_unwanted", "_loop", "_result", "_task", "_work")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Work[T]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._done = threading.Lock()
        self._done.acquire()
        self._result: T
        self._error: BaseException | None = None
        self._is_unwanted = False

    @property
    def is_done(self) -> bool:
        return not self._done.locked()

    def wait(self) -> T:
        """Wait; returns or raises what the coroutine does."""
        try:
            acquire(self._done)
            self._done.release()
        except BaseException:
            # Most likely Ctrl-C: nobody waits for the result any more.
            self._is_unwanted = True
            call_on(self._loop, self._cancel)
            raise
        if self._error is not None:
            raise self._error
        return self._result

    def start(self) -> None:
        """On the loop."""
        if self._is_unwanted:
            return
        try:
            coroutine = self._work()
        except BaseException as error:
            # Most likely wrong arguments: an error for the caller.
            self._error = error
            self._done.release()
            return
        self._task = self._loop.create_task(coroutine)
        self._task.add_done_callback(self._finished)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _finished(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._error = ClientClosed("The client was closed while this was under way.")
        else:
            self._error = task.exception()
            if self._error is None:
                self._result = task.result()
        self._done.release()


def run_on(loop: asyncio.AbstractEventLoop, work: Work[T]) -> T:
    """Run a coroutine on the loop of another thread; returns or raises what it does."""
    return submit(loop, work).wait()


def submit(loop: asyncio.AbstractEventLoop, work: Work[T]) -> Call[T]:
    if _runs_here(loop):
        raise RuntimeError("A synchronous call from the client's own thread would wait for itself; use AsyncClient.")
    call = Call(loop, work)
    call_on(loop, call.start)
    return call


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def check_process(process: int) -> None:
    """Raise `ClientClosed` in any process but the one that runs the loop."""
    if os.getpid() != process:
        raise ClientClosed("A client does not survive a fork; make a new one in the child process.")


def call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Have the loop call a function soon."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        raise ClientClosed("The client was closed; make a new one.") from None


class Portal:
    """A thread that runs an event loop until it is closed."""

    def __init__(self) -> None:
        import uvloop  # imported here: the asynchronous client, which runs on its program's loop, does not need it

        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="smista-client", daemon=True)
        self._is_closed = False
        self._thread.start()

    def run(self, work: Work[T]) -> T:
        return self.submit(work).wait()

    def submit(self, work: Work[T]) -> Call[T]:
        self.check_process()
        return submit(self.loop, work)

    def check_process(self) -> None:
        check_process(self._process)

    def close(self) -> None:
        """Cancel what runs on the loop, and end it. Does nothing in a forked child."""
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        # The garbage collector may call this in the loop's own thread.
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            while tasks := asyncio.all_tasks(self.loop):
                for task in tasks:
                    task.cancel()
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
