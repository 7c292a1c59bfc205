"""Messages with very many headers are pushed and filtered in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from smista.core.at_once import PROPERTIES_AT_ONCE
from smista.core.message import Envelope, Publication
from smista.engine import Broker, QueueSettings
from smista.log import MemoryLog
from smista.protocols.http.commands import DECODERS, Call
from smista.protocols.http.formats import JSON
from smista.service import properties
from smista.service.principal import anyone
from smista.service.properties import Properties
from smista.service.service import Service
from tests.protocols.http.peer import Peer

KEPT = properties.write(Properties(headers={f"name {number}": number for number in range(6000)}))
COUNT = 10


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue("q", QueueSettings())
        await broker.publishing.publish("q", [Publication(b"x", Envelope(KEPT)) for _ in range(COUNT)])
        yield broker


@pytest.fixture
async def read_at_once(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """How many bytes of properties were read in each turn of the loop."""
    read, plain, loop = [0], properties.read, asyncio.get_running_loop()
    is_over = False

    def watched(data: bytes) -> Properties:
        read[-1] += len(data)
        return plain(data)

    def count() -> None:
        read.append(0)
        if not is_over:
            loop.call_soon(count)

    monkeypatch.setattr(properties, "read", watched)
    loop.call_soon(count)
    yield read
    is_over = True
    await asyncio.sleep(0)


def check(read: list[int], times: int = 1) -> None:
    assert len(KEPT) > PROPERTIES_AT_ONCE
    assert sum(read) == times * COUNT * len(KEPT)
    assert max(read) == len(KEPT)


def call(broker: Broker) -> Call:
    return Call(Service(broker).session(anyone("http")), JSON, JSON)


async def test_a_filter_by_headers_reads_them_in_turns(broker: Broker, read_at_once: list[int]) -> None:
    asked = DECODERS[JSON]["queue.browse"](JSON.encode({"queue": "q", "bodies": False, "headers": {"none": 1}}))
    answer: Any = await asked.carry_out(call(broker))
    assert (answer.messages, answer.after) == ([], None)
    check(read_at_once)


async def test_a_subscription_is_pushed_them_in_turns(broker: Broker, read_at_once: list[int]) -> None:
    peer = Peer(broker)
    peer.send("subscribe", queue="q", prefetch=100)
    assert (await peer.next())["result"] == {"subscription": 1}
    tags: list[int] = []
    while len(tags) < COUNT:
        tags += [message["tag"] for message in (await peer.next())["messages"]]
    assert tags == list(range(1, COUNT + 1))
    check(read_at_once)
    await peer.go()
