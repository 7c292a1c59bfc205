"""dramatiq, unmodified: its queues for delays and dead letters, its retries and priorities."""

from __future__ import annotations

import queue as queues
import time
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import AgeLimit, Callbacks, Pipelines, Retries, ShutdownNotifications, TimeLimit

from tests.protocols.amqp.peer import Peer
from tests.protocols.amqp.places import Place
from tests.server_process import ServerProcess
from tests.waiting import PATIENCE_S, with_more_time

pytestmark = pytest.mark.slow

Run = Callable[[], None]


def make_broker(address: tuple[str, int]) -> RabbitmqBroker:
    host, port = address
    middleware = [AgeLimit(), TimeLimit(), ShutdownNotifications(), Callbacks(), Pipelines(), Retries(min_backoff=100)]
    broker = RabbitmqBroker(host=host, port=port, confirm_delivery=True, max_priority=10, middleware=middleware)
    dramatiq.set_broker(broker)
    return broker


@pytest.fixture
def broker(place: Place) -> Iterator[RabbitmqBroker]:
    broker = make_broker(place.address)
    yield broker
    for queue in broker.get_declared_queues():
        for name in (queue, f"{queue}.DQ", f"{queue}.XQ"):
            with place.connect() as peer:
                peer.channel().delete(name)
    broker.close()


@pytest.fixture
def run(broker: RabbitmqBroker) -> Iterator[Run]:
    """Start a worker."""
    workers = []

    def start() -> None:
        worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
        worker.start()
        workers.append(worker)

    yield start
    for worker in workers:
        worker.stop()


def test_actors_run(place: Place, run: Run, broker: RabbitmqBroker) -> None:
    done: queues.Queue[int] = queues.Queue()

    @dramatiq.actor(queue_name=place.name("dramatiq"))
    def work(number: int) -> None:
        done.put(number)

    run()
    for number in range(50):
        work.send(number)
    assert sorted(done.get(timeout=PATIENCE_S) for _ in range(50)) == list(range(50))


def test_an_actor_that_fails_is_tried_again_later(place: Place, run: Run, broker: RabbitmqBroker) -> None:
    tried: queues.Queue[float] = queues.Queue()

    @dramatiq.actor(queue_name=place.name("dramatiq"), max_retries=2)
    def fail() -> None:
        tried.put(time.monotonic())
        raise RuntimeError("not yet")

    run()
    fail.send()
    times = [tried.get(timeout=PATIENCE_S) for _ in range(3)]
    assert times == sorted(times)


def test_a_message_that_failed_for_good_is_in_the_dead_letter_queue(
    place: Place, run: Run, broker: RabbitmqBroker
) -> None:
    name = place.name("dramatiq")

    @dramatiq.actor(queue_name=name, max_retries=0)
    def fail() -> None:
        raise RuntimeError("never")

    run()
    sent = fail.send()
    with place.connect() as peer:
        letter = wait_for(peer, f"{name}.XQ")
    assert sent.message_id.encode() in letter.body
    assert letter.deaths[0]["reason"] == "rejected"
    assert letter.deaths[0]["queue"] == name


def wait_for(peer: Peer, queue: str) -> Any:
    channel = peer.channel()
    channel.consume(queue, no_ack=True)
    return channel.delivery()


def test_a_delayed_message_waits(place: Place, run: Run, broker: RabbitmqBroker) -> None:
    done: queues.Queue[str] = queues.Queue()

    @dramatiq.actor(queue_name=place.name("dramatiq"))
    def work(what: str) -> None:
        done.put(what)

    run()
    for attempt in with_more_time(1, 10, 30):
        with attempt as delay_s:
            work.send_with_options(args=("later",), delay=int(delay_s * 1000))
            work.send("now")
            assert [done.get(timeout=PATIENCE_S), done.get(timeout=PATIENCE_S)] == ["now", "later"]


def test_higher_priorities_come_first(place: Place, run: Run, broker: RabbitmqBroker) -> None:
    done: queues.Queue[int] = queues.Queue()

    @dramatiq.actor(queue_name=place.name("dramatiq"))
    def work(priority: int) -> None:
        done.put(priority)

    for priority in (1, 9, 5):
        work.send_with_options(args=(priority,), broker_priority=priority)
    name = work.queue_name
    with place.connect() as peer:
        channel = peer.channel()
        found = [channel.got(name).properties.priority for _ in range(3)]
    assert found == [9, 5, 1]
    run()
    assert sorted(done.get(timeout=PATIENCE_S) for _ in range(3)) == [1, 5, 9]


def test_a_pipeline_hands_results_on(place: Place, run: Run, broker: RabbitmqBroker) -> None:
    done: queues.Queue[int] = queues.Queue()
    name = place.name("dramatiq")

    @dramatiq.actor(queue_name=name)
    def add(x: int, y: int) -> int:
        return x + y

    @dramatiq.actor(queue_name=name)
    def finish(number: int) -> None:
        done.put(number)

    run()
    # What comes from the step before is the argument that is missing.
    second: Any = add
    last: Any = finish
    (add.message(1, 2) | second.message(10) | last.message()).run()
    assert done.get(timeout=PATIENCE_S) == 13


def test_a_worker_goes_on_after_the_broker_was_killed(mortal: ServerProcess) -> None:
    broker = make_broker(mortal.amqp_address)
    done: queues.Queue[int] = queues.Queue()

    @dramatiq.actor
    def work(number: int) -> None:
        done.put(number)

    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    worker.start()
    work.send(1)
    assert done.get(timeout=PATIENCE_S) == 1
    mortal.kill()
    mortal.restart()
    # It tries again by itself where the connection is gone.
    work.send(2)
    while done.get(timeout=PATIENCE_S) != 2:
        pass
    worker.stop()
    broker.close()
