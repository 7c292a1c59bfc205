"""Consumers as functions: returning acknowledges, an exception nacks, a crash or a hang lets the lease run out.

    app = Worker("http://127.0.0.1:9324")

    @app.consumer("orders", concurrency=4)
    def handle(order: dict) -> None:
        ...

    app.run()                     # or: smista worker module:app

A worker waits for a broker that is not up yet, and reconnects. SIGTERM and SIGINT stop it in order: it takes no more
messages, gives running handlers `stop_timeout_ms` to finish, and releases the rest. A second signal stops it at once.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from smista.address import shown_address, stream_url
from smista.client.async_client import AsyncClient
from smista.client.consumer import Consumer, ConsumerSettings
from smista.client.errors import ClientClosed, WorkerNotFound
from smista.client.handler import CANCEL_TIMEOUT_S, Handler, Reject, Retry, name_of
from smista.core.settings import check_name
from smista.errors import InvalidArgument

__all__ = ["Reject", "Retry", "Worker", "load"]

logger = logging.getLogger("smista.worker")
F = TypeVar("F", bound=Callable[..., Any])
Hook = TypeVar("Hook", bound=Callable[[], Any])


class Worker:
    """See the module."""

    def __init__(
        self,
        address: str | None = None,
        *,
        namespace: str | None = None,
        stop_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
    ) -> None:
        stream_url(address)  # so that a wrong address fails here
        self.address = address
        self._namespace = namespace
        self._stop_timeout_ms = stop_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._registered: list[tuple[Handler, ConsumerSettings]] = []
        self._on_start: list[Callable[[], Any]] = []
        self._on_stop: list[Callable[[], Any]] = []
        self._client: AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    @property
    def queues(self) -> list[str]:
        """The queues it consumes from."""
        return [settings.queue for _, settings in self._registered]

    @property
    def client(self) -> AsyncClient:
        """The worker's client, for async handlers that publish; raises `ClientClosed` when it does not run."""
        if self._client is None:
            raise ClientClosed("The worker is not running, so it has no client.")
        return self._client

    def consumer(
        self,
        queue: str,
        *,
        concurrency: int = 1,
        prefetch: int | None = None,
        lease_ms: int = 30_000,
        max_run_ms: int = 600_000,
        priority: int = 0,
        raw: bool = False,
    ) -> Callable[[F], F]:
        """Have a function handle the messages of a queue: coroutines run on the event loop, plain functions in threads.

        The function gets the message's value (JSON, text or bytes, by content type; always bytes with `raw`). If its
        parameter is annotated `Delivery` (`SyncDelivery` in a plain function) it gets the delivery, and may settle it.
        At most `concurrency` handlers run at a time, and at most `prefetch` messages (default: twice as many) are held
        here. The lease is extended while a handler runs, for up to `max_run_ms`. Consumers of higher `priority` are
        served first.
        """
        if callable(queue):
            raise InvalidArgument(
                f"@app.consumer over {name_of(queue)} does not name its queue; write @app.consumer(queue)."
            )
        concurrency = _positive("concurrency", concurrency)
        prefetch = _positive("prefetch", 2 * concurrency if prefetch is None else prefetch)
        if prefetch < concurrency:
            raise InvalidArgument(
                f"prefetch is {prefetch}, so never more than {prefetch} of the {concurrency} handlers that concurrency "
                "allows would run; raise it, or leave it out."
            )
        settings = ConsumerSettings(
            queue=check_name("queue", queue),
            concurrency=concurrency,
            prefetch=prefetch,
            lease_ms=_positive("lease_ms", lease_ms),
            max_run_ms=_positive("max_run_ms", max_run_ms),
            priority=priority,
        )

        def register(function: F) -> F:
            self._registered.append((Handler(function, raw=raw), settings))
            return function

        return register

    def on_start(self, hook: Hook) -> Hook:
        """Call a function once connected, before the first message."""
        self._on_start.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Call a function after the last message."""
        self._on_stop.append(hook)
        return hook

    def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        import uvloop  # imported here: `serve`, which runs on its program's loop, does not need it

        loop = uvloop.new_event_loop()
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._serve_until_signalled())
        finally:
            _end(loop)

    def stop(self) -> None:
        """Stop it in order; may be called from any thread."""
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def serve(self) -> None:
        """Run until `stop`, on a running event loop."""
        if not self._registered:
            raise InvalidArgument("The worker has no consumers; register one with @app.consumer(queue).")
        self._loop = asyncio.get_running_loop()
        stopping = self._stopping = asyncio.Event()
        self._client = AsyncClient(self.address, namespace=self._namespace, connect_timeout_ms=self._connect_timeout_ms)
        try:
            if await _unless(stopping, self._client.connect(retry_for_ms=None)):
                for hook in self._on_start:
                    await _called(hook)
                await self._work(self._client, stopping)
                for hook in self._on_stop:
                    await _called(hook)
        finally:
            await self._client.close()
            self._client = None

    async def _work(self, client: AsyncClient, stopping: asyncio.Event) -> None:
        consumers = [Consumer(client, handler, settings) for handler, settings in self._registered]
        tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
        address = shown_address(stream_url(self.address))
        logger.info("Consuming %s at %s.", ", ".join(map(repr, self.queues)), address)
        ending = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([ending, *tasks], return_when=asyncio.FIRST_COMPLETED)
            logger.info("Stopping: running handlers may finish for %d ms.", self._stop_timeout_ms)
            await asyncio.gather(*(consumer.stop() for consumer in consumers))
            await asyncio.wait(tasks, timeout=self._stop_timeout_ms / 1000)
        finally:
            for task in (ending, *tasks):
                task.cancel()
            _, *results = await asyncio.gather(ending, *tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _serve_until_signalled(self) -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self.serve())

        def stop() -> None:
            if self._stopping is None or self._stopping.is_set():
                serving.cancel()
            else:
                self._stopping.set()

        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, stop)
        try:
            await asyncio.wait({serving})
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
        if not serving.cancelled():
            serving.result()


def load(name: str) -> Worker:
    """The worker that `module:app` names (`module` alone: its `app`); raises `WorkerNotFound`.

    Modules may be in the working directory.
    """
    module_name, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, and one of its own imports fails
        raise WorkerNotFound(f"There is no module {module_name!r} here or in Python's path.") from None
    except ValueError:
        raise WorkerNotFound(f"{name!r} names no worker; write it as module:app.") from None
    for part in (attribute or "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        raise WorkerNotFound(f"{attribute or 'app'!r} in module {module_name!r} is not a Worker; write module:app.")
    return found


def _positive(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise InvalidArgument(f"{name} is {value!r}; give a whole number above 0.")
    return value


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """End a loop as `asyncio.run` does, but do not wait for ever for coroutines that ignore cancellation."""
    try:
        for task in (tasks := asyncio.all_tasks(loop)):
            task.cancel()
        tasks.add(loop.create_task(loop.shutdown_asyncgens()))
        loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_S))
        # Tasks that go on were logged already; asyncio need not log them again.
        loop.set_exception_handler(lambda _loop, _context: None)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _called(hook: Callable[[], Any]) -> None:
    result = hook()
    if inspect.isawaitable(result):
        await result


async def _unless(stopping: asyncio.Event, work: Awaitable[None]) -> bool:
    """Do the work unless the worker is stopped first; returns whether it was done."""
    working, ending = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if not working.done():
        working.cancel()
        return False
    working.result()
    return True
