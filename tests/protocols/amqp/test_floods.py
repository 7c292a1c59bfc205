"""One client that floods the broker does not keep it from the others: its work is cut into slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest

from smista.core.exchanges import Work
from smista.engine import Binding, Broker, ExchangeKind, ExchangeSettings, Publication, QueueSettings
from smista.protocols.amqp import methods, values
from smista.protocols.amqp.content import BasicProperties, write_properties
from smista.protocols.amqp.frames import METHOD
from smista.protocols.amqp.values import VALUES_MAX, Reader
from smista.protocols.turns import SLICE_S
from tests.protocols.amqp.in_process import Client, Server
from tests.protocols.amqp.raw import (
    HELLO,
    OPEN,
    OPEN_CHANNEL,
    declare,
    frame,
    head,
    message,
    on,
    part,
    publish,
    start_ok,
    tune_ok,
)
from tests.waiting import PATIENCE_S, until

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
    # The last method may be done a while after it was read.
    await until(lambda: not hostile.connection._buffer and not hostile.wire.is_paused)


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


# -- long tables ------------------------------------------------------------------------------------------------------


def many_values(count: int) -> bytes:
    return values.long_string(b"\0V" * count)


LONG_ONES = {
    "headers": publish("nowhere") + head(0, properties=b"\x20\x00" + many_values(10_000)),
    "arguments": frame(METHOD, 1, b"\0\x32\0\x0a\0\0\x01q\x03" + many_values(10_000)),
}


@pytest.mark.parametrize("one", LONG_ONES.values(), ids=LONG_ONES)
async def test_a_long_table_counts_for_many_frames(server: Server, one: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await server.connect()
    read: list[int] = []
    go_inside = Reader._go_inside

    def count(reader: Reader, depth: int) -> int:
        read.append(depth)
        return go_inside(reader, depth)

    monkeypatch.setattr(Reader, "_go_inside", count)
    server.clock.look_s = SLICE_S
    client.feed(one * 10)
    assert len(read) == 1, "more than one was read before somebody looked at the clock"
    server.clock.look_s = 0.0
    await until(lambda: not client.connection._buffer)
    assert len(read) == 10


async def test_a_message_with_too_many_headers_closes_its_channel(server: Server) -> None:
    client = await server.connect(channels=2)
    client.feed(publish("q") + head(1, properties=b"\x20\x00" + many_values(VALUES_MAX + 1)) + part(b"x"))
    closed = await client.expect(methods.ChannelClose)
    assert closed.reply_code == 406
    assert f"more than {VALUES_MAX} values" in closed.reply_text
    client.feed(message(b"x", "q", channel=2, properties=b"\x20\x00" + many_values(VALUES_MAX)))
    await until(lambda: server.counts()[0] == 1)


async def test_a_method_with_too_many_arguments_closes_the_connection(server: Server) -> None:
    client = await server.connect()
    client.feed(frame(METHOD, 1, b"\0\x32\0\x0a\0\0\x01q\x03" + many_values(VALUES_MAX + 1)))
    closed = await client.expect(methods.ConnectionClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (502, 50, 10)
    assert f"more than {VALUES_MAX} values" in closed.reply_text


async def test_long_frames_are_taken_after_the_login_only(server: Server) -> None:
    stranger = Client(server.door)
    login = methods.ConnectionStartOk({"long": "x" * 8_192}, "PLAIN", b"\0guest\0guest", "en_US")
    stranger.feed(HELLO, on(0, login))
    await stranger.expect(methods.ConnectionStart)
    await until(lambda: stranger.wire.is_closed)
    client = Client(server.door)
    # Also where all of it comes at once.
    client.feed(HELLO, start_ok(), tune_ok(), OPEN, OPEN_CHANNEL, message(bytes(100_000), "q"))
    await until(lambda: server.counts()[0] == 1)


# -- very many queues -------------------------------------------------------------------------------------------------

WIDTH = 60


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few queues are many here."""
    for where in ("protocols.amqp.publishing", "protocols.amqp.transaction", "engine.publishing"):
        monkeypatch.setattr(f"smista.{where}.FAN_OUT_AT_ONCE", 10)


async def bound(server: Server, exchange: str = "amq.fanout", **arguments: object) -> None:
    for number in range(WIDTH):
        await server.broker.declare_queue(f"f{number}")
        await server.broker.bind(Binding.to_queue(exchange, f"f{number}", "", arguments))


def depths(server: Server) -> set[int]:
    return {server.counts(f"f{number}")[0] for number in range(WIDTH)}


async def most_in_a_turn(server: Server, until_done: Callable[[], bool]) -> int:
    """How many messages entered queues in one turn of the loop, at most."""
    state, most = server.broker._state, 0
    while not until_done():
        before = state.next_sequence
        await asyncio.sleep(0)
        most = max(most, state.next_sequence - before)
    return most


async def test_a_route_that_has_become_wide_since_counts_as_wide(server: Server) -> None:
    """A publisher whose messages led nowhere so far: 500 of them in one go would make 30,000."""
    client = await server.connect()
    client.feed(message(b"x", "", "amq.fanout") * 2)
    await bound(server)
    before = server.broker._state.next_sequence
    server.clock.look_s = SLICE_S
    client.feed(message(b"x", "", "amq.fanout") * 500)
    assert server.broker._state.next_sequence - before <= 10 * WIDTH
    assert await most_in_a_turn(server, lambda: depths(server) == {500}) <= 20 * WIDTH


async def test_what_headers_lead_to_counts(server: Server) -> None:
    await bound(server, "amq.headers", **{"x-match": "any", "a": 1})
    client = await server.connect()
    properties = write_properties(BasicProperties(headers={"a": 1}))
    one = message(b"x", "", "amq.headers", properties=properties)
    before = server.broker._state.next_sequence
    server.clock.look_s = SLICE_S
    client.feed(one * 500)
    assert server.broker._state.next_sequence - before <= 10 * WIDTH
    assert await most_in_a_turn(server, lambda: depths(server) == {500}) <= 20 * WIDTH


async def test_a_message_for_very_many_queues_enters_some_at_a_time(server: Server, narrow: None) -> None:
    await bound(server)
    client, other = await server.connect(), await server.connect()
    await client.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
    client.feed(message(b"1", "", "amq.fanout") + message(b"2", "q") + message(b"3", "", "amq.fanout"))
    assert await turns_until_answered(other) <= 3
    assert 0 in depths(server), "the first has not entered all of its queues"
    assert client.has_nothing, "so nothing is confirmed"
    assert await most_in_a_turn(server, lambda: depths(server) == {2}) <= 10
    tags = set()
    while 3 not in tags:
        tags.add((await client.expect(methods.BasicAck)).delivery_tag)
    for queue in ("f0", f"f{WIDTH - 1}"):
        assert [one.body for one in (await server.broker.browse(queue)).messages] == [b"1", b"3"]
    assert server.counts()[0] == 1


async def test_it_enters_all_of_them_though_its_connection_goes(server: Server, narrow: None) -> None:
    await bound(server)
    client = await server.connect()
    client.feed(message(b"x", "", "amq.fanout"))
    client.lose()
    assert depths(server) != {1}
    await until(lambda: depths(server) == {1})


async def test_it_enters_all_of_them_though_the_broker_stops(
    server: Server, narrow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smista.engine.running.ERRANDS_S", PATIENCE_S)
    await bound(server)
    client = await server.connect()
    client.feed(message(b"x", "", "amq.fanout"))
    await server.stop()
    async with await Broker.open(server.log) as broker:
        assert {broker.stats(f"f{number}").ready for number in range(WIDTH)} == {1}


async def test_a_transaction_puts_its_messages_into_very_many_queues_some_at_a_time(
    server: Server, narrow: None
) -> None:
    await bound(server)
    client = await server.connect()
    await client.call(methods.TxSelect(), methods.TxSelectOk)
    client.feed(message(b"x", "", "amq.fanout") * 5)
    client.feed(on(1, methods.TxCommit()))
    assert await most_in_a_turn(server, lambda: depths(server) == {5}) <= 10
    await client.expect(methods.TxCommitOk)


async def test_one_that_a_queue_refuses_is_refused_and_enters_the_others(server: Server, narrow: None) -> None:
    await bound(server)
    await server.broker.alter_queue("f30", QueueSettings(max_depth=1))
    await server.broker.publish("f30", [Publication(b"full")])
    client = await server.connect()
    await client.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
    client.feed(message(b"x", "", "amq.fanout"))
    assert (await client.expect(methods.BasicNack)).delivery_tag == 1
    assert depths(server) == {1}


async def test_a_way_through_many_exchanges_counts(server: Server) -> None:
    names = [f"e{number}" for number in range(100)]
    for name in names:
        await server.broker.declare_exchange(name, ExchangeSettings(ExchangeKind.FANOUT))
    for source, target in pairwise(names):
        await server.broker.bind(Binding.to_exchange(source, target))
    client = await server.connect()
    server.clock.look_s = SLICE_S
    # Each by a key of its own, so that none is known.
    client.feed(b"".join(message(b"", f"{number}", "e0") for number in range(10)))
    assert client.connection._buffer, "ten ways were walked in one step"
    server.clock.look_s = 0.0
    await until(lambda: not client.connection._buffer)


async def drained(client: Client) -> None:
    await until(lambda: not client.connection._buffer)


async def test_a_way_past_many_bindings_counts(server: Server) -> None:
    """Of one queue, so that what enters queues counts little."""
    await server.broker.declare_queue("q")
    for number in range(200):
        await server.broker.bind(Binding.to_queue("amq.headers", "q", f"{number}", {"a": 1}))
        await server.broker.bind(Binding.to_queue("amq.topic", "q", f"*.{number}.#"))
        await server.broker.bind(Binding.to_queue("amq.topic", "q", f"#.{number}"))
    properties = write_properties(BasicProperties(headers={"a": 1}))
    for exchange in ("amq.headers", "amq.topic"):
        client = await server.connect()
        server.clock.look_s = SLICE_S
        keys = (".".join(f"{word}" for word in range(number, number + 20)) for number in range(10))
        client.feed(b"".join(message(b"", key, exchange, properties=properties) for key in keys))
        assert client.connection._buffer, f"ten ways were found in one step by {exchange}"
        server.clock.look_s = 0.0
        await drained(client)


async def test_a_way_past_too_many_bindings_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.core.exchanges.matcher.WORK_MAX", 100)
    client = await server.connect()
    properties = write_properties(BasicProperties(headers={"CC": [f"k{number}" for number in range(100)]}))
    client.feed(message(b"", "", "amq.direct", properties=properties))
    closed = await client.expect(methods.ChannelClose)
    assert closed.reply_code == 406
    assert "take more than" in closed.reply_text


async def test_what_a_way_may_take_does_not_depend_on_what_is_remembered_of_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await server.connect()
    await server.broker.bind(Binding.to_queue("amq.topic", "q", "#.a.#"))
    work = Work()
    assert server.broker.queues_for("amq.topic", "a.a.a.a", extra_keys=["k"], work=work) == ("q",)
    monkeypatch.setattr("smista.core.exchanges.matcher.WORK_MAX", work.done)
    properties = write_properties(BasicProperties(headers={"CC": ["k"]}))
    for count in (1, 2):
        client.feed(message(b"", "a.a.a.a", "amq.topic", properties=properties))
        await drained(client)
        assert server.counts()[0] == count


async def test_a_way_through_too_many_exchanges_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.core.exchanges.router.EXCHANGES_MAX", 1)
    for name in ("e0", "e1"):
        await server.broker.declare_exchange(name, ExchangeSettings(ExchangeKind.FANOUT))
    await server.broker.bind(Binding.to_exchange("e0", "e1"))
    client = await server.connect()
    client.feed(message(b"", "", "e0"))
    closed = await client.expect(methods.ChannelClose)
    assert closed.reply_code == 406
    assert "more than 1 exchanges" in closed.reply_text


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
