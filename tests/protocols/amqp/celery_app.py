"""A Celery application as anybody might write it; test_celery.py runs a real worker on it.

SMISTA_CELERY_BROKER, SMISTA_CELERY_FOLDER, SMISTA_CELERY_QUEUE, SMISTA_CELERY_QUEUE_TYPE
"""

from __future__ import annotations

import importlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, chord, group  # type: ignore[import-untyped] # has no types
from celery.exceptions import Reject  # type: ignore[import-untyped] # has no types

# It says that it has types, and has none.
kombu: Any = importlib.import_module("kombu")

FOLDER = Path(os.environ.get("SMISTA_CELERY_FOLDER", "."))


def special(queue: str) -> Any:
    """A queue beside the usual one, with all that Celery lets one ask of RabbitMQ."""
    return kombu.Queue(
        f"{queue}-special",
        max_priority=10,
        queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{queue}-dead"},
        bindings=[
            kombu.binding(kombu.Exchange(f"{queue}-topic", "topic"), routing_key="orders.*.paid"),
            kombu.binding(kombu.Exchange(f"{queue}-headers", "headers"), arguments={"x-match": "all", "kind": "order"}),
        ],
    )


def make_app(broker: str, folder: Path, queue: str, queue_type: str) -> Any:
    app = Celery("workshop", broker=broker, backend=f"file://{folder}/results")
    app.conf.update(
        task_default_queue=queue,
        task_default_exchange=queue,
        task_default_routing_key=queue,
        task_default_queue_type=queue_type,
        task_queues=[
            kombu.Queue(queue, kombu.Exchange(queue), routing_key=queue, queue_arguments={"x-queue-type": queue_type}),
            special(queue),
        ],
        worker_detect_quorum_queues=True,
        task_publish_retry=True,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
    )
    return app


app = make_app(
    os.environ.get("SMISTA_CELERY_BROKER", "memory://"),
    FOLDER,
    os.environ.get("SMISTA_CELERY_QUEUE", "celery"),
    os.environ.get("SMISTA_CELERY_QUEUE_TYPE", "classic"),
)


@app.task  # type: ignore[untyped-decorator] # Celery has no types
def add(x: int, y: int) -> int:
    return x + y


@app.task  # type: ignore[untyped-decorator] # Celery has no types
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task  # type: ignore[untyped-decorator] # Celery has no types
def now() -> float:
    return time.time()


@app.task(bind=True, max_retries=5)  # type: ignore[untyped-decorator] # Celery has no types
def fail_at_first(self: Any, times: int) -> int:
    if self.request.retries < times:
        raise self.retry(countdown=0.2)
    return int(self.request.retries)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)  # type: ignore[untyped-decorator] # Celery has no types
def die_at_first(self: Any) -> bool:
    """Takes its process along the first time; returns whether the message says that it comes again."""
    mark = FOLDER / f"died-{self.request.id}"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return bool(self.request.delivery_info["redelivered"])


@app.task(bind=True, acks_late=True)  # type: ignore[untyped-decorator] # Celery has no types
def refuse(self: Any) -> None:
    """Is put back the first time, and set aside the second."""
    raise Reject("not me", requeue=not self.request.delivery_info["redelivered"])


__all__ = ["add", "app", "chord", "die_at_first", "fail_at_first", "group", "make_app", "now", "refuse", "total"]
