"""Consumers that leave together, and very many messages that go back: in slices, in order, whatever happens."""

from __future__ import annotations

import asyncio

import pytest

from smista.core.message import FOREVER_MS
from smista.core.settings import QueueSettings
from smista.engine import Broker, Delivery, Publication, Receipt, Subscription
from smista.engine.slices import in_slices
from smista.errors import BrokerClosed
from tests.engine.bench import Bench, Consumer, turns, until

MANY = 1_200
WIDE = QueueSettings(max_prefetch=100_000)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.engine.slices.SLICE_S", 0.0)
    monkeypatch.setattr("smista.engine.broker.BACKGROUND_S", 0.0)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def held_by(orders: Bench, name: str, *counts: int, settings: QueueSettings = WIDE) -> list[Subscription]:
    """Subscriptions that hold so many messages each, the first the first."""
    await orders.declare(name, settings)
    subscriptions = []
    for count in counts:
        consumer = Consumer()
        subscriptions.append(
            orders.broker.subscribing.subscribe(name, consumer.deliver, prefetch=count, lease_ms=FOREVER_MS)
        )
    await orders.broker.publishing.publish(name, [Publication(body) for body in numbered(sum(counts))])
    await until(lambda: orders.counts(name)[2] == sum(counts))
    return subscriptions


def receipts_of(subscriptions: list[Subscription]) -> list[Receipt]:
    return [receipt for subscription in subscriptions for receipt in subscription.held.values()]


def can_be_settled(bench: Bench, delivery: Delivery) -> bool:
    return bench.broker.receipts.can_be_settled([delivery.receipt]).result() == [True]


def go(broker: Broker, leaving: list[Subscription]) -> asyncio.Future[None] | None:
    return broker.subscribing.leave_all(leaving, receipts_of(leaving), is_vanished=True)


async def test_few_go_back_at_once(orders: Bench) -> None:
    leaving = await held_by(orders, "q", 3, 4)
    assert go(orders.broker, leaving) is None
    assert orders.counts("q") == (7, 0, 0, 0)
    assert orders.broker.statistics.stats("q").consumers == 0


async def test_many_go_back_in_slices_and_others_have_their_turns(orders: Bench) -> None:
    leaving = await held_by(orders, "q", MANY, MANY)
    rest = go(orders.broker, leaving)
    assert rest is not None
    assert orders.broker.statistics.stats("q").consumers == 0
    seen = set()
    while not rest.done():
        await asyncio.sleep(0)
        seen.add(orders.counts("q")[0])
    assert len(seen) > 3
    assert orders.counts("q") == (2 * MANY, 0, 0, 0)
    assert await orders.bodies(2 * MANY, "q") == numbered(2 * MANY)


@pytest.mark.parametrize("is_single", [False, True], ids=["any", "single active"])
async def test_the_next_one_gets_them_all_in_order_before_what_is_behind_them(orders: Bench, is_single: bool) -> None:
    settings = QueueSettings(max_prefetch=100_000, single_active_consumer=is_single)
    leaving = await held_by(orders, "q", MANY, settings=settings)
    waiting = Consumer()
    next_one = orders.broker.subscribing.subscribe("q", waiting.deliver, prefetch=3 * MANY)
    for subscription in (*leaving, next_one):
        orders.broker.subscribing.hold_back(subscription, True)
    await orders.publish(*numbered(2 * MANY)[MANY:], queue="q")
    assert go(orders.broker, leaving) is not None
    orders.broker.subscribing.hold_back(next_one, False)
    await until(lambda: len(waiting.bodies) == 2 * MANY)
    assert waiting.bodies == numbered(2 * MANY)


async def test_whoever_leaves_gets_nothing_back_itself(orders: Bench) -> None:
    leaving = await held_by(orders, "q", 2, 2, 2, settings=QueueSettings(max_retries=1))
    assert go(orders.broker, leaving) is None
    assert orders.counts("q") == (6, 0, 0, 0)


async def test_what_was_purged_or_deleted_meanwhile_is_passed_over(orders: Bench) -> None:
    purged, deleted = await held_by(orders, "purged", MANY), await held_by(orders, "deleted", MANY)
    rest = go(orders.broker, purged + deleted)
    assert rest is not None
    await asyncio.sleep(0)
    assert await orders.broker.declaring.purge("purged") == MANY
    await orders.broker.declaring.delete_queue("deleted")
    await orders.declare("deleted")
    await rest
    assert orders.counts("purged") == orders.counts("deleted") == (0, 0, 0, 0)
    waiting = Consumer()
    for name in ("purged", "deleted"):
        orders.broker.subscribing.subscribe(name, waiting.deliver)
        await orders.publish(name.encode(), queue=name)
    await until(lambda: waiting.bodies == [b"purged", b"deleted"])


async def test_a_queue_that_was_altered_meanwhile_goes_on(orders: Bench) -> None:
    leaving = await held_by(orders, "q", MANY)
    rest = go(orders.broker, leaving)
    assert rest is not None
    await asyncio.sleep(0)
    await orders.broker.declaring.alter_queue("q", QueueSettings(ordered=True))
    await rest
    assert orders.counts("q") == (MANY, 0, 0, 0)


async def test_what_had_not_gone_back_when_the_broker_closed_goes_back_when_it_opens(orders: Bench) -> None:
    leaving = await held_by(orders, "q", MANY)
    rest = go(orders.broker, leaving)
    assert rest is not None
    await asyncio.sleep(0)
    await orders.restart()
    assert rest.done()
    assert orders.counts("q") == (MANY, 0, 0, 0)


async def test_a_broker_that_closes_waits_a_while_for_what_is_going_back(
    orders: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smista.engine.broker.BACKGROUND_S", 60.0)
    leaving = await held_by(orders, "q", MANY)
    assert go(orders.broker, leaving) is not None
    await orders.restart()
    deliveries = await orders.broker.receiving.receive("q", MANY)
    # As failed, where the next opening would have released them.
    assert [len(delivery.failures) for delivery in deliveries] == [1] * MANY


async def test_settling_very_many_holds_their_queue_up_until_all_is_done(orders: Bench) -> None:
    [subscription] = await held_by(orders, "q", MANY)
    receipts = receipts_of([subscription])
    waiting = Consumer()
    orders.broker.subscribing.cancel(subscription, keeps_held=True)
    orders.broker.subscribing.subscribe("q", waiting.deliver, prefetch=2 * MANY)
    ticket = orders.broker.settling.release(receipts)
    while not ticket.is_known:
        assert not waiting.bodies
        await asyncio.sleep(0)
    await until(lambda: waiting.bodies == numbered(MANY))


async def test_work_on_a_slice_that_does_not_get_on_fails_rather_than_never_ends() -> None:
    with pytest.raises(AssertionError):
        await in_slices([1, 2], lambda some: 0)


async def test_settling_very_many_tells_when_the_broker_closes(orders: Bench) -> None:
    [subscription] = await held_by(orders, "q", MANY)
    receipts = receipts_of([subscription])
    ticket = orders.broker.settling.release(receipts)
    await turns(1)
    await orders.broker.close()
    with pytest.raises(BrokerClosed):
        await ticket
    await orders.open()


async def test_a_receipt_can_be_settled_as_long_as_nobody_else_got_the_message(orders: Bench) -> None:
    await orders.publish(b"x")
    first = await orders.receive_one()
    assert can_be_settled(orders, first)
    orders.broker._running.release([first.receipt])
    assert not can_be_settled(orders, first)
    second = await orders.receive_one()
    assert not can_be_settled(orders, first)
    await orders.acknowledge(second)
    assert not can_be_settled(orders, second)
