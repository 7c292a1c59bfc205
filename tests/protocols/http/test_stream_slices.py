"""Very much that one peer settles is done in slices, and everybody else has a turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from smista.engine import Broker, DeadLetterMode, Publication, QueueSettings, Receipt
from smista.log import MemoryLog
from smista.protocols.http.answering import ENCODED_BYTES_AT_ONCE, encoded, takes_turns
from smista.protocols.http.commands.receiving import Messages
from smista.protocols.http.formats import JSON
from smista.protocols.http.messages import MessageView
from smista.protocols.http.stream_settling import Consumer
from smista.service.values import FairTurns
from tests.protocols.http.peer import Peer
from tests.waiting import until

MANY = 2_400


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.engine.slices.SLICE_S", 0.0)
    monkeypatch.setattr("smista.protocols.http.stream.SLICE_S", 0.0, raising=False)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue("q", QueueSettings(max_prefetch=100_000, dead_letter=DeadLetterMode.PARK))
        yield broker


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    """It holds `MANY` messages and has unsubscribed, so nothing comes again."""
    await broker.publishing.publish("q", [Publication(b"%d" % number) for number in range(MANY)])
    peer = Peer(broker)
    peer.send("subscribe", queue="q", prefetch=MANY)
    await answer(peer, "subscribe")
    await until(lambda: broker.statistics.stats("q").in_flight == MANY)
    peer.send("unsubscribe", subscription=1)
    await answer(peer, "unsubscribe")
    yield peer
    if not peer.running.done():
        await peer.go()


async def answer(peer: Peer, name: str) -> Any:
    """The answer to a command; what was pushed before it is passed over."""
    while True:
        frame = await peer.next()
        if isinstance(frame, dict) and frame.get("id") == name:
            return frame["result"]


async def states_until(condition: Callable[[], bool], state: Callable[[], int]) -> int:
    """How many states others saw until then."""
    seen = set()
    while not condition():
        seen.add(state())
        await asyncio.sleep(0)
    return len(seen)


def counts(broker: Broker) -> tuple[int, int, int]:
    stats = broker.statistics.stats("q")
    return stats.ready, stats.in_flight, stats.dead


async def bodies(broker: Broker) -> list[bytes]:
    return [delivery.body for delivery in await broker.receiving.receive("q", MANY)]


SETTLING: list[Any] = [
    pytest.param("ack", {}, (0, 0, 0), id="ack"),
    pytest.param("nack", {"delay_ms": 0}, (MANY, 0, 0), id="nack"),
    pytest.param("nack", {"requeue": False}, (0, 0, MANY), id="dead letters"),
    pytest.param("release", {}, (MANY, 0, 0), id="release"),
]
Left = tuple[int, int, int]


@pytest.mark.parametrize("how", ["up_to", "tags"])
@pytest.mark.parametrize(("command", "payload", "left"), SETTLING)
async def test_very_many_are_settled_in_slices_and_in_order(
    broker: Broker, peer: Peer, command: str, payload: dict[str, Any], left: Left, how: str
) -> None:
    which = {"up_to": MANY} if how == "up_to" else {"tags": list(range(1, MANY + 1))}
    peer.send(command, **payload, **which)
    assert (
        await states_until(
            lambda: not broker.statistics.stats("q").in_flight, lambda: broker.statistics.stats("q").in_flight
        )
        >= 2
    )
    assert (await answer(peer, command))["success"]
    assert counts(broker) == left
    if left[0]:
        assert await bodies(broker) == [b"%d" % number for number in range(MANY)]


async def test_very_many_are_extended(broker: Broker, peer: Peer) -> None:
    peer.send("extend", up_to=MANY, lease_ms=1)
    assert await answer(peer, "extend") == {"success": True}
    await until(lambda: counts(broker) == (MANY, 0, 0))


@pytest.mark.parametrize(("command", "payload", "left"), SETTLING)
async def test_very_many_are_settled_also_when_the_connection_goes_meanwhile(
    broker: Broker, peer: Peer, command: str, payload: dict[str, Any], left: Left
) -> None:
    peer.send(command, **payload, up_to=MANY)
    await until(lambda: broker.statistics.stats("q").in_flight < MANY)
    peer.running.cancel()
    await asyncio.wait({peer.running})
    await until(lambda: counts(broker) == left)
    await asyncio.sleep(0)
    assert counts(broker) == left


async def test_what_comes_after_very_many_finds_them_settled(broker: Broker, peer: Peer) -> None:
    peer.send("release", up_to=MANY)
    peer.send("queue.stats", queue="q")
    assert (await answer(peer, "queue.stats"))["ready"] == MANY


@pytest.mark.parametrize("is_apart", [False, True], ids=["within", "next frame"])
async def test_an_array_is_carried_out_in_order_and_others_have_their_turns(
    broker: Broker, peer: Peer, is_apart: bool
) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [("ack", {"up_to": tag}) for tag in range(1, MANY + 1)]
    if is_apart:
        peer.send_array(*requests)
        peer.send("queue.stats", queue="q")
    else:
        peer.send_array(*requests, ("queue.stats", {"queue": "q"}))
    assert (
        await states_until(
            lambda: not broker.statistics.stats("q").in_flight, lambda: broker.statistics.stats("q").in_flight
        )
        > 3
    )
    last: Any = None
    while not isinstance(frame := await peer.next(), list):
        last = frame if "id" in frame else last
    assert [one["id"] for one in frame[:MANY]] == list(range(MANY))
    assert all(one["result"] == {"success": True} for one in frame[:MANY])
    stats = frame[-1]["result"] if not is_apart else last["result"] if last else await answer(peer, "queue.stats")
    assert stats["acked_total"] == MANY


async def test_a_stopping_broker_answers_an_array_that_is_not_done_yet(broker: Broker, peer: Peer) -> None:
    publish = ("queue.publish", {"queue": "q", "message": 1})
    peer.send_array(*[publish] * 300)
    await until(lambda: broker.statistics.stats("q").published_total > MANY)
    peer.stream.close(1001, "stopping")
    while not isinstance(frame := await peer.next(), list):
        pass
    assert len(frame) == 300
    assert all("result" in one for one in frame)


# -- what a consumer holds --------------------------------------------------------------------------------------------


class Looked(dict[int, Receipt]):
    """Counts how often it is looked into, and cannot be walked through."""

    looks = 0

    def __contains__(self, tag: object) -> bool:
        self.looks += 1
        return super().__contains__(tag)

    def __iter__(self) -> Any:
        raise AssertionError("all of it is looked at")


def test_up_to_looks_only_at_what_it_is_about() -> None:
    consumer = Consumer(1, "q", raw=False)
    held = consumer.held = Looked({tag: Receipt(1, tag, 1) for tag in range(1, MANY + 1)})
    consumer.order.extend(range(1, MANY + 1))
    for tag in range(1, MANY + 1):
        assert consumer.up_to(tag) == [tag]
        del held[tag]
    assert held.looks <= 4 * MANY


def test_tags_that_are_void_are_forgotten() -> None:
    consumer = Consumer(1, "q", raw=False)
    for tag in range(1, 10 * MANY):
        consumer.held[tag] = Receipt(1, tag, 1)
        consumer.order.append(tag)
        consumer.forget_void()
        if tag > 5:
            del consumer.held[tag]
    assert len(consumer.order) < 2 * MANY
    assert consumer.up_to(4) == [1, 2, 3, 4]


async def test_what_is_long_and_read_in_turns_keeps_its_place(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.protocols.http.commands.batches.SLICE_S", -1.0)
    peer = Peer(broker)
    long = {"queue": "q", "messages": [{"message": "x" * 1000} for _ in range(100)]}
    peer.send("queue.publish_batch", **long)
    peer.send("queue.publish", queue="q", message="behind it")
    await answer(peer, "queue.publish")
    peer.send_array(("queue.publish_batch", long), ("queue.publish", {"queue": "q", "message": "behind it"}))
    await peer.next()
    found = [index for index, body in enumerate(await bodies(broker)) if body == b'"behind it"']
    assert found == [100, 201]
    await peer.go()


async def test_long_answers_are_put_together_in_turns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.publishing.publish("q", [Publication(b"%d" % number) for number in range(MANY)])
    turns: list[None] = []
    turn = broker.fair_turns.turn

    async def counted() -> None:
        turns.append(None)
        await turn()

    monkeypatch.setattr(broker.fair_turns, "turn", counted)
    peer = Peer(broker)
    peer.send("queue.receive", queue="q", limit=MANY)
    received = await answer(peer, "queue.receive")
    assert [each["message"] for each in received["messages"]] == [str(number) for number in range(MANY)]
    # Received, shown and encoded.
    assert len(turns) >= 4 + 9 + 4
    await peer.go()


@pytest.mark.parametrize("size", [10, ENCODED_BYTES_AT_ONCE])
async def test_answers_are_cut_by_bytes_as_well(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[None] = []
    fair_turns = FairTurns()

    async def counted() -> None:
        turns.append(None)

    monkeypatch.setattr(fair_turns, "turn", counted)
    views = [
        MessageView(
            message_id="m", message="x" * size, priority=0, headers={}, retry_count=0, delivery_count=1, created_at_ms=0
        )
        for _ in range(10)
    ]
    answer = Messages(views)
    assert takes_turns(answer)
    assert await encoded(answer, JSON, fair_turns) == JSON.encode(answer)
    assert len(turns) == (9 if size == ENCODED_BYTES_AT_ONCE else 0)
