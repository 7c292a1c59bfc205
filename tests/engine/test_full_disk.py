"""A disk that was full of messages takes new ones when they have been consumed, by itself and however it got there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from smista.engine import BrokerSettings
from smista.engine.pressure import Pressure
from smista.errors import LowDisk
from smista.log import Log
from tests.engine.bench import Bench, KeptLog, until

FREE_MIN = 1_000_000
BODY = b"x" * 10_000


class SmallLog(KeptLog):
    """On a disk of a few megabytes."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity_bytes = 4 * FREE_MIN
        self.is_spent = False

    def free_bytes(self) -> int | None:
        return self.capacity_bytes - self.size_bytes()

    @property
    def is_reserve_spent(self) -> bool:
        return self.is_spent

    @property
    def is_roomy(self) -> bool:
        return self.capacity_bytes - self.size_bytes() >= FREE_MIN


class SmallPlace:
    def __init__(self) -> None:
        self.log = SmallLog()

    def open(self) -> Log:
        return self.log


Small = tuple[Bench, SmallLog]


@pytest.fixture
async def small() -> AsyncIterator[Small]:
    """A broker that would keep everything for readers of its log, and does not have the space."""
    place = SmallPlace()
    settings = BrokerSettings(
        disk_free_bytes_min=FREE_MIN, log_retention_bytes=1 << 40, log_slack_bytes=100_000, watch_interval_s=0.01
    )
    bench = Bench(place, settings)
    await bench.open()
    await bench.declare()
    yield bench, place.log
    await bench.broker.close()


async def fill(bench: Bench, log: SmallLog) -> int:
    """Publish until the disk is low; how many messages that took."""
    count = 0
    while log.is_roomy:
        # What is being written may not fit for a moment, as it is counted twice.
        await until(lambda: bench.broker.intake.refusal is None)
        await bench.publish(BODY)
        count += 1
    await until(lambda: bench.broker.intake.refusal is not None)
    with pytest.raises(LowDisk):
        await bench.publish(b"refused")
    return count


async def taken_again(bench: Bench) -> None:
    await until(lambda: bench.broker.intake.refusal is None)
    await bench.publish(b"taken")


async def test_after_a_full_disk_was_emptied_publishes_are_taken_again(small: Small) -> None:
    bench, log = small
    for _ in range(3):
        await fill(bench, log)
        while deliveries := await bench.broker.receiving.receive("orders", 100):
            await bench.acknowledge(*deliveries)
        await taken_again(bench)
    assert bench.broker.failure is None


async def test_consuming_a_part_makes_room_for_as_much(small: Small) -> None:
    bench, log = small
    count = await fill(bench, log)
    await bench.acknowledge(*await bench.broker.receiving.receive("orders", count // 3))
    await taken_again(bench)
    await bench.restart()
    assert bench.counts()[0] == count - count // 3 + 1


async def test_a_disk_that_others_fill_makes_the_log_smaller_though_nothing_is_written(small: Small) -> None:
    bench, log = small
    for _ in range(100):
        await bench.publish(BODY)
        await bench.acknowledge(await bench.receive_one())
    await bench.broker.durable()
    assert log.first_position == 1, "kept for readers"
    written, log.capacity_bytes = log.next_position, FREE_MIN + 500_000
    await until(lambda: log.first_position > 1)
    await taken_again(bench)
    assert log.next_position < written + 20


async def test_what_readers_may_want_goes_before_any_publish_is_refused(small: Small) -> None:
    bench, log = small
    for _ in range(1_000):
        await bench.publish(BODY)
        await bench.acknowledge(await bench.receive_one())
        # Space is wanted from a quarter above the limit on: whoever waits there for the broker is never refused.
        await until(lambda: (log.free_bytes() or 0) >= FREE_MIN + FREE_MIN // 4)
    assert log.first_position > 1


SELDOM_S = 3600.0


async def test_what_is_taken_in_before_the_next_look_fits_on_the_disk(small: Small) -> None:
    """Publishers that are faster than the log, and a broker that looks at the disk once an hour."""
    bench, log = small
    await bench.restart(BrokerSettings(disk_free_bytes_min=FREE_MIN, watch_interval_s=SELDOM_S))
    taken_bytes = log.size_bytes()
    async with asyncio.TaskGroup() as publishing:
        log.gate.clear()
        try:
            while bench.broker.intake.refusal is None and taken_bytes <= log.capacity_bytes:
                publishing.create_task(bench.publish(*[BODY] * 10))
                taken_bytes += 10 * len(BODY)
                await asyncio.sleep(0)
        finally:
            log.gate.set()
    assert taken_bytes <= log.capacity_bytes
    assert 2 * taken_bytes >= log.capacity_bytes - FREE_MIN, "nor is it refused too early"


async def test_no_publish_is_taken_once_the_reserve_is_spent(small: Small) -> None:
    bench, log = small
    await bench.restart(BrokerSettings(disk_free_bytes_min=0, watch_interval_s=SELDOM_S))
    await bench.publish(b"fits")
    log.is_spent = True
    await bench.publish(b"took the reserve")
    with pytest.raises(LowDisk):
        await bench.publish(b"refused")
    await bench.acknowledge(await bench.receive_one())


async def test_blocks_that_have_become_old_go_though_nothing_is_written(small: Small) -> None:
    bench, log = small
    await bench.restart(
        BrokerSettings(disk_free_bytes_min=0, log_slack_bytes=0, log_retention_ms=60_000, watch_interval_s=0.01)
    )
    for _ in range(10):
        await bench.publish(BODY)
        await bench.acknowledge(await bench.receive_one())
    assert log.first_position == 1
    bench.pass_time(60_000)
    await until(lambda: log.first_position > 1)


@pytest.mark.parametrize(("free", "reusable", "is_wanted", "is_refused"), [
    (None, 0, False, False),
    (1250, 0, False, False),
    (1249, 0, True, False),
    (249, 1000, True, False),
    (999, 0, True, True),
    (0, 999, True, True),
    (0, 1250, False, False),
])  # fmt: skip
def test_room_is_what_the_disk_and_the_log_have_to_spare(
    free: int | None, reusable: int, is_wanted: bool, is_refused: bool
) -> None:
    pressure = Pressure(disk_free_bytes_min=1000, memory_bytes_max=1)
    pressure.update(free_bytes=free, reusable_bytes=reusable, waiting_bytes=0, is_full=False, is_reserve_spent=False)
    assert (pressure.is_space_wanted, pressure.refusal is not None) == (is_wanted, is_refused)


@pytest.mark.parametrize(("waiting", "is_refused"), [(125, False), (126, True), (10_000, True)])
def test_what_is_still_to_be_written_has_its_room_twice(waiting: int, is_refused: bool) -> None:
    pressure = Pressure(disk_free_bytes_min=0, memory_bytes_max=1 << 40)
    pressure.update(free_bytes=200, reusable_bytes=50, waiting_bytes=waiting, is_full=False, is_reserve_spent=False)
    assert (pressure.refusal is not None) == is_refused


@pytest.mark.parametrize("is_full", [True, False])
def test_a_full_disk_wants_space_whatever_is_free(is_full: bool) -> None:
    pressure = Pressure(disk_free_bytes_min=0, memory_bytes_max=1)
    pressure.update(
        free_bytes=1 << 40, reusable_bytes=0, waiting_bytes=0, is_full=is_full, is_reserve_spent=not is_full
    )
    assert pressure.is_space_wanted
    assert isinstance(pressure.refusal, LowDisk)


ON_A_SMALL_DISK = """
import asyncio, sys
from smista.core.message import Publication
from smista.engine import Broker, BrokerSettings
from smista.errors import LowDisk
from smista.log import SqliteLog

async def main():
    settings = BrokerSettings(disk_free_bytes_min=int(sys.argv[2]), watch_interval_s=0.05)
    async with await Broker.open(SqliteLog.open(sys.argv[1] + "/data"), settings) as broker:
        await broker.declaring.declare_queue("orders")
        for _ in range(2):
            count = 0
            while broker.intake.refusal is None:
                await broker.publishing.publish("orders", [Publication(b"x" * 30_000)] * 50)
                count += 50
            while deliveries := await broker.receiving.receive("orders", 500):
                await broker.settling.acknowledge([delivery.receipt for delivery in deliveries])
                count -= len(deliveries)
            assert count == 0, count
            async with asyncio.timeout(300):
                while broker.intake.refusal is not None:
                    await asyncio.sleep(0.05)
            await broker.publishing.publish("orders", [Publication(b"taken again")])
            [delivery] = await broker.receiving.receive("orders")
            await broker.settling.acknowledge([delivery.receipt])
        assert broker.failure is None
    print("done")

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("size_mib", "free_min_mib"), [(80, 0), (330, 128), (170, 128)])
def test_a_really_full_disk_takes_messages_again_when_it_was_emptied(
    tmp_path: Path, size_mib: int, free_min_mib: int
) -> None:
    """In a mount namespace of its own, so nothing stays mounted."""
    mount = f"mount -t tmpfs -o size={size_mib}m none {tmp_path}"
    unshare = ["unshare", "--mount", "sh", "-e", "-c"]
    if subprocess.run([*unshare, mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount tmpfs here")
    run = f'{mount}; "{sys.executable}" -X dev -c "$0" {tmp_path} {free_min_mib << 20}'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [*unshare, run, ON_A_SMALL_DISK], env=environment, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stdout + result.stderr
