"""A FIFO queue under load, failures and kills: order within each group, nothing lost, nothing stored twice."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]  # has no types of its own

from tests.protocols.sqs.clients import Client, make_client, new_queue
from tests.server_process import ServerProcess

IS_LONG = bool(os.environ.get("SMISTA_LONG"))
GROUPS = 20
CONSUMERS = 8
PER_GROUP = 200 if IS_LONG else 25
KILLS = 12 if IS_LONG else 3

Key = tuple[str, int]


class Ledger:
    """What is known of each message, and what may never be seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[Key, tuple[str, float]] = {}
        """By which id it was confirmed, and when. What was never confirmed may be handed out, then lost in a kill, and
        stored again when its sender repeats it."""
        self._tried: Counter[Key] = Counter()
        """How often its deletion was asked for and not refused, so that it may have happened: more than once where a
        lease ran out meanwhile."""
        self._deleted_at: dict[Key, float] = {}
        self.wrong: list[str] = []

    def sent(self, key: Key, message_id: str) -> None:
        with self._lock:
            if self._ids.setdefault(key, (message_id, time.monotonic()))[0] != message_id:
                self.wrong.append(f"{key} was confirmed under two ids")

    def received(self, keys: list[Key], ids: list[str], asked_at: float) -> None:
        with self._lock:
            for place, key in enumerate(keys):
                group, number = key
                confirmed_id, confirmed_at = self._ids.get(key, ("", asked_at))
                if confirmed_at < asked_at and confirmed_id != ids[place]:
                    self.wrong.append(f"{key} was stored twice")
                if self._deleted_at.get(key, asked_at) < asked_at:
                    self.wrong.append(f"{key} came back after it was deleted")
                before = {(group, earlier) for earlier in range(number)}
                missing = before - self._tried.keys() - set(keys[:place])
                if missing:
                    self.wrong.append(f"{key} came before {sorted(missing)}")

    def trying(self, key: Key) -> None:
        with self._lock:
            self._tried[key] += 1

    def refused(self, key: Key) -> None:
        with self._lock:
            self._tried[key] -= 1
            if not self._tried[key]:
                del self._tried[key]

    def deleted(self, key: Key) -> None:
        with self._lock:
            self._deleted_at.setdefault(key, time.monotonic())

    @property
    def deleted_count(self) -> int:
        return len(self._deleted_at)


def insist(step: Callable[[], Any], stop: threading.Event) -> Any:
    """Until it is answered: the broker is being killed now and then."""
    while not stop.is_set():
        try:
            return step()
        except BotoCoreError:
            time.sleep(0.05)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise
            time.sleep(0.05)
    return None


def produce(sqs: Client, queue: str, ledger: Ledger, stop: threading.Event) -> None:
    chance = random.Random(1)
    for number in range(PER_GROUP):
        for group in range(GROUPS):
            key = (f"g{group}", number)

            def send(key: Key = key) -> Any:
                return sqs.send_message(
                    QueueUrl=queue,
                    MessageBody=f"{key[0]} {key[1]}",
                    MessageGroupId=key[0],
                    MessageDeduplicationId=f"{key[0]}-{key[1]}",
                )

            for _ in range(2 if chance.random() < 0.2 else 1):
                answer = insist(send, stop)
                if answer is not None:
                    ledger.sent(key, answer["MessageId"])


def consume(sqs: Client, queue: str, ledger: Ledger, stop: threading.Event, seed: int) -> None:
    chance = random.Random(seed)
    while not stop.is_set():
        asked_at = time.monotonic()
        lease_s = chance.choice((1, 2, 30))
        parameters = {"MaxNumberOfMessages": 4, "VisibilityTimeout": lease_s, "WaitTimeSeconds": 1}
        answer = insist(partial(sqs.receive_message, QueueUrl=queue, **parameters), stop)
        messages = (answer or {}).get("Messages", [])
        keys = [(text[0], int(text[1])) for text in (message["Body"].split() for message in messages)]
        ledger.received(keys, [message["MessageId"] for message in messages], asked_at)
        failed: set[str] = set()
        for key, message in zip(keys, messages, strict=True):
            # Whoever fails at one message leaves the rest of its group alone.
            if key[0] in failed or not _settle(sqs, queue, ledger, stop, chance, key, message["ReceiptHandle"]):
                failed.add(key[0])
                _change(sqs, queue, message["ReceiptHandle"], chance.choice((0, 0, 1)))


def _settle(
    sqs: Client, queue: str, ledger: Ledger, stop: threading.Event, chance: random.Random, key: Key, handle: str
) -> bool:
    luck = chance.random()
    if luck < 0.1:
        return False
    if luck < 0.2:
        _change(sqs, queue, handle, 5)
    ledger.trying(key)
    try:
        insist(lambda: sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle), stop)
    except ClientError:
        # Too late: its lease was over, and somebody else has it or will.
        ledger.refused(key)
        return False
    if not stop.is_set():
        ledger.deleted(key)
    return True


def _change(sqs: Client, queue: str, handle: str, timeout_s: int) -> None:
    with contextlib.suppress(BotoCoreError, ClientError):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=timeout_s)


@pytest.mark.slow
def test_order_and_deduplication_survive_failures_and_kills(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        clients = [make_client(server.url, retries={"total_max_attempts": 1}) for _ in range(CONSUMERS + 1)]
        queue = new_queue(clients[0], FifoQueue="true")
        ledger, stop = Ledger(), threading.Event()
        threads = [threading.Thread(target=produce, args=(clients[0], queue, ledger, stop))]
        threads += [
            threading.Thread(target=consume, args=(clients[seed], queue, ledger, stop, seed))
            for seed in range(1, CONSUMERS + 1)
        ]
        for thread in threads:
            thread.start()
        try:
            for kill in range(1, KILLS + 1):
                while ledger.deleted_count < GROUPS * PER_GROUP * kill // (KILLS + 1) and not ledger.wrong:
                    time.sleep(0.05)
                server.kill()
                server.__exit__()  # so that its output is closed
                server.restart()
            while ledger.deleted_count < GROUPS * PER_GROUP and not ledger.wrong:
                time.sleep(0.1)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert ledger.wrong == []
        # What was sent before the kills is still known: nothing of it is stored again.
        for group in range(GROUPS):
            key = (f"g{group}", PER_GROUP - 1)
            answer = clients[0].send_message(
                QueueUrl=queue,
                MessageBody="again",
                MessageGroupId=key[0],
                MessageDeduplicationId=f"{key[0]}-{key[1]}",
            )
            ledger.sent(key, answer["MessageId"])
        assert ledger.wrong == []
        assert "Messages" not in clients[0].receive_message(QueueUrl=queue, WaitTimeSeconds=1)
