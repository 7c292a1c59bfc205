"""One message to several queues, of every kind and dead-lettering into each other: in all or in none, and whoever is
refused has pushed nobody out."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from smista.core.entering import Placed
from smista.core.fan_out import publish_to_queues
from smista.core.limits import MAKES_ROOM, is_over
from smista.core.message import Publication
from smista.core.queue import Queue
from smista.core.settings import DeadLetterMode, Overflow, QueueSettings
from smista.errors import QueueFull
from tests.core import invariants
from tests.core.bench import Bench, bodies

NAMES = ("first", "second", "third")


@st.composite
def queue_settings(draw: st.DrawFn, name: str) -> QueueSettings:
    ordered = draw(st.booleans())
    return QueueSettings(
        max_depth=draw(st.none() | st.integers(1, 3)),
        max_bytes=draw(st.none() | st.integers(3, 9)),
        limit_ready_only=draw(st.booleans()),
        overflow=draw(st.sampled_from(Overflow)),
        dead_letter=draw(st.sampled_from(DeadLetterMode)),
        # Leading forward only, since a cycle is refused.
        dead_letter_queue=draw(st.sampled_from([None, *NAMES[NAMES.index(name) + 1 :]])),
        dead_letter_max_depth=draw(st.none() | st.just(1)),
        ordered=ordered,
        fair=not ordered and draw(st.booleans()),
    )


@st.composite
def benches(draw: st.DrawFn) -> tuple[Bench, list[Queue]]:
    """Three queues, some full, some of whose messages are held."""
    bench = Bench(name="other")
    queues = [bench.declare(name, draw(queue_settings(name))) for name in NAMES]
    for queue in queues:
        for _ in range(draw(st.integers(0, 4))):
            body = b"x" * draw(st.integers(0, 3))
            bench.publish_all([Publication(body)], queue=queue)
        bench.receive(draw(st.integers(0, 2)), queue=queue)
    return bench, draw(st.permutations(queues))


def picture(bench: Bench) -> list[tuple[str, tuple[int, int, int, int], list[bytes]]]:
    queues = bench.state.queues.values()
    return [(one.name, bench.counts(one), bodies(bench.browse(queue=one).messages)) for one in queues]


def published(queues: list[Queue]) -> list[int]:
    return [queue.counters.published for queue in queues]


@settings(max_examples=400, deadline=None)
@given(benches(), st.integers(1, 3))
def test_all_or_none_and_a_refused_one_changes_nothing(made: tuple[Bench, list[Queue]], size: int) -> None:
    bench, queues = made
    bench.fanout("all", *queues)
    before, counts = picture(bench), published(queues)
    try:
        placed = bench.publish_to("all", b"n" * size)
    except QueueFull:
        assert (picture(bench), published(queues)) == (before, counts)
    else:
        assert {one.queue for one in placed} == set(NAMES)
        assert published(queues) == [count + 1 for count in counts]
    check(bench)


@settings(max_examples=400, deadline=None)
@given(benches(), st.integers(1, 3))
def test_each_for_itself(made: tuple[Bench, list[Queue]], size: int) -> None:
    bench, queues = made
    counts = published(queues)
    results = publish_to_queues(bench.state, queues, Publication(b"n" * size), now_ms=bench.now_ms)
    bench.keep_limits()
    for queue, result, before, after in zip(queues, results, counts, published(queues), strict=True):
        # What is refused may enter for a moment, to become a dead letter.
        is_dead_letter = queue.settings.overflow is Overflow.DEAD_LETTER_NEWEST
        assert after == before + 1 if isinstance(result, Placed) or is_dead_letter else after == before
    check(bench)


def check(bench: Bench) -> None:
    invariants.check(bench.state)
    for queue in bench.state.queues.values():
        # Whoever drops or sends on may hold more where nothing is ready, or nobody takes its dead letters.
        assert queue.settings.overflow in MAKES_ROOM or not is_over(queue)


def test_what_is_sent_again_is_stored_once_also_where_it_is_routed_to_more_queues_by_then() -> None:
    bench = Bench(name="other")
    first_queue, second_queue = (bench.declare(name, QueueSettings()) for name in NAMES[:2])
    bench.fanout("events", first_queue)
    [placed] = bench.publish_to("events", batch_id="mine-1")
    [again] = bench.publish_to("events", batch_id="mine-1")
    assert (again.number, again.is_duplicate) == (placed.number, True)
    bench.fanout("events", second_queue)
    first, second = bench.publish_to("events", batch_id="mine-1")
    assert (first.number, first.is_duplicate, second.is_duplicate) == (placed.number, True, False)
    assert [one.is_duplicate for one in bench.publish_to("events", batch_id="mine-1")] == [True, True]
    assert [one.is_duplicate for one in bench.publish_to("events", batch_id="mine-2")] == [False, False]
    [message, _] = bench.browse(queue=first_queue).messages
    assert message.envelope.deduplication_id is None
