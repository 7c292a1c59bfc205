"""A program on aio-pika: `publish` sends so many messages, a hundred at a time, each with its confirm; `consume` takes
and acknowledges each.

`python -m bench.applications.aio_pika_app publish|consume COUNT`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid

import aio_pika

QUEUE = "orders"
AT_ONCE = 100


def message(number: int) -> aio_pika.Message:
    return aio_pika.Message(
        json.dumps({"order": number, "lines": ["book"] * (number % 5)}).encode(),
        content_type="application/json",
        content_encoding="utf-8",
        headers={"lang": "py", "task": "shop.tasks.confirm_order"},
        message_id=str(uuid.uuid4()),
        correlation_id=str(uuid.uuid4()),
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )


async def publish(count: int) -> None:
    async with await aio_pika.connect_robust(os.environ["BENCH_BROKER"]) as connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.declare_queue(QUEUE, durable=True)
        exchange = channel.default_exchange
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            await asyncio.gather(*(exchange.publish(message(number), QUEUE) for number in numbers))


async def consume(count: int) -> None:
    async with await aio_pika.connect_robust(os.environ["BENCH_BROKER"]) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=AT_ONCE)
        queue = await channel.declare_queue(QUEUE, durable=True)
        taken = 0
        async with queue.iterator() as messages:
            async for one in messages:
                json.loads(one.body)
                await one.ack()
                taken += 1
                if taken == count:
                    break


if __name__ == "__main__":
    asyncio.run({"publish": publish, "consume": consume}[sys.argv[1]](int(sys.argv[2])))
