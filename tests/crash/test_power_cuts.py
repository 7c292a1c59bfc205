"""Power cuts under a broker: whatever a cut leaves, the ledger's checker finds nothing wrong with it.

One run of the workload is recorded; then the power is cut at many of its moments, half of them right around a sync.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from smista.core.message import Receipt
from smista.engine import Broker
from smista.errors import BrokerError
from smista.log import SqliteLog
from tests.crash.client import Client
from tests.crash.ledger import Checker, Delivered, Event, Ledger, Opened, Settle, Violation, check, contents
from tests.crash.workload import HOUR_MS, KEEPING, ROOMY, SMALL, Clients, MovedClock
from tests.faults.powercut import Cut, Trace, recording

SEEDS = range(1, 5)
CUTS = 2_500 if os.environ.get("SMISTA_LONG") else 130


async def record(directory: Path, *, seed: int, is_lying: bool = False, steps: int = 45) -> tuple[Trace, Ledger]:
    """Two sessions of a broker, every event of the ledger a mark of the trace. Every other one keeps all blocks, and
    folds from further on all the time."""
    with recording(directory, is_lying=is_lying) as trace:
        ledger = Ledger(on_note=trace.mark)
        for session in range(2):
            log = SqliteLog.open(directory, vfs=trace.vfs, reserve_bytes=0, wal_bytes=256 << 10, slack_bytes=0)
            async with await Broker.open(log, SMALL if seed % 2 else KEEPING) as broker:
                client = Client(broker, ledger, session)
                await client.note_recovered()
                await client.set_up()
                await Clients(client, seed=seed + session, backlog=15).work(steps)
    return trace, ledger


async def judge(cut: Cut, events: list[Event], directory: Path, *, is_whole: bool = False) -> Checker:
    """Open what a cut has left and feed the checker with what is found and with what still works."""
    known = events[: cut.marks[-1]] if cut.marks else []
    checker = check(known)
    cut.write(directory)
    with recording(directory) as second:  # It does not sync, which would take most of the time.
        try:
            log = SqliteLog.open(directory, vfs=second.vfs, reserve_bytes=0)
            broker = await Broker.open(log, ROOMY)
        except BrokerError as error:
            checker.violations.append(Violation("unopened", str(error)))
            return checker
        async with broker:
            ledger = Ledger()
            client = Client(broker, ledger, 8)
            await client.note_recovered()
            await use_old_receipts(client, checker)
            await publish_known_ids_again(client, checker)
        if is_whole:
            log = SqliteLog.open(directory, vfs=second.vfs, reserve_bytes=0)
            clock = MovedClock()
            async with await Broker.open(log, ROOMY, clock=clock) as broker:
                client = Client(broker, ledger, 9)
                await client.note_recovered()
                clock.move(broker, HOUR_MS)
                await client.drain()
                ledger.note(await contents(broker))
    for event in ledger.events:
        checker.feed(event)
    if is_whole and checker.copies:
        checker.violations.append(Violation("lost", f"never delivered: {list(checker.copies)}"))
    return checker


async def use_old_receipts(client: Client, checker: Checker) -> None:
    """Receipts that were given out before the cut, certainly, and not used, work after it."""
    held = [
        copy.last
        for copy in checker.copies.values()
        if copy.last is not None and not copy.is_settled and copy.last_number < checker.certain
    ]
    for number, delivered in enumerate(held[:2]):
        intent = Settle(
            id=f"old.{number}",
            action="acknowledge",
            message=delivered.message,
            queue=delivered.queue,
            receipt=delivered.receipt,
        )
        client.ledger.note(intent)
        [outcome] = await client.broker.settling.acknowledge([Receipt(*delivered.receipt)])
        if outcome is not None:
            checker.violations.append(
                Violation("lease", f"receipt {delivered.receipt} of {delivered.message}: {outcome}")
            )


async def publish_known_ids_again(client: Client, checker: Checker) -> None:
    for queue, id_ in list(checker.certain_ids)[:3]:
        if queue in client.broker.catalog.queue_names():
            [result] = await client.publish(queue, deduplication_id=id_)
            if result != "duplicate":
                checker.violations.append(Violation("dedup", f"{id_} of {queue} was {result}"))


async def judge_all(trace: Trace, ledger: Ledger, directory: Path, *, cuts: int, seed: int) -> Counter[str]:
    """Count what is wrong over many cuts, by kind; the first of each kind in full."""
    totals: Counter[str] = Counter()
    for number, cut in enumerate(trace.cuts(cuts, seed=seed)):
        checker = await judge(cut, ledger.events, directory, is_whole=number % 10 == 0)
        totals["cuts"] += 1
        for violation in checker.violations:
            totals[violation.kind] += 1
            totals[f"{cut}: {violation}"] += 1
    return totals


@pytest.mark.slow
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_power_cut_breaks_a_promise(tmp_path: Path, seed: int, tell: Callable[[str], None]) -> None:
    trace, ledger = await record(tmp_path / "run", seed=seed)
    run = check(ledger.events)
    assert run.violations == []
    with closing(SqliteLog.open(tmp_path / "run", reserve_bytes=0)) as log:
        assert log.fold_position > 1, "blocks were reclaimed meanwhile"
        assert (log.first_position > 1) == (seed % 2 == 1)
    totals = await judge_all(trace, ledger, tmp_path / "cut", cuts=CUTS, seed=seed)
    cuts = totals.pop("cuts")
    tell(
        f"power cuts, seed {seed}: {cuts} cuts over {run.totals['published']} publishes, "
        f"{run.totals['acknowledge']} acknowledgements, {run.totals['bury']} dead letters, "
        f"{run.totals['redrive']} redrives: lost {totals['lost']}, back {totals['back']}, "
        f"doubled {totals['doubled']}, opened {cuts - totals['unopened']}"
    )
    assert +totals == Counter()


async def test_a_broker_outlives_cut_after_cut(tmp_path: Path) -> None:
    """What a cut has left is gone on with, and the power is cut again; one ledger over all of it."""
    directory = tmp_path / "0"
    events: list[Event] = []
    for generation in range(1, 16):
        with recording(directory) as trace:
            ledger = Ledger(on_note=trace.mark)
            log = SqliteLog.open(directory, vfs=trace.vfs, reserve_bytes=0)
            async with await Broker.open(log, SMALL) as broker:
                client = Client(broker, ledger, generation)
                await client.note_recovered()
                await client.set_up()
                await Clients(client, seed=generation).work(4)
        [cut] = trace.cuts(1, seed=generation)
        events += ledger.events[: cut.marks[-1]] if cut.marks else []
        directory = tmp_path / str(generation)
        cut.write(directory)
        assert check(events).violations == []
    assert sum(isinstance(event, Opened) for event in events) > 5
    assert any(isinstance(event, Delivered) for event in events)
