"""No path writes a block of any size: steps are bounded, and a body is written once however many queues get it."""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Envelope, Publication
from smista.core.settings import DeadLetterMode, Overflow, QueueSettings
from smista.core.staging import Commit, Load, Part, Row
from smista.engine import Broker, BrokerSettings, reclaim
from smista.engine import publishing as publishing_module
from smista.engine import staging as staging_module
from smista.engine.slices import STEP_BYTES_MAX
from smista.log.errors import LogDropped
from tests.alike import alike
from tests.engine.bench import Bench, MemoryPlace, turns, until

STEP = 20_000
BODY = b"x" * 3000
COUNT = 60
BOUND = STEP + 2 * len(BODY) + 4000
"""A step, and what else may stand in its block: some small records, a body that was under way."""

Kept = tuple[Bench, MemoryPlace]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (publishing_module, staging_module):
        monkeypatch.setattr(module, "STEP_BYTES_MAX", STEP)


async def opened(kept: Kept) -> Broker:
    bench, _ = kept
    await bench.restart(msgspec.structs.replace(bench.settings, block_bytes_max=STEP // 2))
    return bench.broker


async def keep_little(bench: Bench) -> None:
    """Start it again so that its log keeps next to nothing beyond what lives."""
    await bench.restart(
        msgspec.structs.replace(
            bench.settings, block_bytes_max=STEP // 2, log_retention_ms=0, log_retention_bytes=0, log_slack_bytes=0
        )
    )


async def relocate_all(bench: Bench, place: MemoryPlace) -> None:
    """Have all blocks that are there dropped: what lives in them is written again."""
    end = place.log.next_position
    await bench.declare("other")
    while place.log.first_position < end:
        await bench.publish(BODY, queue="other")
        await bench.acknowledge(await bench.receive_one("other"))
        await turns()


def largest(place: MemoryPlace) -> int:
    log, found = place.log, 0
    for position in range(log.first_position, log.next_position):
        with contextlib.suppress(LogDropped):  # the broker lives, and drops blocks meanwhile
            found = max(found, len(log.read(position)))
    return found


async def fan(bench: Bench, *queues: str) -> None:
    await bench.broker.declaring.declare_exchange("fan", ExchangeSettings(ExchangeKind.FANOUT))
    for queue in queues:
        await bench.declare(queue)
        await bench.broker.declaring.bind(Binding.to_queue("fan", queue))


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("batch_id", [None, "b"])
async def test_a_batch(kept: Kept, batch_id: str | None) -> None:
    broker = await opened(kept)
    await kept[0].declare()
    batch = [Publication(b"%d" % number + BODY) for number in range(COUNT)]
    for _ in range(2):
        results = await broker.publishing.publish("orders", batch, batch_id=batch_id)
    assert len(results) == COUNT
    assert kept[0].counts()[0] == (2 * COUNT if batch_id is None else COUNT)
    assert largest(kept[1]) <= BOUND


@pytest.mark.usefixtures("small_steps")
async def test_bodies_published_alike(kept: Kept) -> None:
    broker = await opened(kept)
    await kept[0].declare("orders", QueueSettings(body_bytes_max=len(BODY)))
    bodies = [BODY] * COUNT
    bodies[7] = bodies[40] = BODY + b"too large"
    refused = broker.publishing.submit_alike("orders", alike(bodies)).result()
    assert [place for place, _ in refused] == [7, 40]
    await broker.durable()
    assert kept[0].counts()[0] == COUNT - 2
    assert largest(kept[1]) <= BOUND


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("exchange", [None, "fan"])
async def test_a_staged_batch(kept: Kept, exchange: str | None) -> None:
    broker = await opened(kept)
    queues = ["orders"] if exchange is None else [f"q{number}" for number in range(20)]
    await fan(kept[0], *queues)
    commit = Commit(
        job="j",
        batch="1",
        namespace="/",
        queue="orders" if exchange is None else None,
        exchange=exchange,
        parts=(Part(0, 0, COUNT, 0),),
        rows=COUNT,
        at_ms=0,
    )
    await broker.staging.begin(commit, {queue: Load() for queue in queues})
    await broker.staging.publish(commit, [Row(Publication(BODY)) for _ in range(COUNT)])
    await broker.durable()
    assert [kept[0].counts(queue)[0] for queue in queues] == [COUNT] * len(queues)
    assert largest(kept[1]) <= BOUND + COUNT * len(queues) * 30


@pytest.mark.parametrize("how", ["nack", "vanish", "expire", "overflow", "release"])
async def test_copies_of_dead_letters(kept: Kept, how: str) -> None:
    """To twelve queues each: every letter's body is written once more for all of them, and no block holds many."""
    bench, place = kept
    broker = await opened(kept)
    targets = [f"d{number}" for number in range(12)]
    await fan(bench, *targets)
    settings = QueueSettings(
        dead_letter=DeadLetterMode.MOVE,
        dead_letter_exchange="fan",
        max_retries=0,
        message_ttl_ms=5000 if how in ("expire", "release") else None,
    )
    await bench.declare("orders", settings)
    for _ in range(COUNT):
        await bench.publish(BODY)
    if how == "nack":
        await bench.reject(*await broker.receiving.receive("orders", COUNT))
    elif how == "vanish":
        subscription = broker.subscribing.subscribe("orders", lambda deliveries: None, prefetch=COUNT)
        await until(lambda: bench.counts()[2] == COUNT)
        broker.subscribing.cancel(subscription, is_vanished=True)
    elif how == "expire":
        bench.pass_time(ms=6000)
    elif how == "release":
        deliveries = await broker.receiving.receive("orders", COUNT)
        bench.pass_time(ms=6000)
        await broker.settling.release([delivery.receipt for delivery in deliveries])
    else:
        limited = msgspec.structs.replace(
            settings, limit_ready_only=True, max_depth=0, overflow=Overflow.DEAD_LETTER_OLDEST
        )
        await broker.declaring.alter_queue("orders", limited)
        await bench.publish(b"last")
    await until(lambda: bench.counts("d11")[0] >= COUNT)
    await broker.durable()
    assert largest(place) <= BOUND
    written = sum(len(place.log.read(position)) for position in range(1, place.log.next_position))
    assert written < COUNT * len(BODY) * 3


async def test_relocated_messages_with_long_histories(kept: Kept) -> None:
    """What is known of a message may be much larger than what was written of it at first."""
    bench, place = kept
    await keep_little(bench)
    await bench.declare("orders", QueueSettings(max_retries=None))
    await bench.publish(*[b"x"] * COUNT)
    for _ in range(8):
        deliveries = await bench.broker.receiving.receive("orders", COUNT)
        await bench.broker.settling.nack([one.receipt for one in deliveries], delay_ms=0, error="e" * 1000)
    await bench.declare("other")
    while place.log.first_position < 10:
        await bench.publish(BODY, queue="other")
        await bench.acknowledge(await bench.receive_one("other"))
        await turns()
    assert largest(place) <= BOUND + 8 * 1100
    await bench.restart()
    assert bench.counts()[0] == COUNT


@pytest.mark.parametrize("is_dead", [False, True])
async def test_relocated_copies_of_a_message_with_large_properties(kept: Kept, is_dead: bool) -> None:
    """They share them in the log too, also after they died."""
    bench, place = kept
    await keep_little(bench)
    queues = [f"q{number}" for number in range(40)]
    await fan(bench, *queues)
    await bench.declare("dead")
    settings = QueueSettings(
        max_retries=0, dead_letter=DeadLetterMode.MOVE, dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    for queue in queues:
        await bench.broker.declaring.alter_queue(queue, settings)
    properties = bytes([1]) * 100_000
    await bench.broker.publishing.publish_to_exchange("fan", Publication(BODY, Envelope(properties)))
    if is_dead:
        for queue in queues:
            await bench.reject(await bench.receive_one(queue))
        assert bench.counts("dead")[0] == len(queues)
    await relocate_all(bench, place)
    assert largest(place) <= len(properties) + BOUND
    await bench.restart()
    assert bench.broker._keeper.held().total < 3 * len(properties)
    assert sum(bench.counts(queue)[0] for queue in (*queues, "dead")) == len(queues)
    [found] = await bench.broker.receiving.receive("dead" if is_dead else "q39")
    assert (found.body, found.envelope.properties) == (BODY, properties)


async def test_copies_of_a_dead_letter_with_a_long_history(kept: Kept) -> None:
    """They share it: in the log, and after a restart in memory."""
    bench, place = kept
    await opened(kept)
    targets = [f"d{number}" for number in range(40)]
    await fan(bench, *targets)
    settings = QueueSettings(dead_letter=DeadLetterMode.MOVE, dead_letter_exchange="fan", max_retries=8)
    await bench.declare("orders", settings)
    await bench.publish(BODY)
    for _ in range(9):
        [delivery] = await bench.broker.receiving.receive("orders")
        await bench.broker.settling.nack([delivery.receipt], delay_ms=0, error="e" * 1000)
    await until(lambda: bench.counts("d39")[0] == 1)
    await bench.broker.durable()
    assert largest(place) <= BOUND + 10 * 1100
    await bench.restart()
    messages = [next(iter(bench.broker._state.queue(target).messages())) for target in targets[1:]]
    assert all(message.deaths is messages[0].deaths for message in messages)
    assert len(messages[0].deaths[0].failures) == 9


async def test_relocated_copies_that_failed_each_for_itself(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim, "PART_BYTES", STEP)
    bench, place = kept
    await keep_little(bench)
    queues = [f"q{number}" for number in range(40)]
    await fan(bench, *queues)
    await bench.broker.publishing.publish_to_exchange("fan", Publication(b"x"))
    for queue in queues:
        for _ in range(3):
            [delivery] = await bench.broker.receiving.receive(queue)
            await bench.broker.settling.nack([delivery.receipt], delay_ms=0, error="e" * 1000)
    await relocate_all(bench, place)
    assert largest(place) <= BOUND + 4 * 1100


def test_the_real_bounds_fit_the_log() -> None:
    assert STEP_BYTES_MAX + 2 * (128 << 20) + BrokerSettings().block_bytes_max < 512 << 20
