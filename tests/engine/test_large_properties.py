"""Messages with very large properties: what is read of them, or written, in one turn of the loop is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from smista.core.at_once import PROPERTIES_AT_ONCE
from smista.core.browsing import Wanted
from smista.core.message import Envelope, Publication
from smista.engine import Broker, Delivery, QueueSettings
from smista.log import MemoryLog
from tests.waiting import patience

LARGE = PROPERTIES_AT_ONCE // 2 + 1
"""Two of them are enough for one turn."""


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        yield broker


async def filled(broker: Broker, queue: str, sizes: Sequence[int], **settings: object) -> None:
    await broker.declaring.declare_queue(queue, QueueSettings(**settings))  # type: ignore[arg-type]  # as the test has them
    await broker.publishing.publish(
        queue, [Publication(b"%d" % place, Envelope(b"\x01" + b"x" * (size - 1))) for place, size in enumerate(sizes)]
    )


class Turns:
    """What comes in each turn of the loop."""

    def __init__(self) -> None:
        self.came: list[list[Delivery]] = [[]]
        self.has_come = asyncio.Event()

    def deliver(self, deliveries: list[Delivery]) -> None:
        self.came[-1] += deliveries
        self.has_come.set()

    @property
    def deliveries(self) -> list[Delivery]:
        return [delivery for some in self.came for delivery in some]

    @property
    def bytes_at_once(self) -> int:
        return max(sum(len(delivery.envelope.properties) for delivery in some) for some in self.came)


@asynccontextmanager
async def watched(broker: Broker) -> AsyncIterator[Turns]:
    """What subscribers are given; see `deliver`. Every turn of the loop is one entry."""
    turns, loop = Turns(), asyncio.get_running_loop()
    is_over = False

    def count() -> None:
        turns.came.append([])
        if not is_over:
            loop.call_soon(count)

    loop.call_soon(count)
    yield turns
    is_over = True
    await asyncio.sleep(0)


async def all_come(turns: Turns, count: int) -> None:
    async with patience():
        while len(turns.deliveries) < count:
            turns.has_come.clear()
            await turns.has_come.wait()


async def test_a_subscriber_gets_messages_of_which_much_is_said_in_turns(broker: Broker) -> None:
    await filled(broker, "q", [LARGE] * 20)
    async with watched(broker) as turns:
        broker.subscribing.subscribe("q", turns.deliver, prefetch=100)
        await all_come(turns, 20)
    assert [delivery.body for delivery in turns.deliveries] == [b"%d" % place for place in range(20)]
    assert turns.bytes_at_once == 2 * LARGE


async def test_one_message_comes_however_much_is_said_of_it(broker: Broker) -> None:
    await filled(broker, "q", [10 * LARGE] * 3)
    async with watched(broker) as turns:
        broker.subscribing.subscribe("q", turns.deliver, prefetch=100)
        await all_come(turns, 3)
    assert turns.bytes_at_once == 10 * LARGE


async def test_ordinary_messages_still_come_all_together(broker: Broker) -> None:
    await filled(broker, "q", [10] * 1000)
    async with watched(broker) as turns:
        broker.subscribing.subscribe("q", turns.deliver, prefetch=1000)
        await all_come(turns, 1000)
    assert max(map(len, turns.came)) == 1000


@pytest.mark.parametrize("ordered", [False, True])
async def test_several_subscribers_of_a_queue_share_a_turn(broker: Broker, ordered: bool) -> None:
    await filled(broker, "q", [LARGE] * 20, ordered=ordered)
    async with watched(broker) as turns:
        for _ in range(4):
            broker.subscribing.subscribe("q", turns.deliver, prefetch=100)
        await all_come(turns, 20)
    assert sorted(int(delivery.body) for delivery in turns.deliveries) == list(range(20))
    assert turns.bytes_at_once == 2 * LARGE


async def test_the_queues_of_a_turn_share_it(broker: Broker) -> None:
    for name in range(10):
        await filled(broker, f"q{name}", [LARGE] * 2)
    async with watched(broker) as turns:
        for name in range(10):
            broker.subscribing.subscribe(f"q{name}", turns.deliver, prefetch=100)
        await all_come(turns, 20)
    assert turns.bytes_at_once == 2 * LARGE


async def test_publishes_to_a_queue_with_limits_bring_no_more_in_a_turn(broker: Broker) -> None:
    await filled(broker, "q", [LARGE] * 20, max_depth=1000, limit_ready_only=True)
    async with watched(broker) as turns:
        broker.subscribing.subscribe("q", turns.deliver, prefetch=100)
        await all_come(turns, 1)
        for _ in range(10):
            broker.publishing.submit("q", [Publication(b"more")]).result()
        assert len(turns.deliveries) == 2
        await all_come(turns, 30)
    assert turns.bytes_at_once == 2 * LARGE


async def test_what_would_go_otherwise_comes_at_once_however_much_is_said_of_it(broker: Broker) -> None:
    await broker.declaring.declare_queue("q", QueueSettings())
    async with watched(broker) as turns:
        broker.subscribing.subscribe("q", turns.deliver, prefetch=100)
        envelope = Envelope(b"\x01" + b"x" * LARGE, ttl_ms=0)
        broker.publishing.submit("q", [Publication(b"x", envelope)] * 10).result()
        assert len(turns.deliveries) == 10


async def test_what_is_left_stays_in_its_order_for_others(broker: Broker) -> None:
    await filled(broker, "q", [LARGE] * 6)
    async with watched(broker) as turns:
        subscription = broker.subscribing.subscribe("q", turns.deliver, prefetch=100)
        await all_come(turns, 1)
        broker.subscribing.cancel(subscription)
        left = await broker.receiving.receive("q", 10)
    assert sorted(int(each.body) for each in [*left]) == [int(each.body) for each in left]


# -- filters ----------------------------------------------------------------------------------------------------------


class Reader:
    """A filter that has to read the properties of a message, and how much it read in each turn."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = [0]
        plain = broker.fair_turns.turn

        async def turn() -> None:
            self.read.append(0)
            await plain()

        monkeypatch.setattr(broker.fair_turns, "turn", turn)
        broker.read_routing_with(self._headers)
        self.wanted = Wanted(headers={"a": 1})

    def _headers(self, properties: bytes) -> tuple[dict[str, int], tuple[()]]:
        self.read[-1] += len(properties)
        return {"a": 1}, ()


async def test_a_filter_reads_messages_of_which_much_is_said_in_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(broker, "q", [LARGE] * 100)
    reader = Reader(broker, monkeypatch)
    page = await broker.browsing.browse("q", reader.wanted, limit=100)
    assert (len(page.messages), page.after) == (100, None)
    assert max(reader.read) == 2 * LARGE


async def test_what_is_moved_or_removed_by_a_filter_is_read_in_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(broker, "q", [LARGE] * 30)
    reader = Reader(broker, monkeypatch)
    assert await broker.redriving.redrive("q", reader.wanted, to="q", dry_run=True) == 30
    assert await broker.redriving.discard("q", reader.wanted) == 30
    assert max(reader.read) <= 2 * LARGE


async def test_a_filter_that_reads_little_looks_at_many_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(broker, "q", [10] * 1000)
    reader = Reader(broker, monkeypatch)
    page = await broker.browsing.browse("q", reader.wanted, limit=1000)
    assert len(page.messages) == 1000
    assert reader.read[:2] == [1000, 9000]
