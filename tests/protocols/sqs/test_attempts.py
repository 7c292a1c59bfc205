"""What is kept for a receive that may be repeated: names of deliveries, and only so many."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from smista.core.message import Publication, Receipt
from smista.engine import Broker
from smista.log import MemoryLog
from smista.protocols.sqs import attempts
from smista.protocols.sqs.attempts import ATTEMPT_BYTES, KEPT_MS, RECEIPT_BYTES, Attempts
from tests.protocols.sqs.test_bounded_work import answer_to, app_of


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with await Broker.open(MemoryLog()) as broker:
        yield broker


def receipt(sequence: int) -> Receipt:
    return Receipt(1, sequence, 1)


def test_receipts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "RECEIPTS_MAX", 10)
    kept = Attempts()
    for number in range(0, 100, 4):
        kept.keep(("", "q", str(number)), map(receipt, range(number, number + 4)), 0)
    assert kept.find(("", "q", "96"), 0) == tuple(map(receipt, range(96, 100)))
    assert kept.find(("", "q", "88"), 0) is None
    assert kept.held_bytes() == 2 * ATTEMPT_BYTES + 8 * RECEIPT_BYTES
    assert kept.find(("", "q", "96"), KEPT_MS) is None


def test_a_queue_that_is_emptied_is_forgotten() -> None:
    kept = Attempts()
    for place, key in enumerate([("", "q", "1"), ("", "q", "2"), ("", "other", "1"), ("n", "q", "1")]):
        kept.keep(key, [receipt(place)], 0)
    kept.forget_queue("", "q")
    assert kept.held_bytes() == 2 * (ATTEMPT_BYTES + RECEIPT_BYTES)
    assert kept.find(("n", "q", "1"), 0) == (receipt(3),)


@pytest.mark.parametrize("action", ["PurgeQueue", "DeleteQueue"])
async def test_an_attempt_holds_no_bodies_and_goes_with_its_queue(broker: Broker, action: str) -> None:
    app = app_of(broker)
    url = "/000000000000/a.fifo"
    await answer_to(app, "CreateQueue", QueueName="a.fifo", Attributes={"FifoQueue": "true"})
    body = "x" * 1000
    await answer_to(app, "SendMessage", QueueUrl=url, MessageBody=body, MessageGroupId="g", MessageDeduplicationId="d")
    attempt = {"QueueUrl": url, "ReceiveRequestAttemptId": "r"}
    first = await answer_to(app, "ReceiveMessage", **attempt)
    assert app.kept_bytes() == ATTEMPT_BYTES + RECEIPT_BYTES
    again = await answer_to(app, "ReceiveMessage", **attempt)
    assert again == first
    await answer_to(app, action, QueueUrl=url)
    assert app.kept_bytes() == 0


async def test_deliveries_that_are_over_are_not_found_again(broker: Broker) -> None:
    await broker.declaring.declare_queue("q")
    await broker.publishing.publish("q", [Publication(b"1"), Publication(b"2")])
    deliveries = await broker.receiving.receive("q", 2)
    receipts = [one.receipt for one in deliveries]
    assert await broker.receiving.held(receipts) == deliveries
    await broker.settling.acknowledge(receipts[:1])
    assert await broker.receiving.held(receipts) == deliveries[1:]
