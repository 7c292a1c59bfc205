"""What comes in on a connection, piece by piece, and when nothing more is read."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from smista.protocols.turns import Turns
from smista.server.http.gathering import GatheringTransport
from smista.server.http.intake import LISTENED_BYTES_MAX, PIECE_MAX, PIECE_MIN, Intake
from smista.server.http.requests import RequestReader
from smista.server.http.websocket import WebSocket
from smista.server.settings import ServerSettings
from tests.server.raw_http import HANDSHAKE, Opcode, frame
from tests.waiting import until


class Socket:
    """A transport of which can be seen whether it reads."""

    is_reading = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return False


async def test_while_a_client_is_listened_to_some_of_what_it_sends_is_kept() -> None:
    taken: list[bytes] = []
    socket = Socket()
    transport = GatheringTransport(cast(Any, socket), asyncio.get_running_loop())
    intake = Intake(Turns(), transport, taken.append)
    transport.pause_reading()
    assert not socket.is_reading
    transport.listen()
    assert socket.is_reading
    intake.take(b"x" * LISTENED_BYTES_MAX)
    assert socket.is_reading
    intake.take(b"y")
    assert not socket.is_reading
    assert taken == []
    transport.resume_reading()
    await until(lambda: socket.is_reading)
    assert b"".join(taken) == b"x" * LISTENED_BYTES_MAX + b"y"


async def test_what_waits_already_does_not_keep_a_client_from_being_listened_to() -> None:
    socket = Socket()
    transport = GatheringTransport(cast(Any, socket), asyncio.get_running_loop())
    intake = Intake(Turns(), transport, lambda _: transport.pause_reading())
    intake.take(b"x" * 20_000)
    assert intake.rest
    assert not socket.is_reading
    transport.listen()
    await until(lambda: socket.is_reading)


async def test_a_protocol_is_given_more_at_a_time_only_of_what_is_plain() -> None:
    sizes: list[int] = []
    data = frame(Opcode.BINARY, b"x" * 100_000) + frame(Opcode.PING, b"") * 1_000
    websocket = WebSocket(1 << 20)
    assert websocket.handshake(b"GET / HTTP/1.1\r\n" + HANDSHAKE) is None
    websocket.accept(None, [])

    def feed(piece: bytes) -> None:
        sizes.append(len(piece))
        websocket.receive(piece)

    transport = GatheringTransport(cast(Any, Socket()), asyncio.get_running_loop())
    intake = Intake(Turns(), transport, feed, lambda: websocket.plain_bytes)
    intake.take(data)
    await until(lambda: not intake.rest)
    assert sum(sizes) == len(data)
    assert max(sizes) == PIECE_MAX
    # From the end of the large frame on.
    assert set(sizes[-10:-1]) == {PIECE_MIN}


async def test_a_body_is_plain_as_long_as_it_has_a_length() -> None:
    reader = RequestReader(ServerSettings())
    assert reader.plain_bytes == 0
    reader.receive(b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + b"x" * 10)
    assert reader.plain_bytes == 990
    reader.receive(b"x" * 990)
    assert reader.plain_bytes == 0
    reader.receive(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n")
    assert reader.plain_bytes == 0
