"""Messages that are recognised by their bytes are the same messages as those that are read frame by frame.

The same stream of frames is sent twice: in one read, where runs of like messages are taken at once, and a frame at a
time, where none is. What lies in the queues, and what was answered, must not differ.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smista.protocols.amqp.reply_to import REPLY_TO
from smista.protocols.amqp.wire import methods
from smista.protocols.amqp.wire.content import BasicProperties, write_properties
from smista.protocols.amqp.wire.forms import Form
from smista.protocols.amqp.wire.frames import HEAD
from tests.protocols.amqp.in_process import Client, Server, settle
from tests.protocols.amqp.raw import consume, declare, frame, head, message, on, part, publish

QUEUES = ("q", "r", "full")
KEYS = (*QUEUES, "nowhere")
PROPERTIES = (b"\0\0", b"\x10\0\2", b"\x10\0\1", b"\x18\0\2\7")
"""None; persistent; transient; persistent and of priority 7."""
SAYING: tuple[dict[str, Any], ...] = (
    {},
    {"n": 1, "to": "q"},
    {"n": 2, "to": "r"},
    {"x-delay": 9_000},
    {"x-group": "a"},
    {"CC": ["r"]},
    {"BCC": ["r"]},
)

sizes = st.sampled_from([0, 1, 1, 1, 5, 5, 5, 200, 70_000])
whole = st.builds(
    lambda number, key, properties, sizes: b"".join(
        message(bytes([65 + place % 26]) * size, key, channel=number, properties=properties)
        for place, size in enumerate(sizes)
    ),
    st.integers(1, 2),
    st.sampled_from(KEYS),
    st.sampled_from(PROPERTIES),
    st.lists(sizes, min_size=1, max_size=6),
)
own = st.builds(
    lambda number, key, exchange, headers, expiration, ids, size: b"".join(
        message(
            b"o" * size,
            key,
            exchange,
            channel=number,
            properties=write_properties(
                BasicProperties(headers=dict(headers), expiration=expiration, message_id=one, correlation_id=one[::-1])
            ),
        )
        for one in ids
    ),
    st.integers(1, 2),
    st.sampled_from(KEYS),
    st.sampled_from(["", "", "amq.headers"]),
    st.sampled_from(SAYING),
    st.sampled_from([None, None, "90000", "80000"]),
    st.lists(st.sampled_from(["a1", "b2", "c3", "long"]), min_size=1, max_size=6),
    sizes,
)
"""Messages with ids of their own, some of which are routed by what they say."""
in_parts = st.builds(
    lambda number, key: (
        publish(key, channel=number)
        + head(4, channel=number)
        + part(b"ab", channel=number)
        + part(b"cd", channel=number)
    ),
    st.integers(1, 2),
    st.sampled_from(KEYS),
)
interleaved = st.builds(
    lambda key, other: (
        publish(key) + publish(other, channel=2) + head(1) + head(1, channel=2) + part(b"1") + part(b"2", channel=2)
    ),
    st.sampled_from(KEYS),
    st.sampled_from(KEYS),
)
beside = st.sampled_from([frame(8, 0, b""), on(1, methods.BasicQos(0, 0, False))])
faults = st.sampled_from(
    [
        b"",
        message(b"x", "q", "missing"),
        message(b"xyz", "q")[:-1] + b"\0",
        publish("q") + head(2) + part(b"xyz"),
        publish("q") + head(1 << 40),
        publish("q") + head(3) + part(b"xyz", channel=2),
        message(b"abc", "q")[:-4],
    ]
)
streams = st.tuples(st.lists(whole | own | in_parts | interleaved | beside, max_size=8).map(b"".join), faults).map(
    b"".join
)


def frames_of(stream: bytes) -> list[bytes]:
    found = []
    while len(stream) >= HEAD.size:
        end = HEAD.size + struct.unpack_from(">I", stream, 3)[0] + 1
        found.append(stream[:end])
        stream = stream[end:]
    return [*found, stream]


async def outcome(pieces: list[bytes]) -> tuple[dict[str, list[tuple[bytes, bytes, str, int]]], list[object]]:
    """What lies in the queues, and what was answered; confirms as the tags they confirm."""
    server = await Server().start()
    client = await server.connect(channels=2)
    client.feed(on(1, declare("q"), declare("r"), methods.ConfirmSelect(False)))
    full = methods.QueueDeclare(
        0, "full", False, True, False, False, False, {"x-max-length": 2, "x-overflow": "reject-publish"}
    )
    client.feed(on(1, full), on(2, methods.ConfirmSelect(False)))
    await client.expect_all(*[methods.QueueDeclareOk] * 2, methods.ConfirmSelectOk)
    await client.expect_all(methods.QueueDeclareOk, methods.ConfirmSelectOk)
    for queue in ("q", "r"):
        bind = methods.QueueBind(0, queue, "amq.headers", "", False, {"x-match": "all", "to": queue})
        await client.call(bind, methods.QueueBindOk)
    for piece in pieces:
        client.feed(piece)
        await asyncio.sleep(0)
    await server.broker.durable()
    await settle()
    answers = await _answers(client)
    held = {}
    for queue in QUEUES:
        deliveries = await server.broker.receiving.receive(queue, 1000)
        held[queue] = [
            (one.body, one.envelope.properties, one.envelope.routing_key, one.priority) for one in deliveries
        ]
    await server.stop()
    return held, answers


async def _answers(client: Client) -> list[object]:
    answers: list[object] = []
    confirmed: dict[int, set[int]] = {1: set(), 2: set()}
    refused: dict[int, set[int]] = {1: set(), 2: set()}
    while not client.has_nothing:
        number, method = await client.method()
        if isinstance(method, methods.BasicAck):
            first = max(confirmed[number] | refused[number], default=0) + 1 if method.multiple else method.delivery_tag
            confirmed[number] |= set(range(first, method.delivery_tag + 1))
        elif isinstance(method, methods.BasicNack):
            refused[number].add(method.delivery_tag)
        else:
            answers.append((number, method))
    return [*answers, confirmed, refused]


FULL = message(b"x", "full")


@settings(max_examples=150, deadline=None)
@given(streams)
@example(FULL + message(b"a", "q") + FULL + message(b"b", "q") + FULL * 2 + message(b"c", "q") * 2 + FULL)
@example(message(b"abc", "q") * 3 + message(b"abc", "q")[:-1] + b"\0" + message(b"abc", "q"))
@example(message(b"abc", "q") * 2 + publish("q") + head(9) + part(b"abc") + part(b"defghi") + message(b"abc", "q") * 2)
def test_in_one_read_or_frame_by_frame(stream: bytes) -> None:
    async def both() -> None:
        at_once = await outcome([stream])
        one_by_one = await outcome(frames_of(stream))
        assert at_once[0] == one_by_one[0]
        assert _comparable(at_once[1]) == _comparable(one_by_one[1])

    asyncio.run(both())


def _comparable(answers: list[object]) -> list[object]:
    """What is closed for an error may or may not have been confirmed to before, either way."""
    closes = (methods.ConnectionClose, methods.ChannelClose)
    is_closed = any(isinstance(one, tuple) and isinstance(one[1], closes) for one in answers)
    return answers[:-2] if is_closed else answers


async def test_a_pattern_is_used() -> None:
    """Or all of this would say nothing."""
    server = await Server().start()
    client = await server.connect()
    client.feed(on(1, declare("q")))
    await client.expect(methods.QueueDeclareOk)
    client.feed(b"".join(message(b"x" * size, "q") for size in (3, 3, 4, 4, 9)))
    [pattern] = client.connection._scanner._patterns.values()
    bodies, properties, end = pattern.match(message(b"y" * 5, "q") + message(b"z", "q"), 0, 100, 9)
    assert bodies == [b"yyyyy", b"z"]
    assert properties == [b"\0\0"] * 2
    assert end == len(message(b"y" * 5, "q") + message(b"z", "q"))
    assert [one.body for one in await server.broker.receiving.receive("q", 10)] == [
        b"x" * size for size in (3, 3, 4, 4, 9)
    ]
    await server.stop()


async def test_messages_in_pairs_of_one_form_and_another_are_not_cut_out_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is cut out and found to be of another form is read again: it must not be all that came, each time."""
    server = await Server().start()
    client = await server.connect()
    await client.call(declare("q"), methods.QueueDeclareOk)
    cut_out = 0
    count_fitting = Form.count_fitting

    def counting(form: Form, several: Sequence[bytes]) -> int:
        nonlocal cut_out
        cut_out += len(several)
        return count_fitting(form, several)

    monkeypatch.setattr(Form, "count_fitting", counting)
    pair, other = (message(b"x", "q", properties=properties) * 2 for properties in (b"\x10\0\1", b"\x10\0\2"))
    client.feed((pair + other) * 200)
    await settle()
    assert server.counts() == (800, 0, 0)
    assert 400 <= cut_out <= 800 * 10
    await server.stop()


async def test_a_pattern_does_not_outlive_the_reply_consumer_that_it_names() -> None:
    server = await Server().start()
    client = await server.connect()
    await client.call(declare("q"), methods.QueueDeclareOk)
    await client.call(consume(REPLY_TO, "t", is_no_ack=True), methods.BasicConsumeOk)
    asking = message(b"x", "q", properties=write_properties(BasicProperties(reply_to=REPLY_TO)))
    client.feed(asking * 2)
    await client.call(methods.BasicCancel("t", False), methods.BasicCancelOk)
    client.feed(asking)
    assert "fast reply consumer does not exist" in (await client.expect(methods.ChannelClose)).reply_text
    assert server.counts() == (2, 0, 0)
    await server.stop()


async def test_a_message_between_the_frames_of_another_is_none_of_its_frames() -> None:
    server = await Server().start()
    client = await server.connect(channels=2)
    client.feed(on(1, declare("q"), declare("x")))
    await client.expect_all(*[methods.QueueDeclareOk] * 2)
    between = message(b"y", "q", channel=2)
    client.feed(between * 2)
    client.feed(publish("x") + between + head(1) + part(b"a") + message(b"b", "x"))
    assert client.has_nothing, "nothing was wrong with it"
    assert [one.body for one in await server.broker.receiving.receive("x", 10)] == [b"a", b"b"]
    assert len(await server.broker.receiving.receive("q", 10)) == 3
    assert len(client.connection._scanner._patterns) == 2, "one for each queue"
    await server.stop()


async def test_an_exchange_looks_at_headers_only_after_messages_came_for_which_nobody_did() -> None:
    server = await Server().start()
    client, other = await server.connect(), await server.connect()
    client.feed(on(1, declare("q"), declare("r")))
    await client.expect_all(*[methods.QueueDeclareOk] * 2)
    await client.call(methods.QueueBind(0, "q", "amq.topic", "k", False, {}), methods.QueueBindOk)

    def say(to: str, *bodies: bytes) -> bytes:
        return b"".join(
            message(
                body,
                "k",
                "amq.topic",
                properties=write_properties(BasicProperties(headers={"to": to}, message_id=body.decode())),
            )
            for body in bodies
        )

    client.feed(say("r", b"1", b"2"))
    await other.call(methods.QueueBind(0, "r", "amq.headers", "", False, {"to": "r"}), methods.QueueBindOk)
    await other.call(methods.ExchangeBind(0, "amq.headers", "amq.topic", "k", False, {}), methods.ExchangeBindOk)
    client.feed(say("r", b"3") + say("q", b"4", b"5") + say("r", b"6", b"7"))
    assert client.has_nothing, "nothing was wrong with it"
    assert [one.body for one in await server.broker.receiving.receive("q", 10)] == [b"%d" % n for n in range(1, 8)]
    assert [one.body for one in await server.broker.receiving.receive("r", 10)] == [b"3", b"6", b"7"]
    await server.stop()


async def test_what_is_of_another_form_is_not_cut_out_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await Server().start()
    client = await server.connect()
    client.feed(on(1, declare("q")))
    await client.expect(methods.QueueDeclareOk)
    count_fitting = Form.count_fitting
    cut_out = 0

    def counted(form: Form, several: Sequence[bytes]) -> int:
        nonlocal cut_out
        cut_out += len(several)
        return count_fitting(form, several)

    monkeypatch.setattr(Form, "count_fitting", counted)
    # Two forms of one length, in runs of two.
    properties = [write_properties(BasicProperties(headers={"x-group": group})) for group in "aabb"]
    client.feed(b"".join(message(b"%d" % n, "q", properties=properties[n % 4]) for n in range(1_000)))
    await settle()
    assert 100 < cut_out < 10_000
    deliveries = await server.broker.receiving.receive("q", 1_000)
    assert [(one.body, one.envelope.group) for one in deliveries] == [(b"%d" % n, "aabb"[n % 4]) for n in range(1_000)]
    await server.stop()
