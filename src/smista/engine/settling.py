"""Settling on a running broker: the rules are in `core/settling`, here is how many at a time.

What is settled is named by receipts, and each is looked up when its turn comes: it may have been settled, purged or
deleted since. Some of it may become dead letters in very many queues; then there is less in a slice.

Where very many go back to their queues, those serve nobody who waits until all are back: whoever takes over gets them
in order, before what was behind them. (Not so a queue that keeps only so many and drops the rest: there what comes back
goes to whoever waits, or goes.)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from smista.core import settling
from smista.core.dead_letters import is_much
from smista.core.limits import drops_first
from smista.core.message import Reason, Receipt
from smista.core.settling import Outcome, fail, find_held
from smista.engine.running import Running
from smista.engine.slices import BREATH_S
from smista.engine.tickets import Ticket
from smista.errors import BrokerError, InvalidArgument

SETTLED_AT_ONCE = 500
"""So many are settled in one turn of the loop: some 5 to 10 ms ..."""
ACKNOWLEDGED_AT_ONCE = 2_000
"""... but an acknowledgement costs a fifth of what it costs to give a message back: 1.7 us against 8 to 11."""

T = TypeVar("T")
Settle = Callable[[Sequence[Receipt]], int]
"""Settles deliveries, in order, and returns with how many it is done: one at least. Fewer than it was given where some
became dead letters in very many queues; the others are not settled yet."""


class Settling:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._state = running.state
        self._tickets = running.tickets

    def acknowledge(self, receipts: Sequence[Receipt]) -> Ticket[list[Outcome]]:
        """These deliveries succeeded. Per receipt None, or why it had no effect."""
        return self._submit(receipts, self._acknowledge, ACKNOWLEDGED_AT_ONCE)

    def _acknowledge(self, receipts: Sequence[Receipt]) -> list[Outcome]:
        now_ms = self._running.enter()
        outcomes = settling.acknowledge(self._state, receipts, now_ms=now_ms)
        self._running.after()
        return outcomes

    def nack(
        self, receipts: Sequence[Receipt], *, requeue: bool = True, delay_ms: int | None = None, error: str = ""
    ) -> Ticket[list[bool | BrokerError]]:
        """These deliveries failed. Per receipt True if it will be retried, False if it is dead, or why neither."""
        return self._submit(
            receipts,
            partial(self._nack, requeue, delay_ms, error),
            SETTLED_AT_ONCE,
            goes_back=requeue,
        )

    def _nack(
        self, requeue: bool, delay_ms: int | None, error: str, receipts: Sequence[Receipt]
    ) -> list[bool | BrokerError]:
        """Fewer results than receipts where some became dead letters in very many queues: the others are not settled
        yet."""
        now_ms, since = self._running.enter(), self._state.work
        results: list[bool | BrokerError] = []
        for receipt in receipts:
            if is_much(self._state, since):
                break
            try:
                results.append(
                    settling.nack(
                        self._state,
                        receipt,
                        requeue=requeue,
                        delay_ms=delay_ms,
                        error=error,
                        chance=random.random(),
                        now_ms=now_ms,
                    )
                )
            except BrokerError as refusal:
                results.append(refusal)
            self._state.journal.between()
        self._running.after()
        return results

    def release(self, receipts: Sequence[Receipt]) -> Ticket[list[Outcome]]:
        """Give messages back to their old places, not counted as failures."""
        return self._submit(receipts, partial(self._running.release, is_cut=True), SETTLED_AT_ONCE, goes_back=True)

    def release_some(self, receipts: Sequence[Receipt]) -> int:
        """Release them as `Settle` says."""
        return len(self._running.release(receipts, is_cut=True))

    def vanish_now(self, receipts: Iterable[Receipt]) -> int:
        """The consumer vanished with these: failed deliveries, ready again at once. Those that are over stay so.

        Returns with how many it is done: with fewer where some became dead letters in very many queues."""
        now_ms, since = self._running.enter(), self._state.work
        done = 0
        for receipt in receipts:
            if is_much(self._state, since):
                break
            done += 1
            held = find_held(self._state, receipt)
            if held is not None:
                fail(self._state, *held, Reason.VANISHED, delay_ms=0, now_ms=now_ms)
                self._state.journal.between()
        self._running.after()
        return done

    def extend(self, receipts: Sequence[Receipt], lease_ms: int) -> Ticket[list[Outcome]]:
        """The leases now end `lease_ms` from now."""
        return self._submit(receipts, partial(self._extend_now, lease_ms), ACKNOWLEDGED_AT_ONCE)

    def _extend_now(self, lease_ms: int, receipts: Sequence[Receipt]) -> list[Outcome]:
        now_ms = self._running.enter()
        outcomes = settling.extend(self._state, receipts, lease_ms, now_ms=now_ms)
        self._running.after()
        return outcomes

    # -- very many ----------------------------------------------------------------------------------------------------

    def hold_up(self, numbers: Iterable[int]) -> Callable[[], None]:
        """Have queues serve nobody who waits, until what this returns is called, once.

        Not those that keep only so many and drop the rest: what comes back there goes to whoever waits, or goes.
        """
        consumers = self._running.consumers
        queues = [queue for number in numbers if (queue := self._state.queues.get(number)) is not None]
        held_up = [queue for queue in queues if not drops_first(queue)]
        consumers.hold_up([queue.number for queue in held_up])

        def go_on() -> None:
            consumers.go_on([queue.number for queue in held_up])
            self._state.woken |= {queue: None for queue in held_up if queue.is_watched and not queue.is_deleted}
            self._running.after()

        return go_on

    def _submit(
        self,
        receipts: Sequence[Receipt],
        settle: Callable[[Sequence[Receipt]], list[T]],
        at_once: int,
        *,
        goes_back: bool = False,
    ) -> Ticket[list[T]]:
        """Settle all of them; those that `settle` leaves, and those of very many, in later turns."""
        if set(map(type, receipts)) - {Receipt}:
            # Before any of them is: what was settled beside it would be lost half-way.
            return self._tickets.refused(InvalidArgument("Not every one is a receipt; pass on those of deliveries."))
        try:
            results = settle(receipts if len(receipts) <= at_once else receipts[:at_once])
        except BrokerError as error:
            return self._tickets.refused(error)
        if len(results) == len(receipts):
            return self._tickets.done(results)
        rest = self._settle_rest(receipts, results, settle, at_once)
        if not goes_back:
            return self._tickets.under_way(rest)
        return self._tickets.under_way(rest, then=self.hold_up({receipt.queue for receipt in receipts}))

    async def _settle_rest(
        self,
        receipts: Sequence[Receipt],
        results: list[T],
        settle: Callable[[Sequence[Receipt]], list[T]],
        at_once: int,
    ) -> list[T]:
        while len(results) < len(receipts):
            await asyncio.sleep(BREATH_S)
            await self._running.fair_turns.turn()
            results += settle(receipts[len(results) : len(results) + at_once])
        return results
