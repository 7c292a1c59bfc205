"""The server as a process: how it starts, what it says while it recovers, how it stops, and what it finds again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.faults.damage import flip_bit
from tests.protocols.http.caller import Caller, tracebacks
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow

COMMAND_HEAD = b"POST /v1/command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with its data on disk."""
    with ServerProcess(tmp_path / "data") as server:
        yield server


@pytest.fixture
def restarted(server: ServerProcess, tmp_path: Path) -> Iterator[Callable[[], Caller]]:
    """Starts another server on the data of one that has ended."""
    with contextlib.ExitStack() as stack:

        def restart() -> Caller:
            server.wait()
            another = stack.enter_context(ServerProcess(tmp_path / "data"))
            return stack.enter_context(Caller(another.address))

        yield restart


def says(server: ServerProcess, words: str) -> Callable[[], bool]:
    return lambda: any(words in line for line in server.lines)


def stream_to(server: ServerProcess) -> ClientConnection:
    host, port = server.address
    return connect(f"ws://{host}:{port}/v1/stream", proxy=None, open_timeout=PATIENCE_S)


def ask(stream: ClientConnection, command: str, **payload: Any) -> Any:
    stream.send(json.dumps({"id": 1, "command": command, "payload": payload}))
    return json.loads(stream.recv(PATIENCE_S))


class Run:
    """`smista serve`, not waited for."""

    def __init__(self, *flags: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SMISTA_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "smista", "serve", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**clean, **(environment or {})},
            cwd=cwd,
        )

    def end(self) -> tuple[int, str]:
        """Its exit code and what it wrote."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said


def serve(*flags: str, **environment: str) -> tuple[int, str]:
    return Run(*flags, environment=environment).end()


# -- starting ---------------------------------------------------------------------------------------------------------


def test_it_says_where_it_listens_and_serves_there_at_once() -> None:
    with ServerProcess() as server, Caller(server.address) as http:
        [line] = [line for line in server.lines if line.startswith("http")]
        assert line == f"http listening on http://127.0.0.1:{server.port}"
        assert (http.send("GET", "/readyz").status, http.send("GET", "/readyz").body) == (200, b"ready\n")
        assert (http.send("GET", "/healthz").status, http.send("GET", "/healthz").body) == (200, b"ok\n")
        assert http.call("broker.info")["queues"] == 0


def test_beyond_loopback_its_first_line_and_its_log_warn_that_it_asks_for_no_password() -> None:
    warning = "without authentication: whoever reaches this address can read and change everything"
    with ServerProcess(None, "--host", "0.0.0.0", "--sqs-access-keys", "key:secret") as server:
        [line] = [line for line in server.lines if line.startswith("http")]
        assert line == f"http listening on http://0.0.0.0:{server.port} - {warning}"
        [logged] = [line for line in server.lines if "WARNING" in line]
        assert f"smista.server {warning} host=0.0.0.0" in logged
    with ServerProcess() as server:
        assert not [line for line in server.lines if "without authentication" in line]


def test_it_listens_where_it_is_told(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with ServerProcess(None, "--host", "::1") as server:
        assert server.url == f"http://[::1]:{server.port}"
        with Caller(("::1", server.port)) as http:
            assert http.send("GET", "/healthz").status == 200


@pytest.mark.parametrize("protocol", ["http", "amqp"])
def test_a_port_that_is_taken_ends_it_with_2_and_a_sentence(tmp_path: Path, protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ports = {"http": "0", "amqp": "0", protocol: str(port)}
        flags = ("--http-port", ports["http"], "--amqp-port", ports["amqp"])
        code, said = serve("--data", str(tmp_path / "data"), *flags)
    assert code == 2
    assert f"Cannot listen on 127.0.0.1, port {port}" in said
    assert f"--{protocol}-port" in said
    assert "Traceback" not in said
    assert not (tmp_path / "data").exists()


def test_an_address_of_another_machine_ends_it_with_2(tmp_path: Path) -> None:
    code, said = serve("--memory", "--http-port", "0", "--amqp-port", "0", "--host", "192.0.2.1")
    assert code == 2
    assert "Cannot listen on 192.0.2.1" in said
    assert "Traceback" not in said


def test_data_that_another_server_has_open_end_it_with_2(server: ServerProcess, tmp_path: Path) -> None:
    code, said = serve("--data", str(tmp_path / "data"), "--http-port", "0", "--amqp-port", "0")
    assert code == 2
    assert str(server.pid) in said
    assert str(tmp_path / "data") in said
    assert "Traceback" not in said
    with Caller(server.address) as http:
        assert http.send("GET", "/readyz").status == 200


def test_a_directory_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    code, said = serve("--data", str(tmp_path), "--http-port", "0", "--amqp-port", "0")
    assert code == 2
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_flags_win_over_variables_and_those_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "smista.toml").write_text(
        'memory = true\nhttp_port = 0\namqp_port = 0\nlog_format = "json"\n'
        "request_bytes_max = 2000\nheader_bytes_max = 3000\nconnections_max = 4\n"
    )
    run = Run(
        "--connections-max",
        "2",
        cwd=tmp_path,
        environment={
            "SMISTA_CONFIG": "smista.toml",
            "SMISTA_HEADER_BYTES_MAX": "1000",
            "SMISTA_CONNECTIONS_MAX": "3",
        },
    )
    assert run.process.stdout is not None
    said = json.loads(next(line for line in run.process.stdout if "http listening on" in line))
    address = ("127.0.0.1", int(said["url"].rpartition(":")[2]))
    with Caller(address) as http:
        refusal = http.send("POST", "/v1/command", content_length="2001", content_type="application/json").refusal
        assert (refusal.status, "over 2000 bytes" in refusal.message) == (413, True)
        http.close()
        refusal = http.send("GET", "/healthz", x_long="x" * 1000).refusal
        assert (refusal.status, "over 1000 bytes" in refusal.message) == (431, True)
        http.close()
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                assert stack.enter_context(http.another()).send("GET", "/healthz").status == 200
            refusal = stack.enter_context(http.another()).send("GET", "/healthz").refusal
            assert (refusal.status, refusal.message.split()[0]) == (503, "2")
    run.process.send_signal(signal.SIGTERM)
    code, said = run.end()
    assert code == 0
    # The file said that logs are JSON.
    assert json.loads(said.splitlines()[-1])["message"] == "stopped"


# -- recovering -------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def filled(server: ServerProcess, batches: int) -> str:
    """A queue with so many times 10,000 messages."""
    with Caller(server.address, "msgpack") as http:
        queue = http.new_queue()
        for _ in range(batches):
            http.call("queue.publish_batch", queue=queue, bodies=[b"x" * 20] * 10_000, brief=True)
    return queue


@pytest.mark.slow
def test_while_it_recovers_it_is_alive_not_ready_and_asks_for_patience(server: ServerProcess, tmp_path: Path) -> None:
    queue = filled(server, batches=30)
    server.kill()
    port = free_port()
    run = Run("--data", str(tmp_path / "data"), "--http-port", str(port), "--amqp-port", "0")
    http = Caller(("127.0.0.1", port))
    answered: set[tuple[int, bytes]] = set()
    alive, refused = set(), set()
    while True:
        try:
            ready = http.send("GET", "/readyz")
        except ConnectionRefusedError:
            http.close()
            continue
        answered.add((ready.status, ready.body))
        alive.add(http.send("GET", "/healthz").status)
        if ready.status == 200:
            break
        answer = http.post("queue.stats", {"queue": queue})
        if answer.status != 200:
            refused.add((answer.status, answer.refusal.code, answer.headers["retry-after"]))
    assert answered == {(503, b"not ready: recovering\n"), (200, b"ready\n")}
    assert alive == {200}
    assert refused == {(503, "broker_closed", "1")}
    assert http.stats(queue)["ready"] == 300_000
    http.close()
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 0


@pytest.mark.slow
def test_it_can_be_stopped_while_it_recovers(server: ServerProcess, tmp_path: Path) -> None:
    filled(server, batches=20)
    server.kill()
    port = free_port()
    run = Run("--data", str(tmp_path / "data"), "--http-port", str(port), "--amqp-port", "0")
    while True:
        with contextlib.suppress(ConnectionRefusedError), Caller(("127.0.0.1", port)) as http:
            assert http.send("GET", "/healthz").status == 200
            break
    run.process.send_signal(signal.SIGTERM)
    code, said = run.end()
    assert code == 0
    assert "Traceback" not in said


# -- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order(number: signal.Signals) -> None:
    with ServerProcess() as server:
        server.signal(number)
        assert server.wait() == 0
        eventually(says(server, "smista.server stopped"))
        assert tracebacks(server) == ""


def test_a_long_poll_is_told_that_the_server_stops(server: ServerProcess) -> None:
    with Caller(server.address) as http, http.another() as waiting:
        queue = http.new_queue()
        waiting.start_command("queue.receive", {"queue": queue, "wait_ms": 20_000})
        eventually(lambda: b"smista_long_polls 1" in http.send("GET", "/metrics").body)
        server.signal(signal.SIGTERM)
        answer = waiting.answer()
        assert answer.refusal[:2] == (503, "broker_closed")
        assert answer.headers["retry-after"] == "1"
    assert server.wait() == 0


def test_a_request_under_way_is_finished_and_what_it_published_is_kept(
    server: ServerProcess, restarted: Callable[[], Caller]
) -> None:
    with Caller(server.address) as http:
        queue = http.new_queue()
    body = json.dumps({"command": "queue.publish", "payload": {"queue": queue, "message": "last"}}).encode()
    with socket.create_connection(server.address, timeout=PATIENCE_S) as connection:
        head = (
            "POST /v1/command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        connection.sendall(head + body[:10])
        # Its head has been read when a request behind it on another connection is answered.
        with Caller(server.address) as http:
            http.send("GET", "/healthz")
        server.signal(signal.SIGTERM)
        eventually(says(server, "stopping: no new connections"))
        connection.sendall(body[10:])
        with connection.makefile("rb") as file:
            answer = file.read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert server.wait() == 0
    http = restarted()
    assert [message["message"] for message in http.receive(queue)] == ["last"]


def test_everything_confirmed_while_it_was_told_to_stop_is_found_again(
    server: ServerProcess, restarted: Callable[[], Caller]
) -> None:
    with Caller(server.address) as http:
        queue = http.new_queue()
    confirmed: list[str] = []

    def publish() -> None:
        with Caller(server.address) as publisher, contextlib.suppress(OSError, AssertionError):
            while True:
                confirmed.extend(publisher.publish(queue, "x"))

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(confirmed) > 100)
    assert server.stop() == 0
    for thread in threads:
        thread.join()
    http = restarted()
    kept = {message["message_id"] for message in http.call("queue.browse", queue=queue, limit=10_000)["messages"]}
    assert set(confirmed) <= kept


def test_what_a_stream_held_is_back_after_a_restart(server: ServerProcess, restarted: Callable[[], Caller]) -> None:
    with Caller(server.address) as http, stream_to(server) as stream:
        queue = http.new_queue(max_retries=0)
        http.publish(queue, 1, 2)
        ask(stream, "subscribe", queue=queue)
        tags: list[int] = []
        while len(tags) < 2:
            tags += [message["tag"] for message in json.loads(stream.recv(PATIENCE_S))["messages"]]
        assert http.stats(queue)["in_flight"] == 2
        server.signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            stream.recv(PATIENCE_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
    assert server.wait() == 0
    http = restarted()
    # Not as failures: of those it may have none.
    assert [message["message"] for message in http.receive(queue, 2)] == [1, 2]


def test_new_connections_are_not_taken_while_it_stops(server: ServerProcess) -> None:
    with socket.create_connection(server.address, timeout=PATIENCE_S) as slow:
        slow.sendall(COMMAND_HEAD + b"Content-Length: 10\r\n\r\n{")
        with Caller(server.address) as http:
            http.send("GET", "/healthz")
        server.signal(signal.SIGTERM)
        eventually(says(server, "stopping: no new connections"))

        def is_refused() -> bool:
            try:
                socket.create_connection(server.address, timeout=PATIENCE_S).close()
            except ConnectionRefusedError:
                return True
            return False

        eventually(is_refused)
    assert server.wait() == 0


def test_a_second_signal_stops_it_at_once(server: ServerProcess, restarted: Callable[[], Caller]) -> None:
    with Caller(server.address) as http:
        queue = http.new_queue()
        http.publish(queue, "confirmed")
    with socket.create_connection(server.address, timeout=PATIENCE_S) as slow:
        slow.sendall(COMMAND_HEAD + b"Content-Length: 10000000\r\n\r\n{")
        with Caller(server.address) as http:
            http.send("GET", "/healthz")
        server.signal(signal.SIGTERM)
        eventually(says(server, "stopping: no new connections"))

        def has_ended() -> bool:
            server.signal(signal.SIGTERM)
            # Its body grows, so that it is not cut off before.
            slow.sendall(b"x" * 1024)
            return server.has_ended

        with contextlib.suppress(ConnectionError):
            eventually(has_ended)
        assert server.wait() == 128 + signal.SIGTERM
    http = restarted()
    assert [message["message"] for message in http.receive(queue)] == ["confirmed"]


def test_a_signal_that_comes_twice_at_once_is_one(server: ServerProcess) -> None:
    """As from `timeout`, which signals a process and then its group."""
    server.signal(signal.SIGSTOP)
    server.signal(signal.SIGTERM)
    server.signal(signal.SIGINT)
    server.signal(signal.SIGCONT)
    assert server.wait() == 0
    eventually(says(server, "smista.server stopped"))


def test_a_request_that_takes_too_long_does_not_hold_it_up_for_ever(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", "--drain-timeout-s", "0.1") as server,
        socket.create_connection(server.address, timeout=PATIENCE_S) as slow,
    ):
        slow.sendall(COMMAND_HEAD + b"Content-Length: 10\r\n\r\n{")
        with Caller(server.address) as http:
            http.send("GET", "/healthz")
        assert server.stop() == 0
        with slow.makefile("rb") as file:
            assert file.read().startswith(b"HTTP/1.1 503 ")
    assert tracebacks(server) == ""


def test_a_request_that_is_never_complete_does_not_hold_it_up(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", "--drain-timeout-s", "600", "--body-timeout-s", "600") as server,
        socket.create_connection(server.address, timeout=PATIENCE_S) as slow,
    ):
        slow.sendall(COMMAND_HEAD + b"Content-Length: 1000\r\n\r\n{")
        with Caller(server.address) as http:
            http.send("GET", "/healthz")
        server.signal(signal.SIGTERM)
        with slow.makefile("rb") as file:
            answer = file.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"broker_closed"' in answer
        assert server.wait() == 0
    assert tracebacks(server) == ""
    assert not says(server, "cutting off")()


@pytest.mark.parametrize("messages", [1, 20], ids=["all written", "more to write"])
def test_a_reader_of_an_answer_that_stands_still_does_not_hold_it_up(tmp_path: Path, messages: int) -> None:
    patience = ("--drain-timeout-s", "600", "--body-timeout-s", "600", "--keep-alive-s", "600")
    with (
        ServerProcess(tmp_path / "data", *patience) as server,
        Caller(server.address) as http,
        socket.socket() as stalled,
    ):
        queue = http.new_queue()
        for _ in range(messages):
            http.publish(queue, "x" * 900_000)
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.settimeout(PATIENCE_S)
        stalled.connect(server.address)
        body = json.dumps({"command": "queue.browse", "payload": {"queue": queue}}).encode()
        stalled.sendall(COMMAND_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert stalled.recv(12) == b"HTTP/1.1 200"
        assert server.stop() == 0
    assert tracebacks(server) == ""
    assert not says(server, "cutting off")()


def test_a_reader_that_stands_still_does_not_hold_it_up(tmp_path: Path) -> None:
    patience = ("--drain-timeout-s", "600", "--body-timeout-s", "600", "--websocket-ping-s", "0")
    with (
        ServerProcess(tmp_path / "data", *patience) as server,
        Caller(server.address) as http,
        socket.create_connection(server.address, timeout=PATIENCE_S) as stalled,
    ):
        queue = http.new_queue()
        for _ in range(20):
            http.publish(queue, "x" * 900_000)
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.sendall(
            b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert stalled.recv(12) == b"HTTP/1.1 101"
        request = json.dumps({"command": "subscribe", "payload": {"queue": queue, "prefetch": 20}}).encode()
        stalled.sendall(bytes((0x81, 0x80 | len(request), 0, 0, 0, 0)) + request)
        eventually(lambda: http.stats(queue)["in_flight"] > 1)
        assert server.stop() == 0


# -- stopping on a disk with faults -----------------------------------------------------------------------------------


class FaultyServer(ServerProcess):
    """Its log goes wrong while there is a file of that name, see `faulty.py`."""

    module = "tests.server.faulty"

    def __init__(self, data: Path, *flags: str) -> None:
        super().__init__(data, *flags, variables={"SMISTA_FAULTS_IN": str(data.parent)})

    def fault(self, name: str) -> Path:
        path = self.data.parent / name
        path.touch()
        return path


def is_waiting(http: Caller) -> bool:
    """Whether something waits for the disk."""
    [line] = [one for one in http.send("GET", "/metrics").body.splitlines() if one.startswith(b"smista_log_waiting_by")]
    return float(line.split()[1]) > 0


def test_a_log_that_cannot_be_closed_is_told_and_ends_it_with_1(tmp_path: Path) -> None:
    with FaultyServer(tmp_path / "data") as server:
        server.fault("broken")
        assert server.stop() == 1
    assert says(server, "closing the log failed: the log in there failed")()
    assert not says(server, "cannot start")()
    assert not says(server, "smista.server stopped")()
    assert tracebacks(server) == ""


def test_who_waits_for_room_on_a_full_disk_is_told_that_the_outcome_is_unknown(tmp_path: Path) -> None:
    with (
        FaultyServer(tmp_path / "data", "--drain-timeout-s", "600") as server,
        Caller(server.address) as http,
        http.another() as waiting,
        stream_to(server) as stream,
    ):
        server.fault("full")
        waiting.start_command("queue.declare", {"queue": "orders"})
        stream.send(json.dumps({"id": 1, "command": "queue.declare", "payload": {"queue": "others"}}))
        eventually(lambda: is_waiting(http) and http.call("broker.info")["queues"] == 2)
        server.signal(signal.SIGTERM)
        assert waiting.answer().refusal[:2] == (503, "outcome_unknown")
        assert json.loads(stream.recv(PATIENCE_S))["error"]["code"] == "outcome_unknown"
        assert server.wait() == 1
    assert says(server, "bytes that were not confirmed could not be written: the disk that holds the log")()
    assert not says(server, "smista.server stopped\n")()
    assert tracebacks(server) == ""


def test_who_waits_for_longer_than_a_stop_may_take_is_told_that_the_outcome_is_unknown(tmp_path: Path) -> None:
    with (
        FaultyServer(tmp_path / "data", "--drain-timeout-s", "0.1") as server,
        Caller(server.address) as http,
        http.another() as waiting,
    ):
        slow = server.fault("slow")
        waiting.start_command("queue.declare", {"queue": "orders"})
        eventually(lambda: is_waiting(http))
        server.signal(signal.SIGTERM)
        assert waiting.answer().refusal[:2] == (503, "outcome_unknown")
        eventually(says(server, "cutting off what has not finished"))
        slow.unlink()
        assert server.wait() == 0
    assert tracebacks(server) == ""
    with ServerProcess(tmp_path / "data") as again, Caller(again.address) as http:
        assert http.call("broker.info")["queues"] == 1
        [line] = [line for line in again.lines if "recovered" in line]
        assert " queues=1 messages=0 damaged_blocks=0 took_ms=" in line


# -- what it finds again ----------------------------------------------------------------------------------------------


def everything(http: Caller) -> dict[str, Any]:
    """All that a restart has to keep."""
    queues = http.call("queue.list", details=True)["queues"]
    passing = ("oldest_age_ms", "oldest_message_age_secs", "rejected_total", "duplicates_total")
    return {
        "queues": [{name: value for name, value in one.items() if name not in passing} for one in queues],
        "settings": [http.call("queue.settings", queue=one["queue"]) for one in queues],
        "messages": [http.call("queue.browse", queue=one["queue"])["messages"] for one in queues],
        "exchanges": http.call("exchange.list"),
        "bindings": http.call("exchange.bindings"),
    }


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_keeps_everything(server: ServerProcess, restarted: Callable[[], Caller], how: str) -> None:
    with Caller(server.address) as http:
        http.call("queue.create", queue="tasks", config={"default_priority": 3})
        http.call("queue.declare", queue="paused", settings={"ordered": True, "retention_ms": None})
        http.call("queue.pause", queue="paused")
        http.call("exchange.declare", exchange="topics", kind="topic", alternate="amq.fanout")
        http.call("exchange.bind", exchange="topics", queue="tasks", key="a.#", arguments={"n": 1})
        http.call("queue.publish", queue="tasks", message={"a": 1}, headers={"k": [1]}, deduplication_id="d", ttl=3_600)
        http.call("queue.publish", queue="tasks", body="/w==", content_type="x/y", group="g", max_retries=7)
        http.call("queue.publish", queue="tasks", message="later", delay_ms=3_600_000)
        http.call("queue.publish", queue="paused", message="waits", correlation_id="c")
        first, second = http.receive("tasks", 2, lease_ms=3_600_000)
        http.call("queue.nack", receipt=second["receipt"], requeue=False, error="broken")
        before = everything(http)
    if how == "stop":
        assert server.stop() == 0
    else:
        server.kill()
    http = restarted()
    assert everything(http) == before
    # A lease goes on and its receipt still works; what was published once is not published twice.
    assert http.call("queue.ack", receipt=first["receipt"]) == {"success": True}
    again = http.call("queue.publish", queue="tasks", message={"a": 1}, deduplication_id="d")
    assert (again["message_id"], again["duplicate"]) == (first["message_id"], True)
    assert [one["message_id"] for one in http.call("dlq.list", queue="tasks")["messages"]] == [second["message_id"]]


def test_memory_keeps_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        with ServerProcess() as server, Caller(server.address) as http:
            assert http.call("queue.list")["queues"] == []
            http.new_queue()
            assert server.stop() == 0


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A log in which one message is not what it was."""
    with ServerProcess(tmp_path / "data") as server, Caller(server.address) as http:
        http.call("queue.declare", queue="orders")
        http.publish("orders", "good", "DAMAGED" * 100, "also good")
        assert server.stop() == 0
    path = tmp_path / "data" / "log.db"
    flip_bit(path, path.read_bytes().index(b"DAMAGED" * 50))
    return tmp_path / "data"


def test_a_damaged_log_is_refused(damaged: Path) -> None:
    before = (damaged / "log.db").read_bytes()
    code, said = serve("--data", str(damaged), "--http-port", "0", "--amqp-port", "0")
    assert code == 2
    assert "damage" in said.lower()
    assert str(damaged) in said
    assert "Traceback" not in said
    assert (damaged / "log.db").read_bytes() == before


def test_what_can_be_read_of_a_damaged_log_is_served_on_request(damaged: Path) -> None:
    with ServerProcess(damaged, "--on-damage", "serve") as server, Caller(server.address) as http:
        assert any("damage in the log" in line for line in server.lines)
        messages = [message.get("message") for message in http.call("queue.browse", queue="orders")["messages"]]
        assert "DAMAGED" * 100 not in messages
        assert set(messages) & {"good", "also good"}
        assert http.call("queue.publish", queue="orders", message="new")
        assert server.stop() == 0
    assert tracebacks(server) == ""
