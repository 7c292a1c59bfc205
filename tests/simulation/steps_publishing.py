"""Steps: publishing, in every form there is."""

from __future__ import annotations

import asyncio
import random

import msgspec

from smista.core.message import Alike
from smista.core.queue import Queue
from smista.core.staging import Commit, Load, Part, Row
from smista.engine import Envelope, Publication, Published
from smista.errors import BrokerError, QueueFull
from tests.simulation.callers import Batch
from tests.simulation.drawing import publication
from tests.simulation.replaying import STAGED
from tests.simulation.steps import step
from tests.simulation.world import EXCHANGES, KEYS, World


def _confirm(world: World, results: list[Published | BrokerError] | list[Published]) -> None:
    for result in results:
        if isinstance(result, Published) and not result.is_duplicate:
            world.ledger.confirmed(result.number, world.disk.last)


def _several(world: World, draw: random.Random) -> list[Publication]:
    return [publication(world, draw) for _ in range(draw.choice((1, 1, 2, 3, 5)))]


def _shown(publications: list[Publication]) -> str:
    return " ".join(_one(each) for each in publications)


def _one(each: Publication) -> str:
    envelope = each.envelope
    fields = {
        "group": envelope.group,
        "id": envelope.deduplication_id,
        "ttl": envelope.ttl_ms,
        "retries": envelope.max_retries,
        "key": envelope.routing_key or None,
        "priority": each.priority,
        "delay": each.delay_ms,
        "at": each.deliver_at_ms,
    }
    more = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    return each.body.decode() + (f"({more})" if more else "")


def _publish(world: World, queue: str, publications: list[Publication]) -> None:
    world.note(f"publish to {queue}: {_shown(publications)}")
    world.call(
        f"publish to {queue}",
        world.broker.publishing.publish(queue, publications),
        lambda results: _confirm(world, results),
        queue=queue,
        uses=True,
    )


@step(14)
def publish(world: World, draw: random.Random) -> None:
    _publish(world, world.some_queue(draw), _several(world, draw))


@step(3)
def publish_large(world: World, draw: random.Random) -> None:
    """Bodies of which few fit into memory, where that is short."""
    queue = world.some_queue(draw)
    publications = []
    for _ in range(draw.choice((2, 3, 5))):
        world.token += 1
        publications.append(Publication((b"m%d" % world.token).ljust(60, b".")))
    _publish(world, queue, publications)


@step(5)
def publish_batch(world: World, draw: random.Random) -> None:
    """A batch with an id, and the same again from whoever did not get the answer: it is not stored twice."""
    batches = [batch for batch in world.batches if not batch.is_under_way]
    if batches and draw.random() < 0.6:
        batch = draw.choice(batches)
        if world.theme == "batches" and draw.random() < 0.5 and world.find(batch.queue.name) is batch.queue:
            _limit_bodies(world, batch.queue, draw.choice((10, 200)))
    else:
        name = world.some_queue(draw)
        queue = world.find(name)
        if queue is None:
            return
        publications = _several(world, draw)
        if world.theme == "batches" and draw.random() < 0.5:
            # Nothing has to be looked at one by one, and some are too large for some queues.
            publications = [Publication(each.body.ljust(draw.choice((0, 20)), b".")) for each in publications]
        batch = Batch(f"batch {world.token}", queue, publications)
        world.batches.append(batch)
    world.note(f"publish {batch.name} to {batch.queue.name}: {_shown(batch.publications)}")
    batch.is_under_way = True
    world.call(
        batch.name,
        world.broker.publishing.publish(batch.queue.name, batch.publications, batch_id=batch.name),
        lambda results: _batch_published(world, batch, results),
        queue=batch.queue.name,
        uses=True,
        finally_=batch.returned,
    )


def _limit_bodies(world: World, queue: Queue, body_bytes_max: int) -> None:
    world.note(f"alter {queue.name}: bodies of {body_bytes_max} bytes")
    settings = msgspec.structs.replace(queue.declared, body_bytes_max=body_bytes_max)
    world.call(f"alter {queue.name}", world.broker.declaring.alter_queue(queue.name, settings))


def _batch_published(world: World, batch: Batch, results: list[Published | BrokerError]) -> None:
    _confirm(world, results)
    queue = batch.queue
    has_memory = queue.dedup is not None and world.state.queues.get(queue.number) is queue
    for place, result in enumerate(results):
        if not isinstance(result, Published):
            continue
        stored = batch.stored.get(place)
        if stored is None or not has_memory or stored[1] + stored[2] <= world.now_ms:
            if not result.is_duplicate:
                batch.stored[place] = (result.number, world.now_ms, queue.settings.dedup_window_ms)
        elif result.number != stored[0] >= world.ledger.forgotten.get(queue.number, 0):
            world.blame.say(
                "a batch was stored twice",
                f"{batch.name}, place {place}: message {stored[0]} the first time, {result.number} now",
            )
        publication = batch.publications[place]
        if publication.envelope.deduplication_id is None:
            body = world.ledger.bodies.get(result.number)
            if body is not None and body != publication.body:
                world.blame.say(
                    "a batch was answered with another message",
                    f"{batch.name}, place {place}: {publication.body!r} is said to be {result.number}, {body!r}",
                )


@step(6)
def publish_now(world: World, draw: random.Random) -> None:
    queue, publications = world.some_queue(draw), _several(world, draw)
    is_use = draw.random() < 0.7
    world.note(f"publish at once to {queue}, use {is_use}: {_shown(publications)}")
    results = world.broker.publishing.submit(queue, publications, is_use=is_use).result()
    if is_use:
        world.used(queue)
    if draw.random() < 0.5:
        world.call(f"durable after publish to {queue}", world.broker.durable(), lambda _: _confirm(world, results))


@step(4)
def publish_alike(world: World, draw: random.Random) -> None:
    queue, like = world.some_queue(draw), publication(world, draw)
    bodies = [publication(world, draw).body for _ in range(draw.choice((1, 2, 4)))]
    world.note(f"publish alike to {queue}: {_one(like)} and {b' '.join(bodies).decode()}")
    # Some with properties of their own.
    envelopes = [
        msgspec.structs.replace(like.envelope, properties=b"\x02own %d" % draw.randrange(9))
        if draw.random() < 0.5
        else like.envelope
        for _ in bodies
    ]
    world.broker.publishing.submit_alike(queue, Alike(like, bodies, envelopes)).result()
    world.used(queue)


@step(6)
def publish_to_exchange(world: World, draw: random.Random) -> None:
    exchange = draw.choice(("", *EXCHANGES)) if draw.random() < 0.5 else "amq.fanout"
    one = publication(world, draw, exchange=exchange)
    headers = {"h": draw.choice((1, 2))} if draw.random() < 0.5 else None
    world.note(f"publish to exchange {exchange!r}: {_one(one)} {headers}")
    if draw.random() < 0.5:
        # What is to go in any case, goes before.
        world.broker._running.enter_within_limits()
        before = world.state.next_sequence, set(world.ledger.alive)
        try:
            world.broker.publishing.submit_to_exchange(exchange, one, headers=headers).result()
        except QueueFull as refusal:
            # What one queue alone refuses may become a dead letter.
            is_one = len(world.broker.catalog.route(exchange, one.envelope.routing_key, headers=headers).queues) == 1
            if not is_one and before != (world.state.next_sequence, set(world.ledger.alive)):
                world.blame.say("a refused publish changed something", f"{exchange!r}: {refusal}")
            raise
        return
    world.call(
        f"publish to exchange {exchange!r}",
        world.broker.publishing.publish_to_exchange(exchange, one, headers=headers),
        lambda results: _confirm(world, results),
    )


@step(6)
def publish_to_queues(world: World, draw: random.Random) -> None:
    names = world.queue_names()
    queues = draw.sample(names, min(len(names), draw.choice((1, 2, 3))))
    one, is_use = publication(world, draw), draw.random() < 0.5
    world.note(f"publish to queues {queues}: {_one(one)}")
    results = world.broker.publishing.submit_to_queues(queues, one, is_use=is_use).result()
    if is_use:
        for queue in queues:
            world.used(queue)
    if draw.random() < 0.5:
        world.call("durable after publish to queues", world.broker.durable(), lambda _: _confirm(world, results))


# -- staged batches ---------------------------------------------------------------------------------------------------


@step(4)
def stage(world: World, draw: random.Random) -> None:
    """Commit a staged batch, as Spark's sink does."""
    job, batch = draw.choice(("j", "k")), str(draw.randrange(6))
    if (job, batch) in world.staged:
        return
    exchange = draw.choice(EXCHANGES) if draw.random() < 0.3 else None
    queue = None if exchange is not None else world.some_queue(draw)
    rows = []
    for number in range(draw.choice((1, 3, 6))):
        body = STAGED + f"{job}/{batch}/{number}/".encode()
        key = draw.choice(KEYS)
        group = "g" if draw.random() < 0.3 else None
        delay_ms = draw.choice((16, 48)) if draw.random() < 0.2 else None
        rows.append(
            Row(
                Publication(body, Envelope(routing_key=key, group=group), delay_ms=delay_ms), {"h": draw.choice((1, 2))}
            )
        )
    world.staged[job, batch] = rows
    commit = Commit(
        job=job,
        batch=batch,
        namespace="/",
        queue=queue,
        exchange=exchange,
        parts=(Part(0, 0, len(rows), 0),),
        rows=len(rows),
        at_ms=0,
    )
    world.note(f"stage {job}/{batch}, {len(rows)} rows, for {queue or exchange}")
    world.call(f"commit of {job}/{batch}", _commit(world, commit, rows, draw.choice((1, 2, 6))))


async def _commit(world: World, commit: Commit, rows: list[Row], at_once: int) -> None:
    broker = world.broker
    loads: dict[str, Load] = {}
    if commit.queue is not None:
        load = loads[commit.queue] = Load()
        for row in rows:
            load.add_row(row.publication)
    else:
        assert commit.exchange is not None
        await broker.staging.route(commit.exchange, rows, loads)
    await broker.staging.begin(commit, loads)
    await _go_on(world, commit, rows, at_once)


async def _go_on(world: World, commit: Commit, rows: list[Row], at_once: int) -> None:
    """Publish what is not done of a commit."""
    while not commit.is_done:
        await world.broker.staging.publish(commit, rows[commit.done : commit.done + at_once])
        await asyncio.sleep(0)
    await world.broker.durable()


@step(1)
def go_on_with_staged(world: World, draw: random.Random) -> None:
    """As is done after a restart: whatever is not done is gone on with, unless somebody is at it."""
    busy = {call.what for call in world.calls}
    for commit in world.broker.staging.unfinished():
        what = f"commit of {commit.job}/{commit.batch}"
        if what not in busy:
            world.note(f"go on with {commit.job}/{commit.batch} after row {commit.done}")
            world.call(what, _go_on(world, commit, world.staged[commit.job, commit.batch], draw.choice((1, 2, 6))))
