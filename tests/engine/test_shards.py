"""A broker that is one shard of several: everything it gives out says which."""

from __future__ import annotations

import pytest

from smista.core.message import Publication
from smista.engine import Broker, Delivery
from smista.engine.ids import Ids, first_sequence
from smista.errors import InvalidReceipt
from smista.log import Log, MemoryLog
from tests.engine.bench import SETTINGS, KeptLog


async def opened(log: Log, shard: int) -> Broker:
    return await Broker.open(log, SETTINGS, shard=shard)


async def published_and_received(broker: Broker) -> Delivery:
    await broker.declaring.declare_queue("orders")
    await broker.publishing.publish("orders", [Publication(b"x")])
    [delivery] = await broker.receiving.receive("orders")
    return delivery


async def test_messages_and_receipts_say_which_shard_they_are_of() -> None:
    log = KeptLog()
    async with await opened(log, 7) as broker:
        delivery = await published_and_received(broker)
        assert (broker.ids.shard, delivery.number) == (7, first_sequence(7))
        anywhere = Ids(log.identity)
        assert anywhere.parse(delivery.id) == (delivery.number, delivery.created_at_ms)
        assert anywhere.any_receipt(delivery.receipt_text) == delivery.receipt
        await broker.settling.acknowledge([broker.receipts.read(delivery.receipt_text)])


async def test_a_shard_goes_on_counting_after_a_restart() -> None:
    log = KeptLog()
    async with await opened(log, 7) as broker:
        first = await published_and_received(broker)
    async with await opened(log, 7) as broker:
        await broker.settling.acknowledge([broker.receipts.read(first.receipt_text)])
        second = await published_and_received(broker)
    assert second.number == first.number + 1


async def test_a_shard_refuses_the_receipts_of_another() -> None:
    identity = bytes(range(32))
    async with await opened(MemoryLog(identity=identity), 7) as broker:
        receipt_text = (await published_and_received(broker)).receipt_text
    async with await opened(MemoryLog(identity=identity), 8) as broker:
        with pytest.raises(InvalidReceipt, match="is a receipt of shard 7 and was handed to shard 8"):
            broker.receipts.read(receipt_text)


@pytest.mark.parametrize("other", [0, 6, 8])
async def test_a_log_is_not_opened_as_that_of_another_shard(other: int) -> None:
    log = KeptLog()
    async with await opened(log, 7) as broker:
        await published_and_received(broker)
    with pytest.raises(AssertionError, match="that of another shard"):
        await opened(log, other)
