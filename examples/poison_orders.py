"""An order that always fails does not stop the others: after its retries it becomes a dead letter, and is redriven.

    smista serve &
    python examples/poison_orders.py                         # or: ... http://127.0.0.1:9324

One customer writes the amount with a comma. The first handler cannot read it and raises; the broker redelivers the
order twice, then dead-letters it with the errors. The second handler can read it, and the order is sent back.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

from smista import AsyncClient

ORDERS = [
    {"order_id": 121, "amount": "12.50"},
    {"order_id": 122, "amount": "99,99"},
    {"order_id": 123, "amount": "7.00"},
]


def charge(order: dict[str, Any]) -> None:
    print(f"order {order['order_id']}: charged {float(order['amount']):.2f}")


def charge_with_commas(order: dict[str, Any]) -> None:
    charge({**order, "amount": order["amount"].replace(",", ".")})


async def work(client: AsyncClient, handle: Callable[[dict[str, Any]], None]) -> None:
    """Handle orders until none is left: each is acknowledged or dead-lettered."""
    async with client.subscribe("poison-orders") as orders:
        while (delivery := await orders.next(timeout_ms=1_000)) is not None:
            try:
                async with delivery:  # acknowledges; on an exception nacks with its text
                    handle(delivery.json())
            except ValueError as error:
                print(f"order {delivery.json()['order_id']}: {error}")


async def main(address: str) -> None:
    async with AsyncClient(address) as client:
        await client.declare_queue("poison-orders", max_retries=2, retry_base_ms=100)
        await client.put_many("poison-orders", ORDERS)
        await work(client, charge)

        async for dead in client.dead_letters("poison-orders"):
            print(f"dead letter: {dead.json()}")
            for failure in dead.deaths[-1].failures:
                print(f"  delivery {failure.delivery}: {failure.error}")

        print(f"sent back: {await client.redrive('poison-orders')}")
        await work(client, charge_with_commas)
        print(f"left as dead letters: {await client.purge_dead_letters('poison-orders')}")
        await client.delete_queue("poison-orders")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SMISTA_URL", "http://127.0.0.1:9324")))
