"""Who is served what, and when: between frames, where a real client could only hope to meet the moment."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.methods import Method
from tests.protocols.amqp.in_process import Client, Server, settle
from tests.protocols.amqp.raw import CLOSE_CHANNEL, consume, declare, get, message, on
from tests.waiting import until

CANCEL = methods.BasicCancel("t", False)
QOS_2 = methods.BasicQos(0, 2, False)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server().start()
    yield server
    await server.stop()


async def dealt(client: Client, count: int) -> list[tuple[str, bytes]]:
    """The next deliveries: to whom, and what."""
    return [((await client.expect(methods.BasicDeliver)).consumer_tag, await client.content()) for _ in range(count)]


def by_consumer(deliveries: list[tuple[str, bytes]]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for tag, body in deliveries:
        found[tag] = found.get(tag, b"") + body
    return found


# -- in turn ----------------------------------------------------------------------------------------------------------


async def test_a_burst_is_dealt_out_one_by_one(server: Server) -> None:
    publisher, client = await server.connect(), await server.connect()
    await publisher.call(declare("q"), methods.QueueDeclareOk)
    for tag in "abc":
        await client.call(consume("q", tag), methods.BasicConsumeOk)
    publisher.feed(*[message(b"%d" % number, "q") for number in range(8)])
    assert await dealt(client, 8) == [("abcabcab"[number], b"%d" % number) for number in range(8)]
    # And goes on with whoever's turn it is.
    publisher.feed(*[message(b"%d" % number, "q") for number in range(4)])
    assert await dealt(client, 4) == [("cabc"[number], b"%d" % number) for number in range(4)]


async def test_a_burst_is_dealt_out_to_channels_and_connections(server: Server) -> None:
    publisher = await server.connect()
    await publisher.call(declare("q"), methods.QueueDeclareOk)
    one, other = await server.connect(channels=2), await server.connect()
    await one.call(consume("q", "a"), methods.BasicConsumeOk, channel=1)
    await one.call(consume("q", "b"), methods.BasicConsumeOk, channel=2)
    await other.call(consume("q", "c"), methods.BasicConsumeOk)
    publisher.feed(*[message(b"%d" % number, "q") for number in range(6)])
    assert by_consumer(await dealt(one, 4)) == {"a": b"03", "b": b"14"}
    assert by_consumer(await dealt(other, 2)) == {"c": b"25"}


async def test_a_burst_is_dealt_out_as_far_as_each_has_credit(server: Server) -> None:
    publisher, client = await server.connect(), await server.connect()
    await publisher.call(declare("q"), methods.QueueDeclareOk)
    await client.call(QOS_2, methods.BasicQosOk)
    await client.call(consume("q", "a"), methods.BasicConsumeOk)
    await client.call(methods.BasicQos(0, 3, False), methods.BasicQosOk)
    await client.call(consume("q", "b"), methods.BasicConsumeOk)
    await client.call(methods.BasicQos(0, 0, False), methods.BasicQosOk)
    await client.call(consume("q", "c"), methods.BasicConsumeOk)
    publisher.feed(*[message(b"%d" % number, "q") for number in range(10)])
    assert by_consumer(await dealt(client, 10)) == {"a": b"03", "b": b"146", "c": b"25789"}


async def test_what_was_dealt_out_comes_back_in_order_after_a_restart(server: Server) -> None:
    publisher, client = await server.connect(), await server.connect()
    await publisher.call(declare("q"), methods.QueueDeclareOk)
    for tag in "ab":
        await client.call(consume("q", tag), methods.BasicConsumeOk)
    publisher.feed(*[message(b"%d" % number, "q") for number in range(6)])
    await dealt(client, 6)
    client.feed(on(1, methods.BasicAck(1, False)))
    await server.broker.durable()
    await server.stop()
    await server.start()
    left = await server.broker.receiving.receive("q", 9)
    assert [(delivery.body, delivery.delivery_count) for delivery in left] == [
        (b"%d" % each, 2) for each in range(1, 6)
    ]


# -- for who waits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bounds", [{"x-message-ttl": 0}, {"x-max-length": 1, "x-overflow": "reject-publish"}], ids=["ttl", "length"]
)
async def test_dead_letters_wait_for_consumers_to_be_served_however_late_that_is(
    server: Server, bounds: dict[str, object]
) -> None:
    client, consumer = await server.connect(), await server.connect()
    await client.call(declare("dead", bounds), methods.QueueDeclareOk)
    await client.call(
        declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}), methods.QueueDeclareOk
    )
    await consumer.call(consume("dead"), methods.BasicConsumeOk)
    client.feed(*[message(b"%d" % number, "q") for number in range(3)])
    for _ in range(3):
        await client.call(get("q"), methods.BasicGetOk)
        await client.content()
    client.feed(on(1, methods.BasicNack(0, True, False)))
    time.sleep(0.005)  # noqa: ASYNC251 (the loop is held up: that is the point)
    assert [body for _, body in await consumer.deliveries(3)] == [b"0", b"1", b"2"]
    await settle()
    assert server.counts("dead") == (0, 3, 1)


# -- the time of a queue ----------------------------------------------------------------------------------------------

EXPIRES_MS = 7_200_000
ALMOST_MS = 6_600_000
"""So far from it that no machine takes the difference for a test."""


@pytest.mark.parametrize("leaving", [CANCEL, CLOSE_CHANNEL, get("q")], ids=["cancel", "close", "get"])
async def test_a_queues_time_begins_when_its_last_consumer_leaves(server: Server, leaving: Method) -> None:
    client, other = await server.connect(), await server.connect()
    await client.call(declare("q", {"x-expires": EXPIRES_MS}), methods.QueueDeclareOk)
    other.feed(message(b"kept", "q"))
    await client.call(methods.BasicQos(0, 1, False), methods.BasicQosOk)
    await client.call(consume("q", "t"), methods.BasicConsumeOk)
    await client.deliveries(1)
    # Its timer looks at it, again and again, and somebody is there.
    for _ in range(3):
        server.pass_time(EXPIRES_MS)
        await settle_timers(server)
    server.pass_time(ALMOST_MS)
    client.feed(on(1, CANCEL, leaving) if leaving is not CANCEL else on(1, leaving))
    await settle_timers(server)
    for _ in range(2):
        server.pass_time(ALMOST_MS // 2)
        await settle_timers(server)
        assert server.broker.catalog.has_queue("q")
    server.pass_time(EXPIRES_MS)
    await until(lambda: not server.broker.catalog.has_queue("q"))


async def settle_timers(server: Server) -> None:
    """Until nothing is due any more."""
    await until(lambda: not server.broker._state.calendar.is_behind(server.broker.now_ms()))
    await settle()
