"""A function that handles messages: which argument it takes, and how its outcome settles the message.

returns                  ack
raises Retry(delay_ms=)  nack: retried after that long, while retries are left
raises Reject            nack, a dead letter at once
raises anything else     nack with its text, retried after the queue's back-off

"Anything else" includes `sys.exit` and exceptions whose text cannot be read: they fail the message like any other, and
the worker goes on with the next one.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import msgspec

from smista.client.message import Delivered, Delivery, SyncDelivery, nacking, text_of
from smista.client.settling import ACK, Settling
from smista.errors import InvalidArgument

logger = logging.getLogger("smista.worker")
CANCEL_TIMEOUT_S = 5.0
"""How long a coroutine that was cancelled may take to end."""
_WRAPPINGS_MAX = 100


class Reject(Exception):
    """Raise it for a message that can never succeed: it becomes a dead letter at once."""


class Retry(Exception):
    """Raise it to get the message again after `delay_ms` (default: the queue's back-off); counts as a failure."""

    def __init__(self, reason: str = "", *, delay_ms: int | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = delay_ms


class Handler:
    def __init__(self, function: Callable[..., Any], *, raw: bool) -> None:
        self.function = function
        self.name = name_of(function)
        self.is_async = _is_coroutine(function) or _is_coroutine(
            getattr(function, "__call__", None)  # noqa: B004  # not whether there is one, but which
        )
        self.raw = raw
        wanted = _first_annotation(function)
        self.takes_delivery = isinstance(wanted, type) and issubclass(wanted, Delivered)
        self.kind: type[Delivered] = wanted if self.takes_delivery else Delivery

    async def handle(self, delivery: Delivered, threads: Executor | None) -> Settling | None:
        """Call the function; returns how to settle the delivery, or None where that is unknown, because the function
        was cancelled and did not stop. Raises `CancelledError` when this was cancelled and the function has ended."""
        try:
            argument = self._argument(delivery)
        except (ValueError, msgspec.DecodeError) as problem:
            logger.error("Message %s of queue %r cannot be read: %s", delivery.id, delivery.queue, problem)
            return nacking(problem, requeue=False)
        if threads is not None:
            # Returned rather than raised: not every exception can pass through a future; StopIteration cannot.
            result, error = await asyncio.get_running_loop().run_in_executor(threads, _called, self.function, argument)
            if error is not None or not (inspect.isawaitable(result) or inspect.isasyncgen(result)):
                return self._settling(delivery, error)
            running = asyncio.ensure_future(_finished(result))
        else:
            running = asyncio.ensure_future(_awaited(self.function, argument))
        # A task of its own: what the function does to its task, such as cancelling it, must not affect ours.
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            return await self._cancelled(delivery, running)
        return self._settling(delivery, running.result())

    async def _cancelled(self, delivery: Delivered, running: asyncio.Future[BaseException | None]) -> Settling | None:
        if not running.cancel() and not running.cancelled():
            # It had come to its end by itself.
            return self._settling(delivery, running.result())
        await asyncio.wait({running}, timeout=CANCEL_TIMEOUT_S)
        if not running.done():
            logger.error(
                "%s does not stop on message %s of queue %r, though it was cancelled: it is left behind.",
                self.name,
                delivery.id,
                delivery.queue,
            )
            return None
        if running.cancelled() or running.result() is None or isinstance(running.result(), asyncio.CancelledError):
            # Also where it caught that and returned: whether its work was done is unknown.
            raise asyncio.CancelledError
        return self._settling(delivery, running.result())

    def _settling(self, delivery: Delivered, error: BaseException | None) -> Settling:
        """How the outcome of the function settles the delivery."""
        match error:
            case None:
                return ACK
            case Reject():
                reason = text_of(error)
                logger.warning("Message %s of queue %r was rejected: %s", delivery.id, delivery.queue, reason)
                return nacking(reason or "Reject", requeue=False)
            case Retry():
                reason = text_of(error)
                try:
                    settling = nacking(reason or "Retry", delay_ms=error.delay_ms)
                except InvalidArgument as mistake:
                    return self._settling(delivery, mistake)
                logger.info("Message %s of queue %r will be retried: %s", delivery.id, delivery.queue, reason)
                return settling
            case _:
                logger.error(
                    "%s failed on message %s of queue %r, delivery %d",
                    self.name,
                    delivery.id,
                    delivery.queue,
                    delivery.delivery_count,
                    exc_info=error,
                )
                return nacking(error)

    def _argument(self, delivery: Delivered) -> object:
        if self.takes_delivery:
            return delivery
        return delivery.body if self.raw else delivery.value()


def _called(function: Callable[..., Any], argument: object) -> tuple[object, BaseException | None]:
    """Call a plain function in a thread; returns its result and its exception, of which one is None."""
    try:
        result = function(argument)
        if inspect.isgenerator(result):
            # A generator does nothing until it is iterated.
            collections.deque(result, maxlen=0)
        return result, None
    except BaseException as error:
        return None, error


async def _awaited(function: Callable[..., Any], argument: object) -> BaseException | None:
    """Call a function on the loop; returns its exception, since not every exception can pass through a task."""
    try:
        return await _finished(function(argument))
    except BaseException as error:
        return error


async def _finished(result: object) -> BaseException | None:
    """Run what a function returned to its end: behind a decorator it may be a coroutine, or a generator."""
    try:
        while inspect.isawaitable(result):
            result = await result
        if inspect.isasyncgen(result):
            async for _ in result:
                pass
        elif inspect.isgenerator(result):
            collections.deque(result, maxlen=0)
        return None
    except BaseException as error:
        return error


def _is_coroutine(function: object) -> bool:
    """Whether calling it gives a coroutine, also behind `functools.wraps` and `functools.partial`."""
    seen = 0
    while isinstance(function, functools.partial) or (hasattr(function, "__wrapped__") and seen < _WRAPPINGS_MAX):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__
        seen += 1
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def name_of(function: object) -> str:
    """The name as in the source: `place_order`, `Shop.place_order`; for a callable object its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _first_annotation(function: Callable[..., Any]) -> Any:
    """The annotation of its first parameter; raises `InvalidArgument` for a function that cannot take a message."""
    if not callable(function):
        raise InvalidArgument(f"A handler is a function, not {type(function).__name__}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None  # written in C, without a signature
    try:
        signature.bind(None)
    except TypeError as problem:
        raise InvalidArgument(
            f"{name_of(function)}{signature} cannot be called with one argument, the message: {problem}."
        ) from None
    [first, *_] = _evaluated(function, signature).parameters.values()
    annotation = first.annotation
    if isinstance(annotation, str):
        return {"Delivery": Delivery, "SyncDelivery": SyncDelivery}.get(annotation.rpartition(".")[2])
    return annotation


def _evaluated(function: Callable[..., Any], signature: inspect.Signature) -> inspect.Signature:
    """The signature with text annotations evaluated, where that is possible."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:
        # An annotation is any expression, and may be one that only a type checker can resolve.
        return signature
