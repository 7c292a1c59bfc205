"""A crash at every record of a dead-letter move, a redrive and a fan-out.

A block is durable as a whole or not at all, so a log never really ends between two records of a block. Each of these
operations is one record all the same, and here the log is cut after every record there is: even then a message is in
exactly one place, and a fan-out is in all of its queues or in none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from smista import records
from smista.engine import Broker
from smista.log.memory import MemoryLog
from smista.records import Kind
from smista.records.frames import framed
from tests.crash.client import FANNED, Client
from tests.crash.ledger import Ledger, Recovered, contents, family_of
from tests.crash.workload import ROOMY

Blocks = list[bytes]


async def dead_letter(client: Client) -> None:
    await client.publish("fragile", 3)
    await client.bury("fragile", await client.receive("fragile", 2))


async def redrive(client: Client) -> None:
    await dead_letter(client)
    await client.redrive("fragile")
    await client.bury("fragile", await client.receive("fragile", 1))
    await client.redrive("fragile")


async def redrive_by_a_job(client: Client) -> None:
    await dead_letter(client)
    await client.redrive("fragile", by_job=True)


async def fan_out(client: Client) -> None:
    for _ in range(3):
        await client.fan_out()
    await client.bury("a", await client.receive("a", 2))
    await client.acknowledge("b", await client.receive("b", 1))


Operation = Callable[[Client], Awaitable[None]]
OPERATIONS: dict[Operation, tuple[Kind, int]] = {
    dead_letter: (Kind.MOVED, 2),
    redrive: (Kind.MOVED, 2 + 2 + 1 + 1),
    redrive_by_a_job: (Kind.JOB_ADVANCED, 2),
    fan_out: (Kind.FANNED_OUT, 3),
}


async def blocks_of(operation: Operation) -> Blocks:
    log = MemoryLog()
    async with await Broker.open(log, ROOMY) as broker:
        client = Client(broker, Ledger())
        await client.set_up()
        await operation(client)
        await broker.durable()
        return [block for _, block in log.scan(1)]


def cuts(blocks: Blocks) -> Iterator[tuple[Blocks, set[tuple[int, int]]]]:
    """The log up to every record, and which messages had entered which queues by then, as (sequence, queue)."""
    entered: set[tuple[int, int]] = set()
    for number, block in enumerate(blocks):
        kept = block[: records.blocks.HEAD.size]
        for record in records.blocks.records(block):
            kept += framed(record.kind, bytes(record.data))
            if record.kind is Kind.ENQUEUED:
                entered |= {(entry.sequence, entry.queue) for entry in records.enqueued.decode(record.data)}
            elif record.kind is Kind.FANNED_OUT:
                entered |= {(entry.sequence, entry.queue) for entry in records.fanned_out.decode(record.data)}
            elif record.kind is Kind.ACKNOWLEDGED:
                queue, _, sequences = records.acknowledged.decode(record.data)
                entered -= {(sequence, queue) for sequence in sequences}
            yield [*blocks[:number], kept], set(entered)


async def recovered(blocks: Blocks) -> Recovered:
    log = MemoryLog()
    for position, block in enumerate(blocks, 1):
        log.append(position, block)
    async with await Broker.open(log, ROOMY) as broker:
        return await contents(broker)


async def faults(operation: Operation) -> tuple[int, list[str]]:
    """How many cuts there were, and what was wrong after them."""
    wrong: list[str] = []
    count = 0
    acknowledged = 1 if operation is fan_out else 0
    for blocks, entered in cuts(await blocks_of(operation)):
        count += 1
        found = [(one.message, family_of(one.queue)) for one in (await recovered(blocks)).found]
        if len(set(found)) != len(found):
            wrong.append(f"doubled after record {count}: {found}")
        if len(set(found)) != len(entered):
            wrong.append(f"{len(entered)} should be there after record {count}: {found}")
        missing = [
            (name, queue) for name in {name for name, _ in found} for queue in FANNED if (name, queue) not in found
        ]
        if operation is fan_out and len(missing) > acknowledged:
            wrong.append(f"partial after record {count}: {missing}")
    return count, wrong


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_log_that_ends_after_any_record_is_whole(operation: Operation) -> None:
    count, wrong = await faults(operation)
    assert wrong == []
    assert count > 15


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_each_step_is_one_record(operation: Operation) -> None:
    kinds = [record.kind for block in await blocks_of(operation) for record in records.blocks.records(block)]
    kind, count = OPERATIONS[operation]
    assert kinds.count(kind) == count


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_log_that_ends_after_any_block_is_whole(operation: Operation) -> None:
    blocks = await blocks_of(operation)
    for end in range(len(blocks) + 1):
        found = [(one.message, family_of(one.queue)) for one in (await recovered(blocks[:end])).found]
        assert len(set(found)) == len(found)
