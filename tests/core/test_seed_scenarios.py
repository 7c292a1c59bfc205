"""The eight test scenarios at the end of seed 003, and the retry limits of all three systems, as far as the core goes.

Prefetch, waiting and pushing belong to the engine; here the core's part of them is shown.
"""

from __future__ import annotations

import pytest

from smista.core.message import Reason
from smista.core.settings import QueueSettings
from smista.core.waiting import WaitingLine
from smista.errors import QueueFull
from tests.core import invariants
from tests.core.bench import LEASE_MS, Bench, Delivery

SYNAP = QueueSettings(max_priority=9, default_priority=5, max_depth=100_000)


@pytest.fixture
def tasks() -> Bench:
    return Bench(SYNAP, name="tasks")


def test_1_basic_fifo_ordering(tasks: Bench) -> None:
    tasks.publish_many(100)
    assert tasks.receive_bodies() == [b"%d" % number for number in range(100)]


def test_2_priority_ordering(tasks: Bench) -> None:
    for number, priority in enumerate((5, 9, 0, 9, None, 1)):
        tasks.publish(b"%d" % number, priority=priority)
    assert tasks.receive_bodies() == [b"1", b"3", b"0", b"4", b"5", b"2"]


class Consumer:
    priority = 0

    def __init__(self, bench: Bench, prefetch: int) -> None:
        self.bench = bench
        self.prefetch = prefetch
        self.held: list[Delivery] = []
        self.seen: list[int] = []

    @property
    def credit(self) -> int:
        return self.prefetch - len(self.held)

    def take(self, limit: int = 1) -> bool:
        deliveries = self.bench.receive(min(limit, self.credit))
        self.held += deliveries
        self.seen += [delivery.id for delivery in deliveries]
        return bool(deliveries)

    def finish_one(self) -> None:
        self.bench.acknowledge(self.held.pop(0))


def test_3_multiple_consumers_share_the_load(tasks: Bench) -> None:
    ids = tasks.publish_many(99)
    consumers = [Consumer(tasks, prefetch=1) for _ in range(3)]
    waiting: WaitingLine[Consumer] = WaitingLine()
    for consumer in consumers:
        waiting.join(consumer)
    while (first := waiting.first()) is not None and first.take():
        first.finish_one()
        waiting.to_the_back(first)
    assert [len(consumer.seen) for consumer in consumers] == [33, 33, 33]
    assert sorted(number for consumer in consumers for number in consumer.seen) == ids


def test_4_ack_timeout_and_retry(tasks: Bench) -> None:
    number = tasks.publish().number
    for delivery_count in (1, 2, 3, 4):
        delivery = tasks.receive_one()
        assert (delivery.id, delivery.delivery_count) == (number, delivery_count)
        tasks.pass_time(ms=LEASE_MS)
    assert tasks.receive() == []
    assert tasks.stats().timed_out_total == 4


def test_5_dead_letter_queue(tasks: Bench) -> None:
    tasks.publish(b"retries")
    for _ in range(4):
        tasks.nack(tasks.receive_one(), delay_ms=0)
    tasks.publish(b"rejected")
    tasks.reject(tasks.receive_one())
    tasks.publish(b"expired", ttl_ms=2000)
    tasks.pass_time(ms=2000)
    letters = tasks.dead_letters("tasks_dlq")
    assert [(letter.body, letter.deaths[-1].reason, letter.deaths[-1].queue) for letter in letters] == [
        (b"retries", Reason.MAX_RETRIES, "tasks"),
        (b"rejected", Reason.REJECTED, "tasks"),
        (b"expired", Reason.EXPIRED, "tasks"),
    ]
    tasks.redrive(letters[:1], out_of=tasks.find("tasks_dlq"))
    assert tasks.receive_bodies() == [b"retries"]
    assert tasks.purge(tasks.find("tasks_dlq")) == 2


def test_6_prefetch_limits(tasks: Bench) -> None:
    tasks.publish_many(30)
    consumer = Consumer(tasks, prefetch=10)
    consumer.take(100)
    assert len(consumer.held) == 10
    assert not consumer.take(100)
    consumer.finish_one()
    consumer.take(100)
    assert len(consumer.held) == 10
    assert len(consumer.seen) == 11


def test_7_concurrent_publish_and_consume(tasks: Bench) -> None:
    """Each command is one atomic step, so any interleaving is a sequence: every one is handed out exactly once."""
    consumers = [Consumer(tasks, prefetch=3) for _ in range(4)]
    published = []
    for step in range(2000):
        if step % 2 == 0:
            published.append(tasks.publish().number)
        consumer = consumers[step % 4]
        consumer.take()
        if step % 3 == 0 and consumer.held:
            consumer.finish_one()
        if step % 500 == 0:
            invariants.check(tasks.state)
    for consumer in consumers:
        while consumer.held:
            consumer.finish_one()
            consumer.take(3)
    seen = [number for consumer in consumers for number in consumer.seen]
    assert sorted(seen) == published
    assert tasks.depth == 0


def test_8_queue_full_behavior() -> None:
    bench = Bench(QueueSettings(max_depth=3), name="tasks")
    bench.publish_many(3)
    with pytest.raises(QueueFull) as full:
        bench.publish()
    assert (full.value.code, bench.depth) == ("queue_full", 3)
    bench.acknowledge(bench.receive_one())
    bench.publish()


@pytest.mark.parametrize("by_timeout", [False, True], ids=["nack", "timeout"])
@pytest.mark.parametrize(
    ("system", "max_retries", "deliveries"),
    [("Synap: max_retries 3", 3, 4), ("Nexo: 5 failures", 4, 5), ("seed 004: delivery_count >= 3", 2, 3)],
)
def test_the_retry_limits_of_the_three_systems(
    system: str, max_retries: int, deliveries: int, by_timeout: bool
) -> None:
    bench = Bench(QueueSettings(max_retries=max_retries))
    bench.publish()
    for delivery_count in range(1, deliveries + 1):
        assert bench.dead_letters() == [], system
        delivery = bench.receive_one()
        assert delivery.delivery_count == delivery_count
        if by_timeout:
            bench.pass_time(ms=LEASE_MS)
        else:
            assert bench.nack(delivery, delay_ms=0) == (delivery_count < deliveries)
    [letter] = bench.dead_letters()
    assert letter.deaths[-1].delivery_count == deliveries
    assert bench.depth == 0
