"""Within its window an id that was published already is accepted and not stored again."""

from __future__ import annotations

import pytest

from smista.core.dedup import DedupMemory, Seen, Tally
from smista.core.message import Envelope
from smista.core.settings import DeduplicationScope, QueueSettings
from smista.errors import QueueFull
from tests.core.bench import Bench

WINDOW_MS = 300_000


def test_the_same_id_again_is_accepted_and_not_stored(orders: Bench) -> None:
    first = orders.publish(b"1", deduplication_id="a")
    orders.pass_time(ms=1000)
    again = orders.publish(b"2", deduplication_id="a")
    assert (again.number, again.created_at_ms, again.is_duplicate) == (first.number, first.created_at_ms, True)
    assert (first.is_duplicate, orders.depth, orders.stats().duplicates_total) == (False, 1, 1)


def test_other_ids_and_none_at_all_are_stored(orders: Bench) -> None:
    for deduplication_id in ("a", "b", None, None):
        orders.publish(deduplication_id=deduplication_id)
    assert orders.depth == 4


def test_an_id_is_remembered_after_its_message_was_acknowledged(orders: Bench) -> None:
    orders.publish(deduplication_id="a")
    orders.acknowledge(orders.receive_one())
    assert orders.publish(deduplication_id="a").is_duplicate
    assert orders.receive() == []


def test_the_window_ends_to_the_millisecond(orders: Bench) -> None:
    orders.publish(deduplication_id="a")
    orders.pass_time(ms=WINDOW_MS - 1)
    assert orders.publish(deduplication_id="a").is_duplicate
    orders.pass_time(ms=1)
    assert not orders.publish(deduplication_id="a").is_duplicate


def test_a_duplicate_does_not_lengthen_the_window(orders: Bench) -> None:
    orders.publish(deduplication_id="a")
    for _ in range(3):
        orders.pass_time(ms=WINDOW_MS // 3)
        placed = orders.publish(deduplication_id="a")
    assert not placed.is_duplicate


def test_a_refused_message_leaves_no_memory() -> None:
    bench = Bench(QueueSettings(max_depth=1))
    bench.publish()
    with pytest.raises(QueueFull):
        bench.publish(deduplication_id="a")
    bench.purge()
    assert not bench.publish(deduplication_id="a").is_duplicate


def test_a_duplicate_is_accepted_by_a_full_queue() -> None:
    bench = Bench(QueueSettings(max_depth=1))
    bench.publish(deduplication_id="a")
    assert bench.publish(deduplication_id="a").is_duplicate


def test_through_an_exchange_each_queue_remembers_for_itself() -> None:
    bench = Bench(QueueSettings(max_depth=1))
    other = bench.declare("other")
    bench.fanout("all", bench.queue, other)
    envelope = Envelope(deduplication_id="a")
    bench.publish(deduplication_id="a")
    assert [place.is_duplicate for place in bench.publish_to("all", envelope=envelope)] == [True, False]
    assert [place.is_duplicate for place in bench.publish_to("all", envelope=envelope)] == [True, True]
    assert (bench.depth, other.depth) == (1, 1)


def test_by_body_equal_bodies_are_duplicates() -> None:
    bench = Bench(QueueSettings(dedup_by_body=True))
    assert [bench.publish(body).is_duplicate for body in (b"x", b"y", b"x")] == [False, False, True]


def test_by_body_an_explicit_id_wins() -> None:
    bench = Bench(QueueSettings(dedup_by_body=True))
    bench.publish(b"x", deduplication_id="1")
    assert not bench.publish(b"x", deduplication_id="2").is_duplicate
    assert bench.publish(b"y", deduplication_id="1").is_duplicate
    assert not bench.publish(b"x").is_duplicate


def test_ids_are_the_queues_or_the_groups_own() -> None:
    whole = Bench()
    each = Bench(QueueSettings(dedup_scope=DeduplicationScope.GROUP))
    for bench in (whole, each):
        bench.publish(group="g", deduplication_id="a")
    assert whole.publish(group="h", deduplication_id="a").is_duplicate
    assert not each.publish(group="h", deduplication_id="a").is_duplicate
    assert each.publish(group="g", deduplication_id="a").is_duplicate


def test_queues_do_not_share_their_memory(orders: Bench) -> None:
    orders.publish(deduplication_id="a")
    assert not orders.publish(deduplication_id="a", queue=orders.declare("other")).is_duplicate


def test_a_window_of_nothing_deduplicates_nothing() -> None:
    bench = Bench(QueueSettings(dedup_window_ms=0))
    bench.publish(deduplication_id="a")
    assert not bench.publish(deduplication_id="a").is_duplicate


def test_the_memory_shrinks_as_fast_as_it_grows() -> None:
    bench = Bench(QueueSettings(dedup_window_ms=1000))
    for number in range(500):
        bench.publish(deduplication_id=f"first {number}")
    bench.pass_time(ms=1000)
    for number in range(500):
        bench.publish(deduplication_id=f"second {number}")
    assert bench.queue.dedup is not None
    assert len(bench.queue.dedup) == 500


def test_an_id_learnt_anew_is_forgotten_at_its_new_time() -> None:
    memory = DedupMemory(Tally())
    memory.remember("a", Seen(1, 0, 10))
    memory.remember("b", Seen(2, 0, 15))
    memory.remember("a", Seen(3, 10, 20))
    memory.forget_expired(15)
    assert [(key, seen.number) for key, seen in memory.items()] == [("a", 3)]
