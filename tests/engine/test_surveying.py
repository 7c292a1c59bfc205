"""Very many queues, exchanges and bindings are looked at in slices, a page at a time, by all who ask together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from smista.core import browsing
from smista.core.browsing import Wanted
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Publication
from smista.core.settings import Overflow, QueueSettings
from smista.engine import Broker
from smista.engine.browsing import LOOKED_AT_FIRST
from smista.exchange_errors import ExchangeNotFound
from smista.log import MemoryLog

COUNT = 100
DEPTH = 5_000


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        for number in range(COUNT):
            broker.declaring.submit_queue(f"q{number:03}", QueueSettings()).result()
        yield broker


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.engine.surveying.NAMES_AT_ONCE", 10)
    monkeypatch.setattr("smista.engine.surveying.QUEUES_AT_ONCE", 10)
    monkeypatch.setattr("smista.engine.statistics.QUEUES_AT_ONCE", 10)


async def turns_of(work: Coroutine[Any, Any, object]) -> int:
    """How many turns of the loop something takes."""
    task = asyncio.ensure_future(work)
    count = 0
    while not task.done():
        await asyncio.sleep(0)
        count += 1
    await task
    return count


async def test_names_come_in_order_and_in_pages(broker: Broker) -> None:
    names = [f"q{number:03}" for number in range(COUNT)]
    assert await broker.surveying.queue_page(limit=1_000) == names
    assert await broker.surveying.queue_page(after="q009", limit=3) == ["q010", "q011", "q012"]
    assert await broker.surveying.queue_page(prefix="q09", limit=3) == ["q090", "q091", "q092"]


async def test_names_are_looked_at_in_slices(broker: Broker, small_slices: None) -> None:
    assert await broker.surveying.queue_page(prefix="q09", limit=100) == [
        f"q{number:03}" for number in range(90, COUNT)
    ]
    assert await turns_of(broker.surveying.queue_page(limit=5)) >= COUNT // 10 - 1
    assert await turns_of(broker.surveying.distinct_settings()) >= COUNT // 10 - 1


async def test_queues_are_found_by_their_settings_in_slices(broker: Broker, small_slices: None) -> None:
    await broker.declaring.alter_queue("q007", QueueSettings(max_depth=1))
    await broker.declaring.alter_queue("q099", QueueSettings(max_depth=2))

    def is_limited(name: str, settings: QueueSettings) -> bool:
        return settings.max_depth is not None and name > "q0"

    assert await broker.surveying.queues_where(is_limited) == ["q007", "q099"]
    assert await turns_of(broker.surveying.queues_where(is_limited)) >= COUNT // 10 - 1


async def test_everything_is_counted_in_slices(broker: Broker, small_slices: None) -> None:
    await broker.publishing.publish("q000", [Publication(b"")] * 3)
    await broker.declaring.declare_queue("q000", namespace="other")
    await broker.publishing.publish("q000", [Publication(b"")] * 4, namespace="other")
    assert await broker.statistics.totals() == (COUNT + 1, 7)
    assert await turns_of(broker.statistics.totals()) >= COUNT // 10 - 1


async def test_what_is_over_a_limit_is_not_counted(broker: Broker) -> None:
    await broker.declaring.alter_queue(
        "q000", QueueSettings(max_depth=1, overflow=Overflow.DROP_OLDEST, limit_ready_only=True)
    )
    broker.publishing.submit("q000", [Publication(b"")] * 3).result()
    assert await broker.statistics.totals() == (COUNT, 1)


async def test_a_queue_that_is_deleted_meanwhile_is_not_counted(broker: Broker, small_slices: None) -> None:
    await broker.publishing.publish("q099", [Publication(b"")] * 3)
    counting = asyncio.ensure_future(broker.statistics.totals())
    await asyncio.sleep(0)
    assert broker.declaring.delete_queue_now(broker.catalog.queue_number("q099"))
    assert await counting == (COUNT - 1, 0)


async def test_bindings_come_in_pages(broker: Broker) -> None:
    for number in range(COUNT):
        await broker.declaring.bind(Binding.to_queue("amq.fanout", f"q{number:03}"))
        await broker.declaring.bind(Binding.to_queue("amq.direct", f"q{number:03}", "k"))
    found: list[Binding] = []
    while page := broker.surveying.binding_page(after=len(found), limit=30):
        assert len(page) <= 30
        found += page
    assert found == broker.catalog.bindings()
    one = broker.surveying.binding_page("amq.direct", after=90, limit=30)
    assert [(binding.source, binding.destination) for binding in one] == [
        ("amq.direct", f"q{number:03}") for number in range(90, COUNT)
    ]
    with pytest.raises(ExchangeNotFound):
        broker.surveying.binding_page("nowhere", limit=1)


async def test_exchanges_come_in_pages(broker: Broker) -> None:
    assert [one.name for one in await broker.surveying.exchange_page(limit=2)] == ["", "amq.direct"]
    assert [one.name for one in await broker.surveying.exchange_page(after="", limit=2)] == ["amq.direct", "amq.fanout"]


async def test_a_chain_of_exchanges_is_followed_in_slices_both_ways(broker: Broker, small_slices: None) -> None:
    names = [f"e{number}" for number in range(COUNT)]
    for name in names:
        await broker.declaring.declare_exchange(name, ExchangeSettings(ExchangeKind.FANOUT))
    for source, target in pairwise(names):
        await broker.declaring.bind(Binding.to_exchange(source, target))
    await broker.declaring.bind(Binding.to_queue(names[-1], "q000"))
    await broker.declaring.bind(Binding.to_queue(names[50], "q001"))
    assert await broker.surveying.queues_behind("e0") == ["q001", "q000"]
    assert await broker.surveying.exchanges_before("q001") == set(names[:51])
    assert await turns_of(broker.surveying.queues_behind("e0")) >= COUNT // 10 - 1
    assert await turns_of(broker.surveying.exchanges_before("q000")) >= COUNT // 10 - 1
    assert broker.catalog.reached("e0", "any") == ("q001", "q000")
    assert broker.catalog.reached("nowhere", "any") == ()


# -- a deep queue -----------------------------------------------------------------------------------------------------


def redrive(broker: Broker, wanted: Wanted) -> Coroutine[Any, Any, object]:
    return broker.redriving.redrive("q000", wanted, to="q001")


def discard(broker: Broker, wanted: Wanted) -> Coroutine[Any, Any, object]:
    return broker.redriving.discard("q000", wanted)


def browse(broker: Broker, wanted: Wanted) -> Coroutine[Any, Any, object]:
    return broker.browsing.browse("q000", wanted)


@pytest.mark.parametrize("look", [redrive, discard, browse])
async def test_many_who_find_nothing_in_a_deep_queue_take_turns(
    broker: Broker, look: Callable[[Broker, Wanted], Coroutine[Any, Any, object]]
) -> None:
    await broker.publishing.publish("q000", [Publication(b"")] * DEPTH)
    looked_at = 0

    def read(properties: bytes) -> tuple[None, tuple[()]]:
        nonlocal looked_at
        looked_at += 1
        return None, ()

    broker.read_routing_with(read)
    work = asyncio.gather(*(look(broker, Wanted(headers={"a": 1})) for _ in range(10)))
    # Each begins at once with a few, and goes on when it is its turn.
    await asyncio.sleep(0)
    assert looked_at <= 10 * LOOKED_AT_FIRST
    most = 0
    while not work.done():
        before = looked_at
        await asyncio.sleep(0)
        most = max(most, looked_at - before)
    assert looked_at == 10 * DEPTH
    assert most <= browsing.LOOKED_AT_MAX
