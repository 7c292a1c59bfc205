"""A call that is cancelled owns nothing: what it took, or was about to be given, is in the queue as if nobody had
asked. Nothing counts as a failure, which is why every queue here allows none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from smista import AsyncClient, Delivery
from smista.client.session import Session
from smista.client.subscription import Subscription
from smista.client.wire import Frame
from tests.client.relay import Relay
from tests.waiting import answers, until

COUNT = 5
STEPS = 40
"""So many turns of the loop at most before a call is cancelled; by then each is over."""


@pytest.fixture
async def fragile(client: AsyncClient, queue: str) -> str:
    """A queue with some messages, in which one failure makes a dead letter."""
    await client.declare_queue(queue, max_retries=0)
    await client.put_many(queue, range(COUNT))
    return queue


async def all_back(client: AsyncClient, queue: str, count: int = COUNT) -> None:
    """Wait until nothing is held; nothing may have failed by then."""
    stats = await answers(lambda: client.stats(queue), lambda stats: not stats.in_flight and not stats.consumers)
    assert (stats.ready, stats.dead_lettered_total, stats.nacked_total, stats.timed_out_total) == (count, 0, 0, 0)


async def cancelled_after(steps: int, call: Awaitable[Any]) -> Any:
    """What the call gave, if it was faster."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


@contextlib.contextmanager
def at_the_answer(monkeypatch: pytest.MonkeyPatch, of: AsyncClient, before: Any, after: Any) -> Any:
    """Have functions called around the taking of every answer that hands over messages."""
    take = Session._take

    def taking(self: Session, connection: Any, frame: Frame) -> None:
        is_meant = self is of._session and b"receipt" in bytes(frame.result)
        if is_meant:
            before()
        take(self, connection, frame)
        if is_meant:
            after()

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_take", taking)
        yield


# -- receive ----------------------------------------------------------------------------------------------------------


async def test_a_receive_that_was_cancelled_does_not_take_the_next_message(client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, max_retries=0)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.receive(queue, wait_ms=20_000), 0.05)
    await client.publish(queue, 1)
    [delivery] = await client.receive(queue, wait_ms=20_000)
    assert delivery.delivery_count == 1


async def test_a_receive_whose_answer_is_on_its_way_gives_it_back(
    relay: Relay, client: AsyncClient, fragile: str
) -> None:
    async with AsyncClient(relay.address) as other:
        relay.hold_answers()
        receiving = asyncio.create_task(other.receive(fragile, COUNT))
        await relay.has_held.wait()
        assert (await client.stats(fragile)).in_flight == COUNT
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        relay.let_pass()
        await all_back(client, fragile)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_receive_cancelled_in_the_moment_of_its_answer_gives_it_back(
    monkeypatch: pytest.MonkeyPatch, broker_url: str, client: AsyncClient, fragile: str, moment: str
) -> None:
    """Before the answer is taken, and after it is but before whoever asked has run again."""
    async with AsyncClient(broker_url) as other:
        receiving = asyncio.create_task(other.receive(fragile, COUNT))

        def nothing() -> None: ...

        moments = (receiving.cancel, nothing) if moment == "before" else (nothing, receiving.cancel)
        with at_the_answer(monkeypatch, other, *moments), pytest.raises(asyncio.CancelledError):
            await receiving
        await all_back(client, fragile)


async def test_closing_waits_for_what_a_cancelled_receive_gives_back(
    relay: Relay, client: AsyncClient, fragile: str
) -> None:
    other = AsyncClient(relay.address)
    await other.connect()
    relay.hold_answers()
    receiving = asyncio.create_task(other.receive(fragile, COUNT))
    await relay.has_held.wait()
    receiving.cancel()
    closing = asyncio.create_task(other.close())
    await asyncio.sleep(0)
    relay.let_pass()
    await closing
    await all_back(client, fragile)


async def test_a_receive_cancelled_before_there_is_a_connection_is_never_asked(
    relay: Relay, client: AsyncClient, fragile: str
) -> None:
    async with AsyncClient(relay.address) as other:
        await relay.stop_listening()
        relay.cut()
        await until(lambda: not other.is_connected)
        receiving = asyncio.create_task(other.receive(fragile, COUNT))
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        assert not other._session._pending
        await relay.listen()
        await other.stats(fragile)
        await all_back(client, fragile)


# -- every call, at every step ----------------------------------------------------------------------------------------

Taking = Callable[[AsyncClient, str], Awaitable[list[Delivery] | Delivery | None]]


@contextlib.asynccontextmanager
async def taking_from(client: AsyncClient, queue: str) -> AsyncIterator[Subscription[Delivery]]:
    async with client.subscribe(queue, prefetch=2) as subscription:
        yield subscription


async def _next(client: AsyncClient, queue: str) -> Delivery | None:
    async with taking_from(client, queue) as subscription:
        delivery = await subscription.next(timeout_ms=1_000)
        assert delivery is not None
        await delivery.release()
    return None


async def _anext(client: AsyncClient, queue: str) -> Delivery | None:
    async with taking_from(client, queue) as subscription:
        await (await anext(subscription)).release()
    return None


async def _next_batch(client: AsyncClient, queue: str) -> Delivery | None:
    async with taking_from(client, queue) as subscription:
        batch = await subscription.next_batch()
        # These are ours from here on: what is cancelled now must not be their release before it has begun.
        await asyncio.shield(asyncio.gather(*(each.release() for each in batch)))
    return None


async def _set_prefetch(client: AsyncClient, queue: str) -> None:
    async with taking_from(client, queue) as subscription:
        await subscription.set_prefetch(4)


async def _close_at_once(client: AsyncClient, queue: str) -> None:
    await client.subscribe(queue).close()


async def _receive(client: AsyncClient, queue: str) -> list[Delivery]:
    return await client.receive(queue, 2)


async def _long_poll(client: AsyncClient, queue: str) -> list[Delivery]:
    return await client.receive(queue, 2, wait_ms=20_000)


CALLS: list[Taking] = [_receive, _long_poll, _next, _anext, _next_batch, _set_prefetch, _close_at_once]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_what_takes_messages_takes_none_when_it_is_cancelled(
    client: AsyncClient, fragile: str, call: Taking
) -> None:
    for steps in range(STEPS):
        taken = await cancelled_after(steps, call(client, fragile))
        for delivery in taken or ():
            await delivery.release()
        await all_back(client, fragile)
    assert not client._session._by_number
    assert not client._session._feeds


async def test_closing_that_is_cancelled_gives_everything_back(
    broker_url: str, client: AsyncClient, fragile: str
) -> None:
    for steps in range(STEPS):
        other = AsyncClient(broker_url)
        await other.connect()
        subscriptions = [other.subscribe(fragile, prefetch=1) for _ in range(COUNT)]
        for subscription in subscriptions:
            subscription.start()
        if steps % 2:
            await until(lambda: all(each.waiting() for each in subscriptions))  # noqa: B023  # at once
        await cancelled_after(steps, subscriptions[0].close())
        await cancelled_after(steps, other.close())
        await other.close()
        await all_back(client, fragile)


WAYS: dict[str, Callable[[Delivery], Awaitable[Any]]] = {
    "ack": lambda delivery: delivery.ack(),
    "nack": lambda delivery: delivery.nack(requeue=False),
    "release": lambda delivery: delivery.release(),
    "extend": lambda delivery: delivery.extend(60_000),
}


@pytest.mark.parametrize("way", WAYS)
async def test_settling_goes_on_when_it_is_cancelled(client: AsyncClient, queue: str, way: str) -> None:
    await client.declare_queue(queue, retry_backoff="none")
    for steps in range(STEPS // 4):
        await client.publish(queue, 1)
        async with client.subscribe(queue, prefetch=1) as subscription:
            delivery = await anext(subscription)
            await cancelled_after(steps, WAYS[way](delivery))
            if not delivery.is_settled:  # it had not begun
                await delivery.release()
        await client.purge(queue)
        await answers(lambda: client.stats(queue), lambda stats: not stats.in_flight)


async def test_publishing_leaves_no_room_taken_when_it_is_cancelled(
    broker_url: str, client: AsyncClient, orders: str
) -> None:
    async with AsyncClient(broker_url, unconfirmed_max=3) as other:
        for steps in range(STEPS):
            await cancelled_after(steps, asyncio.gather(*(other.publish(orders, n) for n in range(8))))
            await cancelled_after(steps, other.put_many(orders, range(8), batch_count=2))
        await other.publish(orders, "last")
        window = other._publisher._window
        await until(lambda: (window._count, window._bytes, len(window._waiting)) == (0, 0, 0))
        assert not other._session._pending
