"""Responses as they are written."""

from __future__ import annotations

import pytest

from smista.server.http.responses import Headers, ResponseWriter, StandardHeaders

STANDARD = b"x-standard: yes\r\n"


def written(
    *pieces: bytes,
    method: str = "GET",
    version: str = "1.1",
    status: int = 200,
    headers: Headers = (),
    keep_alive: bool = True,
) -> bytes:
    response = ResponseWriter(method, version, keep_alive=keep_alive)
    data = response.start(status, headers, STANDARD)
    for number, piece in enumerate(pieces, start=1):
        data += response.data(piece, is_last=number == len(pieces))
    return data


def test_a_body_of_a_known_length() -> None:
    assert written(b"he", b"llo", headers=[(b"content-length", b"5")]) == (
        b"HTTP/1.1 200 OK\r\nx-standard: yes\r\ncontent-length: 5\r\n\r\nhello"
    )


def test_a_body_of_an_unknown_length_comes_in_chunks() -> None:
    assert written(b"he", b"", b"llo", b"") == (
        b"HTTP/1.1 200 OK\r\nx-standard: yes\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    )


def test_under_http_1_0_it_ends_with_the_connection() -> None:
    assert written(b"he", b"llo", version="1.0", keep_alive=False) == (
        b"HTTP/1.1 200 OK\r\nx-standard: yes\r\nconnection: close\r\n\r\nhello"
    )


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_some_have_no_body(method: str, status: int) -> None:
    head, _, body = written(b"hello", method=method, status=status).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert body == b""


def test_the_answer_to_head_may_say_how_long_the_body_would_be() -> None:
    assert written(b"", method="HEAD", headers=[(b"content-length", b"5")]).endswith(b"\r\ncontent-length: 5\r\n\r\n")


@pytest.mark.parametrize("headers", [[], [(b"connection", b"close")]])
def test_the_last_one_says_so_once(headers: Headers) -> None:
    data = written(b"", headers=[(b"content-length", b"0"), *headers], keep_alive=bool(headers))
    assert data.count(b"connection: close\r\n") == 1


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\x00b", b"\r\n", b"\x7f"])
def test_a_value_cannot_begin_another_line(value: bytes) -> None:
    with pytest.raises(RuntimeError, match="character"):
        written(b"", headers=[(b"a", value)])


@pytest.mark.parametrize("pieces", [(b"hell",), (b"hello!",), (b"hello", b"!"), (b"",)])
def test_a_body_has_the_length_that_was_promised(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(RuntimeError, match="length"):
        written(*pieces, headers=[(b"content-length", b"5")])


def test_a_head_comes_once_and_before_its_body() -> None:
    response = ResponseWriter("GET", "1.1", keep_alive=True)
    with pytest.raises(RuntimeError):
        response.data(b"x", is_last=True)
    response.start(200, [], STANDARD)
    with pytest.raises(RuntimeError):
        response.start(200, [], STANDARD)
    response.data(b"x", is_last=True)
    with pytest.raises(RuntimeError):
        response.data(b"x", is_last=True)


def test_every_answer_has_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 784_111_777.0
    monkeypatch.setattr("time.time", lambda: now_s)
    standard = StandardHeaders([(b"a", b"b")])
    assert standard.lines() == b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\na: b\r\n"
    now_s += 1
    assert standard.lines() == b"date: Sun, 06 Nov 1994 08:49:38 GMT\r\na: b\r\n"
