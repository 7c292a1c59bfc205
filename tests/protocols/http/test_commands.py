"""The commands of the Synap specification (seed 003), exactly as there, and its eight scenarios; then the rest of what
can be done to queues. In JSON and in MessagePack, over a real socket."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import smista
from smista.core.settings import QueueSettings
from tests.protocols.http.caller import Caller, new_name

MESSAGE = {"type": "process_video", "video_id": "vid_123", "user_id": "user_456"}


@pytest.fixture
def tasks(caller: Caller) -> str:
    """A queue as the specification makes them."""
    name = new_name("tasks")
    caller.call("queue.create", queue=name)
    return name


# -- the commands, word for word --------------------------------------------------------------------------------------


def test_create_makes_a_queue_with_the_defaults_of_the_specification(caller: Caller) -> None:
    name = new_name("tasks")
    assert caller.call("queue.create", queue=name) == {"queue": name, "created": True, "success": True}
    settings = caller.call("queue.settings", queue=name)["settings"]
    assert settings["lease_ms"] == 30_000
    assert settings["max_retries"] == 3
    assert (settings["default_priority"], settings["max_priority"]) == (5, 9)
    assert settings["max_depth"] == 100_000
    assert (settings["dead_letter"], settings["dead_letter_max_depth"]) == ("move", 10_000)
    assert (settings["prefetch"], settings["max_prefetch"]) == (10, 1_000)
    assert settings["retry_backoff"] == "exponential"


def test_create_takes_the_configuration_of_the_specification(caller: Caller) -> None:
    name = new_name("tasks")
    config = {
        "default_ack_deadline_secs": 1.5,
        "default_max_retries": 7,
        "default_priority": 2,
        "max_queue_depth": 12,
        "dead_letter": {"enabled": False, "max_size": 34},
        "prefetch": {"default": 5, "max": 50},
    }
    caller.call("queue.create", name=name, config=config)
    settings = caller.call("queue.settings", queue=name)["settings"]
    assert settings["lease_ms"] == 1_500
    assert settings["max_retries"] == 7
    assert settings["default_priority"] == 2
    assert settings["max_depth"] == 12
    assert (settings["dead_letter"], settings["dead_letter_max_depth"]) == ("park", 34)
    assert (settings["prefetch"], settings["max_prefetch"]) == (5, 50)


def test_settings_win_over_the_configuration(caller: Caller) -> None:
    name = new_name("tasks")
    config = {"default_max_retries": 7, "default_priority": 2}
    caller.call("queue.create", queue=name, config=config, settings={"max_retries": 1, "ordered": True})
    settings = caller.call("queue.settings", queue=name)["settings"]
    assert (settings["max_retries"], settings["ordered"], settings["default_priority"]) == (1, True, 2)


def test_creating_again_is_fine_with_the_same_settings_and_refused_with_others(caller: Caller, tasks: str) -> None:
    assert caller.call("queue.create", queue=tasks, name=tasks)["created"] is False
    refusal = caller.refused("queue.create", queue=tasks, config={"default_priority": 4})
    assert (refusal.status, refusal.code) == (409, "queue_differs")
    assert "default_priority: present 5, asked for 4" in refusal.message


def test_creating_may_take_a_queue_as_it_is(caller: Caller, tasks: str) -> None:
    for command in ("queue.create", "queue.declare"):
        kept = caller.call(command, queue=tasks, settings={"max_retries": 99}, if_exists="keep")
        assert kept["created"] is False
    assert caller.call("queue.settings", queue=tasks)["settings"]["max_retries"] == 3
    refusal = caller.refused("queue.declare", queue=tasks, if_exists="replace")
    assert (refusal.status, refusal.code) == (400, "invalid_request")


def test_publish_answers_the_id_and_the_position(caller: Caller, tasks: str) -> None:
    first = caller.call("queue.publish", queue=tasks, message=MESSAGE, priority=8, headers={"source": "web-app"})
    assert first.keys() == {"message_id", "position"}
    assert first["position"] == 1
    assert caller.call("queue.publish", queue=tasks, message="behind", priority=8)["position"] == 2
    assert caller.call("queue.publish", queue=tasks, message="before all", priority=9)["position"] == 1
    assert caller.call("queue.publish", queue=tasks, message="last")["position"] == 4


def test_consume_answers_all_that_the_specification_names(caller: Caller, tasks: str) -> None:
    sent = caller.call("queue.publish", queue=tasks, message=MESSAGE, priority=8, headers={"source": "web-app"})
    got = caller.call("queue.consume", queue=tasks, timeout=10, ack_deadline=60)
    assert got["message_id"] == sent["message_id"]
    assert got["message"] == MESSAGE
    assert got["priority"] == 8
    assert got["retry_count"] == 0
    assert got["headers"] == {"source": "web-app"}
    assert got["lease_until_ms"] - got["delivered_at_ms"] == 60_000


def test_consume_answers_nulls_when_there_is_nothing(caller: Caller, tasks: str) -> None:
    assert caller.call("queue.consume", queue=tasks) == {"message_id": None, "message": None}
    assert caller.call("queue.consume", queue=tasks, timeout=0, prefetch=3) == {"messages": []}


def test_a_message_is_held_for_thirty_seconds_unless_told_otherwise(caller: Caller, tasks: str) -> None:
    caller.publish(tasks, 1)
    got = caller.call("queue.consume", queue=tasks)
    assert got["lease_until_ms"] - got["delivered_at_ms"] == 30_000


def test_the_default_priority_is_five_and_there_are_ten(caller: Caller, tasks: str) -> None:
    for priority in (0, 9):
        caller.publish(tasks, "x", priority=priority)
    caller.publish(tasks, "x")
    got = caller.call("queue.consume", queue=tasks, prefetch=10)["messages"]
    assert [message["priority"] for message in got] == [9, 5, 0]
    for priority in (10, 255):
        refusal = caller.refused("queue.publish", queue=tasks, message="x", priority=priority)
        assert (refusal.status, refusal.code) == (400, "invalid_priority")
    assert caller.stats(tasks)["ready"] == 0


def test_ack_by_message_id(caller: Caller, tasks: str) -> None:
    [message_id] = caller.publish(tasks, MESSAGE)
    caller.call("queue.consume", queue=tasks)
    assert caller.call("queue.ack", queue=tasks, message_id=message_id) == {"success": True}
    assert caller.stats(tasks)["depth"] == 0
    refusal = caller.refused("queue.ack", queue=tasks, message_id=message_id)
    assert (refusal.status, refusal.code) == (404, "message_not_found")


def test_a_message_that_nobody_holds_cannot_be_acknowledged_by_its_id(caller: Caller, tasks: str) -> None:
    [message_id] = caller.publish(tasks, MESSAGE)
    assert caller.refused("queue.ack", queue=tasks, message_id=message_id).code == "message_not_found"
    assert caller.stats(tasks)["ready"] == 1


def test_nack_requeues_unless_told_otherwise(caller: Caller, tasks: str) -> None:
    [message_id] = caller.publish(tasks, MESSAGE)
    caller.call("queue.consume", queue=tasks)
    assert caller.call("queue.nack", queue=tasks, message_id=message_id) == {"success": True, "action": "requeued"}
    assert caller.stats(tasks)["scheduled"] == 1


def test_nack_without_requeue_makes_a_dead_letter(caller: Caller, tasks: str) -> None:
    [message_id] = caller.publish(tasks, MESSAGE)
    caller.call("queue.consume", queue=tasks)
    answer = caller.call("queue.nack", queue=tasks, message_id=message_id, requeue=False)
    assert answer == {"success": True, "action": "dead_lettered"}
    [dead] = caller.call("dlq.list", queue=tasks)["messages"]
    assert (dead["message_id"], dead["message"], dead["queue"]) == (message_id, MESSAGE, f"{tasks}_dlq")
    assert [(death["queue"], death["reason"]) for death in dead["deaths"]] == [(tasks, "rejected")]


def test_peek_shows_the_next_message_and_leaves_it(caller: Caller, tasks: str) -> None:
    caller.publish(tasks, "second")
    caller.publish(tasks, "first", priority=9)
    for _ in range(2):
        [peeked] = caller.call("queue.peek", queue=tasks)["messages"]
        assert (peeked["message"], peeked["state"], peeked["retry_count"]) == ("first", "ready", 0)
    assert caller.stats(tasks)["ready"] == 2
    assert caller.stats(tasks)["consumed_total"] == 0


def test_purge_answers_how_many_went(caller: Caller, tasks: str) -> None:
    caller.publish(tasks, 1, 2, 3)
    caller.call("queue.consume", queue=tasks)
    assert caller.call("queue.purge", queue=tasks, ready_only=True) == {"purged": 2, "success": True}
    assert caller.call("queue.purge", queue=tasks) == {"purged": 1, "success": True}
    assert caller.stats(tasks)["depth"] == 0


def test_delete_takes_the_messages_along(caller: Caller, tasks: str) -> None:
    caller.publish(tasks, 1, 2)
    assert caller.refused("queue.delete", queue=tasks, if_empty=True).code == "queue_not_empty"
    assert caller.call("queue.delete", queue=tasks) == {"deleted": 2, "success": True}
    assert caller.refused("queue.stats", queue=tasks).code == "queue_not_found"
    assert caller.refused("queue.delete", queue=tasks).code == "queue_not_found"


def test_stats_carry_all_that_the_specification_names(caller: Caller, tasks: str) -> None:
    caller.publish(tasks, 1, 2, 3, 4)
    first, second, third = caller.receive(tasks, 3)
    caller.call("queue.ack", receipt=first["receipt"])
    caller.call("queue.nack", receipt=second["receipt"])
    caller.call("queue.nack", receipt=third["receipt"], requeue=False)
    stats = caller.stats(tasks)
    assert stats["queue"] == tasks
    assert stats["depth"] == 2
    assert stats["consumers"] == 0
    assert stats["published_total"] == 4
    assert stats["consumed_total"] == 3
    assert stats["acked_total"] == 1
    assert stats["nacked_total"] == 2
    assert stats["dead_lettered_total"] == 1
    assert stats["avg_wait_time_ms"] >= 0
    assert stats["oldest_message_age_secs"] >= 0
    ours = (stats["delivered_total"], stats["acknowledged_total"], stats["wait_ms_average"])
    assert ours == (3, 1, stats["avg_wait_time_ms"])
    assert stats["oldest_age_ms"] == round(stats["oldest_message_age_secs"] * 1000)


def test_the_errors_of_the_specification(caller: Caller, tasks: str) -> None:
    nowhere = new_name("nowhere")
    assert caller.refused("queue.publish", queue=nowhere, message=1)[:2] == (404, "queue_not_found")
    assert caller.refused("queue.consume", queue=nowhere)[:2] == (404, "queue_not_found")
    assert caller.refused("queue.ack", queue=tasks, message_id="msg_7890abcd")[:2] == (404, "message_not_found")
    assert caller.refused("queue.publish", queue=tasks, message=1, priority=10)[:2] == (400, "invalid_priority")
    small = caller.new_queue(max_depth=1)
    caller.publish(small, 1)
    assert caller.refused("queue.publish", queue=small, message=2)[:2] == (429, "queue_full")


def test_settling_after_the_deadline_says_so(caller: Caller) -> None:
    queue = caller.new_queue(backoff_on_timeout=True, retry_base_ms=3_600_000, retry_cap_ms=3_600_000)
    caller.publish(queue, 1)
    [held] = caller.receive(queue, lease_ms=1)
    while not caller.stats(queue)["timed_out_total"]:
        caller.receive(queue, wait_ms=5)
    assert caller.refused("queue.nack", receipt=held["receipt"])[:2] == (409, "ack_deadline_exceeded")
    assert caller.refused("queue.extend", receipt=held["receipt"], lease_ms=1)[:2] == (409, "ack_deadline_exceeded")


# -- the eight scenarios ----------------------------------------------------------------------------------------------


def test_scenario_1_messages_come_in_the_order_in_which_they_were_published(caller: Caller, tasks: str) -> None:
    caller.publish(tasks, *range(20))
    assert [caller.call("queue.consume", queue=tasks)["message"] for _ in range(20)] == list(range(20))


def test_scenario_2_higher_priorities_come_first(caller: Caller, tasks: str) -> None:
    for priority in (3, 9, 0, 5, 9, 3):
        caller.publish(tasks, priority, priority=priority)
    got = [caller.call("queue.consume", queue=tasks) for _ in range(6)]
    assert [message["message"] for message in got] == [9, 9, 5, 3, 3, 0]


def test_scenario_3_several_consumers_share_a_queue(caller: Caller, tasks: str) -> None:
    consumers = [caller.another() for _ in range(4)]
    for consumer in consumers:
        consumer.start_command("queue.consume", {"queue": tasks, "timeout": 20})
    caller.publish(tasks, *range(4))
    got = [consumer.answer().value["message"] for consumer in consumers]
    assert sorted(got) == [0, 1, 2, 3]
    for consumer in consumers:
        consumer.close()


def test_scenario_4_a_message_that_is_not_acknowledged_in_time_comes_again(caller: Caller, tasks: str) -> None:
    [message_id] = caller.publish(tasks, "slow")
    first = caller.call("queue.consume", queue=tasks, ack_deadline=0.01)
    second = caller.call("queue.consume", queue=tasks, timeout=20)
    assert (first["message_id"], first["retry_count"]) == (message_id, 0)
    assert (second["message_id"], second["retry_count"]) == (message_id, 1)
    [failure] = second["failures"]
    assert (failure["delivery"], failure["reason"]) == (1, "timed_out")
    assert caller.refused("queue.ack", receipt=first["receipt"])[:2] == (409, "stale_receipt")


@pytest.mark.parametrize("max_retries", [0, 2, 3, 4])
def test_scenario_5_a_message_that_fails_too_often_is_a_dead_letter(caller: Caller, max_retries: int) -> None:
    name = new_name("tasks")
    caller.call("queue.create", queue=name, config={"default_max_retries": max_retries})
    [message_id] = caller.publish(name, "poison")
    actions = []
    for retry_count in range(max_retries + 1):
        got = caller.call("queue.consume", queue=name, timeout=20)
        assert got["retry_count"] == retry_count
        answer = caller.call("queue.nack", receipt=got["receipt"], delay_ms=0, error=f"failure {retry_count}")
        actions.append(answer["action"])
    assert actions == ["requeued"] * max_retries + ["dead_lettered"]
    assert caller.call("queue.consume", queue=name)["message_id"] is None
    [dead] = caller.call("dlq.list", queue=name)["messages"]
    [death] = dead["deaths"]
    assert (dead["message_id"], death["reason"], death["delivery_count"]) == (
        message_id,
        "max_retries",
        max_retries + 1,
    )
    assert death["failures"][-1]["error"] == f"failure {max_retries}"


def test_scenario_5_a_message_whose_lease_runs_out_too_often_is_one_too(caller: Caller) -> None:
    queue = caller.new_queue(max_retries=1)
    caller.publish(queue, "hangs")
    for retry_count in range(2):
        [got] = caller.receive(queue, wait_ms=20_000, lease_ms=1)
        assert got["retry_count"] == retry_count
    while not caller.stats(queue)["dead_lettered_total"]:
        assert caller.receive(queue, wait_ms=5) == []
    [dead] = caller.call("dlq.list", queue=queue)["messages"]
    assert [failure["reason"] for failure in dead["deaths"][0]["failures"]] == ["timed_out"] * 2


def test_scenario_5_a_message_whose_time_to_live_ran_out_is_one_too(caller: Caller, tasks: str) -> None:
    caller.publish(tasks, "late", ttl=0.001)
    while not caller.stats(tasks)["expired_total"]:
        pass
    assert caller.call("queue.consume", queue=tasks)["message_id"] is None
    [dead] = caller.call("dlq.list", queue=tasks, reason="expired")["messages"]
    assert dead["deaths"][0]["reason"] == "expired"


def test_scenario_6_no_more_than_prefetch_are_handed_out(caller: Caller, tasks: str) -> None:
    caller.publish(tasks, *range(5))
    got = caller.call("queue.consume", queue=tasks, prefetch=3)["messages"]
    assert [message["message"] for message in got] == [0, 1, 2]
    assert caller.stats(tasks)["in_flight"] == 3
    refusal = caller.refused("queue.consume", queue=tasks, prefetch=1_001)
    assert refusal[:2] == (400, "invalid_argument")
    assert "limit is 1001" in refusal.message


def test_scenario_7_nothing_is_lost_or_doubled_when_many_publish_and_consume(caller: Caller, tasks: str) -> None:
    each, clients = 50, 4
    received: list[Any] = []

    def publish(first: int) -> None:
        with caller.another() as publisher:
            publisher.publish(tasks, *range(first, first + each))

    def consume() -> None:
        with caller.another() as consumer:
            while (got := consumer.call("queue.consume", queue=tasks, timeout=20))["message_id"] is not None:
                received.append(got["message"])
                consumer.call("queue.ack", queue=tasks, message_id=got["message_id"])
                if got["message"] == "end":
                    return

    publishers = [threading.Thread(target=publish, args=(number * each,)) for number in range(clients)]
    consumers = [threading.Thread(target=consume) for _ in range(clients)]
    for thread in publishers + consumers:
        thread.start()
    for thread in publishers:
        thread.join()
    caller.publish(tasks, *["end"] * clients, priority=0)
    for thread in consumers:
        thread.join()
    assert sorted(one for one in received if one != "end") == list(range(each * clients))
    assert caller.stats(tasks)["depth"] == 0


def test_scenario_8_a_full_queue_refuses_and_takes_again_when_there_is_room(caller: Caller) -> None:
    name = new_name("tasks")
    caller.call("queue.create", queue=name, config={"max_queue_depth": 2})
    caller.publish(name, 1, 2)
    answer = caller.post("queue.publish", {"queue": name, "message": 3})
    assert answer.refusal[:2] == (429, "queue_full")
    assert answer.headers["retry-after"] == "1"
    # What is in flight counts too.
    got = caller.call("queue.consume", queue=name)
    assert caller.refused("queue.publish", queue=name, message=3).code == "queue_full"
    caller.call("queue.ack", receipt=got["receipt"])
    caller.publish(name, 3)
    assert caller.stats(name)["rejected_total"] == 2


# -- ours: queues -----------------------------------------------------------------------------------------------------


def test_declare_makes_a_queue_with_the_defaults_of_the_broker(caller: Caller) -> None:
    name = new_name("queue")
    assert caller.call("queue.declare", queue=name) == {"queue": name, "created": True, "success": True}
    assert caller.call("queue.declare", queue=name, settings={})["created"] is False
    answer = caller.call("queue.settings", queue=name)
    assert answer["queue"] == name
    default = QueueSettings()
    assert answer["settings"].keys() == set(QueueSettings.__struct_fields__)
    assert answer["settings"] == {
        field: list(value) if isinstance(value := getattr(default, field), tuple) else value
        for field in QueueSettings.__struct_fields__
    }


def test_alter_changes_what_is_named_and_leaves_the_rest(caller: Caller) -> None:
    queue = caller.new_queue(max_retries=9, ordered=True)
    answer = caller.call("queue.alter", queue=queue, settings={"max_retries": None, "lease_ms": 5})
    assert answer == caller.call("queue.settings", queue=queue)
    settings = answer["settings"]
    assert (settings["max_retries"], settings["lease_ms"], settings["ordered"]) == (None, 5, True)


def test_list_is_in_the_order_of_names_and_pages_to_the_end(caller: Caller) -> None:
    prefix = new_name("listed") + "/"
    names = [f"{prefix}{number}" for number in range(7)]
    for name in reversed(names):
        caller.call("queue.declare", queue=name)
    found, after = [], ""
    for _ in range(3):
        page = caller.call("queue.list", prefix=prefix, limit=3, after=after)
        found.append(page["queues"])
        after = page["after"]
    assert found == [names[:3], names[3:6], names[6:]]
    assert after is None
    assert caller.call("queue.list", prefix=prefix) == {"queues": names, "after": None}
    detailed = caller.call("queue.list", prefix=prefix, details=True, limit=1)["queues"]
    assert detailed == [caller.stats(names[0])]


def test_delete_if_unused_spares_a_queue_on_which_somebody_waits(caller: Caller, queue: str) -> None:
    with caller.another() as waiting:
        waiting.start_command("queue.receive", {"queue": queue, "wait_ms": 20_000})
        while caller.post("queue.delete", {"queue": queue, "if_unused": True, "if_empty": True}).status == 200:
            # It had not begun to wait: its queue was gone by then.
            assert waiting.answer().refusal.code == "queue_not_found"
            caller.call("queue.declare", queue=queue)
            waiting.start_command("queue.receive", {"queue": queue, "wait_ms": 20_000})
        assert caller.refused("queue.delete", queue=queue, if_unused=True)[:2] == (409, "queue_in_use")
        caller.call("queue.delete", queue=queue)
        assert waiting.answer().refusal[:2] == (410, "queue_deleted")


def test_a_paused_queue_takes_messages_and_hands_none_out(caller: Caller, queue: str) -> None:
    assert caller.call("queue.pause", queue=queue) == {"success": True}
    caller.publish(queue, 1)
    assert caller.stats(queue)["is_paused"] is True
    assert caller.receive(queue) == []
    with caller.another() as waiting:
        waiting.start_command("queue.receive", {"queue": queue, "wait_ms": 20_000})
        assert caller.call("queue.resume", queue=queue) == {"success": True}
        assert [message["message"] for message in waiting.answer().value["messages"]] == [1]
    assert caller.stats(queue)["is_paused"] is False


def test_the_counts_of_a_queue_tell_what_happened(caller: Caller) -> None:
    queue = caller.new_queue(max_depth=6)
    caller.publish(queue, 1, 2, 3, 4, deduplication_id=None)
    caller.publish(queue, 5, delay_ms=3_600_000)
    caller.publish(queue, 6, deduplication_id="once")
    caller.publish(queue, 6, deduplication_id="once")
    caller.refused("queue.publish", queue=queue, message=7)
    first, second, third, _ = caller.receive(queue, 4)
    caller.call("queue.ack", receipt=first["receipt"])
    caller.call("queue.release", receipt=second["receipt"])
    caller.call("queue.nack", receipt=third["receipt"], requeue=False)
    caller.call("dlq.retry", queue=queue)
    stats = caller.stats(queue)
    states = {name: stats[name] for name in ("depth", "ready", "scheduled", "in_flight", "dead")}
    assert states == {"depth": 5, "ready": 3, "scheduled": 1, "in_flight": 1, "dead": 0}
    assert stats["body_bytes"] == 5
    totals = {name: value for name, value in stats.items() if name.endswith("_total")}
    assert totals == {
        "published_total": 6,
        "delivered_total": 4,
        "consumed_total": 4,
        "acknowledged_total": 1,
        "acked_total": 1,
        "nacked_total": 1,
        "timed_out_total": 0,
        "released_total": 1,
        "dead_lettered_total": 1,
        "redriven_total": 1,
        "expired_total": 0,
        "dropped_total": 0,
        "purged_total": 0,
        "duplicates_total": 1,
        "rejected_total": 1,
        "acknowledged_late_total": 0,
    }
    assert (stats["namespace"], stats["is_paused"], stats["consumers"]) == ("/", False, 0)


# -- ours: namespaces and the broker ----------------------------------------------------------------------------------


def test_a_namespace_is_a_world_of_its_own(caller: Caller, queue: str) -> None:
    namespace = new_name("space")
    elsewhere = {"queue": queue, "namespace": namespace}
    assert caller.refused("queue.publish", **elsewhere, message=1)[:2] == (404, "queue_not_found")
    assert caller.call("queue.list", namespace=namespace) == {"queues": [], "after": None}
    assert caller.refused("exchange.list", namespace=namespace)[:2] == (404, "namespace_not_found")
    assert caller.call("queue.create", **elsewhere)["created"] is True
    assert caller.call("queue.list", namespace=namespace)["queues"] == [queue]
    [message_id] = caller.publish(queue, "there", namespace=namespace)
    assert caller.stats(queue)["depth"] == 0
    assert caller.stats(queue, namespace=namespace)["namespace"] == namespace
    assert caller.refused("queue.get", queue=queue, message_id=message_id).code == "message_not_found"
    [got] = caller.receive(queue, namespace=namespace)
    assert caller.refused("queue.ack", queue=queue, message_id=message_id).code == "message_not_found"
    # A receipt says itself where it belongs.
    assert caller.call("queue.ack", receipt=got["receipt"]) == {"success": True}
    assert namespace in caller.call("broker.info")["namespaces"]


def test_the_broker_says_what_it_is_and_holds(caller: Caller) -> None:
    before = caller.call("broker.info")
    queue = caller.new_queue()
    caller.publish(queue, 1, 2)
    after = caller.call("broker.info")
    held = {"namespaces", "queues", "messages", "log_bytes", "log", "connections"}
    assert after.keys() == {"version", "now_ms", "refusal", *held}
    assert after["version"] == smista.__version__
    assert "/" in after["namespaces"]
    assert (after["queues"] - before["queues"], after["messages"] - before["messages"]) == (1, 2)
    assert after["now_ms"] >= before["now_ms"]
    assert after["refusal"] is None
