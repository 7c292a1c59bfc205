"""`smista bench`: measures a running broker from its clients' side.

    publish       every connection publishes its share, as fast as the broker confirms
    consume       every connection subscribes and acknowledges, until the queue is empty
    confirm       time from a publish to its confirmation, one publish at a time on every connection
    deliver       time from a publish to its delivery to a waiting consumer, one message at a time

The first two are rates, the others percentiles. The queue is declared for the measurement and deleted at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smista.cli import interrupts
from smista.cli.help import Command
from smista.cli.output import Output
from smista.cli.progress import progress
from smista.cli.reach import AsJson, Namespace, Reach, Url
from smista.cli.table import Column, print_table
from smista.command_line import WrongUsage
from smista.text import count, shown_bytes

if TYPE_CHECKING:
    from smista.client import AsyncClient, Delivery, Subscription

commands = typer.Typer()

PREFETCH = 1_000
SINGLE_MAX = 2_000
"""Most messages to send one at a time; percentiles need no more."""
PERCENTILES = (50, 90, 99)


@commands.command(cls=Command)
def bench(
    context: typer.Context,
    messages: Annotated[
        int, typer.Option("--messages", "-n", metavar="COUNT", min=1, help="Number of messages.")
    ] = 50_000,
    size: Annotated[int, typer.Option("--size", "-s", metavar="BYTES", min=0, help="Size of a body.")] = 100,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", metavar="COUNT", min=1, max=1_000, help="Number of connections.")
    ] = 4,
    queue: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="The name of the queue to declare and delete; default: a random name."),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Measure a running broker: rates of publishing and consuming, percentiles of latency."""
    import uvloop

    reach = Reach(url, namespace, as_json).under(context)
    name = queue or f"smista-bench-{os.urandom(4).hex()}"
    figures = interrupts.run(
        _measured(reach, name, messages, os.urandom(size), concurrency), loop_factory=uvloop.new_event_loop
    )
    _report(Output(is_json=reach.is_json), figures)


async def _measured(reach: Reach, queue: str, total: int, body: bytes, concurrency: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"messages": total, "size": len(body), "concurrency": concurrency}
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(reach.client()) for _ in range(concurrency)]
        await stack.enter_async_context(_queue_of_our_own(clients[0], queue))
        bench = Bench(queue, body, clients)
        figures["publish_per_s"] = round(total / await bench.publish(total))
        figures["consume_per_s"] = round(total / await bench.consume(total))
        singly = min(total, SINGLE_MAX)
        figures["confirm_ms"] = percentiles(await bench.confirm(singly))
        await clients[0].purge(queue)
        figures["deliver_ms"] = percentiles(await bench.deliver(singly))
    return figures


@contextlib.asynccontextmanager
async def _queue_of_our_own(client: AsyncClient, queue: str) -> AsyncIterator[None]:
    if not await client.declare_queue(queue, max_prefetch=PREFETCH):
        raise WrongUsage(f"Queue {queue!r} exists already, and would be deleted; choose another name.")
    try:
        yield
    finally:
        await client.delete_queue(queue)


class Bench:
    def __init__(self, queue: str, body: bytes, clients: list[AsyncClient]) -> None:
        self._queue = queue
        self._body = body
        self._clients = clients

    async def publish(self, total: int) -> float:
        """Publish `total` messages; returns the seconds until all were confirmed."""
        with progress("Publishing", total) as show:
            put = [0] * len(self._clients)

            async def put_share(place: int, share: int) -> None:
                def done(number: int) -> None:
                    put[place] = number
                    show(sum(put))

                await self._clients[place].put_many(self._queue, [self._body] * share, on_progress=done)

            started_s = time.perf_counter()
            await asyncio.gather(*(put_share(*each) for each in enumerate(self._shares(total))))
            return time.perf_counter() - started_s

    async def consume(self, total: int) -> float:
        """Consume `total` messages; returns the seconds until all acknowledgements were confirmed."""
        left = total
        subscriptions = [client.subscribe(self._queue, prefetch=PREFETCH) for client in self._clients]
        with progress("Consuming", total) as show:

            async def take(subscription: Subscription[Delivery]) -> None:
                nonlocal left
                while left > 0:
                    batch = await subscription.next_batch()
                    subscription.ack_up_to(batch[-1])
                    left -= len(batch)
                    show(total - left)

            started_s = time.perf_counter()
            takers = [asyncio.create_task(take(subscription)) for subscription in subscriptions]
            # The first to end found nothing left, or failed.
            done, _ = await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
            for taker in takers:
                taker.cancel()
            for taker in done:
                taker.result()
            await asyncio.gather(*(subscription.settled() for subscription in subscriptions))
            took_s = time.perf_counter() - started_s
        for subscription in subscriptions:
            await subscription.close()
        return took_s

    async def confirm(self, total: int) -> list[float]:
        """Milliseconds from each publish to its confirmation."""
        took_ms: list[float] = []
        with progress("Publishing one at a time", total) as show:

            async def publish_share(client: AsyncClient, share: int) -> None:
                for _ in range(share):
                    started_s = time.perf_counter()
                    await client.publish(self._queue, body=self._body)
                    took_ms.append((time.perf_counter() - started_s) * 1000)
                    show(len(took_ms))

            await asyncio.gather(*map(publish_share, self._clients, self._shares(total)))
        return took_ms

    async def deliver(self, total: int) -> list[float]:
        """Milliseconds from each publish to its delivery."""
        publisher, consumer = self._clients[0], self._clients[-1]
        took_ms: list[float] = []
        with progress("Publishing to a waiting consumer", total) as show:
            async with consumer.subscribe(self._queue, prefetch=1) as subscription:
                for _ in range(total):
                    started_s = time.perf_counter()
                    published = asyncio.create_task(publisher.publish(self._queue, body=self._body))
                    delivery = await anext(subscription)
                    took_ms.append((time.perf_counter() - started_s) * 1000)
                    await published
                    await delivery.ack()
                    show(len(took_ms))
        return took_ms

    def _shares(self, total: int) -> list[int]:
        count = len(self._clients)
        return [total // count + (place < total % count) for place in range(count)]


def percentiles(values: list[float]) -> dict[str, float]:
    """For each percentile, the value that this share of `values` does not exceed."""
    ordered = sorted(values)
    return {
        **{f"p{share}": round(ordered[-(-len(ordered) * share // 100) - 1], 3) for share in PERCENTILES},
        "max": round(ordered[-1], 3),
    }


def _report(output: Output, figures: dict[str, Any]) -> None:
    if output.is_json:
        output.line(figures)
        return
    what = f"{count(figures['messages'], 'message')} of {shown_bytes(figures['size'])}"
    print(f"{what} over {count(figures['concurrency'], 'connection')}")
    rows: list[list[object]] = [
        ["publish", f"{figures['publish_per_s']:,}/s"],
        ["consume and acknowledge", f"{figures['consume_per_s']:,}/s"],
    ]
    for name, title in (("confirm_ms", "publish one, until confirmed"), ("deliver_ms", "publish one, until delivered")):
        rows.append([title, ", ".join(f"{share} {value:.1f} ms" for share, value in figures[name].items())])
    print_table([Column("what"), Column("figure")], rows)
