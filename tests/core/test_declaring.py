"""Declaring, altering and deleting queues; namespaces; which settings make sense."""

from __future__ import annotations

from enum import StrEnum

import pytest

from smista.core.declaring import alter_queue, bind, declare_exchange, declare_queue
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.fan_out import publish_to_exchange
from smista.core.message import Publication
from smista.core.settings import (
    DEFAULT,
    Backoff,
    DeadLetterMode,
    DeduplicationScope,
    IfExists,
    Overflow,
    PriorityPolicy,
    QueueSettings,
)
from smista.errors import (
    DeadLetterCycle,
    InvalidArgument,
    InvalidName,
    InvalidSettings,
    NamespaceNotFound,
    QueueDiffers,
    QueueInUse,
    QueueNotEmpty,
    QueueNotFound,
)
from smista.exchange_errors import ExchangeReserved, InvalidExchange
from tests.core import invariants
from tests.core.bench import LEASE_MS, Bench


def test_declaring_again_with_the_same_settings_is_fine(orders: Bench) -> None:
    orders.publish()
    assert orders.declare("orders") is orders.queue
    assert orders.depth == 1


def test_declaring_again_with_others_names_every_difference(orders: Bench) -> None:
    with pytest.raises(QueueDiffers) as differs:
        orders.declare("orders", QueueSettings(lease_ms=5, ordered=True))
    message = str(differs.value)
    assert "'orders'" in message
    assert "lease_ms: present 30000, asked for 5" in message
    assert "ordered: present false, asked for true" in message
    assert orders.queue.settings == DEFAULT


def test_a_declare_that_takes_what_is_there_leaves_what_an_operator_altered(orders: Bench) -> None:
    altered = QueueSettings(lease_ms=7)
    alter_queue(orders.state, orders.queue, altered, now_ms=orders.now_ms)
    kept = declare_queue(orders.state, "orders", DEFAULT, if_exists=IfExists.KEEP, now_ms=orders.now_ms)
    assert (kept, kept.settings) == (orders.queue, altered)
    with pytest.raises(InvalidSettings):
        declare_queue(orders.state, "orders", QueueSettings(lease_ms=-1), if_exists=IfExists.KEEP, now_ms=orders.now_ms)


def test_a_declare_that_takes_what_is_there_makes_what_is_not(orders: Bench) -> None:
    settings = QueueSettings(lease_ms=7)
    made = declare_queue(orders.state, "pizzas", settings, if_exists=IfExists.KEEP, now_ms=orders.now_ms)
    assert made.settings == settings
    with pytest.raises(InvalidSettings):
        declare_queue(orders.state, "pasta", QueueSettings(lease_ms=-1), if_exists=IfExists.KEEP, now_ms=orders.now_ms)


@pytest.mark.parametrize(
    "settings",
    [
        {"lease_ms": -1},
        {"lease_ms": 1.5},
        {"max_retries": -1},
        {"max_retries": "3"},
        {"retry_backoff": "sometimes"},
        {"retry_jitter": 1.1},
        {"retry_jitter": float("nan")},
        {"max_depth": 0},
        {"max_bytes": 0},
        {"body_bytes_max": 0},
        {"message_ttl_ms": -1},
        {"retention_ms": 0},
        {"delay_ms": -1},
        {"prefetch": 0},
        {"max_prefetch": 1 << 40},
        {"prefetch": 1001},
        {"rate_limit": 0},
        {"rate_limit": float("inf")},
        {"max_priority": 256},
        {"default_priority": 10, "max_priority": 9},
        {"expires_ms": 0},
        {"durable": 1},
        {"overflow": "explode"},
        {"dead_letter_queue": "a", "dead_letter_exchange": "b"},
        {"dead_letter_routing_key": "a"},
        {"dead_letter_max_depth": 0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_named(orders: Bench, settings: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings) as invalid:
        orders.declare("other", QueueSettings(**settings))  # type: ignore[arg-type]  # wrong on purpose
    assert any(name in str(invalid.value) for name in settings)
    assert not orders.has_queue("other")


@pytest.mark.parametrize(
    ("setting", "choices"),
    [
        ("dead_letter", DeadLetterMode),
        ("dedup_scope", DeduplicationScope),
        ("overflow", Overflow),
        ("priority_policy", PriorityPolicy),
        ("retry_backoff", Backoff),
    ],
)
@pytest.mark.parametrize("is_a_choice", [False, True])
def test_a_choice_is_not_given_as_text(
    orders: Bench, setting: str, choices: type[StrEnum], *, is_a_choice: bool
) -> None:
    """Text equals its choice, and is none of them wherever one is asked for: such a queue would do something else."""
    value = [*choices][-1].value if is_a_choice else "text"
    settings = QueueSettings(**{setting: value})  # type: ignore[arg-type]  # wrong on purpose
    for give in (lambda: orders.declare("other", settings), lambda: orders.alter(settings)):
        with pytest.raises(InvalidSettings) as invalid:
            give()
        assert setting in str(invalid.value)
        assert all(one.value in str(invalid.value) for one in choices)
        if is_a_choice:
            assert f"Setting {setting} is the text '{value}'; give it one of {choices.__name__}: " in str(invalid.value)
    assert not orders.has_queue("other")
    assert orders.queue.settings == DEFAULT


def test_all_settings_that_are_a_choice_are_known(orders: Bench) -> None:
    choices = [name for name in QueueSettings.__struct_fields__ if isinstance(getattr(DEFAULT, name), StrEnum)]
    assert choices == ["retry_backoff", "dead_letter", "overflow", "dedup_scope", "priority_policy"]


def test_what_to_do_where_a_queue_exists_is_one_of_the_choices(orders: Bench) -> None:
    kept = declare_queue(orders.state, "orders", QueueSettings(lease_ms=7), if_exists="keep", now_ms=orders.now_ms)  # type: ignore[arg-type]  # as text
    assert kept is orders.queue
    with pytest.raises(InvalidArgument, match=r"if_exists is the text 'kill'; .* SAME \(same\), KEEP \(keep\)"):
        declare_queue(orders.state, "orders", if_exists="kill", now_ms=orders.now_ms)  # type: ignore[arg-type]


def test_the_kind_of_an_exchange_is_not_given_as_text(orders: Bench) -> None:
    with pytest.raises(InvalidExchange, match=r"its kind is 'fanout'.* ExchangeKind: DIRECT \(direct\), FANOUT"):
        declare_exchange(orders.state, "all", ExchangeSettings("fanout"))  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "line\nbreak", "\x00", 5, None, b"bytes"])
def test_names_that_cannot_be_used(orders: Bench, name: object) -> None:
    with pytest.raises(InvalidName, match="queue"):
        orders.declare(name)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidName, match="namespace"):
        orders.declare("fine", namespace=name)  # type: ignore[arg-type]  # same
    assert list(orders.state.namespaces) == ["/"]


@pytest.mark.parametrize("name", ["", "x" * 256, "line\nbreak"])
def test_a_dead_letter_queue_needs_a_name_that_can_be_used(orders: Bench, name: str) -> None:
    with pytest.raises(InvalidName, match="dead-letter queue"):
        orders.declare("other", QueueSettings(dead_letter_queue=name))


@pytest.mark.parametrize("name", ["a", "x" * 255, "é", "with space", "日本", "a/b?c#d"])
def test_names_that_can_be_used(orders: Bench, name: str) -> None:
    assert orders.declare(name).name == name


def test_settings_are_queue_settings(orders: Bench) -> None:
    with pytest.raises(InvalidArgument, match="dict"):
        orders.declare("other", {"lease_ms": 5})  # type: ignore[arg-type]  # wrong on purpose


def test_a_queue_is_not_its_own_dead_letter_queue(orders: Bench) -> None:
    with pytest.raises(DeadLetterCycle, match="a -> a"):
        orders.declare("a", QueueSettings(dead_letter_queue="a"))


def test_dead_letters_do_not_go_round_in_a_circle(orders: Bench) -> None:
    orders.declare("a", QueueSettings(dead_letter_queue="b"))
    orders.declare("b", QueueSettings(dead_letter_queue="c"))
    with pytest.raises(DeadLetterCycle, match="c -> a -> b -> c"):
        orders.declare("c", QueueSettings(dead_letter_queue="a"))
    assert not orders.has_queue("c")
    c = orders.declare("c")
    with pytest.raises(DeadLetterCycle):
        alter_queue(orders.state, c, QueueSettings(dead_letter_queue="a"), now_ms=orders.now_ms)
    assert c.settings == DEFAULT


def test_altering_keeps_messages_and_leases(orders: Bench) -> None:
    orders.publish_many(2)
    held = orders.receive_one()
    orders.publish(b"later", delay_ms=2000)
    orders.publish(b"short", ttl_ms=2000)
    orders.alter(QueueSettings(lease_ms=1000))
    invariants.check(orders.state)
    assert orders.counts() == (2, 1, 1, 0)
    orders.pass_time(ms=2000)
    assert orders.counts() == (2, 0, 1, 0)
    orders.acknowledge(held)
    assert orders.receive_bodies() == [b"1", b"later"]


def test_altering_does_not_shorten_a_lease_that_runs(orders: Bench) -> None:
    orders.publish()
    orders.receive_one()
    orders.alter(QueueSettings(lease_ms=1))
    orders.pass_time(ms=LEASE_MS - 1)
    assert orders.receive() == []
    orders.pass_time(ms=1)
    assert len(orders.receive()) == 1


def test_altering_refuses_what_declaring_refuses_and_a_change_of_durability(orders: Bench) -> None:
    with pytest.raises(InvalidSettings, match="lease_ms"):
        orders.alter(QueueSettings(lease_ms=-1))
    with pytest.raises(QueueDiffers, match="durable"):
        orders.alter(QueueSettings(durable=False))
    assert orders.queue.settings == DEFAULT


def test_deleting_takes_messages_and_bindings_along(orders: Bench) -> None:
    orders.fanout("all", orders.queue)
    orders.publish_many(3)
    orders.receive_one()
    assert orders.delete() == 3
    with pytest.raises(QueueNotFound, match="'orders'"):
        orders.find("orders")
    assert orders.publish_to("all") == []
    orders.pass_time(ms=2 * LEASE_MS)
    orders.free_purged()
    assert orders.state.purged == []


def test_a_queue_made_again_is_another_one(orders: Bench) -> None:
    orders.publish(deduplication_id="a")
    orders.delete()
    remade = orders.declare("orders")
    assert remade.number != orders.queue.number
    assert remade.depth == 0
    assert not orders.publish(deduplication_id="a", queue=remade).is_duplicate


def test_deleting_only_if_empty(orders: Bench) -> None:
    orders.publish(delay_ms=1000)
    with pytest.raises(QueueNotEmpty, match=r"'orders'.*1 messages"):
        orders.delete(if_empty=True)
    orders.purge()
    assert orders.delete(if_empty=True) == 0


def test_deleting_only_if_nothing_waits(orders: Bench) -> None:
    orders.publish()
    orders.receive()
    with pytest.raises(QueueNotEmpty, match="1 messages"):
        orders.delete(if_empty=True)
    orders.publish(delay_ms=1000)
    with pytest.raises(QueueNotEmpty, match="1 messages"):
        orders.delete(if_empty=True, waiting_only=True)
    orders.pass_time(ms=2000)
    orders.receive()
    assert orders.delete(if_empty=True, waiting_only=True) == 2


def test_deleting_only_if_unused(orders: Bench) -> None:
    orders.queue.is_watched = True
    with pytest.raises(QueueInUse, match="'orders'"):
        orders.delete(if_unused=True)
    orders.queue.is_watched = False
    orders.delete(if_unused=True)


def test_deleting_takes_auto_delete_exchanges_along(orders: Bench) -> None:
    declare_exchange(orders.state, "events", ExchangeSettings(ExchangeKind.FANOUT, auto_delete=True))
    bind(orders.state, orders.state.namespace("/"), Binding.to_queue("events", "orders"))
    orders.delete()
    assert orders.state.namespace("/").topology.find("events") is None


def test_namespaces_are_worlds_of_their_own(orders: Bench) -> None:
    there = orders.declare("orders", namespace="there")
    assert there is not orders.queue
    orders.publish(b"here")
    orders.publish(b"there", queue=there)
    assert orders.receive_bodies() == [b"here"]
    assert orders.state.queue("orders", "there") is there
    with pytest.raises(NamespaceNotFound, match="'nowhere'"):
        orders.state.namespace("nowhere")
    with pytest.raises(QueueNotFound, match="'nowhere'"):
        orders.state.queue("orders", "nowhere")


def test_exchanges_do_not_reach_into_another_namespace(orders: Bench) -> None:
    orders.declare("there", namespace="there")
    space = orders.state.namespace("/")
    assert publish_to_exchange(orders.state, space, "", Publication(b"x"), now_ms=orders.now_ms) == []
    declare_exchange(orders.state, "all", ExchangeSettings(ExchangeKind.FANOUT), namespace="there")
    assert space.topology.find("all") is None


def test_an_exchange_that_is_refused_opens_no_namespace(orders: Bench) -> None:
    with pytest.raises(ExchangeReserved):
        declare_exchange(orders.state, "amq.mine", ExchangeSettings(ExchangeKind.FANOUT), namespace="new")
    assert "new" not in orders.state.namespaces


def test_a_hundred_idle_queues_are_never_looked_at(orders: Bench) -> None:
    for number in range(100):
        orders.declare(f"queue {number}")
    assert orders.state.calendar.next_ms() is None
