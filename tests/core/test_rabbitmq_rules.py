"""The rules of queues that were declared as RabbitMQ knows them; the AMQP tests hold the same against a RabbitMQ."""

from __future__ import annotations

import pytest

from smista.core import fan_out, publishing
from smista.core.declaring import bind, declare_exchange
from smista.core.entering import Placed
from smista.core.exchanges import Binding, ExchangeKind, ExchangeSettings
from smista.core.message import Envelope, Publication, Reason
from smista.core.queue import Queue
from smista.core.settings import DeadLetterMode, Overflow, QueueSettings
from smista.errors import BrokerError, InvalidSettings, QueueFull
from tests.core import invariants
from tests.core.bench import HOUR_MS, Bench, bodies

TO_DEAD = {
    "dead_letter": DeadLetterMode.MOVE_OR_DROP,
    "dead_letter_exchange": "",
    "dead_letter_routing_key": "dead",
}


def bench_with(**settings: object) -> Bench:
    """A queue that counts what is ready, and a queue for its dead letters."""
    made = QueueSettings(limit_ready_only=True, retention_ms=None, max_retries=None, **{**TO_DEAD, **settings})  # type: ignore[arg-type] # as they are named
    bench = Bench(made)
    bench.declare("dead")
    return bench


def dead(bench: Bench) -> list[bytes]:
    return bodies(bench.dead_letters("dead"))


# -- limits -----------------------------------------------------------------------------------------------------------


def test_what_is_first_goes_when_there_is_one_too_many() -> None:
    bench = bench_with(max_depth=2, overflow=Overflow.DROP_OLDEST)
    bench.publish_many(4)
    assert bench.receive_bodies() == [b"2", b"3"]
    assert (bench.stats().dropped_total, bench.stats().rejected_total) == (2, 0)
    invariants.check(bench.state)


def test_the_highest_priority_is_what_is_first() -> None:
    bench = bench_with(max_depth=2, overflow=Overflow.DROP_OLDEST)
    for priority in (5, 1, 3, 1, 5):
        bench.publish(b"%d" % priority, priority=priority)
    assert bench.receive_bodies() == [b"1", b"1"]


def test_a_body_over_the_limit_takes_everything_along_and_goes_itself() -> None:
    bench = bench_with(max_bytes=10, overflow=Overflow.DEAD_LETTER_OLDEST)
    for body in (b"aaaa", b"bbbb", b"c" * 11, b"dd"):
        bench.publish(body)
    assert dead(bench) == [b"aaaa", b"bbbb", b"c" * 11]
    assert bench.receive_bodies() == [b"dd"]
    invariants.check(bench.state)


@pytest.mark.parametrize("limit", [{"max_depth": 1}, {"max_bytes": 10}])
def test_what_is_in_flight_does_not_count(limit: dict[str, int]) -> None:
    bench = bench_with(overflow=Overflow.REJECT, **limit)
    bench.publish(b"a" * 10)
    with pytest.raises(QueueFull):
        bench.publish(b"b" * 10)
    held = bench.receive_one()
    bench.publish(b"c" * 10)
    invariants.check(bench.state)
    bench.acknowledge(held)
    with pytest.raises(QueueFull):
        bench.publish(b"d" * 10)
    invariants.check(bench.state)


def test_what_comes_back_to_a_full_queue_is_first_and_goes() -> None:
    bench = bench_with(max_depth=1, overflow=Overflow.DEAD_LETTER_OLDEST)
    bench.publish(b"1")
    held = bench.receive_one()
    bench.publish(b"2")
    bench.nack(held, delay_ms=0)
    assert dead(bench) == [b"1"]
    assert bench.receive_bodies() == [b"2"]


def test_what_becomes_ready_in_a_full_queue_pushes_out_what_is_first() -> None:
    bench = bench_with(max_depth=1, overflow=Overflow.DEAD_LETTER_OLDEST)
    bench.publish(b"later", delay_ms=2000)
    bench.publish(b"now")
    assert bench.counts() == (1, 1, 0, 0)
    bench.pass_time(ms=2000)
    # By its sequence it is the older one.
    assert dead(bench) == [b"later"]
    assert bench.receive_bodies() == [b"now"]


def test_what_is_refused_may_be_a_dead_letter() -> None:
    bench = bench_with(max_depth=1, overflow=Overflow.DEAD_LETTER_NEWEST)
    bench.publish(b"1")
    with pytest.raises(QueueFull):
        bench.publish(b"2")
    [letter] = bench.dead_letters("dead")
    assert (letter.body, letter.deaths[0].reason) == (b"2", Reason.OVERFLOW)
    assert bench.receive_bodies() == [b"1"]
    invariants.check(bench.state)


def test_a_chain_of_full_queues_hands_on() -> None:
    bench = bench_with(max_depth=1, overflow=Overflow.DEAD_LETTER_OLDEST, dead_letter_routing_key="middle")
    bench.declare(
        "middle",
        QueueSettings(limit_ready_only=True, max_depth=1, overflow=Overflow.DEAD_LETTER_OLDEST, **TO_DEAD),  # type: ignore[arg-type] # as they are named
    )
    bench.publish_many(4)
    assert (dead(bench), bodies(bench.dead_letters("middle"))) == ([b"0", b"1"], [b"2"])
    assert bench.receive_bodies() == [b"3"]


def test_a_limit_of_nothing_lets_nothing_stay() -> None:
    bench = bench_with(max_depth=0, overflow=Overflow.DROP_OLDEST)
    bench.publish(b"1")
    assert bench.counts() == (0, 0, 0, 0)


def test_a_limit_of_nothing_needs_those_rules() -> None:
    with pytest.raises(InvalidSettings, match="max_bytes"):
        Bench(QueueSettings(max_bytes=0))


# -- now or never -----------------------------------------------------------------------------------------------------


class Waiting:
    """Somebody who takes what is ready, as the engine would."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.got: list[bytes] = []
        bench.serve = self.serve
        bench.queue.is_watched = True

    def serve(self, queue: Queue, now_ms: int) -> None:
        self.got += self.bench.receive_bodies(queue=queue)


@pytest.mark.parametrize("overflow", Overflow)
def test_what_goes_straight_to_a_consumer_fills_nothing(overflow: Overflow) -> None:
    bench = bench_with(max_depth=1, overflow=overflow)
    waiting = Waiting(bench)
    bench.publish_all([Publication(b"%d" % number) for number in range(5)])
    assert waiting.got == [b"0", b"1", b"2", b"3", b"4"]
    assert dead(bench) == []


def test_a_time_to_live_of_nothing_is_for_somebody_who_waits() -> None:
    bench = bench_with()
    waiting = Waiting(bench)
    bench.publish(b"taken", ttl_ms=0)
    bench.queue.is_watched = False
    bench.publish(b"not taken", ttl_ms=0)
    assert waiting.got == [b"taken"]
    assert dead(bench) == [b"not taken"]


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_a_dead_letter_has_the_exchange_and_the_key_it_went_by() -> None:
    bench = bench_with()
    envelope = Envelope(b"properties", "source", "key", ttl_ms=HOUR_MS)
    bench.publish_all([Publication(b"x", envelope)])
    bench.reject(bench.receive_one())
    [letter] = bench.dead_letters("dead")
    assert letter.envelope == Envelope(b"properties", "", "dead")
    assert (letter.deaths[0].exchange, letter.deaths[0].routing_key) == ("source", "key")


@pytest.mark.parametrize("exchange", ["nowhere", "amq.direct"])
def test_what_leads_nowhere_is_gone(exchange: str) -> None:
    bench = bench_with(dead_letter_exchange=exchange)
    bench.publish()
    bench.reject(bench.receive_one())
    bench.publish(ttl_ms=2000)
    bench.pass_time(ms=2000)
    assert bench.counts() == (0, 0, 0, 0)
    assert (bench.stats().dropped_total, bench.stats().expired_total) == (1, 1)


def test_a_rejected_message_may_come_back_to_its_queue_and_no_other_may() -> None:
    bench = bench_with(dead_letter_routing_key="orders")
    bench.publish(b"x")
    for count in range(1, 4):
        bench.reject(bench.receive_one())
        [message] = bench.browse().messages
        assert [death.count for death in message.deaths] == [count]
    bench.publish(b"y", ttl_ms=2000)
    bench.pass_time(ms=2000)
    assert bodies(bench.browse().messages) == [b"x"]


def test_a_queues_name_is_the_key_of_what_was_published_to_it() -> None:
    bench = bench_with(dead_letter_exchange="dlx", dead_letter_routing_key=None)
    declare_exchange(bench.state, "dlx", ExchangeSettings(ExchangeKind.DIRECT))
    bind(bench.state, bench.state.namespace("/"), Binding.to_queue("dlx", "dead", "orders"))
    bench.publish(b"x")
    bench.reject(bench.receive_one())
    assert dead(bench) == [b"x"]


def test_dead_letters_are_routed_by_what_the_doors_read_in_their_properties() -> None:
    bench = bench_with(dead_letter_exchange="dlx", dead_letter_routing_key=None)
    bench.state.read_routing = lambda properties: ({"kind": properties.decode()}, ("further",))
    declare_exchange(bench.state, "dlx", ExchangeSettings(ExchangeKind.HEADERS))
    bind(bench.state, bench.state.namespace("/"), Binding.to_queue("dlx", "dead", "", {"kind": "wanted"}))
    for kind in (b"other", b"wanted"):
        bench.publish_all([Publication(kind, Envelope(kind))])
        bench.reject(bench.receive_one())
    assert dead(bench) == [b"wanted"]


def test_an_entry_keeps_what_it_said_at_first_and_the_first_of_all_is_known() -> None:
    bench = bench_with(dead_letter_routing_key="retry")
    bench.declare(
        "retry",
        QueueSettings(
            dead_letter=DeadLetterMode.MOVE_OR_DROP,
            dead_letter_exchange="",
            dead_letter_routing_key="orders",
            message_ttl_ms=2000,
        ),
    )
    bench.publish_all([Publication(b"x", Envelope(b"", "", "orders"))])
    died_at_ms = bench.now_ms
    for _ in range(3):
        bench.reject(bench.receive_one())
        bench.pass_time(ms=2000)
    [message] = bench.browse().messages
    assert [(death.queue, death.count, death.is_first) for death in message.deaths] == [
        ("orders", 3, True),
        ("retry", 3, False),
    ]
    assert [death.first_at_ms - died_at_ms for death in message.deaths] == [0, 2000]
    assert [death.at_ms - died_at_ms for death in message.deaths] == [4000, 6000]


# -- publishing -------------------------------------------------------------------------------------------------------


def test_one_full_queue_does_not_keep_a_message_from_the_others() -> None:
    bench = bench_with(max_depth=1, overflow=Overflow.REJECT)
    wide = bench.declare("wide")
    for number in range(2):
        publication = Publication(b"%d" % number)
        results = fan_out.publish_to_queues(bench.state, [bench.queue, wide], publication, now_ms=bench.now_ms)
    assert [type(result) for result in results] == [QueueFull, Placed]
    assert isinstance(results[0], BrokerError)
    assert (bench.receive_bodies(), bench.receive_bodies(queue=wide)) == ([b"0"], [b"0", b"1"])
    invariants.check(bench.state)


def test_a_publish_that_is_no_use_does_not_keep_a_queue() -> None:
    bench = Bench(QueueSettings(expires_ms=HOUR_MS))
    bench.pass_time(ms=HOUR_MS - 1000)
    publishing.publish(bench.state, bench.queue, [Publication(b"x")], is_use=False, now_ms=bench.now_ms)
    fan_out.publish_to_queues(bench.state, [bench.queue], Publication(b"x"), is_use=False, now_ms=bench.now_ms)
    bench.pass_time(ms=2000)
    assert not bench.has_queue("orders")


def test_whether_headers_matter_is_seen_through_bindings_and_alternates() -> None:
    bench = Bench()
    namespace = bench.state.namespace("/")
    declare_exchange(bench.state, "headers", ExchangeSettings(ExchangeKind.HEADERS))
    declare_exchange(bench.state, "second", ExchangeSettings(ExchangeKind.FANOUT, alternate="headers"))
    declare_exchange(bench.state, "first", ExchangeSettings(ExchangeKind.TOPIC))
    assert not namespace.topology.looks_at_headers("first")
    bind(bench.state, namespace, Binding.to_exchange("first", "second", "#"))
    assert [namespace.topology.looks_at_headers(name) for name in ("first", "second", "headers", "")] == [
        True,
        True,
        True,
        False,
    ]
