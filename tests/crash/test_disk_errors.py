"""A disk that fails under a broker: the first error ends all confirming; a full disk ends only publishing."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from smista.core.message import Publication
from smista.engine import Broker, BrokerSettings
from smista.errors import BrokerError, BrokerStopped, LowDisk, OutcomeUnknown
from smista.log import SqliteLog
from smista.log.errors import LogError
from tests.crash.client import Client
from tests.crash.ledger import Checker, Ledger, Outcome, Violation, check, contents
from tests.crash.workload import ROOMY, SMALL, Clients
from tests.faults.failing import FailingDisk, failing_disk
from tests.waiting import until

KIB, MIB = 1 << 10, 1 << 20
ERRORS = 100 if os.environ.get("SMISTA_LONG") else 30


async def fail_at(directory: Path, kind: str, number: int) -> tuple[bool, Checker]:
    """Work until the `number`-th sync or write fails, reopen, and check. Whether it came to that, and the checker."""
    ledger = Ledger()
    with failing_disk() as disk:
        log = SqliteLog.open(directory, vfs=disk.vfs, reserve_bytes=0, wal_bytes=256 * KIB)
        broker = await Broker.open(log, SMALL)
        client = Client(broker, ledger)
        await client.note_recovered()
        await client.set_up()
        disk.fail_sync(number) if kind == "sync" else disk.fail_write(number)
        try:
            await Clients(client, seed=number).work(12 + number)
        except (BrokerStopped, OutcomeUnknown):
            assert broker.failure is not None
        has_failed = broker.failure is not None
        if has_failed:
            with pytest.raises(BrokerStopped):
                await broker.publishing.publish("work", [Publication(b"")])
        try:
            await broker.close()
        except LogError:
            assert kind == "write", "closing writes what is left"
    unopened: list[Violation] = []
    try:
        async with await Broker.open(SqliteLog.open(directory, reserve_bytes=0), ROOMY) as again:
            ledger.note(await contents(again))
    except LogError as error:
        unopened.append(Violation("unopened", str(error)))
    checker = check(ledger.events)
    checker.violations += unopened
    results = [event.result for event in ledger.events if isinstance(event, Outcome)]
    if "unknown" in results and "confirmed" in results[results.index("unknown") :]:
        checker.violations.append(Violation("confirmed", "something, after the error"))
    return has_failed, checker


@pytest.mark.slow
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("kind", ["sync", "write"])
async def test_nothing_is_confirmed_after_an_error_and_nothing_lost(
    tmp_path: Path, kind: str, half: int, tell: Callable[[str], None]
) -> None:
    failed = published = 0
    for number in range(1 + half, 2 * ERRORS + 1, 2):
        has_failed, checker = await fail_at(tmp_path / str(number), kind, number)
        failed += has_failed
        published += checker.totals["published"]
        assert checker.violations == [], f"{kind} {number}"
    tell(f"disk errors: {failed} failed {kind}s over {published} confirmed publishes: lost 0, confirmed after it 0")
    assert failed >= ERRORS - 2


async def test_whoever_waits_is_told_unknown_and_whoever_comes_later_that_it_stopped(tmp_path: Path) -> None:
    with failing_disk() as disk:
        broker = await Broker.open(SqliteLog.open(tmp_path, vfs=disk.vfs, reserve_bytes=0), ROOMY)
        await broker.declaring.declare_queue("work")
        await broker.declaring.declare_queue("empty")
        [kept] = await broker.publishing.publish("work", [Publication(b"kept")])
        assert not isinstance(kept, BrokerError)
        poll = asyncio.create_task(broker.receiving.receive("empty", wait_ms=20_000))
        await asyncio.sleep(0)
        disk.fail_sync()
        publishes = [broker.publishing.publish("work", [Publication(b"x")]) for _ in range(20)]
        results = await asyncio.gather(*publishes, return_exceptions=True)
        assert {type(result) for result in results} == {OutcomeUnknown}
        assert broker.failure is not None
        with pytest.raises(BrokerStopped):
            await poll
        for call in (
            broker.publishing.publish("work", [Publication(b"y")]),
            broker.receiving.receive("work"),
            broker.settling.acknowledge([]),
        ):
            with pytest.raises(BrokerStopped):
                await call
        with pytest.raises(OutcomeUnknown):
            await broker.durable()
        await broker.close()
    async with await Broker.open(SqliteLog.open(tmp_path, reserve_bytes=0), ROOMY) as again:
        [first] = await again.receiving.receive("work")
        assert (first.body, first.id) == (b"kept", kept.id)


# -- a full disk ------------------------------------------------------------------------------------------------------


def used_bytes(directory: Path) -> int:
    return sum(entry.stat().st_size for entry in directory.iterdir())


class SmallDisk:
    """Gives the failing disk's capacity to the reserve and to whoever asks for free space too."""

    def __init__(self, disk: FailingDisk, directory: Path, capacity_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._allocate = os.posix_fallocate
        self.set_capacity(capacity_bytes)

    def set_capacity(self, capacity_bytes: int) -> None:
        self._disk.capacity_bytes = self._capacity_bytes = capacity_bytes

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        if used_bytes(self._directory) > self._capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._allocate(descriptor, offset, size)

    def free_bytes(self) -> int:
        return max(0, self._capacity_bytes - used_bytes(self._directory))


@pytest.mark.slow
async def test_a_full_disk_refuses_publishes_while_consuming_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    ledger = Ledger()
    settings = BrokerSettings(disk_free_bytes_min=0, watch_interval_s=0.002)
    with failing_disk() as disk:
        log = SqliteLog.open(directory, vfs=disk.vfs, reserve_bytes=2 * MIB, wal_bytes=512 * KIB)
        small = SmallDisk(disk, directory, 8 * MIB)
        with (
            mock.patch.object(os, "posix_fallocate", small.allocate),
            mock.patch.object(SqliteLog, "free_bytes", small.free_bytes),
        ):
            broker = await Broker.open(log, settings)
            client = Client(broker, ledger)
            await client.note_recovered()
            await client.set_up()
            for cycle in range(3):
                while "refused" not in await client.publish("work", 5, body_bytes=10_000):
                    pass
                assert isinstance(broker.intake.refusal, LowDisk)
                with pytest.raises(LowDisk):
                    broker.publishing.submit("work", [Publication(b"refused")]).result()
                for _ in range(40):
                    deliveries = await client.receive("work", 2)
                    assert await client.acknowledge("work", deliveries) == ["confirmed"] * len(deliveries)
                assert broker.failure is None
                small.set_capacity((16 + 8 * cycle) * MIB)
                await until(lambda: broker.intake.refusal is None)
                assert await client.publish("work", 3) == ["confirmed"] * 3
            await broker.close()
    async with await Broker.open(SqliteLog.open(directory, reserve_bytes=0), ROOMY) as again:
        ledger.note(await contents(again))
    checker = check(ledger.events)
    assert checker.violations == []
    assert checker.totals["acknowledge"] == 3 * 80
    assert checker.totals["refused"] >= 3
