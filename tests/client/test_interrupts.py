"""A synchronous call that is interrupted, by Ctrl-C or by a signal handler that raises, owns nothing; and what a forked
child inherits does not hang."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import pytest

from smista import Client
from smista.client import ClientClosed, SyncDelivery, portal
from smista.client.sync_subscription import SyncSubscription
from tests.waiting import PATIENCE_S, eventually

COUNT = 5


# An interrupt within the callback of a weak reference, which Python reports and swallows.
swallowed = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupt(BaseException):
    """What a signal handler raises."""


def interrupted_at(point: int, call: Callable[[], Any]) -> tuple[bool, Any]:
    """Call it, and raise at the so-many-th place where Python looks for signals: at the start of functions, and after
    each call of one that is not in Python. Whether it was reached, and what the call returned."""
    points = itertools.count(1)

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_return") and next(points) == point:
            sys.setprofile(None)
            raise Interrupt

    sys.setprofile(watch)
    try:
        return False, call()
    except Interrupt:
        return True, None
    finally:
        sys.setprofile(None)


def all_back(client: Client, queue: str) -> None:
    """Wait until nothing is held; nothing may have failed by then. What was interrupted may reach the broker after we
    first looked, and be given back only then."""

    def counts() -> tuple[int, int]:
        stats = client.stats(queue)
        return stats.ready, stats.in_flight

    eventually(lambda: counts() == (COUNT, 0))
    assert client.stats(queue).dead_lettered_total == 0


@pytest.fixture
def fragile(sync_client: Client, queue: str) -> str:
    """A queue with some messages, in which one failure makes a dead letter."""
    sync_client.declare_queue(queue, max_retries=0)
    sync_client.put_many(queue, range(COUNT))
    return queue


@swallowed
def test_a_receive_that_is_interrupted_has_taken_nothing(broker_url: str, sync_client: Client, fragile: str) -> None:
    with Client(broker_url) as other:
        for point in itertools.count(1):
            is_interrupted, received = interrupted_at(point, lambda: other.receive(fragile, 2))
            for delivery in received or ():
                delivery.release()
            all_back(sync_client, fragile)
            if not is_interrupted:
                return


def _next(subscription: SyncSubscription) -> list[SyncDelivery]:
    delivery = subscription.next(timeout_ms=10_000)
    return [] if delivery is None else [delivery]


def _iterate(subscription: SyncSubscription) -> list[SyncDelivery]:
    return [next(subscription)]


def _next_batch(subscription: SyncSubscription) -> list[SyncDelivery]:
    return subscription.next_batch(2)


@swallowed
@pytest.mark.parametrize("take", [_next, _iterate, _next_batch])
def test_what_comes_while_it_is_interrupted_is_handed_out_by_the_next_call(
    broker_url: str, sync_client: Client, fragile: str, take: Callable[[SyncSubscription], list[SyncDelivery]]
) -> None:
    with Client(broker_url) as other:
        for point in itertools.count(1):
            with other.subscribe(fragile, prefetch=COUNT) as subscription:
                is_interrupted, _ = interrupted_at(point, lambda: take(subscription))
                if not is_interrupted:
                    return
                taken = [subscription.next(timeout_ms=30_000) for _ in range(COUNT)]
                assert [each and each.json() for each in taken] == list(range(COUNT)), f"after an interrupt at {point}"
                for delivery in taken:
                    assert delivery is not None
                    delivery.release()
            all_back(sync_client, fragile)


@swallowed
def test_closing_that_was_interrupted_can_be_repeated(broker_url: str, sync_client: Client, fragile: str) -> None:
    with Client(broker_url) as other:
        for point in itertools.count(1):
            subscription = other.subscribe(fragile, prefetch=COUNT)
            delivery = next(subscription)
            delivery.release()
            is_interrupted, _ = interrupted_at(point, subscription.close)
            subscription.close()
            all_back(sync_client, fragile)
            if not is_interrupted:
                return


CLIENT_CALLS: dict[str, Callable[[Client, str], Any]] = {
    "publish": lambda client, queue: client.publish(queue, 1),
    "put_many": lambda client, queue: client.put_many(queue, [1]),
    "receive": lambda client, queue: client.receive(queue),
    "ack": lambda client, queue: client.receive(queue)[0].ack(),
    "next": lambda client, queue: client.subscribe(queue).next(timeout_ms=0),
    "close": lambda client, queue: client.subscribe(queue).close(),
    "browse": lambda client, queue: client.browse(queue).next_page(),
}


@swallowed
@pytest.mark.filterwarnings("always:coroutine .* was never awaited")
@pytest.mark.parametrize("name", CLIENT_CALLS)
def test_an_interrupted_call_leaves_no_coroutine_behind(
    sync_client: Client, queue: str, name: str, recwarn: pytest.WarningsRecorder
) -> None:
    sync_client.declare_queue(queue)
    for point in itertools.count(1):
        sync_client.publish(queue, 0)
        is_interrupted, _ = interrupted_at(point, lambda: CLIENT_CALLS[name](sync_client, queue))
        if not is_interrupted:
            break
    gc.collect()
    assert [str(each.message) for each in recwarn if "never awaited" in str(each.message)] == []


def test_a_call_with_wrong_arguments_says_so_where_it_was_made(sync_client: Client) -> None:
    with pytest.raises(TypeError, match="queue"):
        sync_client.publish()  # type: ignore[call-arg]  # that is what is tested


WAITS: dict[str, Callable[[Client, str], Any]] = {
    "next": lambda client, queue: client.subscribe(queue).next(),
    "next in two threads": lambda client, queue: wait_behind_another(client.subscribe(queue)),
}


def wait_behind_another(subscription: SyncSubscription) -> None:
    def wait() -> None:
        with contextlib.suppress(ClientClosed):
            subscription.next()

    threading.Thread(target=wait).start()
    subscription.next()


@pytest.mark.parametrize("name", WAITS)
def test_a_call_that_waits_is_interrupted_also_by_a_signal_that_does_not_wake_it(
    broker_url: str, sync_client: Client, queue: str, name: str
) -> None:
    """So it is for a thread when the signal comes just before it begins to wait. Here another thread gets it."""
    waiter = threading.get_ident()

    def signalled() -> None:
        eventually(lambda: sys._current_frames()[waiter].f_code.co_name == portal.acquire.__name__)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    def handler(*_: object) -> NoReturn:
        raise Interrupt

    sync_client.declare_queue(queue)
    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=signalled, daemon=True)
    try:
        with Client(broker_url) as other:
            thread.start()
            with pytest.raises(Interrupt):
                WAITS[name](other, queue)
    finally:
        thread.join(PATIENCE_S)
        signal.signal(signal.SIGUSR1, before)


# -- forks ------------------------------------------------------------------------------------------------------------


def in_a_child(call: Callable[[], Any]) -> str:
    """Call it in a forked child; the name of what it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _report(writing, call)
    os.close(writing)
    with os.fdopen(reading) as stream:
        raised = stream.read()
    os.waitpid(child, 0)
    return raised


def _report(writing: int, call: Callable[[], Any]) -> NoReturn:
    raised = "nothing"
    try:
        call()
    except BaseException as error:
        raised = type(error).__name__
    finally:
        os.write(writing, raised.encode())
        os._exit(0)


CALLS: dict[str, Callable[[SyncSubscription, SyncDelivery], Any]] = {
    "ack": lambda _, delivery: delivery.ack(),
    "nack": lambda _, delivery: delivery.nack("no"),
    "release": lambda _, delivery: delivery.release(),
    "extend": lambda _, delivery: delivery.extend(1_000),
    "ack_soon": lambda _, delivery: delivery.ack_soon(),
    "nack_soon": lambda _, delivery: delivery.nack_soon(),
    "with": lambda _, delivery: delivery.__exit__(None, None, None),
    "ack_up_to": lambda subscription, delivery: subscription.ack_up_to(delivery),
    "next": lambda subscription, _: subscription.next(timeout_ms=1_000),
    "next_batch": lambda subscription, _: subscription.next_batch(),
    "settled": lambda subscription, _: subscription.settled(),
    "set_prefetch": lambda subscription, _: subscription.set_prefetch(1),
    "close": lambda subscription, _: subscription.close(),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("is_pushed", [True, False])
def test_in_a_forked_child_every_call_says_so_at_once(
    sync_client: Client, fragile: str, name: str, is_pushed: bool
) -> None:
    with sync_client.subscribe(fragile, prefetch=1) as subscription:
        pushed = next(subscription)
        [received] = sync_client.receive(fragile)
        delivery = pushed if is_pushed else received
        if name == "ack_up_to" and not is_pushed:
            return
        assert in_a_child(lambda: CALLS[name](subscription, delivery)) == ClientClosed.__name__
        assert not delivery.is_settled
        pushed.ack()
        received.ack()
