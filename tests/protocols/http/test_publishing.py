"""Publishing: one message, many, the same one twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.http.caller import Caller, new_name

# -- when and in which order ------------------------------------------------------------------------------------------


def test_a_delayed_message_waits_its_time(caller: Caller, queue: str) -> None:
    before_ms = caller.call("broker.info")["now_ms"]
    answer = caller.call("queue.publish", queue=queue, message="later", delay_ms=50)
    assert answer["position"] == 1
    [got] = caller.receive(queue, wait_ms=20_000)
    assert got["message_id"] == answer["message_id"]
    assert got["delivered_at_ms"] >= before_ms + 50


def test_a_message_can_be_due_at_an_instant(caller: Caller, queue: str) -> None:
    due_at_ms = caller.call("broker.info")["now_ms"] + 50
    caller.publish(queue, "in an hour", deliver_at_ms=due_at_ms + 3_600_000)
    caller.publish(queue, "then", deliver_at_ms=due_at_ms)
    caller.publish(queue, "long ago", deliver_at_ms=1)
    got = {message["message"]: message for _ in range(2) for message in caller.receive(queue, wait_ms=20_000)}
    assert got.keys() == {"long ago", "then"}
    assert got["then"]["delivered_at_ms"] >= due_at_ms
    assert caller.stats(queue)["scheduled"] == 1


def test_a_time_to_live_in_seconds_or_milliseconds(caller: Caller, queue: str) -> None:
    caller.publish(queue, 1, ttl=60)
    caller.publish(queue, 2, ttl=90.5)
    caller.publish(queue, 3, ttl_ms=60_000)
    shown = caller.call("queue.browse", queue=queue)["messages"]
    assert [message["ttl_ms"] for message in shown] == [60_000, 90_500, 60_000]
    assert [message["expires_at_ms"] - message["created_at_ms"] for message in shown] == [60_000, 90_500, 60_000]


def test_groups_are_kept_in_order(caller: Caller) -> None:
    queue = caller.new_queue(ordered=True)
    for group, message in (("a", 1), ("a", 2), ("b", 3)):
        caller.publish(queue, message, group=group)
    first, second = caller.receive(queue, 10)
    assert [(one["group"], one["message"]) for one in (first, second)] == [("a", 1), ("b", 3)]
    caller.call("queue.ack", receipt=first["receipt"])
    assert [message["message"] for message in caller.receive(queue, 10)] == [2]


def test_a_fair_queue_shares_out_between_groups(caller: Caller) -> None:
    queue = caller.new_queue(fair=True)
    caller.publish(queue, *range(5), group="noisy")
    assert [message["message"] for message in caller.receive(queue, 2)] == [0, 1]
    caller.publish(queue, "first", "second", group="quiet")
    assert [message["message"] for message in caller.receive(queue, 3)] == ["first", "second", 2]
    refusal = caller.refused("queue.alter", queue=queue, settings={"ordered": True})
    assert refusal[:2] == (400, "invalid_settings")
    assert "ordered or fair" in refusal.message
    settings = caller.call("queue.alter", queue=queue, settings={"ordered": True, "fair": False})["settings"]
    assert (settings["ordered"], settings["fair"]) == (True, False)
    assert caller.receive(queue, 10) == []


def test_a_message_can_bring_its_own_number_of_retries(caller: Caller, queue: str) -> None:
    caller.publish(queue, "one chance", max_retries=0)
    [got] = caller.receive(queue)
    assert caller.call("queue.nack", receipt=got["receipt"])["action"] == "dead_lettered"


# -- the same one twice -----------------------------------------------------------------------------------------------


def test_the_same_deduplication_id_is_stored_once(caller: Caller, queue: str) -> None:
    first = caller.call("queue.publish", queue=queue, message=1, deduplication_id="order-1")
    second = caller.call("queue.publish", queue=queue, message=1, deduplication_id="order-1")
    assert "duplicate" not in first
    assert second == {"message_id": first["message_id"], "position": 0, "duplicate": True}
    [got] = caller.receive(queue, 10)
    caller.call("queue.ack", receipt=got["receipt"])
    assert caller.call("queue.publish", queue=queue, message=1, deduplication_id="order-1")["duplicate"] is True
    assert (caller.stats(queue)["depth"], caller.stats(queue)["duplicates_total"]) == (0, 2)


def test_a_body_can_be_its_own_deduplication_id(caller: Caller) -> None:
    queue = caller.new_queue(dedup_by_body=True)
    answers = [caller.call("queue.publish", queue=queue, message=message) for message in ("a", "b", "a")]
    assert [answer.get("duplicate", False) for answer in answers] == [False, False, True]


@pytest.mark.parametrize("key", ["order-1", '"order-1"', "  order-1  "])
def test_an_idempotency_key_is_the_deduplication_id(caller: Caller, queue: str, key: str) -> None:
    first = caller.post("queue.publish", {"queue": queue, "message": 1}, idempotency_key=key).value
    again = caller.call("queue.publish", queue=queue, message=1, deduplication_id="order-1")
    assert (again["message_id"], again["duplicate"]) == (first["message_id"], True)
    assert caller.receive(queue)[0]["deduplication_id"] == "order-1"


def test_the_field_wins_over_the_idempotency_key(caller: Caller, queue: str) -> None:
    caller.post("queue.publish", {"queue": queue, "message": 1, "deduplication_id": "mine"}, idempotency_key="other")
    assert caller.receive(queue)[0]["deduplication_id"] == "mine"


def test_an_idempotency_key_may_be_any_text(caller: Caller, queue: str) -> None:
    key = "grüße-1".encode().decode("latin-1")
    caller.post("queue.publish", {"queue": queue, "message": 1}, idempotency_key=key)
    assert caller.receive(queue)[0]["deduplication_id"] == "grüße-1"


@pytest.mark.parametrize("key", ["", '""', "x" * 1025])
def test_an_idempotency_key_has_to_fit(caller: Caller, queue: str, key: str) -> None:
    refusal = caller.post("queue.publish", {"queue": queue, "message": 1}, idempotency_key=key).refusal
    assert refusal[:2] == (400, "invalid_request")
    assert "Idempotency-Key" in refusal.message
    assert caller.stats(queue)["depth"] == 0


def test_an_idempotency_key_covers_a_batch(caller: Caller, queue: str) -> None:
    payload = {"queue": queue, "messages": [{"message": 1}, {"message": 2}]}
    first = caller.post("queue.publish_batch", payload, idempotency_key="batch-1").value
    again = caller.post("queue.publish_batch", payload, idempotency_key="batch-1").value
    assert (first["accepted"], again["accepted"], again["duplicates"]) == (2, 2, 2)
    assert caller.stats(queue)["depth"] == 2


def test_an_idempotency_key_covers_a_publish_through_an_exchange(caller: Caller, queue: str) -> None:
    payload = {"exchange": "", "routing_key": queue, "message": 1}
    first = caller.post("exchange.publish", payload, idempotency_key="once").value["routed"]
    again = caller.post("exchange.publish", payload, idempotency_key="once").value["routed"]
    assert again == [{**first[0], "position": 0, "duplicate": True}]


def test_an_idempotency_key_is_nothing_to_other_commands(caller: Caller, queue: str) -> None:
    assert caller.post("queue.stats", {"queue": queue}, idempotency_key="").status == 200


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_answers_for_each_message(caller: Caller, queue: str) -> None:
    messages = [{"message": 1}, {"message": 2, "priority": 7}, {"body": caller.octets(b"\xff"), "headers": {"a": 1}}]
    answer = caller.call("queue.publish_batch", queue=queue, messages=messages)
    assert answer.keys() == {"accepted", "results"}
    assert answer["accepted"] == 3
    assert [result.keys() for result in answer["results"]] == [{"message_id", "position"}] * 3
    assert [result["position"] for result in answer["results"]] == [1, 1, 3]
    got = caller.receive(queue, 10)
    assert [message.get("message", message.get("body")) for message in got] == [2, 1, caller.octets(b"\xff")]
    assert sorted(message["message_id"] for message in got) == [result["message_id"] for result in answer["results"]]


def test_one_that_is_refused_does_not_keep_the_others_out(caller: Caller) -> None:
    queue = caller.new_queue(max_priority=9, body_bytes_max=100)
    messages: list[dict[str, Any]] = [
        {"message": "good"},
        {"message": "bad", "priority": 10},
        {"message": "x" * 200},
        {"message": 1, "body": caller.octets(b"1")},
        {},
        {"message": 1, "ttl": 1, "ttl_ms": 1},
        {"message": 1, "delay_ms": 1, "deliver_at_ms": 1},
        {"message": "also good", "deduplication_id": "d"},
        {"message": "also good", "deduplication_id": "d"},
    ]
    answer = caller.call("queue.publish_batch", queue=queue, messages=messages)
    codes = [result["error"]["code"] if "error" in result else None for result in answer["results"]]
    assert codes == [
        None,
        "invalid_priority",
        "message_too_large",
        "invalid_request",
        "invalid_request",
        "invalid_request",
        "invalid_request",
        None,
        None,
    ]
    assert (answer["accepted"], answer["duplicates"]) == (3, 1)
    assert answer["results"][8]["duplicate"] is True
    assert [message["message"] for message in caller.receive(queue, 10)] == ["good", "also good"]


def test_a_brief_answer_names_only_what_was_refused(caller: Caller) -> None:
    queue = caller.new_queue(max_depth=2)
    messages = [{"message": number} for number in range(4)]
    answer = caller.call("queue.publish_batch", queue=queue, messages=messages, brief=True)
    assert answer.keys() == {"accepted", "errors"}
    assert answer["accepted"] == 2
    assert [(error["index"], error["code"]) for error in answer["errors"]] == [(2, "queue_full"), (3, "queue_full")]


def test_bodies_alone_are_a_batch_too(caller: Caller, queue: str) -> None:
    bodies = [caller.octets(b"1"), caller.octets(b'{"a": 2}')]
    answer = caller.call("queue.publish_batch", queue=queue, bodies=bodies, content_type="application/json")
    assert [result["position"] for result in answer["results"]] == [1, 2]
    got = caller.receive(queue, 10)
    assert [(one["message"], one["content_type"]) for one in got] == [
        (1, "application/json"),
        ({"a": 2}, "application/json"),
    ]
    caller.call("queue.publish_batch", queue=queue, bodies=[caller.octets(b"plain")])
    assert "content_type" not in caller.receive(queue)[0]


@pytest.mark.parametrize("settings", [{}, {"max_depth": 100}], ids=["plain", "limited"])
def test_a_batch_sent_again_under_its_id_is_not_stored_again(caller: Caller, settings: dict[str, Any]) -> None:
    queue = caller.new_queue(max_priority=5, **settings)
    payload = {
        "queue": queue,
        "batch_id": "batch-1",
        "messages": [{"message": 1}, {"message": 2, "priority": 6}, {"message": 3}],
    }
    first = caller.call("queue.publish_batch", **payload)
    again = caller.call("queue.publish_batch", **payload)
    assert (first["accepted"], again["accepted"], again["duplicates"]) == (2, 2, 2)
    assert [result.get("message_id") for result in again["results"]] == [
        result.get("message_id") for result in first["results"]
    ]
    assert [result.get("duplicate", False) for result in again["results"]] == [True, False, True]
    assert again["results"][1]["error"]["code"] == "invalid_priority"
    assert caller.stats(queue)["depth"] == 2
    assert caller.call("queue.publish_batch", **{**payload, "batch_id": "batch-2"})["accepted"] == 2
    assert caller.stats(queue)["depth"] == 4


def test_an_empty_batch_is_fine(caller: Caller, queue: str) -> None:
    assert caller.call("queue.publish_batch", queue=queue, messages=[]) == {"accepted": 0, "results": []}
    assert caller.call("queue.publish_batch", queue=queue, bodies=[], brief=True) == {"accepted": 0, "errors": []}


def test_ten_thousand_are_a_batch_and_one_more_is_not(caller: Caller, queue: str) -> None:
    bodies = [caller.octets(b"x")] * 10_000
    assert caller.call("queue.publish_batch", queue=queue, bodies=bodies, brief=True)["accepted"] == 10_000
    refusal = caller.refused("queue.publish_batch", queue=queue, bodies=[*bodies, bodies[0]])
    assert refusal[:2] == (400, "invalid_request")
    assert "`bodies`" in refusal.message
    assert caller.stats(queue)["depth"] == 10_000


def test_a_batch_for_a_queue_that_is_not_there_is_refused_whole(caller: Caller) -> None:
    refusal = caller.refused("queue.publish_batch", queue=new_name("nowhere"), messages=[{"message": 1}])
    assert refusal[:2] == (404, "queue_not_found")


# -- exchanges --------------------------------------------------------------------------------------------------------


def test_a_message_reaches_every_queue_its_exchange_leads_to(caller: Caller) -> None:
    exchange, first, second = new_name("topics"), caller.new_queue(), caller.new_queue()
    caller.call("exchange.declare", exchange=exchange, kind="topic")
    caller.call("exchange.bind", exchange=exchange, queue=first, key="orders.#")
    caller.call("exchange.bind", exchange=exchange, queue=second, key="*.eu")
    answer = caller.call("exchange.publish", exchange=exchange, routing_key="orders.eu", message={"n": 1})
    assert {one["queue"]: one["position"] for one in answer["routed"]} == {first: 1, second: 1}
    assert all(one.keys() == {"queue", "message_id", "position"} for one in answer["routed"])
    [got] = caller.receive(first)
    assert (got["exchange"], got["routing_key"], got["message"]) == (exchange, "orders.eu", {"n": 1})
    assert caller.call("exchange.publish", exchange=exchange, routing_key="nobody", message=1) == {"routed": []}


def test_there_may_be_ten_thousand_further_keys(caller: Caller) -> None:
    queue = caller.new_queue()
    payload = {"exchange": "", "routing_key": "nowhere", "message": 1}
    assert len(caller.call("exchange.publish", **payload, extra_keys=[queue] * 10_000)["routed"]) == 1
    refusal = caller.refused("exchange.publish", **payload, extra_keys=[queue] * 10_001)
    assert refusal.status == 400
    assert "extra_keys" in refusal.message
    assert "10,000" in refusal.message


def test_headers_and_further_keys_route_too(caller: Caller) -> None:
    direct, headers, queue = new_name("direct"), new_name("headers"), caller.new_queue()
    caller.call("exchange.declare", exchange=direct)
    caller.call("exchange.declare", exchange=headers, kind="headers")
    caller.call("exchange.bind", exchange=direct, queue=queue, key="second")
    caller.call("exchange.bind", exchange=headers, queue=queue, arguments={"x-match": "all", "kind": "express"})
    payload = {"exchange": direct, "routing_key": "first", "message": 1}
    assert caller.call("exchange.publish", **payload)["routed"] == []
    assert len(caller.call("exchange.publish", **payload, extra_keys=["second"])["routed"]) == 1
    payload = {"exchange": headers, "message": 1}
    assert caller.call("exchange.publish", **payload, headers={"kind": "slow"})["routed"] == []
    assert len(caller.call("exchange.publish", **payload, headers={"kind": "express"})["routed"]) == 1


def test_an_exchange_stores_in_all_queues_or_in_none(caller: Caller) -> None:
    exchange, roomy, full = new_name("all"), caller.new_queue(), caller.new_queue(max_depth=1)
    caller.call("exchange.declare", exchange=exchange, kind="fanout")
    for queue in (roomy, full):
        caller.call("exchange.bind", exchange=exchange, queue=queue)
    assert len(caller.call("exchange.publish", exchange=exchange, message=1)["routed"]) == 2
    assert caller.refused("exchange.publish", exchange=exchange, message=2)[:2] == (429, "queue_full")
    assert caller.stats(roomy)["depth"] == 1


def test_in_a_partial_batch_a_message_that_cannot_be_read_is_refused_by_itself(caller: Caller, queue: str) -> None:
    messages = [{"message": 1}, {"message": 2, "priority": 999}, {"message": 3, "unheard_of": 1}, "x", {"message": 4}]
    answer = caller.call("queue.publish_batch", queue=queue, messages=messages, partial=True)
    assert answer["accepted"] == 2
    codes = [result.get("error", {}).get("code") for result in answer["results"]]
    assert codes == [None, "invalid_request", "invalid_request", "invalid_request", None]
    assert "priority" in answer["results"][1]["error"]["message"]


def test_in_a_partial_batch_a_body_that_cannot_be_read_is_refused_by_itself(caller: Caller, queue: str) -> None:
    bodies = [caller.octets(b"1"), 2, caller.octets(b"3"), None]
    answer = caller.call("queue.publish_batch", queue=queue, bodies=bodies, content_type="text/plain", partial=True)
    assert answer["accepted"] == 2
    assert [result.get("error", {}).get("code") for result in answer["results"]] == [
        None,
        "invalid_request",
        None,
        "invalid_request",
    ]
    brief = caller.call("queue.publish_batch", queue=queue, bodies=["%%%", *bodies[:1]], partial=True, brief=True)
    assert [error["index"] for error in brief["errors"]] == [0]
    found = caller.call("queue.browse", queue=queue)["messages"]
    assert [(each["message"], each.get("content_type")) for each in found][:2] == [
        ("1", "text/plain"),
        ("3", "text/plain"),
    ]
    refusal = caller.refused("queue.publish_batch", queue=queue, bodies=bodies)
    assert refusal.code == "invalid_request"


def test_what_is_wrong_with_a_partial_batch_itself_refuses_all_of_it(caller: Caller, queue: str) -> None:
    messages = [{"message": 1, "priority": 999}]
    for wrong in ({"batch_id": ""}, {"brief": 1}, {"unheard_of": 1}, {"messages": [messages[0]] * 10_001}):
        payload = {"queue": queue, "messages": messages, "partial": True, **wrong}
        assert caller.refused("queue.publish_batch", **payload).code == "invalid_request"
    assert caller.refused("queue.publish_batch", queue=queue, messages=messages).code == "invalid_request"
