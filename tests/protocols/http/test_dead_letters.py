"""Dead letters: a queue's own, wherever they are; seen, sent back, thrown away."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.http.caller import Caller, new_name
from tests.waiting import eventually


def kill(caller: Caller, queue: str, *messages: Any, error: str = "", **fields: Any) -> list[str]:
    """Publish messages and reject them; their ids."""
    ids = caller.publish(queue, *messages, **fields)
    for message in caller.receive(queue, len(messages)):
        caller.call("queue.nack", receipt=message["receipt"], requeue=False, error=error)
    return ids


def dead(caller: Caller, queue: str, **fields: Any) -> list[Any]:
    return [message["message"] for message in caller.call("dlq.list", queue=queue, **fields)["messages"]]


def ready(caller: Caller, queue: str) -> list[Any]:
    shown = caller.call("queue.browse", queue=queue, state="ready")["messages"]
    return [message["message"] for message in shown]


@pytest.fixture
def shared(caller: Caller) -> tuple[str, str, str]:
    """Two queues and the dead-letter queue they share."""
    graves = caller.new_queue()
    return caller.new_queue(dead_letter_queue=graves), caller.new_queue(dead_letter_queue=graves), graves


# -- where they are ---------------------------------------------------------------------------------------------------


def test_a_queue_without_dead_letters_has_an_empty_list(caller: Caller, queue: str) -> None:
    assert caller.call("dlq.list", queue=queue) == {
        "queue": queue,
        "messages": [],
        "after": None,
        "looked_in": [queue],
    }


def test_dead_letters_go_to_a_queue_of_their_own(caller: Caller, queue: str) -> None:
    kill(caller, queue, 1, 2)
    answer = caller.call("dlq.list", queue=queue)
    assert answer["queue"] == f"{queue}_dlq"
    assert [message["message"] for message in answer["messages"]] == [1, 2]
    assert {message["queue"] for message in answer["messages"]} == {f"{queue}_dlq"}
    assert answer["looked_in"] == [queue, f"{queue}_dlq"]
    assert caller.call("dlq.list", queue=f"{queue}_dlq") == {**answer, "looked_in": [f"{queue}_dlq"]}


def test_parked_ones_are_listed_too(caller: Caller) -> None:
    queue = caller.new_queue(dead_letter="park")
    kill(caller, queue, 1)
    caller.publish(queue, "alive")
    answer = caller.call("dlq.list", queue=queue)
    assert [(message["message"], message["state"]) for message in answer["messages"]] == [(1, "dead")]
    assert answer["queue"] == queue


def test_in_a_shared_dead_letter_queue_each_sees_its_own(caller: Caller, shared: tuple[str, str, str]) -> None:
    first, second, graves = shared
    kill(caller, first, 1)
    kill(caller, second, 2)
    kill(caller, first, 3)
    assert dead(caller, first) == [1, 3]
    assert dead(caller, second) == [2]
    assert dead(caller, graves) == [1, 2, 3]
    assert dead(caller, graves, source=first) == [1, 3]
    assert dead(caller, first, source=second) == []


def test_parked_and_moved_ones_are_listed_together_page_by_page(caller: Caller) -> None:
    graves = caller.new_queue(max_depth=2)
    queue = caller.new_queue(dead_letter_queue=graves)
    kill(caller, queue, 1, 2, 3, 4)
    room, *_ = caller.receive(graves)
    caller.call("queue.ack", receipt=room["receipt"])
    kill(caller, queue, 5, 6)
    places = caller.call("dlq.list", queue=queue)["messages"]
    assert {message["message"]: message["queue"] for message in places} == {
        2: graves,
        3: queue,
        4: queue,
        5: graves,
        6: queue,
    }
    for limit in (1, 2, 3, 4, 5):
        found: list[Any] = []
        after = 0
        while after is not None:
            page = caller.call("dlq.list", queue=queue, limit=limit, after=after)
            assert len(page["messages"]) <= limit
            found += [message["message"] for message in page["messages"]]
            after = page["after"]
        assert sorted(found) == [2, 3, 4, 5, 6]
        assert found == [message["message"] for message in places]


@pytest.mark.parametrize("mode", ["move", "move-or-drop"])
@pytest.mark.parametrize("key", ["", "graves"], ids=["own-key", "fixed-key"])
def test_those_that_went_through_an_exchange_are_found(caller: Caller, key: str, mode: str) -> None:
    """`move-or-drop` is what AMQP declares."""
    exchange, graves = new_name("dead"), caller.new_queue()
    caller.call("exchange.declare", exchange=exchange, kind="direct" if key else "fanout")
    caller.call("exchange.bind", exchange=exchange, queue=graves, key=key)
    more = {"dead_letter_routing_key": key} if key else {}
    queue = caller.new_queue(dead_letter=mode, dead_letter_exchange=exchange, **more)
    kill(caller, queue, 1)
    assert caller.call("dlq.list", queue=queue)["queue"] == graves
    assert dead(caller, queue) == dead(caller, graves) == [1]
    assert caller.call("dlq.retry", queue=queue)["redriven"] == 1
    assert ready(caller, queue) == [1]


def test_the_default_exchange_may_lead_to_them(caller: Caller) -> None:
    graves = caller.new_queue()
    queue = caller.new_queue(dead_letter_exchange="", dead_letter_routing_key=graves)
    kill(caller, queue, 1)
    assert dead(caller, queue) == [1]


def test_those_that_died_before_another_target_was_named_are_still_found(caller: Caller, queue: str) -> None:
    kill(caller, queue, 1)
    caller.call("queue.alter", queue=queue, settings={"dead_letter_queue": caller.new_queue()})
    kill(caller, queue, 2)
    assert sorted(dead(caller, queue)) == [1, 2]
    assert dead(caller, f"{queue}_dlq") == [1]
    assert caller.call("dlq.retry", queue=queue)["redriven"] == 2


def test_they_outlive_the_queue_they_died_in(caller: Caller, queue: str) -> None:
    kill(caller, queue, 1)
    caller.call("queue.delete", queue=queue)
    assert dead(caller, f"{queue}_dlq") == [1]
    assert caller.refused("dlq.retry", queue=f"{queue}_dlq")[:2] == (404, "queue_not_found")
    other = caller.new_queue()
    assert caller.call("dlq.retry", queue=f"{queue}_dlq", to=other)["redriven"] == 1
    assert ready(caller, other) == [1]


def test_a_queue_whose_name_looks_like_a_dead_letter_queue_may_be_somebody_elses(caller: Caller) -> None:
    """`a` sends its dead letters elsewhere, `b` sends its own to `a_dlq`."""
    graves, name = caller.new_queue(), new_name("a")
    caller.call("queue.declare", queue=name, settings={"dead_letter_queue": graves})
    caller.call("queue.declare", queue=f"{name}_dlq")
    other = caller.new_queue(dead_letter_queue=f"{name}_dlq")
    kill(caller, other, 1)
    assert dead(caller, f"{name}_dlq") == [1]


def test_there_are_none_of_a_queue_that_is_not_there(caller: Caller) -> None:
    for command in ("dlq.list", "dlq.retry", "dlq.purge"):
        assert caller.refused(command, queue=new_name("nowhere"))[:2] == (404, "queue_not_found")


def test_those_in_a_queue_that_was_their_target_once_are_found_by_its_name(caller: Caller) -> None:
    former, present = caller.new_queue(), caller.new_queue()
    queue = caller.new_queue(dead_letter_queue=former)
    _, second, third = kill(caller, queue, 1, 2, 3)
    caller.publish(former, "alive, and of nobody's dead")
    caller.call("queue.alter", queue=queue, settings={"dead_letter_queue": present})
    answer = caller.call("dlq.list", queue=queue)
    assert (answer["messages"], answer["looked_in"]) == ([], [queue, present])
    answer = caller.call("dlq.list", queue=queue, kept_in=former)
    assert [message["message"] for message in answer["messages"]] == [1, 2, 3]
    assert (answer["queue"], answer["looked_in"]) == (former, [former])
    assert caller.call("dlq.retry", queue=queue, kept_in=former, message_id=second)["redriven"] == 1
    assert caller.call("dlq.purge", queue=queue, kept_in=former, message_ids=[third])["purged"] == 1
    assert caller.call("dlq.retry", queue=queue, kept_in=former)["redriven"] == 1
    assert ready(caller, queue) == [2, 1]
    assert ready(caller, former) == ["alive, and of nobody's dead"]
    assert caller.refused("dlq.list", queue=queue, kept_in=new_name("nowhere"))[:2] == (404, "queue_not_found")


def test_of_very_many_places_the_first_are_named(caller: Caller) -> None:
    exchange = new_name("dead")
    caller.call("exchange.declare", exchange=exchange, kind="fanout")
    targets = [caller.new_queue() for _ in range(120)]
    for target in targets:
        caller.call("exchange.bind", exchange=exchange, queue=target)
    queue = caller.new_queue(dead_letter_exchange=exchange)
    assert caller.call("dlq.list", queue=queue)["looked_in"] == [queue, *targets[:99]]


# -- one by its id ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"dead_letter": "park"}], ids=["moved", "parked"])
def test_each_that_is_listed_is_got_and_deleted_by_the_same_name(caller: Caller, settings: dict[str, Any]) -> None:
    queue = caller.new_queue(**settings)
    first, second = kill(caller, queue, 1, 2)
    [shown, _] = caller.call("dlq.list", queue=queue)["messages"]
    assert caller.call("queue.get", queue=queue, message_id=first) == shown
    assert caller.call("queue.delete_message", queue=queue, message_id=first) == {"success": True}
    assert dead(caller, queue) == [2]
    assert caller.refused("queue.get", queue=queue, message_id=first)[:2] == (404, "message_not_found")
    assert caller.refused("queue.delete_message", queue=queue, message_id=first)[:2] == (404, "message_not_found")
    assert caller.rest("GET", "queues", queue, "messages", second).value["message"] == 2
    assert caller.rest("DELETE", "queues", queue, "messages", second).status == 200
    assert dead(caller, queue) == []


def test_copies_behind_a_dead_letter_exchange_are_got_and_deleted_too(caller: Caller) -> None:
    """They have ids of their own."""
    exchange, queue = new_name("dead"), new_name("q")
    caller.call("exchange.declare", exchange=exchange, kind="fanout")
    for _ in range(3):
        caller.call("exchange.bind", exchange=exchange, queue=caller.new_queue())
    caller.call("queue.declare", queue=queue, settings={"dead_letter_exchange": exchange})
    kill(caller, queue, 1)
    found = [message["message_id"] for message in caller.call("dlq.list", queue=queue)["messages"]]
    assert len(set(found)) == 3
    for message_id in found:
        assert caller.call("queue.get", queue=queue, message_id=message_id)["message"] == 1
        caller.call("queue.delete_message", queue=queue, message_id=message_id)
    assert dead(caller, queue) == []


def test_a_message_of_another_queue_is_not_got_or_deleted(caller: Caller, shared: tuple[str, str, str]) -> None:
    """Neither what died elsewhere, nor what is alive in the queue of dead letters, nor what was sent elsewhere."""
    first, second, graves = shared
    [died] = kill(caller, second, 1)
    [alive] = caller.publish(graves, "alive")
    [sent] = kill(caller, first, 2)
    other = caller.new_queue()
    assert caller.call("dlq.retry", queue=first, to=other)["redriven"] == 1
    for message_id in (died, alive, sent):
        assert caller.refused("queue.get", queue=first, message_id=message_id)[:2] == (404, "message_not_found")
        refusal = caller.refused("queue.delete_message", queue=first, message_id=message_id)
        assert refusal[:2] == (404, "message_not_found")
        assert first in refusal.message
    assert (ready(caller, graves), ready(caller, other)) == ([1, "alive"], [2])


# -- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"reason": "rejected"}, [1, 2]),
        ({"reason": "max_retries"}, [3]),
        ({"error_contains": "disk"}, [1]),
        ({"priority": 7}, [2]),
        ({"group": "g"}, [2]),
        ({"headers": {"kind": "a"}}, [1]),
        ({"deliveries_min": 1}, []),
        ({"created_before_ms": 1}, []),
        ({"bodies": False}, [None, None, None]),
    ],
    ids=str,
)
def test_they_are_narrowed_by_any_filter(caller: Caller, queue: str, wanted: dict[str, Any], found: list[Any]) -> None:
    kill(caller, queue, 1, error="the disk is full", headers={"kind": "a"})
    kill(caller, queue, 2, priority=7, group="g")
    caller.publish(queue, 3, max_retries=0)
    caller.call("queue.nack", receipt=caller.receive(queue)[0]["receipt"])
    shown = caller.call("dlq.list", queue=queue, **wanted)["messages"]
    assert [message.get("message") for message in shown] == found


# -- sending them back ------------------------------------------------------------------------------------------------


def test_all_go_back_to_where_they_came_from(caller: Caller, shared: tuple[str, str, str]) -> None:
    first, second, graves = shared
    kill(caller, first, 1, 2)
    kill(caller, second, 3)
    assert caller.call("dlq.retry", queue=first) == {"redriven": 2, "success": True}
    assert (ready(caller, first), ready(caller, second), dead(caller, graves)) == ([1, 2], [], [3])
    assert caller.call("dlq.retry", queue=graves)["redriven"] == 1
    assert ready(caller, second) == [3]
    [got] = caller.receive(second)
    assert (got["retry_count"], got["deaths"][0]["queue"]) == (0, second)


def test_one_goes_back_by_its_id(caller: Caller, queue: str) -> None:
    _, second, _ = kill(caller, queue, 1, 2, 3)
    assert caller.call("dlq.retry", queue=queue, message_id=second) == {"redriven": 1, "success": True}
    assert (ready(caller, queue), dead(caller, queue)) == ([2], [1, 3])
    refusal = caller.refused("dlq.retry", queue=queue, message_id=second)
    assert refusal[:2] == (404, "message_not_found")
    assert second in refusal.message


def test_several_go_back_by_their_ids(caller: Caller, queue: str) -> None:
    first, second, third = kill(caller, queue, 1, 2, 3)
    other = caller.publish(queue, "alive")
    assert caller.call("dlq.retry", queue=queue, message_ids=[third, first, *other])["redriven"] == 2
    assert dead(caller, queue) == [2]
    assert caller.call("dlq.retry", queue=queue, message_ids=[])["redriven"] == 0
    assert caller.refused("dlq.retry", queue=queue, message_ids=["nonsense"])[:2] == (404, "message_not_found")
    refusal = caller.refused("dlq.retry", queue=queue, message_id=second, message_ids=[second])
    assert refusal[:2] == (400, "invalid_request")


def test_an_id_and_a_filter_must_both_be_met(caller: Caller, queue: str) -> None:
    first, second = kill(caller, queue, 1, headers={"a": 1}) + kill(caller, queue, 2)
    ids = [first, second]
    assert caller.call("dlq.retry", queue=queue, message_ids=ids, headers={"a": 1}, dry_run=True)["redriven"] == 1
    assert caller.call("dlq.retry", queue=queue, message_ids=ids, reason="expired")["redriven"] == 0


def test_they_go_back_by_filter(caller: Caller, queue: str) -> None:
    kill(caller, queue, 1, error="timeout")
    kill(caller, queue, 2, error="bad order")
    assert caller.call("dlq.retry", queue=queue, error_contains="timeout")["redriven"] == 1
    assert dead(caller, queue) == [2]


def test_a_dry_run_only_counts(caller: Caller, queue: str) -> None:
    kill(caller, queue, 1, 2, 3)
    assert caller.call("dlq.retry", queue=queue, dry_run=True) == {"redriven": 3, "success": True}
    assert caller.call("dlq.retry", queue=queue, dry_run=True, limit=2)["redriven"] == 2
    assert dead(caller, queue) == [1, 2, 3]


def test_they_go_back_a_few_at_a_time(caller: Caller, queue: str) -> None:
    kill(caller, queue, 1, 2, 3)
    assert caller.call("dlq.retry", queue=queue, limit=2)["redriven"] == 2
    assert (ready(caller, queue), dead(caller, queue)) == ([1, 2], [3])


def test_a_limit_counts_over_all_places(caller: Caller) -> None:
    graves = caller.new_queue(max_depth=2)
    queue = caller.new_queue(dead_letter_queue=graves)
    kill(caller, queue, 1, 2, 3, 4)
    assert caller.call("dlq.retry", queue=queue, limit=3)["redriven"] == 3
    assert len(dead(caller, queue)) == 1


def test_they_may_go_elsewhere(caller: Caller, queue: str) -> None:
    kill(caller, queue, 1, 2)
    other = caller.new_queue()
    assert caller.call("dlq.retry", queue=queue, to=other)["redriven"] == 2
    assert (ready(caller, other), ready(caller, queue)) == ([1, 2], [])
    kill(caller, queue, 3)
    assert caller.refused("dlq.retry", queue=queue, to=new_name("nowhere"))[:2] == (404, "queue_not_found")
    assert dead(caller, queue) == [3]


def test_they_go_back_slowly(caller: Caller, queue: str) -> None:
    kill(caller, queue, 1, 2)
    assert caller.call("dlq.retry", queue=queue, per_second=1_000)["redriven"] == 2


def test_a_redrive_that_was_started_goes_on_by_itself(caller: Caller, queue: str) -> None:
    kill(caller, queue, 1, 2, error="timeout", headers={"kind": "a"})
    kill(caller, queue, 3, error="timeout", headers={"kind": "b"})
    kill(caller, queue, 4, headers={"kind": "a"})
    wanted = {"error_contains": "timeout", "headers": {"kind": "a"}}
    started = caller.call("redrive.start", queue=queue, per_second=1_000, **wanted)
    assert (started["queue"], started["state"], started["expected"]) == (queue, "running", 4)
    eventually(lambda: caller.call("redrive.list", queue=queue)["redrives"][0]["state"] != "running")
    [ended] = listed = caller.call("redrive.list", queue=queue)["redrives"]
    assert (ended["job"], ended["state"], ended["redriven"], ended["skipped"]) == (started["job"], "completed", 2, 0)
    assert (ready(caller, queue), dead(caller, queue)) == ([1, 2], [3, 4])
    assert caller.rest("GET", "queues", queue, "redrives").value == {"redrives": listed, "after": None}


def test_redrives_of_all_queues_are_listed_in_pages(caller: Caller) -> None:
    queues = [caller.new_queue(), caller.new_queue()]
    started = [caller.call("redrive.start", queue=queue)["job"] for queue in queues]
    first = caller.rest("GET", "redrives", limit=1).value
    second = caller.call("redrive.list", after=first["after"], limit=1)
    both = [*first["redrives"], *second["redrives"]]
    assert [(one["queue"], one["job"]) for one in both] == [*zip(queues, started, strict=True)][::-1]
    assert caller.call("redrive.list", namespace="nowhere") == {"redrives": [], "after": None}


def test_one_redrive_at_a_time_empties_a_dead_letter_queue(caller: Caller, queue: str) -> None:
    """Under either of its names."""
    kill(caller, queue, 1, 2)
    running = caller.call("redrive.start", queue=queue, per_second=0.001)
    for name in (queue, f"{queue}_dlq"):
        status, code, message = caller.refused("redrive.start", queue=name)
        assert (status, code) == (409, "redrive_running")
        assert f"Redrive {running['job']} of queue '{queue}'" in message
    caller.call("redrive.cancel", queue=queue, job=running["job"])
    assert caller.call("dlq.retry", queue=f"{queue}_dlq", per_second=1_000)["redriven"] >= 1


def test_queues_that_share_a_dead_letter_queue_have_a_redrive_each(caller: Caller) -> None:
    graves = caller.new_queue(dead_letter="park")
    queues = [caller.new_queue(dead_letter_queue=graves) for _ in range(2)]
    for queue in queues:
        kill(caller, queue, 1, 2)
        caller.call("redrive.start", queue=queue, per_second=0.001)
    assert caller.refused("redrive.start", queue=graves).code == "redrive_running"


def test_one_that_is_waited_for_is_listed_too(caller: Caller, queue: str) -> None:
    first, _, _ = kill(caller, queue, 1, 2, 3)
    assert caller.call("dlq.retry", queue=queue, per_second=1_000, message_id=first)["redriven"] == 1
    assert caller.refused("dlq.retry", queue=queue, per_second=1_000, message_id=first)[:2] == (
        404,
        "message_not_found",
    )
    assert caller.call("dlq.retry", queue=queue, per_second=1_000, dry_run=True)["redriven"] == 2
    found = caller.call("redrive.list", queue=queue)["redrives"]
    assert [redrive["redriven"] for redrive in found] == [0, 1]


def test_a_redrive_is_cancelled(caller: Caller, queue: str) -> None:
    kill(caller, queue, 1, 2, 3)
    started = caller.rest("POST", "queues", queue, "redrives", fields={"per_second": 0.001}).value
    ended = caller.rest("DELETE", "queues", queue, "redrives", started["job"]).value
    assert (ended["job"], ended["state"]) == (started["job"], "cancelled")
    assert len(ready(caller, queue)) == ended["redriven"] <= 1
    assert caller.refused("redrive.cancel", queue=queue, job=started["job"])[:2] == (409, "redrive_ended")


def test_why_a_redrive_failed_is_shown(caller: Caller) -> None:
    queue = caller.new_queue(max_depth=2)
    kill(caller, queue, 1, 2)
    caller.publish(queue, "in the way")
    assert caller.refused("dlq.retry", queue=queue, per_second=1_000)[:2] == (429, "queue_full")
    [failed] = caller.call("redrive.list", queue=queue)["redrives"]
    assert (failed["state"], failed["code"], failed["redriven"]) == ("failed", "queue_full", 1)
    assert queue in failed["error"]


def test_a_source_that_no_dead_letter_there_can_have_is_refused(caller: Caller, queue: str) -> None:
    kept = caller.new_queue()
    fields = {"queue": queue, "kept_in": kept, "source": "another"}
    assert caller.refused("redrive.start", **fields)[:2] == (400, "invalid_request")


def test_parked_ones_go_back_into_their_queue(caller: Caller) -> None:
    queue = caller.new_queue(dead_letter="park")
    kill(caller, queue, 1)
    assert caller.call("dlq.retry", queue=queue)["redriven"] == 1
    assert (ready(caller, queue), dead(caller, queue)) == ([1], [])


def test_a_full_queue_stops_them(caller: Caller) -> None:
    queue = caller.new_queue(max_depth=2)
    kill(caller, queue, 1, 2)
    caller.publish(queue, "in the way")
    assert caller.refused("dlq.retry", queue=queue)[:2] == (429, "queue_full")
    assert (len(ready(caller, queue)), dead(caller, queue)) == (2, [2])


# -- throwing them away -----------------------------------------------------------------------------------------------


def test_a_queues_dead_letters_are_purged_and_no_others(caller: Caller, shared: tuple[str, str, str]) -> None:
    first, second, graves = shared
    kill(caller, first, 1, 2)
    kill(caller, second, 3)
    caller.publish(first, "alive")
    assert caller.call("dlq.purge", queue=first) == {"purged": 2, "success": True}
    assert (dead(caller, graves), ready(caller, first)) == ([3], ["alive"])
    assert caller.call("dlq.purge", queue=graves)["purged"] == 1
    assert caller.call("dlq.purge", queue=graves)["purged"] == 0


def test_some_of_them_are_purged_by_filter(caller: Caller) -> None:
    queue = caller.new_queue(dead_letter="park")
    kill(caller, queue, 1, error="timeout")
    kill(caller, queue, 2, error="bad order")
    caller.publish(queue, "alive")
    assert caller.call("dlq.purge", queue=queue, error_contains="bad")["purged"] == 1
    assert (dead(caller, queue), ready(caller, queue)) == ([1], ["alive"])


def test_some_of_them_are_purged_by_their_ids(caller: Caller, queue: str) -> None:
    first, second, third = kill(caller, queue, 1, 2, 3)
    [alive] = caller.publish(queue, "alive")
    assert caller.call("dlq.purge", queue=queue, message_ids=[])["purged"] == 0
    assert caller.call("dlq.purge", queue=queue, message_ids=[first, alive])["purged"] == 1
    assert caller.call("dlq.purge", queue=queue, message_id=third) == {"purged": 1, "success": True}
    refusal = caller.refused("dlq.purge", queue=queue, message_id=third)
    assert refusal[:2] == (404, "message_not_found")
    assert third in refusal.message
    assert caller.refused("dlq.purge", queue=queue, message_id=second, message_ids=[])[:2] == (400, "invalid_request")
    assert (dead(caller, queue), ready(caller, queue)) == ([2], ["alive"])
