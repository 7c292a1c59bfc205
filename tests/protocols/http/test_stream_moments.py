"""Moments in a stream's life that a socket does not let one choose: the stream in this process, its peer played."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from smista.engine import Broker, BrokerSettings, Overflow, Publication, QueueSettings
from smista.log import MemoryLog
from tests.logged import logged
from tests.protocols.http.peer import Peer
from tests.waiting import until


class GatedLog(MemoryLog):
    """A log that writes and reads only while its gates are open."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()
        self.may_read = threading.Event()
        self.may_write.set()
        self.may_read.set()

    def append(self, position: int, data: bytes) -> None:
        self.may_write.wait()
        super().append(position, data)

    def read(self, position: int) -> bytes:
        self.may_read.wait()
        return super().read(position)


async def page_out(broker: Broker) -> None:
    """Publish so much that the last bodies are in the log only."""
    for _ in range(3):
        await broker.publishing.publish("q", [Publication(b"x" * 1_000) for _ in range(100)])


@pytest.fixture
async def log() -> GatedLog:
    return GatedLog()


@pytest.fixture
async def broker(log: GatedLog) -> AsyncIterator[Broker]:
    async with await Broker.open(log, BrokerSettings(resident_bytes_max=0)) as broker:
        await broker.declaring.declare_queue("q")
        yield broker
        log.may_write.set()
        log.may_read.set()


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    peer = Peer(broker)
    yield peer
    await peer.go()


async def test_a_stopping_broker_lets_confirms_finish(broker: Broker, log: GatedLog, peer: Peer) -> None:
    log.may_write.clear()
    peer.send("queue.publish", queue="q", message="a")
    await until(lambda: broker.statistics.stats("q").depth == 1)
    peer.stream.close(1001, "stopping")
    peer.send("queue.publish", queue="q", message="too late")
    log.may_write.set()
    assert (await peer.next())["result"]["position"] == 1
    assert await peer.next() == 1001
    await peer.running
    assert broker.statistics.stats("q").depth == 1


async def test_what_was_on_its_way_to_somebody_who_unsubscribed_goes_back(
    broker: Broker, log: GatedLog, peer: Peer
) -> None:
    """Its body has to be fetched, and meanwhile its consumer goes: nobody has a tag for it."""
    await page_out(broker)
    log.may_read.clear()
    peer.send("subscribe", queue="q", prefetch=1_000)
    assert (await peer.next())["result"] == {"subscription": 1}
    await until(lambda: broker.statistics.stats("q").in_flight == 300)
    peer.send("unsubscribe", subscription=1)
    assert (await peer.next())["result"] == {"success": True}
    assert (broker.statistics.stats("q").in_flight, broker.statistics.stats("q").ready) == (0, 300)
    log.may_read.set()


async def test_what_was_on_its_way_to_a_connection_that_went_goes_back(broker: Broker, log: GatedLog) -> None:
    await page_out(broker)
    log.may_read.clear()
    peer = Peer(broker)
    peer.send("subscribe", queue="q", prefetch=1_000)
    await peer.next()
    await until(lambda: broker.statistics.stats("q").in_flight == 300)
    await peer.go()
    assert (broker.statistics.stats("q").in_flight, broker.statistics.stats("q").ready) == (0, 300)
    log.may_read.set()


async def test_a_fault_of_ours_is_the_end_of_one_connection_only(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    bystander: list[Any] = []
    peer.send("subscribe", queue="q", priority=1)
    await peer.next()
    broker.subscribing.subscribe("q", bystander.extend, prefetch=1)
    with monkeypatch.context() as patch:
        patch.setattr("smista.protocols.http.stream_pushing.show_delivery", broken)
        await broker.publishing.publish("q", [Publication(b"a")])
        assert await peer.next() == 1011
    await peer.running
    assert [delivery.body for delivery in bystander] == [b"a"]
    assert "planted" in logged(caplog)


async def test_a_request_that_fails_by_a_fault_of_ours_is_told_so(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(broker.catalog, "namespaces", broken)
    peer.send("broker.info")
    answer = await peer.next()
    assert (answer["id"], answer["error"]["code"]) == ("broker.info", "internal_error")
    assert "planted" not in answer["error"]["message"]
    assert "planted" in logged(caplog)
    peer.send("queue.stats", queue="q")
    assert "result" in await peer.next()


async def test_a_log_that_fails_is_told_and_nothing_is_confirmed(
    log: GatedLog, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.send("subscribe", queue="q")
    await peer.next()

    def fail(position: int, data: bytes) -> None:
        raise OSError("planted")

    monkeypatch.setattr(log, "append", fail)
    peer.send("queue.publish", queue="q", message="a")
    answer = {}
    while "id" not in answer:
        answer = await peer.next()
    assert answer["error"]["code"] == "outcome_unknown"
    peer.send("queue.stats", queue="q")
    while answer["id"] != "queue.stats":
        answer = await peer.next()
    assert answer["error"]["code"] == "broker_stopped"


async def test_what_came_for_a_peer_in_the_moment_it_went_is_given_back(broker: Broker, peer: Peer) -> None:
    peer.send("queue.receive", queue="q", wait_ms=20_000)
    await until(lambda: bool(peer.stream._waiting.requests))
    [poll], [request] = peer.stream._waiting.requests, peer.stream._tasks
    broker.publishing.submit("q", [Publication(b"a")]).result()
    await until(poll.done)
    # Its result is there, and whoever passes it on has not run again when the connection ends.
    assert not request.done()
    assert broker.statistics.stats("q").in_flight == 1
    request.cancel()
    await until(lambda: broker.statistics.stats("q").in_flight == 0)
    assert broker.statistics.stats("q").ready == 1


# -- a connection that goes -------------------------------------------------------------------------------------------

WIDE = QueueSettings(max_prefetch=10_000)


async def holding(broker: Broker, *prefetches: int, queue: str = "wide") -> Peer:
    """A stream whose subscriptions hold so many messages each."""
    peer = Peer(broker)
    for prefetch in prefetches:
        peer.send("subscribe", queue=queue, prefetch=prefetch)
        await peer.next()
    await broker.publishing.publish(queue, [Publication(b"%d" % number) for number in range(sum(prefetches))])
    await until(lambda: broker.statistics.stats(queue).in_flight == sum(prefetches))
    return peer


async def test_a_connection_that_goes_while_a_purge_is_worked_off_leaves_nobody_behind(broker: Broker) -> None:
    await broker.declaring.declare_queue("wide", WIDE)
    peer = await holding(broker, *[1_000] * 4)
    purging = asyncio.create_task(broker.declaring.purge("wide"))
    await until(lambda: broker.statistics.stats("wide").depth == 0)
    peer.stream._subscriptions.let_go(is_vanished=True)
    await purging
    await peer.go()
    assert broker.statistics.stats("wide").consumers == 0
    await broker.publishing.publish("wide", [Publication(b"next")])
    assert [delivery.body for delivery in await broker.receiving.receive("wide")] == [b"next"]


async def test_a_connection_that_goes_is_not_served_what_it_gives_back(broker: Broker) -> None:
    limited = QueueSettings(max_depth=1_000, limit_ready_only=True, overflow=Overflow.DROP_OLDEST)
    await broker.declaring.declare_queue("limited", limited)
    peer = Peer(broker)
    for _ in range(3):
        peer.send("subscribe", queue="limited", prefetch=10)
        await peer.next()
    await broker.publishing.publish("limited", [Publication(b"x")] * 6)
    await until(lambda: broker.statistics.stats("limited").in_flight == 6)
    await peer.go()
    stats = broker.statistics.stats("limited")
    assert (stats.ready, stats.in_flight, stats.consumers) == (6, 0, 0)
    assert [delivery.delivery_count for delivery in await broker.receiving.receive("limited", 6)] == [2] * 6


async def test_what_an_ended_subscription_still_holds_goes_back_with_its_connection(broker: Broker) -> None:
    await broker.declaring.declare_queue("wide", WIDE)
    peer = await holding(broker, 2)
    await peer.next()
    peer.send("unsubscribe", subscription=1)
    await peer.next()
    assert broker.statistics.stats("wide").in_flight == 2
    await peer.go()
    assert (broker.statistics.stats("wide").in_flight, broker.statistics.stats("wide").ready) == (0, 2)


async def test_very_many_go_back_in_slices(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.engine.slices.SLICE_S", 0.0)
    await broker.declaring.declare_queue("wide", WIDE)
    peer = await holding(broker, 1_000, 1_000)
    await peer.go()
    assert broker.statistics.stats("wide").consumers == 0
    seen = set()
    while broker.statistics.stats("wide").in_flight:
        seen.add(broker.statistics.stats("wide").ready)
        await asyncio.sleep(0)
    assert len(seen) > 3
    bodies = [delivery.body for delivery in await broker.receiving.receive("wide", 2_000)]
    assert bodies == [b"%d" % number for number in range(2_000)]


async def test_an_array_counts_as_long_as_its_requests_wait_for_one_another(broker: Broker) -> None:
    await broker.declaring.declare_queue("empty")
    waits = ("queue.receive", {"queue": "empty", "wait_ms": 60_000})
    publishes = ("queue.publish", {"queue": "empty", "message": "x" * 10_000})
    peer = Peer(broker)
    peer.send_array(waits, publishes)
    await until(lambda: peer.held.count > 10_000)
    await broker.publishing.publish("empty", [Publication(b"x")])
    assert len(await peer.next()) == 2
    assert peer.held.count == 0
    peer.send_array(waits, waits, publishes)
    await until(lambda: peer.held.count > 10_000)
    await peer.go()
    assert peer.held.count == 0
