"""Very many messages in one call: received, settled and looked at in slices, everybody else in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from smista.core.browsing import Wanted
from smista.core.message import Envelope, Publication
from smista.core.settings import QueueSettings
from smista.engine import Broker, Delivery
from smista.engine.dispatcher import PUSHED_AT_ONCE
from smista.engine.receiving import RECEIVED_AT_ONCE
from smista.log import MemoryLog
from tests.waiting import until

COUNT = 5_000


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue("q", QueueSettings(max_prefetch=65_535, max_retries=0))
        await broker.publishing.publish("q", [Publication(b"%d" % number) for number in range(COUNT)])
        yield broker


@pytest.fixture
def turns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages nobody holds, whenever somebody who has much to do waits for a turn."""
    found: list[int] = []
    turn = broker.fair_turns.turn

    async def counted() -> None:
        found.append(broker.statistics.stats("q").ready)
        await turn()

    monkeypatch.setattr(broker.fair_turns, "turn", counted)
    return found


async def received(broker: Broker, limit: int = COUNT) -> list[Delivery]:
    return await broker.receiving.receive("q", limit)


async def test_they_are_received_in_slices_and_in_order(broker: Broker, turns: list[int]) -> None:
    deliveries = await received(broker)
    assert [int(each.body) for each in deliveries] == list(range(COUNT))
    assert turns == list(range(COUNT - RECEIVED_AT_ONCE, 0, -RECEIVED_AT_ONCE))


async def test_few_are_received_in_the_first_step(broker: Broker, turns: list[int]) -> None:
    assert len(await received(broker, RECEIVED_AT_ONCE)) == RECEIVED_AT_ONCE
    assert turns == []


async def test_whoever_goes_meanwhile_leaves_them_for_others(broker: Broker) -> None:
    asking = asyncio.ensure_future(received(broker))
    await until(lambda: broker.statistics.stats("q").in_flight > RECEIVED_AT_ONCE)
    assert broker.statistics.stats("q").ready
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert broker.statistics.stats("q").in_flight == 0
    assert [int(each.body) for each in await received(broker)] == list(range(COUNT))


async def test_long_headers_make_them_fewer_though_all_share_them(broker: Broker) -> None:
    await broker.declaring.declare_queue("wide", QueueSettings(max_prefetch=65_535))
    envelope = Envelope(properties=bytes(64 << 10))
    await broker.publishing.publish("wide", [Publication(b"x", envelope)] * 2_000)
    assert len(await broker.receiving.receive("wide", 2_000)) == 256
    assert len(await broker.browsing.peek("wide", 1_000)) == 256
    pushed: list[int] = []
    broker.subscribing.subscribe("wide", lambda deliveries: pushed.append(len(deliveries)), prefetch=50)
    await until(lambda: sum(pushed) == 50)
    assert max(pushed) <= 17


async def test_a_poll_that_waited_gets_all_of_it(broker: Broker) -> None:
    await broker.declaring.declare_queue("later", QueueSettings(max_prefetch=65_535))
    asking = asyncio.ensure_future(broker.receiving.receive("later", COUNT, wait_ms=20_000))
    await asyncio.sleep(0)
    await broker.publishing.publish("later", [Publication(b"%d" % number) for number in range(COUNT)])
    assert [int(each.body) for each in await asking] == list(range(COUNT))


@pytest.mark.parametrize("way", ["acknowledge", "nack", "release", "extend"])
async def test_they_are_settled_in_slices(broker: Broker, way: str, turns: list[int]) -> None:
    receipts = [each.receipt for each in await received(broker)]
    turns.clear()
    match way:
        case "acknowledge":
            outcomes: list[object] = [*await broker.settling.acknowledge(receipts)]
        case "nack":
            outcomes = [*await broker.settling.nack(receipts, requeue=False)]
        case "release":
            outcomes = [*await broker.settling.release(receipts)]
        case _:
            outcomes = [*await broker.settling.extend(receipts, 60_000)]
    assert len(outcomes) == COUNT
    assert len(turns) >= (2 if way in ("acknowledge", "extend") else 9)
    assert broker.statistics.stats("q").in_flight == (COUNT if way == "extend" else 0)


async def test_whoever_waits_gets_what_is_released_in_order(broker: Broker) -> None:
    receipts = [each.receipt for each in await received(broker)]
    asking = asyncio.ensure_future(broker.receiving.receive("q", COUNT, wait_ms=20_000))
    await asyncio.sleep(0)
    await broker.settling.release(list(reversed(receipts)))
    numbers = [int(each.body) for each in await asking]
    assert numbers == list(range(COUNT))


async def test_a_page_is_copied_in_slices(broker: Broker, turns: list[int]) -> None:
    page = await broker.browsing.browse("q", limit=COUNT)
    assert all(one.sequence < other.sequence for one, other in pairwise(page.messages))
    assert len(page.messages) == COUNT
    # Five to find them, and four to copy them.
    assert len(turns) >= 9


@pytest.mark.parametrize("consumers", [1, 2, 7])
async def test_they_are_pushed_some_in_each_turn_and_in_order(broker: Broker, consumers: int) -> None:
    turn = 0
    pushed: list[tuple[int, int]] = []
    for _ in range(consumers):
        broker.subscribing.subscribe(
            "q", lambda deliveries: pushed.extend((turn, int(each.body)) for each in deliveries), prefetch=COUNT
        )
    while len(pushed) < COUNT:
        await asyncio.sleep(0)
        turn += 1
    assert {number for _, number in pushed} == set(range(COUNT))
    in_turns = Counter(when for when, _ in pushed)
    assert max(in_turns.values()) <= 2 * PUSHED_AT_ONCE
    if consumers == 1:
        assert [number for _, number in pushed] == list(range(COUNT))


@pytest.mark.parametrize("way", ["browse", "redrive", "discard"])
async def test_long_headers_are_looked_into_a_few_at_a_time(broker: Broker, turns: list[int], way: str) -> None:
    await broker.declaring.declare_queue("wide")
    await broker.publishing.publish("wide", [Publication(b"x", Envelope(properties=bytes(64 << 10)))] * 100)
    looked_at: list[int] = []

    def read(properties: bytes) -> tuple[None, tuple[()]]:
        looked_at.append(len(turns))
        return None, ()

    broker.read_routing_with(read)
    wanted = Wanted(headers={"a": 1})
    match way:
        case "browse":
            after: int | None = 0
            while after is not None:
                after = (await broker.browsing.browse("wide", wanted, after=after)).after
        case "redrive":
            await broker.redriving.redrive("wide", wanted)
        case _:
            await broker.redriving.discard("wide", wanted)
    assert len(looked_at) == 100
    # The first of a page are looked at in the step in which it is asked for.
    assert max(Counter(looked_at).values()) <= 4 + 1
