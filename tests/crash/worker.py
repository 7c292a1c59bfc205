"""The child of the kill tests: opens a broker, notes what it finds, and works until it is killed.

    python -m tests.crash.worker DIRECTORY LEDGER SEED [drain]

It prints one line when it has recovered. With `drain` the clock is then moved on by an hour, so that every lease is
over and every delay has passed: all messages are received and acknowledged, and it ends by itself.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from smista.engine import Broker
from smista.log import SqliteLog
from tests.crash.client import Client
from tests.crash.ledger import Ledger, contents
from tests.crash.workload import HOUR_MS, ROOMY, SMALL, Clients, MovedClock

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
    clock = MovedClock()
    async with await Broker.open(log, ROOMY, clock=clock) as broker:
        client = Client(broker, ledger, seed)
        # Not an hour ahead from the start: a lease that runs out before all was looked at has moved its message.
        await client.note_recovered()
        clock.move(broker, HOUR_MS)
        await client.drain()
        ledger.note(await contents(broker))
    print("drained", flush=True)


if __name__ == "__main__":
    act = drain if sys.argv[4:] == ["drain"] else work
    asyncio.run(act(Path(sys.argv[1]), Ledger(Path(sys.argv[2])), int(sys.argv[3])))
