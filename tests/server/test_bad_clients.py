"""A client works beside bad clients; counted rather than timed, `python -m bench http` measures it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bench.bad_clients import BadClients, allow_files
from smista import AsyncClient
from tests.server_process import ServerProcess
from tests.waiting import answers, until

IDLE, STALLED, HALF_SENT = 1_000, 100, 200
STALLED_BODY = b"x" * 1_000
STALLED_MESSAGES = 50_000
MESSAGES = 200
DEADLINE_S = 10
MEMORY_BYTES_MAX = 200 << 20
"""What 1,300 connections may cost; some 50 MB were measured."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    flags = ("--header-timeout-s", str(DEADLINE_S), "--body-timeout-s", str(DEADLINE_S))
    allow_files(4_096)
    with ServerProcess(tmp_path / "data", *flags) as server:
        yield server
    assert [line for line in server.lines if "Traceback" in line or " ERROR " in line] == []


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as client:
        await client.declare_queue("work")
        await client.declare_queue("idle", max_retries=None)
        await client.declare_queue("stalled", max_retries=None)
        await client.put_many("stalled", (STALLED_BODY for _ in range(STALLED_MESSAGES)))
        yield client


async def work(client: AsyncClient) -> None:
    """Publish, consume and settle, one by one."""
    async with client.subscribe("work", prefetch=10) as subscription:
        for number in range(MESSAGES):
            await client.publish("work", number)
            delivery = await subscription.next()
            assert delivery is not None
            assert delivery.value() == number
            await delivery.ack()
    stats = await client.stats("work")
    assert (stats.depth, stats.acknowledged_total) == (0, stats.published_total)


async def gone(client: AsyncClient, queue: str, count: int) -> None:
    """Wait until nobody consumes a queue any more, and all that was held is back: very many go back in slices."""
    stats = await answers(lambda: client.stats(queue), lambda stats: not stats.consumers and not stats.in_flight)
    assert stats.ready == count


def resident_bytes(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


async def test_bad_clients_hurt_only_themselves(server: ServerProcess, client: AsyncClient) -> None:
    await work(client)
    before = resident_bytes(server.pid)
    idle_count = min(IDLE, allow_files(4_096) - STALLED - HALF_SENT - 200)
    others = BadClients(server.address, idle_count=idle_count, stalled_count=STALLED, half_sent_count=HALF_SENT)
    async with others:
        await work(client)
        # Those that never end their request are cut off, come back, and are again; those that do not read are, too.
        await until(lambda: others.cut_off["half sent"] >= 2 * HALF_SENT)
        await work(client)
        await gone(client, "stalled", STALLED_MESSAGES)
        assert resident_bytes(server.pid) - before < MEMORY_BYTES_MAX
        # Those that only wait are not, and each gets its share of what comes.
        assert others.cut_off["idle"] == 0
        assert (await client.stats("idle")).consumers == idle_count
        await client.put_many("idle", (b"x" for _ in range(idle_count)))
        assert (await client.stats("idle")).in_flight == idle_count
    await gone(client, "idle", idle_count)
    await work(client)
