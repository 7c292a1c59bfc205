import asyncio

from smista.engine import Broker, Publication
from smista.log import SqliteLog


async def main() -> None:
    async with await Broker.open(SqliteLog.open("data")) as broker:
        await broker.declare_queue("orders")
        await broker.publish("orders", [Publication(b"two pizzas")])
        [delivery] = await broker.receive("orders", wait_ms=1_000)
        print(delivery.body.decode(), "- delivery", delivery.delivery_count)
        await broker.acknowledge([delivery.receipt])


asyncio.run(main())
