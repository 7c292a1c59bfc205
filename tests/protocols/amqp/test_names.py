"""A queue's name may come to mean another queue at any time: who held on to the old one must not touch the new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from smista.engine import Publication
from smista.protocols.amqp.wire import methods
from tests.protocols.amqp.in_process import Client, Server, settle
from tests.protocols.amqp.raw import consume, declare, get, message, on
from tests.waiting import until

DELETE = methods.QueueDelete(0, "q", False, False, False)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server().start()
    yield server
    await server.stop()


async def with_queue(server: Server, **more: Any) -> Client:
    client = await server.connect()
    await client.call(declare("q", **more), methods.QueueDeclareOk)
    return client


async def another(server: Server) -> None:
    """Over another protocol: the queue goes, and another one of its name comes, with a message."""
    await server.broker.declaring.delete_queue("q")
    await server.broker.declaring.declare_queue("q")
    await server.broker.publishing.publish("q", [Publication(b"confirmed")])


# -- exclusive queues -------------------------------------------------------------------------------------------------


async def test_a_queue_that_took_the_name_of_an_exclusive_one_does_not_go_with_its_connection(server: Server) -> None:
    client = await with_queue(server, is_exclusive=True)
    await another(server)
    client.lose()
    await settle()
    assert server.counts() == (1, 0, 0)
    assert server.amqp.shared.queues.owners == {}


async def test_a_queue_that_took_the_name_of_an_exclusive_one_is_open_to_all(server: Server) -> None:
    await with_queue(server, is_exclusive=True)
    await another(server)
    other = await server.connect()
    await other.call(get("q", is_no_ack=True), methods.BasicGetOk)
    assert await other.content() == b"confirmed"


async def test_an_exclusive_queue_of_the_same_name_is_its_new_owners(server: Server) -> None:
    first = await with_queue(server, is_exclusive=True)
    await server.broker.declaring.delete_queue("q")
    second = await with_queue(server, is_exclusive=True)
    second.feed(message(b"mine", "q"))
    first.lose()
    await settle()
    assert server.counts() == (1, 0, 0)
    third = await server.connect()
    assert (await third.call(get("q"), methods.ChannelClose)).reply_code == 405
    second.lose()
    assert server.broker.catalog.queue_names() == []


async def test_a_name_is_free_as_soon_as_its_exclusive_queue_has_gone(server: Server) -> None:
    first = await with_queue(server, is_exclusive=True)
    other = await server.connect()
    first.lose()
    other.feed(on(1, declare("q", is_exclusive=True)))
    await other.expect(methods.QueueDeclareOk)


async def test_deleting_an_exclusive_queue_leaves_the_next_one_of_its_name_exclusive(server: Server) -> None:
    first = await with_queue(server, is_exclusive=True)
    server.log.gate.clear()
    first.feed(on(1, DELETE))
    await settle()
    second = await server.connect()
    second.feed(on(1, declare("q", is_exclusive=True)))
    await settle()
    server.log.gate.set()
    await first.expect(methods.QueueDeleteOk)
    await second.expect(methods.QueueDeclareOk)
    await settle()
    third = await server.connect()
    assert (await third.call(get("q"), methods.ChannelClose)).reply_code == 405


async def test_very_many_exclusive_queues_go_and_others_have_their_turns(server: Server) -> None:
    client = await server.connect()
    count = 2_000
    client.feed(
        b"".join(
            on(1, methods.QueueDeclare(0, f"mine{number}", False, False, True, False, True, {}))
            for number in range(count)
        )
    )
    await until(lambda: len(server.broker.catalog.queue_names()) == count)
    client.lose()
    seen = set()
    while server.broker.catalog.queue_names():
        seen.add(len(server.broker.catalog.queue_names()))
        await asyncio.sleep(0)
    assert len(seen) > 1
    assert server.amqp.shared.queues.owners == {}


async def most_in_a_turn(server: Server) -> int:
    """How many queues go in one turn of the loop, at most, until none is left."""
    most = 0
    while left := len(server.broker.catalog.queue_names()):
        await asyncio.sleep(0)
        most = max(most, left - len(server.broker.catalog.queue_names()))
    return most


async def test_queues_of_very_many_connections_go_and_others_have_their_turns(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smista.protocols.amqp.leaving_queues.DELETED_PER_TURN", 50)
    monkeypatch.setattr("smista.engine.slices.SLICE_S", 0.0)
    clients = [await server.connect() for _ in range(20)]
    for client in clients:
        client.feed(on(1, methods.QueueDeclare(0, "", False, False, True, False, True, {})) * 40)
    await until(lambda: len(server.broker.catalog.queue_names()) == 800)
    for client in clients:
        client.lose()
    assert len(server.broker.catalog.queue_names()) >= 750
    # A slice is a hundred.
    assert await most_in_a_turn(server) <= 100
    assert server.amqp.shared.queues.owners == {}


async def test_auto_delete_queues_of_very_many_consumers_go_and_others_have_their_turns(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smista.protocols.amqp.leaving_queues.DELETED_PER_TURN", 50)
    monkeypatch.setattr("smista.engine.slices.SLICE_S", 0.0)
    client, other = await server.connect(), await server.connect()
    for number in range(400):
        client.feed(on(1, declare(f"a{number}", is_auto_delete=True)))
        client.feed(on(1, consume(f"a{number}", f"t{number}")))
    await until(lambda: len(server.broker.catalog.queue_names()) == 400 and server.counts("a399")[2] == 1)
    await other.call(consume("a399"), methods.BasicConsumeOk)
    client.lose()
    assert len(server.broker.catalog.queue_names()) == 400
    left = 400
    while left > 1:
        await asyncio.sleep(0)
        assert left - len(server.broker.catalog.queue_names()) <= 100
        left = len(server.broker.catalog.queue_names())
    await settle()
    # Somebody else consumes from it.
    assert server.broker.catalog.queue_names() == ["a399"]


# -- auto-delete queues -----------------------------------------------------------------------------------------------


def cancelled(client: Client) -> None:
    client.feed(on(1, methods.BasicCancel("t", False)))


def closed(client: Client) -> None:
    client.feed(on(1, methods.ChannelClose(200, "bye", 0, 0)))


@pytest.mark.parametrize("leave", [cancelled, closed, Client.lose])
async def test_an_auto_delete_queue_is_gone_before_anybody_else_can_subscribe(
    server: Server, leave: Callable[[Client], None]
) -> None:
    first = await with_queue(server, is_auto_delete=True)
    await first.call(consume("q"), methods.BasicConsumeOk)
    second = await server.connect()
    await second.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
    # Both come in one turn of the loop.
    leave(first)
    second.feed(on(1, consume("q", "next")), message(b"confirmed?", "q"))
    assert (await second.expect(methods.ChannelClose)).reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert server.broker.catalog.queue_names() == []


async def test_a_queue_that_took_the_name_of_an_auto_delete_one_stays(server: Server) -> None:
    first = await with_queue(server, is_auto_delete=True)
    await first.call(consume("q"), methods.BasicConsumeOk)
    second = await server.connect()
    first.lose()
    second.feed(on(1, declare("q")), message(b"kept", "q"))
    await second.expect(methods.QueueDeclareOk)
    await settle()
    assert server.counts() == (1, 0, 0)


async def test_an_auto_delete_queue_stays_for_a_consumer_of_another_protocol(server: Server) -> None:
    first = await with_queue(server, is_auto_delete=True)
    await first.call(consume("q"), methods.BasicConsumeOk)
    server.broker.subscribing.subscribe("q", lambda deliveries: None)
    first.lose()
    await settle()
    assert server.counts() == (0, 0, 1)


# -- exclusive consumers ----------------------------------------------------------------------------------------------


async def test_an_exclusive_consumer_goes_with_its_queue_and_not_with_its_name(server: Server) -> None:
    first = await with_queue(server)
    await first.call(consume("q", is_exclusive=True), methods.BasicConsumeOk)
    await another(server)
    await first.expect(methods.BasicCancel)
    second = await server.connect()
    await second.call(consume("q", is_exclusive=True), methods.BasicConsumeOk)
    await second.deliveries(1)
    first.lose()
    await settle()
    third = await server.connect()
    assert (await third.call(consume("q"), methods.ChannelClose)).reply_code == 403


async def test_a_consumer_that_is_not_exclusive_does_not_end_one_that_is(server: Server) -> None:
    first = await with_queue(server)
    await first.call(consume("q"), methods.BasicConsumeOk)
    await first.call(methods.BasicCancel("t", False), methods.BasicCancelOk)
    await first.call(consume("q", is_exclusive=True), methods.BasicConsumeOk)
    second = await server.connect()
    assert (await second.call(consume("q"), methods.ChannelClose)).reply_code == 403


# -- gone while something waited --------------------------------------------------------------------------------------


async def test_a_queue_that_goes_while_its_declaration_waits_for_the_disk_costs_nobody_the_connection(
    server: Server,
) -> None:
    client = await server.connect()
    server.log.gate.clear()
    client.feed(on(1, declare("q")))
    await settle()
    deleting = asyncio.create_task(server.broker.declaring.delete_queue("q"))
    await settle()
    server.log.gate.set()
    await deleting
    assert await client.expect(methods.QueueDeclareOk) == methods.QueueDeclareOk("q", 0, 0)


async def test_a_queue_that_goes_while_a_message_is_read_back_for_a_get_costs_nobody_the_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await with_queue(server)
    client.feed(message(b"x", "q"))
    receive, may_go_on = server.broker.receiving.receive, asyncio.Event()

    async def receive_slowly(*arguments: Any, **more: Any) -> Any:
        deliveries = await receive(*arguments, **more)
        await may_go_on.wait()
        return deliveries

    monkeypatch.setattr(server.broker.receiving, "receive", receive_slowly)  # as if the body had to be read back first
    client.feed(on(1, get("q")))
    await settle()
    await server.broker.declaring.delete_queue("q")
    may_go_on.set()
    assert (await client.expect(methods.BasicGetOk)).message_count == 0
    assert await client.content() == b"x"
    # It is nobody's any more; to settle it is no error of the client's.
    client.feed(on(1, methods.BasicAck(1, False), methods.BasicQos(0, 0, False)))
    await client.expect(methods.BasicQosOk)
