"""One client that floods the broker does not keep it from the others: its work is cut into slices."""

from __future__ import annotations

import asyncio
import gc
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest

from smista.core.exchanges import Work
from smista.engine import Binding, Broker, ExchangeKind, ExchangeSettings, Overflow, Publication, QueueSettings
from smista.engine.catalog import Catalog
from smista.protocols.amqp.channel.prepared import MEANT_HEADERS, Prepared, prepare
from smista.protocols.amqp.channel.publisher import ALIKE_PER_STEP, ONE_BY_ONE_PER_STEP, Publisher
from smista.protocols.amqp.wire import methods, values
from smista.protocols.amqp.wire.content import BasicProperties, write_properties
from smista.protocols.amqp.wire.forms import Form
from smista.protocols.amqp.wire.frames import METHOD
from smista.protocols.amqp.wire.methods import Method
from smista.protocols.amqp.wire.values import VALUES_MAX, Reader
from smista.protocols.turns import SLICE_S
from tests.protocols.amqp.in_process import Client, Server, settle
from tests.protocols.amqp.raw import (
    HELLO,
    OPEN,
    OPEN_CHANNEL,
    consume,
    declare,
    frame,
    get,
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
    await server.broker.declaring.declare_queue("q")
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
    assert hostile.connection.has_received, "the flood was over in one step"
    assert hostile.wire.is_paused
    assert await turns_until_answered(other) <= 3
    assert hostile.connection.has_received
    server.clock.look_s = 0.0
    # The last method may be done a while after it was read.
    await until(lambda: not hostile.connection.has_received and not hostile.wire.is_paused)


@pytest.mark.parametrize("hello", [start_ok(response=b"\0guest\0wrong"), start_ok() + OPEN], ids=["stranger", "user"])
async def test_others_are_served_in_the_middle_of_a_flood_that_is_dropped(server: Server, hello: bytes) -> None:
    hostile, other = Client(server.amqp), await server.connect()
    hostile.feed(HELLO, hello)
    await until(lambda: hostile.connection.is_closing)
    server.clock.look_s = SLICE_S
    written = len(hostile.wire.written)
    hostile.feed(on(0, methods.ConnectionClose(200, "", 0, 0)) * COUNT)
    assert hostile.connection.has_received, "the flood was over in one step"
    assert hostile.wire.is_paused
    assert await turns_until_answered(other) <= 3
    assert hostile.connection.has_received
    server.clock.look_s = 0.0
    await until(lambda: not hostile.connection.has_received)
    assert hostile.wire.written[written:] == on(0, methods.ConnectionCloseOk())


async def test_a_flood_is_worked_off_in_order(server: Server) -> None:
    client = await server.connect()
    await client.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
    server.clock.look_s = SLICE_S
    client.feed(b"".join(message(b"%d" % number, "q") for number in range(COUNT)))
    await until(lambda: not client.connection.has_received)
    await until(lambda: server.counts()[0] == COUNT)
    page = await server.broker.browsing.browse("q", limit=COUNT)
    assert [one.body for one in page.messages] == [b"%d" % number for number in range(COUNT)]


async def test_a_connection_may_go_while_it_waits_for_its_turn(server: Server) -> None:
    client = await server.connect()
    server.clock.look_s = SLICE_S
    client.feed(message(b"x", "q") * COUNT)
    client.lose()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not server.amqp.shared.connections
    assert server.counts()[0] < COUNT


# -- alike messages ---------------------------------------------------------------------------------------------------

ONE_BY_ONE = {
    "drops its oldest": QueueSettings(max_depth=10, overflow=Overflow.DROP_OLDEST),
    "drops its oldest ready": QueueSettings(max_depth=10, overflow=Overflow.DROP_OLDEST, limit_ready_only=True),
    "refuses": QueueSettings(max_depth=10),
    "sets aside its oldest": QueueSettings(max_depth=10, overflow=Overflow.DEAD_LETTER_OLDEST),
    "drops in time": QueueSettings(message_ttl_ms=3_600_000),
}
URGENT = write_properties(BasicProperties(priority=5))


async def most_published_in_a_turn(server: Server, client: Client, one: bytes, count: int) -> int:
    """How many of `count` messages that come in one read are published in one turn of the loop, at most."""
    published: list[int] = []
    publish = Publisher.publish

    def counting(*arguments: Any) -> None:
        published[-1] += len(arguments[2])
        publish(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publisher, "publish", counting)
        # Each look at the clock finds a slice to be over.
        server.clock.look_s = SLICE_S
        published.append(0)
        client.feed(one * count)
        while client.connection.has_received:
            published.append(0)
            await asyncio.sleep(0)
    assert sum(published) == count
    return max(published)


@pytest.mark.parametrize("settings", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
async def test_what_a_queue_looks_at_one_by_one_takes_turns(server: Server, settings: QueueSettings) -> None:
    await server.broker.declaring.declare_queue("slow", settings)
    client = await server.connect()
    assert await most_published_in_a_turn(server, client, message(b"x", "slow"), 2_000) <= 2 * ONE_BY_ONE_PER_STEP


UNUSUAL = {
    "of a priority": message(b"x", "q", properties=URGENT),
    "that lead nowhere": message(b"x", "nowhere"),
    "without a body that lead nowhere": message(b"", "nowhere"),
    "that come back": on(1, methods.BasicPublish(0, "", "nowhere", True, False)) + head(1) + part(b"x"),
    "for two queues": message(b"x", "", "amq.fanout"),
}


@pytest.mark.parametrize("one", UNUSUAL.values(), ids=UNUSUAL)
async def test_messages_that_are_more_work_take_turns(server: Server, one: bytes) -> None:
    await server.broker.declaring.declare_queue("r")
    for queue in "qr":
        await server.broker.declaring.bind(Binding.to_queue("amq.fanout", queue, ""))
    client = await server.connect()
    assert await most_published_in_a_turn(server, client, one, 2_000) <= 2 * ONE_BY_ONE_PER_STEP


async def test_plain_messages_enter_a_plain_queue_many_at_a_time(server: Server) -> None:
    client = await server.connect()
    assert await most_published_in_a_turn(server, client, message(b"x", "q"), 4 * ALIKE_PER_STEP) >= ALIKE_PER_STEP


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
    await until(lambda: not client.connection.has_received)
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
    stranger = Client(server.amqp)
    login = methods.ConnectionStartOk({"long": "x" * 8_192}, "PLAIN", b"\0guest\0guest", "en_US")
    stranger.feed(HELLO, on(0, login))
    await stranger.expect(methods.ConnectionStart)
    await until(lambda: stranger.wire.is_closed)
    client = Client(server.amqp)
    # Also where all of it comes at once.
    client.feed(HELLO, start_ok(), tune_ok(), OPEN, OPEN_CHANNEL, message(bytes(100_000), "q"))
    await until(lambda: server.counts()[0] == 1)


# -- very many queues -------------------------------------------------------------------------------------------------

WIDTH = 60


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few queues are many here."""
    monkeypatch.setattr("smista.engine.publishing.FAN_OUT_AT_ONCE", 10)


async def bound(server: Server, exchange: str = "amq.fanout", **arguments: object) -> None:
    for number in range(WIDTH):
        await server.broker.declaring.declare_queue(f"f{number}")
        await server.broker.declaring.bind(Binding.to_queue(exchange, f"f{number}", "", arguments))


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
        assert [one.body for one in (await server.broker.browsing.browse(queue)).messages] == [b"1", b"3"]
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
    monkeypatch.setattr("smista.engine.broker.BACKGROUND_S", PATIENCE_S)
    await bound(server)
    client = await server.connect()
    client.feed(message(b"x", "", "amq.fanout"))
    await server.stop()
    async with await Broker.open(server.log) as broker:
        assert {broker.statistics.stats(f"f{number}").ready for number in range(WIDTH)} == {1}


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
    await server.broker.declaring.alter_queue("f30", QueueSettings(max_depth=1))
    await server.broker.publishing.publish("f30", [Publication(b"full")])
    client = await server.connect()
    await client.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
    client.feed(message(b"x", "", "amq.fanout"))
    assert (await client.expect(methods.BasicNack)).delivery_tag == 1
    assert depths(server) == {1}


@pytest.fixture
async def overflowing(server: Server, narrow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue q, whose messages make room for the next by dying into very many queues."""
    monkeypatch.setattr("smista.core.dead_letters.COPIES_AT_ONCE", WIDTH)
    await bound(server)
    await server.broker.declaring.alter_queue(
        "q", QueueSettings(max_depth=1, overflow=Overflow.DEAD_LETTER_OLDEST, dead_letter_exchange="amq.fanout")
    )


RUN = b"".join(message(b"%d" % number, "q", properties=b"\x08\x00" + bytes((number,))) for number in range(5))
"""Messages that are not alike."""
AFTER_THE_RUN = {
    "a method": (on(1, methods.BasicQos(0, 1, False)), methods.BasicQosOk),
    "a consumer": (on(1, consume("q")), methods.BasicConsumeOk),
    "a purge": (on(1, methods.QueuePurge(0, "q", False)), methods.QueuePurgeOk),
    "a get": (on(1, get("q")), methods.BasicGetOk),
    "what goes back": (on(1, methods.BasicRecover(True)), methods.BasicRecoverOk),
    "the end of the channel": (on(1, methods.ChannelClose(200, "", 0, 0)), methods.ChannelCloseOk),
    "the end of the connection": (on(0, methods.ConnectionClose(200, "", 0, 0)), methods.ConnectionCloseOk),
}


@pytest.mark.parametrize(("sent", "answer"), AFTER_THE_RUN.values(), ids=AFTER_THE_RUN)
async def test_no_method_overtakes_messages_whose_room_takes_long_to_make(
    server: Server, overflowing: None, sent: bytes, answer: type[Method]
) -> None:
    client = await server.connect()
    client.feed(RUN + sent)
    assert depths(server) != {4}, "not all of them have entered"
    await client.expect(answer)
    assert depths(server) == {4}


async def test_nor_does_a_message_for_several_queues(server: Server, overflowing: None) -> None:
    await server.broker.declaring.bind(Binding.to_queue("amq.direct", "q", "k"))
    await server.broker.declaring.declare_queue("other")
    await server.broker.declaring.bind(Binding.to_queue("amq.direct", "other", "k"))
    client = await server.connect()
    await client.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
    client.feed(RUN + message(b"last", "k", "amq.direct") + message(b"more", "other"))
    tag = 0
    while tag < 7:
        acked = await client.expect(methods.BasicAck)
        assert acked.delivery_tag > tag
        tag = acked.delivery_tag
    assert [one.body for one in (await server.broker.browsing.browse("q")).messages] == [b"last"]
    assert [one.body for one in (await server.broker.browsing.browse("other")).messages] == [b"last", b"more"]
    assert depths(server) == {5}


async def test_a_transaction_keeps_the_order_too(server: Server, overflowing: None) -> None:
    await server.broker.declaring.bind(Binding.to_queue("amq.direct", "q", "k"))
    await server.broker.declaring.declare_queue("other")
    await server.broker.declaring.bind(Binding.to_queue("amq.direct", "other", "k"))
    client = await server.connect()
    await client.call(methods.TxSelect(), methods.TxSelectOk)
    client.feed(RUN + message(b"last", "k", "amq.direct"))
    await client.call(methods.TxCommit(), methods.TxCommitOk)
    assert [one.body for one in (await server.broker.browsing.browse("q")).messages] == [b"last"]
    assert depths(server) == {5}


async def test_a_way_through_many_exchanges_counts(server: Server) -> None:
    names = [f"e{number}" for number in range(100)]
    for name in names:
        await server.broker.declaring.declare_exchange(name, ExchangeSettings(ExchangeKind.FANOUT))
    for source, target in pairwise(names):
        await server.broker.declaring.bind(Binding.to_exchange(source, target))
    client = await server.connect()
    server.clock.look_s = SLICE_S
    # Each by a key of its own, so that none is known.
    client.feed(b"".join(message(b"", f"{number}", "e0") for number in range(10)))
    assert client.connection.has_received, "ten ways were walked in one step"
    server.clock.look_s = 0.0
    await until(lambda: not client.connection.has_received)


async def drained(client: Client) -> None:
    await until(lambda: not client.connection.has_received)


async def test_a_way_past_many_bindings_counts(server: Server) -> None:
    """Of one queue, so that what enters queues counts little."""
    await server.broker.declaring.declare_queue("q")
    for number in range(200):
        await server.broker.declaring.bind(Binding.to_queue("amq.headers", "q", f"{number}", {"a": 1}))
        await server.broker.declaring.bind(Binding.to_queue("amq.topic", "q", f"*.{number}.#"))
        await server.broker.declaring.bind(Binding.to_queue("amq.topic", "q", f"#.{number}"))
    properties = write_properties(BasicProperties(headers={"a": 1}))
    for exchange in ("amq.headers", "amq.topic"):
        client = await server.connect()
        server.clock.look_s = SLICE_S
        keys = (".".join(f"{word}" for word in range(number, number + 20)) for number in range(30))
        client.feed(b"".join(message(b"", key, exchange, properties=properties) for key in keys))
        assert client.connection.has_received, f"thirty ways were found in one step by {exchange}"
        server.clock.look_s = 0.0
        await drained(client)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What it took to find where messages go, each time that was looked for."""
    found: list[int] = []
    queues_for = Catalog.queues_for

    def counting(*arguments: Any, work: Work, **named: Any) -> tuple[str, ...]:
        try:
            return queues_for(*arguments, work=work, **named)
        finally:
            found.append(work.done)

    monkeypatch.setattr(Catalog, "queues_for", counting)
    return found


def nowhere(number: int, **headers: object) -> bytes:
    """A message that comes back, since no binding leads anywhere."""
    properties = write_properties(BasicProperties(headers={"a": number, "b": 1, "c": 2, **headers}))
    return on(1, methods.BasicPublish(0, "amq.headers", "", True, False)) + head(1, properties=properties) + part(b"x")


async def bound_elsewhere(server: Server) -> None:
    for number in range(WIDTH):
        await server.broker.declaring.bind(Binding.to_queue("amq.headers", "q", f"{number}", {"b": 1, "c": 1}))


async def test_where_messages_go_that_are_alike_is_found_once(server: Server, found: list[int]) -> None:
    await bound_elsewhere(server)
    client = await server.connect()
    client.feed(nowhere(1) * 200)
    assert len(found) == 1
    await server.broker.declaring.bind(Binding.to_queue("amq.headers", "q", "", {"a": 1}))
    client.feed(nowhere(1) * 200)
    assert len(found) == 2
    assert server.counts()[0] == 200
    client.feed(nowhere(2) + nowhere(1), message(b"x", "q") * 200)
    assert len(found) == 5


@pytest.mark.parametrize("headers", [{}, {"CC": ["k"]}], ids=["by headers", "by more keys"])
async def test_those_that_lead_nowhere_by_a_long_way_are_one_a_turn(
    server: Server, found: list[int], monkeypatch: pytest.MonkeyPatch, headers: dict[str, object]
) -> None:
    monkeypatch.setattr("smista.protocols.amqp.channel.publisher.ROUTED_PER_WORK", 1)
    monkeypatch.setattr("smista.protocols.amqp.wire.scanner.LOOKED_AT_EVERY", WIDTH // 2)
    await bound_elsewhere(server)
    client = await server.connect()
    server.clock.look_s = SLICE_S
    client.feed(b"".join(nowhere(number, **headers) for number in range(50)))
    turns = [len(found)]
    while client.connection.has_received:
        await asyncio.sleep(0)
        turns.append(len(found) - sum(turns))
    assert max(turns) <= 2, "no other message may be looked at before somebody has looked at the clock"
    assert sum(turns) == 50


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
    await server.broker.declaring.bind(Binding.to_queue("amq.topic", "q", "#.a.#"))
    work = Work()
    assert server.broker.catalog.queues_for("amq.topic", "a.a.a.a", extra_keys=["k"], work=work) == ("q",)
    monkeypatch.setattr("smista.core.exchanges.matcher.WORK_MAX", work.done)
    properties = write_properties(BasicProperties(headers={"CC": ["k"]}))
    for count in (1, 2):
        client.feed(message(b"", "a.a.a.a", "amq.topic", properties=properties))
        await drained(client)
        assert server.counts()[0] == count


async def test_a_way_through_too_many_exchanges_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.core.exchanges.router.EXCHANGES_MAX", 1)
    for name in ("e0", "e1"):
        await server.broker.declaring.declare_exchange(name, ExchangeSettings(ExchangeKind.FANOUT))
    await server.broker.declaring.bind(Binding.to_exchange("e0", "e1"))
    client = await server.connect()
    client.feed(message(b"", "", "e0"))
    closed = await client.expect(methods.ChannelClose)
    assert closed.reply_code == 406
    assert "more than 1 exchanges" in closed.reply_text


# -- memory -----------------------------------------------------------------------------------------------------------


def opening(channel: int, size: int, sent: int) -> bytes:
    """The beginning of a message, and some of its body."""
    return publish("q", channel=channel) + head(size, channel=channel) + part(b"x" * sent, channel=channel)


def table(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def headers(fields: bytes) -> bytes:
    """Properties that are headers only."""
    return b"\x20\x00" + table(fields)


def field(number: int, value: bytes) -> bytes:
    name = b"%x" % number
    return bytes((len(name),)) + name + value


EMPTY_HEADERS = headers(b"".join(field(number, b"V") for number in range(11_900)))


async def test_messages_that_are_not_whole_count_until_they_are_gone(server: Server) -> None:
    client = await server.connect(channels=3)
    for number in (1, 2, 3):
        client.feed(opening(number, 4_000, 3_000))
    each = server.amqp.kept_bytes() // 3
    assert 3_000 < each < 3_010
    client.feed(part(b"x" * 1_000, channel=1))
    assert server.amqp.kept_bytes() == 2 * each
    await client.call(methods.ChannelClose(200, "", 0, 0), methods.ChannelCloseOk, channel=1)
    client.lose()
    await until(lambda: not server.amqp.shared.connections)
    assert server.amqp.kept_bytes() == 0


@pytest.mark.parametrize("exchange", ["", "amq.headers"])
async def test_their_properties_count_as_what_they_take_in_memory(server: Server, exchange: str) -> None:
    client = await server.connect(channels=20)
    tracemalloc.start()
    try:
        for number in range(1, 21):
            client.feed(publish("q", exchange, channel=number) + head(1, properties=EMPTY_HEADERS, channel=number))
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes > (10 if exchange else 1) * 20 * len(EMPTY_HEADERS), "only some exchanges look at headers"
    # An object or two are there for each, whatever came.
    assert server.amqp.kept_bytes() >= taken_bytes - 20 * 1_000
    for number in range(1, 21):
        client.feed(part(b"x", channel=number))
    await until(lambda: server.amqp.kept_bytes() == 0)


PROPERTIES = {
    "many names": EMPTY_HEADERS,
    "tables in a list": headers(field(0, b"A" + table((b"F" + table(b"")) * 11_900))),
    "tables of one in a list": headers(field(0, b"A" + table((b"F" + table(field(0, b"V"))) * 5_950))),
    "tables of one": headers(b"".join(field(number, b"F" + table(field(number, b"V"))) for number in range(5_950))),
    "decimals": headers(b"".join(field(number, b"D\x01\x00\x00\x00\x05") for number in range(11_000))),
    "texts": headers(b"".join(field(number, b"S" + table(b"x" * 20)) for number in range(4_000))),
    "one sign in a long text": headers(field(0, b"S" + table(b"x" * 100_000 + "\N{GRINNING FACE}".encode()))),
    "no table": write_properties(BasicProperties(correlation_id="x" * 255, message_id="y" * 255)),
}


@pytest.mark.parametrize("raw", PROPERTIES.values(), ids=PROPERTIES)
def test_no_properties_take_more_memory_than_they_count(raw: bytes) -> None:
    tracemalloc.start()
    try:
        prepared = prepare("", "q", raw, "guest", None, None, keeps_headers=True)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # An object or two are there whatever came.
    assert prepared.kept_bytes >= taken_bytes - 1_000


@pytest.mark.parametrize(
    "raw",
    [
        headers(b"\0b\1" * 650),
        headers(b"\0S\0\0\0\0" * 330),
        headers(field(0, b"S" + table(b"x" * 1_900))),
        write_properties(BasicProperties(message_id="x")),
    ],
    ids=["bytes", "empty texts", "a long text", "no table"],
)
def test_no_form_takes_more_memory_than_it_counts(raw: bytes) -> None:
    prepared = prepare("", "q", raw, "guest", None, None, keeps_headers=False)
    # What the interpreter keeps for the next time is no form's.
    Form(raw, MEANT_HEADERS)
    tracemalloc.start()
    try:
        prepared.form = Form(raw, MEANT_HEADERS)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert prepared.remembered_bytes - prepared.kept_bytes >= taken_bytes - 500


@pytest.mark.parametrize("exchange", ["", "amq.headers"])
async def test_nothing_long_is_kept_of_the_properties_of_a_message_that_is_whole(server: Server, exchange: str) -> None:
    client = await server.connect(channels=5)
    for number in range(1, 6):
        client.feed(message(b"x", f"nowhere-{number}", exchange, channel=number, properties=EMPTY_HEADERS))
    await drained(client)
    gc.collect()
    assert [one for one in gc.get_objects() if isinstance(one, Prepared) and len(one.headers or ()) > 10_000] == []


async def test_so_much_is_remembered_of_all_that_is_short(server: Server) -> None:
    client = await server.connect(channels=2)
    largest = 0
    for number in range(1_000):
        short = headers(b"".join(field(each, b"V") for each in range(number, number + 200)))
        client.feed(message(b"x", f"nowhere-{number}", "amq.headers", channel=1 + number % 2, properties=short))
        if number >= 900 and number % 10 == 0:
            await drained(client)
            gc.collect()
            largest = max(largest, sum(one.remembered_bytes for one in gc.get_objects() if isinstance(one, Prepared)))
    assert 1 << 20 < largest < 5 << 20


async def test_a_connection_has_only_so_much_of_them(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.protocols.amqp.wire.channel.KEPT_BYTES_MAX", 5_000)
    client = await server.connect(channels=3)
    for number in (1, 2):
        client.feed(opening(number, 4_000, 3_000))
    closed = await client.expect(methods.ConnectionClose)
    assert closed.reply_code == 506
    assert "not whole" in closed.reply_text
    assert server.amqp.kept_bytes() == 0


async def test_nor_of_their_properties(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.protocols.amqp.wire.channel.KEPT_BYTES_MAX", 3_000_000)
    client = await server.connect(channels=3)
    for number in (1, 2):
        client.feed(publish("q", "amq.headers", channel=number) + head(1, properties=EMPTY_HEADERS, channel=number))
    closed = await client.expect(methods.ConnectionClose)
    assert closed.reply_code == 506
    assert server.amqp.kept_bytes() == 0


# -- the log ----------------------------------------------------------------------------------------------------------


def counted(caplog: pytest.LogCaptureFixture, line: str) -> list[int]:
    """What the lines that begin so count."""
    found = [record for record in caplog.records if record.getMessage().startswith(line)]
    return [record.fields["count"] for record in found]  # type: ignore[attr-defined]  # as `extra`


async def test_connections_that_fail_after_their_login_are_logged_together(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "smista.amqp")
    for _ in range(200):
        client = await server.connect()
        client.feed(frame(METHOD, 0, b"\0\x63\0\x63"))
        await client.expect(methods.ConnectionClose)
        client.lose()
    await server.amqp.drain()
    counts = counted(caplog, "connections are closed: NOT_IMPLEMENTED - unknown method 99.99")
    assert sum(counts) == 200
    assert len(counts) < 20
    assert len(caplog.records) == len(counts)


async def test_so_are_channels(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "smista.amqp")
    client = await server.connect()
    for _ in range(200):
        await client.call(methods.BasicAck(1, False), methods.ChannelClose)
        client.feed(on(1, methods.ChannelCloseOk()), OPEN_CHANNEL)
        await client.expect(methods.ChannelOpenOk)
    client.lose()
    await server.amqp.drain()
    counts = counted(caplog, "channels are closed: PRECONDITION_FAILED - unknown delivery tag 1")
    assert sum(counts) == 200
    assert len(counts) < 20
    assert len(caplog.records) == len(counts)


async def test_what_is_remembered_of_properties_takes_no_more_than_is_counted() -> None:
    """Each value that may differ is a piece of the form: two kilobytes hold hundreds of them."""
    server = await Server().start()
    client = await server.connect()
    table = b"\0b\1" * 680
    properties = struct.pack(">HI", 0x2000, len(table)) + table
    client.feed(message(b"x", "nowhere", properties=properties))
    targets = client.channel().targets
    gc.collect()
    tracemalloc.start()
    try:
        before, counted = tracemalloc.get_traced_memory()[0], targets._kept_bytes
        for number in range(100):
            client.feed(message(b"x", f"nowhere{number}", properties=properties))
        await settle()
        # Those that the scanner knows are the same.
        assert tracemalloc.get_traced_memory()[0] - before < 1.2 * (targets._kept_bytes - counted)
        assert len(targets.known) == 101
    finally:
        tracemalloc.stop()
    await server.stop()
