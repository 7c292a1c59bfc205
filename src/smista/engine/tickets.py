"""Tickets: the answer to what was submitted, which comes when it is durable.

    submit ──▶ ticket ──▶ when_done(callback)     called once, on the loop, never before `when_done` has returned
                   ├────▶ await                   or waited for: goes on when those that asked before were called back
                   ├────▶ when_known(callback)    called once, as soon as it is done, durable or not
                   └────▶ `Unanswered`            asked together with all else that its caller has submitted

Whoever submits relies on nothing before that: the queue may be in another process. For a queue of this process a ticket
is one small object for a batch. No task is made for it, and nobody is kept waiting for the disk whose answer nobody
wants: the log is asked when the ticket is. Of many tickets of one log only the last has to be asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

from smista.engine.background import BackgroundTasks
from smista.engine.keeper import Keeper

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Ticket(Protocol[T_co]):
    """What becomes of something submitted: for each item what came of it, or one error for all."""

    @property
    def _log(self) -> object | None:
        """What is asked when it is: with a ticket all earlier ones of the same log are answered. None where it is
        answered by itself, asked or not."""

    @property
    def error(self) -> BaseException | None:
        """Why nothing of it is known to have been done; None while there is no answer, and where it is a result."""

    @property
    def is_known(self) -> bool:
        """Whether it is known what came of it, though that may not be durable yet."""

    def result(self) -> T_co:
        """What came of it; raises `error`. Only to be asked when the ticket is answered, or where it `is_known`."""

    def when_known(self, callback: Callable[[Ticket[T_co]], object]) -> None:
        """Call back with this ticket as soon as it `is_known`, which may be now: before anybody gets what it puts back
        into queues. For those who do one thing after the other."""

    def when_done(self, callback: Callable[[Ticket[T_co]], object]) -> None:
        """Call back with this ticket when it is answered: once, on the loop, never before this returns."""

    def __await__(self) -> Generator[Any, None, T_co]:
        """The same as a result or an exception. Whoever waits may be cancelled; what was submitted is not.

        Goes on only when all have been called back that asked for it before, also where it is answered already: so what
        they keep account of is right by then, and a loop until nothing is under way lets the loop go round."""


Callback = Callable[[Ticket[T]], object]


def _behind_callbacks(future: asyncio.Future[None]) -> Generator[Any, None, None]:
    """Wait for a future. Where it is done, its callbacks have their turn first: to await it alone would not wait."""
    if future.done():
        yield
    yield from future.__await__()


class DoneTicket(Generic[T]):
    """It is done, and answered when all that was done so far is durable."""

    __slots__ = ("_log", "_result", "error")
    is_known = True

    def __init__(self, log: Keeper, result: T) -> None:
        self._log = log
        self._result = result
        self.error: BaseException | None = None

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self._result

    def when_known(self, callback: Callback[T]) -> None:
        callback(self)

    def when_done(self, callback: Callback[T]) -> None:
        def durable(future: asyncio.Future[None]) -> None:
            self.error = future.exception()
            callback(self)

        self._log.durable().add_done_callback(durable)

    def __await__(self) -> Generator[Any, None, T]:
        yield from _behind_callbacks(self._log.durable())
        return self._result


class RefusedTicket(Generic[T]):
    """Nothing of it was done."""

    __slots__ = ("error",)
    is_known = True
    _log = None

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def result(self) -> T:
        raise self.error

    def when_known(self, callback: Callback[T]) -> None:
        callback(self)

    def when_done(self, callback: Callback[T]) -> None:
        asyncio.get_running_loop().call_soon(callback, self)

    def __await__(self) -> Generator[Any, None, T]:
        yield  # behind those whom `when_done` calls
        raise self.error


class PendingTicket(Generic[T]):
    """It is being done: `answer` or `fail` it, once. Where it is done before that is durable, `know` it first."""

    __slots__ = ("_done", "_result", "_waiting", "error", "is_known")
    _log = None

    def __init__(self) -> None:
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._result: T
        self._waiting: list[Callback[T]] = []
        self.error: BaseException | None = None
        self.is_known = False

    def know(self, result: T) -> None:
        if not self.is_known:
            self._result = result
            self._call_back()

    def _call_back(self) -> None:
        self.is_known = True
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback(self)

    def answer(self, result: T) -> None:
        self.know(result)
        if not self._done.done():
            self._done.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not self._done.done():
            self.error = error
            self._done.set_exception(error)
            # Nobody has to ask.
            self._done.exception()
            if not self.is_known:
                self._call_back()

    def result(self) -> T:
        assert self.is_known
        if self.error is not None:
            raise self.error
        return self._result

    def when_known(self, callback: Callback[T]) -> None:
        if self.is_known:
            callback(self)
        else:
            self._waiting.append(callback)

    def when_done(self, callback: Callback[T]) -> None:
        self._done.add_done_callback(lambda _: callback(self))

    def __await__(self) -> Generator[Any, None, T]:
        # Whoever waits may be cancelled; what was submitted is not.
        yield from _behind_callbacks(asyncio.shield(self._done))
        return self._result


class Unanswered:
    """What one caller has submitted and may not be durable yet, wherever the queues are.

    Of the tickets with which a log is asked it is the last, so that one wait covers all of them. One that is answered
    by itself is in here until it is. Its error stays: from then on nobody can say that all is durable."""

    __slots__ = ("_error", "_on_failed", "_tickets")

    def __init__(self, on_failed: Callable[[BaseException], object]) -> None:
        """`on_failed` is called with the error of a ticket that is answered by itself, also if nobody waits for it."""
        self._on_failed = on_failed
        self._tickets: dict[object, Ticket[Any]] = {}
        """By log, or by itself."""
        self._error: BaseException | None = None

    def add(self, ticket: Ticket[Any]) -> None:
        if ticket._log is not None:
            self._tickets[ticket._log] = ticket
        else:
            self._tickets[ticket] = ticket
            ticket.when_done(self._answered)

    def _answered(self, ticket: Ticket[Any]) -> None:
        del self._tickets[ticket]
        if ticket.error is not None:
            self._error = ticket.error
            self._on_failed(ticket.error)

    def together(self) -> Ticket[Any]:
        """Answered when all of it is that was added so far, or with the first error."""
        if self._error is not None:
            return RefusedTicket(self._error)
        tickets = list(self._tickets.values())
        if len(tickets) == 1:
            return tickets[0]
        whole: PendingTicket[None] = PendingTicket()
        left_count = len(tickets)

        def answered(ticket: Ticket[Any]) -> None:
            nonlocal left_count
            left_count -= 1
            if ticket.error is not None:
                whole.fail(ticket.error)
            elif not left_count:
                whole.answer(None)

        for ticket in tickets:
            ticket.when_done(answered)
        if not tickets:
            whole.answer(None)
        return whole


class Tickets:
    """Makes the tickets of a broker."""

    def __init__(self, keeper: Keeper, background: BackgroundTasks) -> None:
        self._keeper = keeper
        self._background = background

    def done(self, result: T) -> Ticket[T]:
        return DoneTicket(self._keeper, result)

    def refused(self, error: BaseException) -> Ticket[Any]:
        return RefusedTicket(error)

    def under_way(self, work: Coroutine[None, None, T], then: Callable[[], None] = lambda: None) -> Ticket[T]:
        """For what takes more than one step: done in the background, also when whoever asked for it is gone. `then` is
        called when it is known what came of it, or that it failed."""
        ticket: PendingTicket[T] = PendingTicket()

        async def run() -> None:
            try:
                try:
                    result = await work
                    ticket.know(result)
                finally:
                    then()
                await self._keeper.durable()
            except Exception as error:
                ticket.fail(error)
            else:
                ticket.answer(result)

        self._background.run(run())
        return ticket
