"""The stream's requests and answers over real sockets, in JSON and in MessagePack; the words are in docs/stream.md."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from smista.protocols.http.stream import REQUESTS_MAX
from smista.protocols.http.stream_waiting import WAITING_MAX
from tests.protocols.http.caller import Caller
from tests.protocols.http.talk import Talk, bodies, fill
from tests.served import Served
from tests.server.raw_http import Client, Opcode, frame
from tests.server_thread import ServerThread
from tests.waiting import PATIENCE_S

BIG = 10**30
"""More than MessagePack has integers for."""


@pytest.fixture(params=["json", "msgpack"])
def talk(server: Served, request: pytest.FixtureRequest) -> Iterator[Talk]:
    """Speaks one format, then the other."""
    with Talk(server.address, request.param) as talk:
        yield talk


@pytest.fixture
def queue(http: Caller) -> str:
    return http.new_queue()


# -- requests ---------------------------------------------------------------------------------------------------------


def test_every_command_can_be_asked_here(talk: Talk, queue: str) -> None:
    published = talk.ask("queue.publish", queue=queue, message="hello")
    assert published["position"] == 1
    [received] = talk.ask("queue.receive", queue=queue)["messages"]
    assert (received["message_id"], received["message"]) == (published["message_id"], "hello")
    assert talk.ask("queue.ack", receipt=received["receipt"]) == {"success": True}
    assert talk.ask("queue.stats", queue=queue)["acked_total"] == 1


@pytest.mark.parametrize("request_id", [0, -7, 2**63 - 1, -(2**63), "", "a text", "é" * 1_024], ids=repr)
def test_an_answer_carries_the_id_of_its_request(talk: Talk, request_id: int | str) -> None:
    talk.send({"id": request_id, "command": "broker.info"})
    assert talk.next()["id"] == request_id
    talk.send({"id": request_id, "command": "no.such"})
    assert talk.next()["id"] == request_id


def test_answers_come_when_they_are_ready(talk: Talk, queue: str) -> None:
    talk.send({"id": "waits", "command": "queue.receive", "payload": {"queue": queue, "wait_ms": 20_000}})
    talk.send({"id": "at once", "command": "broker.info"})
    assert talk.next()["id"] == "at once"
    talk.send({"id": "ends it", "command": "queue.publish", "payload": {"queue": queue, "message": 1}})
    assert {talk.next()["id"], talk.next()["id"]} == {"waits", "ends it"}


def test_a_request_without_an_id_is_answered_only_when_it_fails(talk: Talk, queue: str) -> None:
    talk.send({"command": "queue.publish", "payload": {"queue": queue, "message": "quiet"}})
    talk.send({"id": None, "command": "queue.publish", "payload": {"queue": queue, "message": "quiet"}})
    assert talk.ask("queue.stats", queue=queue)["depth"] == 2
    talk.send({"command": "queue.publish", "payload": {"queue": "nowhere", "message": "loud"}})
    answer = talk.next()
    assert (answer["id"], answer["error"]["code"]) == (None, "queue_not_found")


def test_an_array_of_requests_is_carried_out_in_order_and_answered_as_one(talk: Talk, http: Caller) -> None:
    requests = [
        talk.request("queue.declare", queue="in-order"),
        *(talk.request("queue.publish", queue="in-order", message=number) for number in range(5)),
        talk.request("queue.publish", queue="nowhere", message=5),
        {"command": "queue.publish", "payload": {"queue": "in-order", "message": 5}},
        talk.request("queue.receive", queue="in-order", limit=10),
        talk.request("queue.stats", queue="in-order"),
    ]
    talk.send(requests)
    answers = talk.next()
    assert [answer["id"] for answer in answers] == [request["id"] for request in requests if "id" in request]
    assert [answer["result"]["position"] for answer in answers[1:6]] == [1, 2, 3, 4, 5]
    assert answers[6]["error"]["code"] == "queue_not_found"
    assert bodies(answers[7]["result"]["messages"]) == [0, 1, 2, 3, 4, 5]
    assert answers[8]["result"]["in_flight"] == 6
    http.call("queue.delete", queue="in-order")


def test_a_long_array_is_still_one_answer(talk: Talk, queue: str) -> None:
    talk.send([talk.request("queue.publish", queue=queue, message=number) for number in range(1_000)])
    assert [answer["result"]["position"] for answer in talk.next()] == list(range(1, 1_001))


def test_an_array_in_which_nobody_asks_for_an_answer_gets_none(talk: Talk, queue: str) -> None:
    talk.send([{"command": "queue.publish", "payload": {"queue": queue, "message": 1}}] * 3)
    assert talk.ask("queue.stats", queue=queue)["depth"] == 3


def test_requests_take_effect_in_the_order_in_which_they_were_sent(talk: Talk, queue: str) -> None:
    for number in range(500):
        talk.send(talk.request("queue.publish", queue=queue, message=number))
    for _ in range(500):
        talk.next()
    assert bodies(talk.ask("queue.peek", queue=queue, limit=500)["messages"]) == list(range(500))


def test_thousands_of_requests_may_be_under_way(talk: Talk, queue: str) -> None:
    count = 2 * REQUESTS_MAX

    def send() -> None:
        for number in range(count):
            talk.send({"id": number, "command": "queue.publish", "payload": {"queue": queue, "message": number}})

    sender = threading.Thread(target=send)
    sender.start()
    answers = [talk.next() for _ in range(count)]
    sender.join()
    assert sorted(answer["id"] for answer in answers) == list(range(count))
    assert all("result" in answer for answer in answers)
    assert talk.ask("queue.stats", queue=queue)["depth"] == count


def test_so_many_may_wait_and_no_more(talk: Talk, http: Caller, queue: str) -> None:
    for number in range(WAITING_MAX + 1):
        talk.send({"id": number, "command": "queue.receive", "payload": {"queue": queue, "wait_ms": 20_000}})
    refusal = talk.next()
    assert (refusal["id"], refusal["error"]["code"]) == (WAITING_MAX, "too_many_requests")
    talk.ask("broker.info")
    fill(http, queue, WAITING_MAX)
    answers = [talk.next() for _ in range(WAITING_MAX)]
    assert sorted(answer["result"]["messages"][0]["message"] for answer in answers) == list(range(WAITING_MAX))


def test_a_long_poll_ends_with_its_connection(talk: Talk, http: Caller, queue: str) -> None:
    with talk.another() as other:
        other.send(other.request("queue.receive", queue=queue, wait_ms=20_000))
        other.ask("broker.info")
    http.publish(queue, "for whoever is there")
    assert bodies(talk.ask("queue.receive", queue=queue, wait_ms=20_000)["messages"]) == ["for whoever is there"]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/v1/command", "/v1/streams", "/v1/stream/", "/v1/stream/x"])
def test_there_is_no_stream_elsewhere(server: Served, path: str) -> None:
    with pytest.raises(InvalidStatus) as refusal, connect(f"ws://{server.address[0]}:{server.port}{path}"):
        pass
    assert 400 <= refusal.value.response.status_code < 500


@pytest.mark.parametrize("offered", [["graphql-ws"], ["smista.xml", "SMISTA.JSON"]])
def test_a_client_that_speaks_neither_format_is_turned_away(server: Served, offered: list[str]) -> None:
    url = f"ws://{server.address[0]}:{server.port}/v1/stream"
    with (
        pytest.raises(InvalidStatus) as refusal,
        connect(url, subprotocols=[Subprotocol(name) for name in offered]),
    ):
        pass
    assert 400 <= refusal.value.response.status_code < 500


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(None, None), (["graphql-ws", "smista.msgpack", "smista.json"], "smista.msgpack")],
)
def test_the_first_format_that_both_speak_is_spoken(
    server: Served, offered: list[str] | None, chosen: str | None
) -> None:
    names = None if offered is None else [Subprotocol(name) for name in offered]
    with connect(f"ws://{server.address[0]}:{server.port}/v1/stream", subprotocols=names) as client:
        assert client.subprotocol == chosen
        if chosen is None:
            client.send('{"id": 1, "command": "broker.info"}')
            assert msgspec.json.decode(client.recv(timeout=PATIENCE_S))["id"] == 1


MALFORMED_JSON = [
    b"",
    b"{nope",
    b'{"id": 1, "command": "broker.info"',
    b'{"id": 1, "command": "broker.info"} {}',
    b"null",
    b"7",
    b'"subscribe"',
    b"[]",
    b"[[]]",
    b"{}",
    b'{"command": 7}',
    b'{"command": null}',
    b'{"command": "broker.info", "bogus": 1}',
    b'[{"command": "broker.info"}, 7]',
    b'{"id": true, "command": "broker.info"}',
    b'{"id": 1.5, "command": "broker.info"}',
    b'{"id": {}, "command": "broker.info"}',
    b'{"id": %d, "command": "broker.info"}' % BIG,
    b'{"id": "%s", "command": "broker.info"}' % (b"x" * 1_025),
    b'{"command": "broker.info", "payload": %s}' % (b"[" * 100_000),
    b"[" * 100_000,
    b'{"command": "\\ud800"}',
]


@pytest.mark.parametrize("data", MALFORMED_JSON, ids=lambda data: repr(data[:40]))
def test_a_frame_that_cannot_be_read_is_answered_and_the_connection_stays(server: Served, data: bytes) -> None:
    with Talk(server.address, "json") as talk:
        request_id, refusal = talk.unread(data)
        assert (request_id, refusal.code) == (None, "invalid_request")
        talk.ask("broker.info")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x93\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x90",
        msgspec.msgpack.encode({"command": 7}),
        msgspec.msgpack.encode({"command": b"broker.info"}),
        msgspec.msgpack.encode({"command": "broker.info", "id": 1.0}),
        msgspec.msgpack.encode({"command": "broker.info", "id": 2**63}),
        b"\x81\xa7command\xa2\xff\xff",
        msgspec.msgpack.encode({"command": "broker.info"}) + b"\x00",
    ],
    ids=lambda data: repr(data[:40]),
)
def test_a_malformed_binary_frame_is_answered_and_the_connection_stays(server: Served, data: bytes) -> None:
    with Talk(server.address, "msgpack") as talk:
        request_id, refusal = talk.unread(data)
        assert (request_id, refusal.code) == (None, "invalid_request")
        talk.ask("broker.info")


def test_a_refused_request_is_named_where_its_id_can_be_read(talk: Talk) -> None:
    talk.send({"id": 5, "command": "broker.info", "bogus": 1})
    answer = talk.next()
    assert (answer["id"], answer["error"]["code"]) == (5, "invalid_request")
    assert "bogus" in answer["error"]["message"]


def test_an_array_with_one_bad_request_changes_nothing(talk: Talk, queue: str) -> None:
    talk.send([talk.request("queue.publish", queue=queue, message=1), {"id": 9}])
    assert talk.next()["error"]["code"] == "invalid_request"
    assert talk.ask("queue.stats", queue=queue)["depth"] == 0


def test_an_array_that_is_too_long_changes_nothing(talk: Talk, queue: str) -> None:
    publish = {"command": "queue.publish", "payload": {"queue": queue, "message": 1}}
    talk.send([publish] * 10_001)
    assert talk.next()["error"]["code"] == "invalid_request"
    assert talk.ask("queue.stats", queue=queue)["depth"] == 0


def test_a_frame_of_the_wrong_kind_is_refused(server: Served) -> None:
    with Talk(server.address, "json") as talk:
        _, refusal = talk.unread(b'{"id": 1, "command": "broker.info"}', text=False)
        assert (refusal.code, "text" in refusal.message) == ("invalid_request", True)
        talk.ask("broker.info")
    with Talk(server.address, "msgpack") as talk:
        _, refusal = talk.unread(b'{"id": 1, "command": "broker.info"}', text=True)
        assert (refusal.code, "binary" in refusal.message) == ("invalid_request", True)
        talk.ask("broker.info")


def test_text_that_is_not_utf_8_closes_the_connection(server: Served) -> None:
    # RFC 6455, 8.1: the connection fails, with 1007.
    with Client(server.address) as client:
        client.upgrade("/v1/stream")
        client.send(b"\x81" + frame(Opcode.BINARY, b'{"id": 1, "command": "\xff"}')[1:])
        opcode, payload = client.frame()
        assert (opcode, payload[:2]) == (Opcode.CLOSE, struct.pack("!H", 1007))


@pytest.mark.parametrize(
    ("command", "payload", "code", "named"),
    [
        ("no.such", {}, "unknown_command", "no.such"),
        ("x" * 10_000, {}, "unknown_command", "xxx"),
        ("subscribe", {}, "invalid_request", "queue"),
        ("subscribe", {"queue": 7}, "invalid_request", "queue"),
        ("subscribe", {"queue": ""}, "invalid_request", "queue"),
        ("subscribe", {"queue": "q", "bogus": 1}, "invalid_request", "bogus"),
        ("subscribe", {"queue": "nowhere"}, "queue_not_found", "nowhere"),
        ("subscribe", {"queue": "{queue}", "namespace": "nowhere"}, "queue_not_found", "nowhere"),
        ("subscribe", {"queue": "{queue}", "prefetch": 0}, "invalid_request", "prefetch"),
        ("subscribe", {"queue": "{queue}", "prefetch": -1}, "invalid_request", "prefetch"),
        ("subscribe", {"queue": "{queue}", "prefetch": 65_536}, "invalid_request", "prefetch"),
        ("subscribe", {"queue": "{queue}", "prefetch": 1_001}, "invalid_argument", "prefetch"),
        ("subscribe", {"queue": "{queue}", "prefetch": "10"}, "invalid_request", "prefetch"),
        ("subscribe", {"queue": "{queue}", "lease_ms": -1}, "invalid_request", "lease_ms"),
        ("subscribe", {"queue": "{queue}", "lease_ms": 1 << 60}, "invalid_request", "lease_ms"),
        ("subscribe", {"queue": "{queue}", "priority": 1 << 40}, "invalid_request", "priority"),
        ("subscribe", {"queue": "{queue}", "consumer": "x" * 256}, "invalid_request", "consumer"),
        ("credit", {"subscription": 9, "prefetch": 3}, "consumer_not_found", "9"),
        ("credit", {"subscription": 1}, "invalid_request", "prefetch"),
        ("credit", {"subscription": 1, "prefetch": 0}, "invalid_request", "prefetch"),
        ("credit", {"subscription": 1, "prefetch": -3}, "invalid_request", "prefetch"),
        ("credit", {"subscription": 1, "prefetch": 1 << 40}, "invalid_request", "prefetch"),
        ("credit", {"subscription": 1, "prefetch": 1_001}, "invalid_argument", "prefetch"),
        ("unsubscribe", {"subscription": 9}, "consumer_not_found", "9"),
        ("unsubscribe", {"subscription": -1}, "consumer_not_found", "-1"),
        ("unsubscribe", {}, "invalid_request", "subscription"),
        ("ack", {}, "invalid_request", "tags"),
        ("ack", {"tags": [1], "up_to": 1}, "invalid_request", "up_to"),
        ("ack", {"tags": [1, 1]}, "invalid_request", "twice"),
        ("ack", {"tags": [0]}, "invalid_request", "tags"),
        ("ack", {"tags": [-1]}, "invalid_request", "tags"),
        ("ack", {"tags": ["1"]}, "invalid_request", "tags"),
        ("ack", {"tags": 1}, "invalid_request", "tags"),
        ("ack", {"up_to": 99}, "invalid_receipt", "99"),
        ("ack", {"tags": [1], "requeue": True}, "invalid_request", "requeue"),
        ("nack", {"tags": [1], "delay_ms": -1}, "invalid_request", "delay_ms"),
        ("nack", {"tags": [1], "delay_ms": 1 << 60}, "invalid_request", "delay_ms"),
        ("nack", {"tags": [1], "error": 7}, "invalid_request", "error"),
        ("release", {"tags": [1], "delay_ms": 1}, "invalid_request", "delay_ms"),
        ("extend", {"tags": [1]}, "invalid_request", "lease_ms"),
        ("extend", {"tags": [1], "lease_ms": -1}, "invalid_request", "lease_ms"),
        ("extend", {"tags": [1], "lease_ms": 1 << 60}, "invalid_request", "lease_ms"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_changed(
    talk: Talk, http: Caller, queue: str, command: str, payload: dict[str, Any], code: str, named: str
) -> None:
    fill(http, queue, 3)
    talk.subscribe(queue, prefetch=2)
    assert talk.tags(2) == [1, 2]
    if payload.get("queue") == "{queue}":
        payload = payload | {"queue": queue}
    refusal = talk.refused(command, **payload)
    assert (refusal.code, named in refusal.message) == (code, True), refusal
    stats = http.stats(queue)
    assert (stats["in_flight"], stats["ready"], stats["consumers"]) == (2, 1, 1)
    assert talk.ask("ack", tags=[1, 2]) == {"success": True}


@pytest.mark.parametrize("payload", [None, [], 7, "x", True])
def test_a_payload_that_is_no_object_is_refused(talk: Talk, payload: object) -> None:
    talk.send({"id": 1, "command": "subscribe", "payload": payload})
    assert talk.next()["error"]["code"] == "invalid_request"


def test_a_frame_over_the_limit_closes_the_connection(tmp_path: Path) -> None:
    with ServerThread(tmp_path, websocket_frame_bytes_max=10000) as server, Talk(server.address) as talk:
        queue = "q"
        talk.ask("queue.declare", queue=queue)
        talk.ask("queue.publish", queue=queue, message="x" * 9_000)
        talk.subscribe(queue)
        talk.messages(1)
        talk.send(talk.request("queue.publish", queue=queue, message="x" * 10_000))
        assert talk.close_code() == 1009
        with Talk(server.address) as another:
            another.subscribe(queue)
            assert another.messages(1)[0]["retry_count"] == 1


def test_a_long_poll_can_be_taken_back_and_takes_nothing_then(talk: Talk, http: Caller, queue: str) -> None:
    talk.send({"id": "waits", "command": "queue.receive", "payload": {"queue": queue, "wait_ms": 20_000}})
    assert talk.ask("cancel", request="waits") == {"cancelled": True}
    assert talk.next()["error"]["code"] == "request_cancelled"
    http.publish(queue, "for whoever is there")
    stats = http.stats(queue)
    assert (stats["ready"], stats["in_flight"]) == (1, 0)


def test_what_was_answered_or_never_asked_cannot_be_taken_back(talk: Talk, http: Caller, queue: str) -> None:
    http.publish(queue, "x")
    talk.send({"id": "took", "command": "queue.receive", "payload": {"queue": queue, "wait_ms": 20_000}})
    assert talk.next()["id"] == "took"
    for name in ("took", "unheard of", None, 7):
        assert talk.ask("cancel", request=name) == {"cancelled": False}
    assert http.stats(queue)["in_flight"] == 1
