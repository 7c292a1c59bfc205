"""Ordered queues whose groups take turns: one that becomes ready again goes behind the others."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from smista.core.settings import Backoff, Overflow, QueueSettings
from smista.errors import InvalidSettings
from tests.core import invariants
from tests.core.bench import LEASE_MS, Bench, Delivery

TURNS = QueueSettings(ordered=True, group_turns=True, max_retries=None, retry_backoff=Backoff.NONE)


@pytest.fixture
def bench() -> Bench:
    bench = Bench(TURNS)
    for message in ("a1", "a2", "b1", "b2", "c1"):
        bench.publish(message.encode(), group=message[0])
    return bench


def served(bench: Bench, count: int) -> list[bytes]:
    """What is received one by one and acknowledged."""
    found = []
    for _ in range(count):
        delivery = bench.receive_one()
        found.append(delivery.body)
        bench.acknowledge(delivery)
        invariants.check(bench.state)
    return found


def test_a_group_goes_behind_the_others_when_its_next_becomes_ready(bench: Bench) -> None:
    assert served(bench, 5) == [b"a1", b"b1", b"c1", b"a2", b"b2"]


def test_without_turns_the_oldest_goes_first() -> None:
    bench = Bench(QueueSettings(ordered=True))
    for message in ("a1", "a2", "b1"):
        bench.publish(message.encode(), group=message[0])
    assert served(bench, 3) == [b"a1", b"a2", b"b1"]


@pytest.mark.parametrize("how", ["nack", "release", "lease"])
def test_a_group_that_was_given_back_goes_behind_the_others(bench: Bench, how: str) -> None:
    first = bench.receive_one()
    if how == "nack":
        bench.nack(first)
    elif how == "release":
        bench.release(first)
    else:
        bench.pass_time(ms=LEASE_MS)
    invariants.check(bench.state)
    assert served(bench, 5) == [b"b1", b"c1", b"a1", b"b2", b"a2"]


def test_a_group_that_was_not_there_comes_last(bench: Bench) -> None:
    served(bench, 1)
    bench.publish(b"d1", group="d")
    assert served(bench, 5) == [b"b1", b"c1", b"a2", b"d1", b"b2"]


def test_what_drops_the_oldest_drops_the_oldest() -> None:
    bench = Bench(QueueSettings(ordered=True, group_turns=True, max_depth=3, overflow=Overflow.DROP_OLDEST))
    for message in ("a1", "b1", "c1"):
        bench.publish(message.encode(), group=message[0])
    bench.release(bench.receive_one())
    bench.publish(b"d1", group="d")
    bench.keep_limits()
    assert served(bench, 3) == [b"b1", b"c1", b"d1"]


def test_turns_need_order() -> None:
    with pytest.raises(InvalidSettings, match="group_turns"):
        Bench(QueueSettings(group_turns=True))


def test_turns_begin_when_they_are_altered_in() -> None:
    bench = Bench(QueueSettings(ordered=True, max_retries=None))
    for message in ("a1", "a2", "b1"):
        bench.publish(message.encode(), group=message[0])
    bench.alter(TURNS)
    assert served(bench, 3) == [b"a1", b"b1", b"a2"]


def test_whatever_happens_the_line_is_what_the_tables_say() -> None:
    draw = random.Random(5)
    bench = Bench(TURNS)
    held: list[Delivery] = []
    kinds: Counter[str] = Counter()
    for step in range(3000):
        match draw.choice(("publish", "publish", "receive", "acknowledge", "release", "nack", "time", "purge")):
            case "publish":
                bench.publish(b"%d" % step, group=draw.choice("abcdefgh"), priority=draw.choice((0, 0, 3)))
            case "receive":
                held += bench.receive(draw.choice((1, 3)))
            case "acknowledge" | "release" | "nack" as how if held:
                delivery = held.pop(draw.randrange(len(held)))
                kinds[how] += 1
                if how == "acknowledge":
                    bench.acknowledge(delivery)
                elif how == "release":
                    bench.release(delivery)
                else:
                    bench.nack(delivery)
            case "purge" if draw.random() < 0.02:
                bench.purge(ready_only=True)
            case "time" if draw.random() < 0.05:
                bench.pass_time(ms=LEASE_MS)
                held.clear()
        invariants.check(bench.state)
    assert len(kinds) == 3
