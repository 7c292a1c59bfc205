"""An event loop without time and without threads: nothing happens in it but what the simulator makes happen.

    turn()      runs what was ready when it began, as one turn of asyncio's own loop would
    advance_to  moves the clock; timers whose time has come are ready with the next turn
    calls       what `asyncio.to_thread` was given: done when the simulator says so, answered when it says so again
    posts       what the log's thread posts to the loop: called, in order, when the simulator says so

Time is an int of microseconds, so that no rounding ever makes two runs differ.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

START_US = 1_700_000_000_000_000


class ThreadCall:
    """A call that went to a thread. First it is done, then its answer arrives; anything may happen in between."""

    __slots__ = ("_error", "_result", "call", "future", "is_done")

    def __init__(self, call: Callable[[], object], future: asyncio.Future[Any]) -> None:
        self.call = call
        self.future = future
        self.is_done = False
        self._result: object = None
        self._error: BaseException | None = None

    def do(self) -> None:
        self.is_done = True
        if self.future.cancelled():
            return
        try:
            self._result = self.call()
        except Exception as error:
            self._error = error

    def answer(self) -> None:
        if self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)


class SimulatedLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        self.now_us = START_US
        self.thread_calls: list[ThreadCall] = []
        self.posts: deque[asyncio.Handle] = deque()
        self.troubles: list[dict[str, Any]] = []
        """What reached the exception handler: nothing ever should."""
        self._soon: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._is_in_thread = False
        super().__init__()

    # -- driven by the simulator --------------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """What is called inside believes to be called by this loop."""
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """What is called inside is called by another thread."""
        self._is_in_thread = True
        try:
            yield
        finally:
            self._is_in_thread = False

    @property
    def is_ready(self) -> bool:
        """Whether a turn would do anything."""
        return bool(self._soon) or self.next_timer_us() <= self.now_us

    def turn(self) -> None:
        while self._timers and (self._timers[0][0] <= self.now_us or self._timers[0][2].cancelled()):
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled():
                self._soon.append(timer)
        with self.running():
            for _ in range(len(self._soon)):
                handle = self._soon.popleft()
                if not handle.cancelled():
                    handle._run()

    def next_timer_us(self) -> int:
        """When the next timer is due; far in the future where there is none."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else 1 << 62

    def advance_to(self, now_us: int) -> None:
        self.now_us = max(self.now_us, now_us)

    def forget(self) -> None:
        """Whatever was still to happen does not."""
        self._soon.clear()
        self._timers.clear()
        self.thread_calls.clear()
        self.posts.clear()

    def take_post(self) -> None:
        """What the log's thread posted first is called with the next turn."""
        self._soon.append(self.posts.popleft())

    def do_call(self, call: ThreadCall) -> None:
        """The next half of a call."""
        if not call.is_done:
            with self.in_thread():
                call.do()
        else:
            self.thread_calls.remove(call)
            self.call_soon(call.answer)

    # -- what asyncio asks of a loop ----------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now_us / 1_000_000

    def call_soon(  # type: ignore[override]  # as asyncio's own, whose stub takes type variable tuples
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._soon.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        (self.posts if self._is_in_thread else self._soon).append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (round(when * 1_000_000), self._timer_count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over when their turn comes."""

    def run_in_executor(  # type: ignore[override]
        self, executor: None, func: Callable[..., object], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        self.thread_calls.append(ThreadCall(lambda: func(*args), future))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.troubles.append(context)
