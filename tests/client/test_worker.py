from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from smista import AsyncClient, Client, Delivery, Worker
from smista.client import ClientClosed, Reject, Retry, SyncDelivery, WorkerNotFound
from smista.client.worker import load
from smista.errors import InvalidArgument
from tests.client.relay import Relay
from tests.logged import logged
from tests.waiting import PATIENCE_S, answers, eventually, until, with_more_time


@contextlib.asynccontextmanager
async def running(app: Worker) -> AsyncIterator[None]:
    serving = asyncio.create_task(app.serve())
    try:
        yield
    finally:
        await until(lambda: app._stopping is not None)
        app.stop()
        await serving


STOP_TIMEOUT_MS = int(PATIENCE_S * 1000)


@pytest.fixture
def app(broker_url: str) -> Worker:
    return Worker(broker_url, stop_timeout_ms=STOP_TIMEOUT_MS)


class Seen(list[Any]):
    """What handlers were given; a test waits for so many."""

    async def reach(self, count: int) -> None:
        await until(lambda: len(self) >= count)

    async def have(self, value: object) -> None:
        await until(lambda: value in self)


async def settled(client: AsyncClient, queue: str) -> None:
    await answers(lambda: client.stats(queue), lambda stats: not stats.in_flight)


async def test_a_function_that_returns_acks(app: Worker, client: AsyncClient, orders: str) -> None:
    seen = Seen()

    @app.consumer(orders)
    def handle(order: dict[str, int]) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(order)

    await client.publish(orders, {"n": 1})
    async with running(app):
        await client.publish(orders, {"n": 2})
        await seen.reach(2)
    assert seen == [{"n": 1}, {"n": 2}]
    stats = await client.stats(orders)
    assert (stats.acknowledged_total, stats.depth, stats.consumers) == (2, 0, 0)


async def test_an_async_function_that_returns_acks(app: Worker, client: AsyncClient, orders: str) -> None:
    seen = Seen()

    @app.consumer(orders, concurrency=3, prefetch=10)
    async def handle(order: int) -> None:
        await asyncio.sleep(0)
        seen.append(order)

    await client.put_many(orders, range(100))
    async with running(app):
        await seen.reach(100)
    assert sorted(seen) == list(range(100))
    assert (await client.stats(orders)).acknowledged_total == 100


async def test_an_exception_nacks_with_its_text(
    app: Worker, client: AsyncClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.declare_queue(queue, max_retries=1, retry_backoff="none")
    seen = Seen()

    @app.consumer(queue)
    def handle(order: int) -> None:
        seen.append(order)
        raise LookupError("no such pizza")

    await client.publish(queue, 1)
    async with running(app):
        await seen.reach(2)
        await settled(client, queue)
    [dead] = [message async for message in client.dead_letters(queue)]
    assert [failure.error for failure in dead.deaths[0].failures] == ["LookupError: no such pizza"] * 2
    # Not the text of the lines: PySpark, if it runs in this process, gives it a form of its own.
    failures = [record.exc_info for record in caplog.records if "handle failed on message" in record.getMessage()]
    assert [str(failure[1]) for failure in failures if failure] == ["no such pizza"] * 2


async def test_a_handler_that_waits_for_something_cancelled_has_failed_and_the_worker_goes_on(
    app: Worker, client: AsyncClient, queue: str
) -> None:
    await client.declare_queue(queue, retry_backoff="none")
    seen = Seen()

    @app.consumer(queue)
    async def handle(delivery: Delivery) -> None:
        seen.append([failure.error for failure in delivery.failures])
        if delivery.delivery_count == 1:
            waiting = asyncio.create_task(asyncio.sleep(60))
            waiting.cancel()
            await waiting

    await client.publish(queue, 1)
    async with running(app):
        await seen.reach(2)
    assert seen == [[], ["CancelledError"]]


async def test_a_rejected_message_is_a_dead_letter_at_once(app: Worker, client: AsyncClient, orders: str) -> None:
    seen = Seen()

    @app.consumer(orders)
    async def handle(order: int) -> None:
        seen.append(order)
        raise Reject("not an order")

    await client.publish(orders, 1)
    async with running(app):
        await seen.reach(1)
        await settled(client, orders)
    [dead] = [message async for message in client.dead_letters(orders)]
    assert (dead.deaths[0].reason, dead.deaths[0].failures[0].error) == ("rejected", "not an order")


async def test_a_retry_comes_when_the_handler_says(app: Worker, client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, retry_base_ms=600_000)
    seen = Seen()

    @app.consumer(queue)
    async def handle(delivery: Delivery) -> None:
        seen.append([failure.error for failure in delivery.failures])
        if delivery.delivery_count == 1:
            raise Retry("the oven is cold", delay_ms=1)

    await client.publish(queue, 1)
    async with running(app):
        await seen.reach(2)
    assert seen == [[], ["the oven is cold"]]


async def test_what_a_handler_is_given(app: Worker, client: AsyncClient, queue: str) -> None:
    names = [f"{queue}-{kind}" for kind in ("value", "raw", "delivery", "sync", "text")]
    for name in names:
        await client.declare_queue(name)
    seen = Seen()

    def note(message: object) -> None:
        seen.append(message)

    def note_delivery(delivery: Delivery) -> None:
        seen.append(delivery)

    def note_sync(delivery: SyncDelivery) -> None:
        delivery.extend(60_000)
        delivery.ack()
        seen.append(delivery)

    app.consumer(names[0])(note)
    app.consumer(names[1], raw=True)(note)
    app.consumer(names[2])(note_delivery)
    app.consumer(names[3])(note_sync)
    app.consumer(names[4])(note)
    async with running(app):
        for number, name in enumerate(names[:4], 1):
            await client.publish(name, {"n": number})
            await seen.reach(number)
        await client.publish(names[4], b"text")
        await seen.reach(5)
    assert seen[:2] == [{"n": 1}, b'{"n":2}']
    assert [type(delivery) for delivery in seen[2:4]] == [Delivery, SyncDelivery]
    assert seen[4] == "text"
    assert [(await client.stats(name)).acknowledged_total for name in names] == [1] * 5


async def test_what_cannot_be_read_is_a_dead_letter(app: Worker, client: AsyncClient, orders: str) -> None:
    seen = Seen()

    @app.consumer(orders)
    def handle(order: int) -> None:
        seen.append(order)

    await client.publish(orders, body=b"{", content_type="application/json")
    await client.publish(orders, 2)
    async with running(app):
        await seen.reach(1)
        await settled(client, orders)
    assert seen == [2]
    assert len([message async for message in client.dead_letters(orders)]) == 1


async def test_a_consumer_of_higher_priority_is_served_first(
    app: Worker, client: AsyncClient, broker_url: str, orders: str
) -> None:
    first, others = Seen(), Seen()
    elsewhere = Worker(broker_url, stop_timeout_ms=STOP_TIMEOUT_MS)

    @app.consumer(orders, prefetch=20, priority=5)
    async def handle_first(number: int) -> None:
        first.append(number)

    @elsewhere.consumer(orders, prefetch=20)
    async def handle(number: int) -> None:
        others.append(number)

    async with running(elsewhere), running(app):
        await until(lambda: client.is_connected)
        await answers(lambda: client.stats(orders), lambda stats: stats.consumers >= 2)
        for number in range(10):
            await client.publish(orders, number)
            await first.reach(number + 1)
    assert (first, others) == (list(range(10)), [])


async def test_no_more_run_at_a_time_than_allowed(app: Worker, client: AsyncClient, orders: str) -> None:
    running_now = 0
    most = 0
    seen = Seen()

    @app.consumer(orders, concurrency=3, prefetch=20)
    async def handle(order: int) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0.001)
        running_now -= 1
        seen.append(order)

    await client.put_many(orders, range(30))
    async with running(app):
        await seen.reach(30)
    assert most == 3


async def test_the_lease_of_a_slow_handler_is_extended(broker_url: str, client: AsyncClient, orders: str) -> None:
    for attempt in with_more_time(150, 3_000, 30_000):
        with attempt as lease_ms:
            await client.purge(orders)
            before = await client.stats(orders)
            seen = Seen()
            go_on = asyncio.Event()
            app = Worker(broker_url, stop_timeout_ms=STOP_TIMEOUT_MS)

            @app.consumer(orders, prefetch=2, lease_ms=int(lease_ms))
            async def handle(order: int, seen: Seen = seen, go_on: asyncio.Event = go_on) -> None:
                seen.append(order)
                await go_on.wait()

            await client.put_many(orders, range(2))
            async with running(app):
                await seen.reach(1)
                await asyncio.sleep(3.3 * lease_ms / 1000)  # the passing of leases is what this is about
                stats = await client.stats(orders)
                go_on.set()
                await seen.reach(2)
            assert (stats.in_flight, stats.timed_out_total - before.timed_out_total) == (2, 0)
            assert (await client.stats(orders)).acknowledged_total - before.acknowledged_total == 2


async def test_a_handler_that_hangs_loses_its_message(
    broker_url: str, client: AsyncClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.declare_queue(queue, retry_backoff="none")
    for attempt in with_more_time(60, 3_000, 20_000):
        with attempt as lease_ms:
            await client.purge(queue)
            before = await client.stats(queue)
            caplog.clear()
            seen = Seen()
            go_on = asyncio.Event()
            app = Worker(broker_url, stop_timeout_ms=STOP_TIMEOUT_MS)

            @app.consumer(queue, concurrency=2, lease_ms=int(lease_ms), max_run_ms=100)
            async def handle(delivery: Delivery, seen: Seen = seen, go_on: asyncio.Event = go_on) -> None:
                seen.append(delivery.delivery_count)
                if delivery.delivery_count == 1:
                    await go_on.wait()

            await client.publish(queue, 1)
            async with running(app):
                await seen.reach(2)
                go_on.set()
            stats = await client.stats(queue)
            assert seen == [1, 2]
            assert (
                stats.acknowledged_total - before.acknowledged_total
                == stats.timed_out_total - before.timed_out_total
                == 1
            )
            assert "is not done after 100 ms" in logged(caplog)


async def test_what_waits_behind_a_handler_that_hangs_goes_to_somebody_else(
    app: Worker, client: AsyncClient, queue: str
) -> None:
    await client.declare_queue(queue, retry_backoff="none")
    seen = Seen()
    go_on = asyncio.Event()

    @app.consumer(queue, concurrency=1, prefetch=2, lease_ms=60, max_run_ms=100)
    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.json())
        await go_on.wait()

    await client.put_many(queue, range(2))
    async with running(app):
        await seen.reach(1)
        others = [await client.receive(queue, wait_ms=20_000) for _ in range(2)]
        for [delivery] in others:
            await delivery.ack()
        go_on.set()
    assert sorted(delivery.json() for [delivery] in others) == [0, 1]
    assert seen == [0]


async def test_stopping_lets_handlers_finish_and_gives_back_the_rest(
    app: Worker, client: AsyncClient, orders: str
) -> None:
    seen = Seen()
    go_on = asyncio.Event()

    @app.consumer(orders, concurrency=1, prefetch=5)
    async def handle(order: int) -> None:
        seen.append(order)
        await go_on.wait()

    await client.put_many(orders, range(5))
    async with running(app):
        await seen.reach(1)
        app.stop()
        await answers(lambda: client.stats(orders), lambda stats: stats.ready == 4)
        go_on.set()
    stats = await client.stats(orders)
    assert (stats.acknowledged_total, stats.ready, stats.released_total, stats.nacked_total) == (1, 4, 4, 0)


async def test_a_handler_that_does_not_finish_in_time_is_cancelled_and_its_message_released(
    broker_url: str, client: AsyncClient, orders: str
) -> None:
    app = Worker(broker_url, stop_timeout_ms=20)
    seen = Seen()

    @app.consumer(orders)
    async def handle(order: int) -> None:
        seen.append(order)
        await asyncio.Event().wait()

    await client.publish(orders, 1)
    async with running(app):
        await seen.reach(1)
    stats = await client.stats(orders)
    assert (stats.ready, stats.released_total) == (1, 1)


async def test_a_plain_function_that_hangs_does_not_keep_the_worker(
    broker_url: str, client: AsyncClient, queue: str
) -> None:
    await client.declare_queue(queue, retry_backoff="none")
    app = Worker(broker_url, stop_timeout_ms=20)
    seen = Seen()
    go_on = threading.Event()

    @app.consumer(queue)
    def handle(order: int) -> None:
        seen.append(order)
        go_on.wait(PATIENCE_S)

    await client.publish(queue, 1)
    async with running(app):
        await seen.reach(1)
    go_on.set()
    [delivery] = await client.receive(queue, wait_ms=10_000)
    assert [failure.reason for failure in delivery.failures] == ["vanished"]


async def test_hooks_run_around_the_work_and_have_a_client(app: Worker, client: AsyncClient, orders: str) -> None:
    seen: list[str] = []

    @app.on_start
    async def start() -> None:
        await app.client.publish(orders, "from the hook")
        seen.append("start")

    @app.on_stop
    def stop() -> None:
        seen.append("stop")

    @app.consumer(orders)
    async def handle(order: str) -> None:
        seen.append(order)

    with pytest.raises(ClientClosed):
        _ = app.client
    async with running(app):
        await until(lambda: len(seen) == 2)
    assert seen == ["start", "from the hook", "stop"]


async def test_a_worker_waits_for_its_queue(app: Worker, client: AsyncClient, queue: str) -> None:
    seen = Seen()

    @app.consumer(queue)
    async def handle(order: int) -> None:
        seen.append(order)

    async with running(app):
        await until(lambda: app._client is not None and app._client.is_connected)
        await client.declare_queue(queue)
        await client.publish(queue, 1)
        await seen.reach(1)
        await client.delete_queue(queue)
        await client.declare_queue(queue)
        await client.publish(queue, 2)
        await seen.reach(2)


async def test_a_worker_waits_for_its_broker_and_survives_breaks(
    relay: Relay, client: AsyncClient, orders: str
) -> None:
    app = Worker(relay.address)
    seen = Seen()

    @app.consumer(orders, concurrency=2)
    async def handle(order: int) -> None:
        seen.append(order)

    await relay.stop_listening()
    await client.publish(orders, 0)
    async with running(app):
        await asyncio.sleep(0.05)
        assert not seen
        await relay.listen()
        for number in range(1, 5):
            await seen.reach(number)
            relay.cut()
            await client.publish(orders, number)
        await seen.have(4)  # what was seen twice counts too, so five may have come before it
        await settled(client, orders)
    assert sorted(set(seen)) == list(range(5))


async def test_a_worker_that_waits_for_its_broker_can_be_stopped(unused_address: str) -> None:
    app = Worker(unused_address)
    app.consumer("orders")(lambda order: None)
    async with running(app):
        pass


async def test_a_worker_without_consumers_is_a_mistake(app: Worker) -> None:
    with pytest.raises(InvalidArgument, match="no consumers"):
        await app.serve()


def none_at_all() -> None: ...


def two(order: str, extra: int) -> None: ...


def by_name_only(*, order: str) -> None: ...


class Shop:
    def sell(self, order: str, extra: int) -> None: ...


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (none_at_all, r"^none_at_all\(\) -> .*None.* cannot be called with one argument, the message: too many"),
        (two, r"^two\(.*missing a required argument: 'extra'"),
        (by_name_only, r"^by_name_only\(.*missing a required argument: 'order'|too many positional"),
        (Shop().sell, r"^Shop.sell\(.*missing a required argument: 'extra'"),
        (functools.partial(two), r"^two\(.*missing a required argument: 'extra'"),
        (7, "A handler is a function, not int"),
    ],
)
def test_a_handler_that_cannot_take_a_message_fails_at_once(app: Worker, handler: Any, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        app.consumer("orders")(handler)
    assert app.queues == []


@pytest.mark.parametrize(
    "handler",
    [
        lambda order, extra=1: None,
        lambda *orders: None,
        functools.partial(two, extra=1),
        functools.partial(two, "x"),
        print,
        dict,
    ],
)
def test_a_handler_that_can_take_a_message_is_taken(app: Worker, handler: Any) -> None:
    app.consumer("orders")(handler)
    assert app.queues == ["orders"]


def test_an_annotation_that_cannot_be_evaluated_keeps_no_handler_out(app: Worker) -> None:
    @app.consumer("orders")
    def handle(order: no.such.thing[1 / 0]) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_mistakes_in_registering_fail_at_once(app: Worker) -> None:
    with pytest.raises(InvalidArgument, match="concurrency is 0"):
        app.consumer("orders", concurrency=0)
    with pytest.raises(InvalidArgument, match="prefetch is 2, so never more than 2 of the 3 handlers"):
        app.consumer("orders", concurrency=3, prefetch=2)
    with pytest.raises(InvalidArgument, match=r"over two does not name its queue; write @app.consumer\(queue\)"):
        app.consumer(two)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(InvalidArgument, match="A queue's name has 1 to"):
        app.consumer("")
    with pytest.raises(InvalidArgument, match="not the address"):
        Worker("amqp://broker")


PROGRAM = """
import sys, time
from smista import Worker

app = Worker(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:1")
not_an_app = 1

@app.consumer("orders" if len(sys.argv) < 3 else sys.argv[2], prefetch=3)
def handle(order):
    print("begun", order, flush=True)
    sys.stdin.readline()
    print("done", order, flush=True)

if __name__ == "__main__":
    app.run()
"""


def test_sigterm_stops_a_worker_in_order(broker_url: str, sync_client: Client, queue: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(PROGRAM)
    sync_client.declare_queue(queue)
    sync_client.put_many(queue, range(3))
    command = [sys.executable, "-W", "error", str(tmp_path / "tasks.py"), broker_url, queue]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun 0\n"
        os.kill(process.pid, signal.SIGTERM)
        eventually(lambda: not sync_client.stats(queue).consumers)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.read() == "done 0\n"
        assert process.wait(PATIENCE_S) == 0
    stats = sync_client.stats(queue)
    assert (stats.acknowledged_total, stats.ready, stats.released_total) == (1, 2, 2)


def test_a_second_signal_stops_a_worker_at_once(
    broker_url: str, sync_client: Client, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(PROGRAM.replace("sys.stdin.readline()", "time.sleep(600)"))
    sync_client.declare_queue(queue)
    sync_client.publish(queue, 0)
    command = [sys.executable, "-W", "error", str(tmp_path / "tasks.py"), broker_url, queue]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun 0\n"
        os.kill(process.pid, signal.SIGINT)
        eventually(lambda: not sync_client.stats(queue).consumers)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


def test_a_worker_is_found_by_module_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_tasks.py").write_text(PROGRAM)
    (tmp_path / "broken_tasks.py").write_text("import not_there_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["smista"])
    app = load("shop_tasks:app")
    assert app is load("shop_tasks")
    assert app.queues == ["orders"]
    for name, problem in [
        ("no_such_module:app", "no module 'no_such_module'"),
        ("shop_tasks:nothing", "'nothing' in module 'shop_tasks' is not a Worker"),
        ("shop_tasks:not_an_app", "is not a Worker"),
        (":app", "write it as module:app"),
    ]:
        with pytest.raises(WorkerNotFound, match=problem):
            load(name)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        load("broken_tasks:app")
