"""From publishers to an archive, while brokers and drivers are killed: every message once, and the sums come out.

Publishers and a consumer work against a broker that is killed again and again. Meanwhile `smista pipeline archive`
follows its log, and its driver with all its Java is killed too. At the end the archive holds every message that was
published exactly once, and `smista pipeline reconcile` finds nothing wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from smista import Client
from smista.client.errors import ConnectionLost
from smista.errors import StaleReceipt
from smista.spark.pipelines.manifests import Archive
from tests.server_process import ServerProcess
from tests.waiting import SPARK_PATIENCE_S, eventually

COUNT = 200_000 if os.environ.get("SMISTA_LONG") else 4_000
KILLS = 10 if os.environ.get("SMISTA_LONG") else 2
"""Half of them of the broker, half of the driver."""
QUEUE = "orders"
PIECE = 200
REJECTED_EVERY = 97


def body(number: int) -> bytes:
    return b'{"order": %d}' % number


# Spark's share of a busy machine: see conftest.py.
MASTER = ("--master", "local[2]", "--conf", "spark.smista.niceness=0")


def smista(*words: str) -> list[str]:
    return [sys.executable, "-m", "smista", *words]


def done(*words: str) -> dict[str, Any]:
    """What a pipeline says of itself when it has ended well."""
    ended = subprocess.run(smista("pipeline", *words, *MASTER, "--json"), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@contextlib.contextmanager
def driver(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A pipeline that goes on and on, killed at the end with everything it has started."""
    command = smista("pipeline", *words, *MASTER, "--interval", "200ms")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Work(threading.Thread):
    """Something that goes on beside the kills; `join` tells what went wrong in it."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        self.join(600)
        assert not self.is_alive(), "it does not come to an end"
        if self._error is not None:
            raise self._error


def publish(url: str, pace: threading.Semaphore) -> None:
    with Client(url, retry_for_ms=120_000) as client:
        for start in range(0, COUNT, PIECE):
            pace.acquire()
            summary = client.put_many(QUEUE, [body(number) for number in range(start, start + PIECE)])
            assert summary.accepted == PIECE


def consume(url: str, is_over: threading.Event) -> None:
    """Acknowledge nearly all, reject some, until there is nothing left."""
    with Client(url, retry_for_ms=120_000) as client:
        while not is_over.is_set() or client.stats(QUEUE).depth:
            for message in client.receive(QUEUE, limit=200, wait_ms=200):
                number = json.loads(message.body)["order"]
                # What became of it when the broker was killed meanwhile, nobody knows; it may come again.
                with contextlib.suppress(ConnectionLost, StaleReceipt):
                    if number % REJECTED_EVERY:
                        message.ack()
                    else:
                        message.nack(requeue=False, error="no such customer")


def archived(folder: Path) -> list[bytes]:
    """The bodies of all publishes that the manifests list, sorted."""
    place = Archive(folder)
    files = [place.path / "data" / file.path for manifest in place.manifests() for file in manifest.files]
    tables = [pq.ParquetFile(file).read(columns=["kind", "body"]).to_pylist() for file in files]
    return sorted(row["body"] for table in tables for row in table if row["kind"] == "enqueued")


def batch_count(folder: Path) -> int:
    return len(Archive(folder).all_manifests()) if folder.exists() else 0


def has_more_batches(folder: Path, count: int) -> bool:
    return batch_count(folder) > count


@pytest.mark.timeout(1_800)
def test_every_message_once_whatever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(1)
    folder = tmp_path / "archive"
    pace = threading.Semaphore(0)
    is_published = threading.Event()
    keep = ("--log-retention-bytes", str(8 << 30), "--log-retention-ms", str(86_400_000))
    with ServerProcess(tmp_path / "data", *keep).start() as server:
        with Client(server.url) as client:
            client.declare_queue(QUEUE, lease_ms=5_000, max_retries=None)
        words = ("archive", str(folder), "--endpoint", server.url, "--batch-rows", str(COUNT // 2))
        publishing = Work(lambda: publish(server.url, pace))
        consuming = Work(lambda: consume(server.url, is_published))
        share = COUNT // PIECE // KILLS
        for number in range(KILLS // 2):
            batches = batch_count(folder)
            with driver(*words) as archiving:
                pace.release(share)
                eventually(
                    partial(has_more_batches, folder, batches),
                    every_s=0.1,
                    patience_s=SPARK_PATIENCE_S,
                    as_long_as=lambda: archiving.poll() is None,  # called before the next one is there
                )
                pace.release(share if number < KILLS // 2 - 1 else COUNT)
                time.sleep(chance.uniform(0, 2))
                server.kill()
                time.sleep(chance.uniform(0, 1))
                server.restart()
                time.sleep(chance.uniform(0, 3))
        publishing.end()
        is_published.set()
        consuming.end()
        done(*words)
        assert archived(folder) == sorted(body(number) for number in range(COUNT))
        facts = done("reconcile", "--archive", str(folder))
        assert (facts["published"], facts["faults"], facts["live"]) == (COUNT, 0, 0)
        assert facts["acknowledged"] + facts["dead"] == COUNT
        assert facts["dead"] == len(range(0, COUNT, REJECTED_EVERY))
        facts = done("reconcile", "--endpoint", server.url)
        assert (facts["published"], facts["faults"]) == (COUNT, 0)
