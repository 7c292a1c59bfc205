"""Every kind of function as a handler, with every way to end: what becomes of the message, and that the next one has
its turn."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from smista import AsyncClient, Client, Worker
from smista.client import Reject, Retry
from smista.client import handler as handlers
from smista.client.settling import ACK
from tests.client.test_worker import Seen, running, settled
from tests.logged import logged
from tests.waiting import answers

Body = Callable[[Any], None]
Made = Callable[[Body], Callable[..., Any]]


class Textless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Own(BaseException):
    pass


def _nothing(_: Any) -> None: ...


def raising(error: BaseException) -> Body:
    def body(_: Any) -> None:
        raise error

    return body


def _stop_iteration(_: Any) -> None:
    next(iter(()))


def _exit(_: Any) -> None:
    sys.exit("bye")


ENDS: dict[str, tuple[Body, str | None]] = {
    "returns": (_nothing, None),
    "exception": (raising(LookupError("no such pizza")), "LookupError: no such pizza"),
    "no text": (raising(Textless()), "Textless: "),
    "not utf-8": (raising(ValueError("caf\udce9")), "ValueError: caf\\udce9"),
    "base exception": (raising(Own("own")), "Own: own"),
    "sys.exit": (_exit, "SystemExit: bye"),
    "keyboard interrupt": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "stop iteration": (_stop_iteration, "StopIteration"),
    "stop async iteration": (raising(StopAsyncIteration()), "StopAsyncIteration"),
    "cancelled": (raising(asyncio.CancelledError()), "CancelledError"),
    "generator exit": (raising(GeneratorExit()), "GeneratorExit"),
    "group": (raising(BaseExceptionGroup("several", [Own()])), "BaseExceptionGroup: several"),
    "reject": (raising(Reject("never")), "never"),
    "retry": (raising(Retry("later", delay_ms=0)), "later"),
    "retry that cannot be": (raising(Retry("later", delay_ms=-5)), "InvalidArgument: delay_ms is -5"),
    "retry in part": (raising(Retry("later", delay_ms=0.5)), "InvalidArgument: delay_ms is 0.5"),  # type: ignore[arg-type]  # a mistake
}


def plain(body: Body) -> Callable[..., Any]:
    def function(order: int) -> None:
        body(order)

    return function


def coroutine(body: Body) -> Callable[..., Any]:
    async def function(order: int) -> None:
        await asyncio.sleep(0)
        body(order)

    return function


def part(body: Body) -> Callable[..., Any]:
    def function(order: int, more: int) -> None:
        body(order)

    return functools.partial(function, more=1)


def part_of_coroutine(body: Body) -> Callable[..., Any]:
    async def function(order: int, more: int) -> None:
        body(order)

    return functools.partial(function, more=1)


class Plain:
    def __init__(self, body: Body) -> None:
        self.body = body

    def __call__(self, order: int) -> None:
        self.body(order)

    def method(self, order: int) -> None:
        self.body(order)


class AsyncCallable:
    def __init__(self, body: Body) -> None:
        self.body = body

    async def __call__(self, order: int) -> None:
        await asyncio.sleep(0)
        self.body(order)


def decorated(body: Body) -> Callable[..., Any]:
    """A coroutine behind an ordinary decorator."""
    function = coroutine(body)

    @functools.wraps(function)
    def inner(*arguments: Any) -> Any:
        return function(*arguments)

    return inner


def wrapped_in_silence(body: Body) -> Callable[..., Any]:
    """The same, by a decorator that does not say what it wraps."""
    function = coroutine(body)
    return lambda order: function(order)


def decorated_callable(body: Body) -> Callable[..., Any]:
    instance = AsyncCallable(body)
    return lambda order: instance(order)


def awaitable(body: Body) -> Callable[..., Any]:
    """Returns something to be awaited that is no coroutine."""

    class Later:
        def __await__(self) -> Generator[Any, Any, None]:
            yield from asyncio.sleep(0).__await__()
            body(0)

    def function(order: int) -> Awaitable[None]:
        return Later()

    return function


def generator(body: Body) -> Callable[..., Any]:
    def function(order: int) -> Iterator[int]:
        yield 1
        body(order)
        yield 2

    return function


def async_generator(body: Body) -> Callable[..., Any]:
    async def function(order: int) -> AsyncIterator[int]:
        yield 1
        body(order)
        yield 2

    return function


def decorated_generator(body: Body) -> Callable[..., Any]:
    function = generator(body)
    return lambda order: function(order)


def decorated_async_generator(body: Body) -> Callable[..., Any]:
    function = async_generator(body)
    return lambda order: function(order)


KINDS: dict[str, Made] = {
    "plain": plain,
    "lambda": lambda body: lambda order: body(order),
    "builtin-like method": lambda body: Plain(body).method,
    "partial": part,
    "callable object": Plain,
    "generator": generator,
    "decorated generator": decorated_generator,
    "coroutine": coroutine,
    "partial coroutine": part_of_coroutine,
    "async callable object": AsyncCallable,
    "decorated coroutine": decorated,
    "coroutine in silence": wrapped_in_silence,
    "callable in silence": decorated_callable,
    "awaitable": awaitable,
    "async generator": async_generator,
    "decorated async generator": decorated_async_generator,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_every_end_of_a_handler_settles_its_message_and_the_next_has_its_turn(
    broker_url: str, client: AsyncClient, queue: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # Not every report can hold what is not UTF-8.
    monkeypatch.setattr(logging.getLogger("smista.worker"), "disabled", True)
    app = Worker(broker_url, stop_timeout_ms=30_000)
    seen = Seen()
    ends = list(ENDS.values())

    async def declare(number: int) -> str:
        name = f"{queue}-{number}"
        await client.declare_queue(name, max_retries=0)
        return name

    names = [await declare(number) for number in range(len(ends))]
    for name, (end, _) in zip(names, ends, strict=True):

        def body(_: Any, end: Body = end) -> None:
            seen.append("begun")
            end(0)

        calls = [body, _nothing]
        # The first message ends so; the second returns.
        app.consumer(name)(KINDS[kind](lambda order, calls=calls: calls.pop(0)(order)))  # type: ignore[misc]  # its own
        await client.put_many(name, [1, 2])
    async with running(app):
        for name in names:
            await answers(functools.partial(client.stats, name), lambda stats: not stats.depth)
    assert seen == ["begun"] * len(ends)
    for (what, (_, wanted)), name in zip(ENDS.items(), names, strict=True):
        stats = await client.stats(name)
        dead = [message async for message in client.dead_letters(name)]
        errors = [failure.error for message in dead for death in message.deaths for failure in death.failures]
        assert stats.acknowledged_total == (2 if wanted is None else 1), what
        if wanted is None:
            assert not dead, what
        elif what == "stop iteration" and "StopIteration" not in errors[0]:
            assert errors == ["RuntimeError: generator raised StopIteration"], kind
        else:
            assert len(errors) == 1, what
            assert wanted in errors[0], what


async def test_a_handler_cannot_cancel_its_worker(app: Worker, client: AsyncClient, queue: str) -> None:
    await client.declare_queue(queue, max_retries=0)
    seen = Seen()

    @app.consumer(queue)
    async def handle(order: int) -> None:
        seen.append(order)
        if order == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    await client.put_many(queue, [0, 1])
    async with running(app):
        await seen.reach(2)
        await settled(client, queue)
    stats = await client.stats(queue)
    assert (stats.acknowledged_total, stats.dead_lettered_total) == (1, 1)


# -- stopping ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def app(broker_url: str) -> Worker:
    return Worker(broker_url, stop_timeout_ms=5_000)


async def test_a_handler_that_swallows_its_cancellation_is_left_behind(
    broker_url: str, client: AsyncClient, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handlers, "CANCEL_TIMEOUT_S", 0.05)
    app = Worker(broker_url, stop_timeout_ms=1)
    await client.declare_queue(queue, max_retries=0)
    seen = Seen()
    go_on = asyncio.Event()

    @app.consumer(queue)
    async def handle(order: int) -> None:
        seen.append(order)
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                seen.append("cancelled")

    await client.publish(queue, 1)
    async with running(app):
        await seen.reach(1)
    assert "cancelled" in seen
    assert "is left behind" in logged(caplog)
    # It was at work until the connection went: that counts.
    await answers(lambda: client.stats(queue), lambda stats: stats.dead_lettered_total)
    go_on.set()


async def test_a_handler_that_swallows_its_cancellation_and_returns_has_its_message_released(
    broker_url: str, client: AsyncClient, queue: str
) -> None:
    app = Worker(broker_url, stop_timeout_ms=1)
    await client.declare_queue(queue, max_retries=0)
    seen = Seen()

    @app.consumer(queue)
    async def handle(order: int) -> None:
        seen.append(order)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)

    await client.publish(queue, 1)
    async with running(app):
        await seen.reach(1)
    stats = await client.stats(queue)
    assert (stats.ready, stats.released_total, stats.acknowledged_total) == (1, 1, 0)


async def test_a_handler_that_had_ended_when_it_was_to_be_cancelled_has_its_message_acked() -> None:
    """The worker gives up in the very turn of the loop in which the function returns."""
    go_on = asyncio.Event()

    async def handle(order: bytes) -> None:
        await go_on.wait()
        handling.cancel()

    delivery: Any = types.SimpleNamespace(body=b"1")
    handling = asyncio.create_task(handlers.Handler(handle, raw=True).handle(delivery, None))
    await asyncio.sleep(0)
    go_on.set()
    assert await handling == ACK


STUBBORN = """
import asyncio, sys
from smista import Worker
from smista.client import handler, portal

# So long a worker hopes for one that does not end.
assert handler.CANCEL_TIMEOUT_S == portal._JOIN_TIMEOUT_S == 5
handler.CANCEL_TIMEOUT_S = portal._JOIN_TIMEOUT_S = 0.5
app = Worker(sys.argv[1], stop_timeout_ms=100)

@app.consumer(sys.argv[2])
async def handle(order):
    print("begun", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("no", flush=True)

app.run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_a_worker_ends_though_a_handler_does_not(
    broker_url: str, sync_client: Client, queue: str, tmp_path: Path, signals: int
) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    sync_client.declare_queue(queue)
    sync_client.publish(queue, 0)
    command = [sys.executable, "-W", "error", str(tmp_path / "stubborn.py"), broker_url, queue]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        for _ in range(signals):
            os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0
        assert "Traceback" not in errors
        assert "destroyed" not in errors


# -- hanging ----------------------------------------------------------------------------------------------------------


async def test_what_waits_behind_handlers_that_hang_is_given_back_and_never_counts_as_failed(
    app: Worker, client: AsyncClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.declare_queue(queue, max_retries=0)
    seen = Seen()
    go_on = asyncio.Event()

    @app.consumer(queue, concurrency=2, prefetch=10, lease_ms=900, max_run_ms=1_000)
    async def handle(order: int) -> None:
        seen.append(order)
        if order < 2:
            await go_on.wait()

    await client.put_many(queue, range(10))
    async with running(app):
        await seen.reach(2)
        stats = await answers(lambda: client.stats(queue), lambda stats: not stats.in_flight)
        # The two that hang have run out of their leases; what waited behind them is as it was.
        assert (stats.ready, stats.consumers, stats.timed_out_total, stats.dead_lettered_total) == (8, 0, 2, 2)
        assert "all 2 handlers hang" in logged(caplog)
        go_on.set()
        await seen.reach(10)
        await settled(client, queue)
    stats = await client.stats(queue)
    assert (sorted(seen), stats.acknowledged_total, stats.dead_lettered_total) == (list(range(10)), 8, 2)


@pytest.mark.slow
async def test_what_waits_behind_a_slow_handler_is_kept_for_as_long_as_it_takes(
    app: Worker, client: AsyncClient, queue: str
) -> None:
    await client.declare_queue(queue, max_retries=0)
    seen = Seen()
    go_on = asyncio.Event()

    @app.consumer(queue, concurrency=2, prefetch=8, lease_ms=3_000, max_run_ms=3_000)
    async def handle(order: int) -> None:
        seen.append(order)
        if order == 0:
            await go_on.wait()  # hangs
        elif order < 6:
            await asyncio.sleep(0.8)  # slow: the last waits for longer than any may run

    await client.put_many(queue, range(7))
    async with running(app):
        await seen.have(6)
        go_on.set()
        await settled(client, queue)
    assert seen == list(range(7))
    assert [message.json() async for message in client.dead_letters(queue)] in ([], [0])
