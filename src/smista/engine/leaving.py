"""Leaving: consumers that go together, and very many deliveries that go back, a slice of them in each turn of the loop.

    leave ─▶ their queues are held up ─▶ all of them out of the line ─▶ what they held goes back ─▶ the queues go on
                                                                        few: at once
                                                                        many: in slices, everybody else in between

Two rules are kept here. Whoever is leaving is out of the line before anything goes back: a consumer of a connection
that has died must not be served what its neighbour gave back. And a queue serves nobody who waits until all of it is
back, so that whoever takes over gets it in order, before what was behind it. (Not so a queue that keeps only so many
and drops the rest: there what comes back goes to whoever waits, or goes.)

What goes back is named by receipts, and each is looked up when its turn comes: it may have been settled, purged or
deleted since. Some of it may become dead letters in very many queues; then there is less in a slice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TypeVar

from smista.core.dead_letters import is_much
from smista.core.limits import drops_first
from smista.core.message import Reason, Receipt
from smista.core.settling import fail, find_held
from smista.engine.consumers import Subscription
from smista.engine.running import BREATH_S, SLICE, SLICE_S, RunningBroker
from smista.errors import BrokerClosed, BrokerStopped

SETTLED_AT_ONCE = 500
"""So many are settled in one turn of the loop: some 5 to 10 ms ..."""
ACKNOWLEDGED_AT_ONCE = 2_000
"""... but an acknowledgement costs a fifth of what it costs to give a message back: 1.7 us against 8 to 11."""

T = TypeVar("T")
Settle = Callable[[Sequence[Receipt]], int]
"""Settles deliveries, in order, and returns with how many it is done: one at least. Fewer than it was given where some
became dead letters in very many queues; the others are not settled yet."""


async def in_slices(items: Sequence[T], work: Callable[[Sequence[T]], int]) -> None:
    """Do something with all of them, in order, and let the loop go round in between. `work` returns with how many of
    those it was given it is done; the others come again, after a pause."""
    end_s = time.perf_counter() + SLICE_S
    start = 0
    while start < len(items):
        if time.perf_counter() > end_s:
            await asyncio.sleep(BREATH_S)
            end_s = time.perf_counter() + SLICE_S
        some = items[start : start + SLICE]
        done = work(some)
        assert done > 0, "work on a slice has to get on, or it never ends"
        start += done
        if done < len(some):
            end_s = 0.0


class LeavingBroker(RunningBroker):
    def cancel(self, subscription: Subscription, *, is_vanished: bool = False, keeps_held: bool = False) -> None:
        """End a subscription; `ConsumerNotFound` if it has ended already. Its unsettled messages go back: released, or,
        if the consumer vanished with them, as failed deliveries, so that a message that kills its consumers does not go
        round for ever.

        With `keeps_held` the consumer keeps what has reached it, to settle it still.
        """
        self._enter()
        self._consumers.check_subscribed(subscription)
        held_by_it = [] if keeps_held else list(subscription.held.values())
        self.leave([subscription], held_by_it, self.vanish_now if is_vanished else self.release_some)

    def release_some(self, receipts: Sequence[Receipt]) -> int:
        """Release them as `Settle` says."""
        return len(self.release_now(receipts, is_cut=True))

    def leave(
        self, subscriptions: Sequence[Subscription], receipts: Sequence[Receipt], give_back: Settle
    ) -> asyncio.Future[None] | None:
        """End subscriptions that go together; those that have ended already do no harm. `give_back` is called with
        `receipts`, some at a time, and what has not reached them yet is released. What else they hold is somebody's who
        settles it still.

        None where that is done already; else what is to be waited for until it is. A broker that stops or closes
        meanwhile leaves the rest in flight: it is given back when its log is opened again.
        """
        self._enter()
        go_on = self.hold_up(
            {subscription.queue.number for subscription in subscriptions} | {receipt.queue for receipt in receipts}
        )
        is_held_up_longer = False
        try:
            self._consumers.leave(subscriptions)
            for subscription in subscriptions:
                if subscription.fetching:
                    self.release_now(subscription.fetching)
            rest = receipts
            if receipts and len(receipts) <= SETTLED_AT_ONCE:
                rest = receipts[give_back(receipts) :]
            if rest:
                is_held_up_longer = True
                # Whoever waits for it may be cancelled; it may not.
                return asyncio.shield(self.run_errand(_give_back(rest, give_back, go_on)))
            return None
        finally:
            if not is_held_up_longer:
                go_on()

    def settle_many(
        self, receipts: Sequence[Receipt], settle: Settle, *, is_acknowledged: bool = False, goes_back: bool = False
    ) -> Coroutine[None, None, None] | None:
        """Settle at once, or, where they are very many, in slices: a coroutine, which has to come to its end.

        Where they go back to their queues, those serve nobody who waits until all are back: whoever takes over shall
        get them in order."""
        if len(receipts) <= (ACKNOWLEDGED_AT_ONCE if is_acknowledged else SETTLED_AT_ONCE):
            receipts = receipts[settle(receipts) :]
            if not receipts:
                return None
        return self.settle_in_slices(receipts, settle) if goes_back else in_slices(receipts, settle)

    async def settle_in_slices(self, receipts: Sequence[Receipt], settle: Settle) -> None:
        """Settle very many deliveries; their queues serve nobody who waits until that is done."""
        go_on = self.hold_up({receipt.queue for receipt in receipts})
        try:
            await in_slices(receipts, settle)
        finally:
            go_on()

    def vanish_now(self, receipts: Iterable[Receipt]) -> int:
        """The consumer vanished with these: failed deliveries, ready again at once. Those that are over stay so.

        Returns with how many it is done: with fewer where some became dead letters in very many queues."""
        now_ms, since = self._enter(), self._state.work
        done = 0
        for receipt in receipts:
            if is_much(self._state, since):
                break
            done += 1
            held = find_held(self._state, receipt)
            if held is not None:
                fail(self._state, *held, Reason.VANISHED, delay_ms=0, now_ms=now_ms)
                self._keeper.seal_if_large()
        self._after()
        return done

    def hold_up(self, numbers: Iterable[int]) -> Callable[[], None]:
        """Have queues serve nobody who waits, until what this returns is called, once.

        Not those that keep only so many and drop the rest: what comes back there goes to whoever waits, or goes.
        """
        queues = [queue for number in numbers if (queue := self._state.queues.get(number)) is not None]
        held_up = [queue for queue in queues if not drops_first(queue)]
        self._consumers.hold_up([queue.number for queue in held_up])

        def go_on() -> None:
            self._consumers.go_on([queue.number for queue in held_up])
            self._state.woken |= {queue: None for queue in held_up if queue.is_watched and not queue.is_deleted}
            self._after()

        return go_on

    def run_errand(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Have something done that belongs to nobody else; closing waits for its end."""
        task = self._loop.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return task


async def _give_back(receipts: Sequence[Receipt], give_back: Settle, go_on: Callable[[], None]) -> None:
    try:
        await in_slices(receipts, give_back)
    except (BrokerClosed, BrokerStopped):
        return
    finally:
        go_on()
