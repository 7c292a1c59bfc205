"""Requests that survive a broker's restart, and streams that never pass for whole when they broke off."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest

from smista.spark import wire
from smista.spark.errors import BrokerRefused, BrokerUnreachable
from smista.spark.options import Server
from smista.spark.wire import Wire

ROWS, BATCHES = 100, 10


def stream() -> bytes:
    file = io.BytesIO()
    schema = pa.schema([pa.field("number", pa.int64())])
    with pa.ipc.new_stream(file, schema) as writer:
        for start in range(0, ROWS * BATCHES, ROWS):
            writer.write_batch(pa.record_batch([pa.array(range(start, start + ROWS))], schema=schema))
    return file.getvalue()


class Answers(BaseHTTPRequestHandler):
    """Answers with a stream of Arrow, each time up to where the server says; or with errors, if it has some."""

    server: Flaky

    def do_GET(self) -> None:  # the library's name
        self.server.asked += 1
        if self.server.errors:
            status, body = self.server.errors.pop(0)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.end_headers()  # without a length: the end of the connection is all that tells the end
        self.wfile.write(stream()[: self.server.cuts.pop(0) if self.server.cuts else None])

    def log_message(self, *_: object) -> None:
        pass


class Flaky(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked = 0
        self.cuts: list[int] = []
        self.errors: list[tuple[int, bytes]] = []

    @property
    def wire(self) -> Wire:
        return Wire(Server(f"http://127.0.0.1:{self.server_address[1]}", None, None))

    def numbers(self) -> list[int]:
        return [number for batch in self.wire.batches("log", query={}) for number in batch.column(0).to_pylist()]


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    monkeypatch.setattr(wire, "_PAUSE_S", 0.01)
    with Flaky() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("left", [0, 5, 300, 1500, 4000, len(stream()) - 8, len(stream()) - 1])
def test_a_stream_that_breaks_off_goes_on_behind_the_last_row(flaky: Flaky, left: int) -> None:
    flaky.cuts = [left, left]
    assert flaky.numbers() == list(range(ROWS * BATCHES))
    assert flaky.asked == 3


def test_a_stream_that_always_breaks_off_is_an_error(flaky: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PATIENCE_S", 0.3)
    flaky.cuts = [3000] * 1000
    with pytest.raises(BrokerUnreachable, match="No broker answers"):
        flaky.numbers()


def test_a_broker_that_is_stopping_is_asked_again(flaky: Flaky) -> None:
    flaky.errors = [(503, json.dumps({"error": {"code": "broker_closed", "message": "It is."}}).encode())] * 2
    assert len(flaky.numbers()) == ROWS * BATCHES


def test_what_the_broker_refuses_is_not_asked_again(flaky: Flaky) -> None:
    flaky.errors = [(404, json.dumps({"error": {"code": "queue_not_found", "message": "No queue x."}}).encode())]
    with pytest.raises(BrokerRefused, match="No queue x") as caught:
        flaky.numbers()
    assert (caught.value.code, flaky.asked) == ("queue_not_found", 1)


def test_an_answer_that_is_no_brokers_is_shown(flaky: Flaky) -> None:
    flaky.errors = [(404, b"<html>nothing here</html>")]
    with pytest.raises(BrokerRefused, match=r"This is not how a broker answers \(HTTP 404: <html>nothing here"):
        flaky.wire.get("queues")
