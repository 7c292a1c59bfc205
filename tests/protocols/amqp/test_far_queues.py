"""A connection whose queues are elsewhere: what it submits is answered turns later, and everything keeps its order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from smista.core.counters import QueueStats
from smista.engine import QueueSettings
from smista.engine.interface import Receipts, Settling
from smista.protocols.amqp.wire import methods
from tests.engine.far_engine import FarEngine, FarPart
from tests.protocols.amqp.in_process import Client, Server, settle
from tests.protocols.amqp.raw import consume, declare, message, on
from tests.waiting import until

COUNT = 40
MANY = 1_200


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    server = await Server().start()
    broker = server.broker
    far = FarEngine(broker)
    monkeypatch.setattr(broker, "publishing", far.publishing)
    # What a connection gives back when it goes stays with the settling of this process.
    near = {way: getattr(broker.settling, way) for way in ("acknowledge", "nack")}
    far.settling = FarPart(Settling, SimpleNamespace(**near), far.link)
    for way in near:
        monkeypatch.setattr(broker.settling, way, getattr(far.settling, way))
    receipts = FarPart(Receipts, SimpleNamespace(can_be_settled=broker.receipts.can_be_settled), far.link)
    monkeypatch.setattr(broker.receipts, "can_be_settled", receipts.can_be_settled)
    monkeypatch.setattr(broker, "asking", far.asking)
    yield server
    await server.stop()


@pytest.fixture
async def client(server: Server) -> Client:
    """With two queues behind one exchange, in confirm mode."""
    client = await server.connect()
    for queue in ("q", "r"):
        await client.call(declare(queue), methods.QueueDeclareOk)
        await client.call(methods.QueueBind(0, queue, "amq.fanout", "", False, {}), methods.QueueBindOk)
    await client.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
    return client


async def confirmed(client: Client, count: int) -> set[int]:
    """The tags that were refused, once so many are answered."""
    refused, last = set(), 0
    while last < count:
        _, method = await client.method()
        assert isinstance(method, methods.BasicAck | methods.BasicNack)
        assert method.delivery_tag > last
        last = method.delivery_tag
        if isinstance(method, methods.BasicNack):
            refused.add(last)
    return refused


async def bodies(server: Server, queue: str) -> list[bytes | int]:
    return [one.body for one in (await server.broker.browsing.browse(queue, limit=1000)).messages]


async def test_what_is_published_enters_in_order_and_is_confirmed(server: Server, client: Client) -> None:
    to_both = [number for number in range(COUNT) if number % 3 == 0]
    client.feed(*[message(b"%d" % n, "q", "amq.fanout" if n in to_both else "") for n in range(COUNT)])
    assert client.has_nothing, "none is confirmed before it is known what came of it"
    assert await confirmed(client, COUNT) == set()
    assert await bodies(server, "q") == [b"%d" % number for number in range(COUNT)]
    assert await bodies(server, "r") == [b"%d" % number for number in to_both]


async def test_what_a_queue_refuses_is_answered_so(server: Server, client: Client) -> None:
    settings = QueueSettings(max_depth=2)
    await server.broker.declaring.declare_queue("small", settings)
    client.feed(message(b"a", "small") + message(b"b", "q") + message(b"c", "small") * 2 + message(b"d", "q"))
    assert await confirmed(client, 5) == {4}
    assert await bodies(server, "q") == [b"b", b"d"]


async def test_a_queue_that_is_gone_when_a_message_reaches_it_takes_nothing(server: Server, client: Client) -> None:
    client.feed(message(b"x", "", "amq.fanout") + message(b"y", "q"))
    await server.broker.declaring.delete_queue("q")
    assert await confirmed(client, 2) == set()
    assert await bodies(server, "r") == [b"x"]


async def test_what_is_settled_has_effect_before_the_next_method(server: Server, client: Client) -> None:
    client.feed(*[message(b"%d" % number, "q") for number in range(COUNT)])
    await confirmed(client, COUNT)
    await client.call(consume("q"), methods.BasicConsumeOk)
    await client.deliveries(COUNT)
    await client.call(methods.BasicCancel("t", False), methods.BasicCancelOk)
    client.feed(on(1, methods.BasicAck(10, True)), on(1, methods.BasicNack(20, True, False)))
    await client.call(methods.BasicRecover(True), methods.BasicRecoverOk)
    assert server.counts() == (COUNT - 20, 0, 0)
    await until(lambda: not client.ours.has_under_way)


async def test_tags_of_queues_that_have_gone_are_forgotten_when_the_queues_answer(server: Server) -> None:
    client = await server.connect()
    for number in range(6):
        await client.call(declare("q"), methods.QueueDeclareOk)
        await client.call(consume("q", f"t{number}"), methods.BasicConsumeOk)
        client.feed(message(b"x", "q") * MANY)
        await client.deliveries(MANY)
        await server.broker.declaring.delete_queue("q")
        await client.expect(methods.BasicCancel)
    unacked = client.channel().acknowledgements.unacked
    await until(lambda: len(unacked.receipts) < 3 * MANY)
    # Late, and no error.
    client.feed(on(1, methods.BasicAck(1, False)))
    await client.call(declare("q"), methods.QueueDeclareOk)


async def test_a_channel_that_closes_while_its_queue_is_asked_has_no_consumer(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.feed(message(b"x", "q"))
    await confirmed(client, 1)
    asked = 0

    async def counted(queue: str, *, namespace: str) -> QueueStats:
        nonlocal asked
        stats = await asking(queue, namespace=namespace)
        asked += 1
        return stats

    asking = server.broker.asking.stats
    monkeypatch.setattr(server.broker.asking, "stats", counted)
    client.feed(on(1, consume("q")))
    client.lose()
    await until(lambda: asked == 1)
    await settle()
    stats = server.broker.statistics.stats("q")
    assert (stats.consumers, stats.ready, stats.in_flight) == (0, 1, 0)


async def test_a_transaction_is_committed_as_a_whole(server: Server, client: Client) -> None:
    client = await server.connect()
    await client.call(methods.TxSelect(), methods.TxSelectOk)
    client.feed(message(b"before", "q"), message(b"x", "", "amq.fanout"), message(b"behind", "q"))
    await client.call(methods.TxCommit(), methods.TxCommitOk)
    assert await bodies(server, "q") == [b"before", b"x", b"behind"]
    assert await bodies(server, "r") == [b"x"]
