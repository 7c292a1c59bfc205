"""What the broker holds in memory counts; memory that was freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from smista.core.queue import FAILURES_KEPT
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.core.state import BrokerState
from smista.engine.kept_blocks import DROPPED_MAX, Kept, KeptBlocks
from smista.engine.memory import AGAIN_S, FREED_BYTES, MemoryReturn
from smista.engine.settings import BrokerSettings
from smista.errors import LowMemory
from tests.engine.bench import Bench, MemoryPlace, until

ERROR = "e" * 1000

EMPTIED = """
import asyncio, sys, time
from pathlib import Path
from smista.engine import Broker, Publication
from smista.engine.pressure import resident_set_bytes
from smista.log.sqlite import SqliteLog

COUNT, AT_ONCE = 200_000, 500

async def main() -> None:
    broker = await Broker.open(SqliteLog.open(Path(sys.argv[1])))
    await broker.declare_queue("orders")
    before = resident_set_bytes()
    for first in range(0, COUNT, AT_ONCE):
        await broker.publish("orders", [Publication(b"%0100d" % (first + place)) for place in range(AT_ONCE)])
    growth = resident_set_bytes() - before
    while deliveries := await broker.receive("orders", AT_ONCE):
        await broker.acknowledge([delivery.receipt for delivery in deliveries])
    del deliveries
    end_s = time.monotonic() + 60
    while (kept := resident_set_bytes() - before) > growth / 3 and time.monotonic() < end_s:
        await asyncio.sleep(0.2)
    print(growth, kept)
    await broker.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_broker_that_has_been_emptied_gives_back_most_of_its_memory(tmp_path: object) -> None:
    result = subprocess.run([sys.executable, "-c", EMPTIED, str(tmp_path)], capture_output=True, text=True, check=True)
    growth, kept = map(int, result.stdout.split())
    assert growth > 40 << 20, "the messages take less than they did: have the test publish more"
    assert kept < growth / 3


KEPT_BLOCKS = """
import sys
from smista.engine.kept_blocks import KeptBlocks

blocks = KeptBlocks()
before = sys.getallocatedblocks()
for position in range(10_000, 20_000):
    blocks.append(position, position, position)
print(sys.getallocatedblocks() - before)
"""
HISTOGRAMS = """
import sys
from smista.engine.measures import WAIT_MS, Histogram

histograms = [Histogram(WAIT_MS) for _ in range(20)]
before = sys.getallocatedblocks()
for histogram in histograms:
    for bound in WAIT_MS:
        histogram.add(bound, 1_000_000)
print(sys.getallocatedblocks() - before)
"""


@pytest.mark.parametrize("program", [KEPT_BLOCKS, HISTOGRAMS], ids=["blocks that are kept", "counts of measures"])
def test_what_is_kept_leaves_nothing_small_among_the_messages(program: str) -> None:
    # In a process of its own: what other tests left running allocates as well.
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 100


def test_kept_blocks_are_found_by_position_and_by_time() -> None:
    blocks = KeptBlocks()
    assert (blocks.last_below(5), blocks.first_since(0)) == (None, None)
    for position in (3, 4, 7):
        blocks.append(position, 10 * position, 100 * position)
    assert (blocks.first(), blocks.last()) == (Kept(3, 30, 300), Kept(7, 70, 700))
    assert [blocks.last_below(end) for end in (3, 5, 9)] == [None, Kept(4, 40, 400), Kept(7, 70, 700)]
    assert [blocks.first_since(at_ms) for at_ms in (1, 301, 701)] == [Kept(3, 30, 300), Kept(4, 40, 400), None]
    assert blocks.drop_first() == Kept(3, 30, 300)
    assert (len(blocks), blocks.first()) == (2, Kept(4, 40, 400))
    assert (blocks.last_below(4), blocks.first_since(1)) == (None, Kept(4, 40, 400))


def test_kept_blocks_are_the_same_when_their_columns_have_been_shortened() -> None:
    blocks = KeptBlocks()
    for position in range(3 * DROPPED_MAX):
        blocks.append(position, 1, position)
    for position in range(3 * DROPPED_MAX - 1):
        assert blocks.drop_first().position == position
        assert blocks.first().position == position + 1
        assert len(blocks) == 3 * DROPPED_MAX - 1 - position
    assert blocks.last_below(10 * DROPPED_MAX) == blocks.last() == blocks.first()


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def hands() -> Hands:
    return Hands()


def test_memory_is_given_back_when_much_of_it_was_freed(hands: Hands) -> None:
    memory_return = MemoryReturn(BrokerState(), clock_s=hands)
    held = [0, 2 * FREED_BYTES, FREED_BYTES + 1, FREED_BYTES, FREED_BYTES, 0]
    assert [memory_return.is_due(one) for one in held] == [False, False, False, True, False, False]


def test_memory_is_not_given_back_again_and_again(hands: Hands) -> None:
    memory_return = MemoryReturn(BrokerState(), clock_s=hands)
    due = []
    for _ in range(int(AGAIN_S)):
        due.append([memory_return.is_due(held) for held in (FREED_BYTES, 0)])
        hands.now_s += 1
    assert due == [[False, True]] + [[False, False]] * (int(AGAIN_S) - 1)
    assert memory_return.is_due(0), "what was freed meanwhile is not forgotten"


# -- what is known of failures ----------------------------------------------------------------------------------------


def held(bench: Bench) -> int:
    return bench.broker.measures().held_bytes


async def fail(bench: Bench, count: int, queue: str = "failing") -> None:
    for _ in range(count):
        await bench.broker.nack([(await bench.receive_one(queue)).receipt], delay_ms=0, error=ERROR)


async def failing(bench: Bench, **settings: object) -> int:
    """A queue with one message that was not delivered yet; how much is held without it."""
    await bench.declare("failing", QueueSettings(max_retries=None, **settings))  # type: ignore[arg-type]
    before = held(bench)
    await bench.publish(b"x", queue="failing")
    return before


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("how", ["acknowledged", "purged", "deleted", "queue deleted"])
async def test_failures_count_until_their_message_goes(orders: Bench, how: str, *, durable: bool) -> None:
    broker = orders.broker
    before = await failing(orders, durable=durable)
    await fail(orders, 1)
    first = held(orders)
    assert first > before + len(ERROR)
    await fail(orders, FAILURES_KEPT - 1)
    assert held(orders) - first >= len(ERROR) * (FAILURES_KEPT - 1)
    most = held(orders)
    await fail(orders, 3)
    assert held(orders) == most, "no more of them are kept"
    if how == "acknowledged":
        await orders.acknowledge(await orders.receive_one("failing"))
    elif how == "purged":
        await broker.purge("failing")
    elif how == "deleted":
        await broker.delete_message("failing", (await orders.receive_one("failing")).id)
    else:
        await broker.delete_queue("failing")
    await until(lambda: held(orders) == before)


@pytest.mark.parametrize("mode", [DeadLetterMode.MOVE, DeadLetterMode.PARK])
async def test_failures_of_dead_letters_count_also_after_a_restart(orders: Bench, mode: DeadLetterMode) -> None:
    """And after they were sent back, and died again."""
    await orders.declare("failing_dlq")
    before = await failing(orders, dead_letter=mode)
    where = "failing" if mode is DeadLetterMode.PARK else "failing_dlq"
    for _ in range(2):
        await fail(orders, 4)
        await orders.reject(await orders.receive_one("failing"), error=ERROR)
        assert held(orders) > before + 5 * len(ERROR)
        await orders.broker.redrive(where)
    await orders.reject(await orders.receive_one("failing"), error=ERROR)
    assert held(orders) - before < 5 * len(ERROR), "dying in the same way again leaves one death, the last"
    history = orders.broker._keeper.recorder.history_bytes
    assert history > len(ERROR)
    await orders.restart()
    assert orders.broker._keeper.recorder.history_bytes == history
    await orders.broker.purge(where)
    await until(lambda: not orders.broker._keeper.held().messages)


async def test_what_the_copies_of_a_dead_letter_share_counts_until_the_last_of_them_goes() -> None:
    bench = Bench(MemoryPlace())
    await bench.open()
    names = [f"q{number}" for number in range(10)]
    for name in names:
        await bench.declare(name, QueueSettings(dead_letter=DeadLetterMode.PARK))
    await bench.fanout("dead", *names)
    before = await failing(bench, dead_letter_exchange="dead")
    await fail(bench, 20)
    history = held(bench) - before
    await bench.reject(await bench.receive_one("failing"), error=ERROR)
    assert history < held(bench) - before < 2 * history
    # One of them dies once more.
    await bench.reject(await bench.receive_one("q0"), error=ERROR)
    assert held(bench) - before < 2 * history
    for name in names[1:]:
        await bench.broker.purge(name)
    await until(lambda: held(bench) - before < history + 4 * len(ERROR))
    assert held(bench) - before > history
    await bench.broker.purge("q0")
    await until(lambda: held(bench) == before)
    assert not bench.broker._keeper.recorder._sharers
    await bench.broker.close()


async def test_failures_fill_the_memory_as_messages_do() -> None:
    bench = Bench(MemoryPlace(), BrokerSettings(disk_free_bytes_min=0, watch_interval_s=0.01, memory_bytes_max=20_000))
    await bench.open()
    await failing(bench)
    await fail(bench, 20)
    await until(lambda: isinstance(bench.broker.refusal, LowMemory))
    await bench.acknowledge(await bench.receive_one("failing"))
    await until(lambda: bench.broker.refusal is None)
    await bench.broker.close()
