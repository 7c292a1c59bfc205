"""A real server and sockets: what a connection may do when, and what happens to one that does otherwise.

Codes and texts are those of RabbitMQ 3.10.8. Where it does not answer at all (it falls over unknown methods, and says
nothing to a client that has not been let in), the comment says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smista.engine import Broker, Publication
from smista.log import SqliteLog
from smista.protocols.amqp.wire import methods, values
from smista.protocols.amqp.wire.frames import HEARTBEAT
from tests.protocols.amqp.raw import (
    CLOSE,
    CLOSE_CHANNEL,
    HELLO,
    OPEN,
    OPEN_CHANNEL,
    Raw,
    declare,
    frame,
    head,
    message,
    on,
    part,
    publish,
    start_ok,
    tune_ok,
)
from tests.served import Served
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread
from tests.waiting import with_more_time

QOS = methods.BasicQos(0, 0, False)
TABLE_CUT = b"\x00\x32\x00\x0a\x00\x00\x01q\x00\x00\x00\xff\xff\x01a"
"""A queue.declare whose table is not as long as it says."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as server:
        yield server
    assert [line for line in server.lines if "Traceback" in line or " ERROR " in line] == []


@pytest.fixture
def raw(server: Served) -> Iterator[Raw]:
    """Connected, and nothing sent yet."""
    with Raw(server.amqp_address) as raw:
        yield raw


@pytest.fixture
def opened(raw: Raw) -> Raw:
    """Through the handshake, with channels 1 and 2."""
    return raw.open(channels=2)


@pytest.fixture
def queue(server: Served, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    name: str = request.node.name[:100]
    with Raw(server.amqp_address).open() as raw:
        raw.call(declare(name), methods.QueueDeclareOk)
    return name


# -- the handshake ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x00\x00\x09\x00",
        b"AMQP\x01\x01\x00\x09",
        b"AMQP\x00\x00\x09\x01"[::-1],
        b"\0",
        b"AMQ\0",
    ],
)
def test_another_protocol_is_told_which_one_is_spoken_here(raw: Raw, hello: bytes) -> None:
    raw.send(hello)
    assert raw.take(8) == HELLO
    assert raw.is_over()


def test_the_protocol_header_may_come_in_pieces(raw: Raw) -> None:
    for byte in HELLO:
        raw.send(bytes((byte,)))
    raw.expect(methods.ConnectionStart)


def test_what_the_server_says_of_itself(raw: Raw) -> None:
    raw.send(HELLO)
    start = raw.expect(methods.ConnectionStart)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert (start.mechanisms, start.locales) == (b"PLAIN AMQPLAIN", b"en_US")
    assert {"product", "version", "platform", "information", "copyright", "cluster_name"} < set(start.server_properties)
    assert start.server_properties["capabilities"] == {
        "publisher_confirms": True,
        "exchange_exchange_bindings": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "consumer_priorities": True,
        "authentication_failure_close": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
    }
    raw.send(start_ok())
    assert raw.expect(methods.ConnectionTune) == methods.ConnectionTune(2047, 131_072, 60)
    raw.send(tune_ok(), OPEN)
    assert raw.expect(methods.ConnectionOpenOk) == methods.ConnectionOpenOk("")


def test_a_login_by_amqplain(raw: Raw) -> None:
    response = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"
    raw.send(HELLO, start_ok("AMQPLAIN", response), tune_ok(), OPEN)
    raw.expect(methods.ConnectionStart)
    raw.expect(methods.ConnectionTune)
    raw.expect(methods.ConnectionOpenOk)


# RabbitMQ tells only those with a wrong name or password; the others it cuts off without a word.
@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0guest\0wrong"),
        ("PLAIN", b"\0nobody\0guest"),
        ("PLAIN", b"guest"),
        ("PLAIN", b""),
        ("PLAIN", b"other\0guest\0guest"),
        ("AMQPLAIN", b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05wrong"),
        ("AMQPLAIN", b"\x05LOGINS\xff\xff\xff\xffguest"),
        ("EXTERNAL", b""),
        ("NTLM", b"\0guest\0guest"),
    ],
)
def test_a_bad_login_is_told_to_who_wants_to_know(server: Served, mechanism: str, response: bytes) -> None:
    refused = (
        f"403 ACCESS_REFUSED - Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile. (0, 0)"
    )
    with Raw(server.amqp_address) as raw:
        assert raw.send(HELLO, start_ok(mechanism, response)).ending() == refused
    with Raw(server.amqp_address) as raw:
        assert raw.send(HELLO, start_ok(mechanism, response, {})).ending() == "cut"


def test_only_one_login_is_tried_on_a_connection(raw: Raw) -> None:
    raw.send(HELLO, start_ok(response=b"\0guest\0wrong", capabilities={}), start_ok())
    raw.expect(methods.ConnectionStart)
    assert raw.is_over()


def test_no_password_is_logged(server: Served) -> None:
    with Raw(server.amqp_address) as raw:
        raw.send(HELLO, start_ok(response=b"\0guest\0hunter2"))
        raw.ending()
    with Raw(server.amqp_address) as raw:
        broken = start_ok(response=b"\0guest\0hunter2")
        raw.send(HELLO, broken[:-1] + b"\0")
        raw.ending()
    assert [line for line in server.lines if "hunter2" in line or "104,117,110" in line] == []


@pytest.mark.parametrize(
    "early",
    [
        tune_ok(),
        OPEN,
        OPEN_CHANNEL,
        on(1, QOS),
        on(0, methods.ConnectionSecureOk(b"x")),
        on(0, methods.ConnectionStart(0, 9, {}, b"", b"")),
        frame(1, 0, b"\0\x0a\0\x63"),
        frame(1, 0, b"\0\x0a\0\x0b\xff\xff\xff\xff"),
        frame(2, 0, b"x"),
        frame(3, 1, b"x"),
        frame(9, 0, b"x"),
        frame(8, 1, b""),
        frame(8, 0, b"", end=b"x"),
        b"\x01\x00\x00\xff\xff\xff\xff\x00",
    ],
    ids=str,
)
def test_before_its_login_a_client_is_told_nothing(raw: Raw, early: bytes) -> None:
    assert raw.send(HELLO, early).ending() == "cut"


def test_a_heartbeat_may_come_at_any_time(raw: Raw) -> None:
    beat = frame(8, 0, b"")
    raw.send(HELLO, beat, start_ok(), beat, tune_ok(), beat, OPEN, beat, OPEN_CHANNEL, beat)
    raw.expect(methods.ConnectionStart)
    raw.expect(methods.ConnectionTune)
    raw.expect(methods.ConnectionOpenOk)
    raw.expect(methods.ChannelOpenOk)
    assert raw.is_well()


# RabbitMQ says so while opening only, and cuts off before.
@pytest.mark.parametrize(
    ("sent", "ending"),
    [
        ([start_ok()], "504 CHANNEL_ERROR - unexpected method in connection state tuning (10, 11)"),
        ([OPEN], "504 CHANNEL_ERROR - unexpected method in connection state tuning (10, 40)"),
        ([OPEN_CHANNEL], "505 UNEXPECTED_FRAME - type 1, all octets = <<0,20,0,10,0>> (0, 0)"),
        ([tune_ok(), tune_ok()], "504 CHANNEL_ERROR - unexpected method in connection state opening (10, 31)"),
        ([tune_ok(), OPEN_CHANNEL], "505 UNEXPECTED_FRAME - type 1, all octets = <<0,20,0,10,0>> (0, 0)"),
        ([tune_ok(), frame(3, 1, b"abc")], '505 UNEXPECTED_FRAME - type 3, all octets = <<"abc">> (0, 0)'),
    ],
)
def test_the_handshake_goes_in_order(raw: Raw, sent: list[bytes], ending: str) -> None:
    assert raw.send(HELLO, start_ok(), *sent).ending() == ending


@pytest.mark.parametrize("vhost", ["nope", "", "//", "ñ"])
def test_a_virtual_host_has_to_be_there(raw: Raw, vhost: str) -> None:
    raw.send(HELLO, start_ok(), tune_ok(), on(0, methods.ConnectionOpen(vhost)))
    assert raw.ending() == f"530 NOT_ALLOWED - vhost {vhost} not found (10, 40)"


@pytest.mark.parametrize(
    ("tuned", "why"),
    [
        (tune_ok(frame_max=4095), "frame_max = 4095 is lower than the minimum allowed value (4096)"),
        (tune_ok(frame_max=1), "frame_max = 1 is lower than the minimum allowed value (4096)"),
        (tune_ok(frame_max=131_073), "frame_max = 131073 is higher than the maximum allowed value (131072)"),
        (tune_ok(frame_max=0xFFFFFFFF), "frame_max = 4294967295 is higher than the maximum allowed value (131072)"),
        (tune_ok(channel_max=2048), "channel_max = 2048 is higher than the maximum allowed value (2047)"),
        (tune_ok(channel_max=0xFFFF), "channel_max = 65535 is higher than the maximum allowed value (2047)"),
    ],
)
def test_limits_beyond_ours_are_not_agreed_to(raw: Raw, tuned: bytes, why: str) -> None:
    # RabbitMQ has the same words for it in its log, and cuts off.
    assert raw.send(HELLO, start_ok(), tuned, OPEN).ending() == f"530 NOT_ALLOWED - negotiated {why} (10, 31)"


@pytest.mark.parametrize(
    "tuned", [tune_ok(0, 0, 0), tune_ok(1, 4096, 0), tune_ok(2047, 131_072, 65_535), tune_ok(1, 0, 1)]
)
def test_limits_within_ours_are_agreed_to_and_none_means_ours(raw: Raw, tuned: bytes) -> None:
    raw.send(HELLO, start_ok(), tuned, OPEN, OPEN_CHANNEL)
    raw.expect(methods.ConnectionStart)
    raw.expect(methods.ConnectionTune)
    raw.expect(methods.ConnectionOpenOk)
    raw.expect(methods.ChannelOpenOk)


@pytest.mark.parametrize("sent", [[], [start_ok()], [start_ok(), tune_ok()], [start_ok(), tune_ok(), OPEN]])
def test_a_client_may_close_at_any_stage(raw: Raw, sent: list[bytes]) -> None:
    # RabbitMQ answers only when the connection is open.
    raw.send(HELLO, *sent, on(0, CLOSE))
    while not isinstance(methods.read(raw.next()[2]), methods.ConnectionCloseOk):
        pass
    assert raw.is_over()


@pytest.mark.parametrize("sent", [b"", HELLO[:3], HELLO, HELLO + start_ok(), HELLO + start_ok() + tune_ok()])
def test_a_handshake_that_takes_too_long_is_cut(impatient: Served, sent: bytes) -> None:
    with Raw(impatient.amqp_address) as raw:
        with contextlib.suppress(ConnectionError):  # it may be cut before it has sent anything
            raw.send(sent)
        assert raw.ending() == "cut"


@pytest.fixture(scope="module")
def impatient() -> Iterator[ServerThread]:
    with ServerThread(header_timeout_s=0.2) as server:
        yield server


def test_an_open_connection_is_not_cut_for_the_handshakes_time() -> None:
    for attempt in with_more_time(0.2, 3, 30, errors=(EOFError, OSError)):
        with (
            attempt as seconds,
            ServerThread(header_timeout_s=seconds) as server,
            Raw(server.amqp_address) as slow,
            Raw(server.amqp_address).open() as raw,
        ):
            assert slow.is_over()
            assert raw.is_well()


@pytest.mark.slow
def test_one_connection_too_many_is_cut() -> None:
    with ServerThread(connections_max=2) as server:
        first, second = Raw(server.amqp_address).open(), Raw(server.amqp_address).open()
        with Raw(server.amqp_address) as third:
            assert third.is_over()
        first.close()
        with Raw(server.amqp_address) as third:
            third.open()
        second.drop()


# -- frames that cannot be --------------------------------------------------------------------------------------------

FRAMES: dict[str, tuple[bytes, str]] = {
    "frame end": (
        frame(1, 1, b"\0\x14\0\x14\1", end=b"x"),
        "501 FRAME_ERROR - type 1, all octets = <<0,20,0,20,1>>: {invalid_frame_end_marker,120} (0, 0)",
    ),
    "frame end of a heartbeat": (
        frame(8, 0, b"", end=b"\0"),
        "501 FRAME_ERROR - type 8, all octets = <<>>: {invalid_frame_end_marker,0} (0, 0)",
    ),
    "frame end of a long frame": (
        frame(3, 1, b"abc" * 100, end=b"x"),
        '501 FRAME_ERROR - type 3, first 16 octets = <<"abcabcabcabcabca">>: {invalid_frame_end_marker,120} (0, 0)',
    ),
    "one byte too large": (
        frame(3, 1, bytes(131_073)),
        "501 FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,131073,131064} (0, 0)",
    ),
    "far too large, as announced": (
        b"\x01\x00\x01\xff\xff\xff\xff\x00",
        "501 FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,4294967295,131064} (0, 0)",
    ),
    "type 0": (frame(0, 1, b""), "501 FRAME_ERROR - type 0, all octets = <<>>: unknown_frame (0, 0)"),
    "type 4": (frame(4, 0, b"abc"), '501 FRAME_ERROR - type 4, all octets = <<"abc">>: unknown_frame (0, 0)'),
    "type 255": (frame(255, 9, b"\0"), "501 FRAME_ERROR - type 255, all octets = <<0>>: unknown_frame (0, 0)"),
    "heartbeat on a channel": (frame(8, 1, b""), "505 UNEXPECTED_FRAME - type 8, all octets = <<>> (0, 0)"),
    "heartbeat with a payload": (
        frame(8, 0, b"abc"),
        '501 FRAME_ERROR - type 8, all octets = <<"abc">>: unknown_frame (0, 0)',
    ),
    "content on channel 0": (frame(3, 0, b"abc"), '505 UNEXPECTED_FRAME - type 3, all octets = <<"abc">> (0, 0)'),
    "half a method": (frame(1, 1, b"\0\x3c"), "501 FRAME_ERROR - type 1, all octets = <<0,60>>: unknown_frame (0, 0)"),
    "no method": (frame(1, 0, b""), "501 FRAME_ERROR - type 1, all octets = <<>>: unknown_frame (0, 0)"),
    "more than a method": (
        frame(1, 1, b"\0\x3c\0\x0a" + bytes(7) + b"zz"),
        "501 FRAME_ERROR - cannot decode <<0,0,0,0,0,0,0,122,122>> (60, 10)",
    ),
    "less than a method": (
        frame(1, 1, b"\0\x3c\0\x0a" + bytes(3)),
        "501 FRAME_ERROR - cannot decode <<0,0,0>> (60, 10)",
    ),
    "an ack cut short": (
        frame(1, 1, b"\0\x3c\0\x50" + bytes(8)),
        "501 FRAME_ERROR - cannot decode <<0,0,0,0,0,0,0,0>> (60, 80)",
    ),
    "a table that lies": (
        frame(1, 1, TABLE_CUT),
        "501 FRAME_ERROR - cannot decode <<0,0,1,113,0,0,0,255,255,1,97>> (50, 10)",
    ),
    "a name that is no text": (
        frame(1, 1, b"\0\x3c\0\x46\0\0\x02\xff\xfe\0"),
        "501 FRAME_ERROR - Malformed UTF-8 in shortstr (0, 0)",
    ),
    # RabbitMQ falls over these; 540 is what the specification says.
    "unknown method": (frame(1, 1, b"\0\x3c\0\x63"), "540 NOT_IMPLEMENTED - unknown method 60.99 (60, 99)"),
    "unknown class": (frame(1, 1, b"\0\x63\0\x0a"), "540 NOT_IMPLEMENTED - unknown method 99.10 (99, 10)"),
    "unknown method on channel 0": (
        frame(1, 0, b"\0\x0a\0\x63"),
        "540 NOT_IMPLEMENTED - unknown method 10.99 (10, 99)",
    ),
}
METHODS: dict[str, tuple[bytes, str]] = {
    "a method on no channel": (on(7, QOS), "504 CHANNEL_ERROR - expected 'channel.open' (60, 10)"),
    # RabbitMQ waits for its content first.
    "a publish on no channel": (publish("q", channel=7), "504 CHANNEL_ERROR - expected 'channel.open' (60, 40)"),
    "an ack on no channel": (
        on(7, methods.BasicAck(1, False)),
        "504 CHANNEL_ERROR - expected 'channel.open' (60, 80)",
    ),
    "close of no channel": (on(7, CLOSE_CHANNEL), "504 CHANNEL_ERROR - expected 'channel.open' (20, 40)"),
    "close-ok of no channel": (
        on(7, methods.ChannelCloseOk()),
        "504 CHANNEL_ERROR - expected 'channel.open' (20, 41)",
    ),
    "content on no channel": (
        head(0, channel=7),
        "505 UNEXPECTED_FRAME - expected method frame, got non method frame instead (0, 0)",
    ),
    "a body on no channel": (
        part(b"x", channel=7),
        "505 UNEXPECTED_FRAME - expected method frame, got non method frame instead (0, 0)",
    ),
    "second open": (OPEN_CHANNEL, "504 CHANNEL_ERROR - second 'channel.open' seen (20, 10)"),
    "close-ok unasked": (on(1, methods.ChannelCloseOk()), "503 COMMAND_INVALID - unimplemented method (20, 41)"),
    "flow-ok": (on(1, methods.ChannelFlowOk(True)), "503 COMMAND_INVALID - unimplemented method (20, 21)"),
    "flow off": (on(1, methods.ChannelFlow(False)), "540 NOT_IMPLEMENTED - active=false (20, 20)"),
    "an answer": (on(1, methods.BasicQosOk()), "503 COMMAND_INVALID - unimplemented method (60, 11)"),
    "a connection's method on a channel": (on(1, CLOSE), "503 COMMAND_INVALID - unimplemented method (10, 50)"),
    "tune-ok on a channel": (
        on(1, methods.ConnectionTuneOk(1, 4096, 0)),
        "503 COMMAND_INVALID - unimplemented method (10, 31)",
    ),
    "a channel's method on 0": (
        on(0, methods.ChannelOpen()),
        "504 CHANNEL_ERROR - unexpected method in connection state running (20, 10)",
    ),
    "a publish on 0": (
        publish("q", channel=0),
        "504 CHANNEL_ERROR - unexpected method in connection state running (60, 40)",
    ),
    "start-ok again": (start_ok(), "504 CHANNEL_ERROR - unexpected method in connection state running (10, 11)"),
    "tune-ok again": (tune_ok(), "504 CHANNEL_ERROR - unexpected method in connection state running (10, 31)"),
    "open again": (OPEN, "504 CHANNEL_ERROR - unexpected method in connection state running (10, 40)"),
    "close-ok unasked on 0": (
        on(0, methods.ConnectionCloseOk()),
        "504 CHANNEL_ERROR - unexpected method in connection state running (10, 51)",
    ),
    "blocked by a client": (
        on(0, methods.ConnectionBlocked("")),
        "504 CHANNEL_ERROR - unexpected method in connection state running (10, 60)",
    ),
    "secure-ok": (
        on(0, methods.ConnectionSecureOk(b"")),
        "504 CHANNEL_ERROR - unexpected method in connection state running (10, 21)",
    ),
}
NO_METHOD = "505 UNEXPECTED_FRAME - expected method frame, got non method frame instead (0, 0)"
NO_HEADER = "505 UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead (60, 40)"
NO_BODY = "505 UNEXPECTED_FRAME - expected content body, got non content body frame instead (60, 40)"
CONTENT: dict[str, tuple[bytes, str]] = {
    "a header alone": (head(0), NO_METHOD),
    "a body alone": (part(b"abc"), NO_METHOD),
    "publish, publish": (publish("q") + publish("q"), NO_HEADER),
    "publish, body": (publish("q") + part(b"abc"), NO_HEADER),
    "publish, method": (publish("q") + on(1, QOS), NO_HEADER),
    "publish, ack": (publish("q") + on(1, methods.BasicAck(1, False)), NO_HEADER),
    "publish, close": (publish("q") + on(1, CLOSE_CHANNEL), NO_HEADER),
    "publish, header, header": (publish("q") + head(3) + head(3), NO_BODY),
    "publish, header, method": (publish("q") + head(3) + on(1, QOS), NO_BODY),
    "publish, header, publish": (publish("q") + head(3) + part(b"ab") + publish("q"), NO_BODY),
    "a body after the body": (message(b"abc", "q") + part(b"d"), NO_METHOD),
    "a body after no body": (message(b"", "q") + part(b""), NO_METHOD),
    # RabbitMQ waits for ever.
    "more than was announced": (
        publish("q") + head(3) + part(b"abcd"),
        "501 FRAME_ERROR - more content than the header announced (60, 40)",
    ),
    "more than was announced, in parts": (
        publish("q") + head(3) + part(b"ab") + part(b"cd"),
        "501 FRAME_ERROR - more content than the header announced (60, 40)",
    ),
    "a header of another class": (
        publish("q") + head(0, class_number=50),
        "505 UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead (60, 40)",
    ),
    "a header with a weight": (publish("q") + head(0, weight=1), NO_HEADER),
    "a header cut short": (
        publish("q") + frame(2, 1, b"\0\x3c\0\0"),
        "501 FRAME_ERROR - type 2, all octets = <<0,60,0,0>>: unknown_frame (0, 0)",
    ),
    # RabbitMQ falls over these, 541.
    "properties that are not there": (
        publish("q") + head(0, properties=b"\x80\0"),
        "502 SYNTAX_ERROR - 1 bytes are announced and 0 are there (60, 40)",
    ),
    "more than the properties": (
        publish("q") + head(0, properties=b"\0\0zzz"),
        "502 SYNTAX_ERROR - 3 bytes follow the properties (60, 40)",
    ),
    "a value of no type": (
        publish("q") + head(0, properties=b"\x20\0\0\0\0\x05\x01kZab"),
        "502 SYNTAX_ERROR - a table holds a value of unknown type 90 (60, 40)",
    ),
    "immediate": (
        on(1, methods.BasicPublish(0, "", "q", False, True)) + head(0),
        "540 NOT_IMPLEMENTED - immediate=true (60, 40)",
    ),
}
WRONG = {**FRAMES, **METHODS, **CONTENT}


@pytest.mark.parametrize(("sent", "ending"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_closes_the_connection_and_no_other(
    server: Served, opened: Raw, sent: bytes, ending: str
) -> None:
    with Raw(server.amqp_address).open() as other:
        assert opened.send(sent).ending() == ending
        assert other.is_well()


@pytest.mark.parametrize("size", [131_064, 131_072])
def test_the_largest_frame_is_taken_and_the_largest_payload_too(opened: Raw, queue: str, size: int) -> None:
    # RabbitMQ puts up with clients that take the size of a frame for that of its payload.
    opened.send(message(bytes(size), queue))
    assert opened.get(queue) == bytes(size)


def test_a_frame_may_not_be_larger_than_was_agreed(raw: Raw) -> None:
    raw.open(frame_max=4096)
    raw.send(publish("q"), head(4097), part(bytes(4097)))
    assert raw.ending() == "501 FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,4097,4088} (0, 0)"


def test_tables_may_be_nested_so_deep_and_no_deeper(opened: Raw, queue: str) -> None:
    headers: dict[str, object] = {}
    for _ in range(64):
        headers = {"": headers}
    opened.send(message(b"x", queue, properties=b"\x20\0" + values.table(headers)))
    assert opened.get(queue) == b"x"
    headers = {"": headers}
    opened.send(on(1, methods.QueueDeclare(0, "deep", False, True, False, False, False, headers)))
    assert opened.ending().startswith("501 FRAME_ERROR - cannot decode <<")


# -- channels ---------------------------------------------------------------------------------------------------------


def test_channels_up_to_the_agreed_number(raw: Raw) -> None:
    raw.open(channels=0, channel_max=3)
    for number in (3, 1, 2):
        raw.call(methods.ChannelOpen(), methods.ChannelOpenOk, channel=number)
    raw.call(CLOSE_CHANNEL, methods.ChannelCloseOk, channel=2)
    raw.call(methods.ChannelOpen(), methods.ChannelOpenOk, channel=2)
    raw.send(on(4, methods.ChannelOpen()))
    assert raw.ending() == (
        "530 NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3) (0, 0)"
    )


@pytest.mark.parametrize("number", [11, 2047, 2048, 65_535])
def test_channels_are_counted_whatever_their_numbers(raw: Raw, number: int) -> None:
    raw.open(channel_max=2)
    raw.call(methods.ChannelOpen(), methods.ChannelOpenOk, channel=number)
    assert raw.is_well(number)
    raw.send(on(2, methods.ChannelOpen()))
    assert raw.ending() == (
        "530 NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2) (0, 0)"
    )


def test_all_channels_at_once(raw: Raw) -> None:
    raw.open(channels=2047)
    assert all(raw.is_well(number) for number in (1, 1000, 2047))
    raw.close()


CHANNEL_ERRORS: dict[str, tuple[bytes, str]] = {
    "publish to nowhere": (
        message(b"abc", "k", "no-such"),
        "404 NOT_FOUND - no exchange 'no-such' in vhost '/' (60, 40)",
    ),
    "an empty publish to nowhere": (
        message(b"", "k", "no-such"),
        "404 NOT_FOUND - no exchange 'no-such' in vhost '/' (60, 40)",
    ),
    "publish to no text": (
        frame(1, 1, b"\0\x3c\0\x28\0\0\x02\xff\xfe\0\0") + head(0),
        "404 NOT_FOUND - no exchange '��' in vhost '/' (60, 40)",
    ),
    "an unknown tag": (
        on(1, methods.BasicAck(99, False)),
        "406 PRECONDITION_FAILED - unknown delivery tag 99 (60, 80)",
    ),
    "a rejected unknown tag": (
        on(1, methods.BasicReject(99, False)),
        "406 PRECONDITION_FAILED - unknown delivery tag 99 (60, 90)",
    ),
    "passive declare": (
        on(1, declare("no-such", is_passive=True)),
        "404 NOT_FOUND - no queue 'no-such' in vhost '/' (50, 10)",
    ),
    # RabbitMQ takes it all first.
    "too large a message, before it has come": (
        publish("q") + head(1 << 40) + part(b"abc"),
        "406 PRECONDITION_FAILED - message size 1099511627776 is larger than configured max size 134217728 (60, 40)",
    ),
    "an expiration that is no number": (
        message(b"abc", "q", properties=b"\x01\x00\x03abc"),
        "406 PRECONDITION_FAILED - invalid expiration 'abc': no_integer (60, 40)",
    ),
}


@pytest.mark.parametrize(("sent", "ending"), CHANNEL_ERRORS.values(), ids=CHANNEL_ERRORS.keys())
def test_an_error_of_a_channel_leaves_the_others_alone(opened: Raw, sent: bytes, ending: str) -> None:
    opened.send(sent)
    assert opened.channel_ending() == ending
    assert opened.is_well(2)
    opened.call(methods.ChannelOpen(), methods.ChannelOpenOk)
    assert opened.is_well(1)


def test_frames_for_a_channel_that_is_closing_are_dropped(opened: Raw, queue: str) -> None:
    opened.send(
        message(b"", "k", "no-such"),
        message(b"dropped", queue),
        on(1, QOS, methods.BasicAck(7, False)),
        on(1, methods.BasicConsume(0, queue, "me", False, False, False, False, {})),
        head(0),
        part(b"x"),
        on(2, QOS),
    )
    opened.expect(methods.ChannelClose)
    opened.expect(methods.BasicQosOk)
    opened.send(on(1, QOS), on(1, methods.ChannelCloseOk()), OPEN_CHANNEL)
    opened.expect(methods.ChannelOpenOk)
    assert opened.get(queue) is None


def test_a_channel_that_is_closing_cannot_be_opened(opened: Raw) -> None:
    opened.send(on(1, methods.BasicAck(1, False)), OPEN_CHANNEL)
    assert opened.ending() == "504 CHANNEL_ERROR - second 'channel.open' seen (20, 10)"


def test_both_sides_close_a_channel_at_once(opened: Raw) -> None:
    opened.send(on(1, methods.BasicAck(1, False), CLOSE_CHANNEL), on(1, methods.ChannelCloseOk()), OPEN_CHANNEL)
    opened.expect(methods.ChannelClose)
    opened.expect(methods.ChannelCloseOk)
    opened.expect(methods.ChannelOpenOk)
    assert opened.is_well()


def test_a_channel_can_be_used_again_after_its_close(opened: Raw, queue: str) -> None:
    opened.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
    for _ in range(3):
        opened.send(message(b"x", queue), on(1, CLOSE_CHANNEL), OPEN_CHANNEL)
        while not isinstance(methods.read(opened.next()[2]), methods.ChannelOpenOk):
            pass
    # Nothing is left of what it was: no confirms, tags from 1.
    opened.send(message(b"y", queue))
    assert opened.is_well()
    assert opened.call(declare(queue, is_passive=True), methods.QueueDeclareOk).message_count == 4
    opened.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
    opened.send(message(b"z", queue))
    assert opened.expect(methods.BasicAck) == methods.BasicAck(1, False)


# -- closing ----------------------------------------------------------------------------------------------------------


def test_a_client_closes_its_connection(opened: Raw, queue: str, server: Served) -> None:
    opened.send(message(b"x", queue), on(0, CLOSE), message(b"too late", queue))
    opened.expect(methods.ConnectionCloseOk)
    assert opened.is_over()
    with Raw(server.amqp_address).open() as other:
        assert (other.get(queue), other.get(queue)) == (b"x", None)


@pytest.mark.parametrize("is_closed_by_us", [True, False], ids=["by us", "by the client"])
def test_a_client_with_publishes_on_the_way_reads_our_last_word(
    opened: Raw, queue: str, server: Served, is_closed_by_us: bool
) -> None:
    on_the_way = message(bytes(100_000), queue)
    if is_closed_by_us:
        opened.send(on(7, QOS))
        opened.send(*[on_the_way] * 200)
        opened.expect(methods.ConnectionClose)
        opened.send(on(0, methods.ConnectionCloseOk()))
    else:
        opened.send(on(0, CLOSE))
    # More than the system takes for somebody who does not read: without a reader this would fail, or stand still.
    opened.send(*[on_the_way] * 200)
    if not is_closed_by_us:
        opened.expect(methods.ConnectionCloseOk)
    assert opened.socket.recv(1) == b""
    with Raw(server.amqp_address).open() as other:
        assert other.get(queue) is None


def test_frames_for_a_connection_that_is_closing_are_dropped(opened: Raw, queue: str, server: Served) -> None:
    opened.send(on(7, QOS), message(b"dropped", queue), on(1, QOS), on(9, QOS))
    opened.expect(methods.ConnectionClose)
    opened.send(message(b"dropped", queue), on(1, QOS), on(0, methods.ConnectionCloseOk()), on(1, QOS))
    assert opened.is_over()
    with Raw(server.amqp_address).open() as other:
        assert other.get(queue) is None


def test_both_sides_close_a_connection_at_once(opened: Raw) -> None:
    opened.send(on(7, QOS))
    opened.expect(methods.ConnectionClose)
    opened.send(on(0, CLOSE))
    opened.expect(methods.ConnectionCloseOk)
    opened.send(on(0, methods.ConnectionCloseOk()))
    assert opened.is_over()


def test_what_a_lost_connection_held_goes_to_another(server: Served, opened: Raw, queue: str) -> None:
    opened.send(message(b"x", queue))
    opened.call(methods.BasicConsume(0, queue, "me", False, False, False, False, {}), methods.BasicConsumeOk)
    assert opened.delivery()[1] == b"x"
    with Raw(server.amqp_address).open() as other:
        other.call(methods.BasicConsume(0, queue, "me", False, False, False, False, {}), methods.BasicConsumeOk)
        opened.drop()
        delivered, body = other.delivery()
        assert (delivered.redelivered, body) == (True, b"x")


def test_a_secret_may_be_renewed(opened: Raw) -> None:
    opened.call(methods.ConnectionUpdateSecret(b"new", "because"), methods.ConnectionUpdateSecretOk, channel=0)
    assert opened.is_well()


@pytest.mark.slow
def test_a_stopping_server_says_so_and_loses_nothing(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, Raw(server.amqp_address) as early, Raw(server.amqp_address) as raw:
        early.send(HELLO)
        early.expect(methods.ConnectionStart)
        raw.open()
        raw.call(declare("q"), methods.QueueDeclareOk)
        raw.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
        raw.send(message(b"held", "q"))
        raw.expect(methods.BasicAck)
        raw.send(on(1, methods.BasicGet(0, "q", False)))
        raw.expect(methods.BasicGetOk)
        assert raw.content() == b"held"
        server.signal(signal.SIGTERM)
        assert raw.ending() == (
            "320 CONNECTION_FORCED - broker forced connection closure with reason 'shutdown' (0, 0)"
        )
        assert early.is_over()
        assert server.wait() == 0
    with ServerProcess(tmp_path) as server, Raw(server.amqp_address).open() as raw:
        assert raw.get("q") == b"held"


@pytest.mark.slow
def test_a_stopping_server_does_not_wait_for_ever_for_who_does_not_answer() -> None:
    with ServerProcess() as server, Raw(server.amqp_address).open() as raw:
        server.signal(signal.SIGTERM)
        raw.expect(methods.ConnectionClose)
        assert server.wait() == 0
        assert raw.is_over()


# -- heartbeats -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_server_sends_heartbeats_twice_an_interval(server: Served) -> None:
    for attempt in with_more_time(1, 6, 30, errors=(AssertionError, EOFError, OSError)):
        with attempt as interval_s, Raw(server.amqp_address).open(heartbeat=int(interval_s)) as raw:
            started_s = time.monotonic()
            for _ in range(3):
                assert raw.frame() == (HEARTBEAT, 0, b"")
                raw.send(frame(8, 0, b""))
            assert time.monotonic() - started_s > 1.2 * interval_s


@pytest.mark.slow
def test_a_client_that_is_silent_for_two_intervals_is_cut(raw: Raw) -> None:
    raw.open(heartbeat=1)
    started_s = time.monotonic()
    assert raw.ending() == "cut"
    assert time.monotonic() - started_s > 1.9


@pytest.mark.slow
def test_a_client_that_says_anything_is_not_cut(server: Served) -> None:
    for attempt in with_more_time(1, 6, 30, errors=(AssertionError, EOFError, OSError)):
        with attempt as interval_s, Raw(server.amqp_address).open(heartbeat=int(interval_s)) as raw:
            started_s = time.monotonic()
            while time.monotonic() - started_s < 2.6 * interval_s:
                assert raw.frame() == (HEARTBEAT, 0, b"")
                assert raw.is_well()


# -- publishes are refused --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server on a disk that is too full for it, with a queue `q` that had two messages before."""
    data = tmp_path_factory.mktemp("refusing")
    asyncio.run(_fill(data))
    with ServerThread(data, disk_free_bytes_min=1 << 49) as server:
        yield server


async def _fill(data: Path) -> None:
    async with await Broker.open(SqliteLog.open(data)) as broker:
        await broker.declaring.declare_queue("q")
        await broker.publishing.publish("q", [Publication(b"1"), Publication(b"2")])


def test_a_publisher_is_blocked_and_others_are_not(refusing: Served) -> None:
    with Raw(refusing.amqp_address).open() as publisher, Raw(refusing.amqp_address).open() as consumer:
        # To declare and to consume is no reason to be blocked.
        consumer.call(methods.BasicConsume(0, "q", "me", False, False, False, False, {}), methods.BasicConsumeOk)
        publisher.call(declare("other"), methods.QueueDeclareOk)
        publisher.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
        publisher.send(message(b"3", "q"), on(1, QOS))
        assert publisher.expect(methods.ConnectionBlocked).reason == "low on disk"
        tags = []
        for body in (b"1", b"2"):
            delivered, got = consumer.delivery()
            assert got == body
            tags.append(delivered.delivery_tag)
        consumer.send(on(1, methods.BasicAck(tags[-1], True)))
        found = consumer.call(declare("q", is_passive=True), methods.QueueDeclareOk)
        assert (found.message_count, found.consumer_count) == (0, 1)
        publisher.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            publisher.next()


def test_a_publisher_that_cannot_be_told_is_blocked_all_the_same(refusing: Served) -> None:
    with Raw(refusing.amqp_address).open(capabilities={}) as publisher:
        publisher.send(message(b"3", "q"), on(1, QOS))
        publisher.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            publisher.next()


@pytest.mark.slow
def test_a_blocked_publisher_gets_heartbeats_and_is_not_cut_for_silence(refusing: Served) -> None:
    with Raw(refusing.amqp_address).open(heartbeat=1) as publisher:
        publisher.send(message(b"3", "q"))
        publisher.expect(methods.ConnectionBlocked)
        started_s = time.monotonic()
        while time.monotonic() - started_s < 2.6:
            assert publisher.frame() == (HEARTBEAT, 0, b"")


# -- the other side does not read -------------------------------------------------------------------------------------

MESSAGES = 128
BODY_BYTES = 1 << 20


@pytest.fixture(scope="module")
def backlog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that keeps few bodies in memory, with 128 MiB in queue `long`."""
    data = tmp_path_factory.mktemp("backlog")
    with ServerProcess(data, "--resident-bytes-max", str(8 << 20)) as server:
        with Raw(server.amqp_address).open() as raw:
            raw.call(declare("long"), methods.QueueDeclareOk)
            raw.call(methods.ConfirmSelect(False), methods.ConfirmSelectOk)
            room = 131_064
            for number in range(MESSAGES):
                body = number.to_bytes(4, "big") * (BODY_BYTES // 4)
                parts = [part(body[start : start + room]) for start in range(0, len(body), room)]
                raw.send(publish("long"), head(len(body)), *parts)
            while raw.expect(methods.BasicAck).delivery_tag < MESSAGES:
                pass
        yield server


def _resident_bytes(server: ServerProcess) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
def test_a_consumer_that_does_not_read_costs_its_window_and_loses_nothing(backlog: ServerProcess) -> None:
    # The one that could acknowledge does not, and gives all back; the other takes it.
    for is_no_ack in (False, True):
        _consume_slowly(backlog, is_no_ack=is_no_ack)


def _consume_slowly(backlog: ServerProcess, *, is_no_ack: bool) -> None:
    before = _resident_bytes(backlog)
    with Raw(backlog.amqp_address, receive_bytes=65_536).open() as consumer, Raw(backlog.amqp_address).open() as other:
        consumer.send(on(1, methods.BasicConsume(0, "long", "me", False, is_no_ack, False, False, {})))
        ready = _steady(other)
        # As much as the sockets hold, and what is between them and the queue.
        assert ready > MESSAGES // 2
        assert _resident_bytes(backlog) - before < 48 << 20
        consumer.expect(methods.BasicConsumeOk)
        for number in range(MESSAGES):
            delivered, body = consumer.delivery()
            assert delivered.delivery_tag == number + 1
            assert body == number.to_bytes(4, "big") * (BODY_BYTES // 4)
        assert _resident_bytes(backlog) - before < 48 << 20


def _steady(raw: Raw) -> int:
    """How many messages are ready when that does not change any more."""
    ready = -1
    while True:
        found = raw.call(declare("long", is_passive=True), methods.QueueDeclareOk).message_count
        if found == ready != MESSAGES:
            return found
        ready = found
        time.sleep(0.2)


def test_a_client_that_asks_and_never_reads_stops_being_read_from(server: Served) -> None:
    with Raw(server.amqp_address, receive_bytes=65_536).open() as greedy, Raw(server.amqp_address).open() as other:
        greedy.call(declare("big"), methods.QueueDeclareOk)
        body = bytes(100_000)
        greedy.send(message(body, "big") * 400)
        assert greedy.is_well()
        greedy.send(on(1, *[methods.BasicGet(0, "big", False)] * 400))
        ready, before = 400, -1
        while ready == 400 or ready != before:
            before = ready
            time.sleep(0.2)
            ready = other.call(declare("big", is_passive=True), methods.QueueDeclareOk).message_count
        assert 0 < ready < 400
        for _ in range(400):
            greedy.expect(methods.BasicGetOk)
            assert len(greedy.content()) == len(body)
        assert greedy.is_well()
