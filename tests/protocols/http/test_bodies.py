"""Bodies, headers and properties: what goes in comes out, in whichever format it is asked for, and what one of the
formats cannot say is refused or given as bytes."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.protocols.http.caller import Caller

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    "",
    "text",
    "dé \U0001f600 \u0000",
    [],
    {},
    [1, [2, [3]]],
    {"a": {"b": [None, True, "c"]}, "ä": 1},
    (1 << 63) - 1,
    -(1 << 63),
    (1 << 64) - 1,
]

PROPERTIES = {
    "content_type": "application/x-order+json",
    "content_encoding": "identity",
    "correlation_id": "c-1",
    "reply_to": "answers",
    "type": "order.placed",
    "app_id": "shop",
    "user_id": "mario",
    "external_id": "e-1",
    "timestamp_ms": 1_700_000_000_000,
}


@pytest.fixture
def other(caller: Caller) -> Caller:
    """On the same queue, in the other format."""
    return caller.another("msgpack" if caller.speaks == "json" else "json")


def deep(nesting: int) -> str:
    return "[" * nesting + "]" * nesting


def send_text(http: Caller, queue: str, message: str) -> Any:
    """Publish JSON text just as it is."""
    body = f'{{"command": "queue.publish", "payload": {{"queue": "{queue}", "message": {message}}}}}'.encode()
    return http.send("POST", "/v1/command", body, content_type="application/json")


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_any_value_comes_out_as_it_went_in(caller: Caller, other: Caller, queue: str, value: Any) -> None:
    caller.publish(queue, value, value)
    [here] = caller.receive(queue)
    with other:
        [there] = other.receive(queue)
    assert here["message"] == value
    assert there["message"] == value
    assert here["content_type"] == there["content_type"] == "application/json"
    assert "body" not in here


def test_json_is_stored_as_it_was_written(http: Caller) -> None:
    queue = http.new_queue()
    written = '{"z": 1.0, "a":  [1E2, "\\u00e4"]}'
    assert send_text(http, queue, written).status == 200
    [got] = http.call("queue.receive", queue=queue, raw=True)["messages"]
    assert base64.b64decode(got["body"]).decode() == written


def test_a_name_that_stands_twice_in_an_object_is_kept(http: Caller) -> None:
    queue = http.new_queue()
    send_text(http, queue, '{"a": 1, "a": 2}')
    body = json.dumps({"command": "queue.peek", "payload": {"queue": queue}}).encode()
    assert b'"message":{"a": 1, "a": 2}' in http.send("POST", "/v1/command", body, content_type="application/json").body
    with http.another("msgpack") as other:
        assert other.call("queue.peek", queue=queue)["messages"][0]["message"] == {"a": 2}


@pytest.mark.parametrize("number", ["1" + "0" * 30, "-" + "9" * 25, "1" * 5_000], ids=len)
def test_a_number_that_messagepack_has_not_is_given_as_bytes_there(http: Caller, number: str) -> None:
    queue = http.new_queue()
    assert send_text(http, queue, number).status == 200
    with http.another("msgpack") as other:
        [got] = other.call("queue.peek", queue=queue)["messages"]
        assert got["body"] == number.encode()
        assert "message" not in got
    answer = http.post("queue.peek", {"queue": queue})
    assert f'"message":{number},'.encode() in answer.body


@pytest.mark.parametrize("nesting", [1, 100, 400, 900, 950, 980, 1_000, 5_000, 1_000_000])
def test_a_deeply_nested_message_is_given_back_or_refused(http: Caller, nesting: int) -> None:
    queue = http.new_queue()
    answer = send_text(http, queue, deep(nesting))
    if nesting > 1_000:
        assert answer.refusal[:2] == (400, "invalid_request")
        assert "nested too deeply" in answer.refusal.message
    elif nesting <= 900:
        assert answer.status == 200
    # In between it depends on how deep the server's own stack is.
    if answer.status != 200:
        assert http.stats(queue)["depth"] == 0
        return
    text = deep(nesting).encode()
    read = http.post("queue.peek", {"queue": queue})
    assert text in read.body or base64.b64encode(text) in read.body
    with http.another("msgpack") as other:
        read = other.post("queue.peek", {"queue": queue})
        assert b"\x91" * (nesting - 1) + b"\x90" in read.body or text in read.body


@pytest.mark.parametrize("nesting", [100, 490, 510, 2_000, 1_000_000])
def test_a_deeply_nested_message_in_messagepack_too(http: Caller, nesting: int) -> None:
    with http.another("msgpack") as caller:
        queue = caller.new_queue()
        packed = b"\x91" * (nesting - 1) + b"\x90"
        command = msgspec.msgpack.encode({"command": "queue.publish", "payload": {"queue": queue}})
        # The payload's one field becomes two.
        payload = command[: command.rindex(b"\x81")] + b"\x82" + command[command.rindex(b"\x81") + 1 :]
        body = payload + msgspec.msgpack.encode("message") + packed
        answer = caller.send("POST", "/v1/command", body, content_type="application/msgpack")
        if nesting < 500:
            assert answer.status == 200
            assert http.call("queue.peek", queue=queue)["messages"][0]["message"] == json.loads(deep(nesting))
        else:
            assert answer.refusal[:2] == (400, "invalid_request")
            assert "nested too deeply" in answer.refusal.message


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\x00\xff", "bytes"),
        ({"a": [b"x"]}, "bytes"),
        (float("nan"), "the number nan"),
        ([float("-inf")], "the number -inf"),
        (datetime(2026, 1, 1, tzinfo=UTC), "a timestamp"),
        (msgspec.msgpack.Ext(5, b"x"), "an extension"),
        ({1: 2}, "a name that is not text"),
        ({None: 2}, "a name that is not text"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_say_is_refused_as_a_message(http: Caller, value: Any, said: str) -> None:
    with http.another("msgpack") as caller:
        queue = caller.new_queue()
        refusal = caller.refused("queue.publish", queue=queue, message=value)
        assert refusal[:2] == (400, "invalid_request")
        assert f"`message` cannot be written as JSON: {said}" in refusal.message
        assert caller.stats(queue)["depth"] == 0


# -- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"abc", b"\x00\xff\xfe", bytes(range(256)) * 40], ids=len)
def test_bytes_come_out_as_they_went_in(caller: Caller, other: Caller, queue: str, data: bytes) -> None:
    for _ in range(2):
        caller.call("queue.publish", queue=queue, body=caller.octets(data), content_type="application/x-image")
    [here] = caller.receive(queue)
    with other:
        [there] = other.receive(queue)
        assert there["body"] == other.octets(data)
    assert here["body"] == caller.octets(data)
    assert "message" not in here


def test_bytes_without_a_content_type_are_text_where_they_can_be(caller: Caller, queue: str) -> None:
    for data in ("grüß".encode(), b"\xff\xfe"):
        caller.call("queue.publish", queue=queue, body=caller.octets(data))
    text, octets = caller.receive(queue, 2)
    assert text["message"] == "grüß"
    assert "content_type" not in text
    assert octets["body"] == caller.octets(b"\xff\xfe")
    assert "message" not in octets


@pytest.mark.parametrize(
    ("content_type", "data", "shown"),
    [
        ("text/plain; charset=utf-8", b"text", "text"),
        ("application/json", b' {"a": 1} ', {"a": 1}),
        ("application/problem+json; charset=utf-8", b"[1]", [1]),
        ("Application/JSON", b"1", 1),
        ("application/json", b"not json", None),
        ("application/json", b'"\xff"', None),
        ("application/json", b"", None),
        ("application/json", b"1 2", None),
        ("text/plain", b"\xff", None),
        ("application/octet-stream", b"text", None),
        ("application/xml", b"<a/>", None),
    ],
)
def test_a_body_is_a_value_where_its_content_type_and_its_bytes_say_so(
    caller: Caller, queue: str, content_type: str, data: bytes, shown: Any
) -> None:
    caller.call("queue.publish", queue=queue, body=caller.octets(data), content_type=content_type)
    [got] = caller.receive(queue)
    assert got["content_type"] == content_type
    if shown is None:
        assert got["body"] == caller.octets(data)
        assert "message" not in got
    else:
        assert got["message"] == shown
        assert "body" not in got


def test_raw_gives_the_bytes_whatever_they_are(caller: Caller, queue: str) -> None:
    [message_id] = caller.publish(queue, {"a": 1})
    looked_at = [
        *caller.call("queue.peek", queue=queue, raw=True)["messages"],
        *caller.call("queue.browse", queue=queue, raw=True)["messages"],
        caller.call("queue.get", queue=queue, message_id=message_id, raw=True),
        *caller.call("queue.receive", queue=queue, raw=True)["messages"],
    ]
    assert len(looked_at) == 4
    for message in looked_at:
        body = message["body"] if caller.speaks == "msgpack" else base64.b64decode(message["body"])
        assert json.loads(body) == {"a": 1}
        assert "message" not in message


def test_a_body_over_the_limit_is_refused(caller: Caller) -> None:
    queue = caller.new_queue(body_bytes_max=10)
    caller.publish(queue, "12345678")
    refusal = caller.refused("queue.publish", queue=queue, message="123456789")
    assert refusal[:2] == (413, "message_too_large")
    assert "11 bytes" in refusal.message
    assert "limit of 10 bytes" in refusal.message
    assert caller.stats(queue)["depth"] == 1


def test_the_largest_body_goes_in_and_comes_out(caller: Caller, queue: str) -> None:
    data = bytes(1 << 20)
    caller.call("queue.publish", queue=queue, body=caller.octets(data))
    assert caller.receive(queue, raw=True)[0]["body"] == caller.octets(data)
    refusal = caller.refused("queue.publish", queue=queue, body=caller.octets(data + b"x"))
    assert refusal[:2] == (413, "message_too_large")


# -- properties -------------------------------------------------------------------------------------------------------


def test_headers_and_properties_come_out_as_they_went_in(caller: Caller, other: Caller, queue: str) -> None:
    headers = {"text": "ü", "number": 1, "real": 0.5, "yes": True, "none": None, "list": [1, "a"], "map": {"a": {}}}
    fields = {**PROPERTIES, "headers": headers, "group": "g", "max_retries": 7, "ttl_ms": 60_000, "priority": 3}
    caller.publish(queue, {"n": 1}, **fields, deduplication_id="d-1")
    with other:
        looked_at = [
            *caller.call("queue.browse", queue=queue)["messages"],
            *other.call("queue.peek", queue=queue)["messages"],
            *other.receive(queue),
        ]
    assert len(looked_at) == 3
    for message in looked_at:
        assert {name: message[name] for name in fields} == fields
        assert message["deduplication_id"] == "d-1"
        assert message["message"] == {"n": 1}


def test_properties_that_were_not_given_are_left_out(caller: Caller, queue: str) -> None:
    caller.call("queue.publish", queue=queue, body=caller.octets(b"x"))
    [got] = caller.receive(queue)
    assert got["headers"] == {}
    left_out = {*PROPERTIES, "exchange", "routing_key", "group", "deduplication_id", "ttl_ms", "max_retries"}
    assert not left_out & got.keys()
    assert not {"failures", "deaths", "state", "tag"} & got.keys()


@pytest.mark.parametrize(
    "value",
    [b"bytes", float("nan"), datetime(2026, 1, 1, tzinfo=UTC), msgspec.msgpack.Ext(1, b""), {1: 2}, [[b""]]],
    ids=lambda value: type(value).__name__,
)
def test_headers_that_json_cannot_say_are_refused(http: Caller, value: Any) -> None:
    with http.another("msgpack") as caller:
        queue = caller.new_queue()
        refusal = caller.refused("queue.publish", queue=queue, message=1, headers={"fine": 1, "x-odd": value})
        assert refusal[:2] == (400, "invalid_request")
        assert "`headers.x-odd`" in refusal.message
        assert caller.stats(queue)["depth"] == 0


@pytest.mark.parametrize("value", ["1" + "0" * 30, deep(40), deep(900)], ids=len)
def test_headers_that_the_log_cannot_hold_are_refused(http: Caller, value: str) -> None:
    queue = http.new_queue()
    payload = f'{{"queue": "{queue}", "message": 1, "headers": {{"x-odd": {value}}}}}'
    body = f'{{"command": "queue.publish", "payload": {payload}}}'.encode()
    refusal = http.send("POST", "/v1/command", body, content_type="application/json").refusal
    assert refusal[:2] == (400, "invalid_request")
    assert "`headers.x-odd`" in refusal.message


def test_headers_over_the_limit_are_refused(caller: Caller, queue: str) -> None:
    refusal = caller.refused("queue.publish", queue=queue, message=1, headers={"large": "x" * (64 << 10)})
    assert refusal[:2] == (413, "message_too_large")
    assert "`headers`" in refusal.message
    caller.publish(queue, 1, headers={"large": "x" * (60 << 10)})
    assert caller.receive(queue)[0]["headers"]["large"] == "x" * (60 << 10)
