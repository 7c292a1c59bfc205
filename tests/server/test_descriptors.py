"""Connections leave file descriptors for everything else, and the log says when there are too few."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from smista.protocols.places import ANY_NUMBER, Places
from smista.server import descriptors
from smista.server.descriptors import RESERVED
from tests.protocols.http.caller import Caller
from tests.server import few_files
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow


class Limited(ServerProcess):
    module = few_files.__name__


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with Limited(tmp_path) as server:
        yield server


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_the_limit_is_raised_and_said(server: ServerProcess) -> None:
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    assert limits == (few_files.HARD, few_files.HARD)
    [said] = [line for line in server.lines if "connections_max is more than the limit of open files leaves" in line]
    assert f"connections_possible={few_files.HARD // 2}" in said
    with Caller(server.address) as http:
        assert http.call("broker.info")["connections"] == {
            "open": 1,
            "connections_max": 10_000,
            "possible": few_files.HARD // 2,
        }


@pytest.mark.parametrize("protocol", ["http", "amqp"])
def test_connections_leave_descriptors_for_the_rest(server: ServerProcess, protocol: str) -> None:
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(Caller(server.address))
        queue = old.new_queue()
        address = server.address if protocol == "http" else server.amqp_address
        for _ in range(2 * few_files.HARD):
            stack.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
        eventually(lambda: any("connections are refused" in line for line in server.lines))
        eventually(lambda: open_files(server.pid) < few_files.HARD)
        old.publish(queue, "x" * 1000)
        assert any("limit of open files" in line for line in server.lines if "are refused" in line)


def test_all_listeners_count_together() -> None:
    places = Places(3)
    counts = [0, 0]
    for number in range(2):
        places.count(lambda number=number: counts[number])  # type: ignore[misc]  # bound now, not later
    counts[:] = [1, 1]
    assert not places.is_full
    counts[:] = [1, 2]
    assert places.is_full


def test_how_many_are_for_connections(caplog: pytest.LogCaptureFixture) -> None:
    assert descriptors.places(100_000, 10_000).most == 100_000 - RESERVED
    assert descriptors.places(ANY_NUMBER, 10_000).most > 10_000
    assert caplog.records == []
    assert descriptors.places(256, 10_000).most == 128
    assert len(caplog.records) == 1
