"""The application by itself, where a moment has to be held still: before it has a broker, while it stops, when a client
goes just as its message comes, and when we are at fault."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from smista.core.jobs import JobState
from smista.core.message import Publication
from smista.core.settings import QueueSettings
from smista.engine import Broker
from smista.errors import stopped as broker_stopped
from smista.log import MemoryLog
from smista.protocols.http.app import HttpApp
from smista.service.commands.broker import ShowInfo
from smista.service.service import Service
from tests.engine.bench import turns, until


class Client:
    """One request to the application, without a socket."""

    def __init__(self, app: HttpApp, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        self._body = body
        self._is_read = False
        self.gone = asyncio.Event()
        """Set it to hang up."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        if body:
            headers = {"content_type": "application/json", **headers}
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        }
        self.served = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: Any) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
            self.headers = {name.decode(): value.decode() for name, value in event["headers"]}
        else:
            self.body += event["body"]

    @property
    def value(self) -> Any:
        return msgspec.json.decode(self.body)


def command(app: HttpApp, name: str, **payload: Any) -> Client:
    return Client(app, "POST", "/v1/command", msgspec.json.encode({"command": name, "payload": payload}))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        await broker.declaring.declare_queue("orders")
        yield broker


@pytest.fixture
def app(broker: Broker) -> HttpApp:
    app = HttpApp()
    app.service = Service(broker)
    return app


# -- before there is a broker -----------------------------------------------------------------------------------------


async def test_while_it_recovers_it_is_alive_and_not_ready() -> None:
    app = HttpApp()
    alive, ready = Client(app, "GET", "/healthz"), Client(app, "GET", "/readyz")
    await asyncio.gather(alive.served, ready.served)
    assert (alive.status, alive.body) == (200, b"ok\n")
    assert (ready.status, ready.body) == (503, b"not ready: recovering\n")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/command", b'{"command": "broker.info"}'),
        ("GET", "/v1/queues", b""),
        ("POST", "/v1/queues/q/messages", b'{"body": "eA=="}'),
        ("GET", "/metrics", b""),
    ],
)
async def test_while_it_recovers_it_asks_for_patience(method: str, path: str, body: bytes) -> None:
    client = Client(HttpApp(), method, path, body)
    await client.served
    assert (client.status, client.value["error"]["code"]) == (503, "broker_closed")
    assert client.headers["retry-after"] == "1"


async def test_while_it_recovers_what_is_wrong_is_told_all_the_same() -> None:
    app = HttpApp()
    cases = [
        (Client(app, "GET", "/nowhere"), 404),
        (Client(app, "GET", "/v1/nowhere"), 404),
        (Client(app, "PUT", "/v1/queues"), 405),
        (Client(app, "POST", "/v1/command", b"nonsense"), 400),
        (Client(app, "GET", "/openapi.json"), 200),
        (Client(app, "GET", "/"), 200),
    ]
    for client, status in cases:
        await client.served
        assert client.status == status


async def upgrade(app: HttpApp, path: str = "/v1/stream", *subprotocols: str) -> list[dict[str, Any]]:
    """What the application answers to the handshake of a WebSocket."""
    answered: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    async def send(event: Any) -> None:
        answered.append(dict(event))

    await app({"type": "websocket", "path": path, "subprotocols": list(subprotocols)}, receive, send)
    return answered


async def test_while_it_recovers_or_stops_there_is_no_stream(app: HttpApp) -> None:
    accepted = (await upgrade(app, "/v1/stream", "smista.msgpack", "smista.json"))[0]
    assert (accepted["type"], accepted["subprotocol"]) == ("websocket.accept", "smista.msgpack")
    app.drain()
    for stopped in (HttpApp(), app):
        start, body = await upgrade(stopped)
        assert start["status"] == 503
        assert (b"retry-after", b"1") in start["headers"]
        assert msgspec.json.decode(body["body"])["error"]["code"] == "broker_closed"


# -- readiness --------------------------------------------------------------------------------------------------------


async def test_it_is_ready_with_a_broker_and_not_any_more_when_it_stops(app: HttpApp) -> None:
    ready = Client(app, "GET", "/readyz")
    await ready.served
    assert (ready.status, ready.body) == (200, b"ready\n")
    app.drain()
    stopping, alive = Client(app, "GET", "/readyz"), Client(app, "GET", "/healthz")
    await asyncio.gather(stopping.served, alive.served)
    assert (stopping.status, stopping.body) == (503, b"not ready: stopping\n")
    assert alive.status == 200


async def test_a_log_that_failed_makes_it_not_ready(app: HttpApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "failure", OSError("disk gone"))
    client = Client(app, "GET", "/readyz")
    await client.served
    assert (client.status, client.body) == (503, b"not ready: the log failed: disk gone\n")


async def test_an_error_without_words_is_named(app: HttpApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "failure", MemoryError())
    client = Client(app, "GET", "/readyz")
    await client.served
    assert client.body == b"not ready: the log failed: MemoryError\n"
    assert "(MemoryError)" in str(broker_stopped(MemoryError()))
    assert "(disk gone)" in str(broker_stopped(OSError("disk gone")))


# -- while it stops ---------------------------------------------------------------------------------------------------


async def test_a_long_poll_ends_when_the_broker_stops(app: HttpApp, broker: Broker) -> None:
    client = command(app, "queue.receive", queue="orders", wait_ms=20_000)
    await turns(20)
    app.drain()
    await client.served
    assert (client.status, client.value["error"]["code"]) == (503, "broker_closed")
    await broker.publishing.publish("orders", [Publication(b"x")])
    assert broker.statistics.stats("orders").ready == 1


async def test_a_stopping_broker_still_answers_what_it_can_answer_at_once(app: HttpApp, broker: Broker) -> None:
    await broker.publishing.publish("orders", [Publication(b"x")])
    app.drain()
    client = command(app, "queue.receive", queue="orders", wait_ms=20_000)
    await client.served
    assert [message["message"] for message in client.value["messages"]] == ["x"]


async def test_a_slow_redrive_goes_on_when_the_client_goes_or_the_broker_drains(app: HttpApp, broker: Broker) -> None:
    await broker.declaring.declare_queue("fragile", QueueSettings(max_retries=0))
    await broker.publishing.publish("fragile", [Publication(b"x", priority=one) for one in (0, 0, 1, 1)])
    deliveries = await broker.receiving.receive("fragile", 4)
    await broker.settling.nack([delivery.receipt for delivery in deliveries])
    stopped = command(app, "dlq.retry", queue="fragile", priority=0, per_second=0.001)
    hung_up = command(app, "dlq.retry", queue="fragile", priority=1, per_second=0.001)
    await until(lambda: broker.statistics.stats("fragile").ready == 2)
    hung_up.gone.set()
    await hung_up.served
    assert hung_up.status == 0
    app.drain()
    await stopped.served
    assert stopped.status == 503
    assert (broker.statistics.stats("fragile").ready, broker.statistics.stats("fragile_dlq").ready) == (2, 2)
    assert [job.state for job in broker.jobs.of_queue("fragile")] == [JobState.RUNNING] * 2


# -- a client that goes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "wait"), [("queue.receive", {"wait_ms": 20_000}), ("queue.consume", {"timeout": 20})])
async def test_a_message_that_comes_as_the_client_goes_is_given_back(
    app: HttpApp, broker: Broker, name: str, wait: dict[str, Any]
) -> None:
    client = command(app, name, queue="orders", **wait)
    await turns(20)
    broker.publishing.submit("orders", [Publication(b"x")]).result()
    client.gone.set()
    await client.served
    assert client.status == 0
    assert (broker.statistics.stats("orders").ready, broker.statistics.stats("orders").in_flight) == (1, 0)


async def test_a_client_that_goes_before_its_request_is_complete_gets_nothing(app: HttpApp, broker: Broker) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        raise AssertionError(event)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/command", "headers": headers, "query_string": b""}
    await app(scope, receive, send)


# -- when we are at fault ---------------------------------------------------------------------------------------------


async def test_a_fault_of_ours_is_told_without_details_and_logged_with_them(
    app: HttpApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(self: object, context: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(ShowInfo, "run", run)
    with caplog.at_level(logging.ERROR):
        client = command(app, "broker.info")
        await client.served
    assert (client.status, client.value["error"]["code"]) == (500, "internal_error")
    assert b"secret" not in client.body
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["secret"]
