"""A connection as a value: what it makes of bytes, and what it says, without a loop, a socket or a broker."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smista.protocols.amqp.settings import AmqpSettings
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.channel import ChannelEvents, ChannelState
from smista.protocols.amqp.wire.connection import Connection
from smista.protocols.amqp.wire.forms import Form
from smista.protocols.amqp.wire.frames import HEAD, HEARTBEAT_FRAME, METHOD, PROTOCOL_HEADER
from smista.protocols.amqp.wire.methods import Method
from smista.protocols.amqp.wire.replies import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    AmqpError,
    ChannelClosing,
    ConnectionClosing,
)
from tests.protocols.amqp.raw import (
    CLOSE,
    CLOSE_CHANNEL,
    HELLO,
    OPEN,
    OPEN_CHANNEL,
    frame,
    head,
    message,
    on,
    part,
    publish,
    start_ok,
    tune_ok,
)

Event = tuple[Any, ...]
QOS = methods.BasicQos(0, 1, False)
ACK = methods.BasicAck(7, True)
HANDSHAKE = (HELLO, start_ok(), tune_ok(), OPEN)


class Raw(bytes):
    """Properties as they came."""

    @property
    def kept_bytes(self) -> int:
        return len(self)

    @property
    def remembered_bytes(self) -> int:
        return self.kept_bytes

    @property
    def form(self) -> Form:
        return Form(self, None)


class Recorded:
    """What came on a channel."""

    def __init__(self, client: Client, state: ChannelState) -> None:
        self._client = client
        self.state = state

    def _add(self, *event: Any) -> None:
        self._client.events.append((self.state.number, *event))
        self._client.react(self.state, *event)

    def target(self, payload: bytes) -> Method:
        return methods.read(payload)

    def prepare(self, target: Any, raw: bytes) -> Raw:
        return Raw(raw)

    def publish(
        self, target: methods.BasicPublish, prepared: Raw, bodies: list[bytes], properties: list[bytes]
    ) -> None:
        assert properties == [prepared] * len(bodies)
        self._add("publish", target.routing_key, prepared, bodies)

    def count_per_step(self, target: Any, prepared: Any) -> int:
        return self._client.count_per_step

    def acknowledge(self, tag: int, multiple: bool) -> None:
        self._add("acknowledge", tag, multiple)

    def method(self, method: Method) -> None:
        self._add("method", method)

    def closed(self) -> None:
        self._add("closed")
        self.state.send(methods.ChannelCloseOk())

    def failed(self, error: ChannelClosing) -> None:
        self._add("failed", error.code)


class Client:
    """The other side, and who hears of what it sends."""

    def __init__(self, settings: AmqpSettings | None = None) -> None:
        self.events: list[Event] = []
        self.react: Callable[..., None] = lambda *event: None
        self.count_per_step = 500
        self.is_behind = False
        """Whether what was published has not taken effect."""
        self.looks_left = 1 << 30
        """How often it may be asked whether the turn is over before it is."""
        self.connection = Connection(settings or AmqpSettings(), self)

    # -- Events -------------------------------------------------------------------------------------------------------

    def why_refused(self, user: str, password: str) -> str | None:
        return None if (user, password) == ("guest", "guest") else "nobody knows it"

    def has_vhost(self, name: str) -> bool:
        return name == "/"

    def opened(self, user: str, vhost: str) -> None:
        self.events.append(("opened", user, vhost))

    def channel_opened(self, channel: ChannelState) -> ChannelEvents:
        return Recorded(self, channel)

    def flush(self) -> bool:
        if self.is_behind:
            self.connection.is_paused = True
        return not self.is_behind

    def is_turn_over(self) -> bool:
        self.looks_left -= 1
        return self.looks_left < 0

    def closed(self) -> None:
        self.events.append(("closed",))

    # -- the other side -----------------------------------------------------------------------------------------------

    def feed(self, *data: bytes) -> list[tuple[int, Method]]:
        """Send this; what is answered to it."""
        self.connection.receive(b"".join(data))
        try:
            self.connection.process()
        except AmqpError as error:
            self.connection.close(error)
        return self.answers()

    def answers(self) -> list[tuple[int, Method]]:
        return decoded(self.connection.take_output())

    def open(self, channels: int = 1) -> Client:
        self.feed(*HANDSHAKE, *(on(number, methods.ChannelOpen()) for number in range(1, channels + 1)))
        self.events.clear()
        return self


def decoded(data: bytes) -> list[tuple[int, Method]]:
    """The methods of these frames, with their channels."""
    found = []
    while data:
        kind, number, length = HEAD.unpack_from(data)
        assert kind == METHOD
        found.append((number, methods.read(data[7 : 7 + length])))
        data = data[8 + length :]
    return found


@pytest.fixture
def client() -> Client:
    return Client().open()


# -- the handshake ----------------------------------------------------------------------------------------------------


def test_the_header_is_answered_with_start() -> None:
    [(number, start)] = Client().feed(HELLO)
    assert number == 0
    assert isinstance(start, methods.ConnectionStart)
    assert start.mechanisms == b"PLAIN AMQPLAIN"


@pytest.mark.parametrize("cut", range(1, len(HELLO)))
def test_the_header_may_come_in_pieces(cut: int) -> None:
    client = Client()
    assert client.feed(HELLO[:cut]) == []
    assert len(client.feed(HELLO[cut:])) == 1


@pytest.mark.parametrize("other", [b"GET / HTTP/1.1\r\n", b"AMQP\0\1\0\0", b"AMQX"])
def test_what_is_no_header_is_answered_with_ours_and_the_end(other: bytes) -> None:
    client = Client()
    client.connection.receive(other)
    with pytest.raises(ConnectionClosing) as caught:
        client.connection.process()
    client.connection.close(caught.value)
    assert client.connection.take_output() == PROTOCOL_HEADER
    assert client.connection.is_over


def test_the_handshake_step_by_step() -> None:
    client = Client()
    client.feed(HELLO)
    [(_, tune)] = client.feed(start_ok())
    assert isinstance(tune, methods.ConnectionTune)
    assert client.feed(tune_ok()) == []
    assert not client.connection.is_running
    assert client.feed(OPEN) == [(0, methods.ConnectionOpenOk())]
    assert client.connection.is_running
    assert client.events == [("opened", "guest", "/")]


def test_the_handshake_in_one_read() -> None:
    client = Client()
    answers = client.feed(*HANDSHAKE, OPEN_CHANNEL)
    assert [type(method) for _, method in answers] == [
        methods.ConnectionStart,
        methods.ConnectionTune,
        methods.ConnectionOpenOk,
        methods.ChannelOpenOk,
    ]


def test_a_stranger_who_does_something_wrong_is_cut_off_without_a_word() -> None:
    client = Client()
    client.feed(HELLO)
    assert client.feed(on(0, methods.ConnectionTuneOk(0, 0, 0))) == []
    assert client.connection.is_over


@pytest.mark.parametrize("explains", [True, False])
def test_a_wrong_password_is_explained_to_those_who_asked_for_that(explains: bool) -> None:
    client = Client()
    client.feed(HELLO)
    answers = client.feed(start_ok(response=b"\0guest\0no", capabilities={"authentication_failure_close": explains}))
    assert [type(method) for _, method in answers] == ([methods.ConnectionClose] if explains else [])
    assert client.connection.is_over is not explains


def test_a_virtual_host_that_is_not_there() -> None:
    client = Client()
    client.feed(HELLO, start_ok(), tune_ok())
    [(_, closed)] = client.feed(on(0, methods.ConnectionOpen("nowhere")))
    assert isinstance(closed, methods.ConnectionClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (530, 10, 40)


def test_a_channel_before_the_handshake_is_over() -> None:
    client = Client()
    client.feed(HELLO, start_ok())
    [(_, closed)] = client.feed(OPEN_CHANNEL)
    assert isinstance(closed, methods.ConnectionClose)
    assert closed.reply_code == 505


# -- events -----------------------------------------------------------------------------------------------------------


def test_a_message(client: Client) -> None:
    assert client.feed(message(b"body", "q", properties=b"\x10\0\2")) == []
    assert client.events == [(1, "publish", "q", b"\x10\0\2", [b"body"])]


def test_a_message_without_a_body(client: Client) -> None:
    client.feed(message(b"", "q"))
    assert client.events == [(1, "publish", "q", b"\0\0", [b""])]


def test_a_body_in_many_frames(client: Client) -> None:
    client.feed(publish("q"), head(6), part(b"ab"), part(b""), part(b"c"))
    assert client.events == []
    assert client.connection.arriving.kept_bytes == len(b"\0\0" + b"ab" + b"c")
    client.feed(part(b"def"))
    assert client.events == [(1, "publish", "q", b"\0\0", [b"abcdef"])]
    assert client.connection.arriving.kept_bytes == 0


def test_messages_that_are_alike_are_one_event(client: Client) -> None:
    bodies = [b"%d" % number for number in range(9)]
    client.feed(*(message(body, "q") for body in bodies))
    assert client.events == [
        (1, "publish", "q", b"\0\0", bodies[:1]),
        (1, "publish", "q", b"\0\0", bodies[1:]),
    ]


def test_no_more_of_them_at_once_than_is_asked_for(client: Client) -> None:
    client.count_per_step = 3
    client.feed(*(message(b"x", "q") for _ in range(8)))
    assert [len(event[4]) for event in client.events] == [1, 3, 3, 1]


def test_messages_on_two_channels_at_the_same_time() -> None:
    client = Client().open(channels=2)
    client.feed(publish("q"), publish("r", channel=2), head(1), head(1, channel=2), part(b"2", channel=2), part(b"1"))
    assert client.events == [(2, "publish", "r", b"\0\0", [b"2"]), (1, "publish", "q", b"\0\0", [b"1"])]


def test_an_acknowledgement(client: Client) -> None:
    client.feed(on(1, ACK))
    assert client.events == [(1, "acknowledge", 7, True)]


def test_any_other_method(client: Client) -> None:
    client.feed(on(1, QOS))
    assert client.events == [(1, "method", QOS)]


def test_a_heartbeat_is_nothing(client: Client) -> None:
    assert client.feed(HEARTBEAT_FRAME) == []
    assert client.events == []
    client.connection.beat()
    assert client.connection.take_output() == HEARTBEAT_FRAME


# -- in order, and in turn --------------------------------------------------------------------------------------------

STREAM = b"".join(
    (
        *HANDSHAKE,
        OPEN_CHANNEL,
        message(b"a", "q"),
        message(b"bc", "q"),
        message(b"de", "q"),
        on(1, QOS, ACK),
        HEARTBEAT_FRAME,
        publish("q") + head(4) + part(b"fg") + part(b"hi"),
        on(1, CLOSE_CHANNEL),
        on(0, CLOSE),
    )
)


def as_messages(events: list[Event]) -> list[Event]:
    """One by one, however many came together."""
    found: list[Event] = []
    for event in events:
        if event[1:2] == ("publish",):
            found += [(*event[:4], [body]) for body in event[4]]
        else:
            found.append(event)
    return found


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_however_the_bytes_are_cut_they_are_the_same_events_and_answers(cuts: list[int]) -> None:
    whole, pieces = Client(), Client()
    expected = whole.feed(STREAM)
    places = [0, *sorted(cuts), len(STREAM)]
    answers = [answer for start, end in pairwise(places) for answer in pieces.feed(STREAM[start:end])]
    assert answers == expected
    assert as_messages(pieces.events) == as_messages(whole.events)
    assert pieces.connection.is_over
    assert whole.connection.is_over


def test_nothing_is_looked_at_while_it_is_paused(client: Client) -> None:
    def pause(*_: Any) -> None:
        client.connection.is_paused = True

    client.react = pause
    client.feed(on(1, QOS, ACK))
    assert client.events == [(1, "method", QOS)]
    assert client.connection.has_received
    client.connection.is_paused = False
    client.feed(on(1, QOS))
    assert client.events[1:] == [(1, "acknowledge", 7, True)]


def test_a_method_waits_for_what_came_before_it(client: Client) -> None:
    client.is_behind = True
    client.feed(message(b"x", "q"), on(1, QOS, CLOSE_CHANNEL))
    assert [event[1] for event in client.events] == ["publish"]
    client.is_behind = client.connection.is_paused = False
    client.feed()
    assert [event[1] for event in client.events] == ["publish", "method", "closed"]


def test_what_a_turn_has_no_time_for_waits_for_the_next(client: Client) -> None:
    client.looks_left = 0
    client.feed(on(1, QOS) * 200)
    assert 0 < len(client.events) < 100
    while client.connection.has_received:
        client.looks_left = 0
        client.feed()
    assert client.events == [(1, "method", QOS)] * 200


def test_work_that_is_done_for_an_event_counts(client: Client) -> None:
    client.react = lambda *_: client.connection.add_work(1_000)
    client.looks_left = 0
    client.feed(on(1, QOS) * 200)
    assert len(client.events) == 1


# -- the end of a channel ---------------------------------------------------------------------------------------------


def test_the_client_closes_a_channel_and_may_open_it_again(client: Client) -> None:
    assert client.feed(on(1, CLOSE_CHANNEL)) == [(1, methods.ChannelCloseOk())]
    assert client.events == [(1, "closed")]
    assert client.feed(OPEN_CHANNEL) == [(1, methods.ChannelOpenOk())]


def refuse(error: AmqpError) -> Callable[..., None]:
    def react(state: ChannelState, name: str, *_: Any) -> None:
        if name != "failed":
            raise error

    return react


def test_what_is_wrong_on_a_channel_closes_it_and_nobody_else_notices() -> None:
    client = Client().open(channels=2)
    client.react = refuse(ChannelClosing(NOT_FOUND, "no queue"))
    assert client.feed(on(1, QOS)) == [(1, methods.ChannelClose(404, "NOT_FOUND - no queue", 60, 10))]
    assert client.events == [(1, "method", QOS), (1, "failed", 404)]
    client.react = lambda *_: None
    client.events.clear()
    # What comes on it is dropped, until the other side has agreed.
    assert client.feed(on(1, QOS), message(b"x", "q"), on(2, QOS)) == []
    assert client.events == [(2, "method", QOS)]
    assert client.feed(on(1, methods.ChannelCloseOk()), OPEN_CHANNEL) == [(1, methods.ChannelOpenOk())]


def test_messages_that_are_alike_are_no_exception(client: Client) -> None:
    client.feed(message(b"x", "q"))
    client.react = refuse(ChannelClosing(PRECONDITION_FAILED, "no"))
    [(_, closed)] = client.feed(message(b"x", "q") * 3)
    assert closed == methods.ChannelClose(406, "PRECONDITION_FAILED - no", 60, 40)
    assert [event[1] for event in client.events] == ["publish", "publish", "failed"]


def test_both_close_a_channel_at_the_same_time(client: Client) -> None:
    client.connection.close_channel(client.connection.channels[1], ChannelClosing(NOT_FOUND, "no"))
    answers = client.feed(on(1, CLOSE_CHANNEL), on(1, methods.ChannelCloseOk()), OPEN_CHANNEL)
    assert [type(method) for _, method in answers] == [
        methods.ChannelClose,
        methods.ChannelCloseOk,
        methods.ChannelOpenOk,
    ]


def test_a_channel_is_closed_once(client: Client) -> None:
    state = client.connection.channels[1]
    for code in (NOT_FOUND, PRECONDITION_FAILED):
        client.connection.close_channel(state, ChannelClosing(code, "no"))
    assert client.events == [(1, "failed", NOT_FOUND)]
    assert len(client.answers()) == 1


def test_what_was_on_its_way_in_is_forgotten_with_the_channel(client: Client) -> None:
    client.feed(publish("q"), head(4), part(b"ab"))
    client.connection.close_channel(client.connection.channels[1], ChannelClosing(NOT_FOUND, "no"))
    assert client.connection.arriving.kept_bytes == 0


# -- the end of the connection ----------------------------------------------------------------------------------------


def test_the_client_closes_the_connection(client: Client) -> None:
    assert client.feed(on(0, CLOSE), on(1, QOS)) == [(0, methods.ConnectionCloseOk())]
    assert client.events == [("closed",)]
    assert client.connection.is_over


def test_we_close_it_and_say_nothing_more(client: Client) -> None:
    client.connection.close(ConnectionClosing(NOT_FOUND, "gone"))
    client.connection.send(methods.ConnectionUnblocked())
    assert client.answers() == [(0, methods.ConnectionClose(404, "NOT_FOUND - gone", 0, 0))]
    client.connection.send(methods.ConnectionUnblocked())
    assert client.feed(on(1, QOS), message(b"x", "q")) == []
    assert client.events == []
    assert not client.connection.is_over
    client.feed(on(0, methods.ConnectionCloseOk()))
    assert client.connection.is_over


def test_both_close_it_at_the_same_time(client: Client) -> None:
    client.connection.close(ConnectionClosing(NOT_FOUND, "gone"))
    client.answers()
    assert client.feed(on(0, CLOSE)) == [(0, methods.ConnectionCloseOk())]
    assert not client.connection.is_over
    client.feed(on(0, methods.ConnectionCloseOk()))
    assert client.connection.is_over


def test_a_close_that_crosses_ours_is_answered_once(client: Client) -> None:
    client.connection.close(ConnectionClosing(NOT_FOUND, "gone"))
    client.answers()
    assert client.feed(on(0, CLOSE) * 3) == [(0, methods.ConnectionCloseOk())]
    assert client.feed(on(0, CLOSE)) == []
    client.feed(on(0, methods.ConnectionCloseOk()))
    assert client.connection.is_over


def test_a_close_is_answered_once(client: Client) -> None:
    assert client.feed(on(0, CLOSE) * 3) == [(0, methods.ConnectionCloseOk())]
    assert client.events == [("closed",)]


@pytest.mark.parametrize("dropped", [on(0, CLOSE), on(1, QOS), head(1), part(b"x"), HEARTBEAT_FRAME])
def test_what_is_dropped_while_it_is_closing_takes_turns(client: Client, dropped: bytes) -> None:
    client.connection.close(ConnectionClosing(NOT_FOUND, "gone"))
    client.answers()
    client.looks_left = 0
    client.feed(dropped * 200 + on(0, methods.ConnectionCloseOk()) + on(1, QOS))
    assert client.connection.has_received
    assert not client.connection.is_over
    while client.connection.has_received:
        client.looks_left = 0
        client.feed()
    assert client.connection.is_over


def test_frames_that_cannot_be_are_dropped_while_it_is_closing(client: Client) -> None:
    client.connection.close(ConnectionClosing(NOT_FOUND, "gone"))
    client.answers()
    junk = frame(METHOD, 1, b"\0\x3c\0\x0c"), frame(METHOD, 1, b""), frame(9, 1, b""), publish("q") + part(b"x")
    assert client.feed(*junk, on(0, methods.ConnectionCloseOk()), on(1, QOS)) == []
    assert client.connection.is_over
    assert client.events == []


def test_a_close_ok_is_found_behind_what_is_no_frame(client: Client) -> None:
    client.feed(frame(METHOD, 1, b"\0\x3c\0\x0a", end=b"\0"))
    assert client.connection.is_closing
    client.feed(b"rubbish", on(0, methods.ConnectionCloseOk()))
    assert client.connection.is_over


def test_what_was_to_be_said_before_the_end_is_said_before_it(client: Client) -> None:
    answers = client.feed(on(1, CLOSE_CHANNEL), on(0, CLOSE))
    assert answers == [(1, methods.ChannelCloseOk()), (0, methods.ConnectionCloseOk())]


def test_nobody_is_left_to_say_anything_to(client: Client) -> None:
    client.connection.send(methods.ConnectionUnblocked())
    client.connection.lose()
    assert client.answers() == []
    client.connection.receive(on(1, QOS))
    assert not client.connection.has_received


# -- what cannot be ---------------------------------------------------------------------------------------------------

IMPOSSIBLE = {
    "a second channel.open": (OPEN_CHANNEL, 504),
    "a method on a channel that is not open": (on(2, QOS), 504),
    "a method nobody knows": (frame(METHOD, 1, b"\0\x3c\0\x0c"), 540),
    "a method that is cut short": (frame(METHOD, 1, b"\0\x3c\0\x0a\0"), 501),
    "a frame that does not end": (frame(METHOD, 1, b"\0\x3c\0\x0a", end=b"\0"), 501),
    "a frame of no known type": (frame(9, 1, b""), 501),
    "a heartbeat on a channel": (frame(8, 1, b""), 505),
    "a frame that is too long": (HEAD.pack(3, 1, 1 << 20) + b"x", 501),
    "a header without a method": (head(1), 505),
    "a body without a header": (publish("q") + part(b"x"), 505),
    "a method in the middle of a message": (publish("q") + head(1) + on(1, QOS), 505),
    "more body than was announced": (publish("q") + head(1) + part(b"xy"), 501),
    "a header of another class": (publish("q") + head(1, class_number=50), 505),
    "a method of the handshake": (on(0, methods.ConnectionTuneOk(0, 0, 0)), 504),
}


@pytest.mark.parametrize(("data", "code"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_be_closes_the_connection(client: Client, data: bytes, code: int) -> None:
    [(number, closed)] = client.feed(data)
    assert number == 0
    assert isinstance(closed, methods.ConnectionClose)
    assert closed.reply_code == code
    assert client.connection.is_closing


def test_a_body_that_is_too_large_closes_its_channel_before_it_comes() -> None:
    client = Client(AmqpSettings(body_bytes_max=100)).open()
    [(number, closed)] = client.feed(publish("q"), head(101))
    assert (number, type(closed)) == (1, methods.ChannelClose)


def test_as_many_channels_as_were_agreed_on_whatever_their_numbers() -> None:
    client = Client()
    client.feed(HELLO, start_ok(), tune_ok(channel_max=2), OPEN)
    assert len(client.feed(on(65_535, methods.ChannelOpen()), on(7, methods.ChannelOpen()))) == 2
    [(_, closed)] = client.feed(on(1, methods.ChannelOpen()))
    assert isinstance(closed, methods.ConnectionClose)
    assert closed.reply_code == 530


@given(st.binary(max_size=200))
def test_whatever_comes_it_is_answered_or_closed(data: bytes) -> None:
    client = Client().open()
    client.feed(data)
    assert client.connection.is_open != client.connection.is_closing
