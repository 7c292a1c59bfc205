"""A policy for very many queues: it is in the log at once, and the queues take it up some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from smista.core.policies import Policies
from smista.core.settings import QueueSettings
from smista.engine import Broker, Publication
from smista.errors import BrokerClosed
from smista.log import MemoryLog
from tests.waiting import until

COUNT = 5_000
AT_ONCE = 1_000
"""So many queues take up other settings in one turn of the loop at most."""


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        declare_many(broker)
        yield broker


def declare_many(broker: Broker) -> None:
    for number in range(COUNT):
        broker.declaring.submit_queue(f"q{number:04}", QueueSettings()).result()


def governed(broker: Broker, policy: str) -> int:
    return sum(queue.policy == policy for queue in broker._state.queues.values())


async def most_in_a_turn(broker: Broker, policy: str, work: Awaitable[Any]) -> int:
    """For how many queues a policy comes or goes in one turn of the loop."""
    task = asyncio.ensure_future(work)
    before, most = governed(broker, policy), 0

    def is_done() -> bool:
        nonlocal before, most
        now = governed(broker, policy)
        before, most = now, max(most, abs(now - before))
        return task.done()

    await until(is_done)
    await task
    return most


async def until_some_have_it(broker: Broker, policy: str) -> None:
    await until(lambda: governed(broker, policy))
    assert governed(broker, policy) < COUNT


async def test_queues_take_up_a_policy_some_at_a_time(broker: Broker) -> None:
    assert await most_in_a_turn(broker, "all", broker.declaring.set_policy("all", "*", {"lease_ms": 1})) <= AT_ONCE
    assert governed(broker, "all") == COUNT
    assert {broker.catalog.queue_settings(name).lease_ms for name in broker.catalog.queue_names()} == {1}
    assert await most_in_a_turn(broker, "all", broker.declaring.delete_policy("all")) <= AT_ONCE
    assert governed(broker, "all") == 0
    assert {broker.catalog.queue_settings(name) for name in broker.catalog.queue_names()} == {QueueSettings()}


async def test_many_who_set_policies_take_turns(broker: Broker) -> None:
    work = asyncio.gather(*(broker.declaring.set_policy(f"p{number}", "*", {"lease_ms": 1}) for number in range(10)))
    assert await most_in_a_turn(broker, "p0", work) <= AT_ONCE
    assert governed(broker, "p0") == COUNT


async def test_only_queues_that_a_policy_concerns_are_looked_at_closely(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    govern = Policies.govern

    def watched(self: Policies, queue: str, declared: QueueSettings) -> tuple[QueueSettings, str | None]:
        names.append(queue)
        return govern(self, queue, declared)

    monkeypatch.setattr(Policies, "govern", watched)
    assert await broker.declaring.set_policy("none", "other*", {"lease_ms": 1}) == 0
    assert names == []
    assert await broker.declaring.set_policy("one", "q0001", {"lease_ms": 1}) == 1
    assert names == ["q0001"]
    assert await broker.declaring.set_policy("one", "q0002", {"lease_ms": 1}) == 1
    assert names == ["q0001", "q0001", "q0002"]
    await broker.declaring.delete_policy("one")
    assert names[3:] == ["q0002"]


async def test_whoever_sets_a_policy_hears_for_how_many_queues_it_holds(broker: Broker) -> None:
    assert await broker.declaring.set_policy("all", "*", {"lease_ms": 1}) == COUNT
    assert await broker.declaring.set_policy("first", "q0*", {"lease_ms": 2}, priority=1) == 1_000
    assert await broker.declaring.set_policy("all", "*", {"lease_ms": 3}) == COUNT - 1_000


async def test_a_policy_that_is_deleted_while_it_is_taken_up_holds_for_no_queue(broker: Broker) -> None:
    setting = asyncio.ensure_future(broker.declaring.set_policy("all", "*", {"lease_ms": 1}))
    await until_some_have_it(broker, "all")
    await broker.declaring.delete_policy("all")
    assert governed(broker, "all") == 0
    await setting
    assert governed(broker, "all") == 0


async def test_a_policy_that_changes_twice_has_left_the_queues_it_held_for_first(broker: Broker) -> None:
    await broker.declaring.set_policy("one", "q4*", {"lease_ms": 1})
    setting = asyncio.ensure_future(broker.declaring.set_policy("one", "q0*", {"lease_ms": 2}))
    await asyncio.sleep(0)
    assert await broker.declaring.set_policy("one", "q1*", {"lease_ms": 3}) == 1_000
    assert {name[:2] for name in broker.catalog.queue_names() if broker.statistics.stats(name).policy} == {"q1"}
    await setting
    assert {name[:2] for name in broker.catalog.queue_names() if broker.statistics.stats(name).policy} == {"q1"}


async def test_what_happens_to_queues_while_a_policy_is_taken_up(broker: Broker) -> None:
    setting = asyncio.ensure_future(broker.declaring.set_policy("all", "*", {"lease_ms": 1}))
    await until_some_have_it(broker, "all")
    last, altered, again = (f"q{COUNT - number:04}" for number in (1, 2, 3))
    assert broker.statistics.stats(last).policy is None
    await broker.declaring.delete_queue(last)
    assert (await broker.declaring.alter_queue(altered, QueueSettings(max_depth=9))).lease_ms == 1
    await broker.declaring.delete_queue(again)
    await broker.declaring.declare_queue(again, QueueSettings(max_depth=8))
    await broker.declaring.declare_queue("new", QueueSettings(max_depth=7))
    await setting
    assert governed(broker, "all") == COUNT
    for name, max_depth in ((altered, 9), (again, 8), ("new", 7)):
        assert broker.catalog.queue_settings(name) == QueueSettings(lease_ms=1, max_depth=max_depth)


async def test_a_policy_is_taken_up_by_all_also_when_whoever_set_it_has_gone(broker: Broker) -> None:
    setting = asyncio.ensure_future(broker.declaring.set_policy("all", "*", {"lease_ms": 1}))
    await until_some_have_it(broker, "all")
    setting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await setting
    await until(lambda: governed(broker, "all") == COUNT)


async def test_what_is_over_a_limit_goes_in_every_queue(broker: Broker) -> None:
    last = f"q{COUNT - 1:04}"
    for name in ("q0000", last):
        await broker.publishing.publish(name, [Publication(b"%d" % number) for number in range(5)])
    await broker.declaring.set_policy("small", "*", {"max_depth": 2, "overflow": "drop-oldest"})
    assert [broker.statistics.stats(name).depth for name in ("q0000", last)] == [2, 2]


async def test_a_broker_that_closes_meanwhile_has_it_everywhere_when_it_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("smista.engine.broker.BACKGROUND_S", 0)
    log = Kept()
    broker = await Broker.open(log)
    declare_many(broker)
    setting = asyncio.ensure_future(broker.declaring.set_policy("all", "*", {"lease_ms": 1}))
    await until_some_have_it(broker, "all")
    await broker.close()
    assert governed(broker, "all") < COUNT
    with pytest.raises(BrokerClosed):
        await setting
    async with await Broker.open(log) as again:
        assert governed(again, "all") == COUNT


class Kept(MemoryLog):
    """A log that can be opened again."""

    def close(self) -> None:
        pass
