"""Receiving with a long poll: answered at once when something becomes ready, and never by looking again and again."""

from __future__ import annotations

import asyncio

import pytest

from smista.core.message import Publication
from smista.core.settings import QueueSettings
from smista.errors import BrokerClosed, BrokerError, InvalidArgument, QueueDeleted, QueueInExclusiveUse
from tests.engine.bench import LONGEST_WAIT_MS, SHORT_MS, Bench, Consumer, turns
from tests.waiting import patience


async def test_an_empty_queue_without_a_wait_answers_empty_at_once(orders: Bench) -> None:
    assert await orders.broker.receiving.receive("orders") == []


async def test_a_poll_is_answered_as_soon_as_something_is_published(orders: Bench) -> None:
    poll = asyncio.create_task(orders.receive_one(wait_ms=LONGEST_WAIT_MS))
    await turns()
    await orders.publish(b"x")
    assert (await poll).body == b"x"


async def test_a_poll_is_answered_when_a_delay_ends_and_not_before(orders: Bench) -> None:
    [published] = await orders.publish(b"x", delay_ms=SHORT_MS)
    delivery = await orders.receive_one(wait_ms=LONGEST_WAIT_MS)
    assert delivery.body == b"x"
    assert delivery.delivered_at_ms - published.created_at_ms >= SHORT_MS


async def test_a_poll_is_answered_when_a_lease_ends(orders: Bench) -> None:
    await orders.publish(b"x")
    await orders.receive_one(lease_ms=SHORT_MS)
    again = await orders.receive_one(wait_ms=LONGEST_WAIT_MS)
    assert (again.body, again.delivery_count, again.is_redelivered) == (b"x", 2, True)


async def test_a_poll_is_answered_when_a_message_is_given_back(orders: Bench) -> None:
    await orders.publish(b"x")
    held = await orders.receive_one()
    poll = asyncio.create_task(orders.receive_one(wait_ms=LONGEST_WAIT_MS))
    await turns()
    assert await orders.broker.settling.release([held.receipt]) == [None]
    assert (await poll).delivery_count == 2


async def test_a_poll_that_waited_in_vain_answers_empty(orders: Bench) -> None:
    started_at_ms = orders.broker.now_ms()
    async with patience():
        assert await orders.broker.receiving.receive("orders", wait_ms=SHORT_MS) == []
    assert orders.broker.now_ms() - started_at_ms >= SHORT_MS
    await orders.publish(b"x")
    assert orders.counts() == (1, 0, 0, 0)


async def test_polls_are_answered_in_the_order_in_which_they_came(orders: Bench) -> None:
    polls = [asyncio.create_task(orders.receive_one(wait_ms=LONGEST_WAIT_MS)) for _ in range(3)]
    await turns()
    for body in (b"0", b"1", b"2"):
        await orders.publish(body)
    assert [(await poll).body for poll in polls] == [b"0", b"1", b"2"]


async def test_a_poll_does_not_overtake_those_that_wait(orders: Bench) -> None:
    waiting = asyncio.create_task(orders.receive_one(wait_ms=LONGEST_WAIT_MS))
    await turns()
    orders.broker.publishing.submit("orders", []).result()
    publishing = asyncio.create_task(orders.publish(b"x"))
    await asyncio.sleep(0)
    assert await orders.broker.receiving.receive("orders") == []
    await publishing
    assert (await waiting).body == b"x"


async def test_one_message_answers_one_poll(orders: Bench) -> None:
    polls = [asyncio.create_task(orders.broker.receiving.receive("orders", wait_ms=LONGEST_WAIT_MS)) for _ in range(3)]
    await turns()
    await orders.publish(b"x")
    orders.pass_time(LONGEST_WAIT_MS)
    answers = await asyncio.gather(*polls)
    assert sorted(len(answer) for answer in answers) == [0, 0, 1]


async def test_a_deleted_queue_ends_its_polls(orders: Bench) -> None:
    poll = asyncio.create_task(orders.broker.receiving.receive("orders", wait_ms=LONGEST_WAIT_MS))
    await turns()
    await orders.broker.declaring.delete_queue("orders")
    with pytest.raises(QueueDeleted):
        await poll


async def test_a_closing_broker_ends_its_polls(orders: Bench) -> None:
    poll = asyncio.create_task(orders.broker.receiving.receive("orders", wait_ms=LONGEST_WAIT_MS))
    await turns()
    await orders.broker.close()
    with pytest.raises(BrokerError) as raised:
        await poll
    assert isinstance(raised.value, BrokerClosed), "a queue that was not deleted is reported so"


async def test_a_cancelled_poll_takes_nothing_along(orders: Bench) -> None:
    poll = asyncio.create_task(orders.broker.receiving.receive("orders", wait_ms=LONGEST_WAIT_MS))
    await turns()
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    await orders.publish(b"x")
    assert orders.counts() == (1, 0, 0, 0)


async def test_a_poll_cancelled_after_it_was_answered_gives_its_messages_back(orders: Bench) -> None:
    poll = asyncio.create_task(orders.broker.receiving.receive("orders", wait_ms=LONGEST_WAIT_MS))
    await turns()
    orders.broker.publishing.submit("orders", [Publication(b"x")]).result()
    # The broker's turn answers the poll; the task that asked runs one turn later, and is cancelled before.
    await asyncio.sleep(0)
    assert orders.counts() == (0, 0, 1, 0)
    assert not poll.done()
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    assert orders.counts() == (1, 0, 0, 0)
    assert (await orders.receive_one()).failures == ()


async def test_a_poll_waits_while_the_queue_is_paused(orders: Bench) -> None:
    await orders.broker.declaring.pause("orders")
    await orders.publish(b"x")
    assert await orders.broker.receiving.receive("orders", wait_ms=SHORT_MS) == []
    poll = asyncio.create_task(orders.receive_one(wait_ms=LONGEST_WAIT_MS))
    await turns()
    await orders.broker.declaring.resume("orders")
    assert (await poll).body == b"x"


async def test_a_poll_follows_the_rate_limit(orders: Bench) -> None:
    await orders.declare("slow", QueueSettings(rate_limit=1.0))
    await orders.publish(*[b"x"] * 5, queue="slow")
    assert len(await orders.bodies(queue="slow")) == 1
    assert len(await orders.broker.receiving.receive("slow", 4, wait_ms=LONGEST_WAIT_MS)) == 1


@pytest.mark.parametrize("limit", [0, -1, 1001, 1.5, True, "3"])
async def test_a_limit_out_of_range_is_refused(orders: Bench, limit: int) -> None:
    with pytest.raises(InvalidArgument):
        await orders.broker.receiving.receive("orders", limit)


@pytest.mark.parametrize("wait_ms", [-1, 20_001, 1.5, "3"])
async def test_a_wait_out_of_range_is_refused(orders: Bench, wait_ms: int) -> None:
    with pytest.raises(InvalidArgument):
        await orders.broker.receiving.receive("orders", wait_ms=wait_ms)


@pytest.mark.parametrize("lease_ms", [-1, 1.5, "3"])
@pytest.mark.parametrize("wait_ms", [0, LONGEST_WAIT_MS])
async def test_a_lease_out_of_range_is_refused(orders: Bench, lease_ms: int, wait_ms: int) -> None:
    with pytest.raises(InvalidArgument):
        await orders.broker.receiving.receive("orders", wait_ms=wait_ms, lease_ms=lease_ms)
    await orders.publish(b"x")
    assert orders.counts() == (1, 0, 0, 0)


async def test_a_poll_ends_when_a_single_active_consumer_comes(orders: Bench) -> None:
    await orders.declare("alone", QueueSettings(single_active_consumer=True))
    polls = [asyncio.create_task(orders.broker.receiving.receive("alone", wait_ms=LONGEST_WAIT_MS)) for _ in range(2)]
    await turns()
    orders.broker.subscribing.subscribe("alone", lambda deliveries: None)
    errors = await asyncio.gather(*polls, return_exceptions=True)
    assert [type(error) for error in errors] == [QueueInExclusiveUse] * 2
    assert errors[0] is not errors[1]


async def test_a_queue_with_a_single_active_consumer_is_not_polled_beside_it(orders: Bench) -> None:
    await orders.declare("alone", QueueSettings(single_active_consumer=True))
    await orders.publish(b"x", b"y", queue="alone")
    assert (await orders.receive_one("alone")).body == b"x"
    orders.broker.subscribing.subscribe("alone", Consumer().deliver)
    with pytest.raises(QueueInExclusiveUse):
        await orders.broker.receiving.receive("alone")


async def test_a_poll_that_meets_very_many_expired_messages_hears_that_its_queue_is_deleted(orders: Bench) -> None:
    """Also where another queue has its name by then."""
    await orders.declare("short", QueueSettings(retention_ms=1_000))
    await orders.publish(*[b"x"] * 3_000, queue="short")
    orders.pass_time(ms=2_000)
    poll = asyncio.create_task(orders.broker.receiving.receive("short", wait_ms=LONGEST_WAIT_MS))
    await asyncio.sleep(0)
    await orders.broker.declaring.delete_queue("short")
    await orders.declare("short")
    with pytest.raises(QueueDeleted):
        await poll
