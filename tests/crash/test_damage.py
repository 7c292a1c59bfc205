"""Rot in the files under a broker: it refuses to open, or, where told to go on, serves the rest; never a wrong body."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from smista.engine import Broker
from smista.errors import BrokerStopped, OutcomeUnknown
from smista.log import SqliteLog
from smista.log.errors import LogDamaged, LogError
from tests.crash.client import Client
from tests.crash.ledger import Delivered, Event, Ledger, Publish, Recovered, check, contents
from tests.crash.workload import HOUR_MS, ROOMY, SMALL, Clients, clock_ahead
from tests.faults.damage import flip_bit, truncate

Files = dict[str, bytes]
FLIPS = 500 if os.environ.get("SMISTA_LONG") else 60
TRUNCATIONS = 500 if os.environ.get("SMISTA_LONG") else 40
NAMES = ("log.db", "log.db-wal", "mark")


async def make(directory: Path) -> tuple[dict[str, Files], list[Event]]:
    """The files of a broker that was killed, and of the same one after it was closed in order; and its ledger."""
    ledger = Ledger()
    log = SqliteLog.open(directory, reserve_bytes=0, wal_bytes=128 << 10)
    async with await Broker.open(log, SMALL) as broker:
        client = Client(broker, ledger)
        await client.note_recovered()
        await client.set_up()
        await Clients(client, seed=5).work(40)
        await broker.durable()
        killed = take(directory)
    return {"killed": killed, "closed": take(directory)}, ledger.events


def take(directory: Path) -> Files:
    return {name: (directory / name).read_bytes() for name in NAMES if (directory / name).exists()}


def put(files: Files, directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


async def inspect(directory: Path, events: list[Event]) -> str:
    """What came of it; fails on anything that is wrong.

    "sound", "served" without its damaged part, "stopped" when the damage came to light only as something was written,
    or the code of the refusal.
    """
    try:
        async with await Broker.open(SqliteLog.open(directory, reserve_bytes=0), ROOMY) as broker:
            seen = await contents(broker)
        assert check([*events, seen]).violations == []
        return "sound"
    except LogError as error:
        refusal = error.code
    damages: list[LogDamaged] = []
    ledger = Ledger()
    outcome = "served"
    try:
        log = SqliteLog.open(directory, reserve_bytes=0)
        broker = await Broker.open(log, SMALL, on_damage=damages.append, clock=clock_ahead(HOUR_MS))
        async with broker:
            client = Client(broker, ledger, 7)
            ledger.note(await contents(broker))
            for queue in broker.catalog.queue_names():
                await client.acknowledge(queue, await client.receive(queue, 8))
    except LogError as error:
        return error.code
    except (BrokerStopped, OutcomeUnknown):
        outcome = "stopped"
    assert damages, f"refused with {refusal}, and then opened without a word"
    # Blocks are missing, so messages may be, or be back; what is served must still be what was published.
    checker = check([*events, *ledger.events])
    assert [violation for violation in checker.violations if violation.kind == "changed"] == []
    published = {event.id for event in events if isinstance(event, Publish)}
    served = {event.message for event in ledger.events if isinstance(event, Delivered)}
    found = {one.message for event in ledger.events if isinstance(event, Recovered) for one in event.found}
    assert served | found <= published
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("state", ["killed", "closed"])
async def test_a_flipped_bit_never_yields_a_wrong_body(tmp_path: Path, state: str, tell: Callable[[str], None]) -> None:
    stores, events = await make(tmp_path / "run")
    files = stores[state]
    source = random.Random(1)
    outcomes: Counter[str] = Counter()
    for _ in range(FLIPS):
        name = source.choice([name for name in files if name != "mark"])
        offset, bit = source.randrange(len(files[name])), source.randrange(8)
        directory = put(files, tmp_path / "d")
        flip_bit(directory / name, offset, bit)
        try:
            outcomes[await inspect(directory, events)] += 1
        except Exception as error:
            raise AssertionError(f"bit {bit} of byte {offset} of {name}") from error
    tell(f"damage, {state}: {FLIPS} flipped bits: {dict(outcomes)}, wrong bodies 0")
    assert outcomes.keys() <= {"sound", "served", "stopped", "log_damaged", "log_foreign", "log_newer", "log_failed"}, (
        outcomes
    )


@pytest.mark.slow
@pytest.mark.parametrize("state", ["killed", "closed"])
async def test_a_truncated_file_never_yields_a_wrong_body(
    tmp_path: Path, state: str, tell: Callable[[str], None]
) -> None:
    stores, events = await make(tmp_path / "run")
    files = stores[state]
    source = random.Random(2)
    outcomes: Counter[str] = Counter()
    for _ in range(TRUNCATIONS):
        name = source.choice([name for name in files if name != "mark"])
        size = source.randrange(len(files[name]))
        directory = put(files, tmp_path / "d")
        truncate(directory / name, size)
        try:
            outcomes[await inspect(directory, events)] += 1
        except Exception as error:
            raise AssertionError(f"{name} cut at {size}") from error
    tell(f"damage, {state}: {TRUNCATIONS} truncations: {dict(outcomes)}, wrong bodies 0")
    assert outcomes.keys() <= {"sound", "served", "stopped", "log_damaged", "log_foreign", "log_failed"}, outcomes


async def test_a_damaged_block_costs_only_what_is_in_it(tmp_path: Path) -> None:
    """And only where somebody said to go on; else it is named, and nothing is opened."""
    log = SqliteLog.open(tmp_path / "d", reserve_bytes=0)
    ledger = Ledger()
    async with await Broker.open(log, ROOMY) as broker:
        client = Client(broker, ledger)
        await client.set_up()
        for _ in range(20):
            await client.publish("work", body_bytes=3_000)
    content = (tmp_path / "d" / "log.db").read_bytes()
    flip_bit(tmp_path / "d" / "log.db", content.index(b"1.7|"), 3)
    with pytest.raises(LogDamaged):
        await Broker.open(SqliteLog.open(tmp_path / "d", reserve_bytes=0), ROOMY)
    damages: list[LogDamaged] = []
    log = SqliteLog.open(tmp_path / "d", reserve_bytes=0)
    async with await Broker.open(log, ROOMY, on_damage=damages.append) as broker:
        seen = await contents(broker)
    assert len(damages) == 1
    assert [one.message for one in seen.found] == [f"1.{number}" for number in range(1, 21) if number != 7]


async def test_what_is_confirmed_after_the_end_of_the_log_was_lost_is_there_without_the_setting(tmp_path: Path) -> None:
    async with await Broker.open(SqliteLog.open(tmp_path / "run", reserve_bytes=0), ROOMY) as broker:
        client = Client(broker, Ledger())
        await client.set_up()
        await client.publish("work", body_bytes=3_000)
        files = take(tmp_path / "run")
    directory = put(files, tmp_path / "d")
    truncate(directory / "log.db-wal", len(files["log.db-wal"]) - 100)
    with pytest.raises(LogDamaged):
        await Broker.open(SqliteLog.open(directory, reserve_bytes=0), ROOMY)
    damages: list[LogDamaged] = []
    log = SqliteLog.open(directory, reserve_bytes=0, may_lack_end=True)
    async with await Broker.open(log, ROOMY, on_damage=damages.append) as broker:
        await Client(broker, Ledger(), 7).publish("work", body_bytes=3_000)
    assert len(damages) == 1
    for _ in range(2):
        async with await Broker.open(SqliteLog.open(directory, reserve_bytes=0), ROOMY) as broker:
            seen = await contents(broker)
            assert broker.statistics.recovered.damaged_blocks == 1
        assert [one.message for one in seen.found] == ["7.1"]
