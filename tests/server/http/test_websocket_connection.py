"""The limits of WebSockets, through real sockets, on both kinds of loop."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from functools import partial

import pytest
from websockets.server import ServerProtocol

from smista.server.http.connection import HttpConnection
from smista.server.http.gathering import GatheringTransport
from smista.server.http.open_connection import OpenConnection
from smista.server.http.websocket import FRAGMENTS_MAX, WebSocket
from smista.server.http.websocket_connection import WebSocketConnection
from smista.server.settings import ServerSettings
from tests.server.http.served import LOOP_FACTORIES, LoopFactory, MovedUvloop, Served
from tests.server.raw_http import HANDSHAKE, Opcode, frame
from tests.waiting import eventually

DEADLINE_S = 60.0
MESSAGE_BYTES_MAX = 100_000
HELLO = frame(Opcode.BINARY, b"hello")


@pytest.fixture(scope="module", params=LOOP_FACTORIES, ids=["uvloop", "asyncio"])
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    factory: LoopFactory = request.param
    return factory


@pytest.fixture
def served(loop_factory: LoopFactory) -> Iterator[Served]:
    """Deadlines, which do not concern a WebSocket, and a small limit on messages."""
    settings = ServerSettings(
        header_timeout_s=DEADLINE_S,
        body_timeout_s=DEADLINE_S,
        keep_alive_s=DEADLINE_S,
        websocket_frame_bytes_max=MESSAGE_BYTES_MAX,
        websocket_ping_s=3_600,
    )
    with Served(settings).serving(loop_factory) as served:
        yield served
        eventually(lambda: served.is_empty)


def close_code(received: tuple[Opcode, bytes]) -> int:
    opcode, payload = received
    assert opcode is Opcode.CLOSE
    return int.from_bytes(payload[:2], "big")


def test_a_websocket_may_be_idle(served: Served) -> None:
    with served.connect() as client:
        client.upgrade("/")
        served.pass_time(4 * DEADLINE_S)
        client.send(HELLO)
        assert client.frame() == (Opcode.BINARY, b"hello")


def test_a_websocket_after_a_request_on_the_same_connection(served: Served) -> None:
    with served.connect() as client:
        assert client.get("/one").body == b"one"
        client.upgrade("/")
        client.send(HELLO)
        assert client.frame() == (Opcode.BINARY, b"hello")


def test_what_comes_with_the_handshake_is_not_lost(served: Served) -> None:
    with served.connect() as client:
        client.send(b"GET / HTTP/1.1\r\n" + HANDSHAKE + HELLO + HELLO[:3])
        assert client.answer().status == 101
        assert client.frame() == (Opcode.BINARY, b"hello")
        client.send(HELLO[3:])
        assert client.frame() == (Opcode.BINARY, b"hello")


def test_a_handshake_can_be_answered_as_any_request(served: Served) -> None:
    with served.connect() as client:
        client.send(b"GET /refuse HTTP/1.1\r\n" + HANDSHAKE)
        answer = client.answer()
        assert (answer.status, answer.body, answer.headers["connection"]) == (404, b"no", "close")
        assert client.is_cut()


def test_a_handshake_that_is_not_answered_for_a_fault_of_ours_is_500(served: Served) -> None:
    with served.connect() as client:
        client.send(b"GET /silent HTTP/1.1\r\n" + HANDSHAKE)
        assert client.answer().error == (500, "internal_error")
        assert client.is_cut()


def test_a_fault_of_ours_closes_the_websocket_with_1011(served: Served) -> None:
    with served.connect() as client:
        client.upgrade("/fail")
        assert close_code(client.frame()) == 1011
        assert client.is_cut()


def test_what_cannot_be_read_for_a_fault_of_ours_closes_the_websocket_with_1011_and_is_logged_once(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("planted")

    monkeypatch.setattr(WebSocket, "receive", fail)
    for _ in range(3):
        with served.connect() as client:
            client.upgrade("/")
            client.send(HELLO)
            assert close_code(client.frame()) == 1011
            assert client.is_cut()
    eventually(lambda: served.is_empty)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_what_is_not_read_is_counted_until_its_reader_is_gone(served: Served) -> None:
    with served.connect(receive_buffer=10_000) as client:
        client.upgrade("/flood")
        eventually(lambda: served.connections.output_bytes > 50_000)
    eventually(lambda: served.connections.output_bytes == 0)


def test_a_stop_waits_for_what_the_application_has_to_finish(loop_factory: LoopFactory) -> None:
    with Served(ServerSettings(drain_timeout_s=600)).serving(loop_factory) as served, served.connect() as client:
        client.upgrade("/farewell")
        served.begin_to_stop()
        served.pass_time(DEADLINE_S)
        served.opened.set()
        assert client.frame() == (Opcode.TEXT, b"last")
        assert close_code(client.frame()) == 1001
        assert client.is_cut()


def test_a_websocket_holds_its_place_until_it_is_gone(loop_factory: LoopFactory) -> None:
    with Served(ServerSettings(connections_max=1)).serving(loop_factory) as served:
        with served.connect() as client:
            client.upgrade("/")
            assert served.connections.open_count == 1
            with served.connect() as second:
                assert second.answer().error == (503, "too_many_connections")
        eventually(lambda: served.is_empty and served.seen == ["disconnect 1005"])
        with served.connect() as third:
            assert third.get("/three").body == b"three"


def test_a_message_over_the_limit_closes_the_websocket_with_1009(served: Served) -> None:
    with served.connect() as client:
        client.upgrade("/")
        client.send(frame(Opcode.BINARY, b"x" * MESSAGE_BYTES_MAX))
        assert client.frame() == (Opcode.BINARY, b"x" * MESSAGE_BYTES_MAX)
        client.send(frame(Opcode.BINARY, b"", says_bytes=MESSAGE_BYTES_MAX + 1))
        assert close_code(client.frame()) == 1009
        assert client.is_cut()


def test_a_sender_of_a_message_over_the_limit_reads_why_it_is_closed_when_it_has_sent_it(served: Served) -> None:
    with served.connect() as client:
        client.upgrade("/")
        client.send(frame(Opcode.BINARY, b"x" * 20_000_000))
        assert close_code(client.frame()) == 1009
    eventually(lambda: served.seen == ["disconnect 1009"])


def test_fragments_over_the_limit_close_the_websocket_with_1009(served: Served) -> None:
    with served.connect() as client:
        client.upgrade("/")
        client.send(frame(Opcode.BINARY, b"x" * MESSAGE_BYTES_MAX, is_last=False))
        client.send(frame(Opcode.CONTINUATION, b"x", is_last=False))
        assert close_code(client.frame()) == 1009


def test_too_many_fragments_close_the_websocket_with_1009(served: Served) -> None:
    with served.connect() as client:
        client.upgrade("/")
        client.send(frame(Opcode.BINARY, b"", is_last=False))
        client.send(frame(Opcode.CONTINUATION, b"", is_last=False) * FRAGMENTS_MAX)
        assert close_code(client.frame()) == 1009


def test_a_frame_that_is_none_closes_the_websocket_with_1002(served: Served) -> None:
    with served.connect() as client:
        client.upgrade("/")
        client.send(b"\xff" * 20)
        assert close_code(client.frame()) == 1002


BEGUN = frame(Opcode.BINARY, b"x" * 1_000, is_last=False)
ONE_BYTE_MORE = frame(Opcode.CONTINUATION, b"x", is_last=False)
PING = frame(Opcode.PING, b"ping")


NOTHING_YET = frame(Opcode.BINARY, b"", is_last=False)


@pytest.mark.parametrize(
    "begun", [BEGUN, BEGUN[:-1], BEGUN[:1], NOTHING_YET], ids=["message", "frame", "head of a frame", "empty fragment"]
)
def test_a_message_that_does_not_grow_does_not_hold_for_ever(served: Served, begun: bytes) -> None:
    with served.connect() as client:
        client.upgrade("/")
        client.send(begun)
        eventually(lambda: served.connections.kept_bytes)
        served.pass_time_until(lambda: client.is_readable, step_s=DEADLINE_S / 10)
        assert close_code(client.frame()) == 1008
        eventually(lambda: served.connections.kept_bytes == 0)
    eventually(lambda: served.seen == ["disconnect 1008"])


def test_nor_does_one_that_hardly_grows(served: Served) -> None:
    with served.connect() as client:
        client.upgrade("/")
        client.send(BEGUN)
        while not client.is_readable:
            client.send(ONE_BYTE_MORE)
            served.pass_time(DEADLINE_S / 10)
        assert close_code(client.frame()) == 1008


def test_a_message_that_grows_steadily_may_take_longer_than_the_deadline(served: Served) -> None:
    # In a third of a deadline comes a little more than has to.
    piece = b"x" * 24_000
    with served.connect() as client:
        client.upgrade("/")
        for number in range(4):
            client.send(frame(Opcode.CONTINUATION if number else Opcode.BINARY, piece, is_last=False))
            eventually(partial(has_come, served, (number + 1) * len(piece)))
            served.pass_time(DEADLINE_S / 3)
        client.send(frame(Opcode.CONTINUATION, b""))
        assert client.frame() == (Opcode.BINARY, 4 * piece)


def has_come(served: Served, count: int) -> bool:
    return any(one.coming_bytes == count for one in served.connections.all() if isinstance(one, OpenConnection))


@pytest.mark.parametrize("whole", [HELLO, PING], ids=["messages", "pings"])
def test_who_has_always_just_begun_is_not_blamed(served: Served, whole: bytes) -> None:
    with served.connect() as client:
        client.upgrade("/")
        client.send(whole[:3])
        for _ in range(10):
            served.pass_time(DEADLINE_S / 2)
            client.send(whole[3:] + whole[:3])
            assert client.frame()[0] is not Opcode.CLOSE


def test_a_reader_that_stands_still_is_cut_off(served: Served) -> None:
    with served.connect(receive_buffer=10_000) as client:
        client.upgrade("/flood")
        assert served.socket_count == 1
        # How far it has come when the reader's buffers are full is the kernel's to say.
        served.pass_time_until(lambda: served.is_empty, step_s=DEADLINE_S)


def test_a_client_that_pings_and_does_not_read_is_cut_off(loop_factory: LoopFactory) -> None:
    settings = ServerSettings(output_bytes_max=1 << 16)
    with Served(settings).serving(loop_factory) as served, served.connect(receive_buffer=10_000) as client:
        client.upgrade("/")
        with contextlib.suppress(ConnectionError):
            while not served.is_empty:
                client.send(frame(Opcode.PING, b"x" * 125) * 100)
        eventually(lambda: served.is_empty)


def test_a_client_that_does_not_answer_pings_is_closed_with_1011(loop_factory: LoopFactory) -> None:
    with Served(ServerSettings(websocket_ping_s=0.1)).serving(loop_factory) as served, served.connect() as client:
        client.upgrade("/")
        assert client.frame()[0] is Opcode.PING
        assert close_code(client.frame()) == 1011
        assert client.is_cut()


def test_a_client_that_does_not_answer_pings_nor_read_is_cut_off(loop_factory: LoopFactory) -> None:
    settings = ServerSettings(websocket_ping_s=0.1, body_timeout_s=DEADLINE_S)
    with Served(settings).serving(loop_factory) as served, served.connect(receive_buffer=10_000) as client:
        client.upgrade("/flood")
        served.pass_time_until(lambda: served.is_empty, step_s=DEADLINE_S)


def test_a_client_is_not_blamed_for_a_pong_that_we_do_not_read(loop_factory: LoopFactory) -> None:
    with (
        Served(ServerSettings(websocket_ping_s=DEADLINE_S)).serving(loop_factory) as served,
        served.connect() as client,
    ):
        client.upgrade("/wait")
        client.send(HELLO)
        eventually(lambda: served.is_read_paused)
        [connection] = served.connections.all()
        assert isinstance(connection, WebSocketConnection)
        for _ in range(3):
            # A ping, and no pong to it in time.
            served.on_loop(connection.ping)
            assert client.frame()[0] is Opcode.PING
            served.on_loop(connection.miss_pong)
        served.opened.set()
        assert client.frame() == (Opcode.BINARY, b"hello")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST / HTTP/1.1\r\n" + HANDSHAKE, 400),
        (b"GET /\xff HTTP/1.1\r\n" + HANDSHAKE, 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 3\r\n" + HANDSHAKE + b"abc", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HANDSHAKE + b"0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HANDSHAKE.replace(b"Key", b"Kex"), 400),
        (b"GET / HTTP/1.1\r\n" + HANDSHAKE.replace(b"13", b"12"), 400),
        (b"GET / HTTP/1.1\r\n" + b"A: x\r\n" * 150 + HANDSHAKE, 400),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 10_000 + b"\r\n" + HANDSHAKE, 400),
        (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n" + HANDSHAKE, 400),
    ],
    ids=["method", "path", "length", "chunked", "no key", "version", "many headers", "long header", "long path"],
)
def test_a_handshake_that_is_none_is_refused(served: Served, request_: bytes, status: int) -> None:
    with served.connect() as client:
        client.send(request_)
        assert client.answer().error == (status, "malformed_request")
        assert client.is_cut()
    assert served.seen == []


def test_a_handshake_before_the_answer_to_an_earlier_request_is_refused(served: Served) -> None:
    with served.connect() as client:
        client.send(b"GET /wait HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n" + HANDSHAKE)
        eventually(lambda: served.seen == ["wait"])
        served.opened.set()
        assert client.answer().body == b"wait"
        assert client.answer().error == (400, "malformed_request")


def test_connections_leave_nothing_behind_for_the_garbage_collector() -> None:
    # asyncio's own loop leaves its transports behind; we serve on uvloop.
    gc.collect()
    gc.disable()
    try:
        with Served(ServerSettings()).serving(MovedUvloop) as served:
            for _ in range(3):
                with served.connect() as client:
                    assert client.get("/one").body == b"one"
                    client.upgrade("/")
                    client.send(HELLO)
                    assert client.frame() == (Opcode.BINARY, b"hello")
                with served.connect() as client:
                    client.send(b"nonsense\r\n\r\n")
                    assert client.is_cut() is False
            eventually(lambda: served.is_empty)
            kinds = (HttpConnection, WebSocketConnection, ServerProtocol, GatheringTransport)
            eventually(lambda: not any(isinstance(found, kinds) for found in gc.get_objects()))
    finally:
        gc.enable()
