"""One client that floods the broker does not keep it from the others: its work is cut into slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from smista.protocols.amqp import methods
from smista.protocols.turns import SLICE_S
from tests.protocols.amqp.in_process import Client, Server
from tests.protocols.amqp.raw import declare, head, message, on, part, publish
from tests.waiting import until

COUNT = 3_000
QOS = on(1, methods.BasicQos(0, 1, False))


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server().start()
    await server.broker.declare_queue("q")
    yield server
    await server.stop()


async def turns_until_answered(client: Client) -> int:
    """How many turns of the loop a client waits for the answer to its next method."""
    client.feed(on(1, methods.BasicQos(0, 5, False)))
    count = 0
    while client.has_nothing:
        await asyncio.sleep(0)
        count += 1
    await client.expect(methods.BasicQosOk)
    return count


FLOODS = [
    pytest.param(QOS * COUNT, id="qos"),
    pytest.param(on(1, methods.BasicGet(0, "none", False)) * COUNT, id="get"),
    pytest.param(on(1, methods.BasicRecoverAsync(True)) * COUNT, id="recover"),
    pytest.param(message(b"x", "q") * COUNT, id="alike"),
    pytest.param(b"".join(message(b"x" * (n % 7), f"{n}") for n in range(COUNT)), id="unroutable"),
    pytest.param(message(b"", "", "amq.fanout") * (COUNT // 10), id="fan-out"),
    pytest.param(b"\x08\x00\x00\x00\x00\x00\x00\xce" * COUNT, id="heartbeats"),
]


@pytest.mark.parametrize("flood", FLOODS)
async def test_others_are_served_in_the_middle_of_a_flood(server: Server, flood: bytes) -> None:
    hostile, other = await server.connect(), await server.connect()
    await hostile.call(declare("none"), methods.QueueDeclareOk)
    for number in range(20):
        await hostile.call(declare(f"f{number}"), methods.QueueDeclareOk)
        await hostile.call(methods.QueueBind(0, f"f{number}", "amq.fanout", "", False, {}), methods.QueueBindOk)
    # Each look at the clock finds a slice to be over.
    server.clock.look_s = SLICE_S
    hostile.feed(flood)
    assert hostile.connection._buffer, "the flood was over in one step"
    assert hostile.wire.is_paused
    assert await turns_until_answered(other) <= 3
    assert hostile.connection._buffer
    server.clock.look_s = 0.0
    await until(lambda: not hostile.connection._buffer)
    assert not hostile.wire.is_paused


async def test_a_flood_is_worked_off_in_order(server: Server) -> None:
    client = await server.connect()
    await client.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
    server.clock.look_s = SLICE_S
    client.feed(b"".join(message(b"%d" % number, "q") for number in range(COUNT)))
    await until(lambda: not client.connection._buffer)
    await until(lambda: server.counts()[0] == COUNT)
    page = await server.broker.browse("q", limit=COUNT)
    assert [one.body for one in page.messages] == [b"%d" % number for number in range(COUNT)]


async def test_a_connection_may_go_while_it_waits_for_its_turn(server: Server) -> None:
    client = await server.connect()
    server.clock.look_s = SLICE_S
    client.feed(message(b"x", "q") * COUNT)
    client.lose()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not server.door.connections
    assert server.counts()[0] < COUNT


# -- memory -----------------------------------------------------------------------------------------------------------


def opening(channel: int, size: int, sent: int) -> bytes:
    """The beginning of a message, and some of its body."""
    return publish("q", channel=channel) + head(size, channel=channel) + part(b"x" * sent, channel=channel)


async def test_messages_that_are_not_whole_count_until_they_are_gone(server: Server) -> None:
    client = await server.connect(channels=3)
    for number in (1, 2, 3):
        client.feed(opening(number, 4_000, 3_000))
    assert server.door.kept_bytes() == 9_000
    client.feed(part(b"x" * 1_000, channel=1))
    assert server.door.kept_bytes() == 6_000
    await client.call(methods.ChannelClose(200, "", 0, 0), methods.ChannelCloseOk, channel=1)
    client.lose()
    await until(lambda: not server.door.connections)
    assert server.door.kept_bytes() == 0


async def test_a_connection_has_only_so_much_of_them(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.protocols.amqp.channel.PARTS_BYTES_MAX", 5_000)
    client = await server.connect(channels=3)
    for number in (1, 2):
        client.feed(opening(number, 4_000, 3_000))
    closed = await client.expect(methods.ConnectionClose)
    assert closed.reply_code == 506
    assert "not whole" in closed.reply_text
    assert server.door.kept_bytes() == 0
