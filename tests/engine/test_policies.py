"""Policies of a running broker: in the log, through restarts and reclaiming, felt by consumers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from smista.core import declaring
from smista.core.governing import Governing, delete_policy, set_policy
from smista.core.policies import Policy
from smista.core.settings import QueueSettings
from smista.engine import Broker, Publication
from smista.errors import InvalidArgument
from smista.log import MemoryLog
from tests.engine.world import World

Step = Callable[[World], object]


def declared(name: str, settings: QueueSettings) -> Step:
    return lambda world: declaring.declare_queue(world.state, name, settings, now_ms=world.now_ms)


def to_its_end(world: World, governing: Governing) -> None:
    while not governing.is_done:
        governing.go_on(1, now_ms=world.now_ms)


def policy(name: str, pattern: str, priority: int, **settings: object) -> Step:
    return lambda world: to_its_end(world, set_policy(world.state, "/", Policy(name, pattern, priority, settings)))


def delete_if_there(name: str) -> Step:
    def delete(world: World) -> None:
        if world.state.namespaces["/"].policies.find(name) is not None:
            to_its_end(world, delete_policy(world.state, "/", name))

    return delete


def alter_if_there(name: str, settings: QueueSettings) -> Step:
    def alter(world: World) -> None:
        queue = world.state.namespaces["/"].queues.get(name)
        if queue is not None:
            declaring.alter_queue(world.state, queue, settings, now_ms=world.now_ms)

    return alter


def reclaim_all(world: World) -> None:
    """Have all blocks that there are written again or dropped, and replay after each."""
    end = world.journal.position
    while world.front < end - 1:
        assert world.reclaim()
        world.check()


STEPS: list[Step] = [
    declared("orders", QueueSettings(max_bytes=10)),
    policy("wide", "*", 0, max_bytes=None, lease_ms=5),
    policy("small", "or*", 1, max_depth=2, overflow="drop-oldest"),
    delete_if_there("small"),
    alter_if_there("orders", QueueSettings(lease_ms=7)),
]


@pytest.mark.parametrize("order", [*itertools.permutations(range(len(STEPS)))])
def test_a_restart_keeps_policies_and_what_they_make_of_queues(order: tuple[int, ...]) -> None:
    world = World()
    for step in order:
        STEPS[step](world)
        world.check()
    world.restart()
    world.check()
    reclaim_all(world)


def test_a_policy_is_written_again_before_its_block_is_dropped() -> None:
    world = World()
    STEPS[0](world)
    STEPS[1](world)
    world.seal()
    [before] = world.state.namespaces["/"].policies
    position = before.position
    while world.front <= position:
        assert world.reclaim()
    assert before.position > position
    world.restart()
    assert [one.name for one in world.state.namespaces["/"].policies] == ["wide"]
    assert world.state.queue("orders").settings.lease_ms == 5


def test_a_policy_that_was_deleted_stays_away_when_the_log_is_reclaimed() -> None:
    world = World()
    STEPS[0](world)
    STEPS[1](world)
    world.seal()
    delete_if_there("wide")(world)
    world.seal()
    reclaim_all(world)
    world.restart()
    assert not list(world.state.namespaces["/"].policies)
    assert world.state.queue("orders").settings == QueueSettings(max_bytes=10)


async def test_a_running_broker_takes_up_a_policy_at_once() -> None:
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue("orders")
        await broker.publishing.publish("orders", [Publication(b"%d" % number) for number in range(5)])
        assert await broker.declaring.set_policy("small", "orders", {"max_depth": 2, "overflow": "drop-oldest"}) == 1
        assert broker.statistics.stats("orders").depth == 2
        assert broker.statistics.stats("orders").policy == "small"
        assert broker.catalog.queue_settings("orders").max_depth == 2
        assert broker.catalog.declared_settings("orders") == QueueSettings()
        await broker.declaring.declare_queue("orders")
        assert [one.name for one in broker.catalog.policies()] == ["small"]
        await broker.declaring.delete_policy("small")
        assert broker.catalog.queue_settings("orders") == QueueSettings()
        assert (broker.statistics.stats("orders").policy, broker.catalog.policies()) == (None, [])


async def test_how_many_a_consumer_may_ask_for_is_refused_in_the_name_of_the_policy() -> None:
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue("orders")
        await broker.declaring.set_policy("few", "*", {"max_prefetch": 2})
        with pytest.raises(InvalidArgument, match=r"\(max_prefetch of policy 'few'\)"):
            await broker.receiving.receive("orders", 3)
        with pytest.raises(InvalidArgument, match=r"\(max_prefetch of policy 'few'\)"):
            broker.subscribing.subscribe("orders", lambda deliveries: None, prefetch=3)
