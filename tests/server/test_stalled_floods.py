"""Sixty clients that stand still, and one that works: it may publish again, since those with most waiting are cut off.

The whole server, with a limit of memory that the sixty go beyond. What is cut off by time alone is cut off far later.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smista.server import serve
from smista.server.listening import listen
from tests.protocols.http.caller import Caller
from tests.protocols.http.talk import Stubborn
from tests.server.raw_http import Client, Opcode, frame
from tests.server_thread import ServerThread
from tests.waiting import eventually

CLIENTS = 60
MEMORY_BYTES = 24 << 20
BODY = b"x" * 100_000
PAGE = 20
"""So many messages are asked for at a time."""
HALF_BYTES = 600_000
PATIENCE_S = 3_600.0
STALL_S = 0.2
BUFFER_BYTES = 64 << 10
"""Of the kernel's: what it has taken is nobody's memory here."""


def listen_with_small_buffers(host: str, port: int, flag: str) -> socket.socket:
    listener = listen(host, port, flag)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return listener


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    monkeypatch.setattr("smista.protocols.stalled.STALL_S", STALL_S)
    monkeypatch.setattr(serve, "listen", listen_with_small_buffers)
    settings = {"memory_bytes_max": MEMORY_BYTES, "body_timeout_s": PATIENCE_S, "resident_bytes_max": 1 << 20}
    with ServerThread(tmp_path, **settings, websocket_ping_s=0.0) as server:
        yield server
    assert server.faults == []


def ask_and_not_read(address: tuple[str, int]) -> Client:
    client = Client(address, receive_buffer=BUFFER_BYTES)
    client.send(b"GET /v1/queues/q/next?limit=%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % PAGE * 3)
    return client


def subscribe_and_not_read(address: tuple[str, int]) -> Client:
    client = Stubborn(address, receive_buffer=BUFFER_BYTES)
    client.ask("subscribe", queue="q", prefetch=PAGE)
    return client


def begin_a_body(address: tuple[str, int]) -> Client:
    client = Client(address)
    client.send(b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n")
    client.send(b"Content-Length: %d\r\n\r\n" % (2 * HALF_BYTES) + bytes(HALF_BYTES))
    return client


def begin_a_message(address: tuple[str, int]) -> Client:
    client = Stubborn(address)
    client.send(frame(Opcode.BINARY, bytes(HALF_BYTES), is_last=False))
    return client


def publish(caller: Caller) -> int:
    return caller.send("POST", "/v1/queues/works/messages", b"x", content_type="application/octet-stream").status


@pytest.mark.parametrize("stall", [ask_and_not_read, subscribe_and_not_read, begin_a_body, begin_a_message])
def test_sixty_clients_that_stand_still_do_not_keep_others_from_publishing(
    server: ServerThread, stall: Callable[[tuple[str, int]], Client]
) -> None:
    with Caller(server.address, "msgpack") as caller, contextlib.ExitStack() as stack:
        for queue in ("q", "works"):
            caller.call("queue.declare", queue=queue)
        for _ in range(CLIENTS if stall is subscribe_and_not_read else 1):
            assert caller.call("queue.publish_batch", queue="q", bodies=[BODY] * PAGE)["accepted"] == PAGE
        for _ in range(CLIENTS):
            stack.enter_context(stall(server.address))
        eventually(lambda: publish(caller) == 507)
        eventually(lambda: publish(caller) == 201)
        eventually(lambda: cut_off(server) > 0)
        assert cut_off(server) < CLIENTS, "a quarter of memory may wait"


def cut_off(server: ServerThread) -> int:
    """How many, as the log says."""
    lines = [line for line in list(server.lines) if "clients that stand still are cut off: memory is low" in line]
    return sum(int(found[1]) for line in lines if (found := re.search(r"count=(\d+)", line)))
