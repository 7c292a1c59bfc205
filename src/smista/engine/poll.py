"""A long poll: a request for messages that waits, once, until there are some or its time is over."""

from __future__ import annotations

import asyncio
import itertools

from smista.core.queue import Queue
from smista.engine.delivery import Delivery

RECEIVED_BYTES_MAX = 16 << 20
"""Of bodies that one receive or one peek hands out, give or take a message: where they are large, fewer come."""
_entry_numbers = itertools.count(1 << 40)


class Poll:
    """An entry of the calendar while it waits."""

    __slots__ = ("answer", "consumer", "deadline_ms", "lease_ms", "limit", "queue", "sequence", "several_per_group")

    priority = 0
    bytes_max = RECEIVED_BYTES_MAX

    def __init__(
        self,
        queue: Queue,
        limit: int,
        lease_ms: int | None,
        consumer: str,
        answer: asyncio.Future[list[Delivery]],
        *,
        several_per_group: bool,
    ) -> None:
        self.queue = queue
        self.limit = limit
        self.lease_ms = lease_ms
        self.consumer = consumer
        self.answer = answer
        self.several_per_group = several_per_group
        # As an entry of the calendar, far below the numbers of queues.
        self.sequence = -next(_entry_numbers)
        self.deadline_ms: int | None = None

    @property
    def credit(self) -> int:
        return self.limit
