"""What a connection or channel held when it went: back in its place, in order, and nobody else waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from smista.engine import Publication, QueueSettings
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.channel import ChannelState
from smista.protocols.amqp.wire.methods import Method
from tests.logged import logged
from tests.protocols.amqp.in_process import Client, Server, settle
from tests.protocols.amqp.raw import CLOSE, CLOSE_CHANNEL, consume, declare, message, on
from tests.waiting import patience, until

MANY = 2_400
QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": 3}
QOS = methods.BasicQos(0, 0, False)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server().start()
    yield server
    await server.stop()


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.engine.slices.SLICE_S", 0.0)
    monkeypatch.setattr("smista.engine.settling.ACKNOWLEDGED_AT_ONCE", 500)
    monkeypatch.setattr("smista.engine.broker.BACKGROUND_S", 0.0)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def filled(server: Server, count: int, arguments: dict[str, Any] | None = None) -> Client:
    """A connection that has declared a queue with so many messages."""
    client = await server.connect()
    await client.call(declare("q", arguments), methods.QueueDeclareOk)
    await server.broker.publishing.publish("q", [Publication(body) for body in numbered(count)])
    return client


async def holding(server: Server, count: int, arguments: dict[str, Any] | None = None) -> Client:
    """A connection whose consumer holds so many messages."""
    client = await filled(server, count, arguments)
    await client.call(consume("q"), methods.BasicConsumeOk)
    await client.deliveries(count)
    return client


async def order(server: Server) -> list[bytes]:
    """All that is ready, as it would be received."""
    return [delivery.body for delivery in await server.broker.receiving.receive("q", 10_000)]


async def watched(is_done: Callable[[], bool], look: Callable[[], int]) -> int:
    """How many different things were seen, looking in every turn of the loop, until something is done."""
    seen = set()
    async with patience():
        while not is_done():
            seen.add(look())
            await asyncio.sleep(0)
    return len(seen)


# -- out of the line first --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [QUORUM, {**QUORUM, "x-max-length": 1000}], ids=["unlimited", "limited"])
async def test_a_connection_that_dies_is_not_served_what_it_gives_back(
    server: Server, arguments: dict[str, Any]
) -> None:
    client = await server.connect(channels=6)
    await client.call(declare("q", arguments), methods.QueueDeclareOk)
    for channel in range(1, 7):
        await client.call(methods.BasicQos(0, 10, False), methods.BasicQosOk, channel=channel)
        await client.call(consume("q"), methods.BasicConsumeOk, channel=channel)
    client.feed(*[message(body, "q") for body in numbered(4)])
    await client.deliveries(4)
    client.lose()
    await settle()
    assert server.counts() == (4, 0, 0)
    assert [delivery.delivery_count for delivery in await server.broker.receiving.receive("q", 4)] == [2] * 4


async def test_a_channel_that_closes_is_not_served_what_it_gives_back(server: Server) -> None:
    client = await server.connect()
    await client.call(declare("q", {**QUORUM, "x-max-length": 1000}), methods.QueueDeclareOk)
    await client.call(methods.BasicQos(0, 2, False), methods.BasicQosOk)
    for tag in ("a", "b", "c"):
        await client.call(consume("q", tag), methods.BasicConsumeOk)
    client.feed(*[message(body, "q") for body in numbered(4)])
    await client.deliveries(4)
    await client.call(CLOSE_CHANNEL, methods.ChannelCloseOk)
    assert server.counts() == (4, 0, 0)
    assert [delivery.delivery_count for delivery in await server.broker.receiving.receive("q", 4)] == [2] * 4


@pytest.mark.parametrize("count", [5, MANY])
async def test_the_next_single_active_consumer_gets_first_what_was_given_back(server: Server, count: int) -> None:
    active = await filled(server, 0, {"x-single-active-consumer": True})
    await active.call(methods.BasicQos(0, count, False), methods.BasicQosOk)
    await active.call(consume("q"), methods.BasicConsumeOk)
    standby = await server.connect()
    await standby.call(consume("q"), methods.BasicConsumeOk)
    await server.broker.publishing.publish("q", [Publication(body) for body in numbered(2 * count)])
    await active.deliveries(count)
    await settle()
    assert standby.has_nothing
    active.lose()
    assert [body for _, body in await standby.deliveries(2 * count)] == numbered(2 * count)


# -- very many --------------------------------------------------------------------------------------------------------


async def test_very_many_go_back_in_slices_when_a_connection_dies(server: Server) -> None:
    client = await holding(server, MANY)
    client.lose()
    assert server.counts()[2] == 0
    assert await watched(lambda: server.counts() == (MANY, 0, 0), lambda: server.counts()[0]) > 3
    assert await order(server) == numbered(MANY)


async def test_very_many_on_many_channels_go_back_in_slices(server: Server) -> None:
    client = await server.connect(channels=10)
    await client.call(declare("q"), methods.QueueDeclareOk)
    for channel in range(1, 11):
        await client.call(methods.BasicQos(0, 300, False), methods.BasicQosOk, channel=channel)
        await client.call(consume("q"), methods.BasicConsumeOk, channel=channel)
    await server.broker.publishing.publish("q", [Publication(body) for body in numbered(MANY)])
    await client.deliveries(MANY)
    client.lose()
    assert server.counts()[2] == 0
    assert await watched(lambda: server.counts() == (MANY, 0, 0), lambda: server.counts()[0]) > 3
    assert await order(server) == numbered(MANY)


async def test_a_new_consumer_waits_until_all_is_back_and_gets_it_in_order(server: Server) -> None:
    client, other = await holding(server, MANY), await server.connect()
    client.lose()
    other.feed(on(1, consume("q")))
    other.feed(*[message(b"%d" % number, "q") for number in range(MANY, MANY + 10)])
    await other.expect(methods.BasicConsumeOk)
    assert [body for _, body in await other.deliveries(MANY + 10)] == numbered(MANY + 10)


async def test_a_closed_channel_is_answered_when_all_is_back(server: Server) -> None:
    client = await holding(server, MANY)
    client.feed(on(1, CLOSE_CHANNEL))
    assert server.counts()[2] == 0
    assert client.has_nothing
    await client.expect(methods.ChannelCloseOk)
    assert server.counts() == (MANY, 0, 0)
    client.feed(on(1, methods.ChannelOpen()))
    await client.expect(methods.ChannelOpenOk)


FAULTS = [
    pytest.param(on(1, methods.BasicAck(999_999, False)), id="settling"),
    pytest.param(on(1, declare("missing", is_passive=True)), id="declaring"),
    pytest.param(message(b"too large", "small"), id="publishing"),
    pytest.param(on(1, methods.TxSelect()) + message(b"too large", "small") + on(1, methods.TxCommit()), id="commit"),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("is_one_read", [True, False], ids=["one read", "two reads"])
async def test_what_a_channel_held_that_is_closed_by_an_error_is_back_before_the_next_method(
    server: Server, fault: bytes, is_one_read: bool
) -> None:
    await server.broker.declaring.declare_queue("small", QueueSettings(body_bytes_max=3))
    client = await holding(server, MANY)
    await client.call(methods.ChannelOpen(), methods.ChannelOpenOk, channel=2)
    next_method = on(2, declare("q", is_passive=True))
    client.feed(*([fault + next_method] if is_one_read else [fault, next_method]))
    seen = [(await client.method())[1] for _ in range(3 if on(1, methods.TxSelect()) in fault else 2)]
    assert isinstance(seen[-2], methods.ChannelClose)
    assert seen[-1] == methods.QueueDeclareOk("q", MANY, 0)
    await client.call(QOS, methods.BasicQosOk, channel=2)


async def test_a_connection_dies_after_an_error_has_closed_its_channel(server: Server) -> None:
    client = await holding(server, MANY)
    client.feed(on(1, methods.BasicAck(999_999, False)), on(1, CLOSE_CHANNEL))
    await client.expect(methods.ChannelClose)
    client.lose()
    await until(lambda: server.counts() == (MANY, 0, 0))
    assert await order(server) == numbered(MANY)


async def test_a_connection_is_closed_while_very_many_go_back(server: Server) -> None:
    client = await holding(server, MANY)
    client.feed(on(0, CLOSE))
    await client.expect(methods.ConnectionCloseOk)
    await until(lambda: server.counts() == (MANY, 0, 0))


async def test_a_connection_dies_while_its_channel_is_being_closed(server: Server) -> None:
    client = await holding(server, MANY)
    client.feed(on(1, CLOSE_CHANNEL))
    await asyncio.sleep(0)
    client.lose()
    await until(lambda: server.counts() == (MANY, 0, 0))
    assert await order(server) == numbered(MANY)


ALL = [
    pytest.param(methods.BasicNack(0, True, True), MANY, id="nack"),
    pytest.param(methods.BasicRecoverAsync(True), MANY, id="recover-async"),
    pytest.param(methods.BasicNack(0, True, False), 0, id="reject"),
    pytest.param(methods.BasicAck(0, True), 0, id="ack"),
]


@pytest.mark.parametrize(("method", "left"), ALL)
async def test_very_many_are_settled_in_slices_before_the_next_method(
    server: Server, method: Method, left: int
) -> None:
    client = await holding(server, MANY)
    await client.call(methods.BasicCancel("t", False), methods.BasicCancelOk)
    client.feed(on(1, method, QOS))
    assert client.has_nothing

    def held() -> int:
        return server.counts()[1]

    assert await watched(lambda: held() == 0, held) > 3
    await client.expect(methods.BasicQosOk)
    assert server.counts() == (left, 0, 0)
    assert await order(server) == numbered(left)


@pytest.mark.parametrize(("method", "left"), ALL)
async def test_a_connection_dies_while_very_many_are_settled(server: Server, method: Method, left: int) -> None:
    client = await holding(server, MANY)
    client.feed(on(1, method))
    await asyncio.sleep(0)
    client.lose()
    await until(lambda: server.counts() == (left, 0, 0))
    assert await order(server) == numbered(left)


async def test_a_recover_is_answered_when_all_is_back_and_comes_again_in_order(server: Server) -> None:
    client = await holding(server, MANY)
    await client.call(methods.BasicRecover(True), methods.BasicRecoverOk)
    again = await client.deliveries(MANY)
    assert [body for _, body in again] == numbered(MANY)
    assert again[-1][0] == 2 * MANY


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "purged"])
async def test_a_queue_may_be_emptied_while_very_many_go_back_to_it(server: Server, is_deleted: bool) -> None:
    client = await holding(server, MANY)
    client.lose()
    await asyncio.sleep(0)
    if is_deleted:
        await server.broker.declaring.delete_queue("q")
        await server.broker.declaring.declare_queue("q")
    else:
        await server.broker.declaring.purge("q")
    other = await server.connect()
    await other.call(consume("q"), methods.BasicConsumeOk)
    other.feed(message(b"next", "q"))
    assert [body for _, body in await other.deliveries(1)] == [b"next"]
    await settle()
    assert server.counts() == (0, 1, 1)


async def test_a_broker_that_closes_while_very_many_go_back_has_them_all_when_it_opens(server: Server) -> None:
    client = await holding(server, MANY)
    client.lose()
    await asyncio.sleep(0)
    await server.stop()
    await server.start()
    assert server.counts() == (MANY, 0, 0)
    assert await order(server) == numbered(MANY)


# -- faults of ours ---------------------------------------------------------------------------------------------------


async def test_a_delivery_that_fails_by_a_fault_of_ours_ends_one_connection_only_and_goes_back(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> bytes:
        raise RuntimeError("planted")

    client = await filled(server, 0)
    bystander: list[Any] = []
    await client.call(methods.BasicQos(0, 1, False), methods.BasicQosOk)
    await client.call(consume("q"), methods.BasicConsumeOk)
    server.broker.subscribing.subscribe("q", bystander.extend)
    monkeypatch.setattr("smista.protocols.amqp.channel.consumer.raw_properties", broken)
    await server.broker.publishing.publish("q", [Publication(body) for body in numbered(4)])
    assert (await client.expect(methods.ConnectionClose)).reply_code == 541
    await until(lambda: len(bystander) == 4)
    assert sorted(delivery.body for delivery in bystander) == numbered(4)
    assert "planted" in logged(caplog)


# -- very many channels -----------------------------------------------------------------------------------------------


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.protocols.amqp.handler.CHANNELS_PER_TURN", 50)


def states_of(client: Client) -> list[ChannelState]:
    return list(client.connection.channels.values())


async def most_in_a_turn(states: list[ChannelState]) -> int:
    """How many channels ended in one turn of the loop, at most, until none is left."""
    most, left = 0, sum(state.is_open for state in states)
    async with patience():
        while left:
            await asyncio.sleep(0)
            before, left = left, sum(state.is_open for state in states)
            most = max(most, before - left)
    return most


@pytest.mark.usefixtures("few_at_once")
async def test_channels_of_very_many_connections_end_and_others_have_their_turns(server: Server) -> None:
    clients = [await server.connect(channels=40) for _ in range(10)]
    await clients[0].call(declare("q"), methods.QueueDeclareOk)
    for client in clients:
        await client.call(methods.BasicQos(0, 1, False), methods.BasicQosOk, channel=40)
        await client.call(consume("q"), methods.BasicConsumeOk, channel=40)
        client.feed(message(b"x", "q"))
    await until(lambda: server.counts() == (0, 10, 10))
    states = [state for client in clients for state in states_of(client)]
    for client in clients:
        client.lose()
    assert server.counts() == (10, 0, 0), "what they held is back, and none of them is served"
    # One connection's at once, and the channels that consumed.
    assert sum(state.is_open for state in states) == 390 - 39
    assert await most_in_a_turn(states) <= 50
    assert server.counts() == (10, 0, 0)


@pytest.mark.usefixtures("few_at_once")
async def test_very_many_channels_of_one_connection_end_in_slices_though_it_is_closed_in_order(server: Server) -> None:
    client = await server.connect(channels=120)
    states = states_of(client)
    client.feed(on(0, CLOSE))
    assert all(state.is_open for state in states)
    await client.expect(methods.ConnectionCloseOk)
    assert await most_in_a_turn(states) <= 50


async def test_a_channel_that_has_ended_lets_go_of_what_hears_its_events(server: Server) -> None:
    client = await server.connect(channels=3)
    client.feed(message(b"x", "q"))
    states = states_of(client)
    client.lose()
    assert not any(state.is_open or hasattr(state, "events") for state in states)
