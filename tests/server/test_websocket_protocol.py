"""The WebSocket door's own limits, through real sockets, on both kinds of loop."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import pytest
from websockets.server import ServerProtocol

from smista.server.gathering import GatheringTransport
from smista.server.http_protocol import HttpProtocol
from smista.server.settings import ServerSettings
from smista.server.websocket_protocol import FRAGMENTS_MAX, WebSocketProtocol
from tests.server.door import HANDSHAKE, LOOP_FACTORIES, Door, LoopFactory, MovedUvloop, Opcode, frame
from tests.waiting import eventually

DEADLINE_S = 60.0
MESSAGE_BYTES_MAX = 100_000
HELLO = frame(Opcode.BINARY, b"hello")


@pytest.fixture(scope="module", params=LOOP_FACTORIES, ids=["uvloop", "asyncio"])
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    factory: LoopFactory = request.param
    return factory


@pytest.fixture
def door(loop_factory: LoopFactory) -> Iterator[Door]:
    """Deadlines, which do not concern a WebSocket, and a small limit on messages."""
    settings = ServerSettings(
        header_timeout_s=DEADLINE_S,
        body_timeout_s=DEADLINE_S,
        keep_alive_s=DEADLINE_S,
        websocket_frame_bytes_max=MESSAGE_BYTES_MAX,
        websocket_ping_s=3_600,
    )
    with Door(settings).serving(loop_factory) as door:
        yield door
        eventually(lambda: door.is_empty)


def close_code(received: tuple[Opcode, bytes]) -> int:
    opcode, payload = received
    assert opcode is Opcode.CLOSE
    return int.from_bytes(payload[:2], "big")


def test_a_websocket_may_be_idle(door: Door) -> None:
    with door.connect() as client:
        client.upgrade("/")
        door.pass_time(4 * DEADLINE_S)
        client.send(HELLO)
        assert client.frame() == (Opcode.BINARY, b"hello")


def test_a_websocket_after_a_request_on_the_same_connection(door: Door) -> None:
    with door.connect() as client:
        assert client.get("/one").body == b"one"
        client.upgrade("/")
        client.send(HELLO)
        assert client.frame() == (Opcode.BINARY, b"hello")


def test_a_websocket_holds_its_place_until_it_is_gone(loop_factory: LoopFactory) -> None:
    with Door(ServerSettings(connections_max=1)).serving(loop_factory) as door:
        with door.connect() as client:
            client.upgrade("/")
            assert door.connections.open_count == 1
            with door.connect() as second:
                assert second.answer().error == (503, "too_many_connections")
        eventually(lambda: door.is_empty)
        assert door.seen == ["disconnect 1005"]
        with door.connect() as third:
            assert third.get("/three").body == b"three"


def test_a_message_over_the_limit_closes_the_websocket_with_1009(door: Door) -> None:
    with door.connect() as client:
        client.upgrade("/")
        client.send(frame(Opcode.BINARY, b"x" * MESSAGE_BYTES_MAX))
        assert client.frame() == (Opcode.BINARY, b"x" * MESSAGE_BYTES_MAX)
        client.send(frame(Opcode.BINARY, b"", says_bytes=MESSAGE_BYTES_MAX + 1))
        assert close_code(client.frame()) == 1009
        assert client.is_cut()


def test_a_sender_of_a_message_over_the_limit_reads_why_it_is_closed_when_it_has_sent_it(door: Door) -> None:
    with door.connect() as client:
        client.upgrade("/")
        client.send(frame(Opcode.BINARY, b"x" * 20_000_000))
        assert close_code(client.frame()) == 1009
    eventually(lambda: door.seen == ["disconnect 1009"])


def test_fragments_over_the_limit_close_the_websocket_with_1009(door: Door) -> None:
    with door.connect() as client:
        client.upgrade("/")
        client.send(frame(Opcode.BINARY, b"x" * MESSAGE_BYTES_MAX, is_last=False))
        client.send(frame(Opcode.CONTINUATION, b"x", is_last=False))
        assert close_code(client.frame()) == 1009


def test_too_many_fragments_close_the_websocket_with_1009(door: Door) -> None:
    with door.connect() as client:
        client.upgrade("/")
        client.send(frame(Opcode.BINARY, b"", is_last=False))
        client.send(frame(Opcode.CONTINUATION, b"", is_last=False) * FRAGMENTS_MAX)
        assert close_code(client.frame()) == 1009


def test_a_frame_that_is_none_closes_the_websocket_with_1002(door: Door) -> None:
    with door.connect() as client:
        client.upgrade("/")
        client.send(b"\xff" * 20)
        assert close_code(client.frame()) == 1002


def test_a_reader_that_stands_still_is_cut_off(door: Door) -> None:
    with door.connect(receive_buffer=10_000) as client:
        client.upgrade("/flood")
        assert door.socket_count == 1
        # How far it has come when the reader's buffers are full is the kernel's to say.
        door.pass_time_until(lambda: door.is_empty, step_s=DEADLINE_S)


def test_a_client_that_pings_and_does_not_read_is_cut_off(loop_factory: LoopFactory) -> None:
    settings = ServerSettings(output_bytes_max=1 << 16)
    with Door(settings).serving(loop_factory) as door, door.connect(receive_buffer=10_000) as client:
        client.upgrade("/")
        with contextlib.suppress(ConnectionError):
            while not door.is_empty:
                client.send(frame(Opcode.PING, b"x" * 125) * 100)
        eventually(lambda: door.is_empty)


def test_a_client_that_does_not_answer_pings_is_closed_with_1011(loop_factory: LoopFactory) -> None:
    with Door(ServerSettings(websocket_ping_s=0.1)).serving(loop_factory) as door, door.connect() as client:
        client.upgrade("/")
        assert client.frame()[0] is Opcode.PING
        assert close_code(client.frame()) == 1011
        assert client.is_cut()


def test_a_client_that_does_not_answer_pings_nor_read_is_cut_off(loop_factory: LoopFactory) -> None:
    settings = ServerSettings(websocket_ping_s=0.1, body_timeout_s=DEADLINE_S)
    with Door(settings).serving(loop_factory) as door, door.connect(receive_buffer=10_000) as client:
        client.upgrade("/flood")
        door.pass_time_until(lambda: door.is_empty, step_s=DEADLINE_S)


def test_a_client_is_not_blamed_for_a_pong_that_we_do_not_read(loop_factory: LoopFactory) -> None:
    with Door(ServerSettings(websocket_ping_s=DEADLINE_S)).serving(loop_factory) as door, door.connect() as client:
        client.upgrade("/wait")
        client.send(HELLO)
        eventually(lambda: door.is_read_paused)
        [connection] = door.connections._open
        assert isinstance(connection, WebSocketProtocol)
        for _ in range(3):
            # A ping, and no pong to it in time.
            door.on_loop(connection.send_keepalive_ping)
            assert client.frame()[0] is Opcode.PING
            door.on_loop(connection.keepalive_timeout)
        door.opened.set()
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
        (b"GET / HTTP/1.1\r\n" + b"A: x\r\n" * 200 + HANDSHAKE, 400),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 10_000 + b"\r\n" + HANDSHAKE, 400),
        (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n" + HANDSHAKE, 400),
    ],
    ids=["method", "path", "length", "chunked", "no key", "version", "many headers", "long header", "long path"],
)
def test_a_handshake_that_is_none_is_refused(door: Door, request_: bytes, status: int) -> None:
    with door.connect() as client:
        client.send(request_)
        assert client.answer().error == (status, "malformed_request")
        assert client.is_cut()
    assert door.seen == []


def test_a_handshake_before_the_answer_to_an_earlier_request_is_refused(door: Door) -> None:
    with door.connect() as client:
        client.send(b"GET /wait HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n" + HANDSHAKE)
        eventually(lambda: door.seen == ["wait"])
        door.opened.set()
        assert client.answer().body == b"wait"
        assert client.answer().error == (400, "malformed_request")


def test_connections_leave_nothing_behind_for_the_garbage_collector() -> None:
    # asyncio's own loop leaves its transports behind; we serve on uvloop.
    gc.collect()
    gc.disable()
    try:
        with Door(ServerSettings()).serving(MovedUvloop) as door:
            for _ in range(3):
                with door.connect() as client:
                    assert client.get("/one").body == b"one"
                    client.upgrade("/")
                    client.send(HELLO)
                    assert client.frame() == (Opcode.BINARY, b"hello")
                with door.connect() as client:
                    client.send(b"nonsense\r\n\r\n")
                    assert client.is_cut() is False
            eventually(lambda: door.is_empty)
            kinds = (HttpProtocol, WebSocketProtocol, ServerProtocol, GatheringTransport)
            eventually(lambda: not any(isinstance(found, kinds) for found in gc.get_objects()))
    finally:
        gc.enable()
