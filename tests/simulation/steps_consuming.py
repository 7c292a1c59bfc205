"""Steps: receiving by pull and by subscription, and settling."""

from __future__ import annotations

import random

from smista.core.message import Receipt
from smista.engine import FOREVER_MS, CreditPool, Delivery
from smista.errors import BrokerError
from tests import snapshot
from tests.simulation.callers import Consumer, Hand
from tests.simulation.drawing import LEASES_MS, TIMES_MS, publication
from tests.simulation.steps import step
from tests.simulation.world import World

# -- receiving --------------------------------------------------------------------------------------------------------


@step(10)
def receive(world: World, draw: random.Random) -> None:
    queue = world.some_queue(draw)
    limit = draw.choice((1, 1, 2, 5))
    wait_ms = draw.choice((0, 0, 16, 48, 1_000))
    lease_ms = draw.choice((None, 0, *LEASES_MS))
    several, beside = draw.random() < 0.2, draw.random() < 0.3
    world.note(f"receive {limit} of {queue}, wait {wait_ms}, lease {lease_ms}, several {several}, beside {beside}")
    world.call(
        f"receive of {queue}",
        world.broker.receiving.receive(
            queue, limit, wait_ms=wait_ms, lease_ms=lease_ms, several_per_group=several, beside_active=beside
        ),
        lambda deliveries: world.handed(deliveries, None),
        queue=queue,
        uses=True,
        is_polling=wait_ms > 0,
    )


@step(3)
def pull(world: World, draw: random.Random) -> None:
    """Receive what is there, much of it at once, and do not wait for it."""
    full = [queue.name for queue in world.state.queues.values() if queue.ready]
    queue = draw.choice(full) if full else world.some_queue(draw)
    world.note(f"pull {queue}")
    world.call(
        f"pull of {queue}",
        world.broker.receiving.receive(queue, 5, lease_ms=draw.choice((None, 160, FOREVER_MS))),
        lambda deliveries: world.handed(deliveries, None),
        queue=queue,
        uses=True,
    )


@step(8)
def subscribe(world: World, draw: random.Random) -> None:
    name = world.some_queue(draw)
    queue = world.find(name)
    if queue is None or len(world.consumers) >= 6:
        return
    pool = None
    if draw.random() < 0.25:
        if world.pools and draw.random() < 0.6:
            pool = draw.choice(world.pools)
        else:
            pool = CreditPool(draw.choice((1, 2, 4)))
            world.pools.append(pool)
    consumer = Consumer(f"consumer {world.token}", queue, acknowledges=draw.random() < 0.1)
    world.token += 1

    def deliver(deliveries: list[Delivery]) -> None:
        world.handed(deliveries, consumer)
        if consumer.acknowledges:
            world.loop.call_soon(_acknowledge_all, world, consumer)

    def ended(error: BrokerError) -> None:
        world.note(f"    {consumer.label} ended: {type(error).__name__}")
        if consumer in world.consumers:
            world.consumers.remove(consumer)
            world._count_user(queue, -1)
        world.left(consumer)

    prefetch, lease_ms = draw.choice((None, 1, 2, 5)), draw.choice((None, *LEASES_MS))
    priority = draw.choice((0, 0, 1))
    consumer.subscription = world.broker.subscribing.subscribe(
        name,
        deliver,
        ended=ended,
        consumer=consumer.label,
        prefetch=prefetch,
        priority=priority,
        lease_ms=lease_ms,
        pool=pool,
    )
    world.consumers.append(consumer)
    world._count_user(queue, 1)
    world.note(
        f"{consumer.label} subscribes to {name}, prefetch {prefetch}, lease {lease_ms}, priority {priority}, "
        f"pool {None if pool is None else world.pools.index(pool)}, acknowledges {consumer.acknowledges}"
    )


def _acknowledge_all(world: World, consumer: Consumer) -> None:
    receipts = [hand.delivery.receipt for hand in world.hands.values() if hand.holder is consumer]
    if consumer.is_alive and receipts and world.broker.failure is None and not world.broker.is_closed:
        _acknowledge(world, receipts)


def _consumer(world: World, draw: random.Random) -> Consumer | None:
    return draw.choice(world.consumers) if world.consumers else None


@step(6)
def cancel_subscription(world: World, draw: random.Random) -> None:
    """A consumer goes: in order, or its connection was lost, or it keeps what it has, to settle it still."""
    consumer = _consumer(world, draw)
    if consumer is None:
        return
    how = draw.choice(("released", "vanished", "keeps"))
    world.note(f"{consumer.label} is cancelled, {how}")
    world.consumers.remove(consumer)
    world._count_user(consumer.queue, -1)
    if how == "keeps":
        consumer.is_alive = False
        world.leaving.append(consumer)
        world.broker.subscribing.cancel(consumer.subscription, keeps_held=True)
    else:
        world.left(consumer)
        world.broker.subscribing.cancel(consumer.subscription, is_vanished=how == "vanished")


@step(3)
def give_back(world: World, draw: random.Random) -> None:
    """One that kept what it had is gone for good."""
    if not world.leaving:
        return
    consumer = world.leaving.pop(draw.randrange(len(world.leaving)))
    is_vanished = draw.random() < 0.5
    world.note(f"{consumer.label} gives back, vanished {is_vanished}")
    receipts = _held_by(world, [consumer])
    world.left(consumer)
    if is_vanished:
        world.broker.settling.vanish_now(receipts)
    else:
        world.broker._running.release(receipts)


@step(4)
def disconnect(world: World, draw: random.Random) -> None:
    """A connection is lost with its consumers, and with those that had left and kept what they had."""
    if not world.consumers:
        return
    going = draw.sample(world.consumers, draw.randint(1, len(world.consumers)))
    world.note(f"disconnected: {', '.join(consumer.label for consumer in going)}")
    for consumer in going:
        world.consumers.remove(consumer)
        world._count_user(consumer.queue, -1)
    if world.leaving and draw.random() < 0.5:
        going.append(world.leaving.pop())
    receipts = _held_by(world, going)
    for consumer in going:
        world.left(consumer)
    is_vanished = draw.random() < 0.5
    world.broker.subscribing.leave_all([each.subscription for each in going], receipts, is_vanished=is_vanished)


def _held_by(world: World, consumers: list[Consumer]) -> list[Receipt]:
    return [hand.delivery.receipt for hand in world.hands.values() if hand.holder in consumers]


@step(3)
def hold_back(world: World, draw: random.Random) -> None:
    consumer = _consumer(world, draw)
    if consumer is not None:
        is_held_back = not consumer.subscription.is_held_back
        world.note(f"{consumer.label} held back: {is_held_back}")
        world.broker.subscribing.hold_back(consumer.subscription, is_held_back)


@step(2)
def set_prefetch(world: World, draw: random.Random) -> None:
    consumer = _consumer(world, draw)
    if consumer is not None:
        prefetch = draw.choice((1, 2, 6))
        world.note(f"{consumer.label} prefetch {prefetch}")
        world.broker.subscribing.set_prefetch(consumer.subscription, prefetch)


@step(1)
def set_pool_limit(world: World, draw: random.Random) -> None:
    if world.pools:
        pool, limit = draw.choice(world.pools), draw.choice((1, 2, 5))
        world.note(f"pool {world.pools.index(pool)} limit {limit}")
        world.broker.subscribing.set_pool_limit(pool, limit)
        # As a channel does when its client settles what came from queues that are gone.
        gone = [Receipt(*key, 1, 0) for key in pool.held if key[0] not in world.state.queues]
        world.broker.subscribing.let_go_in_pool(pool, gone)


# -- settling ---------------------------------------------------------------------------------------------------------


def _acknowledge(world: World, receipts: list[Receipt]) -> None:
    for receipt in receipts:
        world.ledger.may_acknowledge(receipt)
    outcomes = world.broker.settling.acknowledge(receipts).result()
    _settled(world, receipts, outcomes)


def _settled(world: World, receipts: list[Receipt], outcomes: list[BrokerError | None]) -> None:
    for receipt, outcome in zip(receipts, outcomes, strict=True):
        if outcome is not None:
            world.note(f"    {receipt.sequence}/{receipt.delivery}: {type(outcome).__name__}")
        world.settled(receipt)


def _numbers(hands: list[Hand]) -> str:
    return " ".join(f"{hand.delivery.number}/{hand.delivery.receipt.delivery}" for hand in hands)


@step(12)
def acknowledge(world: World, draw: random.Random) -> None:
    hands = world.some_hands(draw, draw.choice((1, 2, 5)))
    if not hands:
        return
    receipts = [hand.delivery.receipt for hand in hands]
    world.note(f"acknowledge {_numbers(hands)}")
    if draw.random() < 0.5:
        _acknowledge(world, receipts)
        return
    numbers = {receipt: hand.delivery.number for receipt, hand in zip(receipts, hands, strict=True)}
    for receipt in receipts:
        world.ledger.may_acknowledge(receipt)

    def settled(outcomes: list[BrokerError | None]) -> None:
        for receipt, outcome in zip(receipts, outcomes, strict=True):
            if outcome is None:
                world.ledger.gone(numbers[receipt], world.disk.last)
        _settled(world, receipts, outcomes)

    world.call(f"acknowledge {_numbers(hands)}", world.broker.settling.acknowledge(receipts), settled)


@step(3)
def acknowledge_now(world: World, draw: random.Random) -> None:
    """Acknowledge what is held longest, and do not wait for it."""
    receipts = [hand.delivery.receipt for hand in list(world.hands.values())[: draw.choice((2, 5))]]
    world.note(f"acknowledge at once {' '.join(str(receipt.sequence) for receipt in receipts)}")
    _acknowledge(world, receipts)


@step(6)
def nack(world: World, draw: random.Random) -> None:
    hands = world.some_hands(draw, draw.choice((1, 2, 5)))
    if not hands:
        return
    requeue = draw.random() < 0.75
    delay_ms = draw.choice((None, 0, *TIMES_MS))
    world.note(f"nack {_numbers(hands)}, requeue {requeue}, delay {delay_ms}")
    receipts = [hand.delivery.receipt for hand in hands]
    for receipt in receipts:
        world.settled(receipt)
    if draw.random() < 0.5:
        world.broker.settling._nack(requeue, delay_ms, "it failed", receipts)
    else:
        world.call("nack", world.broker.settling.nack(receipts, requeue=requeue, delay_ms=delay_ms, error="it failed"))


@step(5)
def release(world: World, draw: random.Random) -> None:
    hands = world.some_hands(draw, draw.choice((1, 2, 5)))
    if hands:
        world.note(f"release {_numbers(hands)}")
        receipts = [hand.delivery.receipt for hand in hands]
        for receipt in receipts:
            world.settled(receipt)
        world.broker._running.release(receipts)


@step(4)
def extend(world: World, draw: random.Random) -> None:
    hands = world.some_hands(draw, draw.choice((1, 2, 5)))
    if hands:
        lease_ms = draw.choice((0, *LEASES_MS))
        world.note(f"extend {_numbers(hands)} by {lease_ms}")
        world.call("extend", world.broker.settling.extend([hand.delivery.receipt for hand in hands], lease_ms))


@step(3)
def settle_late(world: World, draw: random.Random) -> None:
    """A receipt that is over has no effect, whatever is tried with it."""
    stale = [one for one in world.old_receipts if not _is_good(world, one)]
    if not stale:
        return
    receipt = draw.choice(stale)
    how = draw.choice(("acknowledge", "nack", "release"))
    world.note(f"{how} by a receipt that is over: {receipt}")
    before = snapshot.take(world.state, world.now_ms)
    outcomes: list[object]
    if how == "acknowledge":
        outcomes = list(world.broker.settling.acknowledge([receipt]).result())
    elif how == "nack":
        outcomes = list(world.broker.settling.nack([receipt]).result())
    else:
        outcomes = list(world.broker._running.release([receipt]))
    changed = snapshot.difference(before, snapshot.take(world.state, world.now_ms))
    if not isinstance(outcomes[0], BrokerError) or changed:
        world.blame.say("a stale receipt had an effect", f"{how} by {receipt}: {outcomes[0]!r}; {changed}")


def _is_good(world: World, receipt: Receipt) -> bool:
    """Whether the receipt still names the last delivery of a message that nobody has settled."""
    queue = world.state.queues.get(receipt.queue)
    message = None if queue is None else queue.find(receipt.sequence)
    deliveries = None if message is None else message.deliveries
    return (
        deliveries is not None
        and deliveries.count == receipt.delivery
        and deliveries.run == receipt.run
        and deliveries.is_open
    )


@step(5)
def transaction(world: World, draw: random.Random) -> None:
    """Several settlements and publishes in one go, then one wait for all of them, as AMQP's transactions do."""
    hands = world.some_hands(draw, 4)
    done, failed = hands[::2], hands[1::2]
    queue = world.some_queue(draw)
    publications = [publication(world, draw) for _ in range(draw.choice((0, 1, 3)))]
    world.note(f"transaction: acknowledge {_numbers(done)}, nack {_numbers(failed)}, publish {len(publications)}")
    _acknowledge(world, [hand.delivery.receipt for hand in done])
    for hand in failed:
        world.settled(hand.delivery.receipt)
    world.broker.settling._nack(draw.random() < 0.6, 0, "", [hand.delivery.receipt for hand in failed])
    for one in publications:
        world.broker.publishing.submit(queue, [one], is_use=False).result()
    world.call("durable after a transaction", world.broker.durable())
