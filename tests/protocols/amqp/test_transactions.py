"""Transactions: what waits for the commit belongs to the channel, and is settled, taken back or given back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from unittest.mock import ANY

import pytest

from smista.engine import Publication, QueueSettings
from smista.protocols.amqp.channel import transaction
from smista.protocols.amqp.channel.prepared import Prepared
from smista.protocols.amqp.channel.target import CACHED_MAX
from smista.protocols.amqp.wire import content, methods
from tests.protocols.amqp.in_process import Client, Server, settle
from tests.protocols.amqp.raw import CLOSE_CHANNEL, consume, declare, get, message, on
from tests.waiting import until

ACK = methods.BasicAck(1, False)
CANCEL = methods.BasicCancel("t", False)
COMMIT, ROLLBACK = methods.TxCommit(), methods.TxRollback()
QOS = methods.BasicQos(0, 0, False)
NO_PROPERTIES = b"\0\0"
MANY = 2_400


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = await Server().start()
    yield server
    await server.stop()


async def transactional(server: Server, *bodies: bytes) -> Client:
    """A connection with a queue of these messages, and a transaction on its channel 1."""
    client = await server.connect(channels=2)
    await client.call(declare("q"), methods.QueueDeclareOk)
    if bodies:
        await server.broker.publishing.publish("q", [Publication(body) for body in bodies])
    await client.call(methods.TxSelect(), methods.TxSelectOk)
    return client


async def got(client: Client, *, count: int = 1) -> None:
    for _ in range(count):
        await client.call(get("q"), methods.BasicGetOk)
        await client.content()


# -- settling in a transaction ----------------------------------------------------------------------------------------


async def test_an_acknowledgement_survives_the_end_of_its_consumer(server: Server) -> None:
    client = await transactional(server, b"one", b"two")
    await client.call(consume("q"), methods.BasicConsumeOk)
    await client.deliveries(2)
    client.feed(on(1, ACK))
    await client.call(CANCEL, methods.BasicCancelOk)
    assert server.counts() == (0, 2, 0)
    await client.call(COMMIT, methods.TxCommitOk)
    assert server.counts() == (0, 1, 0)
    await client.call(CLOSE_CHANNEL, methods.ChannelCloseOk)
    assert server.counts() == (1, 0, 0)


@pytest.mark.parametrize("settled", [ACK, methods.BasicNack(1, False, True), methods.BasicReject(1, False)])
async def test_what_is_rolled_back_after_the_end_of_its_consumer_is_still_the_channels(
    server: Server, settled: methods.Method
) -> None:
    client = await transactional(server, b"one")
    await client.call(consume("q"), methods.BasicConsumeOk)
    await client.deliveries(1)
    client.feed(on(1, settled))
    await client.call(CANCEL, methods.BasicCancelOk)
    await client.call(ROLLBACK, methods.TxRollbackOk)
    assert server.counts() == (0, 1, 0)
    client.feed(on(1, ACK))
    await client.call(COMMIT, methods.TxCommitOk)
    assert server.counts() == (0, 0, 0)


async def test_a_transaction_that_never_comes_to_its_end_gives_everything_back(server: Server) -> None:
    client = await transactional(server, b"one", b"two", b"three")
    await got(client, count=3)
    client.feed(on(1, ACK, methods.BasicNack(2, False, False), methods.BasicNack(3, False, True)))
    client.feed(message(b"four", "q"))
    client.lose()
    assert server.counts() == (3, 0, 0)


async def test_a_second_acknowledgement_in_a_transaction_is_an_error_and_undoes_the_first(server: Server) -> None:
    client = await transactional(server, b"one")
    await got(client)
    client.feed(on(1, ACK, ACK))
    assert (await client.expect(methods.ChannelClose)).reply_text == "PRECONDITION_FAILED - unknown delivery tag 1"
    assert server.counts() == (1, 0, 0)


# -- where publishes go -----------------------------------------------------------------------------------------------


async def test_a_message_goes_where_its_exchange_led_when_it_was_published(server: Server) -> None:
    client = await transactional(server, b"one")
    await got(client)
    await client.call(
        methods.ExchangeDeclare(0, "x", "fanout", False, True, False, False, False, {}), methods.ExchangeDeclareOk
    )
    await client.call(methods.QueueBind(0, "q", "x", "", False, {}), methods.QueueBindOk)
    client.feed(message(b"out", "", "x"), on(1, ACK))
    await client.call(methods.ExchangeDelete(0, "x", False, False), methods.ExchangeDeleteOk, channel=2)
    await client.call(COMMIT, methods.TxCommitOk)
    assert [delivery.body for delivery in await server.broker.receiving.receive("q", 9)] == [b"out"]


async def test_a_message_for_a_queue_that_has_gone_comes_back_if_it_is_mandatory(server: Server) -> None:
    client = await transactional(server)
    publish = on(1, methods.BasicPublish(0, "", "q", True, False))
    client.feed(publish + message(b"back", "q")[len(publish) :])
    await client.call(methods.QueueDelete(0, "q", False, False, False), methods.QueueDeleteOk, channel=2)
    client.feed(on(1, COMMIT))
    assert (await client.expect(methods.BasicReturn)).reply_text == "NO_ROUTE"
    assert await client.content() == b"back"
    await client.expect(methods.TxCommitOk)


# -- commits that fail ------------------------------------------------------------------------------------------------


async def test_a_commit_that_a_queue_refuses_settles_nothing_and_gives_back(server: Server) -> None:
    await server.broker.declaring.declare_queue("small", QueueSettings(body_bytes_max=3))
    client = await transactional(server, b"one")
    await got(client)
    client.feed(message(b"too large", "small"), on(1, ACK, COMMIT))
    closed = await client.expect(methods.ChannelClose)
    assert closed.reply_code == 406
    await settle()
    assert server.counts() == (1, 0, 0)
    assert server.counts("small") == (0, 0, 0)


@pytest.mark.parametrize("queues", [["small"], ["small", "other"]], ids=["one queue", "several"])
async def test_a_commit_that_a_queue_refuses_when_its_connection_has_died_settles_nothing(
    server: Server, queues: list[str]
) -> None:
    await server.broker.declaring.declare_queue("small", QueueSettings(body_bytes_max=3))
    await server.broker.declaring.declare_queue("other")
    client = await transactional(server, b"one")
    await client.call(
        methods.ExchangeDeclare(0, "x", "fanout", False, True, False, False, False, {}), methods.ExchangeDeclareOk
    )
    for queue in queues:
        await client.call(methods.QueueBind(0, queue, "x", "", False, {}), methods.QueueBindOk)
    await got(client)
    for _ in range(MANY):
        client.feed(message(b"fits", "other"))
    client.feed(message(b"too large", "", "x"), on(1, ACK, COMMIT))
    await until(lambda: server.counts("other")[0] > 0)
    assert server.counts("other")[0] < MANY
    client.lose()
    await until(lambda: server.counts() == (1, 0, 0))
    await settle()
    assert server.counts() == (1, 0, 0)
    assert server.counts("small") == (0, 0, 0)


async def test_a_commit_publishes_nothing_behind_the_slice_that_was_refused(server: Server) -> None:
    await server.broker.declaring.declare_queue("small", QueueSettings(body_bytes_max=3))
    client = await transactional(server)
    client.feed(message(b"too large", "small"))
    for _ in range(2 * MANY):
        client.feed(message(b"fits", "q"))
    client.feed(on(1, COMMIT))
    assert (await client.expect(methods.ChannelClose)).reply_code == 406
    await client.call(QOS, methods.BasicQosOk, channel=2)
    assert server.counts()[0] < MANY


async def test_a_commit_on_a_full_queue_is_partial_as_in_rabbitmq(server: Server) -> None:
    client = await transactional(server, b"one")
    await client.call(declare("full", {"x-max-length": 1, "x-overflow": "reject-publish"}), methods.QueueDeclareOk)
    await got(client)
    client.feed(message(b"1", "full"), message(b"2", "full"), on(1, ACK, COMMIT))
    assert (await client.expect(methods.ChannelClose)).reply_text == "PRECONDITION_FAILED - partial tx completion"
    assert server.counts() == (0, 0, 0)
    assert server.counts("full") == (1, 0, 0)


async def test_a_commit_whose_broker_fails_is_not_answered(server: Server) -> None:
    client = await transactional(server, b"one")
    await got(client)
    server.log.is_failing = True
    client.feed(message(b"out", "q"), on(1, ACK, COMMIT))
    assert (await client.expect(methods.ConnectionClose)).reply_code == 541
    server.log.is_failing = False
    await server.stop()
    await server.start()
    assert server.counts() == (1, 0, 0)


# -- bounds -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of 1,000 bytes, of which a message takes 100 and its body and properties."""
    # The properties of them all, which are alike, have room beside it.
    monkeypatch.setattr(transaction, "KEPT_BYTES_MAX", 1_000 + len(content.TAG + NO_PROPERTIES))
    monkeypatch.setattr(transaction, "MESSAGE_BYTES", 100)
    monkeypatch.setattr(transaction, "POINTER_BYTES", 0)


@pytest.mark.usefixtures("small_bound")
async def test_a_transaction_of_too_many_bytes_closes_its_channel_and_stores_nothing(server: Server) -> None:
    client = await transactional(server, b"one")
    await got(client)
    client.feed(on(1, ACK), message(bytes(500), "q"), message(bytes(300), "q"), on(1, QOS))
    await client.expect(methods.BasicQosOk)
    client.feed(message(b"!", "q"))
    assert (await client.expect(methods.ChannelClose)).reply_text == (
        "PRECONDITION_FAILED - transactions of 1104 bytes on one connection are larger than max size 1003; "
        "commit more often"
    )
    assert server.counts() == (1, 0, 0)
    await client.call(QOS, methods.BasicQosOk, channel=2)


@pytest.mark.usefixtures("small_bound")
async def test_the_bound_on_bytes_begins_anew_with_each_transaction(server: Server) -> None:
    client = await transactional(server)
    for ending, reply in ((COMMIT, methods.TxCommitOk), (ROLLBACK, methods.TxRollbackOk), (COMMIT, methods.TxCommitOk)):
        client.feed(message(bytes(900), "q"))
        await client.call(ending, reply)
    assert server.counts() == (2, 0, 0)


@pytest.mark.usefixtures("small_bound")
async def test_the_bound_on_bytes_counts_properties(server: Server) -> None:
    client = await transactional(server)
    one, other = (content.write_properties(content.BasicProperties(headers={"h": each * 500})) for each in "ab")
    client.feed(message(b"1", "q", properties=one), message(b"2", "q", properties=one))
    await client.call(QOS, methods.BasicQosOk)
    client.feed(message(b"3", "q", properties=other))
    assert (await client.expect(methods.ChannelClose)).reply_code == 406


@pytest.mark.usefixtures("small_bound")
async def test_the_bound_on_bytes_counts_messages(server: Server) -> None:
    client = await transactional(server)
    client.feed(message(b"", "q") * 10)
    await client.call(QOS, methods.BasicQosOk)
    client.feed(message(b"", "q"))
    assert (await client.expect(methods.ChannelClose)).reply_code == 406


@pytest.mark.usefixtures("small_bound")
async def test_the_bound_on_bytes_is_for_all_channels_of_a_connection(server: Server) -> None:
    client = await transactional(server)
    await client.call(methods.TxSelect(), methods.TxSelectOk, channel=2)
    client.feed(message(bytes(500), "q", channel=1), message(bytes(500), "q", channel=2))
    assert (await client.method()) == (2, methods.ChannelClose(406, ANY, 60, 40))
    client.feed(on(2, methods.ChannelCloseOk()), message(bytes(300), "q", channel=1))
    await client.call(COMMIT, methods.TxCommitOk)
    assert server.counts() == (2, 0, 0)
    assert client.ours.transacted_bytes == 0


async def test_a_transaction_keeps_no_headers_that_were_read(server: Server) -> None:
    client = await transactional(server)
    for number in range(CACHED_MAX + 10):
        headers = content.write_properties(content.BasicProperties(headers={"CC": ["q"], "n": number}))
        client.feed(message(b"", f"to {number}", properties=headers))
    transaction = client.channel().transaction
    assert transaction is not None
    assert sum(len(run.target.prepared) for run, _ in transaction._publishes) <= 10
    gc.collect()
    looked_at = [one for one in gc.get_objects() if isinstance(one, Prepared) and one.headers]
    assert len(looked_at) <= CACHED_MAX, "what was read is kept with what waits"
    await client.call(COMMIT, methods.TxCommitOk)
    assert server.counts() == (CACHED_MAX + 10, 0, 0)


async def test_a_transaction_of_too_many_operations_closes_its_channel(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "OPERATIONS_MAX", 3)
    client = await transactional(server, b"one", b"two")
    await got(client, count=2)
    client.feed(message(b"1", "q"), message(b"2", "q"), on(1, ACK, QOS))
    await client.expect(methods.BasicQosOk)
    client.feed(on(1, methods.BasicNack(2, False, True)))
    assert (await client.expect(methods.ChannelClose)).reply_text == (
        "PRECONDITION_FAILED - transaction of more than 3 operations; commit more often"
    )
    assert server.counts() == (2, 0, 0)


# -- very large ones --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smista.engine.slices.SLICE_S", 0.0)
    monkeypatch.setattr("smista.engine.settling.ACKNOWLEDGED_AT_ONCE", 200)


async def large(server: Server) -> Client:
    """A transaction that acknowledges very many messages, and publishes as many."""
    client = await transactional(server, *[b"in"] * MANY)
    await client.call(consume("q"), methods.BasicConsumeOk)
    await client.deliveries(MANY)
    await client.call(CANCEL, methods.BasicCancelOk)
    for number in range(MANY):
        client.feed(message(b"%d" % number, "q"))
    client.feed(on(1, methods.BasicAck(0, True)))
    return client


@pytest.mark.usefixtures("small_slices")
async def test_a_very_large_commit_is_done_in_slices(server: Server) -> None:
    client = await large(server)
    client.feed(on(1, COMMIT))
    seen = set()
    while server.counts() != (MANY, 0, 0):
        seen.add(server.counts())
        await asyncio.sleep(0)
    assert len(seen) > 10
    await client.expect(methods.TxCommitOk)
    deliveries = await server.broker.receiving.receive("q", 10_000)
    assert [delivery.body for delivery in deliveries] == [b"%d" % number for number in range(MANY)]


@pytest.mark.usefixtures("small_slices")
async def test_a_commit_that_has_begun_comes_to_its_end_without_its_connection(server: Server) -> None:
    client = await large(server)
    client.feed(on(1, COMMIT))
    await until(lambda: 0 < server.counts()[0] < MANY)
    client.lose()
    await until(lambda: server.counts() == (MANY, 0, 0))


@pytest.mark.usefixtures("small_slices")
async def test_a_very_large_rollback_is_done_in_slices(server: Server) -> None:
    client = await large(server)
    unacked = client.channel().acknowledgements.unacked
    client.feed(on(1, ROLLBACK))
    seen = set()
    while len(unacked.receipts) < MANY:
        seen.add(len(unacked.receipts))
        await asyncio.sleep(0)
    assert len(seen) > 3
    await client.expect(methods.TxRollbackOk)
    assert server.counts() == (0, MANY, 0)


@pytest.mark.usefixtures("small_slices")
async def test_a_very_large_rollback_gives_all_back_when_its_connection_dies(server: Server) -> None:
    client = await large(server)
    unacked = client.channel().acknowledgements.unacked
    client.feed(on(1, ROLLBACK))
    await until(lambda: 0 < len(unacked.receipts) < MANY)
    client.lose()
    await until(lambda: server.counts() == (MANY, 0, 0))


async def test_a_very_large_rollback(server: Server) -> None:
    client = await large(server)
    await client.call(ROLLBACK, methods.TxRollbackOk)
    assert server.counts() == (0, MANY, 0)
    await client.call(methods.BasicRecover(True), methods.BasicRecoverOk)
    assert server.counts() == (MANY, 0, 0)
