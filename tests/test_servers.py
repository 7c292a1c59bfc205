"""Servers of tests: which one is in this process, and who may start another."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from smista import Client
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import PATIENCE_S


def test_a_test_that_is_not_slow_starts_no_process() -> None:
    with pytest.raises(AssertionError, match="mark the test, or use a ServerThread"):
        ServerProcess().start()


def test_a_server_in_this_process_stops_in_order_and_keeps_its_data(tmp_path: Path) -> None:
    with ServerThread(tmp_path) as server, Client(server.url) as client:
        client.declare_queue("orders")
        client.publish("orders", b"1")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{server.url}/healthz", timeout=PATIENCE_S)
    assert server.faults == []
    with ServerThread(tmp_path) as again, Client(again.url) as client:
        assert [message.body for message in client.browse("orders")] == [b"1"]


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(AssertionError, match="data"):
        ServerThread(tmp_path / "data").__enter__()
