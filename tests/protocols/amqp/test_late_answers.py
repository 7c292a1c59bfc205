"""A confirm and a commit wait for all that their connection has submitted, wherever the queues are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from smista.engine import QueueSettings
from smista.engine.publishing import Publishing
from smista.errors import OutcomeUnknown
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.methods import Method
from smista.service.values import Ticket
from tests.alike import alike
from tests.engine.late_queues import LateQueues
from tests.protocols.amqp.in_process import Client, Server, settle
from tests.protocols.amqp.raw import consume, declare, message, on

QUEUES = ("near", "other", "far", "further")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server().start()
    for queue in QUEUES:
        await server.broker.declaring.declare_queue(queue)
    for queue in ("full", "far full"):
        await server.broker.declaring.declare_queue(queue, QueueSettings(max_depth=1))
        put(server, queue)
    yield server
    await server.stop()


def put(server: Server, *queues: str, count: int = 1) -> None:
    for queue in queues:
        # At once, whatever is late by now.
        Publishing.submit_alike(server.broker.publishing, queue, alike([b"x"] * count)).result()


@pytest.fixture
def late(server: Server, monkeypatch: pytest.MonkeyPatch) -> LateQueues:
    return LateQueues(server.broker, monkeypatch, "far", "further", "far full")


@pytest.fixture
async def client(server: Server) -> Client:
    client = await server.connect(channels=2)
    for number in (1, 2):
        await client.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk, channel=number)
    return client


async def received(server: Server, client: Client) -> list[Method]:
    """All that has come by now, with whatever this process can write on disk."""
    if server.log.gate.is_set():
        await server.broker.durable()
    await settle()
    found = []
    while not client.has_nothing:
        found.append((await client.method())[1])
    return found


def ack(tag: int, multiple: bool = False) -> Method:
    return methods.BasicAck(tag, multiple)


def nack(tag: int) -> Method:
    return methods.BasicNack(tag, False, False)


async def got(client: Client, *queues: str) -> list[int]:
    """The delivery tags of a message from each queue."""
    tags = []
    for queue in queues:
        tags.append((await client.call(methods.BasicGet(0, queue, False), methods.BasicGetOk)).delivery_tag)
        await client.content()
    return tags


# -- confirms ---------------------------------------------------------------------------------------------------------


async def test_a_message_that_is_known_is_confirmed_when_it_is_answered(
    server: Server, client: Client, late: LateQueues
) -> None:
    client.feed(message(b"x", "far"))
    assert await received(server, client) == []
    late.answer()
    assert await received(server, client) == [ack(1)]


async def test_a_flush_waits_for_its_queues_here_and_elsewhere(
    server: Server, client: Client, late: LateQueues
) -> None:
    server.log.gate.clear()
    client.feed(message(b"x", "near") + message(b"x", "far") + message(b"x", "other"))
    late.answer()
    assert await received(server, client) == []
    server.log.gate.set()
    assert await received(server, client) == [ack(3, True)]


async def test_a_message_for_several_queues_waits_for_those_elsewhere(
    server: Server, client: Client, late: LateQueues
) -> None:
    for queue in ("near", "far"):
        await client.call(methods.QueueBind(0, queue, "amq.fanout", "", False, {}), methods.QueueBindOk)
    client.feed(message(b"x", "", "amq.fanout"))
    assert await received(server, client) == []
    late.answer()
    assert await received(server, client) == [ack(1)]


async def test_a_later_flush_is_not_confirmed_before_an_earlier_one(
    server: Server, client: Client, late: LateQueues
) -> None:
    client.feed(message(b"x", "far"))
    client.feed(message(b"x", "near"))
    assert await received(server, client) == [], "an ack of it would be one of the other message"
    late.answer()
    assert await received(server, client) == [ack(1), ack(2)]


async def test_answers_elsewhere_may_come_in_any_order(server: Server, client: Client, late: LateQueues) -> None:
    client.feed(message(b"x", "far"))
    client.feed(message(b"x", "further"))
    late.answer(1)
    assert await received(server, client) == []
    late.answer()
    assert await received(server, client) == [ack(1), ack(2)]


async def test_what_was_refused_is_answered_in_its_place(server: Server, client: Client, late: LateQueues) -> None:
    client.feed(message(b"x", "far") + message(b"x", "full") + message(b"x", "near"))
    client.feed(message(b"x", "near") + message(b"x", "far full"))
    assert await received(server, client) == []
    late.answer_all()
    assert await received(server, client) == [ack(1), nack(2), ack(3), ack(4), nack(5)]


async def test_channels_of_a_connection_are_confirmed_each_for_itself(
    server: Server, client: Client, late: LateQueues
) -> None:
    client.feed(message(b"x", "far", channel=1) + message(b"x", "near", channel=2))
    assert await received(server, client) == []
    late.answer()
    assert await received(server, client) == [ack(1), ack(1)]


async def test_what_leads_nowhere_waits_for_what_was_submitted_before(
    server: Server, client: Client, late: LateQueues
) -> None:
    client.feed(message(b"x", "far"))
    client.feed(message(b"x", "nowhere"))
    assert await received(server, client) == []
    late.answer()
    assert await received(server, client) == [ack(1), ack(2)]


# -- acknowledgements before a confirm --------------------------------------------------------------------------------


SETTLING = {
    "ack": methods.BasicAck(1, False),
    "nack": methods.BasicNack(1, False, True),
    "reject": methods.BasicReject(1, False),
    "recover": methods.BasicRecoverAsync(True),
}


@pytest.mark.parametrize("method", SETTLING.values(), ids=SETTLING)
async def test_a_confirm_tells_that_what_was_settled_before_is_on_disk(
    server: Server, client: Client, late: LateQueues, method: Method
) -> None:
    put(server, "far")
    await got(client, "far")
    client.feed(on(1, method))
    client.feed(message(b"x", "near"))
    assert await received(server, client) == []
    late.answer()
    assert await received(server, client) == [ack(1)]


async def test_also_in_one_read_and_of_queues_here_and_elsewhere(
    server: Server, client: Client, late: LateQueues
) -> None:
    put(server, "near", "far")
    await got(client, "near", "far")
    server.log.gate.clear()
    client.feed(on(1, ack(1)) + on(1, ack(2)) + message(b"x", "nowhere"))
    late.answer_all()
    assert await received(server, client) == []
    server.log.gate.set()
    assert await received(server, client) == [ack(1)]


# -- transactions -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def transaction(server: Server) -> Client:
    client = await server.connect()
    await client.call(methods.TxSelect(), methods.TxSelectOk)
    return client


async def test_a_commit_waits_for_what_it_has_published(server: Server, transaction: Client, late: LateQueues) -> None:
    transaction.feed(message(b"x", "far") + message(b"x", "near"), on(1, methods.TxCommit()))
    assert await received(server, transaction) == []
    late.answer_all()
    assert await received(server, transaction) == [methods.TxCommitOk()]


@pytest.mark.parametrize("settlement", [methods.BasicAck(1, False), methods.BasicNack(1, False, True)])
async def test_a_commit_waits_for_what_it_has_settled(
    server: Server, transaction: Client, late: LateQueues, settlement: Method
) -> None:
    put(server, "far")
    await got(transaction, "far")
    transaction.feed(on(1, settlement), on(1, methods.TxCommit()))
    assert await received(server, transaction) == []
    late.answer_all()
    assert await received(server, transaction) == [methods.TxCommitOk()]


# -- failures ---------------------------------------------------------------------------------------------------------


async def closed(client: Client) -> str:
    return (await client.expect(methods.ConnectionClose)).reply_text


async def test_an_outcome_that_is_unknown_is_not_confirmed(server: Server, client: Client, late: LateQueues) -> None:
    client.feed(message(b"x", "far") + message(b"x", "near"))
    late.fail(OutcomeUnknown("lost"))
    assert await closed(client) == "INTERNAL_ERROR - the broker cannot confirm anything any more"
    assert client.has_nothing


async def test_an_acknowledgement_whose_outcome_is_unknown_ends_the_connection(
    server: Server, client: Client, late: LateQueues
) -> None:
    put(server, "far")
    await got(client, "far")
    client.feed(on(1, ack(1)))
    late.fail(OutcomeUnknown("lost"))
    client.feed(message(b"x", "near"))
    assert await closed(client) == "INTERNAL_ERROR - the broker cannot confirm anything any more"
    assert client.has_nothing


async def test_a_commit_whose_outcome_is_unknown_is_not_answered(
    server: Server, transaction: Client, late: LateQueues
) -> None:
    transaction.feed(message(b"x", "far"), on(1, methods.TxCommit()))
    await settle()
    late.fail(OutcomeUnknown("lost"))
    assert (await closed(transaction)).startswith("INTERNAL_ERROR")
    assert transaction.has_nothing


@pytest.mark.parametrize("queue", ["far", "near", "nowhere"])
async def test_a_log_that_fails_here_is_heard_of_whatever_is_published_next(
    server: Server, client: Client, late: LateQueues, queue: str
) -> None:
    put(server, "near")
    await got(client, "near")
    server.log.is_failing = True
    client.feed(on(1, ack(1)) + message(b"x", queue))
    late.answer_all()
    assert (await closed(client)).startswith("INTERNAL_ERROR")
    assert client.has_nothing


async def test_what_is_acknowledged_after_the_log_has_failed_is_not_passed_over(server: Server, client: Client) -> None:
    put(server, "near")
    await got(client, "near")
    server.log.is_failing = True
    with pytest.raises(OutcomeUnknown):
        await server.broker.declaring.declare_queue("new")
    client.feed(on(1, ack(1)))
    assert await closed(client) == "INTERNAL_ERROR - the broker cannot confirm anything any more"


async def test_what_is_declared_after_the_log_has_failed_closes_the_connection(server: Server, client: Client) -> None:
    server.log.is_failing = True
    with pytest.raises(OutcomeUnknown):
        await server.broker.declaring.declare_queue("new")
    client.feed(on(1, declare("newer")))
    assert (await closed(client)).startswith("INTERNAL_ERROR - The broker has stopped")


# -- stopping ---------------------------------------------------------------------------------------------------------


async def test_a_server_that_stops_confirms_first(server: Server, client: Client, late: LateQueues) -> None:
    client.feed(message(b"x", "far"))
    draining = asyncio.create_task(server.amqp.drain())
    assert await received(server, client) == []
    late.answer()
    await client.expect_all(methods.BasicAck, methods.ConnectionClose)
    client.feed(on(0, methods.ConnectionCloseOk()))
    await draining


# -- what it costs ----------------------------------------------------------------------------------------------------


async def test_queues_of_this_process_cost_one_wait_for_the_log_with_each_flush(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = server.broker._keeper
    await client.call(consume("other"), methods.BasicConsumeOk)
    client.feed(message(b"x", "other") * 3)
    await client.deliveries(3)
    await received(server, client)
    asked: list[asyncio.Future[None]] = []
    durable = keeper.durable

    def ask() -> asyncio.Future[None]:
        asked.append(durable())
        return asked[-1]

    monkeypatch.setattr(keeper, "durable", ask)
    client.feed(on(1, ack(1)), on(1, ack(2)))
    assert len(asked) == 0, "nobody waits for an acknowledgement"
    client.feed(on(1, ack(3)) + message(b"x", "near") + message(b"y", "full") + message(b"z", "nowhere"))
    assert len(asked) == 1


# -- every mix --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
async def test_nothing_is_confirmed_before_all_that_came_before_is_answered(
    server: Server, client: Client, late: LateQueues, seed: int
) -> None:
    draw = random.Random(seed)
    put(server, "near", "far", count=20)
    held = {queue: await got(client, *[queue] * 20) for queue in ("near", "far")}
    published = confirmed = 0
    refused: set[int] = set()
    settled_after: dict[Ticket[object], int] = {}
    """How much was published before what was settled, and is not answered."""

    def may_be_confirmed() -> int:
        first = [int(min(late.bodies[ticket], key=int)) - 1 for ticket in late.waiting if late.bodies[ticket]]
        return min(first + [settled_after[ticket] for ticket in late.waiting if ticket in settled_after] + [published])

    step = 0
    while step < 30 or late.waiting:
        step += 1
        match draw.choice(["publish", "publish", "answer", "settle"]) if step <= 30 else "answer":
            case "publish":
                queues = draw.choices([*QUEUES, "full", "far full", "nowhere"], k=draw.randint(1, 4))
                messages = list(enumerate(queues, published + 1))
                refused |= {tag for tag, queue in messages if "full" in queue}
                published += len(messages)
                client.feed(b"".join(message(b"%d" % tag, queue) for tag, queue in messages))
            case "settle":
                tag = held[draw.choice(["near", "far"])].pop()
                client.feed(on(1, draw.choice([ack, nack])(tag)))
                for ticket in late.waiting:
                    if not late.bodies[ticket]:
                        settled_after.setdefault(ticket, published)
            case "answer" if late.waiting:
                late.answer(draw.randrange(len(late.waiting)))
        for method in await received(server, client):
            assert isinstance(method, methods.BasicAck | methods.BasicNack)
            tag = method.delivery_tag
            assert confirmed < tag <= may_be_confirmed()
            assert method.multiple == (tag > confirmed + 1)
            answered = set(range(confirmed + 1, tag + 1))
            assert answered & refused == (answered if isinstance(method, methods.BasicNack) else set())
            confirmed = tag
    assert confirmed == published
