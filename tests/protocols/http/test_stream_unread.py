"""Answers that the other side of a stream does not read: how much there may be, and that they go along with it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from smista.engine import Broker, Publication, QueueSettings
from smista.log import MemoryLog
from smista.protocols.http.stream import LONG_ANSWERS_MAX
from tests.protocols.http.peer import Peer
from tests.waiting import until


class NonReader(Peer):
    """Nothing that is sent to it arrives."""

    def __init__(self, broker: Broker) -> None:
        self._gone = asyncio.Event()
        super().__init__(broker)

    async def _send(self, event: Any) -> None:
        await self._gone.wait()
        raise ConnectionAbortedError

    async def go(self) -> None:
        self._gone.set()
        await self.running


class Mark:
    """Gone with what has it."""


class Frame(bytes):
    mark: Mark


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue("q", QueueSettings())
        yield broker


@pytest.fixture
def without_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collections")
async def test_what_was_not_read_is_freed_with_the_connection(broker: Broker) -> None:
    async def leave_unread() -> list[weakref.ref[Mark]]:
        peer = NonReader(broker)
        peer.send("subscribe", queue="q")
        await until(lambda: peer.stream.output_bytes)
        frames = [Frame(b"an answer"), Frame(b"another")]
        for frame in frames:
            frame.mark = Mark()
            peer.stream._outbox.put(frame, is_pushed=frame is frames[0])
        await peer.go()
        return [weakref.ref(frame.mark) for frame in frames]

    assert [found() for found in await leave_unread()] == [None, None]


MANY = 100


async def fill(broker: Broker) -> None:
    await broker.publishing.publish("q", [Publication(b"x" * 10_000) for _ in range(MANY)])


@pytest.mark.parametrize("is_array", [False, True], ids=["one by one", "in an array"])
async def test_of_requests_for_long_answers_some_are_under_way_at_a_time(broker: Broker, *, is_array: bool) -> None:
    await fill(broker)
    under_way = most = 0
    peek = broker.browsing.peek

    async def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(10):
            await asyncio.sleep(0)
        under_way -= 1
        return await peek(*arguments, **more)

    broker.browsing.peek = counted  # type: ignore[method-assign]  # counted on the way
    peer = Peer(broker)
    if is_array:
        peer.send_array(*[("queue.peek", {"queue": "q"})] * MANY)
        assert len(await peer.next()) == MANY
    else:
        for _ in range(MANY):
            peer.send("queue.peek", queue="q")
        for _ in range(MANY):
            assert (await peer.next())["result"]["messages"]
    assert most == LONG_ANSWERS_MAX
    await peer.go()


async def test_long_polls_leave_room_for_others(broker: Broker) -> None:
    await broker.declaring.declare_queue("empty", QueueSettings())
    peer = Peer(broker)
    for _ in range(2 * LONG_ANSWERS_MAX):
        peer.send("queue.receive", queue="empty", wait_ms=20_000)
    peer.send("queue.stats", queue="q")
    assert (await peer.next())["id"] == "queue.stats"
    await peer.go()


async def test_what_is_not_read_is_counted_and_bounded(broker: Broker) -> None:
    await fill(broker)
    peer = NonReader(broker)
    for _ in range(MANY):
        peer.send("queue.peek", queue="q", limit=MANY)
    page_bytes = 10_000 * MANY
    await until(lambda: peer.stream._outbox.has_many_answers)
    await until(lambda: not peer.stream._making_long)
    assert peer.waiting_count > 0
    assert 1 << 20 < peer.stream.output_bytes < (1 << 20) + (LONG_ANSWERS_MAX + 1) * 2 * page_bytes
    await peer.go()


async def test_the_server_hears_that_messages_were_settled(broker: Broker) -> None:
    """Those who settle are cut off last when memory is low."""
    await fill(broker)
    peer = Peer(broker)
    peer.send("subscribe", queue="q", prefetch=1)
    await peer.next()
    [message] = (await peer.next())["messages"]
    assert peer.stream._unseen.settled_at_s == float("-inf")
    peer.send("ack", tags=[message["tag"]])
    await until(lambda: peer.stream._unseen.settled_at_s > 0)
    await peer.go()
