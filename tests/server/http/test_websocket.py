"""A WebSocket as bytes and events."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from smista.server.http.refusals import NO_HANDSHAKE, Refusal
from smista.server.http.websocket import FRAGMENT_BYTES, FRAGMENTS_MAX, Closed, Event, Pong, WebSocket
from tests.server.raw_http import HANDSHAKE, Opcode, frame

MESSAGE_BYTES_MAX = 1_000


def masked(opcode: int, payload: bytes, *, is_last: bool = True) -> bytes:
    """A frame as clients send them: with the shortest length, under a mask."""
    mask = b"\x01\x02\x03\x04"
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([0x80 * is_last + opcode]) + length + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload))


EMPTY_FRAGMENT = masked(Opcode.CONTINUATION, b"", is_last=False)
WRONG = {
    "nonsense": (b"\xff" * 20, 1002),
    "no mask": (b"\x82\x01x", 1002),
    "an unknown opcode": (masked(3, b""), 1002),
    "a continuation of nothing": (masked(Opcode.CONTINUATION, b"x"), 1002),
    "a message in a message": (masked(Opcode.BINARY, b"x", is_last=False) * 2, 1002),
    "a long ping": (masked(Opcode.PING, b"x" * 126), 1002),
    "half a ping": (masked(Opcode.PING, b"x", is_last=False), 1002),
    "half a close code": (masked(Opcode.CLOSE, b"\x03"), 1002),
    "a close code that is never sent": (masked(Opcode.CLOSE, b"\x03\xed"), 1002),
    "a text that is none": (masked(Opcode.TEXT, b"\xff"), 1007),
    "a long message": (frame(Opcode.BINARY, b"", says_bytes=MESSAGE_BYTES_MAX + 1), 1009),
    "long fragments": (
        masked(Opcode.BINARY, b"x" * 900, is_last=False) + masked(Opcode.CONTINUATION, b"x" * 101),
        1009,
    ),
    "many fragments": (masked(Opcode.BINARY, b"", is_last=False) + EMPTY_FRAGMENT * FRAGMENTS_MAX, 1009),
}


@pytest.fixture
def websocket() -> WebSocket:
    """One that is open."""
    return opened(MESSAGE_BYTES_MAX)


def opened(message_bytes_max: int) -> WebSocket:
    websocket = WebSocket(message_bytes_max)
    assert websocket.handshake(b"GET / HTTP/1.1\r\n" + HANDSHAKE) is None
    websocket.accept(None, [])
    assert websocket.output().startswith(b"HTTP/1.1 101 ")
    return websocket


def closing(output: bytes) -> tuple[int, str]:
    """Code and reason of a close frame, which is all that is sent."""
    assert output[0] == 0x80 | Opcode.CLOSE
    assert output[1] == len(output) - 2
    return int.from_bytes(output[2:4], "big"), output[4:].decode()


# -- the handshake ----------------------------------------------------------------------------------------------------


def test_a_handshake_is_accepted_with_a_subprotocol_and_headers() -> None:
    websocket = WebSocket(MESSAGE_BYTES_MAX)
    offered = b"GET / HTTP/1.1\r\nSec-WebSocket-Protocol: a, b\r\n" + HANDSHAKE
    assert websocket.handshake(offered) is None
    websocket.accept("b", [(b"date", b"today"), (b"x", b"y")])
    lines = websocket.output().decode().split("\r\n")
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in lines
    assert "Sec-WebSocket-Protocol: b" in lines
    assert "x: y" in lines
    assert [line for line in lines if line.lower().startswith("date:")] == ["date: today"]


def test_frames_are_not_compressed_whatever_the_client_offers() -> None:
    websocket = WebSocket(MESSAGE_BYTES_MAX)
    assert (
        websocket.handshake(b"GET / HTTP/1.1\r\nSec-WebSocket-Extensions: permessage-deflate\r\n" + HANDSHAKE) is None
    )
    websocket.accept(None, [])
    assert b"permessage-deflate" not in websocket.output()


@pytest.mark.parametrize(
    "wrong",
    [HANDSHAKE.replace(b"Key", b"Kex"), HANDSHAKE.replace(b"13", b"12"), HANDSHAKE.replace(b"==", b"=")],
    ids=["no key", "version", "key"],
)
def test_a_handshake_that_is_none_is_refused_with_why(wrong: bytes) -> None:
    refusal = WebSocket(MESSAGE_BYTES_MAX).handshake(b"GET / HTTP/1.1\r\n" + wrong)
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code) == (400, "malformed_request")
    assert "Sec-WebSocket" in refusal.why
    assert refusal.why.endswith(".")


def test_why_a_handshake_is_refused_is_answered_in_short_and_not_logged() -> None:
    wrong = HANDSHAKE.replace(b"==", b"=secret" + b"x" * 5_000)
    refusal = WebSocket(MESSAGE_BYTES_MAX).handshake(b"GET / HTTP/1.1\r\n" + wrong)
    assert isinstance(refusal, Refusal)
    assert b"=secretxxx" in refusal.body
    assert len(refusal.why) < 300
    assert refusal.message == NO_HANDSHAKE.message


# -- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece_bytes", [1, 3, 1 << 20])
def test_messages_come_out_as_they_went_in(websocket: WebSocket, piece_bytes: int) -> None:
    data = masked(Opcode.BINARY, b"one") + masked(Opcode.TEXT, "zwölf".encode()) + masked(Opcode.BINARY, b"x" * 200)
    found: list[Event] = []
    for start in range(0, len(data), piece_bytes):
        found += websocket.receive(data[start : start + piece_bytes])
    assert found == [b"one", "zwölf", b"x" * 200]


def test_fragments_are_put_together_with_pings_between_them(websocket: WebSocket) -> None:
    data = (
        masked(Opcode.TEXT, b"zw\xc3", is_last=False)
        + masked(Opcode.PING, b"there?")
        + masked(Opcode.CONTINUATION, b"\xb6l", is_last=False)
        + masked(Opcode.CONTINUATION, b"f")
    )
    assert websocket.receive(data) == ["zwölf"]
    assert websocket.output() == b"\x8a\x06there?"
    assert websocket.receive(masked(Opcode.BINARY, b"next")) == [b"next"]


def test_an_empty_first_fragment_is_one(websocket: WebSocket) -> None:
    data = masked(Opcode.BINARY, b"", is_last=False) + masked(Opcode.CONTINUATION, b"x")
    assert websocket.receive(data) == [b"x"]


def test_a_pong_comes_with_its_payload(websocket: WebSocket) -> None:
    websocket.ping(b"1234")
    assert websocket.output() == b"\x89\x041234"
    assert websocket.receive(masked(Opcode.PONG, b"1234")) == [Pong(b"1234")]


def test_messages_are_sent_as_text_and_as_bytes(websocket: WebSocket) -> None:
    websocket.send("ö")
    websocket.send(b"x")
    assert websocket.output() == b"\x81\x02\xc3\xb6\x82\x01x"
    assert websocket.output() == b""


# -- the end ----------------------------------------------------------------------------------------------------------


def test_the_close_of_a_client_is_answered_with_the_same(websocket: WebSocket) -> None:
    data = masked(Opcode.BINARY, b"last") + masked(Opcode.CLOSE, b"\x0f\xa0bye") + masked(Opcode.BINARY, b"after")
    assert websocket.receive(data) == [b"last", Closed(4000, "bye", is_failure=False)]
    assert closing(websocket.output()) == (4000, "bye")


def test_a_close_without_a_code_is_1005(websocket: WebSocket) -> None:
    assert websocket.receive(masked(Opcode.CLOSE, b"")) == [Closed(1005, "", is_failure=False)]


def test_our_close_is_answered_by_the_client(websocket: WebSocket) -> None:
    websocket.close(1001, "stopping")
    assert closing(websocket.output()) == (1001, "stopping")
    assert websocket.receive(masked(Opcode.CLOSE, b"\x03\xe9")) == [Closed(1001, "", is_failure=False)]


@pytest.mark.parametrize(("data", "code"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_closes_it_with_its_code(websocket: WebSocket, data: bytes, code: int) -> None:
    first, last = websocket.receive(masked(Opcode.BINARY, b"good") + data)
    assert first == b"good"
    assert isinstance(last, Closed)
    assert last.is_failure
    assert closing(websocket.output()) == (last.code, last.reason)
    assert last.code == code


def test_of_two_faults_at_once_the_one_that_is_sent_is_the_one_that_is_known(websocket: WebSocket) -> None:
    [closed] = websocket.receive(masked(Opcode.TEXT, b"\xff") + b"\xff" * 20)
    assert isinstance(closed, Closed)
    assert closing(websocket.output()) == (closed.code, closed.reason)


def test_nonsense_after_our_close_is_nothing(websocket: WebSocket) -> None:
    websocket.close(1000, "")
    websocket.output()
    assert websocket.receive(b"\xff" * 20) == []
    assert websocket.output() == b""


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 125, 126, 300])
@pytest.mark.parametrize("form", [frame, masked], ids=["long length", "short length"])
def test_what_is_no_message_yet_is_counted(
    websocket: WebSocket, form: Callable[[Opcode, bytes], bytes], size: int
) -> None:
    data = form(Opcode.BINARY, b"x" * size)
    assert websocket.receive(data) == [b"x" * size]
    assert websocket.kept_bytes == 0
    for number, byte in enumerate(data[:-1], start=1):
        assert websocket.receive(bytes([byte])) == []
        assert websocket.kept_bytes == number
    assert websocket.receive(data[-1:] + data[:3]) == [b"x" * size]
    assert websocket.kept_bytes == 3


def test_fragments_are_counted_until_they_are_a_message(websocket: WebSocket) -> None:
    websocket.receive(masked(Opcode.BINARY, b"x" * 100, is_last=False) + masked(Opcode.PING, b"x"))
    assert (websocket.come_bytes, websocket.kept_bytes) == (100, 100 + FRAGMENT_BYTES)
    websocket.receive(masked(Opcode.CONTINUATION, b"x" * 50, is_last=False))
    assert (websocket.come_bytes, websocket.kept_bytes) == (150, 150 + 2 * FRAGMENT_BYTES)
    websocket.receive(masked(Opcode.CONTINUATION, b""))
    assert websocket.kept_bytes == 0


@pytest.mark.parametrize("size", [0, 1, 2, 40])
def test_small_fragments_take_no_more_memory_than_is_counted(size: int) -> None:
    websocket = opened(1 << 20)
    websocket.receive(masked(Opcode.BINARY, bytes(size), is_last=False))
    tracemalloc.start()
    try:
        for _ in range(2_000):
            websocket.receive(masked(Opcode.CONTINUATION, bytes(size), is_last=False))
        assert tracemalloc.get_traced_memory()[0] < websocket.kept_bytes + 20_000
    finally:
        tracemalloc.stop()
