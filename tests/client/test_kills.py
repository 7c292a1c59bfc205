"""The broker is killed with -9 and started again, under load: nothing is lost, nothing is doubled, and the client goes
on by itself."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from smista import AsyncClient, Client, Worker
from smista.client import ClientClosed, ConnectionLost
from smista.errors import StaleReceipt
from tests.server_process import ServerProcess

pytestmark = pytest.mark.slow
KILLS = 25 if os.environ.get("SMISTA_LONG") else 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server


async def kill_now_and_then(server: ServerProcess) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(random.uniform(0.05, 0.5))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)


async def emptied(client: AsyncClient, queue: str) -> None:
    while (await client.stats(queue)).depth:  # noqa: ASYNC110  # another process has no event for it
        await asyncio.sleep(0.02)


async def bodies(client: AsyncClient, queue: str) -> list[bytes | None]:
    return [message.body async for message in client.browse(queue, page_size=10_000)]


async def test_put_many_over_kills_stores_everything_once_and_in_order(server: ServerProcess) -> None:
    async with AsyncClient(server.url) as client:
        await client.declare_queue("orders")
        killing = asyncio.create_task(kill_now_and_then(server))
        count = 0

        async def source() -> AsyncIterator[bytes]:
            nonlocal count
            while not killing.done():
                yield str(count).encode()
                count += 1
                if count % 100 == 0:
                    await asyncio.sleep(0.001)

        summary = await client.put_many("orders", source(), batch_count=200)
        await killing
        assert (summary.accepted, summary.duplicates, summary.refused) == (count, 0, 0)
        assert await bodies(client, "orders") == [str(number).encode() for number in range(count)]


def test_a_synchronous_put_many_over_kills_stores_everything_once(server: ServerProcess) -> None:
    is_done = threading.Event()
    failures: list[BaseException] = []

    def kill() -> None:
        try:
            asyncio.run(kill_now_and_then(server))
        except BaseException as error:
            failures.append(error)
        finally:
            is_done.set()

    with Client(server.url) as client:
        client.declare_queue("orders")
        threading.Thread(target=kill).start()
        count = 0

        def source() -> Iterator[bytes]:
            nonlocal count
            while not is_done.is_set():
                yield str(count).encode()
                count += 1
                if count % 500 == 0:
                    is_done.wait(0.005)

        summary = client.put_many("orders", source(), batch_count=100)
        assert not failures
        assert (summary.accepted, summary.duplicates) == (count, 0)
        found = [message.body for message in client.browse("orders", page_size=10_000)]
        assert found == [str(number).encode() for number in range(count)]


async def test_single_publishes_over_kills_are_each_stored_once(server: ServerProcess) -> None:
    async with AsyncClient(server.url) as client:
        await client.declare_queue("orders")
        killing = asyncio.create_task(kill_now_and_then(server))
        confirmed: dict[str, int] = {}

        async def publish(start: int) -> None:
            number = start
            while not killing.done():
                published = await client.publish("orders", number, priority=number % 3)
                assert not published.is_duplicate
                confirmed[published.id] = number
                number += 10

        await asyncio.gather(killing, *(publish(start) for start in range(10)))
        found = {message.id: message.json() async for message in client.browse("orders", page_size=10_000)}
        assert found == confirmed


async def test_a_subscription_over_kills_gets_everything_and_nothing_after_its_ack(server: ServerProcess) -> None:
    async with AsyncClient(server.url) as client:
        await client.declare_queue("orders", retry_backoff="none", max_retries=None)
        count = 3_000
        await client.put_many("orders", range(count))
        killing = asyncio.create_task(kill_now_and_then(server))
        acknowledged: set[int] = set()
        in_doubt: set[int] = set()
        again_after_ack: list[int] = []

        async with client.subscribe("orders", prefetch=20) as subscription:

            async def consume() -> None:
                async for delivery in subscription:
                    number = delivery.json()
                    if number in acknowledged:
                        again_after_ack.append(number)
                    try:
                        await delivery.ack()
                    except (StaleReceipt, ConnectionLost):
                        in_doubt.add(number)
                    else:
                        acknowledged.add(number)

            consuming = [asyncio.create_task(consume()) for _ in range(5)]
            await killing
            await emptied(client, "orders")
        results = await asyncio.gather(*consuming, return_exceptions=True)
        assert {type(result) for result in results} == {ClientClosed}
        assert again_after_ack == []
        assert acknowledged | in_doubt == set(range(count))
        assert (await client.stats("orders")).dead == 0


async def test_a_worker_over_kills_handles_everything(server: ServerProcess) -> None:
    app = Worker(server.url)
    handled: Counter[int] = Counter()

    @app.consumer("orders", concurrency=8, prefetch=50, lease_ms=5_000)
    async def handle(order: int) -> None:
        await asyncio.sleep(0.001)
        handled[order] += 1

    async with AsyncClient(server.url) as client:
        await client.declare_queue("orders", retry_backoff="none", max_retries=None)
        await client.put_many("orders", range(2_000))
        serving = asyncio.create_task(app.serve())
        await kill_now_and_then(server)
        await emptied(client, "orders")
        app.stop()
        await serving
        assert sorted(handled) == list(range(2_000))


async def test_an_orderly_stop_of_the_broker_is_a_break_like_any_other(server: ServerProcess) -> None:
    async with AsyncClient(server.url) as client:
        await client.declare_queue("orders", retry_backoff="none")
        async with client.subscribe("orders") as subscription:
            await client.publish("orders", 1)
            first = await anext(subscription)
            await asyncio.to_thread(server.stop)
            publishing = asyncio.create_task(client.publish("orders", 2))
            await asyncio.to_thread(server.restart)
            await publishing
            numbers = sorted([(await anext(subscription)).json(), (await anext(subscription)).json()])
            assert numbers == [1, 2]
            with pytest.raises(StaleReceipt):
                await first.ack()
