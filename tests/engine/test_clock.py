"""Time passes in the broker as it really does, whatever anybody sets the machine's clock to."""

from __future__ import annotations

import pytest

from smista.core.message import Envelope
from smista.core.settings import QueueSettings
from smista.engine.clock import Clock
from smista.records.opened import Anchor
from tests.engine.bench import Bench, MemoryPlace, until

YEAR_MS = 365 * 24 * 3_600_000
JUMPS_MS = [1000, -1000, 3_600_000, -3_600_000, 10 * YEAR_MS, -10 * YEAR_MS]


class Machine:
    """A machine whose wall clock can be set and which can be booted again."""

    def __init__(self) -> None:
        self.wall_ms = 50 * YEAR_MS
        self.since_boot_ms = 1_000_000
        self.boot = "first"

    def clock(self) -> Clock:
        return Clock(wall_ms=lambda: self.wall_ms, since_boot_ms=lambda: self.since_boot_ms, boot_id=lambda: self.boot)

    def pass_time(self, ms: int) -> None:
        self.wall_ms += ms
        self.since_boot_ms += ms

    def reboot(self) -> None:
        self.boot += "!"
        self.since_boot_ms = 5_000


def test_it_starts_with_the_wall_clock_and_goes_on_with_the_time_that_passes() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock.now_ms() == machine.wall_ms
    machine.pass_time(123)
    assert clock.now_ms() == machine.wall_ms


@pytest.mark.parametrize("jump_ms", JUMPS_MS)
def test_setting_the_wall_clock_changes_nothing(jump_ms: int) -> None:
    machine = Machine()
    clock = machine.clock()
    before_ms = clock.now_ms()
    machine.wall_ms += jump_ms
    assert clock.now_ms() == before_ms
    machine.pass_time(10)
    assert clock.now_ms() == before_ms + 10


@pytest.mark.parametrize("jump_ms", JUMPS_MS)
def test_a_restart_in_the_same_boot_goes_on_from_the_anchor(jump_ms: int) -> None:
    machine = Machine()
    clock = machine.clock()
    last_ms = clock.now_ms()
    machine.wall_ms += jump_ms
    machine.pass_time(500)
    following = machine.clock()
    following.resume(clock.anchor(), last_ms)
    assert following.now_ms() == last_ms + 500


def test_after_a_reboot_only_the_wall_clock_counts() -> None:
    machine = Machine()
    clock = machine.clock()
    last_ms = clock.now_ms()
    machine.reboot()
    machine.wall_ms += 60_000
    following = machine.clock()
    following.resume(clock.anchor(), last_ms)
    assert following.now_ms() == machine.wall_ms == last_ms + 60_000


def test_after_a_reboot_time_never_goes_back_behind_the_log() -> None:
    machine = Machine()
    clock = machine.clock()
    last_ms = clock.now_ms()
    machine.reboot()
    machine.wall_ms -= YEAR_MS
    following = machine.clock()
    following.resume(clock.anchor(), last_ms)
    assert following.now_ms() == last_ms
    machine.pass_time(7)
    assert following.now_ms() == last_ms + 7


def test_a_machine_that_cannot_name_its_boot_has_only_the_wall_clock() -> None:
    machine = Machine()
    machine.boot = ""
    clock = machine.clock()
    machine.wall_ms += 1000
    following = machine.clock()
    following.resume(Anchor("", clock.anchor().offset_ms), 0)
    assert following.now_ms() == machine.wall_ms


def test_the_real_clock_never_goes_back() -> None:
    clock = Clock()
    seen = [clock.now_ms() for _ in range(1000)]
    assert seen == sorted(seen)


@pytest.mark.parametrize("jump_ms", JUMPS_MS)
async def test_neither_a_jump_nor_a_restart_expires_or_delays_anything(jump_ms: int) -> None:
    machine = Machine()
    bench = Bench(MemoryPlace())
    await bench.open(clock=machine.clock())
    await bench.declare("orders", QueueSettings(lease_ms=30_000))
    await bench.publish(b"leased", b"ready", envelope=Envelope(ttl_ms=60_000, deduplication_id=None))
    await bench.publish(b"later", delay_ms=20_000)
    await bench.publish(b"once", envelope=Envelope(deduplication_id="1"))
    leased = await bench.receive_one()
    for _ in range(2):
        machine.wall_ms += jump_ms
        assert bench.counts() == (2, 1, 1, 0)
        await bench.broker.close()
        machine.wall_ms += jump_ms
        await bench.open(clock=machine.clock())
        assert bench.counts() == (2, 1, 1, 0)
        [again] = await bench.publish(b"once", envelope=Envelope(deduplication_id="1"))
        assert again.is_duplicate
    # The loop's timer runs on real time; a restart looks at what is due by the broker's own.
    await bench.broker.close()
    machine.pass_time(20_016)
    await bench.open(clock=machine.clock())
    await until(lambda: bench.counts() == (3, 0, 1, 0))
    await bench.acknowledge(leased)
    await bench.broker.close()
