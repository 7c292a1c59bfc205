"""From threads to an event loop: run a coroutine there and wait for it here.

The synchronous client has one loop in one daemon thread. It ends with `close`, or with the interpreter.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from smista.client.errors import ClientClosed

T = TypeVar("T")
_JOIN_TIMEOUT_S = 5.0


def run_on(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """What the coroutine returns or raises, once it has run on `loop`, which another thread runs."""
    return wait_for(submit(loop, coroutine))


def submit(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    if _runs_here(loop):
        coroutine.close()
        raise RuntimeError("A synchronous call from the client's own thread would wait for itself; use AsyncClient.")
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise ClientClosed("The client was closed; make a new one.") from None


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def wait_for(future: Future[T]) -> T:
    try:
        return future.result()
    except CancelledError:
        raise ClientClosed("The client was closed while this was under way.") from None
    except BaseException:
        # Ctrl-C, most likely: nobody waits for it any more.
        future.cancel()
        raise


def call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Have the loop call a function soon."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        raise ClientClosed("The client was closed; make a new one.") from None


class Portal:
    """A thread that runs an event loop until it is closed."""

    def __init__(self) -> None:
        import uvloop  # here, since the asynchronous client runs on the loop of its program

        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="smista-client", daemon=True)
        self._is_closed = False
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return wait_for(self.submit(coroutine))

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if os.getpid() != self._process:
            coroutine.close()
            raise ClientClosed("A client does not survive a fork; make a new one in the child process.")
        return submit(self.loop, coroutine)

    def close(self) -> None:
        """Cancel what runs on the loop, and end it. In a forked child there is nothing to end."""
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        # The garbage collector may have closed us from the loop's own thread.
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
