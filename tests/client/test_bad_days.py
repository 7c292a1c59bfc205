"""A broker that is going away, speaks nonsense, or is none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from smista import AsyncClient
from smista.client import ConnectionFailed, ConnectionLost
from smista.errors import BrokerClosed, InvalidRequest, LowDisk
from tests.client.fake_broker import FakeBroker
from tests.served import Served
from tests.waiting import until

STORED = {"accepted": 1, "results": [{"message_id": "1", "position": 1}]}


@pytest.mark.parametrize("code", ["broker_closed", "broker_stopped", "outcome_unknown"])
async def test_a_publish_to_a_broker_that_goes_away_is_brought_to_the_next(code: str) -> None:
    answers: Iterator[dict[str, Any]] = iter([{"error": {"code": code, "message": "Going."}}, {"result": STORED}])
    async with FakeBroker(lambda request: next(answers)) as broker, AsyncClient(broker.address) as client:
        assert (await client.publish("orders", b"x")).id == "1"
        first, second = broker.requests
        assert first == second
        assert first["payload"]["batch_id"]
        assert len(broker.connections) == 2


async def test_what_cannot_be_repeated_fails_because_the_broker_is_going() -> None:
    answer = {"error": {"code": "broker_closed", "message": "Going."}}
    async with FakeBroker(lambda request: answer) as broker, AsyncClient(broker.address) as client:
        with pytest.raises(BrokerClosed):
            await client.purge("orders")


async def test_a_subscription_that_a_broker_ends_because_it_goes_is_made_anew() -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return {"result": {"subscription": 7, "success": True}}

    async with FakeBroker(answer) as broker, AsyncClient(broker.address) as client:
        subscription = client.subscribe("orders")
        waiting = asyncio.create_task(anext(subscription))
        await until(lambda: len(broker.requests) == 1)
        await broker.push({"subscription": 7, "ended": {"code": "broker_closed", "message": "Going."}})
        await until(lambda: len(broker.requests) == 2)
        await broker.push({"subscription": 7, "messages": [{"message_id": "m", "tag": 1, "body": b"x"}]})
        assert (await waiting).body == b"x"


async def test_messages_pushed_before_the_subscription_is_answered_are_kept() -> None:
    async with FakeBroker(lambda request: None) as broker, AsyncClient(broker.address) as client:
        subscription = client.subscribe("orders")
        waiting = asyncio.create_task(anext(subscription))
        await until(lambda: len(broker.requests) == 1)
        await broker.push({"subscription": 1, "messages": [{"message_id": "m", "tag": 1, "body": b"x"}]})
        await broker.push({"id": broker.requests[0]["id"], "result": {"subscription": 1}})
        assert (await waiting).body == b"x"
        broker._answer = lambda request: {"result": {"success": True}}


async def test_an_error_that_is_temporary_for_all_is_raised() -> None:
    answer = {"error": {"code": "low_disk", "message": "Little is free."}}
    async with FakeBroker(lambda request: answer) as broker, AsyncClient(broker.address) as client:
        with pytest.raises(LowDisk, match="Little is free"):
            await client.publish("orders", b"x")
        with pytest.raises(LowDisk):
            await client.put_many("orders", [b"x"] * 10_000)


async def test_a_frame_that_cannot_be_read_breaks_the_connection_and_the_next_is_tried() -> None:
    async with FakeBroker(lambda request: None) as broker, AsyncClient(broker.address) as client:
        asking = asyncio.create_task(client.info())
        await until(lambda: len(broker.requests) == 1)
        await broker.connections[0].send(b"\xc1")
        await until(lambda: len(broker.requests) == 2)
        await broker.push({"id": None, "error": {"code": "invalid_request", "message": "This is not MessagePack."}})
        with pytest.raises(InvalidRequest, match="not MessagePack") as caught:
            await asking
        assert caught.value.code == "invalid_request"


async def test_fields_that_a_newer_broker_adds_are_passed_over() -> None:
    answer = {"result": {**STORED, "shard": 3}, "took_ms": 1}
    async with FakeBroker(lambda request: answer) as broker, AsyncClient(broker.address) as client:
        assert (await client.publish("orders", b"x")).position == 1


async def test_another_protocol_is_no_broker() -> None:
    async with FakeBroker(lambda request: None, subprotocol="graphql-ws") as broker:
        with pytest.raises(ConnectionFailed):
            await AsyncClient(broker.address).connect()


async def test_a_web_server_is_no_broker() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionFailed, match="answered 404"):
            await AsyncClient(f"127.0.0.1:{port}").connect()


async def test_a_name_that_the_broker_does_not_go_by_fails_with_its_own_sentence() -> None:
    refused = '{"error":{"code":"host_not_allowed","message":"This broker does not go by the name \'b\'. Set it."}}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(refused)}\r\n\r\n{refused}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(
            ConnectionFailed, match=r"answered 403 .*: This broker does not go by the name 'b'. Set it\.$"
        ):
            await AsyncClient(f"127.0.0.1:{port}").connect()


async def test_what_speaks_another_protocol_is_distinguished_from_nobody(broker: Served) -> None:
    with pytest.raises(ConnectionFailed, match="give the broker's HTTP port, 9324 by default, not its AMQP port"):
        await AsyncClient(f"127.0.0.1:{broker.amqp_port}").connect()


async def test_a_path_that_leads_nowhere_is_explained(broker: Served) -> None:
    with pytest.raises(ConnectionFailed, match="a broker has no path /queues; leave it out"):
        await AsyncClient(f"{broker.url}/queues").connect()


async def test_why_a_broker_goes_away_is_logged_in_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if len(broker.requests) > 1:
            return {"result": {"queues": []}}
        return {"error": {"code": "broker_closed", "message": "The broker is stopping; ask again in a moment."}}

    broker = FakeBroker(answer)
    async with broker, AsyncClient(broker.address) as client:
        await client.queues()
    [logged, *_] = [record.getMessage() for record in caplog.records]
    assert logged.endswith("ask again in a moment.")
    assert ".." not in logged


async def test_a_broker_that_does_not_answer_the_opening_is_given_up() -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        is_gone.set()

    is_gone = asyncio.Event()
    silent = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with silent:
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionFailed, match="no answer within 50 ms"):
            await AsyncClient(f"127.0.0.1:{port}", connect_timeout_ms=50).connect()
        await is_gone.wait()


async def test_a_broker_that_breaks_every_connection_is_given_up_after_a_while() -> None:
    def answer(request: dict[str, Any]) -> None:
        broker.connections[-1].transport.abort()

    broker = FakeBroker(answer)
    async with broker, AsyncClient(broker.address, retry_for_ms=300) as client:
        with pytest.raises(ConnectionLost, match="keep breaking"):  # it was sent, each time
            await client.info()
    assert len(broker.connections) > 1
