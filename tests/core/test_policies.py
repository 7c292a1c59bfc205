"""Policies: what a queue has is what it was declared with, but for what the policy names that holds for it."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from smista.core import policies
from smista.core.declaring import alter_queue, declare_queue
from smista.core.governing import Governing, delete_policy, set_policy
from smista.core.message import Publication
from smista.core.policies import NOT_BY_POLICY, Policies, Policy
from smista.core.publishing import publish
from smista.core.settings import DEFAULT, Backoff, DeadLetterMode, Overflow, QueueSettings, check_settings
from smista.core.staging import Load, check_load
from smista.core.trimming import keep_limits
from smista.errors import (
    BrokerError,
    InvalidArgument,
    InvalidName,
    InvalidSettings,
    PolicyNotFound,
    QueueDiffers,
    QueueFull,
)
from tests.core.bench import Bench


def put(bench: Bench, name: str, pattern: str, priority: int = 0, /, **settings: Any) -> list[str]:
    """Set a policy; returns the queues that have other settings for it."""
    return to_its_end(bench, set_policy(bench.state, "/", Policy(name, pattern, priority, settings)))


def drop(bench: Bench, name: str) -> list[str]:
    return to_its_end(bench, delete_policy(bench.state, "/", name))


def to_its_end(bench: Bench, governing: Governing) -> list[str]:
    changed = []
    while not governing.is_done:
        changed += governing.go_on(1, now_ms=bench.now_ms)
    return [queue.name for queue in changed]


def test_a_policy_holds_for_queues_that_are_there_and_for_those_to_come(orders: Bench) -> None:
    assert put(orders, "small", "orders*", max_depth=5) == ["orders"]
    assert (orders.queue.settings.max_depth, orders.queue.policy) == (5, "small")
    later = orders.declare("orders.eu", QueueSettings(lease_ms=7))
    assert (later.settings.max_depth, later.settings.lease_ms, later.policy) == (5, 7, "small")
    other = orders.declare("reorders")
    assert (other.settings, other.policy) == (DEFAULT, None)


def test_what_was_declared_comes_back_when_the_policy_is_deleted(orders: Bench) -> None:
    put(orders, "small", "*", max_depth=5, lease_ms=1)
    assert drop(orders, "small") == ["orders"]
    assert (orders.queue.settings, orders.queue.policy) == (DEFAULT, None)
    with pytest.raises(PolicyNotFound):
        drop(orders, "small")


def test_the_highest_priority_holds_alone_and_of_equal_ones_the_first_by_name(orders: Bench) -> None:
    put(orders, "b", "*", 1, max_depth=2, lease_ms=2)
    put(orders, "a", "*", 1, max_depth=1)
    assert (orders.queue.policy, orders.queue.settings.max_depth, orders.queue.settings.lease_ms) == ("a", 1, 30_000)
    put(orders, "z", "o*", 2, lease_ms=3)
    assert (orders.queue.policy, orders.queue.settings.max_depth, orders.queue.settings.lease_ms) == ("z", None, 3)
    drop(orders, "z")
    drop(orders, "a")
    assert (orders.queue.policy, orders.queue.settings.max_depth) == ("b", 2)


def test_a_policy_of_the_same_name_takes_the_place_of_the_one_before(orders: Bench) -> None:
    put(orders, "small", "*", max_depth=5)
    put(orders, "small", "*", lease_ms=1)
    assert (orders.queue.settings.max_depth, orders.queue.settings.lease_ms) == (None, 1)
    put(orders, "small", "pizzas", lease_ms=1)
    assert (orders.queue.settings, orders.queue.policy) == (DEFAULT, None)


def test_a_policy_raises_a_limit_too(orders: Bench) -> None:
    queue = orders.declare("narrow", QueueSettings(max_depth=1))
    put(orders, "wide", "narrow", max_depth=None)
    assert queue.settings.max_depth is None


def test_declaring_compares_with_what_was_declared(orders: Bench) -> None:
    put(orders, "small", "*", max_depth=5)
    assert orders.declare("orders") is orders.queue
    with pytest.raises(QueueDiffers, match="max_depth: present null, asked for 5"):
        orders.declare("orders", QueueSettings(max_depth=5))


def test_altering_changes_what_was_declared(orders: Bench) -> None:
    put(orders, "small", "*", max_depth=5)
    alter_queue(orders.state, orders.queue, QueueSettings(max_depth=9, lease_ms=9), now_ms=orders.now_ms)
    assert (orders.queue.settings.max_depth, orders.queue.settings.lease_ms) == (5, 9)
    drop(orders, "small")
    assert orders.queue.settings == QueueSettings(max_depth=9, lease_ms=9)


def test_what_is_over_a_policys_limit_goes(orders: Bench) -> None:
    publish(orders.state, orders.queue, [Publication(b"%d" % number) for number in range(9)], now_ms=orders.now_ms)
    put(orders, "small", "*", max_depth=2, overflow="drop-oldest")
    keep_limits(orders.state, serve=orders.serve, now_ms=orders.now_ms)
    assert orders.peek() == [b"7", b"8"]
    drop(orders, "small")
    keep_limits(orders.state, serve=orders.serve, now_ms=orders.now_ms)
    assert orders.peek() == [b"7", b"8"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("orders", ["orders"]),
        ("*", ["orders", "orders.eu", "reorders", "a+b", "orders\u2028"]),
        ("orders*", ["orders", "orders.eu", "orders\u2028"]),
        ("*orders", ["orders", "reorders"]),
        ("order?", ["orders"]),
        ("[ro]*", ["orders", "orders.eu", "reorders", "orders\u2028"]),
        ("a+b", ["a+b"]),
        ("orders.e.", []),
    ],
)
def test_a_pattern_is_matched_against_the_whole_name(pattern: str, names: list[str]) -> None:
    policy = Policy("p", pattern, 0, {"lease_ms": 1})
    everything = ["orders", "orders.eu", "reorders", "a+b", "orders\u2028"]
    assert [name for name in everything if policy.matches(name)] == names


def test_no_pattern_takes_for_ever() -> None:
    policy = Policy("p", "*a" * 100 + "b", 0, {"lease_ms": 1})
    assert not policy.matches("a" * 255)


@pytest.mark.parametrize(
    ("name", "pattern", "priority", "settings", "error"),
    [
        ("", "*", 0, {"lease_ms": 1}, InvalidName),
        ("p", "", 0, {"lease_ms": 1}, InvalidName),
        ("p", "a\nb", 0, {"lease_ms": 1}, InvalidName),
        ("p", "x" * 256, 0, {"lease_ms": 1}, InvalidName),
        ("p", "*", 1.5, {"lease_ms": 1}, InvalidArgument),
        ("p", "*", 1 << 40, {"lease_ms": 1}, InvalidArgument),
        ("p", "*", 0, {}, InvalidSettings),
        ("p", "*", 0, {"colour": "red"}, InvalidSettings),
        ("p", "*", 0, {"lease_ms": -1}, InvalidSettings),
        ("p", "*", 0, {"lease_ms": "1"}, InvalidSettings),
        ("p", "*", 0, {"max_depth": -1}, InvalidSettings),
        ("p", "*", 0, {"dead_letter_queue": "a", "dead_letter_exchange": "b"}, InvalidSettings),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(
    name: str, pattern: str, priority: Any, settings: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Policy(name, pattern, priority, settings)


@pytest.mark.parametrize("setting", sorted(NOT_BY_POLICY))
def test_what_a_queue_is_built_on_stays_with_its_declaration(setting: str) -> None:
    with pytest.raises(InvalidSettings, match=setting):
        Policy("p", "*", 0, {setting: getattr(DEFAULT, setting)})


def test_every_other_setting_may_be_named() -> None:
    for setting in set(QueueSettings.__struct_fields__) - NOT_BY_POLICY - {"dead_letter_routing_key"}:
        Policy("p", "*", 0, {setting: getattr(DEFAULT, setting)})


def test_settings_are_in_their_own_types_however_they_came() -> None:
    policy = Policy("p", "*", 0, {"retry_backoff": "linear", "overflow": Overflow.DROP_OLDEST})
    assert policy.settings == {"retry_backoff": Backoff.LINEAR, "overflow": Overflow.DROP_OLDEST}
    assert isinstance(policy.settings["retry_backoff"], Backoff)


EXCHANGE = QueueSettings(dead_letter_exchange="x", dead_letter_routing_key="k")


@pytest.mark.parametrize(
    ("declared", "named", "expected"),
    [
        (EXCHANGE, {"dead_letter_queue": "d"}, QueueSettings(dead_letter_queue="d")),
        (EXCHANGE, {"dead_letter_exchange": "y"}, QueueSettings(dead_letter_exchange="y")),
        (EXCHANGE, {"dead_letter_exchange": None}, DEFAULT),
        (QueueSettings(dead_letter_queue="d"), {"dead_letter_exchange": "y"}, QueueSettings(dead_letter_exchange="y")),
        (DEFAULT, {"max_prefetch": 5}, QueueSettings(prefetch=5, max_prefetch=5)),
        (QueueSettings(max_prefetch=20), {"prefetch": 50}, QueueSettings(prefetch=50, max_prefetch=50)),
        (QueueSettings(default_priority=9), {"max_priority": 4}, QueueSettings(default_priority=4, max_priority=4)),
        (QueueSettings(max_priority=4), {"default_priority": 9}, QueueSettings(default_priority=9, max_priority=9)),
    ],
)
def test_what_would_be_at_odds_gives_way_to_the_policy(
    declared: QueueSettings, named: dict[str, Any], expected: QueueSettings
) -> None:
    fitted = Policy("p", "*", 0, named).fit("orders", declared)
    assert fitted == expected
    check_settings(expected)


def test_a_policy_that_does_not_go_with_a_queue_leaves_it_as_it_was_declared(orders: Bench) -> None:
    declared = QueueSettings(max_depth=0, limit_ready_only=True)
    queue = orders.declare("passing", declared)
    assert put(orders, "all", "passing", limit_ready_only=False, lease_ms=1) == []
    assert (queue.settings, queue.policy) == (declared, None)


def test_the_dead_letter_queue_of_a_policy_does_not_get_itself(orders: Bench) -> None:
    dead_letters = orders.declare("dead_letters")
    put(orders, "all", "*", dead_letter_queue="dead_letters", lease_ms=1)
    assert orders.queue.settings.dead_letter_queue == "dead_letters"
    assert (dead_letters.settings.dead_letter_queue, dead_letters.settings.lease_ms, dead_letters.policy) == (
        None,
        1,
        "all",
    )


def test_queues_declared_alike_share_one_settings_object(orders: Bench) -> None:
    put(orders, "all", "*", lease_ms=1)
    one, other = (orders.declare(name, QueueSettings(max_depth=3)) for name in ("one", "other"))
    assert one.settings is other.settings


def test_what_goes_with_some_queues_only_may_be_named(orders: Bench) -> None:
    declared = QueueSettings(dead_letter_exchange="dlx", limit_ready_only=True)
    orders.declare("bounded", declared)
    put(orders, "keys", "*", dead_letter_routing_key="z", max_depth=0)
    assert orders.find("bounded").settings == msgspec.structs.replace(
        declared, dead_letter_routing_key="z", max_depth=0
    )
    assert orders.queue.settings == DEFAULT, "it does not go with this one"


@pytest.mark.parametrize("target", ["dead_letter_queue", "dead_letter_exchange"])
def test_a_dead_letter_target_is_used_though_the_queue_was_declared_to_drop(orders: Bench, target: str) -> None:
    orders.declare("dropping", QueueSettings(dead_letter=DeadLetterMode.DROP))
    put(orders, "dead", "drop*", **{target: "dead_letters"})
    assert orders.find("dropping").settings.dead_letter is DeadLetterMode.MOVE_OR_DROP
    put(orders, "dead", "drop*", **{target: "dead_letters", "dead_letter": "park"})
    assert orders.find("dropping").settings.dead_letter is DeadLetterMode.PARK


def test_an_idle_queue_has_its_whole_time_when_a_policy_has_it_expire(orders: Bench) -> None:
    orders.pass_time(ms=60_000)
    put(orders, "idle", "*", expires_ms=10_000)
    orders.pass_time(ms=9_000)
    assert "orders" in orders.state.namespaces["/"].queues
    orders.pass_time(ms=2_000)
    assert "orders" not in orders.state.namespaces["/"].queues


def test_what_a_queue_has_does_not_depend_on_the_order_in_which_things_came() -> None:
    found = []
    policy = [Policy("a", "q*", 1, {"lease_ms": 1}), Policy("b", "*", 5, {"max_depth": 5})]
    for order in itertools.permutations(range(3)):
        bench = Bench()
        for step in order:
            if step < 2:
                to_its_end(bench, set_policy(bench.state, "/", policy[step]))
            else:
                bench.declare("queue", QueueSettings(lease_ms=9))
        queue = bench.state.queue("queue")
        found.append((queue.declared, queue.settings, queue.policy))
    assert found == [found[0]] * 6
    assert found[0][1:] == (QueueSettings(lease_ms=9, max_depth=5), "b")


def test_namespaces_have_policies_of_their_own(orders: Bench) -> None:
    to_its_end(orders, set_policy(orders.state, "other", Policy("p", "*", 0, {"lease_ms": 1})))
    assert orders.queue.policy is None
    there = declare_queue(orders.state, "orders", namespace="other", now_ms=orders.now_ms)
    assert there.policy == "p"


def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch, orders: Bench) -> None:
    monkeypatch.setattr(policies, "POLICIES_MAX", 2)
    put(orders, "a", "*", lease_ms=1)
    put(orders, "b", "*", lease_ms=1)
    put(orders, "b", "*", lease_ms=2)
    with pytest.raises(InvalidArgument, match="2 policies"):
        put(orders, "c", "*", lease_ms=1)


def test_what_is_remembered_of_queues_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "_FITTED_MAX", 3)
    known = Policies()
    known.put(Policy("p", "*", 0, {"lease_ms": 1}))
    for number in range(10):
        declared = msgspec.structs.replace(DEFAULT, annotations=(("n", str(number)),))
        assert known.govern("q", declared)[0].annotations == declared.annotations
    assert len(known.get("p")._fitted) <= 3


# -- errors name the policy that a limit is from -----------------------------------------------------------------------


def refusal(orders: Bench, body: bytes = b"x", priority: int | None = None) -> str:
    with pytest.raises(BrokerError) as refused:
        orders.publish(body, priority=priority)
    return str(refused.value)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"max_depth": 1}, "max_depth"),
        ({"max_bytes": 1}, "max_bytes"),
        ({"body_bytes_max": 1}, "body_bytes_max"),
        ({"max_priority": 1}, "max_priority"),
        ({"max_depth": 1, "dead_letter": "drop", "overflow": "dead-letter-oldest"}, "max_depth"),
    ],
)
def test_a_limit_by_a_policy_is_refused_in_its_name(orders: Bench, settings: dict[str, Any], limit: str) -> None:
    orders.publish(b"x")
    orders.receive()
    put(orders, "small", "*", **settings)
    assert f"({limit} of policy 'small')" in refusal(orders, b"long", priority=2 if limit == "max_priority" else None)


def test_a_limit_that_the_policy_leaves_alone_is_the_queues_own(orders: Bench) -> None:
    orders.alter(QueueSettings(max_depth=1))
    put(orders, "slow", "*", lease_ms=1)
    orders.publish(b"x")
    assert "policy" not in refusal(orders)
    put(orders, "slow", "*", max_depth=1)
    assert "(max_depth of policy 'slow')" in refusal(orders), "altering the queue's own would change nothing"
    drop(orders, "slow")
    assert "policy" not in refusal(orders)


def test_a_full_dead_letter_queue_is_named_with_the_policy_that_limits_it(orders: Bench) -> None:
    orders.declare("orders_dlq", QueueSettings(dead_letter=DeadLetterMode.PARK))
    for _ in range(2):
        orders.publish()
        orders.reject(orders.receive_one())
    put(orders, "small", "orders", max_depth=1)
    with pytest.raises(QueueFull, match=r"its limit is 1 \(max_depth of policy 'small'\)"):
        orders.redrive(orders.dead_letters())


def test_what_is_staged_is_refused_in_the_name_of_the_policy(orders: Bench) -> None:
    put(orders, "small", "*", max_depth=3)
    with pytest.raises(QueueFull, match=r"its limit is 3 \(max_depth of policy 'small'\)"):
        check_load(orders.state, orders.queue, Load(4, 4, 1, 0))
