"""What a connection does between two frames: cut anywhere, waiting for the disk, losing its socket, held back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from smista.engine import QueueSettings
from smista.protocols.amqp.settings import AmqpSettings
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.channel import ChannelState
from smista.protocols.amqp.wire.frames import HEADER
from tests.engine.bench import SETTINGS
from tests.logged import logged
from tests.protocols.amqp.in_process import Client, Server, settle
from tests.protocols.amqp.raw import (
    CLOSE,
    CLOSE_CHANNEL,
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
from tests.waiting import PATIENCE_S, patience, until

LOW_DISK = msgspec.structs.replace(SETTINGS, disk_free_bytes_min=1 << 20)
QOS = methods.BasicQos(0, 0, False)
GET = methods.BasicGet(0, "q", True)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server().start()
    yield server
    await server.stop()


# -- cut anywhere -----------------------------------------------------------------------------------------------------

BODIES = [b"", b"a", b"abcdef", b"z" * 40]
TRANSCRIPT = b"".join(
    (
        HELLO,
        start_ok(),
        tune_ok(),
        OPEN,
        OPEN_CHANNEL,
        on(1, declare("q")),
        message(BODIES[0], "q"),
        message(BODIES[1], "q"),
        publish("q") + head(6) + part(b"ab") + part(b"") + part(b"c") + part(b"def"),
        frame(8, 0, b""),
        message(BODIES[3], "q"),
        on(1, GET, GET, GET, GET, GET),
        on(1, methods.QueueDelete(0, "q", False, False, False)),
        on(1, CLOSE_CHANNEL),
        on(0, CLOSE),
    )
)


async def _answer(server: Server, *pieces: bytes) -> bytes:
    client = Client(server.amqp)
    for piece in pieces:
        client.feed(piece)
        await asyncio.sleep(0)
    while not client.wire.is_closed:
        client.wire.has_written.clear()
        async with patience():
            await client.wire.has_written.wait()
    return client.wire.written


async def test_a_whole_session_in_one_read(server: Server) -> None:
    client = Client(server.amqp)
    client.feed(TRANSCRIPT)
    await client.expect_all(
        methods.ConnectionStart,
        methods.ConnectionTune,
        methods.ConnectionOpenOk,
        methods.ChannelOpenOk,
        methods.QueueDeclareOk,
    )
    for body in BODIES:
        await client.expect(methods.BasicGetOk)
        assert await client.content() == body
    await client.expect_all(
        methods.BasicGetEmpty, methods.QueueDeleteOk, methods.ChannelCloseOk, methods.ConnectionCloseOk
    )
    assert client.wire.is_closed


async def test_a_session_cut_at_any_byte_is_answered_the_same(server: Server) -> None:
    whole = await _answer(server, TRANSCRIPT)
    for place in range(1, len(TRANSCRIPT)):
        assert await _answer(server, TRANSCRIPT[:place], TRANSCRIPT[place:]) == whole, place


async def test_a_session_byte_by_byte_is_answered_the_same(server: Server) -> None:
    pieces = [TRANSCRIPT[place : place + 1] for place in range(len(TRANSCRIPT))]
    assert await _answer(server, *pieces) == await _answer(server, TRANSCRIPT)


@pytest.mark.parametrize("size", [1, 7, 100, 1023, 1024, 4088])
async def test_a_body_over_many_frames(server: Server, size: int) -> None:
    client = await server.connect()
    body = bytes(range(256)) * 100
    parts = [part(body[start : start + size]) for start in range(0, len(body), size)]
    client.feed(on(1, declare("q")), publish("q"), head(len(body)), *parts, on(1, GET))
    await client.expect_all(methods.QueueDeclareOk, methods.BasicGetOk)
    assert await client.content() == body


async def test_the_largest_body_and_one_byte_more() -> None:
    size = 1 << 20
    server = await Server().start(amqp=AmqpSettings(body_bytes_max=size))
    client = await server.connect()
    parts = [part(bytes(131_064))] * (size // 131_064) + [part(bytes(size % 131_064))]
    client.feed(on(1, declare("q")), publish("q"), head(size), *parts, on(1, GET))
    await client.expect_all(methods.QueueDeclareOk, methods.BasicGetOk)
    assert await client.content() == bytes(size)
    client.feed(publish("q"), head(size + 1), *parts, part(b"1"))
    closed = await client.expect(methods.ChannelClose)
    assert (
        closed.reply_text == f"PRECONDITION_FAILED - message size {size + 1} is larger than configured max size {size}"
    )
    assert (closed.class_id, closed.method_id) == (60, 40)
    await server.stop()


async def test_a_body_is_delivered_in_frames_no_larger_than_agreed(server: Server) -> None:
    client = Client(server.amqp)
    client.feed(HELLO, start_ok(), tune_ok(frame_max=4096), OPEN, OPEN_CHANNEL, on(1, declare("q")))
    for _ in range(5):
        await client.frame()
    body = bytes(4088 * 2 + 1)
    client.feed(publish("q"), head(len(body)), *[part(body[:4088])] * 2, part(b"\0"))
    client.feed(on(1, methods.BasicConsume(0, "q", "me", False, True, False, False, {})))
    await client.expect(methods.BasicConsumeOk)
    await client.expect(methods.BasicDeliver)
    assert (await client.frame())[0] == HEADER
    assert [len((await client.frame())[2]) for _ in range(3)] == [4088, 4088, 1]


async def test_bodies_of_several_channels_come_interleaved(server: Server) -> None:
    client = await server.connect(channels=2)
    client.feed(on(1, declare("q")))
    await client.expect(methods.QueueDeclareOk)
    client.feed(publish("q", channel=1), publish("q", channel=2), head(2, channel=2), head(2, channel=1))
    client.feed(part(b"a", channel=1), part(b"b", channel=2), part(b"B", channel=2), part(b"A", channel=1))
    client.feed(on(1, GET, GET))
    bodies = []
    for _ in range(2):
        await client.expect(methods.BasicGetOk)
        bodies.append(await client.content())
    assert bodies == [b"bB", b"aA"]


async def test_a_body_sent_in_crumbs_takes_the_memory_of_its_bytes(server: Server) -> None:
    client = await server.connect()
    client.feed(publish("q"), head(100_000))
    for _ in range(49):
        client.feed(part(b"ab") * 1000, part(b"") * 1000)
    kept = client.connection.channels[1]._parts
    assert len(kept) == 1
    assert len(kept[0]) == 98_000


# -- waiting for the disk ---------------------------------------------------------------------------------------------


async def test_frames_after_one_that_waits_for_the_disk_wait_with_it(server: Server) -> None:
    client = await server.connect(channels=2)
    server.log.gate.clear()
    client.feed(on(1, declare("q")), on(2, QOS), message(b"x", "q"), on(1, GET))
    await settle()
    assert client.has_nothing
    assert client.wire.is_paused
    client.feed(on(2, QOS))
    server.log.gate.set()
    await client.expect_all(methods.QueueDeclareOk, methods.BasicQosOk)
    await client.expect(methods.BasicGetOk)
    assert await client.content() == b"x"
    await client.expect(methods.BasicQosOk)
    assert not client.wire.is_paused


@pytest.mark.parametrize("has_begun", [True, False])
async def test_an_exclusive_queue_whose_declarer_is_gone_before_it_is_on_disk_goes_too(
    server: Server, has_begun: bool
) -> None:
    client = await server.connect()
    server.log.gate.clear()
    client.feed(on(1, methods.QueueDeclare(0, "mine", False, False, True, False, False, {})))
    if has_begun:
        await settle()
    client.lose()
    server.log.gate.set()
    other = await server.connect()
    await until(lambda: "mine" not in server.broker.catalog.queue_names())
    assert server.amqp.shared.queues.owners == {}
    other.feed(on(1, QOS))
    await other.expect(methods.BasicQosOk)


@pytest.mark.parametrize("is_no_ack", [True, False])
async def test_a_message_that_was_got_by_somebody_who_is_gone_goes_back(
    server: Server, is_no_ack: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await server.connect()
    client.feed(on(1, declare("q")), message(b"x", "q"), on(1, QOS))
    await client.expect_all(methods.QueueDeclareOk, methods.BasicQosOk)
    receive, may_go_on = server.broker.receiving.receive, asyncio.Event()

    async def receive_slowly(*arguments: Any, **more: Any) -> Any:
        deliveries = await receive(*arguments, **more)
        await may_go_on.wait()
        return deliveries

    monkeypatch.setattr(server.broker.receiving, "receive", receive_slowly)  # as if the body had to be read back first
    client.feed(on(1, methods.BasicGet(0, "q", is_no_ack)))
    await settle()
    assert server.broker.statistics.stats("q").in_flight == 1
    client.lose()
    may_go_on.set()
    await until(lambda: server.broker.statistics.stats("q").ready == 1)


@pytest.mark.parametrize("ending", ["lost", "closed", "channel closed", "cancelled"])
@pytest.mark.parametrize("is_no_ack", [True, False])
async def test_what_is_still_being_read_back_for_a_consumer_that_ends_goes_back(ending: str, is_no_ack: bool) -> None:
    server = await Server().start(msgspec.structs.replace(SETTINGS, resident_bytes_max=0))
    client = await server.connect()
    client.feed(on(1, declare("q")), message(b"1", "q"), message(b"2", "q"), on(1, QOS))
    await client.expect_all(methods.QueueDeclareOk, methods.BasicQosOk)
    await server.broker.durable()
    # What was handed out once need not stay in memory.
    client.feed(on(1, methods.BasicGet(0, "q", False), methods.BasicGet(0, "q", False)))
    for _ in range(2):
        await client.expect(methods.BasicGetOk)
        await client.content()
    client.feed(on(1, methods.BasicNack(0, True, True)))
    read, may_read = server.log.read, threading.Event()

    def read_slowly(position: int) -> bytes:
        assert may_read.wait(PATIENCE_S)
        return read(position)

    server.log.read = read_slowly  # type: ignore[method-assign] # a slow disk
    client.feed(on(1, methods.BasicConsume(0, "q", "me", False, is_no_ack, False, False, {})))
    await client.expect(methods.BasicConsumeOk)
    await until(lambda: server.broker.statistics.stats("q").in_flight == 2)
    match ending:
        case "lost":
            client.lose()
        case "closed":
            client.feed(on(0, CLOSE))
        case "channel closed":
            client.feed(on(1, CLOSE_CHANNEL))
        case "cancelled":
            client.feed(on(1, methods.BasicCancel("me", False)))
    assert server.broker.statistics.stats("q").ready == 2
    may_read.set()
    await settle()
    other = await server.connect()
    other.feed(on(1, GET, GET))
    for body in (b"1", b"2"):
        await other.expect(methods.BasicGetOk)
        assert await other.content() == body
    await server.stop()


async def test_what_was_declared_or_got_when_the_connection_is_closed_is_not_answered(server: Server) -> None:
    client = await server.connect()
    server.log.gate.clear()
    client.feed(on(1, declare("q")))
    await settle()
    client.adapter.force_close()
    server.log.gate.set()
    closed = await client.expect(methods.ConnectionClose)
    assert closed.reply_text == "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    await until(lambda: not client.wire.is_paused)
    assert client.has_nothing
    client.feed(on(0, methods.ConnectionCloseOk()))
    assert client.wire.is_closed
    assert "q" in server.broker.catalog.queue_names()


async def test_a_confirm_comes_when_the_message_is_on_disk(server: Server) -> None:
    client = await server.connect()
    client.feed(on(1, declare("q"), methods.ConfirmSelect(False)))
    await client.expect_all(methods.QueueDeclareOk, methods.ConfirmSelectOk)
    server.log.gate.clear()
    client.feed(message(b"1", "q"), message(b"2", "q"))
    await settle()
    assert client.has_nothing
    server.log.gate.set()
    assert await client.expect(methods.BasicAck) == methods.BasicAck(2, True)
    client.feed(message(b"3", "q"))
    assert await client.expect(methods.BasicAck) == methods.BasicAck(3, False)


@pytest.mark.parametrize("ending", ["lost", "closed by the client", "channel closed", "channel used again"])
async def test_what_becomes_durable_too_late_is_confirmed_to_nobody(server: Server, ending: str) -> None:
    client = await server.connect()
    client.feed(on(1, declare("q"), methods.ConfirmSelect(False)))
    await client.expect_all(methods.QueueDeclareOk, methods.ConfirmSelectOk)
    server.log.gate.clear()
    client.feed(message(b"1", "q"))
    match ending:
        case "lost":
            client.lose()
        case "closed by the client":
            client.feed(on(0, CLOSE))
            await client.expect(methods.ConnectionCloseOk)
        case _:
            client.feed(on(1, CLOSE_CHANNEL))
            await client.expect(methods.ChannelCloseOk)
            if ending == "channel used again":
                client.feed(OPEN_CHANNEL, on(1, methods.ConfirmSelect(False)))
                await client.expect(methods.ChannelOpenOk)
                await client.expect(methods.ConfirmSelectOk)
    server.log.gate.set()
    await server.broker.durable()
    await settle()
    assert client.has_nothing
    assert server.broker.statistics.stats("q").ready == 1


async def test_publishing_waits_when_the_log_is_behind() -> None:
    server = await Server().start(msgspec.structs.replace(SETTINGS, waiting_bytes_max=1000, block_bytes_max=1024))
    client = await server.connect()
    client.feed(on(1, declare("q"), methods.ConfirmSelect(False)))
    await client.expect_all(methods.QueueDeclareOk, methods.ConfirmSelectOk)
    server.log.gate.clear()
    client.feed(message(bytes(2000), "q"))
    assert client.wire.is_paused
    client.feed(message(b"later", "q"))
    await settle()
    assert server.broker.statistics.stats("q").ready == 1
    server.log.gate.set()
    assert await client.expect(methods.BasicAck) == methods.BasicAck(1, False)
    assert await client.expect(methods.BasicAck) == methods.BasicAck(2, False)
    await server.stop()


async def test_a_method_after_publishes_is_waited_for_even_when_the_log_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await Server().start(msgspec.structs.replace(SETTINGS, waiting_bytes_max=1000, block_bytes_max=1024))
    client = await server.connect()
    client.feed(on(1, declare("q")))
    await client.expect(methods.QueueDeclareOk)
    purge, may_go_on = server.broker.declaring.purge, asyncio.Event()

    async def purge_slowly(*arguments: Any, **more: Any) -> int:
        await may_go_on.wait()
        return await purge(*arguments, **more)

    monkeypatch.setattr(server.broker.declaring, "purge", purge_slowly)  # so that the log catches up before it
    server.log.gate.clear()
    client.feed(message(bytes(2000), "q"), on(1, methods.QueuePurge(0, "q", False)), on(1, QOS))
    server.log.gate.set()
    await server.broker.intake.room()
    await settle()
    assert client.has_nothing
    may_go_on.set()
    await client.expect_all(methods.QueuePurgeOk, methods.BasicQosOk)
    await server.stop()


async def test_a_connection_lost_while_the_log_is_behind_gives_back_what_it_held() -> None:
    server = await Server().start(msgspec.structs.replace(SETTINGS, waiting_bytes_max=1000, block_bytes_max=1024))
    client = await server.connect()
    client.feed(on(1, declare("q")), message(b"held", "q"), on(1, methods.BasicGet(0, "q", False)))
    await client.expect_all(methods.QueueDeclareOk, methods.BasicGetOk)
    server.log.gate.clear()
    client.feed(message(bytes(2000), "q"))
    client.lose()
    assert server.broker.statistics.stats("q").ready == 2
    await server.stop()


async def test_a_log_that_fails_ends_the_connection_and_confirms_nothing(server: Server) -> None:
    client = await server.connect()
    client.feed(on(1, declare("q"), methods.ConfirmSelect(False)))
    await client.expect_all(methods.QueueDeclareOk, methods.ConfirmSelectOk)
    server.log.is_failing = True
    client.feed(message(b"1", "q"))
    closed = await client.expect(methods.ConnectionClose)
    assert closed.reply_text == "INTERNAL_ERROR - the broker cannot confirm anything any more"
    client.feed(message(b"2", "q"), on(0, methods.ConnectionCloseOk()))
    assert client.wire.is_closed
    assert client.has_nothing


# -- whose fault it was -----------------------------------------------------------------------------------------------


async def test_a_message_that_is_refused_when_it_is_handed_over_closes_the_channel_that_published_it(
    server: Server,
) -> None:
    await server.broker.declaring.declare_queue("small", QueueSettings(body_bytes_max=10))
    client = await server.connect(channels=3)
    client.feed(on(1, methods.ConfirmSelect(False)), on(3, methods.ConfirmSelect(False)), on(3, declare("q")))
    await client.expect_all(methods.ConfirmSelectOk, methods.ConfirmSelectOk, methods.QueueDeclareOk)
    client.feed(
        message(b"fits", "small", channel=1),
        message(b"far too large", "small", channel=1),
        message(b"well", "q", channel=3),
        on(2, QOS),
    )
    number, closed = await client.method()
    assert isinstance(closed, methods.ChannelClose)
    assert (number, closed.reply_code, closed.class_id, closed.method_id) == (1, 406, 60, 40)
    assert (await client.method())[0] == 2
    assert await client.method() == (3, methods.BasicAck(1, False))
    assert server.broker.statistics.stats("small").ready == 1
    assert server.broker.statistics.stats("q").ready == 1


async def test_what_is_refused_is_nacked_and_each_tag_is_answered_once(server: Server) -> None:
    client = await server.connect()
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    client.feed(
        on(1, methods.QueueDeclare(0, "short", False, True, False, False, False, arguments)),
        on(1, declare("q"), methods.ConfirmSelect(False)),
    )
    await client.expect_all(methods.QueueDeclareOk, methods.QueueDeclareOk, methods.ConfirmSelectOk)
    client.feed(*[message(b"", key) for key in ("short", "short", "short", "q", "q", "short", "short", "q")])
    answers = [(await client.method())[1] for _ in range(6)]
    assert answers == [
        methods.BasicAck(2, True),
        methods.BasicNack(3, False, False),
        methods.BasicAck(5, True),
        methods.BasicNack(6, False, False),
        methods.BasicNack(7, False, False),
        methods.BasicAck(8, False),
    ]


async def test_a_channel_closes_for_its_first_error_only(server: Server) -> None:
    client = await server.connect()
    client.feed(message(b"", "k", "no-such"), message(b"", "k", "nor-this"), on(1, methods.BasicAck(9, False)))
    client.feed(on(1, methods.ChannelCloseOk()), OPEN_CHANNEL)
    closed = await client.expect(methods.ChannelClose)
    assert closed.reply_text == "NOT_FOUND - no exchange 'no-such' in vhost '/'"
    await client.expect(methods.ChannelOpenOk)


async def test_an_error_of_ours_is_told_and_logged(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await server.connect()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ChannelState, "header", fail)
    client.feed(publish("q"), head(0))
    closed = await client.expect(methods.ConnectionClose)
    assert closed.reply_code == 541
    assert "ZeroDivisionError" in logged(caplog)


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_after_its_end_a_connection_takes_nothing(server: Server) -> None:
    client = await server.connect()
    client.feed(on(1, declare("q")))
    await client.expect(methods.QueueDeclareOk)
    client.feed(on(0, CLOSE), message(b"x", "q"), on(0, CLOSE), b"garbage")
    await client.expect(methods.ConnectionCloseOk)
    assert client.has_nothing
    assert server.broker.statistics.stats("q").depth == 0


async def test_the_end_may_come_twice(server: Server) -> None:
    client = await server.connect()
    client.feed(on(1, methods.QueueDeclare(0, "mine", False, False, True, False, False, {})))
    await client.expect(methods.QueueDeclareOk)
    client.adapter.force_close()
    client.adapter.force_close()
    client.lose()
    await settle()
    assert server.amqp.shared.connections == set()
    assert server.amqp.shared.queues.owners == {}
    assert "mine" not in server.broker.catalog.queue_names()


async def test_a_client_that_never_agrees_to_a_close_is_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smista.protocols.amqp.times.CLOSE_TIMEOUT_S", 0.01)
    client = await server.connect()
    client.feed(on(7, QOS))
    await client.expect(methods.ConnectionClose)
    await until(lambda: client.wire.was_aborted)


async def test_stopping_confirms_what_was_taken_and_takes_nothing_more(server: Server) -> None:
    client = await server.connect()
    client.feed(on(1, declare("q"), methods.ConfirmSelect(False)))
    await client.expect_all(methods.QueueDeclareOk, methods.ConfirmSelectOk)
    server.log.gate.clear()
    client.feed(message(b"taken", "q"))
    draining = asyncio.create_task(server.amqp.drain())
    await settle()
    client.feed(message(b"too late", "q"))
    server.log.gate.set()
    assert await client.expect(methods.BasicAck) == methods.BasicAck(1, False)
    closed = await client.expect(methods.ConnectionClose)
    assert closed.reply_code == 320
    client.feed(on(0, methods.ConnectionCloseOk()))
    await draining
    assert server.broker.statistics.stats("q").ready == 1


# -- publishes are refused --------------------------------------------------------------------------------------------


async def test_a_publisher_is_blocked_while_publishes_are_refused_and_loses_nothing() -> None:
    server = await Server().start(LOW_DISK)
    client = await server.connect()
    client.feed(on(1, declare("q"), methods.ConfirmSelect(False)), message(b"0", "q"))
    await client.expect_all(methods.QueueDeclareOk, methods.ConfirmSelectOk, methods.BasicAck)
    server.log.free = 0
    await until(lambda: server.broker.intake.refusal is not None)
    client.feed(publish("q"), head(1))
    client.feed(part(b"1"), message(b"2", "q"))
    assert await client.expect(methods.ConnectionBlocked) == methods.ConnectionBlocked("low on disk")
    assert client.wire.is_paused
    await settle()
    assert client.has_nothing
    assert server.broker.statistics.stats("q").ready == 1
    server.log.free = 1 << 40
    await client.expect(methods.ConnectionUnblocked)
    assert await client.expect(methods.BasicAck) == methods.BasicAck(3, True)
    assert server.broker.statistics.stats("q").ready == 3
    await server.stop()


async def test_a_message_whose_parts_come_before_and_after_the_refusal_is_not_lost() -> None:
    server = await Server().start(LOW_DISK)
    client = await server.connect()
    client.feed(on(1, declare("q")), publish("q"), head(2), part(b"a"))
    await client.expect(methods.QueueDeclareOk)
    server.log.free = 0
    await until(lambda: server.broker.intake.refusal is not None)
    client.feed(part(b"b"))
    await client.expect(methods.ConnectionBlocked)
    server.log.free = 1 << 40
    await client.expect(methods.ConnectionUnblocked)
    client.feed(on(1, GET))
    await client.expect(methods.BasicGetOk)
    assert await client.content() == b"ab"
    await server.stop()


async def test_a_transaction_waits_until_publishes_are_taken() -> None:
    server = await Server().start(LOW_DISK)
    client = await server.connect()
    client.feed(on(1, declare("q"), methods.TxSelect()), message(b"x", "q"))
    await client.expect_all(methods.QueueDeclareOk, methods.TxSelectOk)
    client.feed(on(1, methods.TxCommit()))
    server.log.free = 0
    # The commit is a task that has not begun.
    server.broker._keeper._judge()
    await settle()
    assert client.has_nothing
    assert server.broker.statistics.stats("q").ready == 0
    server.log.free = 1 << 40
    await client.expect(methods.TxCommitOk)
    assert server.broker.statistics.stats("q").ready == 1
    await server.stop()


async def test_consuming_goes_on_while_publishes_are_refused() -> None:
    server = await Server().start(LOW_DISK)
    client = await server.connect()
    client.feed(on(1, declare("q")), message(b"1", "q"), message(b"2", "q"))
    await client.expect(methods.QueueDeclareOk)
    server.log.free = 0
    await until(lambda: server.broker.intake.refusal is not None)
    # A consumer on the connection that is held back, and one on another that has published nothing.
    client.feed(message(b"3", "q"))
    await client.expect(methods.ConnectionBlocked)
    other = await server.connect()
    other.feed(on(1, methods.BasicConsume(0, "q", "me", False, False, False, False, {})))
    await other.expect(methods.BasicConsumeOk)
    for body in (b"1", b"2"):
        delivered = await other.expect(methods.BasicDeliver)
        assert await other.content() == body
        other.feed(on(1, methods.BasicAck(delivered.delivery_tag, False)))
    await settle()
    assert other.has_nothing
    assert server.broker.statistics.stats("q").depth == 0
    await server.stop()


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_blocked_publisher_can_be_lost_or_told_that_the_broker_stops(is_lost: bool) -> None:
    server = await Server().start(LOW_DISK)
    server.log.free = 0
    await until(lambda: server.broker.intake.refusal is not None)
    client = await server.connect()
    client.feed(message(b"3", "q"))
    await client.expect(methods.ConnectionBlocked)
    if is_lost:
        client.lose()
        await settle()
        assert not client.adapter._waiting.is_busy
    else:
        draining = asyncio.create_task(server.amqp.drain())
        assert (await client.expect(methods.ConnectionClose)).reply_code == 320
        client.feed(on(0, methods.ConnectionCloseOk()))
        await draining
    assert server.amqp.shared.connections == set()
    await server.stop()


# -- the other side does not read -------------------------------------------------------------------------------------


async def test_nothing_is_delivered_to_a_full_connection_until_it_is_read_from(server: Server) -> None:
    client = await server.connect()
    client.feed(on(1, declare("q")), on(1, methods.BasicConsume(0, "q", "me", False, True, False, False, {})))
    await client.expect_all(methods.QueueDeclareOk, methods.BasicConsumeOk)
    client.adapter.pause_writing()
    client.feed(message(b"1", "q"), message(b"2", "q"), on(1, QOS))
    await client.expect(methods.BasicQosOk)
    await settle()
    assert client.has_nothing
    assert server.broker.statistics.stats("q").ready == 2
    client.adapter.resume_writing()
    for body in (b"1", b"2"):
        await client.expect(methods.BasicDeliver)
        assert await client.content() == body
    await settle()
    assert server.broker.statistics.stats("q").depth == 0


@pytest.mark.parametrize("is_no_ack", [True, False])
async def test_a_consumer_without_a_limit_gets_as_much_as_fits_and_the_rest_when_that_is_gone(
    server: Server, is_no_ack: bool
) -> None:
    client = await server.connect()
    body = bytes(64 << 10)
    client.feed(on(1, declare("q")), *[message(body, "q")] * 400)
    await client.expect(methods.QueueDeclareOk)
    await until(lambda: server.broker.statistics.stats("q").ready == 400)
    write = client.wire.write

    def write_into_nothing(data: bytes | bytearray | memoryview) -> None:
        """What is written stays in the buffer."""
        write(data)
        client.wire.waiting_bytes += len(data)
        if client.wire.waiting_bytes > 1 << 20 and not client.adapter.output.is_transport_full:
            client.adapter.pause_writing()

    client.wire.write = write_into_nothing  # type: ignore[method-assign] # a socket that nobody reads
    client.feed(on(1, methods.BasicConsume(0, "q", "me", False, is_no_ack, False, False, {})))
    await client.expect(methods.BasicConsumeOk)
    await settle()
    stats = server.broker.statistics.stats("q")
    assert stats.ready > 250
    assert stats.in_flight == (0 if is_no_ack else 400 - stats.ready)
    client.wire.write = write  # type: ignore[method-assign] # and somebody reads again
    client.adapter.resume_writing()
    for tag in range(1, 401):
        assert (await client.expect(methods.BasicDeliver)).delivery_tag == tag
        assert len(await client.content()) == len(body)
    stats = server.broker.statistics.stats("q")
    assert (stats.ready, stats.in_flight) == (0, 0 if is_no_ack else 400)


async def test_a_consumer_without_a_limit_gets_small_messages_bit_by_bit_too(server: Server) -> None:
    client = await server.connect()
    client.feed(on(1, declare("q")), message(b"small", "q") * 40_000)
    await client.expect(methods.QueueDeclareOk)
    await until(lambda: server.broker.statistics.stats("q").ready == 40_000)
    client.feed(on(1, methods.BasicConsume(0, "q", "me", False, False, False, False, {})))
    await client.expect(methods.BasicConsumeOk)
    await until(lambda: server.broker.statistics.stats("q").in_flight > 0)
    client.adapter.pause_writing()
    await settle()
    assert server.broker.statistics.stats("q").ready > 30_000
    client.adapter.resume_writing()
    await until(lambda: server.broker.statistics.stats("q").ready == 0)


async def test_a_client_that_asks_and_never_reads_is_not_read_from_any_more() -> None:
    server = await Server().start(amqp=AmqpSettings(output_bytes_max=100_000))
    client = await server.connect()
    client.feed(on(1, declare("q")))
    await client.expect(methods.QueueDeclareOk)
    client.adapter.pause_writing()
    client.wire.waiting_bytes = 100_001
    client.feed(on(1, QOS))
    await client.expect(methods.BasicQosOk)
    assert client.wire.is_paused
    client.feed(on(1, QOS), on(1, GET))
    await settle()
    assert client.has_nothing
    client.wire.waiting_bytes = 0
    client.adapter.resume_writing()
    await client.expect(methods.BasicQosOk)
    await client.expect(methods.BasicGetEmpty)
    assert not client.wire.is_paused
    await server.stop()


async def test_what_a_client_does_not_read_counts_in_memory(server: Server) -> None:
    client = await server.connect()
    before = server.broker._keeper.held().total
    client.wire.waiting_bytes = 1_000_000
    assert server.broker._keeper.held().total - before == 1_000_000
    client.lose()
    assert server.broker._keeper.held().total <= before


async def test_answers_to_what_came_in_one_read_stop_when_they_are_too_many() -> None:
    server = await Server().start(amqp=AmqpSettings(output_bytes_max=100_000))
    client = await server.connect()
    client.feed(on(1, declare("q")), *[message(bytes(50_000), "q")] * 10)
    await client.expect(methods.QueueDeclareOk)
    write = client.wire.write

    def write_into_nothing(data: bytes | bytearray | memoryview) -> None:
        write(data)
        client.wire.waiting_bytes += len(data)
        client.adapter.pause_writing()

    client.wire.write = write_into_nothing  # type: ignore[method-assign] # a socket that nobody reads
    client.feed(on(1, *[GET] * 10))
    for _ in range(2):
        await client.expect(methods.BasicGetOk)
        await client.content()
    await settle()
    assert client.wire.is_paused
    assert server.broker.statistics.stats("q").ready == 8
    client.lose()
    await server.stop()


async def test_a_no_ack_delivery_that_never_went_out_goes_back(server: Server) -> None:
    client = await server.connect()
    client.feed(on(1, declare("q")), on(1, methods.BasicConsume(0, "q", "me", False, True, False, False, {})))
    await client.expect_all(methods.QueueDeclareOk, methods.BasicConsumeOk)
    other = await server.connect()
    other.feed(message(b"x", "q"))
    await until(lambda: server.broker.statistics.stats("q").in_flight == 1)
    client.lose()
    await settle()
    assert client.has_nothing
    assert server.broker.statistics.stats("q").ready == 1


# -- heartbeats -------------------------------------------------------------------------------------------------------


async def test_silence_while_we_do_not_listen_is_nobodys_fault(server: Server) -> None:
    client = await server.connect(heartbeat=60)
    server.log.gate.clear()
    client.feed(on(1, declare("q")))
    await settle()
    for _ in range(10):
        client.adapter.times.beat()
    assert not client.wire.is_closed
    server.log.gate.set()
    while (await client.frame())[0] == 8:
        pass
    for _ in range(5):
        client.adapter.times.beat()
    assert client.wire.was_aborted
