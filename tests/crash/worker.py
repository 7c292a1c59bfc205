"""The child of the kill tests: opens a broker, notes what it finds, and works until it is killed.

    python -m tests.crash.worker DIRECTORY LEDGER SEED [drain]

It prints one line when it has recovered. With `drain` the clock is an hour ahead, so that every lease is over and every
delay has passed: all messages are received and acknowledged, and it ends by itself.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from smista.engine import Broker
from smista.log import SqliteLog
from tests.crash.client import Client
from tests.crash.ledger import Ledger, contents
from tests.crash.workload import HOUR_MS, ROOMY, SMALL, Clients, clock_ahead

MIB = 1 << 20


async def work(directory: Path, ledger: Ledger, seed: int) -> None:
    log = SqliteLog.open(directory, reserve_bytes=MIB, wal_bytes=MIB // 2, slack_bytes=MIB // 2)
    broker = await Broker.open(log, SMALL if seed % 2 else ROOMY)
    client = Client(broker, ledger, seed)
    await client.note_recovered()
    print("recovered", flush=True)
    await client.set_up()
    await Clients(client, seed=seed, backlog=60).work(1_000_000)


async def drain(directory: Path, ledger: Ledger, seed: int) -> None:
    log = SqliteLog.open(directory, reserve_bytes=MIB)
    async with await Broker.open(log, ROOMY, clock=clock_ahead(HOUR_MS)) as broker:
        client = Client(broker, ledger, seed)
        await client.note_recovered()
        await client.drain()
        ledger.note(await contents(broker))
    print("drained", flush=True)


if __name__ == "__main__":
    act = drain if sys.argv[4:] == ["drain"] else work
    asyncio.run(act(Path(sys.argv[1]), Ledger(Path(sys.argv[2])), int(sys.argv[3])))
