"""Every check of this folder can fail: each way of breaking the broker here turns one of them red."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from smista.core import dead_letters, settling
from smista.core.message import Fate, Message, Receipt
from smista.core.queue import Queue
from smista.core.state import BrokerState
from smista.engine import Broker, fold
from smista.engine.commit import Committer
from smista.engine.journal import EngineJournal
from smista.log import SqliteLog, sqlite_file, sqlite_reader
from smista.log.errors import LogFailed
from smista.log.memory import MemoryLog
from tests.crash import test_boundaries
from tests.crash.client import Client
from tests.crash.ledger import Ledger, check, contents
from tests.crash.test_disk_errors import fail_at
from tests.crash.test_power_cuts import judge, record
from tests.crash.workload import ROOMY, Clients
from tests.faults.damage import flip_bit

CUTS_MAX = 50


async def kinds_after_cuts(directory: Path, *, is_lying: bool = False) -> set[str]:
    """The kinds of violations within the first cuts, up to one in which something confirmed is lost."""
    trace, ledger = await record(directory / "run", seed=1, is_lying=is_lying, steps=15)
    kinds: set[str] = set()
    for cut in trace.cuts(CUTS_MAX, seed=1):
        kinds |= {violation.kind for violation in (await judge(cut, ledger.events, directory / "cut")).violations}
        if kinds & {"lost", "back"}:
            break
    return kinds


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
async def test_a_log_that_does_not_sync_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: str
) -> None:
    monkeypatch.setattr(sqlite_file, "SYNCHRONOUS", synchronous)
    assert await kinds_after_cuts(tmp_path) & {"lost", "back"}


async def test_a_disk_that_lies_about_syncs_is_found_out(tmp_path: Path) -> None:
    assert await kinds_after_cuts(tmp_path, is_lying=True) & {"lost", "back"}


async def test_confirming_before_the_sync_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: Committer, position: int) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    monkeypatch.setattr(Committer, "wait_for", at_once)
    assert await kinds_after_cuts(tmp_path) & {"lost", "back"}


async def kinds_after_work(*, seeds: Sequence[int] = (1, 2, 3)) -> set[str]:
    """The kinds of violations of some runs without any fault, each with what is found after reopening."""
    kinds: set[str] = set()
    for seed in seeds:
        ledger = Ledger()
        log, again = MemoryLog(), MemoryLog()
        async with await Broker.open(log, ROOMY) as broker:
            client = Client(broker, ledger)
            await client.note_recovered()
            await client.set_up()
            await Clients(client, seed=seed).work(25)
            await broker.durable()
            for position, block in log.scan(1):
                again.append(position, block)
        async with await Broker.open(again, ROOMY) as broker:
            ledger.note(await contents(broker))
        kinds |= {violation.kind for violation in check(ledger.events).violations}
    return kinds


async def test_nothing_is_found_where_nothing_is_sabotaged() -> None:
    assert await kinds_after_work() == set()


async def test_a_receipt_that_is_not_checked_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_any_delivery(state: BrokerState, receipt: Receipt) -> tuple[Queue, Message]:
        queue = state.queues[receipt.queue]
        message = queue.find(receipt.sequence)
        return settling.held(state, receipt) if message is None else (queue, message)

    monkeypatch.setattr(settling, "_acknowledgeable", of_any_delivery)
    assert "stale" in await kinds_after_work()


def sabotage_moves(monkeypatch: pytest.MonkeyPatch, *, leaves_source: bool, enters_target: bool) -> None:
    """What a move would do if it were two steps and one of them were missing."""

    def halfway(source: Queue, message: Message, target: Queue, copy: Message, fate: Fate) -> None:
        copy.deaths = message.deaths
        if leaves_source:
            source.remove(message)
        if enters_target:
            target.insert(copy, fate.at_ms)

    monkeypatch.setattr(fold, "apply_moved", halfway)


@pytest.mark.parametrize(
    ("leaves_source", "enters_target", "kind"),
    [(False, True, "doubled"), (True, False, "lost"), (False, False, "misplaced")],
)
async def test_a_half_move_is_found_out(
    monkeypatch: pytest.MonkeyPatch, leaves_source: bool, enters_target: bool, kind: str
) -> None:
    sabotage_moves(monkeypatch, leaves_source=leaves_source, enters_target=enters_target)
    assert kind in await kinds_after_work()
    if kind != "misplaced":
        _, wrong = await test_boundaries.faults(test_boundaries.redrive)
        assert wrong


async def test_a_message_inserted_twice_on_a_move_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    apply_moved = dead_letters.apply_moved

    def twice(source: Queue, message: Message, target: Queue, copy: Message, fate: Fate) -> None:
        apply_moved(source, message, target, copy, fate)
        other = Message(
            copy.sequence + 1_000_000,
            copy.number,
            copy.queue,
            copy.envelope,
            copy.body,
            copy.priority,
            copy.created_at_ms,
            copy.ready_at_ms,
            position=copy.position,
        )
        target.insert(other, fate.at_ms)

    monkeypatch.setattr(fold, "apply_moved", twice)
    assert "doubled" in await kinds_after_work()


async def test_a_fan_out_in_several_records_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_by_one(self: EngineJournal, placed: Sequence[tuple[Queue, Message]], at_ms: int) -> None:
        for queue, message in placed:
            self.enqueued(queue, (message,), at_ms)

    monkeypatch.setattr(EngineJournal, "fanned_out", one_by_one)
    _, wrong = await test_boundaries.faults(test_boundaries.fan_out)
    assert any("partial" in fault for fault in wrong)


async def test_a_disk_error_taken_for_success_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = SqliteLog.append

    def carry_on(self: SqliteLog, position: int, data: bytes) -> None:
        try:
            append(self, position, data)
        except LogFailed:
            self._failure = None
            self._next_position = position + 1

    monkeypatch.setattr(SqliteLog, "append", carry_on)
    kinds: set[str] = set()
    for number in (3, 6, 9):
        _, checker = await fail_at(tmp_path / str(number), "write", number)
        kinds |= {violation.kind for violation in checker.violations}
    assert kinds & {"lost", "unopened"}


async def test_a_body_that_is_not_checked_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    async with await Broker.open(SqliteLog.open(tmp_path, reserve_bytes=0), ROOMY) as broker:
        client = Client(broker, ledger)
        await client.set_up()
        await client.publish("work", body_bytes=500)
    offset = (tmp_path / "log.db").read_bytes().index(b"1.1|")
    flip_bit(tmp_path / "log.db", offset + 100)
    monkeypatch.setattr(sqlite_reader, "_is_sound", lambda position, row: True)
    async with await Broker.open(SqliteLog.open(tmp_path, reserve_bytes=0), ROOMY) as broker:
        ledger.note(await contents(broker))
    assert [violation.kind for violation in check(ledger.events).violations] == ["changed"]
