"""Requests as they are read from bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smista.server.http.refusals import TOO_MANY_HEADERS, Refusal
from smista.server.http.requests import END, HEADERS_MAX, Event, Handshake, Request, RequestReader
from smista.server.settings import ServerSettings

SETTINGS = ServerSettings(header_bytes_max=300, request_bytes_max=1024, staged_bytes_max=2048)
HANDSHAKE = b"GET /v1/stream?a=b HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def events(data: bytes, *, piece_bytes: int = 1 << 20, settings: ServerSettings = SETTINGS) -> list[Event]:
    """What a reader makes of `data` when it comes in pieces."""
    reader = RequestReader(settings)
    found: list[Event] = []
    for start in range(0, len(data), piece_bytes):
        found += reader.receive(data[start : start + piece_bytes])
    return found


def kinds(data: bytes, *, piece_bytes: int = 1 << 20, settings: ServerSettings = SETTINGS) -> list[object]:
    return joined(events(data, piece_bytes=piece_bytes, settings=settings))


def joined(events: list[Event]) -> list[object]:
    """Requests as method and path, refusals as status and code, and one piece for each body."""
    found: list[object] = []
    for event in map(shown, events):
        if isinstance(event, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += event
        else:
            found.append(event)
    return found


def shown(event: Event) -> object:
    match event:
        case Request():
            return f"{event.method} {event.path}"
        case Refusal():
            return int(event.status), event.code
        case Handshake():
            return "handshake"
    return event


def request(data: bytes) -> Request:
    first = events(data)[0]
    assert isinstance(first, Request)
    return first


# -- what is read -----------------------------------------------------------------------------------------------------


def test_a_request_has_its_parts() -> None:
    found = request(b"GET /a%20b/c?x=1&y HTTP/1.1\r\nHost: h\r\nX-Y:  z\r\nx-y: w\r\n\r\n")
    assert (found.method, found.version) == ("GET", "1.1")
    assert (found.path, found.raw_path, found.query) == ("/a b/c", b"/a%20b/c", b"x=1&y")
    assert found.headers == [(b"host", b"h"), (b"x-y", b"z"), (b"x-y", b"w")]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", b"/", b""),
        (b"//a/b", b"//a/b", b""),
        (b"/a??b", b"/a", b"?b"),
        (b"/a#b?c", b"/a", b""),
        (b"http://host:80/a?b", b"/a", b"b"),
        (b"http://host", b"/", b""),
        (b"http://host?b", b"/", b"b"),
        (b"*", b"*", b""),
    ],
)
def test_a_target_is_a_path_or_a_whole_address(target: bytes, path: bytes, query: bytes) -> None:
    found = request(b"OPTIONS " + target + b" HTTP/1.1\r\n\r\n")
    assert (found.raw_path, found.query) == (path, query)


def test_space_around_a_value_is_none_of_it() -> None:
    found = events(b"POST / HTTP/1.1\r\nContent-Length: \t 2 \t \r\nA: b \t\r\n\r\nab")
    assert isinstance(found[0], Request)
    assert found[0].headers == [(b"content-length", b"2"), (b"a", b"b")]
    assert found[1:] == [b"ab", END]


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 1 << 20])
def test_it_does_not_matter_how_the_bytes_come(piece_bytes: int) -> None:
    data = (
        b"POST /one HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
        b"POST /two HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
        b"GET /three HTTP/1.1\r\n\r\n"
    )
    assert kinds(data, piece_bytes=piece_bytes) == [
        "POST /one", b"hello", END, "POST /two", b"abcde", END, "GET /three", END
    ]  # fmt: skip


PARTS = [
    b"GET / HTTP/1.1\r\n",
    b"POST /a?b HTTP/1.1\r\n",
    b"GET / HTTP/1.0\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    b"\r\n",
    b"hello",
    b"5\r\nhello\r\n",
    b"0\r\n",
    b"\x00",
]


@given(parts=st.lists(st.sampled_from(PARTS), max_size=8), cuts=st.lists(st.integers(0, 200), max_size=5))
def test_nor_does_it_for_nonsense(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    whole, pieces = RequestReader(SETTINGS), RequestReader(SETTINGS)
    at_once = whole.receive(data)
    bit_by_bit: list[Event] = []
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        bit_by_bit += pieces.receive(data[start:end])
    assert joined(bit_by_bit) == joined(at_once)
    assert pieces.phase is whole.phase


def test_a_trailer_is_no_header() -> None:
    found = request(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 7\r\n\r\n")
    assert found.headers == [(b"transfer-encoding", b"chunked")]


def test_who_waits_for_100_continue_says_so() -> None:
    assert request(b"POST / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n").expects_continue
    assert not request(b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n").expects_continue


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.0\r\n",
        b"GET / HTTP/1.1\r\nConnection: close\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n",
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_after_the_last_request_nothing_is_read(head: bytes, piece_bytes: int) -> None:
    data = head + b"\r\n" + b"GET /two HTTP/1.1\r\n\r\n" + b"\x00nonsense"
    assert kinds(data, piece_bytes=piece_bytes) == ["GET /", END]
    assert not request(data).keep_alive


# -- upgrades ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 30\r\n\r\nGET /smuggled HTTP/1.1\r\nA: b\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n1e\r\nGET /smuggled HTTP/1.1\r\nA: b\r\n\r\n0\r\n\r\n",
    ],
    ids=["length", "chunks"],
)
@pytest.mark.parametrize("connection", [b"Upgrade", b"Upgrade, close"])
@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_the_body_of_a_request_whose_upgrade_is_ignored_is_no_request(
    body: bytes, connection: bytes, piece_bytes: int
) -> None:
    data = (
        b"POST / HTTP/1.1\r\nConnection: " + connection + b"\r\nUpgrade: h2c\r\n" + body + b"GET /two HTTP/1.1\r\n\r\n"
    )
    smuggled = b"GET /smuggled HTTP/1.1\r\nA: b\r\n"
    after = [] if b"close" in connection else ["GET /two", END]
    assert kinds(data, piece_bytes=piece_bytes) == ["POST /", smuggled, END, *after]


def test_a_handshake_comes_with_what_was_sent_behind_it() -> None:
    [event] = events(HANDSHAKE + b"early")
    assert isinstance(event, Handshake)
    assert event.early == b"early"
    assert event.head == HANDSHAKE.replace(b"Connection:", b"connection:").replace(b"Upgrade: w", b"upgrade: w")
    assert (event.request.path, event.request.query) == ("/v1/stream", b"a=b")


@pytest.mark.parametrize(
    "data",
    [
        HANDSHAKE.replace(b"GET", b"POST"),
        HANDSHAKE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        HANDSHAKE.replace(b"stream", b"\xc3\xa4"),
        HANDSHAKE.replace(b"Upgrade: ", b"Content-Length: 3\r\nUpgrade: ") + b"abc",
        HANDSHAKE.replace(b"Upgrade: ", b"Transfer-Encoding: chunked\r\nUpgrade: ") + b"0\r\n\r\n",
    ],
    ids=["method", "version", "path", "length", "chunks"],
)
def test_a_handshake_that_is_none_is_refused(data: bytes) -> None:
    assert kinds(data) == [(400, "malformed_request")]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 3\r\nContent-Length: 3\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n",
        b"Content-Length: 3, 3\r\n",
        b"Content-Length: +3\r\n",
        b"Content-Length: 0x3\r\n",
        b"Content-Length: \r\n",
        b"Content-Length: " + b"0" * 20 + b"3\r\n",
        b"Content-Length : 3\r\n",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding\r\n: chunked\r\n",
        b"A: b\nTransfer-Encoding: chunked\r\n",
        b"A: b\rTransfer-Encoding: chunked\r\n",
        b"A: b\x00c\r\n",
    ],
    ids=repr,
)
def test_a_length_that_others_may_read_in_another_way_is_refused(head: bytes) -> None:
    [refused] = kinds(b"POST / HTTP/1.1\r\n" + head + b"\r\nabc")
    assert refused in ((400, "malformed_request"), (501, "malformed_request"))


@pytest.mark.parametrize("codings", [b"gzip, chunked", b"chunked, chunked", b"gzip\r\nTransfer-Encoding: chunked"])
def test_chunks_are_the_only_transfer_coding(codings: bytes) -> None:
    [refused] = kinds(b"POST / HTTP/1.1\r\nTransfer-Encoding: " + codings + b"\r\n\r\n0\r\n\r\n")
    assert refused in ((400, "malformed_request"), (501, "malformed_request"))


@pytest.mark.parametrize(
    "chunk", [b"-1\r\n", b"0x3\r\nabc\r\n", b" 3\r\nabc\r\n", b"3\nabc\r\n", b"3\r\nabcd\r\n", b"3\r\nabc\n"]
)
def test_a_chunk_that_others_may_read_in_another_way_is_refused(chunk: bytes) -> None:
    *_, last = kinds(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n")
    assert last == (400, "malformed_request")


@pytest.mark.parametrize("version", [b"0.9", b"2.0"])
def test_other_versions_are_refused(version: bytes) -> None:
    assert kinds(b"GET / HTTP/" + version + b"\r\n\r\n") == [(505, "malformed_request")]


def test_what_came_before_a_refusal_is_an_event_before_it() -> None:
    assert kinds(b"GET /one HTTP/1.1\r\n\r\nnonsense\r\n\r\nGET /two HTTP/1.1\r\n\r\n") == [
        "GET /one",
        END,
        (400, "malformed_request"),
    ]


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_a_head_over_the_limit_is_refused(piece_bytes: int) -> None:
    data = b"GET / HTTP/1.1\r\nA: " + b"x" * 300 + b"\r\n\r\n"
    assert kinds(data, piece_bytes=piece_bytes) == [(431, "headers_too_large")]


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_so_many_headers_are_read_and_no_more(piece_bytes: int) -> None:
    def head(count: int) -> bytes:
        return b"GET / HTTP/1.1\r\n" + b"a:\r\n" * count + b"\r\n"

    settings = ServerSettings()
    assert kinds(head(HEADERS_MAX), piece_bytes=piece_bytes, settings=settings) == ["GET /", END]
    assert kinds(head(HEADERS_MAX + 1), piece_bytes=piece_bytes, settings=settings) == [(431, "headers_too_large")]
    assert f" {HEADERS_MAX} " in TOO_MANY_HEADERS.message


def test_trailers_over_the_limit_are_refused() -> None:
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"
    assert kinds(head + b"A: b\r\n" * 60, piece_bytes=100) == ["POST /", b"abc", (431, "headers_too_large")]


def test_a_length_over_the_limit_is_refused_before_the_body() -> None:
    assert kinds(b"POST / HTTP/1.1\r\nContent-Length: 1025\r\n\r\n") == [(413, "request_too_large")]
    assert kinds(b"PUT /v1/staged/x HTTP/1.1\r\nContent-Length: 2049\r\n\r\n") == [(413, "request_too_large")]
    assert kinds(b"PUT /v1/staged/x HTTP/1.1\r\nContent-Length: 2048\r\n\r\n") == ["PUT /v1/staged/x"]


def test_chunks_over_the_limit_are_refused() -> None:
    data = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"200\r\n" + b"x" * 512 + b"\r\n") * 3
    assert kinds(data) == ["POST /", b"x" * 1024, (413, "request_too_large")]
