"""Those who talk to the broker, and what they know: consumers, calls under way, deliveries in somebody's hands."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from smista.core.message import Receipt
from smista.core.queue import Queue
from smista.engine import Delivery, Publication, Subscription
from tests.simulation.ledger import Name


def name_of(receipt: Receipt) -> Name:
    return receipt.queue, receipt.sequence, receipt.delivery, receipt.run


class Hand:
    """A delivery in somebody's hands."""

    __slots__ = ("delivery", "holder")

    def __init__(self, delivery: Delivery, holder: Consumer | None) -> None:
        self.delivery = delivery
        self.holder = holder


class Consumer:
    """A standing consumer as its connection sees it."""

    __slots__ = ("acknowledges", "is_alive", "label", "queue", "subscription")

    def __init__(self, label: str, queue: Queue, *, acknowledges: bool) -> None:
        self.label = label
        self.queue = queue
        self.acknowledges = acknowledges
        """At once, whatever it gets, as AMQP's no-ack does."""
        self.is_alive = True
        self.subscription: Subscription


class Batch:
    """Publications under one id, that may be sent again."""

    __slots__ = ("is_under_way", "name", "publications", "queue", "stored")

    def __init__(self, name: str, queue: Queue, publications: list[Publication]) -> None:
        self.name = name
        self.queue = queue
        self.publications = publications
        self.stored: dict[int, tuple[int, int, int]] = {}
        """By place: the number it got, when, and how long that is remembered."""
        self.is_under_way = False

    def returned(self) -> None:
        self.is_under_way = False


class Call:
    """A call that has not returned yet."""

    __slots__ = ("is_polling", "is_user", "queue", "task", "what")

    def __init__(self, what: str, task: asyncio.Task[Any], queue: Queue | None, *, is_polling: bool) -> None:
        self.what = what
        self.task = task
        self.queue = queue
        self.is_polling = is_polling
        self.is_user = is_polling and what.startswith("receive")
        """Whether its queue is in use until it returns. A claim may have its rows already, and wait for the disk."""

    @property
    def has_begun(self) -> bool:
        work = self.task.get_coro()
        return inspect.iscoroutine(work) and inspect.getcoroutinestate(work) != inspect.CORO_CREATED
