"""A Celery application on SQS, as its documentation has it: `celery -A celery_app worker`."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery  # type: ignore[import-untyped]  # has no types

app = Celery("celery_app", broker=os.environ["BROKER"])
app.conf.update(
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "polling_interval": 0.1,
        "wait_time_seconds": 1,
        "visibility_timeout": 30,
        "queue_name_prefix": os.environ["PREFIX"],
    },
    worker_enable_remote_control=False,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
)


@app.task(bind=True, default_retry_delay=0, max_retries=3)  # type: ignore[untyped-decorator]  # as celery
def note(self, text: str) -> None:  # type: ignore[no-untyped-def]  # as celery
    """Fails once, so that it is sent again."""
    if text == "fails once" and self.request.retries == 0:
        raise self.retry(countdown=0)
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(f"{text}\n")
