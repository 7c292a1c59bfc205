"""A publish changes nothing before its record is noted, and nothing else runs from the note until it is applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from smista.core import fan_out, publishing
from smista.core.journal import Journal
from smista.core.message import Envelope, Message, Publication, State
from smista.core.publishing import Batch
from smista.core.queue import Queue
from smista.core.settings import DeadLetterMode, Overflow, QueueSettings
from smista.core.state import BrokerState
from tests import snapshot
from tests.alike import alike
from tests.core.bench import START_MS, Bench

_QUIET = ("has_body", "dying", "between", "forgotten", "queue_declared", "exchange_declared", "bound")
BODIES = [b"a", b"b", b"c"]
PLAIN = [Publication(body) for body in BODIES]
Publish = Callable[[Bench], object]


class Watching(Journal):
    """What enters is nowhere when it is noted; and what was noted last has entered when the next thing is noted."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._noted: list[tuple[Queue, Message]] = []
        self.count = 0

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(Journal, name) and name not in _QUIET:
            self._check_applied()
        return super().__getattribute__(name)

    def _check_applied(self) -> None:
        for queue, message in self._noted:
            has_entered = queue.find(message.sequence) is message or message.state is State.GONE
            assert has_entered, "something else was noted before this was applied"
        self._noted = []

    def _check_unknown(self, placed: Iterable[tuple[Queue, Message]]) -> None:
        for queue, message in placed:
            assert queue.find(message.sequence) is None, "it has entered before it was noted"
            assert message.sequence >= self._state.next_sequence
            self._noted.append((queue, message))
            self.count += 1

    def enqueued(self, queue: Queue, messages: Sequence[Message], at_ms: int, *, are_alike: bool = False) -> None:
        self._check_unknown((queue, message) for message in messages)

    def fanned_out(self, placed: Sequence[tuple[Queue, Message]], at_ms: int) -> None:
        self._check_unknown(placed)


class Full(Journal):
    """Cannot take any message."""

    def enqueued(self, queue: Queue, messages: Sequence[Message], at_ms: int, *, are_alike: bool = False) -> None:
        raise MemoryError

    def fanned_out(self, placed: Sequence[tuple[Queue, Message]], at_ms: int) -> None:
        raise MemoryError


def publish(*publications: Publication, batch: Batch | None = None) -> Publish:
    return lambda bench: publishing.publish(bench.state, bench.queue, publications, batch=batch, now_ms=START_MS)


def publish_alike(bench: Bench) -> object:
    return publishing.publish_alike(bench.state, bench.queue, alike(BODIES, PLAIN[0]), now_ms=START_MS)


def publish_promised(bench: Bench) -> object:
    return publishing.publish_promised(bench.state, bench.queue, NAMED, now_ms=START_MS)


def publish_to_several(bench: Bench) -> object:
    queues = list(bench.state.queues.values())
    return fan_out.publish_to_queues(bench.state, queues, NAMED[0], now_ms=START_MS)


def publish_promised_to_several(bench: Bench) -> None:
    queues = list(bench.state.queues.values())
    fan_out.publish_promised_to_several(bench.state, queues, NAMED[0], now_ms=START_MS)


NAMED = [Publication(body, Envelope(deduplication_id=body.decode())) for body in BODIES]
WAYS: dict[str, Publish] = {
    "plain": publish(*PLAIN),
    "alike": publish_alike,
    "whole batch": publish(*PLAIN, batch=Batch("one")),
    "part of a batch": publish(*PLAIN, batch=Batch("one", is_whole=False)),
    "with ids": publish(*NAMED),
    "the same id twice": publish(NAMED[0], NAMED[1], NAMED[0], NAMED[2]),
    "with times": publish(
        *[Publication(body, Envelope(ttl_ms=0), delay_ms=delay) for body, delay in zip(BODIES, (0, 5, 0), strict=True)]
    ),
    "promised": publish_promised,
    "to several": publish_to_several,
    "promised to several": publish_promised_to_several,
}
QUEUES: dict[str, QueueSettings] = {
    "plain": QueueSettings(),
    "ordered": QueueSettings(ordered=True),
    "by body": QueueSettings(dedup_by_body=True),
    **{overflow.value: QueueSettings(max_depth=2, overflow=overflow) for overflow in Overflow},
    **{
        f"{overflow.value}, dropped": QueueSettings(max_depth=2, overflow=overflow, dead_letter=DeadLetterMode.DROP)
        for overflow in Overflow
    },
    "ready only": QueueSettings(max_depth=2, overflow=Overflow.DROP_OLDEST, limit_ready_only=True),
}


def bench_with(settings: QueueSettings) -> Bench:
    """A queue of these settings with a message in it, and another like it."""
    bench = Bench(settings)
    bench.declare("another", settings)
    bench.publish(b"before")
    return bench


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("way", WAYS)
def test_what_enters_is_noted_first_and_applied_before_anything_else_is_noted(way: str, queue: str) -> None:
    bench = bench_with(QUEUES[queue])
    watching = bench.state.journal = Watching(bench.state)
    WAYS[way](bench)
    watching._check_applied()
    assert watching.count


@pytest.mark.parametrize("queue", ["plain", "ordered", "by body"])
@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_noted_has_changed_nothing(way: str, queue: str) -> None:
    bench = bench_with(QUEUES[queue])
    bench.state.journal = Full()
    before = snapshot.take(bench.state, START_MS), bench.state.next_sequence
    with pytest.raises(MemoryError):
        WAYS[way](bench)
    assert not snapshot.difference(before[0], snapshot.take(bench.state, START_MS))
    assert bench.state.next_sequence == before[1]
