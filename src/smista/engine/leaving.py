"""Leaving: consumers that go together, and very many deliveries that go back, a slice of them in each turn of the loop.

    leave ─▶ their queues are held up ─▶ all of them out of the line ─▶ what they held goes back ─▶ the queues go on
                                                                        few: at once
                                                                        many: in slices, everybody else in between

Two rules are kept here. Whoever is leaving is out of the line before anything goes back: a consumer of a connection
that has died must not be served what its neighbour gave back. And a queue serves nobody who waits until all of it is
back, so that whoever takes over gets it in order, before what was behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from smista.core.message import Receipt
from smista.engine.consumers import Subscription
from smista.engine.running import BREATH_S, SLICE, SLICE_S
from smista.errors import BrokerClosed, BrokerStopped

if TYPE_CHECKING:
    from smista.engine.broker import Broker

AT_ONCE = 500
"""So many are settled in one turn of the loop: some 5 to 10 ms."""

T = TypeVar("T")


async def in_slices(items: Sequence[T], work: Callable[[Sequence[T]], object]) -> None:
    """Do something with all of them, in order, and let the loop go round in between."""
    end_s = time.perf_counter() + SLICE_S
    for start in range(0, len(items), SLICE):
        if time.perf_counter() > end_s:
            await asyncio.sleep(BREATH_S)
            end_s = time.perf_counter() + SLICE_S
        work(items[start : start + SLICE])


async def settle_in_slices(
    broker: Broker, receipts: Sequence[Receipt], settle: Callable[[Sequence[Receipt]], object]
) -> None:
    """Settle very many deliveries; their queues serve nobody who waits until that is done."""
    go_on = broker.hold_up({receipt.queue for receipt in receipts})
    try:
        await in_slices(receipts, settle)
    finally:
        go_on()


def leave(
    broker: Broker,
    subscriptions: Sequence[Subscription],
    receipts: Sequence[Receipt],
    give_back: Callable[[Sequence[Receipt]], object],
) -> asyncio.Task[None] | None:
    """End subscriptions that go together; `give_back` is called with `receipts`, and what has not reached them yet is
    released. What else they hold is somebody's who settles it still.

    None where that is done already; else what is to be waited for until it is. A broker that stops or closes meanwhile
    leaves the rest in flight: it is given back when its log is opened again.
    """
    go_on = broker.hold_up(
        {subscription.queue.number for subscription in subscriptions} | {receipt.queue for receipt in receipts}
    )
    is_held_up_longer = False
    try:
        # The last first: an active one that leaves before the others would be followed by each of them.
        for subscription in reversed(subscriptions):
            broker.cancel(subscription, keeps_held=True)
        for subscription in subscriptions:
            if subscription.fetching:
                broker.release_now(subscription.fetching)
        if len(receipts) > AT_ONCE:
            is_held_up_longer = True
            return broker.run_errand(_give_back(receipts, give_back, go_on))
        if receipts:
            give_back(receipts)
        return None
    finally:
        if not is_held_up_longer:
            go_on()


async def _give_back(
    receipts: Sequence[Receipt], give_back: Callable[[Sequence[Receipt]], object], go_on: Callable[[], None]
) -> None:
    try:
        await in_slices(receipts, give_back)
    except (BrokerClosed, BrokerStopped):
        return
    finally:
        go_on()
