"""`smista demo`: a scripted session in one terminal. A burst of orders arrives faster than workers handle it, and some
of the orders always fail. The broker keeps them, dead-letters those that fail, and redrives them once the handler is
fixed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smista.cli import dead_letters, interrupts
from smista.cli.help import Command
from smista.cli.own_broker import own_broker
from smista.cli.progress import progress
from smista.cli.reach import Namespace, Reach, Url
from smista.cli.table import Column, print_table
from smista.command_line import switch
from smista.text import count

if TYPE_CHECKING:
    from smista.client import AsyncClient, QueueStats, Worker

commands = typer.Typer()

POISON_EVERY = 40
COOKS = 8
LOOK_S = 0.05


class Pace:
    """The number of orders and the pauses."""

    def __init__(self, *, is_fast: bool) -> None:
        self.orders = 200 if is_fast else 4_000
        self.cooking_s = 0.001 if is_fast else 0.01
        self.retry_ms = 20 if is_fast else 300
        self.pause_s = 0.0 if is_fast else 1.0

    @property
    def poison(self) -> int:
        return self.orders // POISON_EVERY


@commands.command(cls=Command)
def demo(
    context: typer.Context,
    is_fast: Annotated[bool, switch("--fast", help="Fewer orders, no pauses.")] = False,
    url: Url = None,
    namespace: Namespace = None,
) -> None:
    """Show a burst of orders, workers, failures, dead letters and a redrive.

    Starts a broker for the demo and removes it afterwards; with --url it uses that broker and a queue of its own.
    """
    # The handler below fails on purpose, and the worker would log each failure.
    logging.getLogger("smista.worker").setLevel(logging.CRITICAL)
    reach = Reach(url, namespace).under(context)
    interrupts.run(_play(reach, Pace(is_fast=is_fast)))


async def _play(reach: Reach, pace: Pace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if reach.url is None:
            _say("Starting a broker ...")
            address, directory = await stack.enter_async_context(own_broker())
            _say(f"It listens on {address}; its log is in {directory}.")
            reach = Reach(address, reach.namespace)
        client = await stack.enter_async_context(reach.client())
        queue = await stack.enter_async_context(_queue(client, pace))
        await Story(client, reach, queue, pace).play()
    _say("\nThe demo has cleaned up after itself.")


@contextlib.asynccontextmanager
async def _queue(client: AsyncClient, pace: Pace) -> AsyncIterator[str]:
    """Declares a queue, and deletes it and its dead-letter queue at the end."""
    queue = f"demo-orders-{os.urandom(3).hex()}"
    await client.declare_queue(queue, max_retries=2, retry_backoff="linear", retry_base_ms=pace.retry_ms)
    try:
        yield queue
    finally:
        for name in await client.queues(prefix=queue):
            await client.delete_queue(name)


class Story:
    def __init__(self, client: AsyncClient, reach: Reach, queue: str, pace: Pace) -> None:
        self._client = client
        self._reach = reach
        self._queue = queue
        self._pace = pace
        self._is_mended = False
        self._cooked: set[int] = set()
        self._serving: asyncio.Task[None] | None = None

    async def play(self) -> None:
        began_s = time.perf_counter()
        await self._burst()
        async with self._workers():
            await self._work_off()
            await self._show_dead_letters()
            await self._redrive()
        await self._close(time.perf_counter() - began_s)

    async def _burst(self) -> None:
        pace = self._pace
        _say(
            f"\nA burst: {count(pace.orders, 'order')} at once. One in {POISON_EVERY} names no pizza, and always fails."
        )
        orders = ({"order": number, "pizza": _pizza(number)} for number in range(1, pace.orders + 1))
        began_s = time.perf_counter()
        with progress("Publishing", pace.orders) as done:
            summary = await self._client.put_many(self._queue, orders, on_progress=done)
        took_s = time.perf_counter() - began_s
        _say(f"{summary.accepted:,} orders are on disk after {took_s:.2f} s.")
        await asyncio.sleep(pace.pause_s)

    @contextlib.asynccontextmanager
    async def _workers(self) -> AsyncIterator[None]:
        capacity = COOKS / self._pace.cooking_s
        _say(f"\n{COOKS} workers start. Together they handle {capacity:,.0f} orders a second; the rest waits.")
        worker = self._worker()
        self._serving = asyncio.create_task(worker.serve())
        try:
            yield
        finally:
            worker.stop()
            await self._serving

    def _worker(self) -> Worker:
        from smista.client import Worker

        worker = Worker(self._reach.address, namespace=self._reach.namespace)

        @worker.consumer(self._queue, concurrency=COOKS, prefetch=2 * COOKS)
        async def cook(order: dict[str, Any]) -> None:
            if order["pizza"] is None and not self._is_mended:
                raise ValueError(f"order {order['order']} names no pizza")
            await asyncio.sleep(self._pace.cooking_s)
            self._cooked.add(order["order"])

        return worker

    async def _work_off(self) -> None:
        pace = self._pace
        good = pace.orders - pace.poison
        with progress("Cooking", good) as done:
            stats = await self._until(
                lambda stats: stats.depth == 0 and stats.dead_lettered_total >= pace.poison,
                lambda: done(len(self._cooked)),
            )
        _say(f"{len(self._cooked):,} orders are cooked and acknowledged.")
        _say(
            f"{count(stats.dead_lettered_total, 'order')} failed, were retried twice, and became dead letters: "
            f"{stats.nacked_total:,} deliveries failed, without holding up the good orders."
        )

    async def _show_dead_letters(self) -> None:
        _say(f"\nsmista dlq list {self._queue} --limit 3")
        found = await self._client.dead_letters(self._queue, page_size=3).next_page()
        # Without id and source, which are long and do not matter here.
        places = [place for place, column in enumerate(dead_letters.COLUMNS) if column.heading not in ("id", "source")]
        print_table(
            [dead_letters.COLUMNS[place] for place in places],
            [[row[place] for place in places] for row in map(dead_letters.row, found)],
        )
        await asyncio.sleep(self._pace.pause_s)

    async def _redrive(self) -> None:
        _say(f"\nThe handler is fixed: no pizza means margherita. smista dlq redrive {self._queue}")
        self._is_mended = True
        redriven = await self._client.redrive(self._queue)
        cooked = len(self._cooked)
        with progress("Cooking", redriven) as done:
            await self._until(
                lambda stats: stats.depth == 0 and len(self._cooked) >= self._pace.orders,
                lambda: done(len(self._cooked) - cooked),
            )
        _say(f"{count(redriven, 'order')} came back, and this time they are cooked.")

    async def _close(self, took_s: float) -> None:
        stats = await self._client.stats(self._queue)
        _say("\nThe end:")
        print_table(
            [Column("what"), Column("how many", is_number=True)],
            [
                ["orders published", stats.published_total],
                ["deliveries", stats.delivered_total],
                ["deliveries that failed", stats.nacked_total],
                ["set aside as dead letters", stats.dead_lettered_total],
                ["redriven", stats.redriven_total],
                ["acknowledged", stats.acknowledged_total],
                ["orders cooked, each counted once", len(self._cooked)],
                ["left in the queue", stats.depth],
                ["lost", self._pace.orders - len(self._cooked)],
                ["seconds", f"{took_s:.1f}"],
            ],
        )

    async def _until(self, is_reached: Callable[[QueueStats], bool], show: Callable[[], None]) -> QueueStats:
        assert self._serving is not None
        while not self._serving.done():
            stats = await self._client.stats(self._queue)
            show()
            if is_reached(stats):
                return stats
            await asyncio.sleep(LOOK_S)
        self._serving.result()
        raise AssertionError("the workers have stopped by themselves")


def _pizza(number: int) -> str | None:
    return None if number % POISON_EVERY == 0 else ("margherita", "funghi", "diavola")[number % 3]


def _say(sentence: str) -> None:
    print(sentence, flush=True)
