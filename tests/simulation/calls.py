"""Calls to the broker: who is under way, what each brings back, and which errors may come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from smista.core.queue import Queue
from smista.engine import Delivery
from smista.errors import BrokerClosed, BrokerError, BrokerStopped, OutcomeUnknown
from tests.simulation.blame import where
from tests.simulation.callers import Call
from tests.simulation.ledger import Ledger
from tests.simulation.passing import Passing

T = TypeVar("T")


class Calls(Passing):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(self.blame)
        self.trace: list[str] = []
        self.calls: list[Call] = []
        self.is_closing = False

    def find(self, name: str) -> Queue | None:
        return self.state.namespaces["/"].queues.get(name)

    def used(self, queue: Queue | str, at_ms: int | None = None) -> None:
        """Somebody uses a queue, in the sense of `expires_ms`."""
        found = self.find(queue) if isinstance(queue, str) else queue
        if found is not None:
            used_at_ms = self.ledger.used_at_ms
            used_at_ms[found.number] = max(used_at_ms.get(found.number, 0), self.now_ms if at_ms is None else at_ms)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_ms % 10_000_000:>8} {text}")

    def call(
        self,
        what: str,
        work: Awaitable[T],
        then: Callable[[T], None] | None = None,
        *,
        queue: str | None = None,
        uses: bool = False,
        is_polling: bool = False,
        finally_: Callable[[], None] | None = None,
    ) -> Call:
        """Begin a call; `then` gets what it returns. Where it `uses` its queue, that counts from now, unless it is
        refused."""
        task = asyncio.ensure_future(work, loop=self.loop)
        call = Call(what, task, None if queue is None else self.find(queue), is_polling=is_polling)
        self.calls.append(call)
        if call.is_user:
            self._count_user(call.queue, 1)
        at_ms = self.now_ms
        task.add_done_callback(lambda task: self._returned(call, then, finally_, at_ms if uses else None))
        return call

    def _returned(
        self,
        call: Call,
        then: Callable[[Any], None] | None,
        finally_: Callable[[], None] | None,
        used_at_ms: int | None,
    ) -> None:
        if call not in self.calls:
            return
        self.calls.remove(call)
        if call.is_user:
            self._count_user(call.queue, -1, _served_at_ms(call.task))
        if finally_ is not None:
            finally_()
        if call.task.cancelled():
            self.note(f"    {call.what}: cancelled")
            return
        error = call.task.exception()
        if error is not None:
            self.refused(call.what, error)
        else:
            if used_at_ms is not None and call.queue is not None:
                self.used(call.queue, used_at_ms)
            if then is not None:
                then(call.task.result())
            self.note(f"    {call.what}: done")

    def _count_user(self, queue: Queue | None, change: int, at_ms: int | None = None) -> None:
        if queue is not None:
            self.ledger.users[queue.number] = self.ledger.users.get(queue.number, 0) + change
            self.used(queue, at_ms)

    def refused(self, what: str, error: BaseException) -> None:
        """A call failed. Most errors are answers; some may only come when something was planted."""
        self.note(f"    {what}: {type(error).__name__} {str(error)[:90]}")
        if isinstance(error, BrokerStopped | OutcomeUnknown):
            if not (self.disk.has_failed or self.disk.errors_met or self.is_closing):
                self.blame.say("the broker stopped by itself", f"{what}: {error}")
        elif isinstance(error, BrokerClosed):
            if not self.is_closing:
                self.blame.say("the broker closed by itself", f"{what}: {error}")
        elif not isinstance(error, BrokerError):
            self.blame.say(f"a call fails with {type(error).__name__}", f"{what}: {error!r}{where(error)}")


def _served_at_ms(task: asyncio.Task[Any]) -> int | None:
    """When a call that waited got something: it gets that a turn later, or later where the loop was held up."""
    result = None if task.cancelled() or task.exception() is not None else task.result()
    if isinstance(result, list) and result and isinstance(result[0], Delivery):
        return result[0].delivered_at_ms
    return None
