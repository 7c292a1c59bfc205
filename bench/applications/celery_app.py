"""A Celery application as anybody might write it. Each task leaves a byte in a file, so that they can be counted.

`python -m bench.applications.celery_app COUNT` sends so many, one after the other.
"""

from __future__ import annotations

import os
import sys

from celery import Celery  # type: ignore[import-untyped] # has no types

app = Celery("shop", broker=os.environ.get("BENCH_BROKER", "memory://"))
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=10,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
)
_done = os.open(os.environ.get("BENCH_DONE", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task(name="shop.tasks.confirm_order")  # type: ignore[untyped-decorator] # Celery has no types
def confirm_order(number: int, customer: str) -> None:
    os.write(_done, b"x")


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        confirm_order.delay(number, customer=f"customer-{number % 100}")
