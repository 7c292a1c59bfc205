"""What comes in on one stream is published in the order in which it came, however long it is and whatever it is in.

Random frames of publishes, short and long, alone and in arrays, through a queue and through an exchange. Whatever may
be done in turns gives up its turn at every chance.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import msgspec
import pytest

from smista.core.exchanges import Binding
from smista.engine import Broker, QueueSettings
from smista.log import MemoryLog
from smista.protocols.http.bounded import AT_ONCE_BYTES
from smista.protocols.http.formats import JSON, MESSAGE_PACK, Format
from tests.protocols.http.peer import Peer
from tests.waiting import patience

FRAMES = 20
TURNS = ("commands.batches", "translating", "stream")


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    for module in TURNS:
        monkeypatch.setattr(f"smista.protocols.http.{module}.SLICE_S", -1.0)
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue("q", QueueSettings(body_bytes_max=1 << 24, max_prefetch=100_000))
        await broker.declaring.bind(Binding.to_queue("amq.fanout", "q"))
        yield broker


def message(chance: random.Random, number: int) -> dict[str, Any]:
    size = chance.choice([0, 0, 10, 1_000, AT_ONCE_BYTES // 2, AT_ONCE_BYTES + 1])
    said: dict[str, Any] = {"message": {"number": number, "pad": "x" * size}}
    if chance.random() < 0.5:
        said["headers"] = {f"h{place}": place for place in range(chance.choice([1, 100]))}
    return said


def short_message(chance: random.Random, number: int) -> dict[str, Any]:
    return {"message": {"number": number}}


def request(chance: random.Random, numbers: count[int]) -> tuple[str, dict[str, Any]]:
    match chance.randrange(3):
        case 0:
            return "queue.publish", {"queue": "q", **message(chance, next(numbers))}
        case 1:
            return "exchange.publish", {"exchange": "amq.fanout", **message(chance, next(numbers))}
        case _:
            some = range(chance.choice([1, 3, 30, 300]))
            make = message if chance.random() < 0.5 and len(some) < 100 else short_message
            return "queue.publish_batch", {"queue": "q", "messages": [make(chance, next(numbers)) for _ in some]}


@pytest.mark.parametrize("spoken", [JSON, MESSAGE_PACK], ids=["JSON", "MessagePack"])
@pytest.mark.parametrize("seed", range(10))
async def test_whatever_comes_is_published_in_its_order(broker: Broker, spoken: Format, seed: int) -> None:
    chance, numbers = random.Random(seed), count()
    peer = Peer(broker, spoken)
    for _ in range(FRAMES):
        if chance.random() < 0.7:
            name, payload = request(chance, numbers)
            peer.send(name, **payload)
        else:
            peer.send_array(*(request(chance, numbers) for _ in range(chance.choice([1, 2, 10]))))
    async with patience():
        answers = [await peer.next() for _ in range(FRAMES)]
    assert "error" not in repr(answers)
    deliveries = await broker.receiving.receive("q", 65_535)
    assert [msgspec.json.decode(one.body)["number"] for one in deliveries] == list(range(next(numbers)))
    await peer.go()
