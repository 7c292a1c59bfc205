"""Reads of the log that fail, for a moment or for good, while its front is reclaimed or a body is wanted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from smista.core.browsing import Wanted
from smista.core.message import State
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.engine import BrokerSettings, KeptFor, keeper, recovery
from smista.log import Log
from smista.log.errors import LogDamaged, LogUnreadable
from tests.engine.bench import Bench, KeptLog, turns, until

SETTINGS = BrokerSettings(
    disk_free_bytes_min=0,
    resident_bytes_max=1,
    block_bytes_max=4000,
    log_retention_ms=0,
    log_retention_bytes=0,
    log_slack_bytes=0,
)
COUNT = 100


class FlakyLog(KeptLog):
    def __init__(self) -> None:
        super().__init__()
        self.failures: list[type[LogDamaged]] = []
        """What the next reads come to."""
        self.lasting: type[LogDamaged] | None = None
        self.failed_count = 0

    def read(self, position: int) -> bytes:
        failure = self.failures.pop(0) if self.failures else self.lasting
        if failure is not None:
            self.failed_count += 1
            raise failure("memory", position=position, what="it cannot be read (on purpose)")
        return super().read(position)


class FlakyPlace:
    def __init__(self) -> None:
        self.log = FlakyLog()

    def open(self) -> Log:
        return self.log


Flaky = tuple[Bench, FlakyLog]


@pytest.fixture
async def flaky(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Flaky]:
    """A broker over a log with a hundred messages in its front that are nowhere else."""
    monkeypatch.setattr(keeper, "READ_AGAIN_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(keeper, "RECLAIM_AGAIN_S", 0.001)
    place = FlakyPlace()
    bench = Bench(place, SETTINGS)
    await bench.open()
    await bench.declare()
    await bench.declare("other")
    for number in range(COUNT):
        await bench.publish(b"%d:" % number * 10)
    yield bench, place.log
    place.log.lasting = None
    await bench.broker.close()


async def use_log(bench: Bench) -> None:
    """So that there is something to reclaim."""
    for _ in range(20):
        await bench.publish(b"x" * 3000, queue="other")
        await bench.acknowledge(await bench.receive_one("other"))
        await turns()


async def tried_again(log: FlakyLog) -> None:
    """Until a block that cannot be read has been given up for now, and tried once more."""
    count = log.failed_count + 2 * (len(recovery.READ_AGAIN_S) + 1)
    await until(lambda: log.failed_count > count)


async def everything(bench: Bench) -> list[bytes]:
    received: list[bytes] = []
    while deliveries := await bench.broker.receiving.receive("orders", 10):
        received += [delivery.body for delivery in deliveries]
        await bench.acknowledge(*deliveries)
    return received


ALL = [b"%d:" % number * 10 for number in range(COUNT)]


@pytest.mark.parametrize("failure", [LogUnreadable, LogDamaged])
async def test_a_moment_of_trouble_while_reclaiming_costs_nothing(flaky: Flaky, failure: type[LogDamaged]) -> None:
    bench, log = flaky
    front = log.first_position
    log.failures = [failure, failure]
    await use_log(bench)
    await until(lambda: not log.failures)
    await until(lambda: log.first_position > front)
    await bench.restart()
    assert bench.counts() == (COUNT, 0, 0, 0)
    assert await everything(bench) == ALL


async def test_a_block_that_cannot_be_read_is_kept_until_it_can(flaky: Flaky) -> None:
    bench, log = flaky
    front = log.first_position
    log.lasting = LogUnreadable
    await use_log(bench)
    await until(lambda: log.failed_count > 20)
    assert log.first_position == front
    assert bench.broker.log.space().kept_for is KeptFor.DAMAGE
    assert bench.broker.failure is None
    log.lasting = None
    await until(lambda: log.first_position > front)
    await bench.restart()
    assert await everything(bench) == ALL


async def test_a_damaged_block_is_kept_until_its_messages_are_removed(flaky: Flaky) -> None:
    bench, log = flaky
    log.lasting = LogDamaged
    await use_log(bench)
    await until(lambda: bench.counts()[3] > 0)
    await tried_again(log)
    stuck, dead = log.first_position, bench.counts()[3]
    await use_log(bench)
    await tried_again(log)
    assert log.first_position == stuck, "bodies would be lost with it"
    assert bench.broker.log.space().kept_for is KeptFor.DAMAGE
    assert bench.broker.failure is None
    assert await bench.broker.redriving.discard("orders", Wanted(state=State.DEAD)) == dead
    await use_log(bench)
    await until(lambda: log.first_position > stuck)


async def test_a_moment_of_trouble_while_a_body_is_read_back_costs_nothing(flaky: Flaky) -> None:
    bench, log = flaky
    await bench.restart()
    log.failures = [LogUnreadable, LogDamaged, LogUnreadable]
    assert await everything(bench) == ALL


async def test_a_moment_of_trouble_while_a_body_is_needed_at_once_costs_nothing(flaky: Flaky) -> None:
    """A dead letter that goes to two queues is written again on the spot."""
    bench, log = flaky
    for target in ("d1", "d2"):
        await bench.declare(target)
    await bench.fanout("fan", "d1", "d2")
    settings = QueueSettings(dead_letter=DeadLetterMode.MOVE, dead_letter_exchange="fan", max_retries=0)
    await bench.broker.declaring.alter_queue("orders", settings)
    deliveries = await bench.broker.receiving.receive("orders", 100)
    bench.broker._keeper._paging._blocks.clear()
    log.failures = [LogUnreadable] * len(recovery.READ_AGAIN_S)
    await bench.reject(*deliveries)
    assert log.failures == []
    assert (bench.counts()[3], bench.counts("d1")[0], bench.counts("d2")[0]) == (0, 100, 100)


async def test_what_was_set_aside_for_a_disk_that_did_not_read_comes_back_by_a_redrive(flaky: Flaky) -> None:
    bench, log = flaky
    await bench.restart()
    log.lasting = LogUnreadable
    assert await bench.broker.receiving.receive("orders", 10) == []
    dead = bench.counts()[3]
    assert dead >= 10
    await use_log(bench)
    log.lasting = None
    assert await bench.broker.redriving.redrive("orders") == dead
    assert sorted(await everything(bench)) == sorted(ALL)


@pytest.mark.parametrize("targets", [("d1", "d2"), ("fleeting",)])
async def test_a_message_whose_body_is_lost_is_not_moved_halfway(flaky: Flaky, targets: tuple[str, ...]) -> None:
    """A move to where its body has to be written again: the body is asked for before the move begins."""
    bench, log = flaky
    for target in targets:
        await bench.declare(target, QueueSettings(durable=target != "fleeting"))
    await bench.fanout("fan", *targets)
    settings = QueueSettings(dead_letter=DeadLetterMode.MOVE, dead_letter_exchange="fan", max_retries=0)
    await bench.broker.declaring.alter_queue("orders", settings)
    for number in range(COUNT):
        await bench.publish(b"%d:" % number * 10)
    deliveries = await bench.broker.receiving.receive("orders", 2 * COUNT)
    assert len(deliveries) == 2 * COUNT
    bench.broker._keeper._paging._blocks.clear()
    log.lasting = LogDamaged
    await bench.reject(*deliveries)
    moved, dead = bench.counts(targets[0])[0], bench.counts()[3]
    assert moved + dead == 2 * COUNT
    assert dead > 0
    assert [bench.counts(target)[0] for target in targets] == [moved] * len(targets)
    assert bench.broker.failure is None
    log.lasting = None
    await bench.restart()
    assert bench.counts()[3] == dead
