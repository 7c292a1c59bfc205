"""A function that handles messages: what it wants to be given, and what its end means for the message.

returns                  ack
raises Retry(delay_ms=)  nack: retried after that long, while retries are left
raises Reject            nack, a dead letter at once
raises anything else     nack with its text, retried after the queue's back-off
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import msgspec

from smista.client.message import Delivered, Delivery, SyncDelivery, nacking
from smista.client.settling import ACK, Settling
from smista.core.errors import InvalidArgument

logger = logging.getLogger("smista.worker")


class Reject(Exception):
    """Raise it for a message that can never succeed: it becomes a dead letter at once."""


class Retry(Exception):
    """Raise it to have the message again after `delay_ms` (else after the queue's back-off); counts as a failure."""

    def __init__(self, reason: str = "", *, delay_ms: int | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = delay_ms


class Handler:
    def __init__(self, function: Callable[..., Any], *, raw: bool) -> None:
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  # not whether there is one, but which
        )
        self.raw = raw
        wanted = _first_annotation(function)
        self.takes_delivery = isinstance(wanted, type) and issubclass(wanted, Delivered)
        self.kind: type[Delivered] = wanted if self.takes_delivery else Delivery

    async def handle(self, delivery: Delivered, threads: Executor | None) -> Settling:
        """Call it; returns what shall become of the delivery."""
        try:
            argument = self._argument(delivery)
        except (ValueError, msgspec.DecodeError) as error:
            logger.error("Message %s of queue %r cannot be read: %s", delivery.id, delivery.queue, error)
            return nacking(error, requeue=False)
        try:
            if threads is None:
                await self.function(argument)
            else:
                await asyncio.get_running_loop().run_in_executor(threads, self.function, argument)
        except Reject as rejection:
            logger.warning("Message %s of queue %r was rejected: %s", delivery.id, delivery.queue, rejection)
            return nacking(str(rejection) or "Reject", requeue=False)
        except Retry as retry:
            logger.info("Message %s of queue %r will be retried: %s", delivery.id, delivery.queue, retry)
            return nacking(str(retry) or "Retry", delay_ms=retry.delay_ms)
        except (Exception, asyncio.CancelledError) as error:
            if _is_being_cancelled(error):
                raise
            logger.exception(
                "%s failed on message %s of queue %r, delivery %d",
                self.name,
                delivery.id,
                delivery.queue,
                delivery.delivery_count,
            )
            return nacking(error)
        return ACK

    def _argument(self, delivery: Delivered) -> object:
        if self.takes_delivery:
            return delivery
        return delivery.body if self.raw else delivery.value()


def _is_being_cancelled(error: BaseException) -> bool:
    """Whether we are told to stop, rather than that something the handler waited for was cancelled."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _first_annotation(function: Callable[..., Any]) -> Any:
    """What the function says it takes; raises `InvalidArgument` for one that cannot take a message."""
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    except NameError:
        # An annotation that only a type checker can resolve.
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if not parameters:
        raise InvalidArgument(f"{function!r} takes no arguments; a handler takes one, the message.")
    annotation = parameters[0].annotation
    if isinstance(annotation, str):
        return {"Delivery": Delivery, "SyncDelivery": SyncDelivery}.get(annotation.rpartition(".")[2])
    return annotation
