"""Browsing messages: peek, browse, get; those that are scheduled."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.http.caller import Caller


def pages(caller: Caller, command: str, **payload: Any) -> list[list[Any]]:
    """The messages of every page, to the end."""
    found, after = [], 0
    while after is not None:
        page = caller.call(command, **payload, after=after)
        found.append([message.get("message") for message in page["messages"]])
        after = page["after"]
    return found


@pytest.fixture
def mixed(caller: Caller) -> str:
    """A queue with messages in every state: 1 and 2 ready, 3 scheduled, 4 in flight, 5 dead."""
    queue = caller.new_queue(dead_letter="park")
    caller.publish(queue, 4, 5, priority=9)
    _, dead = caller.receive(queue, 2)
    caller.call("queue.nack", receipt=dead["receipt"], requeue=False, error="five is right out")
    caller.publish(queue, 1, headers={"kind": "a", "n": 1})
    caller.publish(queue, 2, group="g", headers={"kind": "b", "n": 1})
    caller.publish(queue, 3, delay_ms=3_600_000)
    return queue


# -- peek -------------------------------------------------------------------------------------------------------------


def test_peek_shows_what_would_come_next_in_that_order(caller: Caller, mixed: str) -> None:
    answer = caller.call("queue.peek", queue=mixed, limit=10)
    assert [message["message"] for message in answer["messages"]] == [1, 2]
    assert answer["after"] is None
    assert caller.stats(mixed)["consumed_total"] == 2


# -- browse -----------------------------------------------------------------------------------------------------------


def test_browse_shows_every_message_in_its_state(caller: Caller, mixed: str) -> None:
    shown = caller.call("queue.browse", queue=mixed)["messages"]
    assert {message["message"]: message["state"] for message in shown} == {
        1: "ready",
        2: "ready",
        3: "scheduled",
        4: "in_flight",
        5: "dead",
    }
    by_message = {message["message"]: message for message in shown}
    assert by_message[3]["ready_at_ms"] - by_message[3]["created_at_ms"] == 3_600_000
    assert (by_message[4]["retry_count"], by_message[4]["delivery_count"]) == (0, 1)
    assert "lease_until_ms" in by_message[4]
    assert not any("receipt" in message for message in shown)
    [death] = by_message[5]["deaths"]
    assert death.keys() == {
        "queue",
        "reason",
        "at_ms",
        "delivery_count",
        "failures",
        "count",
        "exchange",
        "routing_key",
    }


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, [4, 5, 1, 2, 3]),
        ({"state": "ready"}, [1, 2]),
        ({"state": "scheduled"}, [3]),
        ({"state": "in_flight"}, [4]),
        ({"state": "dead"}, [5]),
        ({"priority": 9}, [4, 5]),
        ({"priority": 9, "state": "dead"}, [5]),
        ({"group": "g"}, [2]),
        ({"reason": "rejected"}, [5]),
        ({"reason": "expired"}, []),
        ({"error_contains": "right out"}, [5]),
        ({"error_contains": "fine"}, []),
        ({"deliveries_min": 1}, [4, 5]),
        ({"deliveries_min": 2}, []),
        ({"headers": {"n": 1}}, [1, 2]),
        ({"headers": {"n": 1, "kind": "b"}}, [2]),
        ({"headers": {"n": "1"}}, []),
        ({"created_from_ms": 0}, [4, 5, 1, 2, 3]),
        ({"created_before_ms": 1}, []),
        ({"source": "elsewhere"}, []),
    ],
    ids=str,
)
def test_browse_narrows_by_any_filter(caller: Caller, mixed: str, wanted: dict[str, Any], found: list[int]) -> None:
    shown = caller.call("queue.browse", queue=mixed, **wanted)["messages"]
    assert [message["message"] for message in shown] == found


def test_browse_narrows_by_time_and_source(caller: Caller, mixed: str) -> None:
    [dead] = caller.call("queue.browse", queue=mixed, source=mixed)["messages"]
    assert dead["message"] == 5
    created_at_ms = dead["created_at_ms"]
    both = {"created_from_ms": created_at_ms, "created_before_ms": created_at_ms + 1}
    assert 5 in [message["message"] for message in caller.call("queue.browse", queue=mixed, **both)["messages"]]


def test_browse_pages_to_the_end(caller: Caller, queue: str) -> None:
    caller.publish(queue, *range(7))
    assert pages(caller, "queue.browse", queue=queue, limit=3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert pages(caller, "queue.browse", queue=queue, limit=7) == [list(range(7))]
    assert pages(caller, "queue.browse", queue=queue) == [list(range(7))]


def test_browse_can_leave_the_bodies_out(caller: Caller, queue: str) -> None:
    caller.publish(queue, 1)
    [shown] = caller.call("queue.browse", queue=queue, bodies=False)["messages"]
    assert not {"message", "body"} & shown.keys()
    assert shown["content_type"] == "application/json"


def test_large_bodies_make_a_page_shorter(http: Caller) -> None:
    queue = http.new_queue(dead_letter="park")
    with http.another("msgpack") as caller:
        for _ in range(2):
            bodies = [bytes(1 << 20)] * 10
            assert caller.call("queue.publish_batch", queue=queue, bodies=bodies)["accepted"] == 10
        page = caller.call("queue.browse", queue=queue, raw=True)
        assert len(page["messages"]) == 16
        rest = caller.call("queue.browse", queue=queue, after=page["after"], raw=True)
        assert (len(rest["messages"]), rest["after"]) == (4, None)
        assert len(caller.call("queue.browse", queue=queue, bodies=False)["messages"]) == 20
        receipts = [message["receipt"] for _ in range(2) for message in caller.receive(queue, 20)]
        caller.call("queue.nack", receipts=receipts, requeue=False)
        page = caller.call("dlq.list", queue=queue)
        rest = caller.call("dlq.list", queue=queue, after=page["after"])
        assert (len(page["messages"]), len(rest["messages"]), rest["after"]) == (16, 4, None)


# -- get --------------------------------------------------------------------------------------------------------------


def test_get_finds_a_message_in_any_state(caller: Caller, mixed: str) -> None:
    for message in caller.call("queue.browse", queue=mixed)["messages"]:
        assert caller.call("queue.get", queue=mixed, message_id=message["message_id"]) == message


def test_get_says_when_there_is_no_such_message(caller: Caller, queue: str) -> None:
    [message_id] = caller.publish(queue, 1)
    elsewhere = caller.new_queue()
    for name, one in ((elsewhere, message_id), (queue, "nonsense"), (queue, ""), (queue, message_id.upper() + "0")):
        assert caller.refused("queue.get", queue=name, message_id=one)[:2] == (404, "message_not_found")


# -- scheduled --------------------------------------------------------------------------------------------------------


def test_scheduled_messages_are_listed_page_by_page(caller: Caller, queue: str) -> None:
    caller.publish(queue, "ready")
    caller.publish(queue, *range(5), delay_ms=3_600_000)
    assert pages(caller, "scheduled.list", queue=queue, limit=2) == [[0, 1], [2, 3], [4]]
    caller.publish(queue, "other", delay_ms=3_600_000, headers={"a": 1})
    [found] = caller.call("scheduled.list", queue=queue, headers={"a": 1})["messages"]
    assert (found["message"], found["state"]) == ("other", "scheduled")


@pytest.mark.parametrize("when", [{"delay_ms": 0}, {"deliver_at_ms": 0}, {"deliver_at_ms": 1}], ids=str)
def test_a_scheduled_message_can_be_made_due(caller: Caller, queue: str, when: dict[str, int]) -> None:
    [message_id] = caller.publish(queue, "x", delay_ms=3_600_000)
    assert caller.call("scheduled.change", queue=queue, message_id=message_id, **when) == {"success": True}
    [got] = caller.receive(queue, wait_ms=20_000)
    assert got["message_id"] == message_id


def test_a_scheduled_message_can_be_put_off(caller: Caller, queue: str) -> None:
    [message_id] = caller.publish(queue, "x", delay_ms=3_600_000)
    caller.call("scheduled.change", queue=queue, message_id=message_id, deliver_at_ms=1 << 50)
    assert caller.call("queue.get", queue=queue, message_id=message_id)["ready_at_ms"] == 1 << 50
    caller.call("scheduled.change", queue=queue, message_id=message_id, delay_ms=1 << 52)
    assert caller.stats(queue)["scheduled"] == 1


def test_a_scheduled_message_can_be_cancelled(caller: Caller, queue: str) -> None:
    [message_id] = caller.publish(queue, "x", delay_ms=3_600_000)
    assert caller.call("scheduled.cancel", queue=queue, message_id=message_id) == {"success": True}
    assert caller.stats(queue)["depth"] == 0
    assert caller.refused("scheduled.cancel", queue=queue, message_id=message_id)[:2] == (404, "message_not_found")


def test_one_message_can_be_deleted(caller: Caller, queue: str) -> None:
    first, second = caller.publish(queue, "x", "y")
    assert caller.call("queue.delete_message", queue=queue, message_id=first) == {"success": True}
    assert caller.rest("DELETE", "queues", queue, "messages", second).status == 200
    assert caller.stats(queue)["depth"] == 0
    assert caller.refused("queue.delete_message", queue=queue, message_id=first)[:2] == (404, "message_not_found")


def test_what_is_ready_is_not_scheduled(caller: Caller, queue: str) -> None:
    [message_id] = caller.publish(queue, "x")
    refusal = caller.refused("scheduled.cancel", queue=queue, message_id=message_id)
    assert refusal[:2] == (404, "message_not_found")
    refusal = caller.refused("scheduled.change", queue=queue, message_id=message_id, delay_ms=1)
    assert refusal[:2] == (404, "message_not_found")
    assert caller.stats(queue)["ready"] == 1


@pytest.mark.parametrize("when", [{}, {"delay_ms": 1, "deliver_at_ms": 1}], ids=str)
def test_a_change_names_one_time(caller: Caller, queue: str, when: dict[str, int]) -> None:
    [message_id] = caller.publish(queue, "x", delay_ms=3_600_000)
    refusal = caller.refused("scheduled.change", queue=queue, message_id=message_id, **when)
    assert refusal[:2] == (400, "invalid_request")
    assert "`deliver_at_ms`" in refusal.message
    assert "`delay_ms`" in refusal.message
