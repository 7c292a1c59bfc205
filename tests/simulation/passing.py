"""How a world goes on: turns of the loop, moves of the threads beside it, and time, which passes only by steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from smista.core.state import BrokerState
from smista.engine import Broker
from tests.simulation.blame import Blame, where
from tests.simulation.disk import Disk
from tests.simulation.loop import SimulatedLoop
from tests.simulation.stage import LogThread

REST_TURNS_MAX = 4_000
"""Whatever a life did before: after so many turns of the loop everything that goes on by itself is done."""
READ_AGAIN_US = 650_000
"""A block that could not be read is tried again for so long."""

T = TypeVar("T")


class Passing:
    def __init__(self) -> None:
        self.loop = SimulatedLoop()
        self.blame = Blame()
        self.disk = Disk()
        self.state = BrokerState()
        self.broker: Broker
        self.thread: LogThread | None = None
        """The log's; None until a broker was opened."""
        self._errors_known = 0
        self._read_again_us = 0

    @property
    def now_ms(self) -> int:
        return self.loop.now_us // 1000

    # -- turn by turn -------------------------------------------------------------------------------------------------

    def _background(self) -> list[Callable[[], None]]:
        moves: list[Callable[[], None]] = []
        if self.thread is not None and self.thread.can_step:
            moves.append(self.thread.step)
        if self.loop.posts:
            moves.append(self.loop.take_post)
        moves += [lambda call=call: self.loop.do_call(call) for call in self.loop.thread_calls]  # type: ignore[misc]
        return moves

    def _go_on(self) -> bool:
        """One turn and one move of everything beside it; False when there is nothing left to do."""
        if self.loop.is_ready:
            self.loop.turn()
            return True
        moves = self._background()
        if not moves:
            return False
        moves[0]()
        return True

    def turns(self, draw: random.Random, count: int) -> None:
        """Some turns of the loop; threads do or do not get on meanwhile."""
        for _ in range(count):
            moves = self._background()
            if moves and draw.random() < 0.5:
                draw.choice(moves)()
            self.loop.turn()

    def rest(self) -> None:
        """Go on until there is nothing to do before time passes."""
        for _ in range(REST_TURNS_MAX):
            if not self._go_on():
                return
        self.blame.say("never comes to rest", f"after {REST_TURNS_MAX} turns")
        self.blame.raise_first()

    def finish(self, work: Coroutine[Any, Any, T], trouble: str) -> T:
        """Let a call run to its end, with all that it waits for."""
        task = self.loop.create_task(work)
        for _ in range(REST_TURNS_MAX):
            if task.done():
                break
            if not self._go_on():
                self.loop.advance_to(min(self.loop.next_timer_us(), self.loop.now_us + 300_000))
        else:
            self.blame.say(trouble, f"after {REST_TURNS_MAX} turns")
            self.blame.raise_first()
        try:
            return task.result()
        except BaseException as error:
            self.blame.say(f"{trouble}: {type(error).__name__}", f"{error!r}{where(error)}")
            self.blame.raise_first()
            raise

    # -- time ---------------------------------------------------------------------------------------------------------

    def pass_time(self, ms: int, *, threads: bool = True) -> None:
        """Time passes; what is due happens when it is due."""
        end_us = self.loop.now_us + ms * 1000
        for _ in range(REST_TURNS_MAX):
            if threads:
                self.rest()
            else:
                while self.loop.is_ready:
                    self.loop.turn()
            next_us = self.loop.next_timer_us()
            if next_us > end_us:
                break
            self.loop.advance_to(next_us)
        else:
            self.blame.say("never comes to rest", f"{REST_TURNS_MAX} timers within {ms} ms")
        self.loop.advance_to(end_us)

    def settle_down(self) -> None:
        """Rest, and let so much time pass that what is put off by some milliseconds has happened too."""
        self.rest()
        for ms in (*[2] * 30, *[50] * 30):
            if not self.is_busy:
                return
            self.pass_time(ms)

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that only needs a little time."""
        if self.broker.failure is not None or self.disk.is_full:
            return False
        broker = self.broker
        if self.state.calendar.is_behind(self.now_ms) or broker._keeper.journal.parts or len(broker.background):
            return True
        if self.disk.errors_met != self._errors_known:
            self._errors_known = self.disk.errors_met
            self._read_again_us = self.loop.now_us + READ_AGAIN_US
        return self.loop.now_us < self._read_again_us
