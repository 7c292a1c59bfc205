"""Mistakes of all kinds: each is a 4xx in the documented shape that names what is wrong, and nothing has changed.

Never a 500, never a traceback: looked at after every test."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from smista.protocols.http.commands import COMMANDS
from tests.protocols.http.caller import CONTENT_TYPES, ENCODERS, Answer, Caller, new_name, tracebacks
from tests.served import Served
from tests.server_thread import ServerThread
from tests.waiting import PATIENCE_S

CHANGES_WITH_TIME = {
    "now_ms",
    "log",
    "log_bytes",
    "avg_wait_time_ms",
    "oldest_message_age_secs",
    "wait_ms_average",
    "oldest_age_ms",
}
COUNTS_MISTAKES = {"rejected_total"}
REQUEST_BYTES_MAX = 64 << 10

COMMAND_HEAD = b"POST /v1/command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def everything(http: Caller) -> list[Any]:
    """All that a mistake might have changed."""
    shown = [http.call("broker.info"), *http.call("queue.list", details=True, limit=10_000)["queues"]]
    left_out = CHANGES_WITH_TIME | COUNTS_MISTAKES
    return [
        *({name: value for name, value in one.items() if name not in left_out} for one in shown),
        http.call("exchange.list"),
        http.call("exchange.bindings"),
    ]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    """Of its own: in queues of other tests leases run out."""
    with ServerThread() as server:
        yield server


@pytest.fixture(scope="module")
def prepared(server: Served) -> dict[str, str]:
    """A queue with a message that is held, one that is ready and one that is scheduled; an exchange."""
    with Caller(server.address) as http:
        queue, exchange = http.new_queue(max_priority=9, body_bytes_max=1_000), new_name("exchange")
        http.call("exchange.declare", exchange=exchange, kind="headers")
        [held, *_] = http.publish(queue, "held", "ready")
        [scheduled] = http.publish(queue, "scheduled", delay_ms=3_600_000)
        [got] = http.receive(queue, lease_ms=1 << 52)
        return {
            "queue": queue,
            "exchange": exchange,
            "message_id": held,
            "receipt": got["receipt"],
            "scheduled": scheduled,
        }


@pytest.fixture(autouse=True)
def _nothing_changes(server: Served, http: Caller, prepared: dict[str, str]) -> Iterator[None]:
    before, line_count = everything(http), len(server.lines)
    yield
    assert everything(http) == before
    assert tracebacks(server, since=line_count) == ""


def raw(http: Caller, body: bytes, content_type: str = "application/json") -> Answer:
    return http.send("POST", "/v1/command", body, content_type=content_type)


# -- what cannot be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"nonsense",
        b'{"command": "queue.list"',
        b'{"command": "queue.list",}',
        b'{"command": "queue.list"} trailing',
        b"{'command': 'queue.list'}",
        b'{"command": "queue.list", "payload": {"prefix": "\xff"}}',
        b'{"command": "queue.list", "payload": {"prefix": "\\ud800"}}',
        b'{"command": "queue.list", "payload": {"limit": 01}}',
        b'{"command": "queue.list", "payload": {"limit": NaN}}',
        b"\xef\xbb\xbf{}",
        b"\x00",
        b'{"command": "queue.list", "payload": ' + b"[" * 100_000,
    ],
    ids=lambda body: str(body[:40]),
)
def test_what_is_not_json_is_refused(http: Caller, body: bytes) -> None:
    refusal = raw(http, body).refusal
    assert refusal[:2] == (400, "invalid_request")
    assert "JSON" in refusal.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x81\xa7command",
        msgspec.msgpack.encode({"command": "queue.list"}) + b"\x00",
        b"\x82\xa7command\xaaqueue.list\xa7payload\x81\xa6prefix\xa1\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x82\xa7command\xaaqueue.list\xa7payload" + b"\x91" * 100_000 + b"\x90",
        b"\x91" * 100_000,
    ],
    ids=lambda body: str(body[:40]),
)
def test_what_is_not_messagepack_is_refused(http: Caller, body: bytes) -> None:
    answer = raw(http, body, "application/msgpack")
    assert answer.headers["content-type"] == "application/msgpack"
    assert answer.refusal[:2] == (400, "invalid_request")


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ([], "The request"),
        ("queue.list", "The request"),
        (None, "The request is null"),
        (1, "The request"),
        ({}, "`command`"),
        ({"payload": {}}, "`command`"),
        ({"command": None}, "`command`"),
        ({"command": 1}, "`command`"),
        ({"command": ["queue.list"]}, "`command`"),
        ({"command": "queue.list", "payload": None}, "`payload`"),
        ({"command": "queue.list", "payload": []}, "`payload`"),
        ({"command": "queue.list", "payload": "x"}, "`payload`"),
        ({"command": "queue.list", "pay": {}}, "`pay`"),
        ({"command": "queue.list", "payload": {}, "id": 1}, "`id`"),
    ],
    ids=str,
)
def test_what_is_not_a_command_is_refused(caller: Caller, request_: object, named: str) -> None:
    body = ENCODERS[caller.speaks](request_)
    refusal = raw(caller, body, CONTENT_TYPES[caller.speaks]).refusal
    assert refusal[:2] == (400, "invalid_request")
    assert named in refusal.message


@pytest.mark.parametrize(
    "name", ["", "queue", "queue.Publish", "queue.publish ", "subscribe", "__init__", "x" * 10_000]
)
def test_an_unknown_command_is_refused(caller: Caller, name: str) -> None:
    refusal = caller.refused(name)
    assert refusal[:2] == (400, "unknown_command")
    assert repr(name[:100])[:-1] in refusal.message
    assert len(refusal.message) < 300


@pytest.mark.parametrize("key", [1, None, b"queue", 1.5])
def test_a_name_that_is_not_text_is_refused(http: Caller, key: object) -> None:
    body = msgspec.msgpack.encode({"command": "queue.list", "payload": {key: 1}})
    assert raw(http, body, "application/msgpack").refusal[:2] == (400, "invalid_request")
    body = msgspec.msgpack.encode({"command": "exchange.route", "payload": {"exchange": "", "headers": {key: 1}}})
    refusal = raw(http, body, "application/msgpack").refusal
    assert refusal[:2] == (400, "invalid_request")
    assert "`headers`" in refusal.message


# -- content types ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "application/xml", "json", "", "application/jsonx", "ü"],
)
def test_an_unknown_content_type_is_refused(http: Caller, content_type: str) -> None:
    refusal = raw(http, b'{"command": "queue.list"}', content_type).refusal
    assert refusal[:2] == (415, "unsupported_media_type")
    assert "application/json" in refusal.message
    assert "application/msgpack" in refusal.message


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.api+json"]
)
def test_json_has_several_names(http: Caller, content_type: str) -> None:
    assert raw(http, b'{"command": "queue.list"}', content_type).status == 200


@pytest.mark.parametrize("content_type", ["application/x-msgpack", "application/vnd.msgpack", "Application/MsgPack"])
def test_messagepack_has_several_names(http: Caller, content_type: str) -> None:
    body = msgspec.msgpack.encode({"command": "queue.list"})
    answer = raw(http, body, content_type)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/msgpack")


def test_without_a_content_type_it_is_refused(http: Caller) -> None:
    refusal = http.send("POST", "/v1/command", b'{"command": "queue.list"}').refusal
    assert (refusal.status, refusal.code) == (415, "unsupported_media_type")


def test_json_that_is_called_messagepack_is_refused_and_the_other_way_round(http: Caller) -> None:
    assert raw(http, b'{"command": "queue.list"}', "application/msgpack").refusal.code == "invalid_request"
    packed = msgspec.msgpack.encode({"command": "queue.list"})
    assert raw(http, packed, "application/json").refusal.code == "invalid_request"


# -- every field of every command -------------------------------------------------------------------------------------

WRONG: list[Any] = [{"a": 1}, [1], "text", 1.5, -1, 1 << 63, True, None, b"\x00"]


def fields_of(command: str) -> tuple[msgspec.structs.FieldInfo, ...]:
    kind: Any = COMMANDS[command]
    return msgspec.structs.fields(kind)


def takes(kind: Any, value: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize("command", COMMANDS)
def test_every_field_of_the_wrong_type_is_named(caller: Caller, command: str) -> None:
    for field in fields_of(command):
        if field.name == "message":
            continue  # any value will do
        values = [value for value in WRONG if caller.speaks == "msgpack" or not isinstance(value, bytes)]
        wrong = [value for value in values if not takes(field.type, value)]
        assert wrong, f"{field.name} takes anything"
        for value in wrong:
            refusal = caller.refused(command, **{field.encode_name: value})
            assert refusal[:2] == (400, "invalid_request"), (field.name, value, refusal)
            assert f"`{field.encode_name}" in refusal.message, (field.name, value, refusal)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_field_that_is_missing_is_named(caller: Caller, command: str) -> None:
    required = [field.encode_name for field in fields_of(command) if field.required]
    for name in required:
        no_text: dict[str, Any] = {"after": 0, "max_rows": 1, "up_to": 0, "parts": []}
        others = {other: no_text.get(other, "x") for other in required if other != name and other != "settings"}
        refusal = caller.refused(command, **others)
        assert refusal[:2] == (400, "invalid_request")
        assert "required field" in refusal.message
        assert "is missing; give " in refusal.message
        assert any(f"`{one}`" in refusal.message for one in (name, "settings", "lease_ms"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_field_that_is_unknown_is_named(caller: Caller, command: str) -> None:
    for name in ("colour", "Queue", "queue ", "__class__", "run"):
        refusal = caller.refused(command, **{name: 1})
        assert refusal[:2] == (400, "invalid_request")
        assert f"unknown field `{name}`" in refusal.message


@pytest.mark.parametrize(
    ("command", "payload", "named"),
    [
        ("queue.create", {"queue": "q", "config": {"colour": 1}}, "`config.colour`"),
        ("queue.create", {"queue": "q", "config": {"default_priority": 10}}, "`config.default_priority`"),
        ("queue.create", {"queue": "q", "config": {"prefetch": {"max": 0}}}, "`config.prefetch.max`"),
        ("queue.create", {"queue": "q", "config": {"dead_letter": {"enabled": 1}}}, "`config.dead_letter.enabled`"),
        ("queue.create", {"queue": "q", "settings": {"lease_ms": "1"}}, "`settings.lease_ms`"),
        ("queue.create", {}, "`queue`"),
        ("queue.create", {"queue": "a", "name": "b"}, "`name`"),
        ("queue.declare", {"queue": "q", "settings": {"colour": 1}}, "`settings.colour`"),
        ("queue.declare", {"queue": "q", "settings": {"overflow": "burst"}}, "`settings.overflow`"),
        ("queue.publish_batch", {"queue": "q", "messages": [{}, {"priority": "high"}]}, "`messages[1].priority`"),
        ("queue.publish_batch", {"queue": "q", "messages": [{"queue": "q"}]}, "`messages[0].queue`"),
        ("queue.publish_batch", {"queue": "q", "messages": ["x"]}, "`messages[0]`"),
        ("queue.publish_batch", {"queue": "q", "bodies": [1]}, "`bodies[0]`"),
        ("queue.publish_batch", {"queue": "q"}, "`messages`"),
        ("queue.publish_batch", {"queue": "q", "messages": [], "bodies": []}, "`bodies`"),
        ("queue.publish_batch", {"queue": "q", "messages": [], "content_type": "a/b"}, "`content_type`"),
        ("queue.publish_batch", {"queue": "q", "messages": [], "batch_id": ""}, "`batch_id`"),
        ("queue.publish", {"queue": "q"}, "`message`"),
        ("queue.publish", {"queue": "q", "message": 1, "body": ""}, "`body`"),
        ("queue.publish", {"queue": "q", "message": 1, "ttl": 1, "ttl_ms": 1}, "`ttl_ms`"),
        ("queue.publish", {"queue": "q", "message": 1, "delay_ms": 1, "deliver_at_ms": 1}, "`deliver_at_ms`"),
        ("queue.ack", {"receipts": ["a", 1]}, "`receipts[1]`"),
        ("dlq.retry", {"queue": "q", "message_ids": [1]}, "`message_ids[0]`"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_mistake_deeper_down_is_named_by_its_place(
    caller: Caller, command: str, payload: dict[str, Any], named: str
) -> None:
    if caller.speaks == "msgpack" and payload.get("body") == "":
        payload = {**payload, "body": b""}
    refusal = caller.refused(command, **payload)
    assert refusal[:2] == (400, "invalid_request")
    assert named in refusal.message


# -- negative and absurd values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "field"),
    [
        ("queue.publish", "ttl"),
        ("queue.publish", "ttl_ms"),
        ("queue.publish", "delay_ms"),
        ("queue.publish", "deliver_at_ms"),
        ("queue.publish", "max_retries"),
        ("queue.publish", "timestamp_ms"),
        ("queue.publish", "priority"),
        ("queue.consume", "timeout"),
        ("queue.consume", "ack_deadline"),
        ("queue.consume", "prefetch"),
        ("queue.receive", "limit"),
        ("queue.receive", "wait_ms"),
        ("queue.receive", "lease_ms"),
        ("queue.nack", "delay_ms"),
        ("queue.extend", "lease_ms"),
        ("queue.peek", "limit"),
        ("queue.browse", "after"),
        ("queue.list", "limit"),
        ("dlq.retry", "limit"),
        ("dlq.retry", "per_second"),
        ("scheduled.change", "delay_ms"),
        ("scheduled.change", "deliver_at_ms"),
    ],
)
def test_negative_and_absurd_numbers_are_refused(
    caller: Caller, prepared: dict[str, str], command: str, field: str
) -> None:
    kinds = {one.name: one.type for one in fields_of(command)}
    named = {"queue": prepared["queue"]} if "queue" in kinds else {}
    absurd = [value for value in (-1, 1 << 53, 10**15, 1 << 63) if not takes(kinds[field], value)]
    assert {-1, 1 << 63} <= set(absurd)
    for value in absurd:
        refusal = caller.refused(command, **named, **{field: value})
        assert refusal[:2] == (400, "invalid_request")
        assert f"`{field}`" in refusal.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("command", "field"),
    [
        ("queue.consume", "timeout"),
        ("queue.consume", "ack_deadline"),
        ("queue.publish", "ttl"),
        ("dlq.retry", "per_second"),
    ],
)
def test_what_is_not_a_number_is_refused(
    http: Caller, prepared: dict[str, str], command: str, field: str, value: float
) -> None:
    with http.another("msgpack") as caller:
        refusal = caller.refused(command, queue=prepared["queue"], **{field: value})
        assert refusal[:2] == (400, "invalid_request")
        assert f"`{field}`" in refusal.message


@pytest.mark.parametrize(
    ("command", "payload", "status", "code", "named"),
    [
        ("queue.publish", {"message": 1, "priority": 10}, 400, "invalid_priority", "10"),
        ("queue.publish", {"message": "x" * 1_000}, 413, "message_too_large", "1002 bytes"),
        ("queue.publish", {"message": 1, "group": "x" * 1_025}, 400, "invalid_request", "`group`"),
        ("queue.publish", {"message": 1, "deduplication_id": ""}, 400, "invalid_request", "`deduplication_id`"),
        ("queue.receive", {"limit": 2_000}, 400, "invalid_argument", "limit"),
        ("queue.receive", {"consumer": "x" * 256}, 400, "invalid_request", "`consumer`"),
        ("queue.alter", {"settings": {"lease_ms": -1}}, 400, "invalid_settings", "lease_ms"),
        ("queue.alter", {"settings": {"max_depth": 0}}, 400, "invalid_settings", "max_depth"),
        ("queue.alter", {"settings": {"retry_jitter": 1.5}}, 400, "invalid_settings", "retry_jitter"),
        ("queue.alter", {"settings": {"rate_limit": 0}}, 400, "invalid_settings", "rate_limit"),
        ("queue.alter", {"settings": {"prefetch": 2_000}}, 400, "invalid_settings", "prefetch"),
        ("queue.alter", {"settings": {"default_priority": 99}}, 400, "invalid_settings", "default_priority"),
        ("queue.alter", {"settings": {"dead_letter_queue": ""}}, 400, "invalid_name", "dead-letter queue"),
        ("queue.alter", {"settings": {"durable": False}}, 409, "queue_differs", "durable"),
        ("queue.alter", {"settings": {}}, 400, "invalid_settings", "setting"),
        ("queue.get", {"message_id": "nonsense"}, 404, "message_not_found", "nonsense"),
        ("queue.ack", {"message_id": "01932c07-0000-7000-8000-000000000001"}, 404, "message_not_found", "01932c07"),
        ("scheduled.cancel", {"message_id": "\u2028"}, 404, "message_not_found", "not the id"),
        ("dlq.retry", {"to": "nowhere"}, 404, "queue_not_found", "nowhere"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_the_broker_refuses_changes_nothing(
    caller: Caller, prepared: dict[str, str], command: str, payload: dict[str, Any], status: int, code: str, named: str
) -> None:
    refusal = caller.refused(command, queue=prepared["queue"], **payload)
    assert refusal[:2] == (status, code)
    assert named in refusal.message


@pytest.mark.parametrize("name", ["", "x" * 256, "\ufeff", "a\tb", "ä" * 128])
@pytest.mark.parametrize("command", ["queue.create", "queue.declare"])
def test_a_name_that_no_queue_can_have_is_refused(caller: Caller, command: str, name: str) -> None:
    refusal = caller.refused(command, queue=name)
    assert refusal.status == 400
    assert refusal.code in ("invalid_request", "invalid_name")
    assert "queue" in refusal.message
    refusal = caller.refused(command, queue="fine", namespace=name)
    assert refusal.status == 400
    assert "namespace" in refusal.message


@pytest.mark.parametrize("name", ["", "x" * 256, "ä" * 200, "amq.mine"])
def test_a_name_that_no_exchange_can_have_is_refused(caller: Caller, name: str) -> None:
    refusal = caller.refused("exchange.declare", exchange=name)
    assert refusal.status in (400, 403)
    assert refusal.code in ("invalid_request", "invalid_exchange", "exchange_reserved")


@pytest.mark.parametrize("receipt", ["", "x", "A" * 39, "\x00", "ä", "x" * 100_000])
@pytest.mark.parametrize("command", ["queue.ack", "queue.nack", "queue.release"])
def test_what_is_not_a_receipt_is_refused(caller: Caller, command: str, receipt: str) -> None:
    refusal = caller.refused(command, receipt=receipt)
    assert refusal[:2] == (400, "invalid_receipt")
    assert len(refusal.message) < 300


@pytest.mark.parametrize("number", ["1" + "0" * 30, "1" * 5_000])
def test_arguments_that_the_log_cannot_hold_are_refused(http: Caller, prepared: dict[str, str], number: str) -> None:
    for value in (number, "[" * 60 + "]" * 60):
        fields = f'"exchange": "{prepared["exchange"]}", "queue": "{prepared["queue"]}", "arguments": {{"n": {value}}}'
        refusal = raw(http, f'{{"command": "exchange.bind", "payload": {{{fields}}}}}'.encode()).refusal
        assert refusal[:2] == (400, "invalid_request")
        assert "`arguments" in refusal.message


@pytest.mark.parametrize("value", [b"x", msgspec.msgpack.Ext(1, b""), float("nan")], ids=["bytes", "ext", "nan"])
def test_arguments_that_json_cannot_say_are_refused(http: Caller, prepared: dict[str, str], value: Any) -> None:
    with http.another("msgpack") as caller:
        binding = {"exchange": prepared["exchange"], "queue": prepared["queue"], "arguments": {"odd": value}}
        for command in ("exchange.bind", "exchange.unbind"):
            refusal = caller.refused(command, **binding)
            assert refusal[:2] == (400, "invalid_request")
            assert "`arguments.odd`" in refusal.message
        refusal = caller.refused("exchange.route", exchange=prepared["exchange"], headers={"odd": value})
        assert refusal[:2] == (400, "invalid_request")
        assert "`headers.odd`" in refusal.message


# -- paths and methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_commands_are_sent_by_post_only(http: Caller, method: str) -> None:
    answer = http.send(method, "/v1/command")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/openapi.json"])
def test_what_can_only_be_read_is_not_written(http: Caller, path: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = http.send(method, path, b"{}")
        assert answer.refusal[:2] == (405, "method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD"
    assert http.send("HEAD", path).status == 200


def test_the_stream_is_no_page(http: Caller) -> None:
    answer = http.send("GET", "/v1/stream")
    assert answer.refusal[:2] == (426, "upgrade_required")
    assert answer.headers["upgrade"] == "websocket"
    assert http.send("POST", "/v1/stream").refusal[:2] == (405, "method_not_allowed")


@pytest.mark.parametrize("path", ["/nowhere", "/v1/commands", "/V1/command", "//", "/v1/command/", "/%2e%2e/etc"])
def test_a_path_that_leads_nowhere(http: Caller, path: str) -> None:
    refusal = http.send("GET", path).refusal
    assert refusal[:2] == (404, "path_not_found")
    assert "/openapi.json" in refusal.message


@pytest.mark.parametrize(
    ("path", "subprotocol", "status", "code"),
    [
        ("/v1/stream", "mqtt", 400, "invalid_request"),
        ("/v1/nowhere", "smista.json", 404, "path_not_found"),
        ("/", "smista.json", 404, "path_not_found"),
    ],
)
def test_a_handshake_that_cannot_succeed_is_told_why(
    http: Caller, path: str, subprotocol: str, status: int, code: str
) -> None:
    with http.another() as client:
        answer = client.send(
            "GET",
            path,
            connection="Upgrade",
            upgrade="websocket",
            sec_websocket_version="13",
            sec_websocket_key="AAAAAAAAAAAAAAAAAAAAAA==",
            sec_websocket_protocol=subprotocol,
        )
        assert answer.refusal[:2] == (status, code)


# -- bodies over the limit --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Iterator[ServerThread]:
    """A server that takes little."""
    with ServerThread(request_bytes_max=REQUEST_BYTES_MAX) as server:
        yield server
    assert tracebacks(server) == ""


def exchange_bytes(server: Served, data: bytes) -> bytes:
    """Send bytes, without an end, and read until the server closes."""
    with socket.create_connection(server.address, timeout=PATIENCE_S) as connection:
        connection.sendall(data)
        with connection.makefile("rb") as answer:
            return answer.read()


@pytest.mark.parametrize("path", ["/v1/command", "/v1/queues/q/messages", "/v1/ack", "/healthz"])
def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_sent(small: Served, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {REQUEST_BYTES_MAX + 1}\r\n\r\n".encode()
    answer = exchange_bytes(small, head + b"{")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer
    assert str(REQUEST_BYTES_MAX).encode() in answer


def test_a_body_that_does_not_say_its_length_is_refused_when_it_is_too_long(small: Served) -> None:
    head = COMMAND_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    answer = exchange_bytes(small, head + b"10001\r\n" + b"x" * 0x10001 + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer


def test_a_body_at_the_limit_is_taken(small: Served) -> None:
    with Caller(small.address) as http:
        queue = http.new_queue()
        answer = http.send(
            "POST", f"/v1/queues/{queue}/messages", bytes(REQUEST_BYTES_MAX), content_type="application/octet-stream"
        )
        assert answer.status == 201
        chunks = (bytes(1_000) for _ in range(65))
        headers = {"Content-Type": "application/octet-stream"}
        http._connection.request("POST", f"/v1/queues/{queue}/messages", chunks, headers, encode_chunked=True)
        assert http.answer().status == 201
        assert http.stats(queue)["body_bytes"] == REQUEST_BYTES_MAX + 65_000


@pytest.mark.parametrize(
    "head",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /v1/queues/\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/queues?prefix=\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        COMMAND_HEAD + b"Content-Length: many\r\n\r\n",
        COMMAND_HEAD + b"Content-Length: -1\r\n\r\n",
        COMMAND_HEAD + b"Content-Length: 99999999999999999999999999\r\n\r\n",
        COMMAND_HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n",
    ],
    ids=lambda head: str(head[:60]),
)
def test_what_is_not_http_is_refused(small: Served, head: bytes) -> None:
    answer = exchange_bytes(small, head + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 "))
    assert b'{"error":{"code":"' in answer
