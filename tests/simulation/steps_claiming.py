"""Steps: claims, as Spark's queue source uses them."""

from __future__ import annotations

import random

from smista.engine.claim_views import ClaimView
from tests.simulation.steps import step
from tests.simulation.world import World

CONSUMERS = ("c", "e", "f")
"""One more than a queue remembers, see `stage`."""
SESSIONS = ("s", "s", "t")


def _numbers(world: World, queue: str, consumer: str) -> tuple[int, int]:
    """Up to which number the consumer has acknowledged, and its last one."""
    found = world.find(queue)
    claimant = None if found is None else world.state.claimants.get(found.number, {}).get(consumer)
    return (0, 0) if claimant is None else (claimant.acknowledged, claimant.last)


def _claimant(world: World, draw: random.Random) -> tuple[str, str, str]:
    """Queue, consumer and session: nearly always of one that has claimed, and mostly the session it is."""
    known = [
        (queue.name, one.consumer, one.session)
        for number, by_name in world.state.claimants.items()
        if (queue := world.state.queues.get(number)) is not None
        for one in by_name.values()
    ]
    if known and draw.random() < 0.8:
        name, consumer, session = draw.choice(known)
        return name, consumer, session if session and draw.random() < 0.85 else draw.choice(SESSIONS)
    return world.some_queue(draw), draw.choice(CONSUMERS), draw.choice(SESSIONS)


def _done_up_to(world: World, queue: str, consumer: str, number: int) -> None:
    found = world.find(queue)
    if found is not None:
        key = found.number, consumer
        world.ledger.claims_done[key] = max(world.ledger.claims_done.get(key, 0), number)


@step(6)
def claim(world: World, draw: random.Random) -> None:
    queue, consumer, session = _claimant(world, draw)
    if draw.random() < 0.4:
        consumer = draw.choice(CONSUMERS)  # so that a queue has to forget one
    acknowledged, last = _numbers(world, queue, consumer)
    after = draw.choice((acknowledged, acknowledged, last, last + 1))
    max_rows, max_bytes = draw.choice((1, 3, 5)), draw.choice((None, None, 12))
    lease_ms, wait_ms = draw.choice((1, 16, 160, 1_000)), draw.choice((0, 0, 48, 1_000))
    _done_up_to(world, queue, consumer, after)
    what = f"claim of {queue} by {consumer}/{session} after {after}, {max_rows} rows, lease {lease_ms}, wait {wait_ms}"
    world.note(what)

    def made(view: ClaimView | None) -> None:
        world.note(f"    claimed {view}")

    world.call(
        what,
        world.broker.claiming.claim(
            queue,
            consumer,
            session=session,
            after=after,
            max_rows=max_rows,
            max_bytes=max_bytes,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
        ),
        made,
        queue=queue,
        uses=True,
        is_polling=wait_ms > 0,
    )


@step(3)
def read_claim(world: World, draw: random.Random) -> None:
    queue, consumer, session = _claimant(world, draw)
    acknowledged, last = _numbers(world, queue, consumer)
    number = draw.choice((last, draw.randint(acknowledged, last + 1)))
    world.note(f"read claim {number} of {queue} by {consumer}/{session}")
    world.call(f"reading claim {number} of {queue} by {consumer}", _read(world, queue, consumer, number, session))


async def _read(world: World, queue: str, consumer: str, number: int, session: str) -> None:
    iterator = await world.broker.claiming.read(queue, consumer, number, session=session or None)
    try:
        async for rows in iterator:
            if len(rows.bodies) != len(rows.numbers):
                world.blame.say("a claim reads without bodies", f"claim {number} of {queue}")
            for message, body in zip(rows.numbers, rows.bodies, strict=False):
                if world.ledger.bodies.get(message, body) != body:
                    world.blame.say("a wrong body", f"message {message} of claim {number} reads {body!r}")
    finally:
        await iterator.aclose()  # type: ignore[attr-defined]  # it is a generator


@step(4)
def acknowledge_claims(world: World, draw: random.Random) -> None:
    queue, consumer, session = _claimant(world, draw)
    up_to = draw.randint(*_numbers(world, queue, consumer))
    _done_up_to(world, queue, consumer, up_to)
    world.note(f"acknowledge claims of {queue} by {consumer}/{session} up to {up_to}")
    world.call(
        f"acknowledging claims of {queue} by {consumer} up to {up_to}",
        world.broker.claiming.acknowledge(queue, consumer, up_to, session=session),
    )


@step(2)
def renew_claims(world: World, draw: random.Random) -> None:
    queue, consumer, session = _claimant(world, draw)
    lease_ms = draw.choice((16, 160))
    world.note(f"renew claims of {queue} by {consumer}/{session} for {lease_ms}")
    world.call(
        "renewing", world.broker.claiming.renew(queue, consumer, lease_ms, session=session), queue=queue, uses=True
    )


@step(3)
def release_claims(world: World, draw: random.Random) -> None:
    queue, consumer, session = _claimant(world, draw)
    acknowledged, last = _numbers(world, queue, consumer)
    after = draw.randint(acknowledged, last)
    world.note(f"release claims of {queue} by {consumer}/{session} after {after}")
    world.call(
        f"releasing claims of {queue} by {consumer}",
        world.broker.claiming.release(queue, consumer, session=session, after=after),
    )
