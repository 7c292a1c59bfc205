"""REST: the same commands under paths, with queries, paging and filters; and messages as the octets they are."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from smista.protocols.http.routes import ROUTES
from tests.protocols.http.caller import CONTENT_TYPES, Caller, new_name

ODD_NAMES = [
    "with/slash",
    "/",
    "%2F",
    "100%",
    "spaces and +",
    "ünïcode-消息-\U0001f600",
    "question?mark#hash&and=is",
    "dots..",
    "'\"<>\\",
    "x" * 255,
]


def path_of(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def message_of(caller: Caller, queue: str) -> str:
    """The id of a message that somebody holds."""
    [message_id] = caller.publish(queue, "held")
    caller.receive(queue)
    return message_id


# -- queues -----------------------------------------------------------------------------------------------------------


def test_put_makes_a_queue_and_finds_it_there_the_second_time(caller: Caller) -> None:
    name = new_name("rest")
    made = caller.rest("PUT", "queues", name, fields={"max_retries": 1})
    assert (made.status, made.value) == (201, {"queue": name, "created": True, "success": True})
    found = caller.rest("PUT", "queues", name, fields={"max_retries": 1})
    assert (found.status, found.value["created"]) == (200, False)
    assert caller.rest("PUT", "queues", name).refusal[:2] == (409, "queue_differs")
    kept = caller.rest("PUT", "queues", name, if_exists="keep")
    assert (kept.status, kept.value["created"]) == (200, False)
    assert caller.rest("PUT", "queues", new_name("rest")).status == 201


def test_patch_changes_settings(caller: Caller, queue: str) -> None:
    answer = caller.rest("PATCH", "queues", queue, fields={"lease_ms": 7})
    assert (answer.status, answer.value["settings"]["lease_ms"]) == (200, 7)
    assert caller.rest("GET", "queues", queue, "settings").value == answer.value
    nothing: tuple[dict[str, int] | None, ...] = ({}, None)
    for fields in nothing:
        assert caller.rest("PATCH", "queues", queue, fields=fields).refusal[:2] == (400, "invalid_settings")


def test_get_answers_the_statistics(http: Caller) -> None:
    queue = http.new_queue()
    http.publish(queue, 1)
    answer = http.rest("GET", "queues", queue)
    assert (answer.status, answer.value["ready"]) == (200, 1)
    assert http.rest("GET", "queues", new_name("nowhere")).refusal[:2] == (404, "queue_not_found")


def test_delete_removes_a_queue(http: Caller) -> None:
    queue = http.new_queue()
    http.publish(queue, 1)
    assert http.rest("DELETE", "queues", queue, if_empty=True).refusal[:2] == (409, "queue_not_empty")
    assert http.rest("DELETE", "queues", queue).value == {"deleted": 1, "success": True}
    assert http.rest("DELETE", "queues", queue).status == 404


def test_queues_are_listed_page_by_page(http: Caller) -> None:
    prefix = new_name("pages") + "/"
    for number in range(5):
        http.rest("PUT", "queues", f"{prefix}{number}")
    found: list[str] = []
    after = ""
    while after is not None:
        answer = http.rest("GET", "queues", prefix=prefix, limit=2, after=after).value
        found += answer["queues"]
        after = answer["after"]
    assert found == [f"{prefix}{number}" for number in range(5)]
    [detailed] = http.rest("GET", "queues", prefix=f"{prefix}3", details="true").value["queues"]
    assert detailed["depth"] == 0


def test_purge_pause_and_resume(caller: Caller, queue: str) -> None:
    caller.publish(queue, 1, 2)
    caller.receive(queue)
    assert caller.rest("POST", "queues", queue, "purge", fields={"ready_only": True}).value["purged"] == 1
    assert caller.rest("POST", "queues", queue, "purge", ready_only="false").value["purged"] == 1
    assert caller.rest("POST", "queues", queue, "pause").value == {"success": True}
    assert caller.stats(queue)["is_paused"] is True
    assert caller.rest("POST", "queues", queue, "resume", fields={}).value == {"success": True}
    assert caller.stats(queue)["is_paused"] is False


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_queue_may_have_any_name(caller: Caller, name: str) -> None:
    assert caller.rest("PUT", "queues", name).value["queue"] == name
    sent = caller.rest("POST", "queues", name, "messages", fields={"message": name})
    assert sent.status == 201
    message_id = sent.value["message_id"]
    assert caller.rest("GET", "queues", name, "messages", message_id).value["message"] == name
    assert caller.stats(name)["depth"] == 1
    assert caller.rest("DELETE", "queues", name).value["deleted"] == 1


def test_a_namespace_stands_in_the_query(caller: Caller) -> None:
    name, namespace = new_name("rest"), new_name("space")
    assert caller.rest("PUT", "queues", name, namespace=namespace).status == 201
    assert caller.rest("GET", "queues", namespace=namespace).value["queues"] == [name]
    assert caller.rest("GET", "queues", name).status == 404
    sent = caller.rest("POST", "queues", name, "messages", fields={"message": 1, "namespace": namespace})
    assert sent.status == 201
    assert caller.rest("GET", "queues", name, namespace=namespace).value["depth"] == 1


# -- messages ---------------------------------------------------------------------------------------------------------


def test_post_publishes_a_message(caller: Caller, queue: str) -> None:
    fields = {"message": {"a": [1]}, "priority": 3, "headers": {"kind": "a"}}
    answer = caller.rest("POST", "queues", queue, "messages", fields=fields)
    assert (answer.status, answer.value["position"]) == (201, 1)
    [got] = caller.receive(queue)
    assert {name: got[name] for name in fields} == fields


def test_what_is_in_the_query_counts_as_if_it_stood_in_the_body(caller: Caller, queue: str) -> None:
    answer = caller.rest(
        "POST", "queues", queue, "messages", fields={"message": 1}, priority=4, headers={"kind": "a"}, ttl=61.5
    )
    assert answer.status == 201
    [got] = caller.receive(queue)
    assert (got["priority"], got["headers"], got["ttl_ms"]) == (4, {"kind": "a"}, 61_500)


def test_an_idempotency_key_holds_here_too(caller: Caller, queue: str) -> None:
    for is_duplicate in (False, True):
        answer = caller.send(
            "POST", path_of("queues", queue, "messages"), b"text", content_type="text/plain", idempotency_key="k"
        )
        assert (answer.status, answer.value.get("duplicate", False)) == (201, is_duplicate)


def test_a_batch(caller: Caller, queue: str) -> None:
    answer = caller.rest("POST", "queues", queue, "batches", fields={"messages": [{"message": 1}, {"priority": 1}]})
    assert answer.status == 200
    assert answer.value["accepted"] == 1
    assert answer.value["results"][1]["error"]["code"] == "invalid_request"
    answer = caller.rest("POST", "queues", queue, "batches", fields={"bodies": [caller.octets(b"x")], "brief": True})
    assert answer.value == {"accepted": 1, "errors": []}


def test_messages_are_browsed_page_by_page_and_narrowed(http: Caller) -> None:
    queue = http.new_queue()
    http.publish(queue, *range(5), headers={"kind": "a"})
    http.publish(queue, 5, priority=2, delay_ms=3_600_000)
    found: list[int] = []
    after = 0
    while after is not None:
        page = http.rest("GET", "queues", queue, "messages", limit=2, after=after).value
        found += [message["message"] for message in page["messages"]]
        after = page["after"]
    assert found == [0, 1, 2, 3, 4, 5]
    wanted: list[tuple[dict[str, Any], list[int]]] = [
        ({"state": "scheduled"}, [5]),
        ({"priority": 2}, [5]),
        ({"headers": {"kind": "a"}, "limit": 10_000}, [0, 1, 2, 3, 4]),
        ({"deliveries_min": 1}, []),
        ({"created_before_ms": 1}, []),
    ]
    for query, expected in wanted:
        shown = http.rest("GET", "queues", queue, "messages", **query).value["messages"]
        assert [message["message"] for message in shown] == expected
    [shown] = http.rest("GET", "queues", queue, "messages", bodies="false", limit=1).value["messages"]
    assert "message" not in shown


def test_the_next_ones_and_one_by_its_id(http: Caller) -> None:
    queue = http.new_queue()
    first, _ = http.publish(queue, "first", "second")
    shown = http.rest("GET", "queues", queue, "next").value["messages"]
    assert [message["message"] for message in shown] == ["first"]
    assert len(http.rest("GET", "queues", queue, "next", limit=5).value["messages"]) == 2
    assert http.rest("GET", "queues", queue, "messages", first).value["message"] == "first"
    assert http.rest("GET", "queues", queue, "messages", first, raw="true").value["body"] == "ImZpcnN0Ig=="
    assert http.rest("GET", "queues", queue, "messages", "nonsense").refusal[:2] == (404, "message_not_found")


def test_receive(caller: Caller, queue: str) -> None:
    caller.publish(queue, 1, 2, 3)
    assert [one["message"] for one in caller.rest("POST", "queues", queue, "receive").value["messages"]] == [1]
    fields = {"limit": 5, "lease_ms": 60_000, "wait_ms": 10, "consumer": "c", "raw": True}
    shown = caller.rest("POST", "queues", queue, "receive", fields=fields).value["messages"]
    assert [one["body"] for one in shown] == [caller.octets(b"2"), caller.octets(b"3")]
    assert caller.rest("POST", "queues", queue, "receive", wait_ms=5).value == {"messages": []}


@pytest.mark.parametrize("way", ["id", "receipt"])
@pytest.mark.parametrize("verb", ["ack", "nack", "release", "extend"])
def test_settling(caller: Caller, queue: str, verb: str, way: str) -> None:
    caller.publish(queue, 1)
    [got] = caller.receive(queue)
    fields: dict[str, Any] = {"lease_ms": 90_000} if verb == "extend" else {}
    if way == "id":
        answer = caller.rest("POST", "queues", queue, "messages", got["message_id"], verb, fields=fields)
    else:
        answer = caller.rest("POST", verb, fields={**fields, "receipts": [got["receipt"]]})
    assert answer.status == 200
    assert answer.value["success"] is True
    assert caller.stats(queue)["in_flight"] == (verb == "extend")


def test_a_nack_takes_its_words_from_the_body_or_the_query(caller: Caller, queue: str) -> None:
    message_id = message_of(caller, queue)
    answer = caller.rest(
        "POST", "queues", queue, "messages", message_id, "nack", fields={"error": "no"}, requeue="false"
    )
    assert answer.value == {"success": True, "action": "dead_lettered"}
    shown = caller.rest("GET", "queues", queue, "dead-letters", error_contains="no", reason="rejected").value
    assert [one["message_id"] for one in shown["messages"]] == [message_id]


# -- messages as octets -----------------------------------------------------------------------------------------------


def test_octets_go_in_and_come_out_as_they_are(http: Caller) -> None:
    queue = http.new_queue()
    data = bytes(range(256))
    sent = http.send(
        "POST",
        path_of("queues", queue, "messages") + "?priority=6",
        data,
        content_type="image/png; v=1",
        smista_header_kind="holiday",
        smista_header_Camera_No="7",
    )
    assert sent.status == 201
    answer = http.send("POST", path_of("queues", queue, "receive"), accept="application/octet-stream")
    assert (answer.status, answer.body) == (200, data)
    assert answer.headers["content-type"] == "image/png; v=1"
    assert answer.headers["smista-message-id"] == sent.value["message_id"]
    assert answer.headers["smista-delivery-count"] == "1"
    assert answer.headers["smista-priority"] == "6"
    assert answer.headers["smista-header-kind"] == "holiday"
    assert answer.headers["smista-header-camera-no"] == "7"
    assert http.call("queue.ack", receipt=answer.headers["smista-receipt"]) == {"success": True}


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml; charset=utf-8", "nonsense"])
def test_any_content_type_but_ours_and_forms_is_octets(http: Caller, content_type: str) -> None:
    queue = http.new_queue()
    answer = http.send("POST", path_of("queues", queue, "messages"), b"a=1", content_type=content_type)
    assert answer.status == 201
    [got] = http.call("queue.receive", queue=queue, raw=True)["messages"]
    assert (got["body"], got.get("content_type")) == ("YT0x", content_type)


def test_an_empty_message_is_a_message(http: Caller) -> None:
    queue = http.new_queue()
    messages = path_of("queues", queue, "messages")
    assert http.send("POST", messages).status == 415, "what was forgotten is none"
    assert http.send("POST", messages, content_type="application/octet-stream").status == 201
    answer = http.send("POST", path_of("queues", queue, "receive"), accept="application/octet-stream")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"] == "application/octet-stream"


def test_no_message_is_204(http: Caller) -> None:
    answer = http.send("POST", path_of("queues", http.new_queue(), "receive"), accept="application/octet-stream")
    assert (answer.status, answer.body) == (204, b"")


def test_json_messages_are_octets_too_where_those_are_asked_for(http: Caller) -> None:
    queue = http.new_queue()
    http.publish(queue, {"a": 1}, "text")
    for expected in (b'{"a":1}', b'"text"'):
        answer = http.send("POST", path_of("queues", queue, "receive"), accept="application/octet-stream, */*;q=0.5")
        assert (answer.status, answer.body, answer.headers["content-type"]) == (200, expected, "application/json")


def test_a_format_named_before_the_octets_wins(http: Caller) -> None:
    queue = http.new_queue()
    http.publish(queue, 1)
    answer = http.send("POST", path_of("queues", queue, "receive"), accept="application/json, application/octet-stream")
    assert answer.value["messages"][0]["message"] == 1


def test_only_one_message_comes_as_octets(http: Caller) -> None:
    queue = http.new_queue()
    http.publish(queue, 1, 2)
    answer = http.send("POST", path_of("queues", queue, "receive") + "?limit=2", accept="application/octet-stream")
    assert answer.refusal[:2] == (400, "invalid_request")
    assert "`limit`" in answer.refusal.message
    assert http.stats(queue)["in_flight"] == 0


@pytest.mark.parametrize("odd", ["a\r\nx: y", "ünicode", " padded ", "", "x" * 5_000, "\x00"])
def test_what_cannot_stand_in_a_header_is_left_out(http: Caller, odd: str) -> None:
    queue = http.new_queue()
    headers = {"fine": "yes", "odd": odd, "not a token": "x", "number": 1.5, "map": {"a": [None]}}
    http.call("queue.publish", queue=queue, body="eA==", content_type=odd, headers=headers)
    answer = http.send("POST", path_of("queues", queue, "receive"), accept="application/octet-stream")
    assert (answer.status, answer.body) == (200, b"x")
    assert answer.headers["content-type"] == "application/octet-stream"
    shown = {name: value for name, value in answer.headers.items() if name.startswith("smista-header-")}
    assert shown == {
        "smista-header-fine": "yes",
        "smista-header-number": "1.5",
        "smista-header-map": '{"a":[null]}',
    }


def test_octets_go_through_an_exchange_too(http: Caller) -> None:
    queue = http.new_queue()
    # The default exchange has no name.
    path = f"{path_of('exchanges', '', 'messages')}?routing_key={queue}"
    answer = http.send("POST", path, b"\xff", content_type="application/x-thing")
    assert answer.status == 201
    assert [one["queue"] for one in answer.value["routed"]] == [queue]
    assert http.call("queue.peek", queue=queue)["messages"][0]["body"] == "/w=="


# -- dead letters and the schedule ------------------------------------------------------------------------------------


def test_dead_letters_are_listed_sent_back_and_thrown_away(caller: Caller, queue: str) -> None:
    caller.publish(queue, *range(5))
    receipts = [message["receipt"] for message in caller.receive(queue, 5)]
    caller.call("queue.nack", receipts=receipts, requeue=False)
    found: list[int] = []
    after = 0
    while after is not None:
        page = caller.rest("GET", "queues", queue, "dead-letters", limit=2, after=after).value
        found += [message["message"] for message in page["messages"]]
        after = page["after"]
    assert found == [0, 1, 2, 3, 4]
    ids = [one["message_id"] for one in caller.rest("GET", "queues", queue, "dead-letters").value["messages"]]
    redrive = ("queues", queue, "dead-letters", "redrive")
    assert caller.rest("POST", *redrive, dry_run="true").value["redriven"] == 5
    assert caller.rest("POST", *redrive, fields={"message_ids": ids[:2]}).value["redriven"] == 2
    assert caller.rest("POST", *redrive, message_ids=[ids[2], ids[3]]).value["redriven"] == 2
    assert caller.rest("DELETE", "queues", queue, "dead-letters", reason="expired").value["purged"] == 0
    assert caller.rest("DELETE", "queues", queue, "dead-letters").value["purged"] == 1


def test_scheduled_messages_are_listed_changed_and_cancelled(caller: Caller, queue: str) -> None:
    first, second, third = caller.publish(queue, 1, 2, 3, delay_ms=3_600_000)
    page = caller.rest("GET", "queues", queue, "scheduled", limit=2).value
    assert [one["message"] for one in page["messages"]] == [1, 2]
    rest = caller.rest("GET", "queues", queue, "scheduled", limit=2, after=page["after"]).value
    assert ([one["message"] for one in rest["messages"]], rest["after"]) == ([3], None)
    answer = caller.rest("PATCH", "queues", queue, "scheduled", first, fields={"delay_ms": 0})
    assert answer.value == {"success": True}
    assert caller.receive(queue, wait_ms=20_000)[0]["message_id"] == first
    assert caller.rest("PATCH", "queues", queue, "scheduled", second, deliver_at_ms=0).status == 200
    assert caller.rest("DELETE", "queues", queue, "scheduled", third).value == {"success": True}
    assert caller.rest("DELETE", "queues", queue, "scheduled", third).status == 404


# -- exchanges --------------------------------------------------------------------------------------------------------


def test_exchanges_are_made_bound_followed_and_removed(caller: Caller, queue: str) -> None:
    name = new_name("rest/exchange")
    assert caller.rest("PUT", "exchanges", name, fields={"kind": "headers"}).value == {"success": True}
    assert caller.rest("PUT", "exchanges", name).refusal[:2] == (409, "exchange_differs")
    binding = {"queue": queue, "key": "k", "arguments": {"a": 1}}
    assert caller.rest("POST", "exchanges", name, "bindings", fields=binding).value == {"success": True}
    bindings = caller.rest("GET", "exchanges", name, "bindings").value["bindings"]
    assert bindings == [{"exchange": name, **binding}]
    assert bindings[0] in caller.rest("GET", "bindings").value["bindings"]
    assert caller.rest("GET", "bindings", exchange=name).value["bindings"] == bindings
    assert name in [one["exchange"] for one in caller.rest("GET", "exchanges").value["exchanges"]]
    for route in (
        caller.rest("POST", "exchanges", name, "route", fields={"headers": {"a": 1}}),
        caller.rest("GET", "exchanges", name, "route", headers={"a": 1}),
    ):
        assert route.value.get("queues") == [queue], route.body
    sent = caller.rest("POST", "exchanges", name, "messages", fields={"message": 1, "headers": {"a": 1}})
    assert (sent.status, len(sent.value["routed"])) == (201, 1)
    assert caller.rest("DELETE", "exchanges", name, if_unused="true").refusal[:2] == (409, "exchange_in_use")
    assert caller.rest("DELETE", "exchanges", name, "bindings", **binding).value == {"success": True}
    assert caller.rest("GET", "exchanges", name, "bindings").value == {"bindings": []}
    assert caller.rest("DELETE", "exchanges", name).value == {"success": True}
    assert caller.rest("GET", "exchanges", name, "bindings").refusal[:2] == (404, "exchange_not_found")


def test_the_broker_itself(caller: Caller) -> None:
    assert caller.rest("GET", "info").value.keys() == caller.call("broker.info").keys()


# -- formats and methods ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speaks", CONTENT_TYPES)
def test_an_answer_comes_in_the_format_that_is_asked_for(http: Caller, speaks: str) -> None:
    wanted = CONTENT_TYPES[speaks]
    for path in ("/v1/info", path_of("queues", new_name("nowhere")), "/v1/nowhere"):
        answer = http.send("GET", path, accept=f"text/html, {wanted};q=0.9")
        assert answer.headers["content-type"] == wanted
        assert answer.value


def test_an_answer_comes_in_the_format_of_the_request(caller: Caller, queue: str) -> None:
    kind = CONTENT_TYPES[caller.speaks]
    assert caller.rest("POST", "queues", queue, "messages", fields={"message": 1}).headers["content-type"] == kind
    assert caller.rest("POST", "queues", queue, "messages", fields={}).headers["content-type"] == kind


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "GET"], ids=lambda route: route.path)
def test_head_answers_as_get_without_the_body(http: Caller, route: Any) -> None:
    queue, exchange = http.new_queue(), new_name("exchange")
    http.call("exchange.declare", exchange=exchange)
    [message_id] = http.publish(queue, 1)
    http.call("claim.heartbeat", queue=queue, consumer="c", session="s")
    path = route.path.format(queue=queue, exchange=exchange, message_id=message_id, consumer="c")
    get, head = http.send("GET", path), http.send("HEAD", path)
    assert (head.status, head.body) == (get.status, b"") == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert int(head.headers["content-length"]) > 0
    assert http.send("HEAD", path_of("queues", new_name("nowhere"))).status == 404


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
def test_a_method_that_does_not_go_with_a_path_is_told_which_do(http: Caller, path: str) -> None:
    allowed = {route.method for route in ROUTES if route.path == path}
    for method in {"GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"} - allowed:
        names = ("queue", "exchange", "message_id", "consumer", "job", "batch", "policy")
        answer = http.send(method, path.format(**dict.fromkeys(names, "x")))
        assert answer.refusal[:2] == (405, "method_not_allowed")
        assert set(answer.headers["allow"].split(", ")) >= allowed


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("limit=many", "`limit`"),
        ("limit=", "`limit`"),
        ("limit=0", "`limit`"),
        ("limit=10001", "`limit`"),
        ("limit=1&limit=2", "`limit`"),
        ("limit=99999999999999999999999", "`limit`"),
        ("after=-1", "`after`"),
        ("state=READY", "`state`"),
        ("state=gone", "`state`"),
        ("reason=because", "`reason`"),
        ("bodies=maybe", "`bodies`"),
        ("headers={", "`headers`"),
        ("headers=1", "`headers`"),
        ("headers=[]", "`headers`"),
        ("priority=1.5", "`priority`"),
        ("priority=-1", "`priority`"),
        ("colour=red", "`colour`"),
        ("=x", "``"),
        ("queue=other", "`queue`"),
        ("group=%FF", "query"),
        ("%ff=1", "query"),
    ],
)
def test_a_mistake_in_the_query_is_named(http: Caller, query: str, named: str) -> None:
    queue = http.new_queue()
    refusal = http.send("GET", f"{path_of('queues', queue, 'messages')}?{query}").refusal
    assert refusal[:2] == (400, "invalid_request")
    assert named in refusal.message


@pytest.mark.parametrize("value", ["1" + "0" * 30, "[" * 900 + "]" * 900])
def test_octets_with_odd_json_in_the_query_are_refused(http: Caller, value: str) -> None:
    queue = http.new_queue()
    path = f'{path_of("queues", queue, "messages")}?headers={{"a":{value}}}'
    refusal = http.send("POST", path.replace('"', "%22"), b"x", content_type="text/plain").refusal
    assert refusal[:2] == (400, "invalid_request")
    assert "`headers" in refusal.message
    assert http.stats(queue)["depth"] == 0


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/nowhere", 404, "path_not_found"),
        ("/v1/", 404, "path_not_found"),
        ("/v1", 404, "path_not_found"),
        ("/v2/queues", 404, "path_not_found"),
        ("/v1/queues/", 400, "invalid_request"),
        ("/v1/queues/a/b/c/d", 404, "path_not_found"),
        ("/v1/queues/%FF", 400, "invalid_request"),
        ("/v1/queues/%ED%A0%80/messages", 400, "invalid_request"),
        ("/v1/queues//messages", 400, "invalid_request"),
        ("/v1/queues/" + "x" * 256, 400, "invalid_request"),
        ("/v1/queues/" + "ä" * 200, 404, "queue_not_found"),
        ("/v1/queues/a%00b", 404, "queue_not_found"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_mistake_in_the_path_is_named(http: Caller, path: str, status: int, code: str) -> None:
    assert http.send("GET", quote(path, safe="/%")).refusal[:2] == (status, code)


@pytest.mark.parametrize("name", ["ä" * 200, "a\nb", "\u2028", "\x7f"])
def test_a_name_that_no_queue_can_have_is_refused(caller: Caller, name: str) -> None:
    assert caller.rest("PUT", "queues", name).refusal[:2] == (400, "invalid_name")


def test_what_is_said_twice_is_refused(caller: Caller, queue: str) -> None:
    messages = ("queues", queue, "messages")
    twice = [
        (caller.rest("POST", *messages, fields={"message": 1, "queue": queue}), "`queue`"),
        (caller.rest("POST", *messages, fields={"message": 1, "priority": 1}, priority=1), "`priority`"),
        (caller.rest("POST", *messages, fields={"message": 1}, queue=queue), "`queue`"),
    ]
    for answer, named in twice:
        assert answer.refusal[:2] == (400, "invalid_request")
        assert f"{named} is given twice" in answer.refusal.message
    assert caller.stats(queue)["depth"] == 0


def test_a_body_where_none_is_taken_is_refused(caller: Caller, queue: str) -> None:
    for method, parts in (("GET", ("queues",)), ("DELETE", ("queues", queue))):
        refusal = caller.rest(method, *parts, fields={"if_empty": True}).refusal
        assert refusal[:2] == (400, "invalid_request")
        assert "takes no body" in refusal.message
    assert caller.stats(queue)["depth"] == 0


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "JSON"),
        (b"[]", "The body"),
        (b"null", "The body"),
        (b'{"lease_ms": "long"}', "`settings.lease_ms`"),
        (b'{"lease_ms": 1, "colour": "red"}', "`settings.colour`"),
        (b'{"dead_letter_queue": "\xff"}', "JSON"),
        (b'{"retry_backoff": "sometimes"}', "`settings.retry_backoff`"),
    ],
)
def test_a_mistake_in_the_settings_is_named(http: Caller, body: bytes, named: str) -> None:
    name = new_name("rest")
    refusal = http.send("PUT", path_of("queues", name), body, content_type="application/json").refusal
    assert refusal[:2] == (400, "invalid_request")
    assert named in refusal.message
    assert http.rest("GET", "queues", name).status == 404


def test_settings_in_a_foreign_format_are_refused(http: Caller) -> None:
    answer = http.send("PUT", path_of("queues", new_name("rest")), b"a: 1", content_type="application/yaml")
    assert answer.refusal[:2] == (415, "unsupported_media_type")
    assert "application/yaml" in answer.refusal.message
