"""A program on pika's blocking connection: `publish` sends so many messages and waits for each confirm, `consume` takes
and acknowledges each.

`python -m bench.applications.pika_app publish|consume COUNT`
"""

from __future__ import annotations

import json
import os
import sys
import uuid

import pika  # type: ignore[import-untyped] # has no types

QUEUE = "orders"


def publish(count: int) -> None:
    with pika.BlockingConnection(pika.URLParameters(os.environ["BENCH_BROKER"])) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.confirm_delivery()
        for number in range(count):
            properties = pika.BasicProperties(
                content_type="application/json",
                content_encoding="utf-8",
                headers={"lang": "py", "task": "shop.tasks.confirm_order"},
                message_id=str(uuid.uuid4()),
                correlation_id=str(uuid.uuid4()),
                delivery_mode=2,
            )
            body = json.dumps({"order": number, "lines": ["book"] * (number % 5)}).encode()
            channel.basic_publish("", QUEUE, body, properties)


def consume(count: int) -> None:
    with pika.BlockingConnection(pika.URLParameters(os.environ["BENCH_BROKER"])) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.basic_qos(prefetch_count=100)
        for taken, (method, _, body) in enumerate(channel.consume(QUEUE), 1):
            json.loads(body)
            channel.basic_ack(method.delivery_tag)
            if taken == count:
                break


if __name__ == "__main__":
    {"publish": publish, "consume": consume}[sys.argv[1]](int(sys.argv[2]))
