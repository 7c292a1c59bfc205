"""Memory that was freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from smista.core.state import BrokerState
from smista.engine.kept_blocks import DROPPED_MAX, Kept, KeptBlocks
from smista.engine.memory import AGAIN_S, FREED_BYTES, MemoryReturn

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
