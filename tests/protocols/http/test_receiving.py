"""Receiving, waiting, and saying what became of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.http.caller import Caller


def waiting_count(caller: Caller) -> int:
    """How many long polls the server holds."""
    lines = caller.send("GET", "/metrics").body.decode().splitlines()
    [line] = [line for line in lines if line.startswith("smista_long_polls ")]
    return int(float(line.split()[1]))


# -- what is received -------------------------------------------------------------------------------------------------


def test_a_delivery_says_all_about_itself(caller: Caller, queue: str) -> None:
    [message_id] = caller.publish(queue, "x")
    [got] = caller.receive(queue, lease_ms=60_000, consumer="worker-1")
    assert got.keys() == {
        "message_id",
        "message",
        "queue",
        "priority",
        "headers",
        "retry_count",
        "delivery_count",
        "created_at_ms",
        "receipt",
        "delivered_at_ms",
        "lease_until_ms",
        "content_type",
    }
    assert (got["message_id"], got["queue"], got["priority"]) == (message_id, queue, 0)
    assert (got["retry_count"], got["delivery_count"]) == (0, 1)
    assert got["created_at_ms"] <= got["delivered_at_ms"] == got["lease_until_ms"] - 60_000


def test_a_lease_of_two_to_the_52nd_never_ends(caller: Caller, queue: str) -> None:
    caller.publish(queue, "x")
    [got] = caller.receive(queue, lease_ms=1 << 52)
    assert "lease_until_ms" not in got
    assert caller.call("queue.ack", receipt=got["receipt"]) == {"success": True}


def test_no_more_than_limit_are_received(caller: Caller, queue: str) -> None:
    caller.publish(queue, 1, 2, 3)
    assert [message["message"] for message in caller.receive(queue, 2)] == [1, 2]
    assert [message["message"] for message in caller.receive(queue, 2)] == [3]
    assert caller.receive(queue, 2) == []
    refusal = caller.refused("queue.receive", queue=queue, limit=1_001)
    assert refusal[:2] == (400, "invalid_argument")
    assert "limit is 1001" in refusal.message


# -- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "wait"), [("queue.receive", {"wait_ms": 20_000}), ("queue.consume", {"timeout": 20})]
)
def test_a_long_poll_wakes_when_a_message_comes(caller: Caller, queue: str, command: str, wait: dict[str, Any]) -> None:
    with caller.another() as waiting:
        waiting.start_command(command, {"queue": queue, **wait})
        while not waiting_count(caller):
            pass
        [message_id] = caller.publish(queue, "wake up")
        answer = waiting.answer().value
        [got] = answer.get("messages", [answer])
        assert (got["message_id"], got["message"]) == (message_id, "wake up")


def test_a_long_poll_ends_empty_when_nothing_comes(caller: Caller, queue: str) -> None:
    assert caller.receive(queue, wait_ms=10) == []
    assert caller.call("queue.consume", queue=queue, timeout=0.01)["message_id"] is None
    assert caller.call("queue.consume", queue=queue, timeout=0.01, prefetch=2) == {"messages": []}


def test_a_client_that_goes_while_it_waits_takes_nothing_along(caller: Caller, queue: str) -> None:
    gone = [caller.another() for _ in range(3)]
    for one in gone:
        one.start_command("queue.receive", {"queue": queue, "wait_ms": 20_000})
    while waiting_count(caller) < 3:
        pass
    for one in gone:
        one.close()
    while waiting_count(caller):
        pass
    caller.publish(queue, 1)
    stats = caller.stats(queue)
    assert (stats["ready"], stats["in_flight"], stats["consumed_total"]) == (1, 0, 0)
    assert [message["delivery_count"] for message in caller.receive(queue)] == [1]


def test_a_waiting_client_hears_that_the_queue_was_deleted(caller: Caller, queue: str) -> None:
    with caller.another() as waiting:
        waiting.start_command("queue.consume", {"queue": queue, "timeout": 20})
        while not waiting_count(caller):
            pass
        caller.call("queue.delete", queue=queue)
        assert waiting.answer().refusal[:2] == (410, "queue_deleted")


def test_another_request_behind_a_long_poll_is_answered_after_it(caller: Caller, queue: str) -> None:
    """HTTP/1.1 pipelining: the second request does not pass for the client's going."""
    with caller.another() as waiting:
        waiting.start_command("queue.receive", {"queue": queue, "wait_ms": 20_000})
        while not waiting_count(caller):
            pass
        waiting.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        caller.publish(queue, "first")
        assert waiting.answer().value["messages"][0]["message"] == "first"


# -- settling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["queue.ack", "queue.nack", "queue.release", "queue.extend"])
@pytest.mark.parametrize("by", ["receipt", "receipts", "message_id"])
def test_deliveries_are_settled_by_receipt_receipts_or_message_id(
    caller: Caller, queue: str, command: str, by: str
) -> None:
    caller.publish(queue, "x")
    [got] = caller.receive(queue)
    named: dict[str, Any] = {
        "receipt": {"receipt": got["receipt"]},
        "receipts": {"receipts": [got["receipt"]]},
        "message_id": {"queue": queue, "message_id": got["message_id"]},
    }[by]
    more = {"lease_ms": 60_000} if command == "queue.extend" else {}
    answer = caller.call(command, **named, **more)
    expected: dict[str, Any] = {"success": True}
    if command == "queue.nack":
        expected["action"] = "requeued"
    if by == "receipts":
        expected["results"] = [{"action": "requeued"} if command == "queue.nack" else None]
    assert answer == expected
    stats = caller.stats(queue)
    assert {name for name in ("ready", "scheduled", "in_flight") if stats[name]} == {
        "queue.ack": set(),
        "queue.nack": {"scheduled"},
        "queue.release": {"ready"},
        "queue.extend": {"in_flight"},
    }[command]


def test_of_several_receipts_each_has_its_own_outcome(caller: Caller, queue: str) -> None:
    caller.publish(queue, 1, 2, 3)
    first, second, third = (message["receipt"] for message in caller.receive(queue, 3))
    caller.call("queue.ack", receipt=second)
    answer = caller.call("queue.ack", receipts=[first, second, "nonsense", third, third])
    assert answer["success"] is False
    codes = [None if result is None else result["error"]["code"] for result in answer["results"]]
    assert codes == [None, "stale_receipt", "invalid_receipt", None, "stale_receipt"]
    assert caller.stats(queue)["depth"] == 0
    assert caller.call("queue.ack", receipts=[]) == {"success": True, "results": []}


def test_several_are_nacked_together(caller: Caller, queue: str) -> None:
    caller.publish(queue, 1, 2)
    receipts = [message["receipt"] for message in caller.receive(queue, 2)]
    answer = caller.call("queue.nack", receipts=[*receipts, "nonsense"], requeue=False, error="broken")
    assert answer["success"] is False
    assert "action" not in answer
    assert answer["results"][:2] == [{"action": "dead_lettered"}] * 2
    assert answer["results"][2]["error"]["code"] == "invalid_receipt"
    dead = caller.call("dlq.list", queue=queue, error_contains="broke")["messages"]
    assert [message["message"] for message in dead] == [1, 2]


def test_a_nack_may_name_its_delay_and_its_error(caller: Caller, queue: str) -> None:
    caller.publish(queue, 1)
    [got] = caller.receive(queue)
    caller.call("queue.nack", receipt=got["receipt"], delay_ms=0, error="no connection to the shop")
    [again] = caller.receive(queue)
    assert (again["retry_count"], again["failures"][0]["error"]) == (1, "no connection to the shop")
    assert again["failures"][0].keys() == {"delivery", "reason", "delivered_at_ms", "failed_at_ms", "error"}
    caller.call("queue.nack", receipt=again["receipt"], delay_ms=3_600_000)
    assert caller.stats(queue)["scheduled"] == 1


def test_a_released_message_is_back_at_its_place_and_has_not_failed(caller: Caller) -> None:
    queue = caller.new_queue(max_retries=0)
    caller.publish(queue, "first", "second")
    for delivery in (1, 2, 3):
        [got] = caller.receive(queue)
        assert (got["message"], got["delivery_count"]) == ("first", delivery)
        assert "failures" not in got
        caller.call("queue.release", receipt=got["receipt"])


def test_an_extended_lease_ends_later(caller: Caller, queue: str) -> None:
    caller.publish(queue, "x")
    [got] = caller.receive(queue, lease_ms=60_000)
    caller.call("queue.extend", receipt=got["receipt"], lease_ms=500_000)
    shown = caller.call("queue.get", queue=queue, message_id=got["message_id"])
    assert shown["lease_until_ms"] >= got["delivered_at_ms"] + 500_000


def test_a_message_id_acts_for_whoever_holds_the_message_now(caller: Caller, queue: str) -> None:
    [message_id] = caller.publish(queue, "x")
    [first] = caller.receive(queue, lease_ms=1)
    [second] = caller.receive(queue, wait_ms=20_000)
    assert caller.refused("queue.ack", receipt=first["receipt"]).code == "stale_receipt"
    assert caller.call("queue.ack", queue=queue, message_id=message_id) == {"success": True}
    assert caller.refused("queue.ack", receipt=second["receipt"]).code == "stale_receipt"


def test_a_receipt_outlives_nothing_but_its_delivery(caller: Caller, queue: str) -> None:
    caller.publish(queue, "x")
    [got] = caller.receive(queue)
    caller.call("queue.delete", queue=queue)
    caller.call("queue.declare", queue=queue)
    assert caller.refused("queue.ack", receipt=got["receipt"])[:2] == (409, "stale_receipt")
    tampered = got["receipt"][:-1] + ("A" if got["receipt"][-1] != "A" else "B")
    assert caller.refused("queue.ack", receipt=tampered)[:2] == (400, "invalid_receipt")


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({}, "`receipt`"),
        ({"queue": "q"}, "`receipt`"),
        ({"receipt": "r", "receipts": ["r"]}, "`receipts`"),
        ({"receipt": "r", "queue": "q", "message_id": "m"}, "`message_id`"),
        ({"message_id": "m"}, "`queue`"),
    ],
)
@pytest.mark.parametrize("command", ["queue.ack", "queue.nack", "queue.release"])
def test_what_is_to_be_settled_is_named_in_one_way(
    caller: Caller, command: str, payload: dict[str, Any], named: str
) -> None:
    refusal = caller.refused(command, **payload)
    assert refusal[:2] == (400, "invalid_request")
    assert named in refusal.message
