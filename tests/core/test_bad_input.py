"""Every error of the core is provoked: the right code, a sentence that names the thing, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from smista import core, errors
from smista.core.declaring import declare_queue
from smista.core.governing import delete_policy
from smista.core.message import Publication, Receipt
from smista.core.settings import QueueSettings
from smista.core.settling import acknowledge, extend
from smista.errors import BrokerError
from smista.exchange_errors import ExchangeNotFound, ReachTooWide
from tests.core import invariants
from tests.core.bench import LEASE_MS, Bench
from tests.core.raised import errors_of

ELSEWHERE: set[type[BrokerError]] = {
    errors.ClaimNotFound,  # in test_claims.py
    errors.ClaimExpired,
    errors.ClaimBroken,
    errors.ConsumerInUse,
    ReachTooWide,  # in exchanges/test_topology.py
    errors.RedriveRunning,  # jobs are in tests/engine/test_jobs.py
    errors.QueueDeleted,
    errors.RedriveEnded,
}


@dataclass(frozen=True)
class Case:
    error: type[BrokerError]
    code: str
    names: str
    """What the sentence must name."""
    provoke: Callable[[Bench], object]


def busy() -> Bench:
    """A queue with something in each state, full, and two more to be wrong about."""
    bench = Bench(QueueSettings(max_priority=9, max_depth=5, body_bytes_max=100))
    bench.publish(b"in flight")
    bench.receive_one(lease_ms=10 * LEASE_MS)
    bench.publish(b"scheduled", delay_ms=100_000)
    bench.publish(b"ready 1", deduplication_id="seen")
    bench.publish(b"ready 2", ttl_ms=100_000)
    bench.publish(b"ready 3", group="g")
    bench.declare("empty")
    bench.declare("ordered", QueueSettings(ordered=True))
    bench.declare("first", QueueSettings(dead_letter_queue="last"))
    bench.fanout("all", bench.queue, bench.find("empty"))
    bench.publish(b"late", queue=bench.find("ordered"), group="g")
    return bench


def expired_receipt(bench: Bench) -> Receipt:
    ordered = bench.find("ordered")
    return Receipt(ordered.number, next(iter(ordered.ready)), 1)


def acknowledge_late(bench: Bench) -> None:
    [outcome] = acknowledge(bench.state, [expired_receipt(bench)], now_ms=bench.now_ms)
    assert outcome is not None
    raise outcome


def settle_what_is_over(bench: Bench) -> None:
    receipt = Receipt(bench.queue.number, next(iter(bench.queue.in_flight)), 99)
    [outcome] = extend(bench.state, [receipt], 1000, now_ms=bench.now_ms)
    assert outcome is not None
    raise outcome


def delete_while_in_use(bench: Bench) -> None:
    bench.queue.is_watched = True
    try:
        bench.delete(if_unused=True)
    finally:
        bench.queue.is_watched = False


CASES = [
    Case(
        errors.InvalidArgument,
        "invalid_argument",
        "str",
        lambda bench: bench.publish("text", queue=bench.find("empty")),  # type: ignore[arg-type]  # wrong on purpose
    ),
    Case(errors.InvalidArgument, "invalid_argument", "ttl_ms", lambda bench: bench.publish(ttl_ms=-5)),
    Case(errors.InvalidArgument, "invalid_argument", "max_retries", lambda bench: bench.publish(max_retries=-5)),
    Case(
        errors.InvalidArgument,
        "invalid_argument",
        "Envelope",
        lambda bench: _raise_first(bench.publish_all([Publication(b"x", None)])),  # type: ignore[arg-type]  # same
    ),
    Case(errors.InvalidArgument, "invalid_argument", "-1", lambda bench: bench.receive(lease_ms=-1)),
    Case(errors.InvalidArgument, "invalid_argument", "0", lambda bench: bench.browse(limit=0)),
    Case(
        errors.InvalidArgument,
        "invalid_argument",
        "due_at_ms",
        lambda bench: bench.reschedule(next(iter(bench.queue.scheduled)), due_at_ms=-1),
    ),
    Case(errors.InvalidName, "invalid_name", "'bad\\nname'", lambda bench: bench.declare("bad\nname")),
    Case(errors.InvalidPriority, "invalid_priority", "10", lambda bench: bench.publish(priority=10)),
    Case(
        errors.InvalidSettings,
        "invalid_settings",
        "lease_ms",
        lambda bench: bench.declare("new", QueueSettings(lease_ms=-1)),
    ),
    Case(errors.MessageTooLarge, "message_too_large", "101 bytes", lambda bench: bench.publish(bytes(101))),
    Case(errors.QueueNotFound, "queue_not_found", "'missing'", lambda bench: bench.find("missing")),
    Case(
        errors.QueueDiffers,
        "queue_differs",
        "max_depth",
        lambda bench: bench.declare("orders", QueueSettings(max_priority=9, max_depth=6, body_bytes_max=100)),
    ),
    Case(errors.QueueFull, "queue_full", "'orders'", lambda bench: bench.publish(b"one more")),
    Case(errors.QueueFull, "queue_full", "'orders'", lambda bench: bench.publish_to("all")),
    Case(errors.QueueNotEmpty, "queue_not_empty", "5 messages", lambda bench: bench.delete(if_empty=True)),
    Case(errors.QueueInUse, "queue_in_use", "'orders'", delete_while_in_use),
    Case(
        errors.DeadLetterCycle,
        "dead_letter_cycle",
        "last -> first -> last",
        lambda bench: bench.declare("last", QueueSettings(dead_letter_queue="first")),
    ),
    Case(
        errors.PolicyNotFound,
        "policy_not_found",
        "'missing'",
        lambda bench: delete_policy(bench.state, "/", "missing"),
    ),
    Case(errors.MessageNotFound, "message_not_found", "'orders'", lambda bench: bench.cancel(10**9)),
    Case(errors.StaleReceipt, "stale_receipt", "'orders'", settle_what_is_over),
    Case(errors.LeaseExpired, "ack_deadline_exceeded", "'ordered'", acknowledge_late),
    Case(errors.NamespaceNotFound, "namespace_not_found", "'missing'", lambda bench: bench.state.namespace("missing")),
    Case(ExchangeNotFound, "exchange_not_found", "'missing'", lambda bench: bench.publish_to("missing")),
]


def _raise_first(results: list[object]) -> None:
    assert isinstance(results[0], BrokerError)
    raise results[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.error.__name__} {case.names}")
def test_what_is_refused_has_a_code_names_the_thing_and_changes_nothing(case: Case) -> None:
    bench = busy()
    bench.receive_one(queue=bench.find("ordered"))
    bench.pass_time(ms=LEASE_MS)
    before = snapshot(bench)
    with pytest.raises(case.error) as refused:
        case.provoke(bench)
    assert type(refused.value) is case.error
    assert refused.value.code == case.code
    message = str(refused.value)
    assert case.names in message
    assert message.endswith(".")
    assert snapshot(bench) == before
    invariants.check(bench.state)


def snapshot(bench: Bench) -> object:
    """All that a caller can see, but for the count of what was refused."""
    queues = {
        key: {name: getattr(stats, name) for name in stats.__struct_fields__ if name != "rejected_total"}
        for key, stats in bench.all_stats().items()
    }
    messages = [repr(message) for queue in bench.state.queues.values() for message in queue.messages()]
    settings = {queue.name: queue.settings for queue in bench.state.queues.values()}
    return queues, messages, settings, sorted(bench.state.namespaces), bench.state.next_sequence


def test_no_error_of_the_core_is_missing_here() -> None:
    provoked = {case.error for case in CASES}
    assert errors_of(core) == (provoked & errors_of(core)) | ELSEWHERE
    assert not provoked & ELSEWHERE


def test_no_two_errors_share_a_code() -> None:
    found = _all_below(BrokerError)
    codes = [error.code for error in found]
    assert sorted(codes) == sorted(set(codes))


def _all_below(error: type[BrokerError]) -> list[type[BrokerError]]:
    mine = [below for below in error.__subclasses__() if below.__module__.startswith("smista.")]
    return [*mine, *(deeper for below in mine for deeper in _all_below(below))]


def test_a_queue_refused_leaves_no_namespace_behind() -> None:
    bench = Bench()
    with pytest.raises(errors.InvalidSettings):
        declare_queue(bench.state, "q", QueueSettings(lease_ms=-1), namespace="new", now_ms=bench.now_ms)
    assert list(bench.state.namespaces) == ["/"]
