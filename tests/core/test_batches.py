"""Many messages in one publish: as one after the other, only faster; and a batch that is sent twice is stored once."""

from __future__ import annotations

import pytest

from smista.core.entering import Placed, Result
from smista.core.message import Envelope, Publication
from smista.core.settings import DeduplicationScope, QueueSettings
from smista.errors import InvalidArgument, MessageTooLarge
from tests.core.bench import Bench
from tests.core.invariants import check

KINDS = {
    "plain": QueueSettings(),
    "limited": QueueSettings(max_depth=1000),
    "ordered": QueueSettings(ordered=True),
    "by body": QueueSettings(dedup_by_body=True),
    "with a delay": QueueSettings(delay_ms=5),
    "with a time to live": QueueSettings(message_ttl_ms=60_000),
}


def batch(count: int, start: int = 0) -> list[Publication]:
    return [Publication(b"%d" % number) for number in range(start, start + count)]


def bodies(bench: Bench) -> list[bytes]:
    bench.pass_time(ms=100)
    return [delivery.body for delivery in bench.receive(100)]


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_a_batch_is_as_one_after_the_other(settings: QueueSettings) -> None:
    together, single = Bench(settings), Bench(settings)
    results = together.publish_all(batch(10))
    singly = [result for one in batch(10) for result in single.publish_all([one])]
    assert results == singly
    assert together.queue.counters == single.queue.counters
    assert (together.queue.body_bytes, together.queue.depth) == (10, 10)
    check(together.state)
    assert bodies(together) == bodies(single) == [b"%d" % number for number in range(10)]


def test_positions_count_what_stands_before_and_above(orders: Bench) -> None:
    orders.publish(priority=0)
    orders.publish(priority=7)
    results = orders.publish_all(batch(3))
    assert [result.position for result in results if isinstance(result, Placed)] == [3, 4, 5]


def test_what_is_refused_does_not_keep_its_neighbours_out(orders: Bench) -> None:
    orders.state.body_bytes_max = 10
    results = orders.publish_all([Publication(b"a"), Publication(b"x" * 11), Publication("text"), Publication(b"b")])  # type: ignore[arg-type]  # wrong on purpose
    assert [type(result) for result in results] == [Placed, MessageTooLarge, InvalidArgument, Placed]
    assert bodies(orders) == [b"a", b"b"]
    assert orders.queue.counters.rejected == 2
    check(orders.state)


def test_more_than_a_chunk_and_a_segment_hold_at_once(orders: Bench) -> None:
    orders.publish_all(batch(40_000))
    check(orders.state)
    deliveries = [delivery for _ in range(400) for delivery in orders.receive(100)]
    assert [delivery.body for delivery in deliveries] == [b"%d" % number for number in range(40_000)]
    for delivery in deliveries:
        orders.acknowledge(delivery)
    assert orders.queue.depth == orders.queue.body_bytes == 0
    check(orders.state)


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_a_batch_under_the_same_id_is_stored_once(settings: QueueSettings) -> None:
    bench = Bench(settings)
    first = bench.publish_all(batch(5), batch_id="b1")
    again = bench.publish_all(batch(5), batch_id="b1")
    assert [one.number for one in again if isinstance(one, Placed)] == [
        one.number for one in first if isinstance(one, Placed)
    ]
    assert all(isinstance(one, Placed) and one.is_duplicate and one.position == 0 for one in again)
    assert (bench.queue.depth, bench.queue.counters.duplicates) == (5, 5)
    bench.publish_all(batch(5, start=10), batch_id="b2")
    assert bench.queue.depth == 10
    check(bench.state)


def test_a_batch_is_remembered_after_its_messages_are_gone_and_forgotten_after_the_window(orders: Bench) -> None:
    orders.publish_all(batch(3), batch_id="b")
    for delivery in orders.receive(3):
        orders.acknowledge(delivery)
    orders.pass_time(ms=orders.queue.settings.dedup_window_ms - 1)
    assert all(isinstance(one, Placed) and one.is_duplicate for one in orders.publish_all(batch(3), batch_id="b"))
    orders.pass_time(ms=1)
    assert not any(isinstance(one, Placed) and one.is_duplicate for one in orders.publish_all(batch(3), batch_id="b"))


def test_the_same_messages_are_refused_again_in_a_repeated_batch(orders: Bench) -> None:
    orders.state.body_bytes_max = 10
    mixed = [Publication(b"x" * 11), Publication(b"a"), Publication(b"x" * 11), Publication(b"b")]
    first = orders.publish_all(mixed, batch_id="b")
    again = orders.publish_all(mixed, batch_id="b")
    assert [type(one) for one in first] == [type(one) for one in again]
    assert [one.number for one in first if isinstance(one, Placed)] == [
        one.number for one in again if isinstance(one, Placed)
    ]
    assert orders.queue.depth == 2


def numbers(results: list[Result]) -> list[int | None]:
    """Of what is stored; None for what is not."""
    return [result.number if isinstance(result, Placed) else None for result in results]


MIXED = [Publication(b"a"), Publication(b"B" * 20), Publication(b"c")]


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_what_was_refused_is_stored_when_the_batch_comes_again_and_the_queue_takes_it(settings: QueueSettings) -> None:
    bench = Bench(settings)
    bench.state.body_bytes_max = 10
    first = numbers(bench.publish_all(MIXED, batch_id="b"))
    bench.state.body_bytes_max = 100
    second = bench.publish_all(MIXED, batch_id="b")
    assert (numbers(second)[0], numbers(second)[2]) == (first[0], first[2])
    assert [isinstance(one, Placed) and one.is_duplicate for one in second] == [True, False, True]
    assert numbers(bench.publish_all(MIXED, batch_id="b")) == numbers(second)
    assert sorted(bodies(bench)) == [b"B" * 20, b"a", b"c"]
    check(bench.state)


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_what_was_stored_is_recognised_though_its_queue_takes_no_such_thing_by_now(settings: QueueSettings) -> None:
    bench = Bench(settings)
    first = bench.publish_all(MIXED, batch_id="b")
    bench.state.body_bytes_max = 10
    assert numbers(bench.publish_all(MIXED, batch_id="b")) == numbers(first)
    assert bench.queue.counters.rejected == 0
    assert bench.queue.message_count == 3


@pytest.mark.parametrize("names", ["a", "ab"])
def test_so_is_what_an_exchange_has_routed(orders: Bench, names: str) -> None:
    orders.fanout("all", *map(orders.declare, names))
    first = orders.publish_to("all", b"x" * 20, batch_id="b")
    orders.state.body_bytes_max = 10
    again = orders.publish_to("all", b"x" * 20, batch_id="b")
    assert [one.number for one in again] == [one.number for one in first]
    assert all(one.is_duplicate for one in again)


def test_a_batch_id_and_a_message_id_are_told_apart(orders: Bench) -> None:
    orders.publish(deduplication_id="b")
    orders.publish_all(batch(2), batch_id="b")
    orders.publish_all([Publication(b"own", Envelope(deduplication_id="mine")), *batch(1)], batch_id="c")
    orders.publish(deduplication_id="mine")
    assert orders.queue.depth == 5


@pytest.mark.parametrize("wrong", ["", "x" * 1025, 7])
def test_a_batch_id_that_is_none_is_refused(orders: Bench, wrong: str) -> None:
    with pytest.raises(InvalidArgument, match="batch_id"):
        orders.publish_all(batch(2), batch_id=wrong)
    assert orders.queue.depth == 0


@pytest.mark.parametrize("after", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("before", KINDS.values(), ids=KINDS)
def test_a_batch_is_recognised_whatever_was_altered_meanwhile(before: QueueSettings, after: QueueSettings) -> None:
    bench = Bench(before)
    first = bench.publish_all(batch(5), batch_id="b1")
    bench.alter(after)
    again = bench.publish_all(batch(5), batch_id="b1")
    assert [one.number for one in again if isinstance(one, Placed)] == [
        one.number for one in first if isinstance(one, Placed)
    ]
    assert bench.queue.message_count == 5


def test_the_longest_batch_id_has_room_for_places() -> None:
    bench = Bench(QueueSettings(max_depth=100))
    for _ in range(2):
        bench.publish_all(batch(3), batch_id="b" * 512)
    assert bench.queue.depth == 3


def test_a_batch_is_recognised_though_its_queue_deduplicates_otherwise_by_now() -> None:
    bench = Bench(QueueSettings(dedup_scope=DeduplicationScope.GROUP))
    delayed = [Publication(b"x", delay_ms=50), Publication(b"y", Envelope(group="g", deduplication_id="1"))]
    first = bench.publish_all(delayed, batch_id="b1")
    bench.alter(QueueSettings())
    again = bench.publish_all(delayed, batch_id="b1")
    assert [one.number for one in again if isinstance(one, Placed)] == [
        one.number for one in first if isinstance(one, Placed)
    ]
    assert bench.depth == 2


def test_a_batch_id_does_not_stand_in_for_deduplication_by_body() -> None:
    bench = Bench(QueueSettings(dedup_by_body=True))
    [first] = bench.publish_all([Publication(b"x")], batch_id="b1")
    [second] = bench.publish_all([Publication(b"x")], batch_id="b2")
    assert isinstance(first, Placed)
    assert isinstance(second, Placed)
    assert (second.number, second.is_duplicate, bench.depth) == (first.number, True, 1)


def test_a_batch_id_is_no_deduplication_id_of_its_messages() -> None:
    bench = Bench(QueueSettings(max_depth=10))
    bench.publish_all([Publication(b"x")], batch_id="b1")
    assert bench.browse().messages[0].envelope.deduplication_id is None
