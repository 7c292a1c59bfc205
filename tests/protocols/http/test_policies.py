"""Policies over HTTP: settings for all queues of a name pattern."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocols.http.caller import Caller, new_name


@pytest.fixture
def policy(caller: Caller) -> Iterator[str]:
    """A name that no other test has; what is set under it is gone afterwards."""
    name = new_name("policy")
    yield name
    if name in [one["policy"] for one in caller.call("policy.list")["policies"]]:
        caller.call("policy.delete", policy=name)


def test_a_policy_is_set_seen_and_deleted(caller: Caller, policy: str) -> None:
    queue = caller.new_queue(max_retries=1)
    answer = caller.call("policy.set", policy=policy, pattern=f"{queue}*", settings={"lease_ms": 7}, priority=2)
    assert answer == {"policy": policy, "queues": 1, "success": True}
    listed = [one for one in caller.call("policy.list")["policies"] if one["policy"] == policy]
    assert listed == [{"policy": policy, "pattern": f"{queue}*", "priority": 2, "settings": {"lease_ms": 7}}]
    settings = caller.call("queue.settings", queue=queue)["settings"]
    assert (settings["lease_ms"], settings["max_retries"]) == (7, 1)
    assert caller.call("queue.stats", queue=queue)["policy"] == policy
    assert caller.call("policy.delete", policy=policy) == {"success": True}
    assert caller.call("queue.settings", queue=queue)["settings"]["lease_ms"] == 30_000
    assert caller.call("queue.stats", queue=queue)["policy"] is None


def test_a_queue_shows_what_was_declared_and_what_its_policy_gives(caller: Caller, policy: str) -> None:
    queue = caller.new_queue(max_retries=1, dead_letter_exchange="amq.fanout")
    plain = caller.call("queue.settings", queue=queue)
    assert (plain["policy"], plain["effective_policy_definition"]) == (None, {})
    assert plain["declared"] == plain["settings"]
    given = {"max_retries": 1, "max_depth": 9, "dead_letter_queue": "graves", "max_prefetch": 5}
    caller.call("policy.set", policy=policy, pattern=queue, settings=given)
    answer = caller.call("queue.settings", queue=queue)
    assert answer["declared"] == plain["settings"]
    assert answer["policy"] == policy
    # What gives way to the policy is its doing, too.
    more = {"dead_letter_exchange": None, "prefetch": 5}
    assert answer["effective_policy_definition"] == {**given, **more}
    assert answer["settings"] == {**plain["settings"], **given, **more}
    altered = caller.call("queue.alter", queue=queue, settings={"max_depth": 7})
    assert (altered["settings"]["max_depth"], altered["declared"]["max_depth"]) == (9, 7)
    assert altered["policy"] == policy


def test_what_a_policy_leaves_alone_is_not_in_its_effective_definition(caller: Caller, policy: str) -> None:
    """A queue is not made its own dead-letter queue."""
    graves = caller.new_queue()
    caller.call(
        "policy.set", policy=policy, pattern=graves, settings={"dead_letter_queue": graves, "message_ttl_ms": 10}
    )
    assert caller.call("queue.settings", queue=graves)["effective_policy_definition"] == {"message_ttl_ms": 10}


def test_a_program_that_declares_its_queue_again_does_not_notice(caller: Caller, policy: str) -> None:
    queue = caller.new_queue(max_retries=1)
    caller.call("policy.set", policy=policy, pattern=queue, settings={"max_retries": 9})
    assert caller.call("queue.declare", queue=queue, settings={"max_retries": 1})["created"] is False
    altered = caller.call("queue.alter", queue=queue, settings={"max_retries": 2, "lease_ms": 5})["settings"]
    assert (altered["max_retries"], altered["lease_ms"]) == (9, 5)
    caller.call("policy.delete", policy=policy)
    assert caller.call("queue.settings", queue=queue)["settings"]["max_retries"] == 2


def test_policies_have_paths(caller: Caller, policy: str) -> None:
    queue = caller.new_queue()
    made = caller.rest("PUT", "policies", policy, fields={"pattern": queue, "settings": {"max_depth": 3}})
    assert (made.status, made.value["queues"]) == (200, 1)
    assert policy in [one["policy"] for one in caller.rest("GET", "policies").value["policies"]]
    assert caller.rest("DELETE", "policies", policy).status == 200
    assert caller.rest("DELETE", "policies", policy).refusal[:2] == (404, "policy_not_found")


def test_what_a_policy_cannot_give_is_refused(caller: Caller, policy: str) -> None:
    refusal = caller.refused("policy.set", policy=policy, pattern="*", settings={"durable": False})
    assert (refusal.status, refusal.code) == (400, "invalid_settings")
    refusal = caller.refused("policy.set", policy=policy, pattern="*", settings={})
    assert (refusal.status, refusal.code) == (400, "invalid_settings")
