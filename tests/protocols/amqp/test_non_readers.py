"""Clients that do not read what waits for them: left alone while there is memory, and when it is low the largest go."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from smista.engine import Publication
from smista.errors import LowMemory
from smista.protocols.amqp.progress import SILENCE_S_MAX
from smista.protocols.amqp.settings import AmqpSettings
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.frames import HEARTBEAT_FRAME
from smista.protocols.stalled import PROGRESS_BYTES_PER_S
from tests.engine.bench import SETTINGS
from tests.protocols.amqp.in_process import Client, Server
from tests.protocols.amqp.raw import head, message, on, part, publish
from tests.waiting import until

MIB = 1 << 20
MEMORY_BYTES = 100 * MIB
STRETCH_S = 1000.0
"""No stretch ends by itself here."""
QOS = methods.BasicQos(0, 1, False)
GET = methods.BasicGet(0, "q", False)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    settings = msgspec.structs.replace(SETTINGS, memory_bytes_max=MEMORY_BYTES)
    server = await Server().start(settings, AmqpSettings(output_timeout_s=STRETCH_S))
    await server.broker.declaring.declare_queue("q")
    await server.broker.publishing.publish("q", [Publication(b"x")] * 5)
    yield server
    await server.stop()


async def stalled(server: Server, waiting_bytes: int, *, heartbeat: int = 0) -> Client:
    """Has so much waiting, and takes nothing of it."""
    client = await server.connect(heartbeat=heartbeat)
    client.wire.waiting_bytes = waiting_bytes
    client.adapter.pause_writing()
    return client


async def settle(client: Client, method: methods.Method) -> None:
    await client.call(GET, methods.BasicGetOk)
    await client.content()
    client.feed(on(1, method))
    await until(lambda: client.adapter.progress.has_settled)


def end_stretch(*clients: Client) -> None:
    for client in clients:
        client.adapter.progress.end_stretch()


def look(server: Server) -> None:
    server.broker._keeper._judge()
    server.stalled._look_again()


# -- while there is memory --------------------------------------------------------------------------------------------


async def test_who_reads_nothing_and_says_nothing_is_left_alone_for_hours(server: Server) -> None:
    client = await stalled(server, 2 * MIB)
    for _ in range(int(SILENCE_S_MAX / STRETCH_S)):
        end_stretch(client)
        look(server)
        assert not client.wire.was_aborted
    end_stretch(client)
    assert client.wire.was_aborted
    await until(lambda: not server.amqp.shared.connections)


@pytest.mark.parametrize("heartbeat", [3 * int(STRETCH_S) // 2, 2 * int(STRETCH_S)])
async def test_with_heartbeats_it_is_left_alone_for_two_of_them(server: Server, heartbeat: int) -> None:
    client = await stalled(server, 2 * MIB, heartbeat=heartbeat)
    for _ in range(2 * heartbeat // int(STRETCH_S) - 1):
        end_stretch(client)
        assert not client.wire.was_aborted
    end_stretch(client)
    assert client.wire.was_aborted


@pytest.mark.parametrize("sign", ["heartbeat", "read"])
async def test_any_sign_of_life_begins_it_anew(server: Server, sign: str) -> None:
    client = await stalled(server, 15 * MIB, heartbeat=2 * int(STRETCH_S))
    for _ in range(10):
        for _ in range(3):
            end_stretch(client)
        if sign == "heartbeat":
            client.feed(HEARTBEAT_FRAME)
        else:
            client.wire.waiting_bytes -= PROGRESS_BYTES_PER_S * int(STRETCH_S)
        end_stretch(client)
    assert not client.wire.was_aborted
    client.adapter.resume_writing()
    assert not client.adapter.progress._timer


async def test_who_asks_and_never_reads_is_left_alone_as_long_as_others() -> None:
    server = await Server().start(amqp=AmqpSettings(output_bytes_max=100_000, output_timeout_s=STRETCH_S))
    client = await stalled(server, 100_001, heartbeat=int(STRETCH_S))
    client.feed(on(1, QOS))
    assert client.wire.is_paused
    for _ in range(6):
        # Nothing can come from it: that is no missed heartbeat.
        client.adapter.times.beat()
    for _ in range(2):
        end_stretch(client)
        assert not client.wire.was_aborted
    end_stretch(client)
    assert client.wire.was_aborted
    await server.stop()


async def test_a_publisher_that_the_broker_holds_up_may_be_silent(server: Server) -> None:
    client = await stalled(server, 2 * MIB, heartbeat=int(STRETCH_S))
    client.connection.is_paused = True
    for _ in range(10):
        end_stretch(client)
    assert not client.wire.was_aborted


# -- when memory is low -----------------------------------------------------------------------------------------------


async def test_who_does_not_read_is_cut_off_though_it_sends_heartbeats(server: Server) -> None:
    clients = [await stalled(server, 15 * MIB, heartbeat=int(STRETCH_S)) for _ in range(8)]
    look(server)
    assert isinstance(server.broker.intake.refusal, LowMemory)
    assert not any(client.wire.was_aborted for client in clients), "they have had no time to read"
    for client in clients:
        client.feed(HEARTBEAT_FRAME)
    end_stretch(*clients)
    look(server)
    assert [client.wire.was_aborted for client in clients].count(False) == 1, "a quarter of memory may wait"
    look(server)
    assert server.broker.intake.refusal is None


async def test_the_largest_go_first_and_those_who_settle_messages_last(server: Server) -> None:
    sizes = (10, 60, 20, 30)
    clients = [await stalled(server, size * MIB) for size in sizes]
    settling, *others = clients
    await settle(settling, methods.BasicAck(1, False))
    end_stretch(*clients)
    look(server)
    assert [client.wire.was_aborted for client in clients] == [False, True, True, True]
    settling.adapter.progress.watch()
    others = [await stalled(server, 95 * MIB)]
    end_stretch(settling, *others)
    look(server)
    assert others[0].wire.was_aborted
    assert not settling.wire.was_aborted


async def test_to_settle_messages_does_not_protect_for_ever(server: Server) -> None:
    clients = [await stalled(server, 15 * MIB) for _ in range(5)]
    for client in clients:
        await settle(client, methods.BasicAck(1, False))
    for client in clients:
        client.wire.waiting_bytes = 30 * MIB
    end_stretch(*clients)
    look(server)
    assert all(client.wire.was_aborted for client in clients)


@pytest.mark.parametrize("method", [methods.BasicNack(1, False, True), methods.BasicReject(1, True)])
async def test_to_give_back_is_to_settle(server: Server, method: methods.Method) -> None:
    client = await stalled(server, MIB)
    assert not client.adapter.progress.has_settled
    await settle(client, method)
    assert client.adapter.progress.has_settled


async def test_who_reads_is_left_alone(server: Server) -> None:
    clients = [await stalled(server, 60 * MIB) for _ in range(2)]
    end_stretch(*clients)
    clients[0].wire.waiting_bytes -= MIB
    look(server)
    assert [client.wire.was_aborted for client in clients] == [False, True]


async def test_who_keeps_little_is_left_alone_where_memory_is_low_for_another_reason(server: Server) -> None:
    """Slow consumers are the way out of it."""
    clients = [await stalled(server, 5 * MIB) for _ in range(4)]
    server.broker.intake.count_in_memory(lambda: MEMORY_BYTES)
    for _ in range(3):
        end_stretch(*clients)
        look(server)
    assert isinstance(server.broker.intake.refusal, LowMemory)
    assert not any(client.wire.was_aborted for client in clients)


async def test_many_who_each_keep_too_little_to_be_held_back_are_cut_off_too(server: Server) -> None:
    clients = [await server.connect() for _ in range(120)]
    for client in clients:
        client.wire.waiting_bytes = MIB - 1
    reader = clients.pop()
    look(server)
    reader.wire.waiting_bytes = 0
    end_stretch(*clients, reader)
    assert not reader.adapter.progress._timer
    look(server)
    assert sum(not client.wire.was_aborted for client in clients) == 25
    assert not reader.wire.was_aborted


async def test_the_refusal_names_what_waits_to_be_read(server: Server) -> None:
    await stalled(server, MEMORY_BYTES + 1)
    look(server)
    text = str(server.broker.intake.refusal)
    assert f" 0 of what is coming in, {MEMORY_BYTES + 1} that clients have not read yet;" in text
    assert "queued" not in text


async def test_the_log_names_who_was_cut_off(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    client = await stalled(server, MEMORY_BYTES + 1)
    end_stretch(client)
    with caplog.at_level(logging.INFO, "smista.stalled"):
        look(server)
        [record] = await until(lambda: [record for record in caplog.records if "stand still" in record.message])
    assert "memory is low" in record.message
    who = f"127.0.0.1:12345, user guest, vhost /, {MEMORY_BYTES + 1} bytes"
    assert vars(record)["fields"] == {"count": 1, "clients": {who: 1}}


# -- what is not whole ------------------------------------------------------------------------------------------------


HALF_BYTES, PART_BYTES = 24_000_000, 100_000


def half_a_message() -> bytes:
    return publish("q") + head(2 * HALF_BYTES) + part(bytes(PART_BYTES)) * (HALF_BYTES // PART_BYTES)


def a_transaction() -> bytes:
    return on(1, methods.TxSelect()) + message(bytes(PART_BYTES), "q") * (HALF_BYTES // PART_BYTES)


@pytest.mark.parametrize("begun", [half_a_message, a_transaction])
async def test_publishers_that_hold_each_other_up_are_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch, begun: Callable[[], bytes]
) -> None:
    """None of them is read while memory is low, so none of them can end what keeps it low."""
    clients = [await server.connect() for _ in range(5)]
    data = begun()
    for client in clients:
        client.feed(data)
    await until(lambda: all(client.ours.kept_bytes >= HALF_BYTES for client in clients))
    look(server)
    assert isinstance(server.broker.intake.refusal, LowMemory)
    look(server)
    assert not any(client.wire.was_aborted for client in clients), "they have had no time to go on"
    monkeypatch.setattr("smista.protocols.stalled.STALL_S", 0.0)
    look(server)
    assert [client.wire.was_aborted for client in clients].count(True) == 4, "a quarter of memory may wait"
    await until(lambda: len(server.amqp.shared.connections) == 1)
    look(server)
    assert server.broker.intake.refusal is None
