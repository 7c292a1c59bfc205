"""Limits are kept between commands: whoever waits is served first, in bounded steps, and nothing happens halfway."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from smista.core.due import run_due
from smista.core.fan_out import publish_to_queues
from smista.core.journal import Journal
from smista.core.message import Message, Publication, Reason
from smista.core.publishing import publish
from smista.core.queue import Queue
from smista.core.settings import DeadLetterMode, Overflow, QueueSettings
from smista.core.trimming import TRIMMED_AT_ONCE, keep_limits
from smista.errors import QueueFull
from tests.core import invariants
from tests.core.bench import Bench

DROPS = QueueSettings(limit_ready_only=True, max_depth=2, overflow=Overflow.DROP_OLDEST, max_retries=None)


class Notes(Journal):
    """The names of the records, in order, and how often a block could have been sealed."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.between_count = 0

    def enqueued(self, queue: Queue, messages: Sequence[Message], at_ms: int, *, are_alike: bool = False) -> None:
        self.names.append(f"enqueued {queue.name}")

    def fanned_out(self, placed: Sequence[tuple[Queue, Message]], at_ms: int) -> None:
        self.names.append("fanned out " + " ".join(queue.name for queue, _ in placed))

    def became_ready(self, queue: Queue, messages: Sequence[Message], at_ms: int) -> None:
        self.names.append("became ready")

    def given_back(
        self, queue: Queue, message: Message, reason: Reason, due_at_ms: int, error: str, at_ms: int
    ) -> None:
        self.names.append("given back")

    def removed(self, queue: Queue, messages: Sequence[Message], reason: Reason, at_ms: int) -> None:
        self.names.append(f"removed {queue.name}")

    def between(self) -> None:
        self.between_count += 1


def no_one(queue: Queue, now_ms: int) -> None: ...


def test_a_command_neither_serves_nor_drops() -> None:
    bench = Bench(DROPS)
    bench.queue.is_watched = True
    publish(bench.state, bench.queue, [Publication(b"%d" % number) for number in range(5)], now_ms=bench.now_ms)
    assert bench.counts() == (5, 0, 0, 0)
    assert list(bench.state.over_limit) == [bench.queue]
    bench.keep_limits()
    assert bench.peek() == [b"3", b"4"]
    assert not bench.state.over_limit
    invariants.check(bench.state)


def test_what_becomes_ready_is_noted_before_anything_else_that_is_due() -> None:
    bench = Bench(DROPS)
    bench.publish(b"held")
    bench.receive_one(lease_ms=2000)
    bench.publish(b"delayed", delay_ms=2000)
    notes = bench.state.journal = Notes()
    bench.now_ms += 2000
    run_due(bench.state, now_ms=bench.now_ms)
    assert notes.names == ["became ready", "given back"]


def test_a_message_is_noted_before_anything_can_push_it_out() -> None:
    """A is full and sends what it refuses to B, which has room for one and got it from this very publish."""
    bench = Bench()
    small = QueueSettings(max_depth=1, overflow=Overflow.DROP_OLDEST, dead_letter=DeadLetterMode.DROP)
    for is_rabbit in (True, False):
        settings = QueueSettings(max_depth=1, overflow=small.overflow, limit_ready_only=is_rabbit)
        b = bench.declare(f"b {is_rabbit}", settings)
        a = bench.declare(
            f"a {is_rabbit}",
            QueueSettings(max_depth=1, overflow=Overflow.DEAD_LETTER_NEWEST, dead_letter_queue=b.name),
        )
        bench.publish(b"fills it", queue=a)
        notes = bench.state.journal = Notes()
        publish_to_queues(bench.state, [b, a], Publication(b"new"), now_ms=bench.now_ms)
        bench.keep_limits()
        assert notes.names.index(f"enqueued {b.name}") < notes.names.index(f"removed {b.name}")
        assert bench.counts(b)[0] == 1
        invariants.check(bench.state)


def test_a_limit_that_was_lowered_is_reached_in_steps() -> None:
    bench = Bench(QueueSettings(limit_ready_only=True, max_depth=100_000, overflow=Overflow.DROP_OLDEST))
    bench.publish_all([Publication(b"x")] * 2000)
    bench.alter(DROPS)
    assert list(bench.state.over_limit) == [bench.queue], "also without another publish"
    publish(bench.state, bench.queue, [Publication(b"last")], now_ms=bench.now_ms)
    keep_limits(bench.state, serve=no_one, now_ms=bench.now_ms)
    left = bench.queue.depth
    assert 2001 - (TRIMMED_AT_ONCE + 2 * 2) <= left < 2001
    assert bench.state.over_limit, "the rest has to be dropped too"
    bench.keep_limits()
    assert bench.queue.depth == 2


@pytest.mark.parametrize("limit_ready_only", [True, False])
def test_dropping_keeps_pace_with_publishing(limit_ready_only: bool) -> None:
    bench = Bench(QueueSettings(limit_ready_only=limit_ready_only, max_depth=10, overflow=Overflow.DROP_OLDEST))
    for _ in range(5):
        publications = [Publication(b"x")] * (4 * TRIMMED_AT_ONCE)
        publish(bench.state, bench.queue, publications, now_ms=bench.now_ms)
        keep_limits(bench.state, serve=no_one, now_ms=bench.now_ms)
    assert bench.queue.depth == 10


def test_one_large_body_for_many_small_ones_pushes_them_out_in_steps() -> None:
    bench = Bench(QueueSettings(max_bytes=1000, overflow=Overflow.DROP_OLDEST))
    bench.publish_all([Publication(b"x")] * 1000)
    bench.publish(b"x" * 900)
    assert bench.queue.body_bytes <= 1000
    assert bench.queue.depth == 101
    invariants.check(bench.state)


def test_a_chain_of_full_dead_letter_queues_of_any_length() -> None:
    """Each sends its oldest on to the next one: as a recursion this would end at the interpreter's limit."""
    length = 3000
    bench = Bench()
    for number in range(length):
        settings = QueueSettings(
            limit_ready_only=True,
            max_depth=1,
            overflow=Overflow.DEAD_LETTER_OLDEST,
            dead_letter_queue=f"link {number + 1}",
        )
        bench.publish(b"%d" % number, queue=bench.declare(f"link {number}", settings))
    bench.declare(f"link {length}")
    publish(bench.state, bench.find("link 0"), [Publication(b"new")], now_ms=bench.now_ms)
    keep_limits(bench.state, serve=no_one, now_ms=bench.now_ms)
    assert bench.find(f"link {length}").depth == 0, "one step goes only so far"
    bench.keep_limits()
    assert bench.find(f"link {length}").depth == 1
    assert all(bench.find(f"link {number}").depth == 1 for number in range(length))


def test_blocks_may_be_sealed_between_any_two_messages_that_are_dropped() -> None:
    bench = Bench(DROPS)
    notes = bench.state.journal = Notes()
    bench.publish_all([Publication(b"x")] * 50)
    assert notes.between_count >= notes.names.count("removed orders") == 48


def test_an_ordered_queue_keeps_its_limit_while_its_group_waits() -> None:
    settings = QueueSettings(ordered=True, limit_ready_only=True, max_depth=3, overflow=Overflow.DROP_OLDEST)
    bench = Bench(settings)
    bench.publish(b"first", group="g")
    delivery = bench.receive_one()
    for number in range(20):
        bench.publish(b"%d" % number, group="g")
    assert bench.counts() == (3, 0, 1, 0)
    bench.acknowledge(delivery)
    invariants.check(bench.state)
    received = []
    while deliveries := bench.receive():
        received += [delivery.body for delivery in deliveries]
        bench.acknowledge(deliveries[0])
    assert received == [b"17", b"18", b"19"]


@pytest.mark.parametrize("held", [True, False])
def test_nothing_is_dropped_where_that_makes_no_room(held: bool) -> None:
    bench = Bench(QueueSettings(max_bytes=1000, overflow=Overflow.DROP_OLDEST))
    bench.publish(b"x" * 600, delay_ms=None if held else 60_000)
    if held:
        bench.receive_one()
    bench.publish_all([Publication(b"x")] * 300)
    with pytest.raises(QueueFull):
        bench.publish(b"x" * 500)
    assert len(bench.queue.ready) == 300


def test_bodies_of_the_dead_do_not_count() -> None:
    bench = Bench(QueueSettings(max_bytes=1000, dead_letter=DeadLetterMode.PARK))
    bench.publish(b"x" * 900)
    bench.reject(bench.receive_one())
    assert bench.counts() == (0, 0, 0, 1)
    bench.publish(b"x" * 900)
    assert bench.counts() == (1, 0, 0, 1)
    invariants.check(bench.state)


def test_a_fan_out_to_a_queue_that_makes_room_slowly_is_let_in() -> None:
    bench = Bench(QueueSettings(max_bytes=1000, overflow=Overflow.DROP_OLDEST))
    other = bench.declare("other")
    bench.fanout("fan", bench.queue, other)
    for publish_large in (
        lambda: bench.publish_to("fan", b"x" * 900),
        lambda: publish_to_queues(bench.state, [bench.queue, other], Publication(b"x" * 900), now_ms=bench.now_ms),
    ):
        bench.publish_all([Publication(b"x")] * 1000)
        publish_large()
        bench.keep_limits()
        assert b"x" * 900 in bench.peek()
        assert bench.queue.body_bytes <= 1000
        bench.purge()
