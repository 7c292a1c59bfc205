"""Claims on a running broker: through restarts, reclaiming and paging, in slices, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from smista.core import claims, receiving
from smista.core.message import Message, Publication
from smista.core.queue import Queue
from smista.core.settings import QueueSettings
from smista.engine import BrokerSettings, claiming
from smista.engine.claim_rows import READ_AT_ONCE
from smista.engine.claim_views import ClaimView
from smista.engine.claiming import TAKEN_AT_ONCE
from smista.errors import (
    BrokerError,
    ClaimBroken,
    ClaimExpired,
    ClaimNotFound,
    ConsumerInUse,
    InvalidArgument,
    InvalidName,
    QueueNotFound,
)
from tests.engine.bench import SETTINGS, Bench, MemoryPlace, until

TINY = BrokerSettings(
    disk_free_bytes_min=0,
    watch_interval_s=0.01,
    block_bytes_max=1024,
    log_retention_ms=0,
    log_retention_bytes=0,
    log_slack_bytes=4096,
)
"""Reclaims all the time."""
TINY_BLOCKS = BrokerSettings(disk_free_bytes_min=0, watch_interval_s=0.01, block_bytes_max=1024)
LEASE_MS = 60_000


class Spark:
    """A consumer that claims, in one session."""

    def __init__(self, bench: Bench, session: str = "one", consumer: str = "spark") -> None:
        self.bench = bench
        self.session = session
        self.consumer = consumer

    async def find(
        self,
        after: int,
        max_rows: int = 100,
        *,
        max_bytes: int | None = None,
        lease_ms: int = 600_000,
        wait_ms: int = 0,
    ) -> ClaimView | None:
        return await self.bench.broker.claiming.claim(
            "orders",
            self.consumer,
            session=self.session,
            after=after,
            max_rows=max_rows,
            max_bytes=max_bytes,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
        )

    async def claim(self, after: int, max_rows: int = 100, *, lease_ms: int = 600_000) -> ClaimView:
        claim = await self.find(after, max_rows, lease_ms=lease_ms)
        assert claim is not None
        return claim

    async def read(self, number: int, start: int = 0, end: int | None = None) -> list[bytes]:
        batches = await self.bench.broker.claiming.read(
            "orders", self.consumer, number, start=start, end=end, session=self.session
        )
        return [body async for rows in batches for body in rows.bodies]

    async def acknowledge(self, up_to: int) -> tuple[int, int]:
        return await self.bench.broker.claiming.acknowledge("orders", self.consumer, up_to, session=self.session)

    async def heartbeat(self, lease_ms: int = 600_000) -> list[ClaimView]:
        return await self.bench.broker.claiming.renew("orders", self.consumer, lease_ms, session=self.session)

    async def release(self, after: int = 0) -> int:
        return await self.bench.broker.claiming.release("orders", self.consumer, session=self.session, after=after)


@pytest.fixture
def spark(orders: Bench) -> Spark:
    return Spark(orders)


NUMBERS = [b"%d" % number for number in range(10)]


async def test_a_claim_is_read_in_slices_any_number_of_times(orders: Bench, spark: Spark) -> None:
    await orders.publish(*NUMBERS)
    claim = await spark.claim(0, 6)
    assert (claim.number, claim.after, claim.rows, claim.body_bytes) == (1, 0, 6, 6)
    for _ in range(3):
        assert await spark.read(1) == NUMBERS[:6]
        assert await spark.read(1, 2, 4) == NUMBERS[2:4]
        assert await spark.read(1, 4, 100) == NUMBERS[4:6]
        assert await spark.read(1, 6) == []


async def test_rows_carry_all_that_is_known(orders: Bench, spark: Spark) -> None:
    [published] = await orders.publish(b"x", priority=7)
    await spark.claim(0)
    [rows] = [one async for one in await orders.broker.claiming.read("orders", "spark", 1)]
    assert (rows.queue, rows.claim, rows.first, rows.numbers) == ("orders", 1, 0, [published.number])
    assert (rows.priorities, rows.delivery_counts) == ([7], [1])
    assert rows.created_at_ms == [published.created_at_ms]
    assert rows.delivered_at_ms[0] >= published.created_at_ms


async def test_a_claim_survives_every_step_of_a_restart(orders: Bench, spark: Spark) -> None:
    await orders.publish(*NUMBERS)
    await orders.restart()
    assert (await spark.claim(0, 4)).number == 1
    await orders.restart()
    assert (await spark.claim(0, 4)).rows == 4
    assert await spark.read(1) == NUMBERS[:4]
    assert orders.counts() == (6, 0, 4, 0)
    assert (await spark.claim(1, 4)).number == 2
    await orders.restart()
    with pytest.raises(ClaimNotFound, match="acknowledged"):
        await spark.read(1)
    assert await spark.read(2) == NUMBERS[4:8]
    assert await spark.acknowledge(2) == (4, 0)
    await orders.restart()
    assert await spark.acknowledge(2) == (0, 0)
    assert orders.counts() == (2, 0, 0, 0)
    assert (await spark.claim(2, 1)).number == 3
    await spark.release()
    await orders.restart()
    assert orders.counts() == (2, 0, 0, 0)
    assert (await spark.claim(2)).number == 4


async def test_an_expiry_survives_a_restart_and_so_does_what_is_left_of_it(orders: Bench, spark: Spark) -> None:
    await orders.publish(*NUMBERS)
    await spark.claim(0, lease_ms=LEASE_MS)
    await orders.broker.close()
    orders.pass_time(LEASE_MS)
    await orders.open()
    await until(lambda: orders.counts() == (10, 0, 0, 0))
    for _ in range(2):
        with pytest.raises(ClaimExpired):
            await spark.read(1)
        await orders.restart()
    with pytest.raises(ClaimExpired):
        await spark.acknowledge(1)
    assert orders.broker.statistics.stats("orders").acknowledged_late_total == 10
    assert (await spark.claim(1)).number == 2


async def test_claims_live_through_reclaiming(orders: Bench, spark: Spark) -> None:
    await orders.restart(TINY)
    await orders.publish(*NUMBERS)
    await spark.claim(0, 4)
    await orders.declare("other")
    for _ in range(3):
        for _ in range(50):
            await orders.publish(b"x" * 500, queue="other")
            await orders.acknowledge(await orders.receive_one("other"))
        await orders.restart()
        assert await spark.read(1) == NUMBERS[:4]
        await spark.heartbeat()
    assert await spark.acknowledge(1) == (4, 0)
    await orders.restart()
    assert orders.counts() == (6, 0, 0, 0)


async def test_bodies_that_are_paged_out_are_read_back(orders: Bench, spark: Spark) -> None:
    bodies = [b"%d" % number * 200 for number in range(200)]
    await orders.publish(*bodies)
    small = BrokerSettings(disk_free_bytes_min=0, watch_interval_s=0.01, resident_bytes_max=2_000)
    await orders.restart(small)
    assert (await spark.claim(0, 1000)).rows == 200
    for _ in range(2):
        assert await spark.read(1) == bodies
        assert await spark.read(1, 50, 60) == bodies[50:60]


async def test_max_bytes_ends_a_claim_but_never_before_its_first_row(orders: Bench, spark: Spark) -> None:
    await orders.publish(*[b"x" * 100] * 10)
    for after, limit, rows in ((0, 350, 3), (1, 1, 1), (2, 10_000, 6)):
        claim = await spark.find(after, 1000, max_bytes=limit)
        assert claim is not None
        assert (claim.number, claim.rows) == (after + 1, rows)


async def test_an_empty_queue_is_waited_on(orders: Bench, spark: Spark) -> None:
    assert await spark.find(0) is None
    assert await spark.find(0, wait_ms=20) is None
    waiting = asyncio.create_task(spark.find(0, wait_ms=20_000))
    await until(lambda: orders.broker.statistics.measures().long_poll_count == 1)
    await spark.heartbeat()
    await orders.publish(*NUMBERS)
    claim = await waiting
    assert claim is not None
    assert (claim.number, claim.rows) == (1, 10)
    assert await spark.read(1) == NUMBERS


async def test_impatient_clients_get_one_claim(orders: Bench, spark: Spark) -> None:
    await orders.publish(*NUMBERS)
    found = await asyncio.gather(*(spark.find(0, 4) for _ in range(5)))
    assert {(claim.number, claim.rows) for claim in found if claim is not None} == {(1, 4)}
    waiting = [asyncio.create_task(Spark(orders, consumer="late").find(0, 100, wait_ms=20_000)) for _ in range(3)]
    await orders.publish(*NUMBERS)
    claims = await asyncio.gather(*waiting)
    assert {claim.number for claim in claims if claim is not None} == {1}
    assert orders.broker.statistics.stats("orders").in_flight == 4 + sum(
        {claim.rows for claim in claims if claim is not None}
    )


async def test_a_second_session_is_fenced_also_by_a_restart_and_takes_over_in_time(orders: Bench, spark: Spark) -> None:
    await orders.restart(BrokerSettings(disk_free_bytes_min=0, watch_interval_s=0.01, claim_session_ms=60_000))
    await orders.publish(*NUMBERS)
    await spark.claim(0, 4)
    two = Spark(orders, "two")
    for call in (two.find(0), two.read(1), two.acknowledge(1), two.heartbeat(), two.release()):
        with pytest.raises(ConsumerInUse, match="session 'one'"):
            await call
    await orders.restart()
    with pytest.raises(ConsumerInUse, match="session 'one'"):
        await two.find(0)
    orders.pass_time(60_000)
    assert (await two.claim(0)).rows == 4
    with pytest.raises(ConsumerInUse, match="session 'two'"):
        await spark.heartbeat()


async def test_a_purge_and_a_deletion_are_told(orders: Bench, spark: Spark) -> None:
    await orders.publish(*NUMBERS)
    await spark.claim(0, 4)
    await orders.broker.declaring.purge("orders")
    for _ in range(2):
        with pytest.raises(ClaimBroken):
            await spark.read(1)
        await orders.restart()
    assert await spark.acknowledge(1) == (0, 4)
    await orders.publish(*NUMBERS)
    await spark.claim(1, 4)
    await orders.broker.declaring.delete_queue("orders")
    with pytest.raises(QueueNotFound):
        await spark.read(2)
    await orders.declare()
    await orders.restart()
    with pytest.raises(ClaimNotFound, match="never claimed"):
        await spark.read(2)
    with pytest.raises(ClaimNotFound, match="never made"):
        await spark.find(2)


async def test_a_purge_while_a_claim_is_read_ends_the_reading_with_an_error(orders: Bench, spark: Spark) -> None:
    await orders.publish(*[b"x" * 5000] * 4000)
    await spark.claim(0, 4000)
    batches = await orders.broker.claiming.read("orders", "spark", 1)
    assert len((await anext(batches)).bodies) < 4000
    await orders.broker.declaring.purge("orders")
    with pytest.raises(ClaimBroken):
        await anext(batches)


async def test_claims_are_listed_and_counted(orders: Bench, spark: Spark) -> None:
    await orders.publish(*NUMBERS)
    await spark.claim(0, 4)
    [claimant] = orders.broker.claiming.claimants("orders")
    assert [claimant] == orders.broker.claiming.claimants("orders", "spark")
    assert (claimant.consumer, claimant.session, claimant.acknowledged, claimant.last) == ("spark", "one", 0, 1)
    assert [(claim.number, claim.rows) for claim in claimant.claims] == [(1, 4)]
    stats = orders.broker.statistics.stats("orders")
    assert (stats.claims, stats.claimed) == (1, 4)
    with pytest.raises(ClaimNotFound):
        orders.broker.claiming.claimants("orders", "nobody")


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (InvalidName, {"consumer": ""}),
        (InvalidArgument, {"session": ""}),
        (InvalidArgument, {"after": -1}),
        (InvalidArgument, {"max_rows": 0}),
        (InvalidArgument, {"max_rows": 1_000_001}),
        (InvalidArgument, {"max_bytes": 0}),
        (InvalidArgument, {"lease_ms": 0}),
        (InvalidArgument, {"wait_ms": 20_001}),
        (QueueNotFound, {"queue": "nowhere"}),
    ],
)
async def test_wrong_arguments_are_named(orders: Bench, error: type[BrokerError], wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"queue": "orders", "consumer": "spark", "session": "one", "after": 0, "max_rows": 1}
    with pytest.raises(error):
        await orders.broker.claiming.claim(**{**right, **wrong})  # type: ignore[arg-type]  # that is what is tested


async def test_a_queue_that_is_not_durable_can_be_claimed_from_but_forgets(orders: Bench) -> None:
    await orders.broker.declaring.delete_queue("orders")
    await orders.declare("orders", QueueSettings(durable=False))
    spark = Spark(orders)
    await orders.publish(*NUMBERS)
    await spark.claim(0, 4)
    assert await spark.read(1) == NUMBERS[:4]
    await orders.restart()
    assert orders.broker.catalog.queue_names() == []


@pytest.mark.parametrize("lost", [0, 1])
async def test_rows_that_the_log_has_lost_make_reading_an_error_and_come_again(
    kept: tuple[Bench, MemoryPlace], lost: int
) -> None:
    bench, place = kept
    await bench.restart(TINY_BLOCKS)
    await bench.declare()
    await bench.publish(*[b"%d" % number for number in range(700)])
    first = place.log.next_position
    spark = Spark(bench)
    assert (await spark.claim(0, 700)).rows == 700
    await bench.broker.close()
    blocks = [position for position in range(first, place.log.next_position) if len(place.log.read(position)) > 2000]
    assert len(blocks) == 2
    place.log.damage(blocks[lost])
    await bench.open(on_damage=lambda damage: None)
    with pytest.raises(ClaimBroken, match=f"{(500, 200)[lost]} of the rows 0 to 700"):
        await spark.read(1)
    assert await spark.release() == (200, 500)[lost]
    assert bench.counts() == (700, 0, 0, 0)


# -- how long it takes ------------------------------------------------------------------------------------------------


async def most_in_a_turn(work: Awaitable[object], count: Callable[[], int]) -> int:
    """By how much something counted changed in one turn of the loop, at most, until some work was done."""
    task, before, most = asyncio.ensure_future(work), count(), 0
    while not task.done():
        await asyncio.sleep(0)
        now = count()
        before, most = now, max(most, abs(now - before))
    await task
    return most


@pytest.fixture
async def many(orders: Bench) -> Bench:
    await orders.restart(SETTINGS)
    for _ in range(20):
        await orders.broker.publishing.publish("orders", [Publication(b"x" * 1024) for _ in range(1000)])
    return orders


async def test_the_loop_is_not_held_while_a_large_claim_is_made_read_and_settled(many: Bench) -> None:
    spark, rows = Spark(many), 0

    async def read() -> None:
        nonlocal rows
        async for batch in await many.broker.claiming.read("orders", "spark", 1, session=spark.session):
            rows += len(batch.bodies)
            await asyncio.sleep(0)

    assert await most_in_a_turn(spark.claim(0, 20_000), lambda: many.counts()[2]) == TAKEN_AT_ONCE
    assert many.counts() == (0, 0, 20_000, 0)
    assert await most_in_a_turn(read(), lambda: rows) == READ_AT_ONCE
    assert rows == 20_000
    await spark.heartbeat()
    assert await most_in_a_turn(spark.acknowledge(1), lambda: many.counts()[2]) == TAKEN_AT_ONCE
    assert many.counts() == (0, 0, 0, 0)


async def test_nor_while_one_with_a_limit_of_bytes_is_made_of_what_was_released(
    many: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them came back, and lie in the line's heap."""
    spark, looked_at = Spark(many), 0

    def count(queue: Queue, limit: int) -> list[Message]:
        nonlocal looked_at
        found = receiving.peek(queue, limit)
        looked_at += len(found)
        return found

    monkeypatch.setattr(claiming, "peek", count)
    await spark.claim(0, 20_000)
    assert await most_in_a_turn(spark.release(), lambda: many.counts()[2]) == TAKEN_AT_ONCE
    again = asyncio.ensure_future(spark.find(0, 20_000, max_bytes=15_100 * 1024))
    assert await most_in_a_turn(again, lambda: many.counts()[2]) == TAKEN_AT_ONCE
    assert many.counts() == (4_900, 0, 15_100, 0)
    assert looked_at <= 15_100 + 2 * TAKEN_AT_ONCE


async def test_a_consumer_that_was_forgotten_stays_so(orders: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CLAIMANTS_KEPT", 2)
    for name in ("a", "b", "c"):
        await orders.broker.claiming.renew("orders", name, 1000, session="s")
    before = {view.consumer for view in orders.broker.claiming.claimants("orders")}
    assert len(before) == 2
    await orders.restart()
    assert {view.consumer for view in orders.broker.claiming.claimants("orders")} == before
