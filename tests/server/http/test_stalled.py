"""Who goes when memory is low: those who stand still, with most waiting, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from smista.protocols.stalled import STALL_S
from smista.server.http.open_connection import OpenConnection
from smista.server.settings import ServerSettings
from tests.server.http.served import LOOP_FACTORIES, LoopFactory, Served
from tests.server.raw_http import Client, Opcode, frame
from tests.waiting import eventually

PATIENCE_S = 1_000.0
"""Nobody is cut off by time alone here."""
NOTHING = -1
"""May be kept: everybody who stands still goes."""
LARGE, SMALL = 12_000_000, 6_000_000


@pytest.fixture(params=LOOP_FACTORIES, ids=["uvloop", "asyncio"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    loop_factory: LoopFactory = request.param
    settings = ServerSettings(
        header_timeout_s=PATIENCE_S, body_timeout_s=PATIENCE_S, keep_alive_s=PATIENCE_S, websocket_ping_s=0
    )
    with Served(settings).serving(loop_factory) as served:
        yield served


def ask(served: Served, size: int) -> Client:
    """Has asked for so much, and reads nothing."""
    client = served.connect(receive_buffer=10_000)
    before = len(served.connections.unread)
    client.send(b"GET /large/%d HTTP/1.1\r\n\r\n" % size)
    eventually(lambda: len(served.connections.unread) > before)
    return client


def look(served: Served, bytes_max: int = NOTHING) -> None:
    """As it is looked once a second, as long as memory is low."""
    served.make_room(bytes_max)
    served.pass_time(STALL_S)
    served.make_room(bytes_max)


def test_who_has_most_waiting_is_cut_off_first(served: Served) -> None:
    with ask(served, SMALL) as small, ask(served, LARGE):
        look(served, SMALL)
        eventually(lambda: served.socket_count == 1)
        assert len(small.answer().body) == SMALL


def test_who_goes_on_is_left_alone_and_also_who_has_had_no_time_to(served: Served) -> None:
    with ask(served, LARGE) as reader, ask(served, LARGE):
        served.make_room(NOTHING)
        assert served.socket_count == 2
        served.pass_time(STALL_S)
        waiting_bytes = served.connections.output_bytes
        read_bytes = len(reader.read(LARGE // 2))
        eventually(lambda: served.connections.output_bytes < waiting_bytes - LARGE // 8)
        served.make_room(NOTHING)
        eventually(lambda: served.socket_count == 1)
        rest = LARGE - read_bytes
        assert len(reader.read(rest)) == rest


def test_a_body_that_is_not_ended_is_answered_408_and_one_that_grows_is_taken(served: Served) -> None:
    with served.connect() as stalled, served.connect() as growing:
        for client in (stalled, growing):
            client.send(b"POST /length HTTP/1.1\r\nContent-Length: 20000\r\n\r\n" + bytes(5_000))
        eventually(lambda: served.seen == ["length"] * 2)
        served.make_room(NOTHING)
        served.pass_time(STALL_S)
        growing.send(bytes(10_000))
        eventually(lambda: has_come(served, 15_000))
        served.make_room(NOTHING)
        assert stalled.answer().error == (408, "request_timeout")
        growing.send(bytes(5_000))
        assert growing.answer().body == b"20000"


def has_come(served: Served, count: int) -> bool:
    found = [one for one in served.connections.all() if isinstance(one, OpenConnection)]
    return any(connection.coming_bytes == count for connection in found)


def test_a_message_that_is_not_ended_closes_its_websocket(served: Served) -> None:
    with served.connect() as stalled, served.connect() as idle:
        for client in (stalled, idle):
            client.upgrade("/")
        stalled.send(frame(Opcode.BINARY, b"x" * 1_000, is_last=False))
        eventually(partial(has_come, served, 1_000))
        look(served)
        opcode, payload = stalled.frame()
        assert (opcode, int.from_bytes(payload[:2])) == (Opcode.CLOSE, 1013)
        assert served.connections.kept_bytes == 0
        idle.send(frame(Opcode.TEXT, b"here"))
        assert idle.frame() == (Opcode.TEXT, b"here")
