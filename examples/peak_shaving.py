"""Ten thousand orders arrive at once; the database takes a thousand a second. The queue holds the rest.

    smista serve &
    python examples/peak_shaving.py                          # or: ... http://127.0.0.1:9324 --orders 2000

The shop is done as soon as the orders are on the broker's disk. The worker stores them as fast as the database allows,
and never faster.
"""

import argparse
import asyncio
import os
import time
from typing import Any

from smista import AsyncClient, Worker


class Database:
    """Takes so many orders a second, and would fail if it were asked for more."""

    def __init__(self, per_second: int) -> None:
        self.orders: set[int] = set()
        self._per_second = per_second
        self._began = time.monotonic()
        self._accepted = 0

    async def insert(self, order: dict[str, Any]) -> None:
        self._accepted += 1
        await asyncio.sleep(self._began + self._accepted / self._per_second - time.monotonic())
        self.orders.add(order["id"])  # a set: an order that is delivered twice is stored once


async def main(address: str, order_count: int, per_second: int) -> None:
    async with AsyncClient(address) as shop:
        await shop.declare_queue("peak-orders")
        began = time.monotonic()
        orders = ({"id": number, "amount": 99.99} for number in range(order_count))
        summary = await shop.put_many("peak-orders", orders)
        print(f"{summary.accepted} orders accepted in {time.monotonic() - began:.2f} s")

        app = Worker(address)
        database = Database(per_second)

        @app.consumer("peak-orders", concurrency=20, prefetch=200)
        async def store(order: dict[str, Any]) -> None:
            await database.insert(order)

        working = asyncio.create_task(app.serve())
        while (depth := (await shop.stats("peak-orders")).depth) and not working.done():
            print(f"{depth:6} waiting, {len(database.orders):6} stored")
            await asyncio.sleep(min(1.0, order_count / per_second / 4))
        app.stop()
        await working
        print(f"{len(database.orders)} orders stored in {time.monotonic() - began:.1f} s, none lost, none refused")
        await shop.delete_queue("peak-orders")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A burst of orders against a slow database.")
    parser.add_argument("address", nargs="?", default=os.environ.get("SMISTA_URL", "http://127.0.0.1:9324"))
    parser.add_argument("--orders", type=int, default=10_000)
    parser.add_argument("--per-second", type=int, default=1_000, help="what the database takes")
    given = parser.parse_args()
    asyncio.run(main(given.address, given.orders, given.per_second))
