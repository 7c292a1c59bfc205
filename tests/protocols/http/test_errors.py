"""Every error has its status, stands in the docs with it, and is provoked here through a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import pkgutil
import re
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from websockets.sync.client import ClientConnection, connect

import smista.bulk
import smista.core
import smista.engine
import smista.protocols.http
import smista.service
from smista.core.exchanges import QUEUES_MAX
from smista.engine import Broker
from smista.errors import BrokerError
from smista.log import SqliteLog
from smista.protocols.amqp.wire import methods
from smista.protocols.http.app import HttpApp
from smista.protocols.http.errors import STATUS
from smista.server.http.server import HttpServer
from smista.server.settings import ServerSettings
from smista.service.service import Service
from tests.faults.failing import FailingDisk, failing_disk
from tests.protocols.amqp.raw import Raw, on
from tests.protocols.http.arrow_reader import STREAM, stream
from tests.protocols.http.bulk import open_log
from tests.protocols.http.caller import Answer, Caller, Refusal, new_name
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
NEVER_RAISED = {"broker_error", "request_error", "resource_low"}
"""Roots of others."""
CAN_REACH_A_CLIENT = (smista.core, smista.engine, smista.service, smista.bulk, smista.protocols.http)
"""Where errors are made that a request may end in. Those of the log arrive as `broker_stopped` and `outcome_unknown`;
a server that cannot start answers nobody; a client's own never leave it; other protocols have tables of their own."""


def every_error() -> Iterator[type[BrokerError]]:
    for package in CAN_REACH_A_CLIENT:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    prefixes = ("smista.errors", "smista.exchange_errors", *(package.__name__ for package in CAN_REACH_A_CLIENT))
    pending: list[type[BrokerError]] = [BrokerError]
    while pending:
        error = pending.pop()
        pending += error.__subclasses__()
        if error.__module__.startswith(prefixes):
            yield error


def test_every_error_that_can_reach_a_client_has_a_status() -> None:
    assert set(STATUS) == {error.code for error in every_error()} - NEVER_RAISED


def test_every_status_is_that_of_an_error() -> None:
    assert {status for status in STATUS.values() if not 400 <= status < 500} == {501, 503, 507}


def test_every_status_stands_in_the_docs() -> None:
    text = (ROOT / "docs/errors.md").read_text().split("## Over HTTP")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d{3}) \| (.+) \|$", text, re.MULTILINE)
    assert {code: int(status) for status, named in rows for code in re.findall(r"`(\w+)`", named)} == STATUS


# -- provoked ---------------------------------------------------------------------------------------------------------

Cause = Callable[[Caller], Refusal]
CAUSES: dict[str, Cause] = {}


def provokes(code: str) -> Callable[[Cause], Cause]:
    def note(cause: Cause) -> Cause:
        CAUSES[code] = cause
        return cause

    return note


def simply(code: str, command: str, **payload: Any) -> None:
    CAUSES[code] = lambda http: http.refused(command, **payload)


simply("exchange_not_found", "exchange.publish", exchange="nowhere", message=1)
simply("exchange_reserved", "exchange.delete", exchange="amq.topic")
simply("invalid_name", "queue.declare", queue="a\nb")
simply("invalid_receipt", "queue.ack", receipt="x")
simply("invalid_request", "queue.publish", queue="q", colour="red")
simply("invalid_settings", "queue.declare", queue="odd", settings={"lease_ms": -1})
simply("invalid_exchange", "exchange.declare", exchange="ä" * 200)
simply("namespace_not_found", "exchange.list", namespace="nowhere")
simply("policy_not_found", "policy.delete", policy="nowhere")
simply("queue_not_found", "queue.stats", queue="nowhere")
simply("unknown_command", "queue.paint")


@provokes("message_not_found")
def _(http: Caller) -> Refusal:
    return http.refused("queue.get", queue=http.new_queue(), message_id="x")


@provokes("invalid_argument")
def _(http: Caller) -> Refusal:
    return http.refused("queue.receive", queue=http.new_queue(), limit=2_000)


@provokes("invalid_priority")
def _(http: Caller) -> Refusal:
    return http.refused("queue.publish", queue=http.new_queue(max_priority=1), message=1, priority=2)


@provokes("message_too_large")
def _(http: Caller) -> Refusal:
    return http.refused("queue.publish", queue=http.new_queue(body_bytes_max=1), message="large")


@provokes("queue_differs")
def _(http: Caller) -> Refusal:
    return http.refused("queue.declare", queue=http.new_queue(), settings={"lease_ms": 1})


@provokes("queue_full")
def _(http: Caller) -> Refusal:
    queue = http.new_queue(max_depth=1)
    http.publish(queue, 1)
    return http.refused("queue.publish", queue=queue, message=2)


@provokes("queue_not_empty")
def _(http: Caller) -> Refusal:
    queue = http.new_queue()
    http.publish(queue, 1)
    return http.refused("queue.delete", queue=queue, if_empty=True)


@provokes("dead_letter_cycle")
def _(http: Caller) -> Refusal:
    first = new_name("circle")
    second = http.new_queue(dead_letter_queue=first)
    return http.refused("queue.declare", queue=first, settings={"dead_letter_queue": second})


@provokes("stale_receipt")
def _(http: Caller) -> Refusal:
    queue = http.new_queue()
    http.publish(queue, 1)
    [got] = http.receive(queue)
    http.call("queue.ack", receipt=got["receipt"])
    return http.refused("queue.ack", receipt=got["receipt"])


@provokes("ack_deadline_exceeded")
def _(http: Caller) -> Refusal:
    queue = http.new_queue(backoff_on_timeout=True, retry_base_ms=3_600_000, retry_cap_ms=3_600_000)
    http.publish(queue, 1)
    [got] = http.receive(queue, lease_ms=1)
    while not http.stats(queue)["timed_out_total"]:
        pass
    return http.refused("queue.nack", receipt=got["receipt"])


@provokes("binding_target_not_found")
def _(http: Caller) -> Refusal:
    return http.refused("exchange.bind", exchange="amq.topic", queue="nowhere")


@provokes("invalid_binding")
def _(http: Caller) -> Refusal:
    queue = http.new_queue()
    return http.refused("exchange.bind", exchange="amq.headers", queue=queue, arguments={"x-match": "some"})


@provokes("exchange_differs")
def _(http: Caller) -> Refusal:
    return http.refused("exchange.declare", exchange="amq.topic", kind="direct")


@provokes("exchange_internal")
def _(http: Caller) -> Refusal:
    name = new_name("exchange")
    http.call("exchange.declare", exchange=name, internal=True)
    return http.refused("exchange.publish", exchange=name, message=1)


@provokes("exchange_in_use")
def _(http: Caller) -> Refusal:
    name = new_name("exchange")
    http.call("exchange.declare", exchange=name)
    http.call("exchange.bind", exchange=name, queue=http.new_queue())
    return http.refused("exchange.delete", exchange=name, if_unused=True)


@provokes("exchange_cycle")
def _(http: Caller) -> Refusal:
    name = new_name("exchange")
    http.call("exchange.declare", exchange=name)
    return http.refused("exchange.bind", exchange=name, to_exchange=name)


@provokes("path_not_found")
def _(http: Caller) -> Refusal:
    return http.send("GET", "/nowhere").refusal


@provokes("method_not_allowed")
def _(http: Caller) -> Refusal:
    return http.send("PUT", "/v1/queues").refusal


@provokes("upgrade_required")
def _(http: Caller) -> Refusal:
    return http.send("GET", "/v1/stream").refusal


@provokes("unsupported_media_type")
def _(http: Caller) -> Refusal:
    return http.send("POST", "/v1/command", b"<a/>", content_type="application/xml").refusal


@provokes("request_too_large")
def _(http: Caller) -> Refusal:
    with http.another() as client:
        return client.send("POST", "/v1/command", content_length=str(1 << 30), content_type="application/json").refusal


# -- provoked with the help of a stream, which waits and holds --------------------------------------------------------


@contextlib.contextmanager
def stream_of(http: Caller) -> Iterator[ClientConnection]:
    host, port = http.address
    with connect(f"ws://{host}:{port}/v1/stream", proxy=None, open_timeout=PATIENCE_S) as stream:
        yield stream


def ask(stream: ClientConnection, command: str, **payload: Any) -> dict[str, Any]:
    stream.send(json.dumps({"id": 1, "command": command, "payload": payload}))
    answer: dict[str, Any] = json.loads(stream.recv(PATIENCE_S))
    return answer


@provokes("queue_in_use")
def _(http: Caller) -> Refusal:
    queue = http.new_queue()
    with stream_of(http) as stream:
        ask(stream, "subscribe", queue=queue)
        return http.refused("queue.delete", queue=queue, if_unused=True)


@provokes("queue_in_exclusive_use")
def _(http: Caller) -> Refusal:
    queue = http.new_queue(single_active_consumer=True)
    with stream_of(http) as stream:
        ask(stream, "subscribe", queue=queue)
        return http.refused("queue.receive", queue=queue)


@provokes("queue_deleted")
def _(http: Caller) -> Refusal:
    queue = http.new_queue()
    with http.another() as waiting:
        waiting.start_command("queue.receive", {"queue": queue, "wait_ms": 20_000})
        while b"smista_long_polls 0" in http.send("GET", "/metrics").body:
            pass
        http.call("queue.delete", queue=queue)
        return waiting.answer().refusal


def told(answer: dict[str, Any]) -> Refusal:
    """An error on the stream, which has no status."""
    code = answer["error"]["code"]
    return Refusal(STATUS[code], code, answer["error"]["message"])


def claimed(http: Caller, **fields: Any) -> str:
    """A queue of which a message is claimed."""
    queue = http.new_queue()
    http.publish(queue, 1)
    http.call("claim.make", queue=queue, consumer="c", session="s", after=0, max_rows=1, **fields)
    return queue


@provokes("claim_not_found")
def _(http: Caller) -> Refusal:
    return http.refused("claim.acknowledge", queue=claimed(http), consumer="c", session="s", up_to=2)


@provokes("claim_expired")
def _(http: Caller) -> Refusal:
    queue = claimed(http, lease_ms=1)
    while not http.stats(queue)["ready"]:
        pass
    return http.refused("claim.acknowledge", queue=queue, consumer="c", session="s", up_to=1)


@provokes("claim_broken")
def _(http: Caller) -> Refusal:
    queue = claimed(http)
    http.call("queue.purge", queue=queue)
    return http.rest("GET", "queues", queue, "claims", "c", "1").refusal


@provokes("redrive_not_found")
def _(http: Caller) -> Refusal:
    return http.refused("redrive.cancel", queue=http.new_queue(), job="x")


@provokes("redrive_running")
def _(http: Caller) -> Refusal:
    queue = http.new_queue(dead_letter="park")
    http.publish(queue, 1, 2)
    for message in http.receive(queue, 2):
        http.call("queue.nack", receipt=message["receipt"], requeue=False)
    http.call("redrive.start", queue=queue, per_second=0.001)
    return http.refused("redrive.start", queue=queue)


@provokes("redrive_ended")
def _(http: Caller) -> Refusal:
    queue = http.new_queue()
    http.call("dlq.retry", queue=queue, per_second=1)
    [ended] = http.call("redrive.list", queue=queue)["redrives"]
    return http.refused("redrive.cancel", queue=queue, job=ended["job"])


@provokes("consumer_in_use")
def _(http: Caller) -> Refusal:
    return http.refused("claim.heartbeat", queue=claimed(http), consumer="c", session="another")


@provokes("arrow_missing")
def _(_: Caller) -> Refusal:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        Path(folder, "pyarrow.py").write_text("raise ImportError")
        patch.setenv("PYTHONPATH", folder)
        with ServerProcess() as server, Caller(server.address) as http:
            return http.send("PUT", "/v1/staged/job/1/0/0", b"", content_type=STREAM).refusal


@provokes("host_not_allowed")
def _(http: Caller) -> Refusal:
    return http.send("GET", "/v1/queues", host="evil.example").refusal


@provokes("origin_not_allowed")
def _(http: Caller) -> Refusal:
    return http.send("GET", "/v1/queues", origin="https://evil.example").refusal


@provokes("stage_not_found")
def _(http: Caller) -> Refusal:
    return http.refused("staged.commit", job=new_name("job"), batch="1", queue=http.new_queue(), parts=[[0, 0]])


def staged(http: Caller, rows: int) -> tuple[str, Path]:
    """The name of a job of which a part is staged, and the folder it is in."""
    job = uuid.uuid4().hex
    data = stream(pa.record_batch({"body": [b"x" * 100] * rows}))
    assert http.send("PUT", f"/v1/staged/{job}/1/0/0", data, content_type=STREAM).status == 200
    [folder] = Path(tempfile.gettempdir()).glob(f"smista-staged-*/job-{job}")
    return job, folder


@provokes("stage_damaged")
def _(http: Caller) -> Refusal:
    job, folder = staged(http, 1)
    (folder / "batch-1/0.0").write_bytes(b"short")
    return http.refused("staged.commit", job=job, batch="1", queue=http.new_queue(), parts=[[0, 0]])


@provokes("stage_busy")
def _(http: Caller) -> Refusal:
    job, _ = staged(http, 100_000)
    queue = http.new_queue()
    with http.another() as other:
        other.start_command("staged.commit", {"job": job, "batch": "1", "queue": queue, "parts": [[0, 0]]})
        while not http.stats(queue)["ready"]:
            pass
        refusal = http.refused("staged.discard", job=job, batch="1")
        assert other.answer().value["published"] == 100_000
    return refusal


@provokes("consumer_not_found")
def _(http: Caller) -> Refusal:
    with stream_of(http) as stream:
        return told(ask(stream, "unsubscribe", subscription=7))


@provokes("too_many_requests")
def _(http: Caller) -> Refusal:
    queue = http.new_queue()
    with stream_of(http) as stream:
        for _ in range(1_001):
            stream.send(f'{{"id": 1, "command": "queue.receive", "payload": {{"queue": "{queue}", "wait_ms": 20000}}}}')
        return told(json.loads(stream.recv(PATIENCE_S)))


@provokes("request_cancelled")
def _(http: Caller) -> Refusal:
    queue = http.new_queue()
    with stream_of(http) as stream:
        stream.send(f'{{"id": 7, "command": "queue.receive", "payload": {{"queue": "{queue}", "wait_ms": 20000}}}}')
        stream.send('{"id": 8, "command": "cancel", "payload": {"request": 7}}')
        answers = [json.loads(stream.recv(PATIENCE_S)) for _ in range(2)]
        return told(next(answer for answer in answers if answer["id"] == 7))


# -- provoked on servers of their own ---------------------------------------------------------------------------------


def refused_for_want(data: Path | None, **settings: object) -> Refusal:
    """What publishers hear from a server that lacks disk or memory."""
    with ServerThread(data, watch_interval_s=0.01, **settings) as server, Caller(server.address) as http:
        queue = http.new_queue()
        while (answer := http.post("queue.publish", {"queue": queue, "message": 1})).status == 200:
            pass
        assert answer.headers["retry-after"] == "1"
        # The same sentence, whose figure changes from moment to moment.
        said = http.call("broker.info")["refusal"]
        assert re.sub(r"\d+", "n", said) == re.sub(r"\d+", "n", answer.refusal.message)
        return answer.refusal


@provokes("low_memory")
def _(_: Caller) -> Refusal:
    return refused_for_want(None, memory_bytes_max=1)


@provokes("low_disk")
def _(_: Caller) -> Refusal:
    with tempfile.TemporaryDirectory() as directory:
        return refused_for_want(Path(directory) / "data", disk_free_bytes_min=1 << 50)


@provokes("broker_closed")
def _(_: Caller) -> Refusal:
    with ServerThread() as server, Caller(server.address) as http, http.another() as waiting:
        queue = http.new_queue()
        waiting.start_command("queue.receive", {"queue": queue, "wait_ms": 20_000})
        while b"smista_long_polls 0" in http.send("GET", "/metrics").body:
            pass
        server.stop()
        return waiting.answer().refusal


@contextlib.contextmanager
def on_a_failing_disk() -> Iterator[tuple[Caller, FailingDisk]]:
    """A broker whose disk can be made to fail, served from a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = HttpApp()
    server = HttpServer(app, ServerSettings())
    is_open, may_close = threading.Event(), threading.Event()

    async def serve(directory: str, disk: FailingDisk) -> None:
        broker = await Broker.open(SqliteLog.open(directory, vfs=disk.vfs))
        app.service = Service(broker)
        await server.start(listener)
        is_open.set()
        await asyncio.to_thread(may_close.wait)
        await server.stop()
        with contextlib.suppress(BrokerError):
            await broker.close()

    with tempfile.TemporaryDirectory() as directory, failing_disk() as disk:
        thread = threading.Thread(target=lambda: asyncio.run(serve(directory, disk)))
        thread.start()
        is_open.wait()
        try:
            with Caller(listener.getsockname()) as http:
                yield http, disk
        finally:
            may_close.set()
            thread.join()


@provokes("outcome_unknown")
def _(_: Caller) -> Refusal:
    with on_a_failing_disk() as (http, disk):
        queue = http.new_queue()
        disk.fail_sync()
        return http.refused("queue.publish", queue=queue, message=1)


@provokes("broker_stopped")
def _(_: Caller) -> Refusal:
    with on_a_failing_disk() as (http, disk):
        queue = http.new_queue()
        disk.fail_sync()
        http.refused("queue.publish", queue=queue, message=1)
        assert http.send("GET", "/readyz").status == 503
        assert http.send("GET", "/healthz").status == 200
        return http.refused("queue.publish", queue=queue, message=1)


@provokes("log_in_memory")
def _(http: Caller) -> Refusal:
    return http.send("GET", "/v1/log").refusal


@provokes("log_position_dropped")
def _(_: Caller) -> Refusal:
    with on_disk(log_retention_ms=0, log_retention_bytes=0, log_slack_bytes=0) as (_data, http):
        queue = http.new_queue()
        while http.send("GET", "/v1/log/range").value["shards"][0]["first"] == 1:
            http.publish(queue, 1)
            http.call("queue.purge", queue=queue)
        return http.send("GET", "/v1/log?from=1").refusal


@provokes("too_many_readers")
def _(_: Caller) -> Refusal:
    with on_disk() as (_data, http), contextlib.ExitStack() as readers:
        queue = http.new_queue()
        for _batch in range(20):
            http.call("queue.publish_batch", queue=queue, messages=[{"message": "x" * 1000}] * 1_000)
        while True:
            answer = readers.enter_context(open_log(http.address, bodies="true"))
            if answer.status != 200:
                return Answer(answer.status, dict(answer.headers.items()), answer.read()).refusal


@provokes("reach_too_wide")
def _(_: Caller) -> Refusal:
    with ServerThread() as server, Caller(server.address) as http, contextlib.ExitStack() as ending:
        raw = Raw(server.amqp_address).open()
        ending.callback(raw.socket.close)
        names = [f"q{number}" for number in range(QUEUES_MAX + 1)]
        # Without an answer each, and one for all of them.
        raw.send(*(on(1, methods.QueueDeclare(0, name, False, False, True, False, True, {})) for name in names))
        raw.call(methods.QueueDeclare(0, "last", False, False, True, False, False, {}), methods.QueueDeclareOk)
        return http.refused("exchange.publish", exchange="", extra_keys=names, message=1)


@provokes("bulk_reader_failed")
def _(_: Caller) -> Refusal:
    # The process cannot begin, because it does not find the file that the broker has open.
    with on_disk() as (data, http):
        (data / "log.db").rename(data / "elsewhere")
        return http.send("GET", "/v1/log/plan").refusal


@contextlib.contextmanager
def on_disk(**settings: object) -> Iterator[tuple[Path, Caller]]:
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        with ServerThread(data, **settings) as server, Caller(server.address) as http:
            yield data, http


def test_every_code_has_its_cause_here() -> None:
    # There are no users yet, so a caller that may not do something is made in tests/service.
    assert set(CAUSES) == set(STATUS) - {"access_denied"}


PROCESSES = {"arrow_missing", "too_many_readers"}
"""What takes processes to provoke."""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, marks=pytest.mark.slow if code in PROCESSES else ())
        for code in sorted(set(STATUS) - {"access_denied"})
    ],
)
def test_a_client_is_told(http: Caller, code: str) -> None:
    refusal = CAUSES[code](http)
    assert (refusal.status, refusal.code) == (STATUS[code], code)
    assert len(refusal.message) > 20
