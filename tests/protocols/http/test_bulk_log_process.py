"""The process that reads the log: it comes and goes with the broker, and its readers are nobody else's concern."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tests.protocols.http.bulk import (
    is_alive,
    log_range,
    open_log,
    plan,
    read_rows,
    read_table,
    reader_pid,
    wait_for_end,
    without_pyarrow,
)
from tests.protocols.http.caller import Caller, tracebacks
from tests.served import Served
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S, eventually, with_more_time

pytestmark = pytest.mark.slow

ROWS = 40_000
BODY_BYTES = 1_000
LARGE_BYTES = ROWS * BODY_BYTES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with filled(tmp_path_factory.mktemp("bulk") / "data") as server:
        yield server


@contextmanager
def filled(data: Path, *, timeout_s: float = PATIENCE_S) -> Iterator[ServerProcess]:
    """A server with a log far larger than what sockets and buffers take in."""
    with ServerProcess(data, "--bulk-timeout-s", str(timeout_s)) as server:
        fill(server)
        yield server
        assert tracebacks(server) == ""


def fill(server: Served) -> None:
    with Caller(server.address, "msgpack") as http:
        http.call("queue.declare", queue="large")
        for _ in range(ROWS // 1_000):
            http.call("queue.publish_batch", queue="large", bodies=[b"x" * BODY_BYTES] * 1_000, brief=True)


@pytest.fixture
def http_(server: Served) -> Iterator[Caller]:
    with Caller(server.address) as caller:
        yield caller


@pytest.fixture
def small(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of the test's own, with one message in it."""
    with ServerProcess(tmp_path / "data") as server:
        with Caller(server.address) as http:
            http.call("queue.declare", queue="orders")
            http.publish("orders", 1)
        yield server


def metric(http: Caller, name: str) -> float:
    page = http.send("GET", "/metrics").body.decode()
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(name + " "))


# -- its life ---------------------------------------------------------------------------------------------------------


def test_it_is_started_by_the_first_who_reads_and_ends_with_the_broker(small: ServerProcess) -> None:
    with Caller(small.address) as http:
        log_range(http)
        assert metric(http, "smista_bulk_starts_total") == 0
        read_rows(small.address)
        plan(http)
        assert metric(http, "smista_bulk_starts_total") == 1
    pid = reader_pid(small)
    assert is_alive(pid)
    assert small.stop() == 0
    assert not is_alive(pid)
    assert not Path(f"{small.data}/log.db-wal").exists()


def test_it_ends_when_the_broker_is_killed(small: ServerProcess) -> None:
    read_rows(small.address)
    pid = reader_pid(small)
    small.kill()
    wait_for_end(pid)


def test_it_ends_when_the_broker_is_killed_under_a_reader(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        fill(server)
        with open_log(server.address, bodies="true") as answer:
            answer.read(1000)
            pid = reader_pid(server)
            server.kill()
            wait_for_end(pid)
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                answer.read()
        server.restart()
        assert len(read_table(server.address, columns="sequence")) == ROWS


def test_a_stop_does_not_wait_for_readers(tmp_path: Path) -> None:
    # If it waited, it would do so for longer than anybody waits for its end.
    patient = ("--drain-timeout-s", str(10 * PATIENCE_S), "--bulk-timeout-s", str(10 * PATIENCE_S))
    with ServerProcess(tmp_path / "data", *patient) as server:
        fill(server)
        with open_log(server.address, bodies="true") as answer:
            answer.read(1000)
            assert server.stop() == 0


@pytest.mark.parametrize("path", ["/v1/log", "/v1/log/plan"])
def test_another_is_started_when_it_was_killed(small: ServerProcess, path: str) -> None:
    with Caller(small.address) as http:
        for number in range(1, 4):
            assert http.send("GET", path).status == 200
            assert metric(http, "smista_bulk_starts_total") == number
            pid = reader_pid(small)
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)
    eventually(lambda: "has ended" in "\n".join(small.lines))


def test_killing_it_again_and_again_costs_readers_no_more_than_another_try(server: ServerProcess) -> None:
    has_ended = threading.Event()

    def kill() -> None:
        while not has_ended.wait(0.3):
            if is_alive(pid := reader_pid(server)):
                os.kill(pid, signal.SIGKILL)

    read_table(server.address, columns="sequence")
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        whole = broken = refused = 0
        while whole < 3:
            try:
                with open_log(server.address, columns="sequence") as answer:
                    if answer.status == 200:
                        assert len(pa.ipc.open_stream(answer).read_all()) == ROWS
                        whole += 1
                    else:
                        assert answer.status == 503
                        refused += 1
            except (http.client.HTTPException, ConnectionError, pa.ArrowInvalid, OSError):
                broken += 1
            if broken + refused > 10:
                has_ended.set()
    finally:
        has_ended.set()
        killer.join()
    assert read_table(server.address, columns="sequence").num_rows == ROWS


def test_a_reader_whose_process_is_killed_knows_that_its_answer_is_not_whole(server: ServerProcess) -> None:
    with open_log(server.address, bodies="true") as answer:
        answer.read(1000)
        os.kill(reader_pid(server), signal.SIGKILL)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    variables = without_pyarrow(hidden)
    with ServerProcess(tmp_path / "data", variables=variables) as server, Caller(server.address) as http:
        for asked in ("/v1/log", "/v1/log/plan"):
            refusal = http.send("GET", asked).refusal
            assert (refusal.status, refusal.code) == (501, "arrow_missing")
            assert "pip install 'smista[spark]'" in refusal.message
        assert log_range(http)["first"] == 1


# -- its readers ------------------------------------------------------------------------------------------------------


def test_several_read_at_once(server: Served) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: len(read_table(server.address, columns="position,sequence")), range(16))
    assert list(found) == [ROWS] * 16


def test_a_reader_that_takes_nothing_is_cut_off_and_holds_nobody_up(tmp_path: Path) -> None:
    for attempt in with_more_time(3, 15, 60):
        with (
            attempt as timeout_s,
            filled(tmp_path / str(timeout_s), timeout_s=timeout_s) as server,
            Caller(server.address) as http_,
        ):
            hold_nobody_up(server, http_)
            assert "took nothing for too long" in "\n".join(server.lines)


def hold_nobody_up(server: ServerProcess, http_: Caller) -> None:
    """Read a little, and then nothing until one is cut off."""
    with open_log(server.address, bodies="true") as answer:
        answer.read(1000)
        # It holds no transaction: what is written meanwhile can be moved out of the write-ahead log.
        for _ in range(20):
            http_.call("queue.publish_batch", queue=http_.new_queue(), messages=[{"message": "x" * 1000}] * 1_000)
        assert len(read_table(server.address, columns="sequence", queue="large")) == ROWS
        assert Path(f"{server.data}/log.db-wal").stat().st_size < 32 << 20
        eventually(lambda: metric(http_, "smista_bulk_readers") < 2)  # the one that has read all has been counted off
        assert metric(http_, "smista_bulk_readers") == 1, "it was cut off before all this was done"
        eventually(lambda: metric(http_, "smista_bulk_readers") == 0)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()


def test_a_slow_reader_gets_everything(tmp_path: Path) -> None:
    for attempt in with_more_time(3, 15, 60, errors=(AssertionError, http.client.IncompleteRead, ConnectionError)):
        with attempt as timeout_s, filled(tmp_path / str(timeout_s), timeout_s=timeout_s) as server:
            assert len(pa.ipc.open_stream(read_slowly(server, timeout_s)).read_all()) == ROWS


def read_slowly(server: Served, timeout_s: float) -> bytes:
    """With ten pauses in the time after which somebody who reads nothing is cut off, for longer than that."""
    with open_log(server.address, bodies="true", queue="large") as answer:
        begun_s, taken = time.monotonic(), []
        while piece := answer.read(2_000_000):
            taken.append(piece)
            time.sleep(timeout_s / 10)
        assert time.monotonic() - begun_s > timeout_s
    return b"".join(taken)


def test_a_reader_that_vanishes_is_forgotten(server: Served, http_: Caller) -> None:
    for _ in range(5):
        answer = open_log(server.address, bodies="true")
        answer.read(1000)
        answer.close()
    eventually(lambda: metric(http_, "smista_bulk_readers") == 0)


def test_too_many_readers_are_refused(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, Caller(server.address) as http, ExitStack() as readers:
        fill(server)
        for _ in range(64):
            answer = readers.enter_context(open_log(server.address, bodies="true"))
            assert answer.status == 200
        refused = http.send("GET", "/v1/log")
        assert (refused.refusal.status, refused.refusal.code) == (429, "too_many_readers")
        assert refused.headers["retry-after"] == "1"
        readers.close()
        eventually(lambda: metric(http, "smista_bulk_readers") == 0)
        assert http.send("GET", "/v1/log?from=1&to=2").status == 200


def test_rows_and_bytes_are_counted(small: Served) -> None:
    with Caller(small.address) as http:
        body = http.send("GET", "/v1/log").body
        eventually(lambda: metric(http, "smista_bulk_rows_total") == 1)
        assert metric(http, "smista_bulk_bytes_total") == len(body)


# -- the wire ---------------------------------------------------------------------------------------------------------


def exchange(address: tuple[str, int], request: bytes) -> bytes:
    """Everything that is answered to these bytes until the server closes."""
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    return answer


def test_http_1_0_gets_its_answer_without_chunks(small: Served) -> None:
    answer = exchange(small.address, b"GET /v1/log HTTP/1.0\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert len(pa.ipc.open_stream(body).read_all()) == 1


def test_an_answer_before_it_on_the_same_connection_arrives(small: Served) -> None:
    head = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = exchange(small.address, b"GET /openapi.json" + head + b"GET /healthz" + head + b"GET /v1/log" + head)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.endswith(b"\r\n0\r\n\r\n")


def test_what_is_sent_behind_the_request_is_not_answered_and_the_answer_says_so(small: Served) -> None:
    head = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = exchange(small.address, b"GET /v1/log" + head + b"GET /healthz" + head)
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close" in answer
    assert answer.endswith(b"\r\n0\r\n\r\n")


def test_a_client_that_hangs_up_at_once_harms_nobody(small: Served) -> None:
    for _ in range(50):
        with socket.create_connection(small.address) as connection:
            connection.sendall(b"GET /v1/log HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with Caller(small.address) as http:
        eventually(lambda: metric(http, "smista_bulk_readers") == 0)
    assert len(read_rows(small.address)) == 1
    assert tracebacks(small) == ""


def test_connections_are_not_leaked(small: ServerProcess) -> None:
    def open_count() -> int:
        return len(os.listdir(f"/proc/{small.pid}/fd")) + len(os.listdir(f"/proc/{reader_pid(small)}/fd"))

    read_rows(small.address)
    time.sleep(0.2)
    before = open_count()
    for _ in range(50):
        read_rows(small.address)
    eventually(lambda: open_count() <= before)


# -- the broker beside it ---------------------------------------------------------------------------------------------


def bytes_through(pid: int) -> int:
    """What a process has read and written, sockets included."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_no_row_passes_through_the_broker(server: ServerProcess) -> None:
    read_table(server.address, columns="sequence")
    time.sleep(0.5)
    before, used_s = bytes_through(server.pid), cpu_s(server.pid)
    for _ in range(3):
        assert read_table(server.address, bodies="true", queue="large").nbytes > LARGE_BYTES
    assert bytes_through(server.pid) - before < LARGE_BYTES / 100
    assert cpu_s(server.pid) - used_s < 0.5


def test_a_reader_at_full_speed_leaves_the_event_loop_alone(server: Served, http_: Caller) -> None:
    queue = http_.new_queue()
    beside: list[int] = []
    has_ended = threading.Event()

    def read_on() -> None:
        while not has_ended.is_set():
            before = len(published)
            read_table(server.address, bodies="true")
            beside.append(len(published) - before)

    published: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_on)
        # On the loop, one pass over this log would hold everybody up for as long as it takes.
        while not (has_ended.is_set() or reading.done()):
            published += http_.publish(queue, "x")
            if max(beside, default=0) >= 20:
                has_ended.set()
        reading.result()
