"""The HTTP server's own limits, through real sockets, on both kinds of loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

import pytest

from smista.protocols.stalled import PROGRESS_BYTES_PER_S
from smista.server.http.connection import HttpConnection
from smista.server.http.requests import RequestReader
from smista.server.settings import ServerSettings
from tests.server.http.served import LOOP_FACTORIES, LoopFactory, Served
from tests.waiting import PATIENCE_S, eventually

HEADER_BYTES_MAX = 4_000
REQUEST_BYTES_MAX = 300_000
DEADLINE_S = 60.0
"""Passes only when a test lets it."""


@pytest.fixture(scope="module", params=LOOP_FACTORIES, ids=["uvloop", "asyncio"])
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    factory: LoopFactory = request.param
    return factory


@pytest.fixture(scope="module")
def patient_server(loop_factory: LoopFactory) -> Iterator[Served]:
    """Small sizes, long deadlines."""
    settings = ServerSettings(header_bytes_max=HEADER_BYTES_MAX, request_bytes_max=REQUEST_BYTES_MAX)
    with Served(settings).serving(loop_factory) as served:
        yield served


@pytest.fixture(scope="module")
def hasty_server(loop_factory: LoopFactory) -> Iterator[Served]:
    """Deadlines that a test lets pass, large sizes."""
    settings = ServerSettings(header_timeout_s=DEADLINE_S, body_timeout_s=DEADLINE_S, keep_alive_s=DEADLINE_S)
    with Served(settings).serving(loop_factory) as served:
        yield served


@pytest.fixture
def patient(patient_server: Served) -> Iterator[Served]:
    yield from fresh(patient_server)


@pytest.fixture
def hasty(hasty_server: Served) -> Iterator[Served]:
    yield from fresh(hasty_server)


def fresh(served: Served) -> Iterator[Served]:
    """The same server for the next test. Each test leaves no connection behind."""
    served.seen.clear()
    served.opened.clear()
    served.connections.refusals.clear()
    yield served
    served.opened.set()
    eventually(lambda: served.is_empty)


# -- what has to work as ever -----------------------------------------------------------------------------------------


def test_a_connection_serves_one_request_after_the_other(patient: Served) -> None:
    with patient.connect() as client:
        assert [client.get(f"/{name}").body for name in ("one", "two", "three")] == [b"one", b"two", b"three"]


def test_pipelined_requests_are_answered_in_order(patient: Served) -> None:
    with patient.connect() as client:
        client.send(
            b"GET /wait HTTP/1.1\r\n\r\n"
            b"POST /length HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
            b"POST /length HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            b"GET /last HT"
        )
        eventually(lambda: patient.seen == ["wait"])
        patient.opened.set()
        assert [client.answer().body for _ in range(3)] == [b"wait", b"5", b"3"]
        client.send(b"TP/1.1\r\n\r\n")
        assert client.answer().body == b"last"


def test_a_body_in_many_pieces_is_put_together(patient: Served) -> None:
    with patient.connect() as client:
        client.send(f"POST /length HTTP/1.1\r\nContent-Length: {REQUEST_BYTES_MAX}\r\n\r\n".encode())
        for _ in range(3):
            client.send(b"x" * (REQUEST_BYTES_MAX // 3))
        assert client.answer().body == str(REQUEST_BYTES_MAX).encode()


def test_a_pipelined_body_waits_for_its_turn(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"GET /wait HTTP/1.1\r\n\r\nPOST /length HTTP/1.1\r\nContent-Length: 200000\r\n\r\n")
        client.send(b"x" * 200_000)
        patient.opened.set()
        assert [client.answer().body for _ in range(2)] == [b"wait", b"200000"]


def test_a_client_that_expects_100_continue_gets_it(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /length HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert client.answer().status == 100
        client.send(b"hello")
        assert client.answer().body == b"5"


def test_an_upgrade_that_is_not_known_is_ignored(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"GET /one HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nGET /two HTTP/1.1\r\n\r\n")
        assert [client.answer().body for _ in range(2)] == [b"one", b"two"]


def test_a_body_that_comes_along_with_an_upgrade_that_is_not_known_is_a_body(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /length HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 30\r\n\r\n")
        client.send(b"GET /smuggled HTTP/1.1\r\nA: b\r\nGET /two HTTP/1.1\r\n\r\n")
        assert [client.answer().body for _ in range(2)] == [b"30", b"two"]
    assert patient.seen == ["length", "two"]


def test_an_answer_of_unknown_length_ends_with_the_connection_under_http_1_0(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"GET /pieces HTTP/1.0\r\n\r\n")
        head, _, body = client.rest().partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert body == b"piecepieces"


def test_a_sender_whose_last_request_is_answered_early_reads_the_answer(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /early HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % REQUEST_BYTES_MAX)
        client.send(b"x" * REQUEST_BYTES_MAX)
        assert client.answer().body == b"early"
        assert client.is_cut()


def test_a_request_that_says_close_is_answered_and_closed(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"GET /one HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert client.answer().body == b"one"
        assert client.is_cut()


def test_a_client_that_goes_is_noticed_by_the_request_being_answered(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /length HTTP/1.1\r\nContent-Length: 5\r\n\r\nhel")
        eventually(lambda: patient.seen == ["length"])
    eventually(lambda: patient.seen == ["length", "disconnect"])


@pytest.mark.parametrize("is_late", [False, True], ids=["together", "later"])
@pytest.mark.parametrize(
    "behind",
    [b"", b"G", b"GET /one HTTP/1.1\r\n\r\n", b"GET /one HTTP/1.1\r\n\r\n" * 2 + b"GET"],
    ids=["nothing", "half a request", "a request", "several"],
)
def test_a_client_that_goes_is_noticed_whatever_it_has_sent_behind(
    patient: Served, behind: bytes, *, is_late: bool
) -> None:
    with patient.connect() as client:
        client.send(b"GET /poll HTTP/1.1\r\n\r\n" + (b"" if is_late else behind))
        eventually(lambda: patient.seen == ["poll"])
        if is_late:
            client.send(behind)
    eventually(lambda: patient.seen == ["poll", "disconnect"])
    eventually(lambda: patient.is_empty)


# -- faults of the application ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/fail", "/silent"])
def test_a_request_that_is_not_answered_for_a_fault_of_ours_is_500(
    patient: Served, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with patient.connect() as client:
        assert client.get(path).error == (500, "internal_error")
        assert client.is_cut()
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_what_cannot_be_read_for_a_fault_of_ours_is_500_and_logged_once(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("planted")

    monkeypatch.setattr(RequestReader, "receive", fail)
    with Served(ServerSettings()).serving(loop_factory) as served:
        for _ in range(3):
            with served.connect() as client:
                assert client.get("/one").error == (500, "internal_error")
                assert client.is_cut()
        eventually(lambda: served.is_empty)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_half_an_answer_does_not_look_whole(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"GET /break HTTP/1.1\r\n\r\n")
        assert client.rest().endswith(b"\r\n\r\n5\r\npiece\r\n")


def test_nor_does_it_where_the_connection_ends_the_answer(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"GET /break HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            client.rest()


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nA: " + b"x" * HEADER_BYTES_MAX + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * HEADER_BYTES_MAX,
        b"GET / HTTP/1.1\r\n" + b"A: x\r\n" * (HEADER_BYTES_MAX // 5) + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"x" * HEADER_BYTES_MAX,
        b"GET /" + b"x" * HEADER_BYTES_MAX + b" HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * HEADER_BYTES_MAX,
    ],
    ids=["one header", "an endless header", "many headers", "an endless name", "the path", "an endless path"],
)
@pytest.mark.parametrize("piece_bytes", [1 << 20, 700])
def test_a_head_over_the_limit_is_refused(patient: Served, head: bytes, piece_bytes: int) -> None:
    with patient.connect() as client:
        for start in range(0, len(head), piece_bytes):
            client.send(head[start : start + piece_bytes])
            time.sleep(0.01 if piece_bytes < len(head) else 0)
        assert client.answer().error == (431, "headers_too_large")
        assert client.is_cut()
    assert patient.seen == []


def test_a_long_body_that_comes_along_with_its_head_does_not_count_as_head(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /length HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000)
        assert client.answer().body == b"200000"


def test_endless_trailers_are_refused(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /length HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n")
        while not patient.connections.refusals:
            client.send(b"A: x\r\n" * 100)
            time.sleep(0.01)
        assert client.answer().error == (431, "headers_too_large")


def test_trailers_do_not_get_among_the_headers(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /headers HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: x\r\n\r\n")
        assert client.answer().body == b"transfer-encoding"


def test_a_length_over_the_limit_is_refused_before_the_body_is_sent(patient: Served) -> None:
    with patient.connect() as client:
        client.send(f"POST /length HTTP/1.1\r\nContent-Length: {REQUEST_BYTES_MAX + 1}\r\n".encode())
        client.send(b"Expect: 100-continue\r\n\r\n")
        assert client.answer().error == (413, "request_too_large")
        assert client.is_cut()
    assert patient.seen == []


def test_a_sender_that_does_not_listen_until_it_has_sent_all_reads_why_it_was_refused(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /length HTTP/1.1\r\nContent-Length: 20000000\r\n\r\n")
        client.send(b"x" * 20_000_000)
        assert client.answer().error == (413, "request_too_large")


def test_chunks_over_the_limit_are_refused_and_the_application_takes_the_client_for_gone(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /length HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(REQUEST_BYTES_MAX // 50_000 + 1):
            client.send(b"c350\r\n" + b"x" * 50_000 + b"\r\n")
        assert client.answer().error == (413, "request_too_large")
        assert client.is_cut()
    eventually(lambda: patient.seen == ["length", "disconnect"])


def test_a_refused_request_gets_no_100_continue(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /wait HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n")
        assert client.answer().error == (400, "malformed_request")
        patient.opened.set()
        eventually(lambda: patient.seen == ["wait", "disconnect"])
        assert client.is_cut()


def test_chunks_over_the_limit_after_the_answer_end_the_connection(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /early HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert client.answer().body == b"early"
        for _ in range(REQUEST_BYTES_MAX // 50_000 + 1):
            client.send(b"c350\r\n" + b"x" * 50_000 + b"\r\n")
        assert client.is_cut()
    assert patient.connections.refusals == {"request_too_large": 1}


def test_of_very_many_requests_at_once_only_some_wait_here_and_all_are_answered(patient: Served) -> None:
    count = 5_000
    with patient.connect() as client:
        client.send(b"GET /wait HTTP/1.1\r\n\r\n" + b"GET / HTTP/1.1\r\n\r\n" * count)
        eventually(lambda: patient.seen == ["wait"])
        [connection] = patient.connections.all()
        assert isinstance(connection, HttpConnection)
        assert len(connection.pipeline) < 1_000
        patient.opened.set()
        assert {client.answer().status for _ in range(count + 1)} == {200}


# -- malformed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nA B: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"CONNECT example:80 HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
    ],
    ids=repr,
)
def test_what_is_not_http_is_refused(patient: Served, data: bytes) -> None:
    with patient.connect() as client:
        client.send(data)
        assert client.answer().error == (400, "malformed_request")
        assert client.is_cut()
    assert patient.seen == []


def test_a_malformed_chunk_is_refused(patient: Served) -> None:
    with patient.connect() as client:
        client.send(b"POST /length HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nnonsense\r\n")
        assert client.answer().error == (400, "malformed_request")
    eventually(lambda: patient.seen == ["length", "disconnect"])


@pytest.mark.parametrize(
    "second",
    [b"nonsense\r\n\r\n", b"POST /length HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n"],
    ids=["head", "body"],
)
def test_a_refusal_waits_for_the_answers_to_earlier_requests(patient: Served, second: bytes) -> None:
    with patient.connect() as client:
        client.send(b"GET /wait HTTP/1.1\r\n\r\n" + second)
        eventually(lambda: patient.seen == ["wait"])
        client.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(PATIENCE_S)
        patient.opened.set()
        answers = client.socket.recv(1 << 16)
        while more := client.socket.recv(1 << 16):
            answers += more
    assert answers.index(b"\r\n\r\nwait") < answers.index(b"HTTP/1.1 400 Bad Request")
    assert patient.seen == ["wait"]


# -- deadlines --------------------------------------------------------------------------------------------------------


def test_a_client_that_sends_nothing_is_answered_and_closed(hasty: Served) -> None:
    with hasty.connect() as client:
        hasty.pass_time_until(lambda: client.is_readable, step_s=DEADLINE_S)
        assert client.answer().error == (408, "request_timeout")
        assert client.is_cut()


@pytest.mark.parametrize("before", [b"", b"GET /one HTTP/1.1\r\n\r\n"], ids=["first request", "later request"])
def test_a_head_that_comes_byte_by_byte_does_not_hold_for_ever(hasty: Served, before: bytes) -> None:
    with hasty.connect() as client:
        if before:
            client.send(before)
            assert client.answer().body == b"one"
        with contextlib.suppress(ConnectionError):
            for byte in b"GET / HTTP/1.1\r\nA: " + b"x" * 1000:
                client.send(bytes([byte]))
                hasty.pass_time(DEADLINE_S / 10)
                if hasty.connections.refusals:
                    break
        assert client.answer().error == (408, "request_timeout")
        assert client.is_cut()
    assert hasty.seen == (["one"] if before else [])


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "byte by byte"])
@pytest.mark.parametrize(
    "head", [b"Content-Length: 1000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n"], ids=["length", "chunked"]
)
def test_a_body_that_hardly_grows_does_not_hold_for_ever(hasty: Served, head: bytes, is_silent: bool) -> None:
    with hasty.connect() as client:
        client.send(b"POST /length HTTP/1.1\r\n" + head)
        eventually(lambda: hasty.seen == ["length"])
        while not hasty.connections.refusals:
            if not is_silent:
                client.send(b"x")
            hasty.pass_time(DEADLINE_S / 10)
        assert client.answer().error == (408, "request_timeout")
        assert client.is_cut()
    eventually(lambda: hasty.seen == ["length", "disconnect"])


def test_a_body_that_never_comes_after_its_answer_ends_the_connection(hasty: Served) -> None:
    with hasty.connect() as client:
        client.send(b"POST /early HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        assert client.answer().body == b"early"
        hasty.pass_time_until(lambda: client.is_readable, step_s=DEADLINE_S)
        assert client.is_cut()


def has_come(connection: HttpConnection, count: int) -> bool:
    return connection.reader.body_bytes == count


def test_a_body_that_grows_steadily_may_take_longer_than_the_deadline(hasty: Served) -> None:
    # As much as has to come in one deadline comes in a third of it.
    piece_bytes = int(PROGRESS_BYTES_PER_S * DEADLINE_S)
    with hasty.connect() as client:
        client.send(b"POST /length HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (12 * piece_bytes))
        eventually(lambda: hasty.seen == ["length"])
        [connection] = hasty.connections.all()
        assert isinstance(connection, HttpConnection)
        for number in range(11):
            client.send(b"x" * piece_bytes)
            eventually(partial(has_come, connection, (number + 1) * piece_bytes))
            hasty.pass_time(DEADLINE_S / 3)
        client.send(b"x" * piece_bytes)
        assert client.answer().body == b"%d" % (12 * piece_bytes)


def test_a_sender_is_not_blamed_while_the_application_does_not_read(hasty: Served) -> None:
    with hasty.connect() as client:
        client.send(b"POST /wait HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"x" * 100_000)
        eventually(lambda: hasty.is_read_paused)
        hasty.pass_time(4 * DEADLINE_S)
        hasty.opened.set()
        client.send(b"x" * 100_000)
        assert client.answer().body == b"wait"


def test_a_sender_that_waits_for_100_continue_is_not_blamed(hasty: Served) -> None:
    with hasty.connect() as client:
        client.send(b"POST /wait HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        eventually(lambda: hasty.seen == ["wait"])
        hasty.pass_time(4 * DEADLINE_S)
        hasty.opened.set()
        assert client.answer().status == 100


def test_an_answer_may_take_longer_than_any_deadline(hasty: Served) -> None:
    with hasty.connect() as client:
        client.send(b"GET /wait HTTP/1.1\r\n\r\n")
        eventually(lambda: hasty.seen == ["wait"])
        hasty.pass_time(4 * DEADLINE_S)
        hasty.opened.set()
        assert client.answer().body == b"wait"


def test_an_idle_connection_is_closed_without_a_word(hasty: Served) -> None:
    with hasty.connect() as client:
        assert client.get("/one").body == b"one"
        hasty.pass_time_until(lambda: client.is_readable, step_s=DEADLINE_S)
        assert client.is_cut()
    assert hasty.connections.refusals == {}


def test_the_sweep_ends_with_the_last_connection(hasty: Served) -> None:
    with hasty.connect() as client:
        assert client.get("/one").body == b"one"
    eventually(lambda: hasty.connections._timer is None)


# -- readers ----------------------------------------------------------------------------------------------------------


def test_what_is_not_read_is_counted_until_its_reader_is_gone(hasty: Served) -> None:
    size = 20_000_000
    with hasty.connect(receive_buffer=10_000) as client:
        client.send(b"GET /large/%d HTTP/1.1\r\n\r\n" % size)
        eventually(lambda: hasty.connections.output_bytes > size // 2)
        assert len(client.answer().body) == size
        eventually(lambda: hasty.connections.output_bytes == 0)
        client.send(b"GET /large/%d HTTP/1.1\r\n\r\n" % size * 2)
        eventually(lambda: hasty.connections.output_bytes > size // 2)
    eventually(lambda: hasty.connections.output_bytes == 0)


@pytest.mark.parametrize("answer_bytes", [12_000_000, 30_000_000], ids=["below the limit", "above the limit"])
@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"], ids=["keep alive", "close"])
def test_a_reader_that_stands_still_is_cut_off(hasty: Served, answer_bytes: int, header: bytes) -> None:
    with hasty.connect(receive_buffer=10_000) as client:
        client.send(b"GET /large/%d HTTP/1.1\r\n%s\r\n" % (answer_bytes, header))
        eventually(lambda: hasty.seen == ["large"])
        # How far it has come when the reader's buffers are full is the kernel's to say.
        hasty.pass_time_until(lambda: hasty.is_empty, step_s=DEADLINE_S)


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"], ids=["keep alive", "close"])
def test_a_reader_that_goes_on_gets_all_however_much_waits(
    monkeypatch: pytest.MonkeyPatch, loop_factory: LoopFactory, header: bytes
) -> None:
    settings = ServerSettings(output_bytes_max=1 << 16, body_timeout_s=DEADLINE_S, keep_alive_s=DEADLINE_S)
    monkeypatch.setattr("smista.server.http.output.STALL_S", DEADLINE_S)
    with Served(settings).serving(loop_factory) as served, served.connect(receive_buffer=100_000) as client:
        client.send(b"GET /large/32000000 HTTP/1.1\r\n%s\r\n" % header)
        received = len(client.read(800_000))
        while received < 32_000_000:
            # The kernel takes more from us only when much of what it had is gone: not with each piece.
            served.pass_time(DEADLINE_S / 10)
            piece = client.read(800_000)
            assert piece, "cut off"
            received += len(piece)
        assert served.connections.refusals == {}


# -- connections ------------------------------------------------------------------------------------------------------


def test_one_connection_too_many_is_answered_and_closed(loop_factory: LoopFactory) -> None:
    with Served(ServerSettings(connections_max=2)).serving(loop_factory) as served, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(served.connect()) for _ in range(2)]
        assert [client.get("/one").status for client in clients] == [200, 200]
        with served.connect() as third:
            third.send(b"GET /three HTTP/1.1\r\n\r\n")
            assert third.answer().error == (503, "too_many_connections")
            assert third.is_cut()
        assert [client.get("/one").status for client in clients] == [200, 200]

        clients[0].close()
        eventually(lambda: served.connections.open_count == 1)
        with served.connect() as fourth:
            assert fourth.get("/four").body == b"four"
        assert "three" not in served.seen


def test_a_flood_of_connections_beyond_the_limit_does_not_pile_up(loop_factory: LoopFactory) -> None:
    with Served(ServerSettings(connections_max=1)).serving(loop_factory) as served, served.connect() as first:
        assert first.get("/one").status == 200
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(served.connect())
            eventually(lambda: served.connections.refusals == {"too_many_connections": 300})
            eventually(lambda: served.socket_count < 200)
        assert first.get("/one").status == 200
