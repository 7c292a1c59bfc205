"""What comes in over HTTP and is not whole counts in `memory_bytes_max`, until it is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.protocols.http.caller import Caller
from tests.protocols.http.talk import Stubborn, asked
from tests.server.raw_http import Client, Opcode, frame
from tests.server_process import ServerProcess
from tests.waiting import eventually

pytestmark = pytest.mark.slow

SIZE = 3_000_000
LOG_BYTES_MAX = 10_000
"""What the broker's log, which is in memory, may hold beside."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(None) as server:
        yield server


def held_bytes(server: ServerProcess) -> int:
    with Caller(server.address) as http:
        found = re.search(rb"^smista_held_bytes (\S+)$", http.send("GET", "/metrics").body, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def holds(server: ServerProcess, count: int) -> None:
    """Wait until that is counted; the last bytes may be on their way to the application."""
    eventually(lambda: count - 100_000 < held_bytes(server) <= count + LOG_BYTES_MAX, show=lambda: held_bytes(server))


def holds_nothing(server: ServerProcess) -> None:
    eventually(lambda: held_bytes(server) < LOG_BYTES_MAX, show=lambda: held_bytes(server))


def head(size: int, path: str, content_type: str) -> bytes:
    lines = f"POST {path} HTTP/1.1", "host: localhost", f"content-type: {content_type}", f"content-length: {size}"
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/v1/command", "application/json"),
        ("/v1/queues/q/messages", "application/octet-stream"),
        ("/", "application/x-www-form-urlencoded"),
    ],
)
def test_bodies_that_are_not_whole_count_until_their_client_is_gone(
    server: ServerProcess, path: str, content_type: str
) -> None:
    with Client(server.address) as first, Client(server.address) as second:
        for client in (first, second):
            client.send(head(SIZE, path, content_type) + b"x" * (SIZE - 1))
        holds(server, 2 * SIZE)
        first.close()
        holds(server, SIZE)
        # This one is answered: it is nonsense.
        second.send(b"x")
        assert 400 <= second.answer().status < 500
        holds_nothing(server)


def test_what_is_staged_counts_until_it_is_written(server: ServerProcess) -> None:
    with Client(server.address) as client:
        whole = head(SIZE, "/v1/staged/job/1/0/0", "application/octet-stream").replace(b"POST", b"PUT")
        client.send(whole + b"x" * 500_000)
        holds(server, 500_000)
    holds_nothing(server)


def test_messages_of_a_stream_that_are_not_whole_count_until_it_is_gone(server: ServerProcess) -> None:
    with Stubborn(server.address) as stream:
        stream.send(frame(Opcode.BINARY, b"x" * SIZE, is_last=False))
        holds(server, SIZE)
        stream.send(frame(Opcode.CONTINUATION, b"x" * SIZE)[:-1])
        holds(server, 2 * SIZE)
    holds_nothing(server)


def test_messages_of_a_stream_that_are_whole_are_the_brokers(server: ServerProcess) -> None:
    with Stubborn(server.address) as stream:
        whole = asked("broker.ping", nonsense="x" * SIZE)
        stream.send(whole[:-1])
        holds(server, SIZE)
        stream.send(whole[-1:])
        holds_nothing(server)
