"""Queues for tests of Spark: each test has its own, on a broker that it shares."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from smista import Client
from tests.waiting import PATIENCE_S

_numbers = itertools.count(1)


class Queues:
    def __init__(self, client: Client, url: str) -> None:
        self.client = client
        self.url = url

    def new(self, bodies: Iterable[bytes] = ()) -> str:
        """A queue that nobody else has, with these messages."""
        name = f"orders-{next(_numbers)}"
        self.client.declare_queue(name)
        self.put(name, bodies)
        return name

    def put(self, queue: str, bodies: Iterable[bytes]) -> None:
        self.client.put_many(queue, bodies)

    def stats(self, queue: str) -> dict[str, Any]:
        return self.get(f"/v1/queues/{queue}")

    def counts(self, queue: str) -> tuple[int, int]:
        """Ready, in flight."""
        stats = self.stats(queue)
        return stats["ready"], stats["in_flight"]

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def post(self, path: str, **fields: Any) -> dict[str, Any]:
        content = json.dumps(fields).encode()
        request = urllib.request.Request(self.url + path, content, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def take_all(self, queue: str) -> list[bytes]:
        """The bodies of all that is ready, acknowledged."""
        found: list[bytes] = []
        while deliveries := self.client.receive(queue, 1000):
            for delivery in deliveries:
                found.append(delivery.body)
                delivery.ack()
        return found


def forget_commit(checkpoint: Path, batch: int) -> None:
    """As if the driver had died between a batch's sink and the entry that says it is done."""
    for name in (str(batch), f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink()


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [f"order {number:06}".encode() for number in range(start, start + count)]
