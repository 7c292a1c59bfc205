"""What the broker holds in memory counts; memory that was freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from smista.core.queue import FAILURES_KEPT
from smista.core.settings import DeadLetterMode, QueueSettings
from smista.core.state import BrokerState
from smista.engine.kept_blocks import DROPPED_MAX, Kept, KeptBlocks
from smista.engine.memory import AGAIN_S, FREED_BYTES, LAST_BYTES, MemoryReturn
from smista.engine.settings import BrokerSettings
from smista.errors import LowMemory
from smista.log import MemoryLog
from tests.engine.bench import Bench, MemoryPlace, until

ERROR = "e" * 1000

EMPTIED = """
import asyncio, sys, time, tracemalloc
from pathlib import Path
from smista.engine import Broker, Publication, memory
from smista.log.sqlite import SqliteLog

COUNT, AT_ONCE, CALLERS = 200_000, 500, 10

async def publish(broker: Broker, caller: int) -> None:
    for first in range(caller * AT_ONCE, COUNT, CALLERS * AT_ONCE):
        bodies = [b"%0100d" % (first + place) for place in range(AT_ONCE)]
        await broker.publishing.publish("orders", [Publication(body) for body in bodies])

async def consume(broker: Broker) -> None:
    while deliveries := await broker.receiving.receive("orders", AT_ONCE):
        await broker.settling.acknowledge([delivery.receipt for delivery in deliveries])

async def main() -> None:
    given_back: list[None] = []
    memory._trim = lambda: given_back.append(None)  # and leave what the C library keeps where it is
    tracemalloc.start()
    broker = await Broker.open(SqliteLog.open(Path(sys.argv[1])))
    await broker.declaring.declare_queue("orders")

    def traced() -> int:
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.clear_traces()
    await asyncio.gather(*(publish(broker, caller) for caller in range(CALLERS)))  # so they share the disk's syncs
    grown = traced()
    await asyncio.gather(*(consume(broker) for _ in range(CALLERS)))
    end_s = time.monotonic() + 60
    while not (given_back and traced() < grown / 500) and time.monotonic() < end_s:
        await asyncio.sleep(0.05)
    print(grown, traced(), len(given_back))
    await broker.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_broker_that_has_been_emptied_gives_back_most_of_its_memory(tmp_path: object) -> None:
    """By what is allocated, not by what the process has resident: that counts SQLite's cache of 8 MiB, pieces of memory
    on which something is left, and pages that the C library keeps, together a quarter of the growth, by the machine."""
    result = subprocess.run([sys.executable, "-c", EMPTIED, str(tmp_path)], capture_output=True, text=True, check=True)
    growth, kept, given_back = map(int, result.stdout.split())
    assert growth > 40 << 20, "the messages take less than they did: have the test publish more"
    assert kept < growth / 500, "less than a byte for each message"
    assert given_back, "what the C library keeps was asked for"


FULL = """
import asyncio, os, sys
from smista.engine import Broker, BrokerSettings, Envelope, Publication
from smista.engine.pressure import resident_set_bytes
from smista.errors import LowMemory
from smista.log import MemoryLog

LIMIT = 64 << 20
BYTES, AT_ONCE = 60_000, 20

def make(what: str) -> Publication:
    data = os.urandom(BYTES)
    return Publication(data) if what == "bodies" else Publication(b"", Envelope(data))

async def main() -> None:
    settings = BrokerSettings(
        disk_free_bytes_min=0, log_retention_bytes=0, memory_bytes_max=LIMIT, resident_bytes_max=LIMIT // 4
    )
    broker = await Broker.open(MemoryLog(), settings)
    await broker.declaring.declare_queue("orders")
    before = resident_set_bytes()
    taken = 0
    try:
        while taken * BYTES < 3 * LIMIT:
            await broker.publishing.publish("orders", [make(sys.argv[1]) for _ in range(AT_ONCE)])
            taken += AT_ONCE
    except LowMemory:
        pass
    held = broker.statistics.measures().held_bytes
    print(LIMIT, taken * BYTES, held, resident_set_bytes() - before)
    await broker.close()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["bodies", "headers"])
def test_a_broker_whose_log_is_in_memory_takes_no_more_of_it_than_it_may(what: str) -> None:
    result = subprocess.run([sys.executable, "-c", FULL, what], capture_output=True, text=True, check=True)
    limit, taken, held, growth = map(int, result.stdout.split())
    assert limit / 4 < taken < limit
    assert held < 1.1 * limit
    assert 0.8 < growth / held < 1.25, "what is held is what the process has grown by"


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


def test_the_last_that_was_freed_is_given_back_too(hands: Hands) -> None:
    memory_return = MemoryReturn(BrokerState(), clock_s=hands)
    due = []
    for held in (10 * LAST_BYTES, 2 * LAST_BYTES, LAST_BYTES, 0, LAST_BYTES - 1, 0):
        due.append(memory_return.is_due(held))
        hands.now_s += AGAIN_S
    assert due == [False, True, True, True, False, False]


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
    return bench.broker.statistics.measures().held_bytes


async def fail(bench: Bench, count: int, queue: str = "failing") -> None:
    for _ in range(count):
        await bench.broker.settling.nack([(await bench.receive_one(queue)).receipt], delay_ms=0, error=ERROR)


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
        await broker.declaring.purge("failing")
    elif how == "deleted":
        await broker.messages.delete("failing", (await orders.receive_one("failing")).id)
    else:
        await broker.declaring.delete_queue("failing")
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
        await orders.broker.redriving.redrive(where)
    await orders.reject(await orders.receive_one("failing"), error=ERROR)
    assert held(orders) - before < 5 * len(ERROR), "dying in the same way again leaves one death, the last"
    history = orders.broker._keeper.journal.accounts.history_bytes
    assert history > len(ERROR)
    await orders.restart()
    assert orders.broker._keeper.journal.accounts.history_bytes == history
    await orders.broker.declaring.purge(where)
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
        await bench.broker.declaring.purge(name)
    await until(lambda: held(bench) - before < history + 4 * len(ERROR))
    assert held(bench) - before > history
    await bench.broker.declaring.purge("q0")
    await until(lambda: held(bench) == before)
    assert not bench.broker._keeper.journal.accounts._sharers
    await bench.broker.close()


async def test_failures_fill_the_memory_as_messages_do() -> None:
    bench = Bench(MemoryPlace(), BrokerSettings(disk_free_bytes_min=0, watch_interval_s=0.01, memory_bytes_max=20_000))
    await bench.open()
    await failing(bench)
    await fail(bench, 20)
    await until(lambda: isinstance(bench.broker.intake.refusal, LowMemory))
    await bench.acknowledge(await bench.receive_one("failing"))
    await until(lambda: bench.broker.intake.refusal is None)
    await bench.broker.close()


# -- a log in memory ---------------------------------------------------------------------------------------------------


class InMemoryPlace:
    def __init__(self) -> None:
        self.log = MemoryLog()

    def open(self) -> MemoryLog:
        return self.log


LIMIT = 1 << 20
BODY = b"x" * 2_000


@pytest.fixture
async def in_memory() -> AsyncIterator[Bench]:
    """A broker whose log is in memory, with room for few bodies beside it."""
    settings = BrokerSettings(
        disk_free_bytes_min=0, memory_bytes_max=LIMIT, resident_bytes_max=LIMIT // 10, watch_interval_s=0.01
    )
    bench = Bench(InMemoryPlace(), settings)
    await bench.open()
    await bench.declare()
    yield bench
    await bench.broker.close()


async def test_a_log_in_memory_counts_and_publishing_is_refused_until_it_was_consumed(in_memory: Bench) -> None:
    for _ in range(3):
        taken = 0
        while in_memory.broker.intake.refusal is None and taken * len(BODY) < 2 * LIMIT:
            await in_memory.publish(*[BODY] * 10)
            taken += 10
            in_memory.broker._keeper._judge()
        assert LIMIT // 2 < taken * len(BODY) < LIMIT, "a body that is paged out is in the log, and counts there"
        assert isinstance(in_memory.broker.intake.refusal, LowMemory)
        assert "of the log" in str(in_memory.broker.intake.refusal)
        with pytest.raises(LowMemory):
            await in_memory.publish(BODY)
        while deliveries := await in_memory.broker.receiving.receive("orders", 50):
            assert {delivery.body for delivery in deliveries} == {BODY}
            await in_memory.acknowledge(*deliveries)
        await until(lambda: in_memory.broker.intake.refusal is None)


async def test_what_a_log_in_memory_keeps_for_its_readers_goes_when_memory_is_scarce(in_memory: Bench) -> None:
    for _ in range(3 * LIMIT // (10 * len(BODY))):
        await until(lambda: in_memory.broker.intake.refusal is None)
        await in_memory.publish(*[BODY] * 10)
        await in_memory.acknowledge(*await in_memory.broker.receiving.receive("orders", 10))
        await until(lambda: held(in_memory) < LIMIT)
