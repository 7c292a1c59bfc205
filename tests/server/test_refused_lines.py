"""Who is not let in is told in the log: why, how many there were and from where, and seldom."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.protocols.amqp.raw import HELLO, Raw, start_ok
from tests.protocols.http.caller import Caller
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow

TRIES = 30


def closed_after(address: tuple[str, int], data: bytes = b"") -> None:
    """Send something, and read until the other side has closed."""
    with socket.create_connection(address, timeout=PATIENCE_S) as client, contextlib.suppress(ConnectionError):
        client.sendall(data)
        while client.recv(1 << 16):
            pass


def told(server: ServerProcess, words: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.lines if line.startswith("{")]
    return [line for line in lines if words in line["message"]]


def test_those_that_were_refused_last_are_told_at_a_stop() -> None:
    with ServerProcess(None, "--log-format", "json") as server:

        def ask(path: str, **headers: str) -> None:
            with Caller(server.address) as http:
                assert http.send("GET", path, None, **headers).status == 403

        refused: dict[str, Callable[[], None]] = {
            "does not go by the name": lambda: ask("/v1/queues", Host="evil.example"),
            "may not use this broker": lambda: ask("/v1/queues", Origin="http://evil.example"),
            "MissingAuthenticationToken": lambda: ask("/?Action=CreateQueue&QueueName=x"),
            "not HTTP/1.1": lambda: closed_after(server.address, b"\x16\x03\x01\x02\x00 this is TLS\r\n\r\n"),
            "not the header of AMQP": lambda: closed_after(server.amqp_address, b"GET / HTTP/1.1\r\n\r\n"),
        }
        for words, ask_for_it in refused.items():
            ask_for_it()
            eventually(lambda words=words: told(server, words), show=lambda: server.lines)  # type: ignore[misc]
        for ask_for_it in refused.values():
            for _ in range(TRIES):
                ask_for_it()
    for words in refused:
        clients = [line["clients"] for line in told(server, words)]
        assert sum(found["127.0.0.1"] for found in clients) == 1 + TRIES, words


def test_connections_that_are_refused_are_told_with_their_number_in_few_lines() -> None:
    with ServerProcess(None, "--connections-max", "3", "--log-format", "json") as server:
        for _ in range(TRIES):
            closed_after(server.address, b"\x16\x03\x01\x02\x00 this is TLS\r\n\r\n")
            closed_after(server.amqp_address, b"GET / HTTP/1.1\r\n\r\n")
            with Raw(server.amqp_address) as raw:
                raw.send(HELLO, start_ok(response=b"\0guest\0wrong")).ending()
        with Caller(server.address) as http:
            assert http.send("GET", "/?Action=CreateQueue&QueueName=x").status == 403
        with contextlib.ExitStack() as stack:
            for address in (server.address, server.amqp_address):
                for _ in range(3):
                    stack.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
                closed_after(address)
        reasons = {
            "http": "not HTTP/1.1",
            "amqp": "not the header of AMQP",
            "amqp login": "logins are refused: user 'guest', the password is not right",
            "sqs": "requests are refused: MissingAuthenticationToken",
            "limit": "which is the limit",
        }
        for words in reasons.values():
            eventually(lambda words=words: told(server, words), show=lambda: server.lines)  # type: ignore[misc]
        eventually(lambda: {line["protocol"] for line in told(server, "which is the limit")} == {"http", "amqp"})
    for words in ("not HTTP/1.1", "not the header of AMQP", "logins are refused"):
        lines = told(server, words)
        assert len(lines) < TRIES / 2
        assert {line["level"] for line in lines} == {"warning"}
        assert all(line["clients"] == {"127.0.0.1": line["count"]} for line in lines)
    assert all("wrong" not in line for line in server.lines)


def test_names_that_a_client_makes_up_do_not_hide_why_others_are_refused() -> None:
    with ServerProcess(None, "--log-format", "json") as server:
        for number in range(TRIES):
            with Raw(server.amqp_address) as raw:
                raw.send(HELLO, start_ok(response=b"\0somebody%d\0secret" % number)).ending()
        closed_after(server.amqp_address, b"GET / HTTP/1.1\r\n\r\n")
        eventually(lambda: told(server, "user 'somebody7', there is no such user; only guest is known"))
        eventually(lambda: told(server, "logins are refused: for many more reasons"))
        eventually(lambda: told(server, "not the header of AMQP"), show=lambda: server.lines)
    assert all("secret" not in line for line in server.lines)
