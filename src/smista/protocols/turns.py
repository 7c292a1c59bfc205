"""How long the input of one connection may keep the loop.

    bytes came ─▶ begin ─▶ yes: it works, and looks now and then whether its time is over ─▶ all of it done
                    │                                     │ over: the rest waits
                    └ no, others have had all of this turn ┴─▶ the line ─▶ its turn, in a later turn of the loop

One turn of the loop goes round all sockets. So everybody waits for as long as all others work in one turn, and a
request needs several turns until it is answered: a publish over HTTP beside a flood 6 of them, seldom more than 12, to
be read, put into a block, written behind the block before it, and answered. Therefore what comes in may take `TURN_S`
of a turn, all connections together, and one connection `SLICE_S` at a time. Whoever wants more waits in line, and
nothing is read from it: what it sends on stays in its socket, and then with itself.

In each turn the one is served that has waited longest, and after it those that have used least of late. So a quiet
connection passes those that flood the broker, however many they are, and nobody waits for ever.

What is one step however long it is, as reading a long table, makes up for it: those who have used much go on only after
as many turns as it took the time of. Else a request that needs several turns would meet such a step in each.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable

TURN_S = 0.002
SLICE_S = 0.001
"""Twice as much of both made nobody faster: a message of a flood took the same 1.2 to 4 us of the processor. The
publish beside it took 30 ms at the median and 68 ms at p99, with these 17 and 24 ms."""
_HALVED_IN_S = 1.0
"""What was used so long ago counts half."""
_OLD_MAX = 100
RESTED_MAX = 40


class Turns:
    """Of one loop."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self._longest: deque[tuple[int, Share]] = deque()
        self._least: list[tuple[float, int, Share]] = []
        """Both hold all who wait, and some who have been served by the other: their tickets are old."""
        self._tickets = itertools.count(1)
        self._end_s: float | None = None
        """When the time of this turn is over; None while nobody has worked in it."""
        self._rest = 0
        """For how many turns nobody goes on who has used much."""
        self._is_planned = False

    def begin(self, share: Share, now_s: float) -> bool:
        """Whether there is time left in this turn; if not, this one is in line now."""
        if self._end_s is None:
            self._end_s = now_s + TURN_S
            self._plan()
        if now_s < self._end_s and not (self._rest and share.used_s > SLICE_S):
            return True
        self.join(share)
        return False

    def join(self, share: Share) -> None:
        share.ticket = ticket = next(self._tickets)
        self._longest.append((ticket, share))
        heapq.heappush(self._least, (share.used_s, ticket, share))

    def rest(self, used_s: float) -> None:
        """Somebody has used so much at a time."""
        if used_s >= 2 * TURN_S:
            self._rest = min(RESTED_MAX, int(used_s / TURN_S))
            self._plan()

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Another turn of the loop: those in line come before what arrives in it."""
        self._end_s = None
        self._is_planned = False
        if self._rest:
            self._rest -= 1
            self._plan()
            return
        longest, least = self._longest, self._least
        is_first = True
        while longest and (self._end_s is None or self.now_s() < self._end_s):
            if is_first or not least:
                ticket, share = longest.popleft()
            else:
                _, ticket, share = heapq.heappop(least)
            if share.ticket == ticket:
                is_first = False
                share.ticket = 0
                share.go_on()
        if len(least) > 2 * len(longest) + _OLD_MAX:
            self._least = [each for each in least if each[2].ticket == each[1]]
            heapq.heapify(self._least)


class Share:
    """What one connection has used, and whether it waits for its turn."""

    __slots__ = ("_began_s", "_ended_s", "_is_cut", "_turns", "go_on", "ticket", "used_s")

    def __init__(self, turns: Turns, go_on: Callable[[], None]) -> None:
        """`go_on` is called when it was in line and its turn has come."""
        self._turns = turns
        self.go_on = go_on
        self.ticket = 0
        """Its place in line; 0 while it is not in line."""
        self.used_s = 0.0
        """Lately, see `_HALVED_IN_S`."""
        self._began_s = self._ended_s = turns.now_s()
        self._is_cut = False

    @property
    def is_waiting(self) -> bool:
        return self.ticket != 0

    def begin(self) -> bool:
        """Whether it may work now. If not it is in line, and nothing should be read from it until it may go on."""
        if self.ticket:
            return False
        now_s = self._turns.now_s()
        self.used_s *= 0.5 ** ((now_s - self._ended_s) / _HALVED_IN_S)
        self._began_s = self._ended_s = now_s
        if not self._turns.begin(self, now_s):
            return False
        self._is_cut = False
        return True

    def is_over(self) -> bool:
        """Whether its time is over. Whoever asks has more to do, and leaves it for later then."""
        if self._turns.now_s() - self._began_s >= SLICE_S:
            self._is_cut = True
        return self._is_cut

    def end(self) -> bool:
        """It has worked. Whether it was cut short, and now stands in line for the rest."""
        now_s = self._turns.now_s()
        self.used_s += now_s - self._began_s
        self._turns.rest(now_s - self._began_s)
        self._ended_s = now_s
        if self._is_cut:
            self._turns.join(self)
        return self._is_cut
