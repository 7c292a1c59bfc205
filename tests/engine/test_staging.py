"""Committing staged batches: all of it, once, whatever happens in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from smista.core import staging
from smista.core.message import Envelope, Publication
from smista.core.settings import Overflow, QueueSettings
from smista.core.staging import Commit, Load, Part, Row
from smista.engine import Broker, BrokerSettings
from smista.errors import BrokerError, InvalidPriority, MessageTooLarge, QueueFull, QueueNotFound
from smista.exchange_errors import ExchangeNotFound
from smista.log import MemoryLog
from tests.engine.bench import Bench, MemoryPlace

PARTS = (Part(0, 0, 6, 1), Part(1, 2, 4, 2))


def intent(*, queue: str | None = "orders", exchange: str | None = None, batch: str = "7") -> Commit:
    return Commit(job="job", batch=batch, namespace="/", queue=queue, exchange=exchange, parts=PARTS, rows=10, at_ms=0)


def rows(start: int = 0, end: int = 10, *, key: str = "", prefix: str = "") -> list[Row]:
    return [
        Row(
            Publication(
                b"%d" % number, Envelope(routing_key=key, deduplication_id=f"{prefix}{number}" if prefix else None)
            )
        )
        for number in range(start, end)
    ]


NUMBERS = [b"%d" % number for number in range(10)]
LOADS = {"orders": Load(10, 10, 1, 0)}


async def test_a_batch_is_published_in_slices_and_remembered(orders: Bench) -> None:
    commit = intent()
    await orders.broker.staging.begin(commit, LOADS)
    assert orders.broker.staging.unfinished() == [commit]
    await orders.broker.staging.publish(commit, rows(0, 5))
    assert (commit.done, commit.is_done) == (5, False)
    await orders.broker.staging.publish(commit, rows(5))
    assert (commit.published, commit.is_done, commit.parts) == (10, True, ())
    assert orders.broker.staging.unfinished() == []
    assert await orders.bodies() == NUMBERS


@pytest.mark.parametrize("step", range(5))
async def test_a_restart_after_every_step_goes_on_behind_what_is_there(orders: Bench, step: int) -> None:
    await orders.broker.staging.begin(intent(), LOADS)
    for number in range(5):
        if number == step:
            await orders.restart()
        [commit] = orders.broker.staging.unfinished()
        assert (commit.done, commit.parts) == (2 * number, PARTS)
        await orders.broker.staging.publish(commit, rows(commit.done, commit.done + 2))
    await orders.restart()
    found = orders.broker.staging.find("job", "7")
    assert found is not None
    assert (found.is_done, found.published) == (True, 10)
    assert await orders.bodies() == NUMBERS


async def test_an_empty_batch_is_done_with_its_intent(orders: Bench) -> None:
    commit = intent()
    commit.parts, commit.rows = (), 0
    await orders.broker.staging.begin(commit, {})
    await orders.restart()
    found = orders.broker.staging.find("job", "7")
    assert found is not None
    assert (found.is_done, found.published) == (True, 0)


async def test_commits_live_through_reclaiming(orders: Bench) -> None:
    tiny = BrokerSettings(
        disk_free_bytes_min=0,
        watch_interval_s=0.01,
        block_bytes_max=1024,
        log_retention_ms=0,
        log_retention_bytes=0,
        log_slack_bytes=4096,
    )
    await orders.restart(tiny)
    await orders.declare("other")
    done = intent(batch="6")
    await orders.broker.staging.begin(done, LOADS)
    await orders.broker.staging.publish(done, rows())
    await orders.broker.staging.begin(intent(), LOADS)
    for _ in range(3):
        for _ in range(50):
            await orders.publish(b"x" * 500, queue="other")
            await orders.acknowledge(await orders.receive_one("other"))
        await orders.restart()
        [commit] = orders.broker.staging.unfinished()
        assert (commit.batch, commit.done, commit.parts) == ("7", 0, PARTS)
        found = orders.broker.staging.find("job", "6")
        assert found is not None
        assert found.is_done


@pytest.mark.parametrize(
    ("error", "settings", "load"),
    [
        (QueueFull, {"max_depth": 9}, Load(10, 10, 1, 0)),
        (QueueFull, {"max_depth": 9, "overflow": Overflow.DEAD_LETTER_NEWEST}, Load(10, 10, 1, 0)),
        (QueueFull, {"max_bytes": 9}, Load(10, 10, 1, 0)),
        (MessageTooLarge, {"body_bytes_max": 5}, Load(10, 10, 6, 0)),
        (InvalidPriority, {"max_priority": 5}, Load(10, 10, 1, 6)),
    ],
)
async def test_what_a_queue_cannot_take_is_refused_as_a_whole(
    orders: Bench, error: type[BrokerError], settings: dict[str, object], load: Load
) -> None:
    await orders.declare("small", QueueSettings(**settings))  # type: ignore[arg-type]  # of several types
    with pytest.raises(error):
        await orders.broker.staging.begin(intent(queue="small"), {"small": load})
    assert orders.broker.staging.find("job", "7") is None


async def test_a_queue_that_is_not_there_is_refused(orders: Bench) -> None:
    with pytest.raises(QueueNotFound):
        await orders.broker.staging.begin(intent(queue="nowhere"), {"nowhere": Load()})


async def test_a_queue_that_drops_its_oldest_takes_any_number(orders: Bench) -> None:
    await orders.declare("small", QueueSettings(max_depth=3, overflow=Overflow.DROP_OLDEST))
    commit = intent(queue="small")
    await orders.broker.staging.begin(commit, {"small": Load(10, 10, 1, 0)})
    await orders.broker.staging.publish(commit, rows())
    assert await orders.bodies(queue="small") == NUMBERS[7:]


async def test_what_was_promised_enters_a_queue_that_filled_up_meanwhile(orders: Bench) -> None:
    await orders.declare("small", QueueSettings(max_depth=10))
    commit = intent(queue="small")
    await orders.broker.staging.begin(commit, {"small": Load(10, 10, 1, 0)})
    await orders.publish(*NUMBERS[:5], queue="small")
    await orders.broker.staging.publish(commit, rows())
    assert orders.broker.statistics.stats("small").ready == 15
    with pytest.raises(QueueFull):
        await orders.publish(b"x", queue="small")


async def test_rows_for_a_queue_that_was_deleted_meanwhile_go_nowhere(orders: Bench) -> None:
    commit = intent()
    await orders.broker.staging.begin(commit, LOADS)
    await orders.broker.staging.publish(commit, rows(0, 5))
    await orders.broker.declaring.delete_queue("orders")
    await orders.broker.staging.publish(commit, rows(5))
    assert (commit.is_done, commit.unrouted) == (True, 5)
    await orders.restart()
    assert orders.broker.staging.unfinished() == []


async def test_deduplication_ids_keep_out_what_was_there(orders: Bench) -> None:
    await orders.publish(b"3", envelope=Envelope(deduplication_id="d3"))
    commit = intent()
    await orders.broker.staging.begin(commit, LOADS)
    await orders.broker.staging.publish(commit, rows(prefix="d"))
    assert (commit.published, commit.duplicates) == (9, 1)
    assert sorted(await orders.bodies()) == NUMBERS


async def test_an_exchange_leads_rows_to_its_queues(orders: Bench) -> None:
    await orders.declare("copy")
    await orders.fanout("all", "orders", "copy")
    loads: dict[str, Load] = {}
    await orders.broker.staging.route("all", rows(), loads)
    assert loads == {"orders": LOADS["orders"], "copy": LOADS["orders"]}
    commit = intent(queue=None, exchange="all")
    await orders.broker.staging.begin(commit, loads)
    await orders.broker.staging.publish(commit, rows())
    assert (commit.published, commit.unrouted) == (10, 0)
    assert await orders.bodies() == await orders.bodies(queue="copy") == NUMBERS


async def test_rows_that_an_exchange_leads_nowhere_are_counted(orders: Bench) -> None:
    loads: dict[str, Load] = {}
    some = rows(0, 4, key="nowhere") + rows(4, key="orders")
    await orders.broker.staging.route("", some, loads)
    assert loads == {"orders": Load(6, 6, 1, 0)}
    commit = intent(queue=None, exchange="")
    await orders.broker.staging.begin(commit, loads)
    await orders.broker.staging.publish(commit, some)
    assert (commit.published, commit.unrouted) == (6, 4)
    with pytest.raises(ExchangeNotFound):
        await orders.broker.staging.route("nowhere", some, loads)


async def test_in_each_turn_of_the_loop_rows_find_their_way_for_so_long_only(
    orders: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look at the clock finds a slice to be over.
    monkeypatch.setattr("smista.engine.staging.SLICE_S", -1.0)
    await orders.fanout("all", "orders")
    turns, seen = 0, []
    route_rows = staging.route_rows

    def note(*arguments: Any, **named: Any) -> Any:
        seen.append(turns)
        return route_rows(*arguments, **named)

    monkeypatch.setattr(staging, "route_rows", note)
    commit = intent(queue=None, exchange="all")
    loads: dict[str, Load] = {}

    async def commit_all() -> None:
        await orders.broker.staging.route("all", rows(), loads)
        await orders.broker.staging.begin(commit, loads)
        await orders.broker.staging.publish(commit, rows())

    committing = asyncio.create_task(commit_all())
    while not committing.done():
        turns += 1
        await asyncio.sleep(0)
    await committing
    # Ten times to see where they go, and ten times to publish them: one of them in a turn.
    assert len(seen) == len(set(seen)) == 20
    assert commit.published == 10


async def test_batches_are_forgotten_in_time_but_never_unfinished_ones(
    orders: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "REMEMBERED_MAX", 3)
    for number in range(4):
        commit = intent(batch=str(number))
        await orders.broker.staging.begin(commit, LOADS)
        await orders.broker.staging.publish(commit, rows())
    assert [orders.broker.staging.find("job", str(number)) is None for number in range(4)] == [
        True,
        False,
        False,
        False,
    ]
    await orders.broker.staging.begin(intent(batch="unfinished"), LOADS)
    monkeypatch.setattr(staging, "REMEMBERED_MS", 0)
    for number in range(5, 7):
        commit = intent(batch=str(number))
        await orders.broker.staging.begin(commit, LOADS)
        await orders.broker.staging.publish(commit, rows())
    assert orders.broker.staging.find("job", "1") is None
    assert [commit.batch for commit in orders.broker.staging.unfinished()] == ["unfinished"]


async def test_a_slice_is_whole_at_every_block_though_consumers_are_served(kept: tuple[Bench, MemoryPlace]) -> None:
    """Whatever prefix of the log a crash leaves: no row is there that the commit does not count as done."""
    bench, place = kept
    await bench.restart(BrokerSettings(disk_free_bytes_min=0, block_bytes_max=500))
    settings = QueueSettings(limit_ready_only=True, max_depth=100, overflow=Overflow.DROP_OLDEST)
    await bench.declare("orders", settings)
    bench.broker.subscribing.subscribe("orders", lambda deliveries: None, prefetch=7)
    commit = intent()
    await bench.broker.staging.begin(commit, LOADS)
    await bench.broker.staging.publish(commit, rows())
    await bench.broker.durable()
    for end in range(place.log.first_position, place.log.next_position):
        log = MemoryLog()
        for position in range(1, end + 1):
            log.append(position, place.log.read(position))
        async with await Broker.open(log) as broker:
            published = (
                broker.statistics.stats("orders").published_total if "orders" in broker.catalog.queue_names() else 0
            )
            found = broker.staging.find("job", "7")
            assert published == (0 if found is None else found.done)
